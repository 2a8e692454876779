package consensus

import (
	"fmt"
	"time"

	"github.com/weirdb/weir/batch"
)

// Config is what a replica is told once. All durations are nanoseconds of
// Clock.Mono unless their type says otherwise.
type Config struct {
	ID      uint64   // of this replica, 1 or more, never reused
	Members []Member // the first members, the same on all of them; empty: this replica joins a cluster that exists
	// Addresses are where its operator says that members are. They count more than those
	// with which members were added, and than what this replica has recorded.
	Addresses []Member
	Switches

	// Knows is the newest format that this replica shall know. Default: Format.
	Knows uint64

	// Seed makes replicas time out at different moments. Any value will do.
	Seed uint64

	// TickNanos is how often Tick is called. Default: 10 ms.
	TickNanos int64
	// ElectionTicks is how long a replica that hears nothing from a leader
	// waits before it stands for election: between this and twice this many
	// ticks. Default: 30.
	ElectionTicks int
	// HeartbeatTicks is how often a leader makes itself heard. Default: 5.
	HeartbeatTicks int
	// IndexReads makes every strong read ask a majority whether this is still
	// the leader, instead of relying on a lease.
	IndexReads bool
	// MaxDrift is by how much, as a fraction, clocks of two replicas may
	// differ in rate. Default: 0.1.
	MaxDrift float64

	// SnapshotBytes of log since the last snapshot call for a new one.
	// Default: 64 MiB.
	SnapshotBytes int64
	// KeepBytes of log stay in memory for slow replicas after a snapshot.
	// Default: 16 MiB.
	KeepBytes int64
	// ShipBytes of log stay in memory while a replica receives and installs a
	// snapshot, so that it can go on from there. Default: 8 times SnapshotBytes.
	ShipBytes int64

	// SessionIdle is after how long without a write a session is forgotten; the
	// leader's counts, and goes through the log. Default: 1 h.
	SessionIdle time.Duration

	// Batch says when a round of operations goes. The zero value is adaptive.
	Batch batch.Config

	// Trace, if set, is told what matters for safety, as it happens.
	Trace func(Event)

	// Mutations switches deliberate bugs on, which the simulator must catch.
	Mutations Mutations
}

// Presets by name: the matrix of docs/kv.md.
var presets = map[string]Switches{
	"raft":    {},
	"raft-ht": {WeakWrites: Leader, WeakReads: Nearest},
	"curp":    {Fast: true, WeakReads: Leader},
	"curp-ht": {Fast: true, WeakWrites: Leader, WeakReads: Nearest},
	"curp-ho": {Fast: true, WeakWrites: Nearest, WeakReads: Nearest},
}

// PresetNames lists the presets, the plainest first.
func PresetNames() []string { return []string{"raft", "raft-ht", "curp", "curp-ht", "curp-ho"} }

// Preset returns the switches that the name stands for.
func Preset(name string) (Switches, error) {
	s, ok := presets[name]
	if !ok {
		return Switches{}, fmt.Errorf("preset %q: want one of %v", name, PresetNames())
	}
	return s, nil
}

// Encode packs the switches into a byte, as wire.NewView carries them.
func (s Switches) Encode() uint8 {
	b := uint8(s.WeakWrites)<<1 | uint8(s.WeakReads)<<3
	if s.Fast {
		b |= 1
	}
	return b
}

const (
	maxRoundOps   = 4096
	maxRoundBytes = 1 << 20
	maxHeld       = 1024     // operations of one session that wait for a gap to fill,
	maxHeldBytes  = 32 << 20 // and their bytes, which the last of them may exceed
	maxWaiting    = 64 << 10
	// Bytes of writes that wait for a round, of requests for the view, or of writes of all
	// sessions that wait for an earlier one, at a leader; the last of them may exceed it.
	maxWaitingBytes = 256 << 20
	// Answers that are kept for one session, in bytes. From mostOwed on, its leader
	// takes in no writes that a client has not acknowledged answers for; what was
	// under way then adds to them, up to mostKept, the same on all replicas.
	mostOwed = 8 << 20
	mostKept = 64 << 20

	// mostSpoken is how many bytes of answers to queries one Take holds, before the last
	// of them: what a replica says to the others must not wait behind all of them. Where
	// some wait, those who had a large answer lately wait longer than the others, who
	// have four times as much.
	mostSpoken  = 16 << 20
	largeAnswer = 64 << 10

	maxUnanswered = 64 << 10 // writes of one session whose answers are kept because it has not said that it has them
)

func (c *Config) fill() error {
	if c.ID == 0 || Addr(c.ID) >= FirstClient {
		return fmt.Errorf("replica id %d: want 1 to %d", c.ID, uint64(FirstClient)-1)
	}
	defaultTo(&c.TickNanos, int64(10*time.Millisecond))
	defaultTo(&c.ElectionTicks, 30)
	defaultTo(&c.HeartbeatTicks, 5)
	defaultTo(&c.MaxDrift, 0.1)
	defaultTo(&c.Knows, Format)
	defaultTo(&c.SnapshotBytes, 64<<20)
	defaultTo(&c.KeepBytes, 16<<20)
	defaultTo(&c.ShipBytes, 8*c.SnapshotBytes)
	defaultTo(&c.SessionIdle, time.Hour)
	if c.ElectionTicks < 2*c.HeartbeatTicks {
		return fmt.Errorf("election timeout of %d ticks: want at least twice the heartbeat's %d", c.ElectionTicks, c.HeartbeatTicks)
	}
	defaultTo(&c.Batch.MaxItems, maxRoundOps)
	defaultTo(&c.Batch.MaxBytes, maxRoundBytes)
	defaultTo(&c.Batch.Capacity, maxWaiting)
	c.Batch.NoHold = true
	if c.Batch.Window == 0 {
		// A lane is this replica's disk, which flushes once at a time: what a
		// second round would carry does better in the next one.
		defaultTo(&c.Batch.Lanes, 1)
	}
	if err := c.Batch.Validate(); err != nil {
		return err
	}
	if len(c.Members) > maxVoters {
		return fmt.Errorf("%d first members: want %d at most", len(c.Members), maxVoters)
	}
	if len(c.Members) > 0 {
		for _, m := range c.Members {
			if m.ID == c.ID {
				return nil
			}
		}
		return fmt.Errorf("replica %d is not among the first members", c.ID)
	}
	return nil
}

func defaultTo[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}
