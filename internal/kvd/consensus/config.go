package consensus

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/weirdb/weir/batch"
)

// Config configures a replica. All durations are nanoseconds of Clock.Mono unless their type
// says otherwise.
type Config struct {
	ID      uint64   // of this replica, 1 or more, never reused
	Members []Member // the first members, the same on all replicas; empty: this replica joins an existing cluster
	// Addresses are the addresses of members that the operator has configured. They take
	// precedence over the addresses with which members were added, and over those that this
	// replica has recorded.
	Addresses []Member
	Switches

	// Knows is the newest format that this replica supports. Default: Format.
	Knows uint64

	// Seed makes replicas time out at different times. Any value will do.
	Seed uint64

	// TickNanos is how often Tick is called. Default: 10 ms.
	TickNanos int64
	// ElectionTicks is how long a replica that hears nothing from a leader waits before it
	// starts an election: between this and twice this many ticks. Default: 30.
	ElectionTicks int
	// HeartbeatTicks is the interval between heartbeats of a leader. Default: 5.
	HeartbeatTicks int
	// IndexReads makes the leader confirm its leadership with a majority for every strong read,
	// instead of relying on a lease.
	IndexReads bool
	// MaxDrift is the largest difference between the clock rates of two replicas, as a
	// fraction. Default: 0.1.
	MaxDrift float64

	// SnapshotBytes is how much log since the last snapshot triggers a new one. Default: 64
	// MiB.
	SnapshotBytes int64
	// KeepBytes of log stay in memory for slow replicas after a snapshot. Default: 16 MiB.
	KeepBytes int64
	// ShipBytes of log stay in memory while a replica receives and installs a snapshot, so that
	// it can continue from there. Default: 8 times SnapshotBytes.
	ShipBytes int64

	// SessionIdle is the time without a write after which a session expires. The leader's value
	// is used: it is part of each entry. Default: 1 h.
	SessionIdle time.Duration

	// Batch configures how operations are grouped into rounds. The zero value is adaptive.
	Batch batch.Config

	// Trace, if set, is called for each event that matters for safety.
	Trace func(Event)

	// Mutations enables deliberate bugs, which the simulator must find.
	Mutations Mutations
}

// presets are the protocols that users choose by name, as documented in docs/kv.md.
var presets = map[string]Switches{
	"raft":    {},
	"raft-ht": {WeakWrites: Leader, WeakReads: Nearest},
	"curp":    {Fast: true, WeakReads: Leader},
	"curp-ht": {Fast: true, WeakWrites: Leader, WeakReads: Nearest},
	"curp-ho": {Fast: true, WeakWrites: Nearest, WeakReads: Nearest},
}

// PresetNames returns the names of the presets, the simplest first.
func PresetNames() []string { return []string{"raft", "raft-ht", "curp", "curp-ht", "curp-ho"} }

// Preset returns the switches of the preset with this name.
func Preset(name string) (Switches, error) {
	s, ok := presets[name]
	if !ok {
		return Switches{}, fmt.Errorf("preset %q: want one of %s", name, strings.Join(PresetNames(), ", "))
	}
	return s, nil
}

// Encode packs the switches into a byte, as in wire.NewView.
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
	maxHeld       = 1024     // early writes of one session that wait for a missing one,
	maxHeldBytes  = 32 << 20 // and their size; the last one may exceed it
	maxWaiting    = 64 << 10
	// Limit of the bytes of writes that wait for a round, of requests that wait for the view,
	// and of early writes of all sessions, at a leader. The last one may exceed it.
	maxWaitingBytes = 256 << 20
	// Bytes of answers that are kept for one session. From mostOwed on, the leader accepts no
	// new writes until the client acknowledges answers. Writes that were in flight may add up
	// to mostKept, which is the same on all replicas.
	mostOwed = 8 << 20
	mostKept = 64 << 20

	// maxAnswerBytes limits the answers to queries in one Take, not counting the last one, so
	// that messages to other replicas need not wait behind all of them. When some have to wait,
	// clients with a recent large answer wait first: the others have four times as much room.
	maxAnswerBytes = 16 << 20
	largeAnswer    = 64 << 10

	maxUnanswered = 64 << 10 // writes of one session whose answers are kept because the client has not acknowledged them
)

func (c *Config) fill() error {
	if c.ID == 0 || Addr(c.ID) >= FirstClient {
		return fmt.Errorf("replica id %d: want 1 to %d", c.ID, uint64(FirstClient)-1)
	}
	c.TickNanos = cmp.Or(c.TickNanos, int64(10*time.Millisecond))
	c.ElectionTicks = cmp.Or(c.ElectionTicks, 30)
	c.HeartbeatTicks = cmp.Or(c.HeartbeatTicks, 5)
	c.MaxDrift = cmp.Or(c.MaxDrift, 0.1)
	c.Knows = cmp.Or(c.Knows, Format)
	c.SnapshotBytes = cmp.Or(c.SnapshotBytes, 64<<20)
	c.KeepBytes = cmp.Or(c.KeepBytes, 16<<20)
	c.ShipBytes = cmp.Or(c.ShipBytes, 8*c.SnapshotBytes)
	c.SessionIdle = cmp.Or(c.SessionIdle, time.Hour)
	if c.ElectionTicks < 2*c.HeartbeatTicks {
		return fmt.Errorf("election timeout of %d ticks: want at least twice the heartbeat's %d", c.ElectionTicks, c.HeartbeatTicks)
	}
	c.Batch.MaxItems = cmp.Or(c.Batch.MaxItems, maxRoundOps)
	c.Batch.MaxBytes = cmp.Or(c.Batch.MaxBytes, maxRoundBytes)
	c.Batch.Capacity = cmp.Or(c.Batch.Capacity, maxWaiting)
	c.Batch.NoHold = true
	if c.Batch.Window == 0 {
		// There is one lane, the disk of this replica, which does one flush at a time: a second
		// round would be better off in the next flush.
		c.Batch.Lanes = cmp.Or(c.Batch.Lanes, 1)
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
