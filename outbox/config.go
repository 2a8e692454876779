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
	// Log follows the database's log (binlog, logical decoding): it does not
	// read the tables, and sees a message as soon as it is committed. The relay
	// polls while the log cannot be followed, and says why.
	Log
	// Poll has one leader per shard read ahead in single snapshots.
	Poll
	// SkipLocked is the usual design: workers lock batches of rows with FOR
	// UPDATE SKIP LOCKED while they publish. With more than one worker it does
	// not keep the order of a key.
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

// Config configures a [Relay]. The zero value is right for most uses.
type Config struct {
	// Claim is how it fetches rows. Either all relays of one table use
	// SkipLocked or none does, which Run enforces: a leader does not see the
	// locks of workers, and both would deliver every message. Default: Auto.
	Claim ClaimMode

	// Unordered lets messages of one key overtake each other: a failed one does
	// not block those behind it. Default: false.
	Unordered bool

	// Publishers is the number of concurrent Publish calls; with SkipLocked the number
	// of workers. Messages of one key stay with one. A call that takes longer than a
	// second no longer counts, up to four for each and half of the shard's part of
	// MaxInFlight, and retries have separate calls, so that other messages do not wait
	// for an unavailable part of the broker. Default: 4.
	Publishers int

	// Batch is the maximum number of messages in one Publish call; with
	// SkipLocked, in one claim. Default: 500.
	Batch int

	// MaxInFlight is the maximum number of messages that are read but not yet
	// recorded as delivered: a crash repeats at most these. MaxInFlightBytes
	// bounds their payloads. Each shard of the table has an equal part of both,
	// and of MaxWaiting, even if other relays lead the others. Default: 10,000
	// and 64 MiB.
	MaxInFlight      int
	MaxInFlightBytes int

	// MaxWaiting is the maximum number of messages that the relay keeps in
	// memory while they wait: for a retry, behind one of their key, or for a
	// failing destination. Each costs some 100 bytes. More stay in the table,
	// and other keys and destinations continue. Default: 500,000.
	MaxWaiting int

	// AckDelay is how long deliveries are collected before one statement
	// records them; every such statement is a commit that competes with the
	// producers' for the disk. A quarter of MaxInFlight is recorded at once.
	// Default: 20 ms; negative: no wait.
	AckDelay time.Duration

	// MinPoll and MaxPoll bound the pause after a read that found nothing more:
	// MinPoll while messages arrive, up to MaxPoll when none do. MinPoll is also the
	// pause between two reads of the log while more than one message arrives in that
	// time. Default: 2 ms and 100 ms.
	MinPoll, MaxPoll time.Duration

	// Window, with SkipLocked only, claims rows that are younger than this, so
	// that old partitions are not read. Older rows are searched for every
	// SweepEvery and delivered, too. Zero: no window.
	Window time.Duration

	// SweepEvery is how often the whole table is searched for rows that were
	// missed. They are counted and delivered. Default: 30 s.
	SweepEvery time.Duration

	// LogWait and LogKeep bound how much log the server keeps for a relay that
	// follows it but cannot deliver, because the broker is unavailable or a
	// transaction stays open: if the relay could read nothing for LogWait, or the
	// server keeps more than LogKeep bytes, the relay stops following the log and
	// polls until it has caught up. Default: 30 s and 256 MiB.
	LogWait time.Duration
	LogKeep int

	// Retry is for messages that fail.
	Retry RetryPolicy

	// Rate bounds the messages published per second. Zero: no bound.
	Rate float64

	// DrainTimeout is how long Run waits for messages in flight after its
	// context has ended. Default: 10 s.
	DrainTimeout time.Duration

	// TakeOver is how often a standby relay tries to become leader. Default: 250
	// ms.
	TakeOver time.Duration

	// Logger receives messages for operators. Default: nothing is logged.
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

// shared is the configuration of one of several shards: a relay that leads all of them has no
// more in flight than a relay that leads one unsharded table.
func (c Config) shared(shards int) Config {
	for _, bound := range []*int{&c.MaxInFlight, &c.MaxInFlightBytes, &c.MaxWaiting} {
		*bound = max(1, *bound/shards)
	}
	return c
}

// validate returns an error for the first invalid setting. c has its defaults.
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
