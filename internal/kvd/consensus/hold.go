package consensus

import (
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/tracker"
)

// A hold keeps the log entries that follow a snapshot while it is sent to a replica. Without it
// the leader of a busy cluster would drop those entries before the replica has installed the
// snapshot, and would have to send the next snapshot, without end.
type hold struct {
	index uint64 // of the snapshot
	ticks int    // since it was received; the replica is installing it
	there bool   // it was received
}

// installTime is how long, in election timeouts, a replica may take to install a snapshot that
// it has received. After that the entries are no longer kept.
const installTime = 100

// holds are the holds of this leader, by replica.
type holds map[uint64]*hold

// sent notes that a snapshot is being sent.
func (h holds) sent(to, index uint64) { h[to] = &hold{index: index} }

// shipped notes whether a replica has received its snapshot.
func (h holds) shipped(to uint64, ok bool) {
	switch x := h[to]; {
	case x == nil:
	case ok:
		x.there = true
	default:
		delete(h, to) // the engine sends another one when the replica answers
	}
}

// tick removes the holds of replicas that continue with the log, or that do not come back.
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

// least returns the index of the oldest snapshot that is being sent, or index if none is older.
func (h holds) least(index uint64) uint64 {
	for _, x := range h {
		index = min(index, x.index)
	}
	return index
}

// forget drops entries that no replica needs any more, after a snapshot of index was saved:
// KeepBytes stay for slow replicas, and up to ShipBytes for those that receive a snapshot.
func (s *snapshots) forget(index uint64) {
	log := s.engine.log
	upTo := log.keepIndex(index, s.cfg.KeepBytes)
	if s.lead != nil && len(s.lead.holds) > 0 {
		upTo = max(s.lead.holds.least(upTo), log.keepIndex(index, max(s.cfg.KeepBytes, s.cfg.ShipBytes)))
	}
	log.compact(upTo)
}
