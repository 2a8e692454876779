package outbox

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"
)

// ClaimMode is how a relay fetches rows.
type ClaimMode int

const (
	// Auto follows the log where the database allows it and polls otherwise.
	Auto ClaimMode = iota
	// Log follows the database's log (binlog, logical decoding): reading costs
	// the tables nothing and a message is seen as soon as it is committed. The
	// relay polls while the log cannot be followed, and says why.
	Log
	// Poll has one leader per shard read ahead in single snapshots.
	Poll
	// SkipLocked is the customary design, workers that lock batches of rows with
	// FOR UPDATE SKIP LOCKED while they publish. Order per key is given up when
	// there is more than one worker.
	SkipLocked
)

var claimNames = [...]string{"auto", "log", "poll", "skip-locked"}

// String is "auto", "log", "poll" or "skip-locked".
func (c ClaimMode) String() string { return claimNames[c] }

// ParseClaimMode reads what String writes.
func ParseClaimMode(s string) (ClaimMode, error) {
	for i, name := range claimNames {
		if s == name {
			return ClaimMode(i), nil
		}
	}
	return 0, fmt.Errorf("outbox: unknown claim %q: want auto, log, poll or skip-locked", s)
}

// RetryPolicy says when a message that failed is tried again: after
// Base * 2^(attempts-1), at most Max, with a random part of up to half taken off
// so that messages that failed together do not come back together.
type RetryPolicy struct {
	MaxAttempts int           // then it is buried; default 10
	Base        time.Duration // default 200 ms
	Max         time.Duration // default 5 min
}

// delay before the next attempt after the given number of failed ones.
func (p RetryPolicy) delay(attempts int) time.Duration {
	d := p.Max
	if shift := attempts - 1; shift < 32 && p.Base<<shift>>shift == p.Base && p.Base<<shift < p.Max {
		d = p.Base << shift
	}
	return d - rand.N(d/2+1)
}

// Config is how a [Relay] works. The zero value is right for most.
type Config struct {
	// Claim is how it fetches rows. Relays of one table use SkipLocked all, or
	// none of them does, which Run sees to: one that leads does not know of the
	// others' locks, and both would deliver every message. Default: Auto.
	Claim ClaimMode

	// Unordered lets messages of one key overtake each other: a failed one
	// holds up none. Default: false.
	Unordered bool

	// Publishers is the number of Publish calls at a time; with SkipLocked the
	// number of workers. Messages of one key stay with one. A call that takes longer
	// than a second no longer counts, up to four of each, and what failed before is sent
	// by calls of its own, so that nobody else waits for a part of the broker that is
	// away. Default: 4.
	Publishers int

	// Batch is the most messages of one Publish call; with SkipLocked of one
	// claim. Default: 500.
	Batch int

	// MaxInFlight is the most messages between being read and being noted as
	// delivered: the most that a crash repeats. MaxInFlightBytes bounds their
	// payloads. Each shard of the table has an equal part of both, and of
	// MaxWaiting, whichever relays lead the others. Default: 10,000 and 64 MiB.
	MaxInFlight      int
	MaxInFlightBytes int

	// MaxWaiting is the most messages that memory knows of while they wait: for
	// another attempt, behind one of their key, or for a destination that takes
	// none. Each costs some 100 bytes. More stay in the table, and other
	// keys and destinations go on. Default: 500,000.
	MaxWaiting int

	// AckDelay is how long deliveries are gathered before they are noted with
	// one statement; every such statement is a commit that competes with the
	// producers' for the disk. A quarter of MaxInFlight is noted at once.
	// Default: 20 ms; negative: no wait.
	AckDelay time.Duration

	// MinPoll and MaxPoll bound the pause between two reads that found nothing
	// more: MinPoll while messages come, up to MaxPoll when none do. MinPoll is also
	// the pause between two reads of the log while more than one message comes in it.
	// Default: 2 ms and 100 ms.
	MinPoll, MaxPoll time.Duration

	// Window, with SkipLocked only, takes rows no older than this, so that the
	// partitions of the past are not read. Rows outside are looked for every
	// SweepEvery and delivered, too. Zero: none.
	Window time.Duration

	// SweepEvery is how often the table is searched for rows that every other
	// way has missed. They are counted and delivered. Default: 30 s.
	SweepEvery time.Duration

	// LogWait and LogKeep bound what the server keeps of its log for a relay that
	// follows it and cannot deliver, because the broker is away, or beside a
	// transaction that stays open: when nothing was taken for LogWait, or more
	// than LogKeep bytes are kept, the log is let go and the relay polls until it
	// keeps up again. Default: 30 s and 256 MiB.
	LogWait time.Duration
	LogKeep int

	// Retry is for messages that fail.
	Retry RetryPolicy

	// Rate bounds the messages published per second. Zero: no bound.
	Rate float64

	// DrainTimeout is how long Run, when its context has ended, waits for what
	// is in flight. Default: 10 s.
	DrainTimeout time.Duration

	// TakeOver is how often a relay that stands by tries to lead. Default: 250 ms.
	TakeOver time.Duration

	// Logger takes what an operator should know. Default: nothing is logged.
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	setInt := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	setTime := func(p *time.Duration, v time.Duration) {
		if *p == 0 {
			*p = v
		}
	}
	setInt(&c.Publishers, 4)
	setInt(&c.Batch, 500)
	setInt(&c.MaxInFlight, 10_000)
	setInt(&c.MaxInFlightBytes, 64<<20)
	setInt(&c.MaxWaiting, 500_000)
	setInt(&c.Retry.MaxAttempts, 10)
	setTime(&c.Retry.Base, 200*time.Millisecond)
	setTime(&c.Retry.Max, 5*time.Minute)
	setTime(&c.AckDelay, 20*time.Millisecond)
	setTime(&c.MinPoll, 2*time.Millisecond)
	setTime(&c.MaxPoll, max(100*time.Millisecond, c.MinPoll))
	setTime(&c.SweepEvery, 30*time.Second)
	setTime(&c.LogWait, 30*time.Second)
	setInt(&c.LogKeep, 256<<20)
	setTime(&c.DrainTimeout, 10*time.Second)
	setTime(&c.TakeOver, 250*time.Millisecond)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// shared is the configuration of one lead of so many: what a relay that leads all has
// in flight is bounded as if it led one.
func (c Config) shared(shards int) Config {
	for _, bound := range []*int{&c.MaxInFlight, &c.MaxInFlightBytes, &c.MaxWaiting} {
		*bound = max(1, *bound/shards)
	}
	return c
}

// validate names the first setting that makes no sense. c has its defaults.
func (c Config) validate() error {
	switch {
	case c.Publishers < 1 || c.Batch < 1 || c.MaxInFlight < 1 || c.MaxInFlightBytes < 1:
		return errors.New("outbox: Publishers, Batch, MaxInFlight and MaxInFlightBytes must be at least 1")
	case c.MaxWaiting < 1:
		return errors.New("outbox: MaxWaiting must be at least 1")
	case c.MinPoll < 0 || c.MaxPoll < c.MinPoll:
		return fmt.Errorf("outbox: MinPoll %v and MaxPoll %v: want 0 < MinPoll <= MaxPoll", c.MinPoll, c.MaxPoll)
	case c.Retry.MaxAttempts < 1 || c.Retry.Base < 0 || c.Retry.Max < c.Retry.Base:
		return fmt.Errorf("outbox: retry %+v: want MaxAttempts >= 1 and 0 < Base <= Max", c.Retry)
	case c.Rate < 0:
		return fmt.Errorf("outbox: Rate %v is negative", c.Rate)
	case c.Window < 0 || c.SweepEvery < 0 || c.DrainTimeout < 0 || c.TakeOver < 0:
		return errors.New("outbox: Window, SweepEvery, DrainTimeout and TakeOver must not be negative")
	case c.LogWait < 0 || c.LogKeep < 0:
		return errors.New("outbox: LogWait and LogKeep must not be negative")
	case c.Window > 0 && c.Claim != SkipLocked:
		return fmt.Errorf("outbox: a window needs --claim skip-locked: %s reads no history that it could leave out", c.Claim)
	}
	return nil
}
