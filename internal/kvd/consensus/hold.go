package consensus

import (
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/tracker"
)

// A hold keeps the log behind a snapshot that is on its way to a replica. Without it
// the leader of a busy cluster would forget the entries that follow the snapshot
// while the replica receives and installs it, and would have to send the next one,
// and so on without end.
type hold struct {
	index uint64 // of the snapshot
	ticks int    // since it was received; it is installed meanwhile
	there bool   // it was received
}

// installTime is how long, in election timeouts, a replica may take to install a
// snapshot that it has received, before the log behind it is kept no longer.
const installTime = 100

// holds is the log that this leader keeps, by replica.
type holds map[uint64]*hold

// sent notes that a snapshot is on its way.
func (h holds) sent(to, index uint64) { h[to] = &hold{index: index} }

// shipped notes that a replica has received its snapshot, or has not.
func (h holds) shipped(to uint64, ok bool) {
	switch x := h[to]; {
	case x == nil:
	case ok:
		x.there = true
	default:
		delete(h, to) // the engine sends another one once the replica answers
	}
}

// tick ends the holds of replicas that go on with the log, or do not come back.
func (h holds) tick(node *raft.RawNode, longest int) {
	if len(h) == 0 {
		return
	}
	member := map[uint64]bool{}
	node.WithProgress(func(id uint64, _ raft.ProgressType, p tracker.Progress) {
		member[id] = true
		if x := h[id]; x != nil && p.Match >= x.index {
			delete(h, id)
		}
	})
	for id, x := range h {
		if x.there {
			x.ticks++
		}
		if !member[id] || x.ticks > longest {
			delete(h, id)
		}
	}
}

// least is the oldest snapshot on its way, or index if none is older.
func (h holds) least(index uint64) uint64 {
	for _, x := range h {
		index = min(index, x.index)
	}
	return index
}

// forget drops the log that no replica needs any more, now that a snapshot of index
// is saved: KeepBytes stay for slow replicas, and up to ShipBytes for those that
// receive a snapshot.
func (s *snapshots) forget(index uint64) {
	log := s.engine.log
	upTo := log.keepIndex(index, s.cfg.KeepBytes)
	if s.lead != nil && len(s.lead.holds) > 0 {
		upTo = max(s.lead.holds.least(upTo), log.keepIndex(index, max(s.cfg.KeepBytes, s.cfg.ShipBytes)))
	}
	log.compact(upTo)
}
