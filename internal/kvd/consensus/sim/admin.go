package sim

import (
	"fmt"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/kvd/consensus"
	"github.com/weirdb/weir/internal/kvd/wire"
)

// admin is the operator. It runs one script of member changes at a time, and repeats each
// request until the change is in force.
type admin struct {
	*client
	w        *World
	up       []uint64
	script   []adminStep
	asked    int64
	requests []request
	number   uint64 // of the last request
	asking   uint64 // the request of the current step
	lastID   uint64
	seen     uint64 // the highest index that a replica was seen to have applied
	denied   bool   // the current step was refused permanently
}

// adminStep is a change that is requested until done reports that it is in force. A step
// without done must be refused permanently.
type adminStep struct {
	change consensus.Change
	done   func(members []consensus.Member) bool
	then   func()
}

func newAdmin(w *World) *admin {
	a := &admin{w: w, lastID: uint64(w.Config.Replicas)}
	a.client = &client{w: w, place: firstClientPlace + 500, random: w.random.fork("admin"), make: func() driver { return a }}
	return a
}

func (a *admin) start() {
	a.client.start()
	a.loop()
}

func (a *admin) loop() {
	a.w.after(int64(20*time.Millisecond), func() {
		if !a.w.over {
			a.step()
			a.loop()
		}
	})
}

// idle reports whether no change is in progress.
func (a *admin) idle() bool { return len(a.script) == 0 }

func (a *admin) doing() consensus.Change { return a.script[0].change }

// members returns the members as known to the replica that has applied most. It returns none
// while a change is half done, or while all running replicas have applied less than was seen
// before: a completed change would look as if it had not begun.
func (a *admin) members() []consensus.Member {
	var best consensus.Status
	for _, r := range a.w.alive() {
		if s := r.core.Status(); s.Applied >= best.Applied && len(s.Members) > 0 {
			best = s
		}
	}
	if best.Joint || best.Applied < a.seen {
		return nil
	}
	a.seen = best.Applied
	return best.Members
}

func (a *admin) step() {
	for len(a.script) > 0 && a.ended(&a.script[0]) {
		then := a.script[0].then
		a.script = a.script[1:]
		a.asked, a.denied = 0, false
		if then != nil {
			then()
		}
	}
	if len(a.script) == 0 || a.w.now < a.asked || len(a.up) == 0 {
		return
	}
	to := pick(a.random, a.up)
	if l := a.w.leader(); l != nil && a.random.chance(0.8) {
		to = l.id
	}
	a.asked = a.w.now + a.random.between(50*time.Millisecond, 200*time.Millisecond)
	a.number++
	a.asking = a.number
	a.requests = append(a.requests, request{to, &wire.Message{Kind: wire.Configure, Request: a.number, Data: a.script[0].change.Append(nil)}})
	a.plan()
}

func (a *admin) ended(s *adminStep) bool {
	if s.done == nil {
		return a.denied
	}
	return s.done(a.members())
}

func (a *admin) issue(*operation) {}

func (a *admin) connected(replica uint64) { a.up = append(a.up, replica) }

func (a *admin) disconnected(replica uint64) {
	for i, id := range a.up {
		if id == replica {
			a.up = append(a.up[:i:i], a.up[i+1:]...)
			return
		}
	}
}

func (a *admin) receive(_ uint64, m *wire.Message) {
	if len(a.script) == 0 || a.script[0].done != nil || m.Request != a.asking {
		return
	}
	switch m.Kind {
	case wire.Refused:
		a.denied = a.denied || strings.Contains(string(m.Data), "never used again")
	case wire.ReadDone:
		a.w.violate("members", "%v was done: replica %d was a member before", a.doing(), a.doing().Member.ID)
	}
}

func (a *admin) tick() {}

func (a *admin) take() ([]request, []outcome) {
	requests := a.requests
	a.requests = nil
	return requests, nil
}

func isVoter(id uint64) func([]consensus.Member) bool {
	return func(members []consensus.Member) bool { return find(members, id) == 2 }
}

func isOut(id uint64) func([]consensus.Member) bool {
	return func(members []consensus.Member) bool { return len(members) > 0 && find(members, id) == 0 }
}

// find returns 0 if id is no member, 1 if it is a learner, 2 if it is a voter.
func find(members []consensus.Member, id uint64) int {
	for _, m := range members {
		if m.ID == id {
			if m.Learner {
				return 1
			}
			return 2
		}
	}
	return 0
}

// join starts a replica that has no log, and asks the cluster to add it.
func (a *admin) join() uint64 {
	a.lastID++
	id := a.lastID
	x := a.w.addReplica(id, nil, a.w.replicas[0].preset)
	x.start()
	a.client.connect(x)
	for _, c := range a.w.clients {
		if c.driver != nil { // otherwise it connects to all when it starts
			c.connect(x)
		}
	}
	a.script = append(a.script, adminStep{change: consensus.Change{Kind: consensus.AddLearner, Member: consensus.Member{ID: id, Addr: fmt.Sprintf("r%d", id)}}, done: func(m []consensus.Member) bool { return find(m, id) > 0 }})
	return id
}

func (a *admin) promote(id uint64) {
	a.script = append(a.script, adminStep{change: consensus.Change{Kind: consensus.Promote, Member: consensus.Member{ID: id}}, done: isVoter(id)})
}

func (a *admin) remove(id uint64) {
	a.script = append(a.script, adminStep{change: consensus.Change{Kind: consensus.Remove, Member: consensus.Member{ID: id}}, done: isOut(id), then: func() { a.retire(id) }})
}

func (a *admin) replace(old uint64) {
	id := a.join()
	a.script = append(a.script, adminStep{change: consensus.Change{Kind: consensus.Replace, Member: consensus.Member{ID: id}, Old: old}, done: isVoter(id), then: func() { a.retire(old) }})
}

// retire stops a replica that is no longer a member.
func (a *admin) retire(id uint64) {
	a.w.after(a.random.between(0, 300*time.Millisecond), func() {
		x := a.w.replica(id)
		x.crash()
		x.gone = true
	})
}

// comeBack asks to add a former member again, which must be refused.
func (a *admin) comeBack(id uint64) {
	a.script = append(a.script, adminStep{change: consensus.Change{Kind: consensus.AddLearner, Member: consensus.Member{ID: id, Addr: "again"}}})
}

func voters(members []consensus.Member) []uint64 {
	var ids []uint64
	for _, m := range members {
		if !m.Learner {
			ids = append(ids, m.ID)
		}
	}
	return ids
}

func (n *nemesis) transferLeader(r *random) {
	ids := voters(n.admin.members())
	l := n.leader()
	if len(ids) == 0 || l == nil {
		return
	}
	n.Stats.Faults.Transfers++
	n.admin.number++
	change := consensus.Change{Kind: consensus.Transfer, Member: consensus.Member{ID: pick(r, ids)}}
	n.admin.requests = append(n.admin.requests, request{l.id, &wire.Message{Kind: wire.Configure, Request: n.admin.number, Data: change.Append(nil)}})
	n.admin.plan()
	if r.chance(0.4) {
		n.after(r.between(0, 4*n.profile.Delay), func() { n.isolate(r, l) })
	}
}

func (n *nemesis) changeMembers(r *random) {
	a := n.admin
	ids := voters(a.members())
	if !a.idle() || len(ids) == 0 || len(n.replicas) > 12 {
		return
	}
	n.Stats.Faults.MemberChanges++
	switch k := r.below(4); {
	case k == 0 && len(ids) > 2:
		id := pick(r, ids)
		a.remove(id)
		if r.chance(0.5) {
			a.comeBack(id)
		}
	case k == 1:
		a.remove(a.join())
	case k == 2 || len(ids) >= 7:
		a.replace(pick(r, ids))
	default:
		a.promote(a.join())
	}
}

// loseDisk destroys the disk of a voter, which then has to be replaced.
func (n *nemesis) loseDisk(r *random) {
	a := n.admin
	ids := voters(a.members())
	if !a.idle() || len(ids) < 3 || n.Stats.Faults.LostDisks > 0 {
		return
	}
	x := n.replica(pick(r, ids))
	if x.gone {
		return
	}
	n.Stats.Faults.LostDisks++
	n.note("replica %d loses its disk", x.id)
	x.crash()
	x.gone = true
	a.replace(x.id)
}
