package replica

import (
	"fmt"
	"time"

	"github.com/weirdb/weir/internal/kvd/consensus"
	"github.com/weirdb/weir/internal/kvd/wire"
)

// leavePatience is how long a replica that stops waits for another one to lead,
// and leaveAgain the number of ticks after which it asks again: a leader that was just
// elected is not ready to hand over.
const (
	leavePatience = 2 * time.Second
	leaveAgain    = 20
)

// leave hands leadership over before the replica stops, so that no client waits for
// an election timeout. If no replica can take over, this one stops anyway.
func (r *Replica) leave() {
	heir := r.heir()
	if heir == 0 {
		return
	}
	change := consensus.Change{Kind: consensus.Transfer, Member: consensus.Member{ID: heir}}
	deadline := time.NewTimer(leavePatience)
	defer deadline.Stop()
	look := time.NewTicker(tickEvery)
	defer look.Stop()
	for ticks := 0; ; ticks++ {
		if ticks%leaveAgain == 0 {
			r.inbox.deliver(gatewayAddr, []wire.Message{{Kind: wire.Configure, Data: change.Append(nil)}})
		}
		select {
		case <-deadline.C:
			r.cfg.Log.Warn("leadership could not be handed over", "to", heir)
			return
		case <-r.stopped:
			return
		case <-look.C:
			if s := r.Status(); s.Leader != r.cfg.ID && s.Leader != 0 {
				r.cfg.Log.Info("leadership handed over", "to", s.Leader)
				return
			}
			if !r.peers.up(heir) {
				return // that replica stops, too
			}
		}
	}
}

// heir is the voter that is best prepared to lead instead of this replica, 0 if
// this one does not lead or is alone.
func (r *Replica) heir() uint64 {
	s := r.Status()
	if s.Leader != s.ID {
		return 0
	}
	var heir, match uint64
	for i := range s.Peers {
		p := &s.Peers[i]
		if p.ID != s.ID && !p.Learner && p.Match > match && r.peers.up(p.ID) {
			heir, match = p.ID, p.Match
		}
	}
	return heir
}

// RemovedError is why a replica stopped that was removed from its cluster.
type RemovedError struct{ ID uint64 }

func (e *RemovedError) Error() string {
	return fmt.Sprintf("replica %d was removed from the cluster; its directory is of no more use, and its id is not given again", e.ID)
}
