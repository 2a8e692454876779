package replica

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/weirdb/weir/internal/kvd/consensus"
	"github.com/weirdb/weir/internal/kvd/resp"
)

// Status is what a replica knew of itself and its cluster a few milliseconds
// ago. It is immutable.
type Status struct {
	consensus.Status
	Keys        int           // in the store
	Bytes       int64         // of keys and values
	Durable     uint64        // entries on this replica's disk
	OpenIndex   uint64        // entry that View was opened after
	Preset      string        // of this replica
	Durability  string        // disk or memory
	DiskTimeout time.Duration // after which a disk counts as hanging
	At          time.Time     // when
	// Ahead is how far the store's time is ahead of this machine's wall clock; 0 if
	// they differ by no more than a second.
	Ahead time.Duration
}

// readyLag is how many committed entries may still have to be applied on a replica that
// is ready: a busy replica always has some.
const readyLag = 1024

// Ready reports whether the replica can serve: it knows a leader that is open,
// is a member, and has caught up with the log. The error says what is missing.
func (s *Status) Ready() error {
	switch {
	case s.Removed:
		return fmt.Errorf("replica %d is no member of the cluster any more", s.ID)
	case len(s.Members) == 0:
		return fmt.Errorf("replica %d waits to be added to the cluster (weir kv member add)", s.ID)
	case s.Hangs:
		return hung(s.DiskTimeout)
	case s.Doubt != "":
		return errors.New(s.Doubt)
	case s.Leader == 0:
		return fmt.Errorf("no leader is known in term %d", s.Term)
	case !s.Open:
		return fmt.Errorf("replica %d leads term %d and is not open yet", s.Leader, s.Term)
	case s.Applied < s.OpenIndex || s.Applied+readyLag < s.Commit:
		return fmt.Errorf("applied %d of %d committed entries", s.Applied, max(s.Commit, s.OpenIndex))
	}
	return nil
}

// Status returns the newest status. It is cheap.
func (r *Replica) Status() *Status { return r.status.Load() }

// publish publishes the current state. The core goroutine calls it.
func (r *Replica) publish() *Status {
	s := &Status{
		Status: r.core.Status(), Keys: r.store.Len(), Bytes: r.store.Bytes(), Durable: r.disk.last.Load().index,
		OpenIndex: r.core.View().Index, Preset: r.cfg.Preset, Durability: "disk", DiskTimeout: r.cfg.DiskTimeout, At: time.Now(),
	}
	if r.cfg.Memory {
		s.Durability, s.Durable = "memory", 0
	}
	before := r.status.Load()
	s.Ahead = r.ahead(s, before)
	r.status.Store(s)
	r.redis.Store(r.forRedis(s))
	if before != nil && (before.Leader != s.Leader || before.Open != s.Open) {
		r.cfg.Log.Info("leader", "leader", s.Leader, "term", s.Term, "open", s.Open, "role", roleOf(s))
	}
	return s
}

// steadyWithin is how much the difference between the store's time and a wall clock may change
// before it is published again: a point in time that is converted back and forth should not
// change.
const steadyWithin = time.Second

func (r *Replica) ahead(s, before *Status) time.Duration {
	if s.StoreTime == 0 {
		return 0
	}
	ahead := time.Duration(s.StoreTime - r.cfg.Clock().Wall)
	switch {
	case ahead.Abs() <= steadyWithin:
		return 0
	case before != nil && before.Ahead != 0 && (ahead-before.Ahead).Abs() <= steadyWithin:
		return before.Ahead
	}
	return ahead.Round(time.Millisecond)
}

// forRedis is the status as Redis clients see it.
func (r *Replica) forRedis(s *Status) *resp.Status {
	out := &resp.Status{
		ID: s.ID, Leader: s.Leader, Term: s.Term, View: s.View, Commit: s.Commit, Applied: s.Applied, Durable: s.Durable,
		Revision: s.Revision, Keys: uint64(s.Keys), Expiring: uint64(r.store.Expiring()), Bytes: uint64(s.Bytes),
		Loading: len(s.Members) == 0, Ahead: s.Ahead, Format: s.Format, Preset: s.Preset, Version: r.cfg.Version, Members: make([]resp.Member, 0, len(s.Members)),
	}
	for _, m := range s.Members {
		member := resp.Member{ID: m.ID, Resp: m.Client, Voter: !m.Learner, Up: m.ID == s.ID || r.peers.up(m.ID)}
		if m.ID == s.ID {
			member.Applied = s.Applied
		}
		for i := range s.Peers {
			if s.Peers[i].ID == m.ID && m.ID != s.ID {
				member.Applied = s.Peers[i].Match
			}
		}
		out.Members = append(out.Members, member)
	}
	c := &s.Counters
	for _, d := range []struct {
		name  string
		value uint64
	}{
		{"sessions", uint64(s.Sessions)},
		{"waiting", uint64(s.Waiting)},
		{"rounds_in_flight", uint64(s.InFlight)},
		{"rounds", c.Rounds},
		{"operations", c.Operations},
		{"elections", c.Elections},
		{"weak_pending", uint64(s.Intents)},
		{"weak_lost", c.IntentsLost},
		{"snapshot", s.Snapshot},
	} {
		out.More = append(out.More, resp.Detail{Name: d.name, Value: strconv.FormatUint(d.value, 10)})
	}
	return out
}
