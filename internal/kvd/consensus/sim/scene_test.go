package sim

import (
	"time"

	"github.com/weirdb/weir/internal/kvd/consensus"
	"github.com/weirdb/weir/internal/kvd/wire"
)

// A scene is a Hook that creates a rare situation. Random faults create it as well, but in one
// run of thousands. Without the deliberate bug that it is for, a run with a scene must be
// without violations.

// others lists the replicas that run besides x.
func (w *World) others(x *replica) []*replica {
	var list []*replica
	for _, r := range w.alive() {
		if r != x {
			list = append(list, r)
		}
	}
	return list
}

// strand leaves the first client, which only reads, with replica x alone, and x
// without the other replicas.
func (w *World) strand(x *replica, length int64) {
	var p partition
	c := w.clients[0]
	for _, y := range w.others(x) {
		p.cut(w.net, x.place(), y.place(), true)
		p.cut(w.net, c.place, y.place(), true)
	}
	w.cutExactly(p, length)
}

func (w *World) cutExactly(p partition, length int64) {
	w.Stats.Faults.Partitions++
	for _, l := range p {
		l.cuts++
	}
	w.after(length, func() {
		for _, l := range p {
			l.cuts = max(0, l.cuts-1)
		}
	})
}

// readers makes the first client read all the time.
func (w *World) readers() {
	w.load.keys, w.load.weak = 1, 0
	w.clients[0].writes, w.clients[0].think, w.clients[0].left = 0, time.Millisecond, w.clients[0].left+2
}

// silenceClients keeps all clients but the reader from issuing anything.
func (w *World) silenceClients() {
	for _, c := range w.clients[1:] {
		c.depth = 0
	}
}

func (w *World) resumeClients() {
	for _, c := range w.clients {
		if c.depth == 0 {
			c.depth = 3
			c.plan()
		}
	}
}

// pausedLeader stops a leader's process, and when the answers to its last stamps
// have arrived, cuts it off with a reader; the others elect another meanwhile.
func pausedLeader(w *World, id uint64, e consensus.Event) {
	if e.Kind != consensus.EventOpened || w.replica(id).core.Brief().Leader != id {
		return
	}
	w.readers()
	x := w.replica(id)
	life := x.life
	w.after(w.elections(0.3+w.nemesis.own.fraction()), func() {
		if x.life != life {
			return
		}
		x.pause(w.elections(1.2 + w.nemesis.own.fraction()))
		w.after(int64(2*time.Millisecond), func() { w.strand(x, w.elections(4)) })
	})
}

// stolenVoter lets one replica no longer hear the leader. It stands for election
// again and again; if the third replica votes for it, the leader is stranded.
func stolenVoter(restarts bool) func(*World, uint64, consensus.Event) {
	return func(w *World, id uint64, e consensus.Event) {
		x := w.replica(id)
		switch {
		case e.Kind == consensus.EventOpened && x.core.Brief().Leader == id:
			w.readers()
			others := w.others(x)
			if len(others) != 2 {
				return
			}
			w.silenceClients() // with entries that it lacks, nobody would elect it
			w.after(w.elections(8), w.resumeClients)
			var p partition
			p.cut(w.net, x.place(), others[0].place(), true)
			w.after(w.elections(0.5), func() { w.cutExactly(p, w.elections(8)) })
			for i := range 80 {
				w.after(w.elections(1+0.08*float64(i)), func() {
					if y := others[1]; restarts && y.up && !w.healing {
						y.crash()
						w.after(int64(100*time.Microsecond), func() { w.restart(y) })
					}
				})
			}
		case e.Kind == consensus.EventElected:
			w.resumeClients()
			for _, y := range w.others(x) {
				if y.core.Brief().Leader == y.id {
					w.strand(y, w.elections(2))
				}
			}
		}
	}
}

// strandedLeader cuts a leader off with a reader. The others, which may have shorter
// election timeouts, elect another; before that they restart, if restarts is set.
func strandedLeader(restarts bool) func(*World, uint64, consensus.Event) {
	return func(w *World, id uint64, e consensus.Event) {
		x := w.replica(id)
		if e.Kind != consensus.EventOpened || x.core.Brief().Leader != id || w.healing {
			return
		}
		w.readers()
		life := x.life
		w.after(w.elections(0.5+w.nemesis.own.fraction()), func() {
			if x.life != life {
				return
			}
			w.strand(x, w.elections(6))
			for _, y := range w.others(x) {
				if restarts && !w.healing {
					y.crash()
					w.after(int64(100*time.Microsecond), func() { w.restart(y) })
				}
			}
		})
	}
}

// hungLeader lets the disk of the first leader hang.
func hungLeader(w *World, id uint64, e consensus.Event) {
	x := w.replica(id)
	if e.Kind == consensus.EventOpened && x.core.Brief().Leader == id && w.views() == 0 {
		x.disk.hang = w.now + int64(15*time.Second)
	}
}

// oddState lets the state of the first leader, or of a follower of it, differ.
func oddState(leader bool) func(*World, uint64, consensus.Event) {
	return func(w *World, id uint64, e consensus.Event) {
		x := w.replica(id)
		if e.Kind != consensus.EventOpened || x.core.Brief().Leader != id || w.views() > 0 {
			return
		}
		if !leader {
			x = w.others(x)[0]
		}
		w.after(w.elections(0.5), func() { x.spoilt = true })
	}
}

// lonelyLeader leaves the leader with one of four followers, and the last one
// without clients: operations complete on votes, and their entries reach one.
func lonelyLeader(w *World, id uint64, e consensus.Event) {
	x := w.replica(id)
	if e.Kind != consensus.EventOpened || x.core.Brief().Leader != id {
		return
	}
	others := w.others(x)
	if len(others) != 4 {
		return
	}
	var p partition
	for _, y := range others[1:] {
		p.cut(w.net, x.place(), y.place(), true)
	}
	for _, c := range w.clients {
		p.cut(w.net, c.place, others[3].place(), true)
	}
	w.after(w.elections(0.5), func() { w.cutExactly(p, w.elections(5)) })
}

// slowSuccessor cuts a leader off from the other replicas, not from clients, and
// lets its successor's disk be slow, so that it opens late: meanwhile clients ask
// for votes in the old view.
func slowSuccessor(w *World, id uint64, e consensus.Event) {
	x := w.replica(id)
	switch {
	case e.Kind == consensus.EventOpened && x.core.Brief().Leader == id:
		x.disk.slow = 1
		w.silenceClients()
		w.clients[0].depth = 0
		w.after(w.elections(4), w.resumeClients)
		w.after(w.elections(0.5), func() {
			var p partition
			for _, y := range w.others(x) {
				p.cut(w.net, x.place(), y.place(), true)
			}
			w.cutExactly(p, w.elections(4))
		})
	case e.Kind == consensus.EventElected:
		w.after(int64(800*time.Microsecond), func() { x.disk.slow = 300 })
		w.after(int64(2500*time.Microsecond), w.resumeClients)
		w.after(w.elections(2), func() { x.disk.slow = 1 })
	}
}

// race cuts a leader off from the other replicas and then lets all clients issue
// at once: some operations complete on votes, others get a few, and none of the
// entries goes further than the leader.
func race(w *World, id uint64, e consensus.Event) {
	x := w.replica(id)
	if e.Kind != consensus.EventOpened || x.core.Brief().Leader != id {
		return
	}
	w.load.keys = 2
	w.silenceClients()
	w.clients[0].depth = 0
	w.after(w.elections(0.5), func() {
		var p partition
		for _, y := range w.others(x) {
			p.cut(w.net, x.place(), y.place(), true)
		}
		w.cutExactly(p, w.elections(5))
		w.resumeClients()
	})
}

// askToTakeOver has leader x hand over to another replica, which it returns.
func (w *World) askToTakeOver(x *replica) *replica {
	heir := w.others(x)[0]
	w.admin.number++
	change := consensus.Change{Kind: consensus.Transfer, Member: consensus.Member{ID: heir.id}}
	w.admin.requests = append(w.admin.requests, request{x.id, &wire.Message{Kind: wire.Configure, Request: w.admin.number, Data: change.Append(nil)}})
	w.admin.plan()
	return heir
}

// handover has a leader hand over, and lets it hear nothing any more: at once, or
// when the first answers may have come back.
func handover(later time.Duration) func(*World, uint64, consensus.Event) {
	return func(w *World, id uint64, e consensus.Event) {
		x := w.replica(id)
		if e.Kind != consensus.EventOpened || x.core.Brief().Leader != id {
			return
		}
		w.readers()
		w.after(w.elections(0.5+w.nemesis.own.fraction()), func() {
			if !x.up || x.core.Brief().Leader != id {
				return
			}
			w.askToTakeOver(x)
			w.after(w.nemesis.own.between(0, later), func() {
				var p partition
				for _, y := range w.others(x) {
					p.cut(w.net, y.place(), x.place(), false)
					p.cut(w.net, w.clients[0].place, y.place(), true)
				}
				w.cutExactly(p, w.elections(3))
			})
		})
	}
}

// lateHandover has a leader hand over, loses the request, and lets a copy of it
// arrive much later. When that replica leads, the old leader is stranded.
func lateHandover(w *World, id uint64, e consensus.Event) {
	x := w.replica(id)
	switch {
	case e.Kind == consensus.EventOpened && x.core.Brief().Leader == id:
		w.readers()
		w.net.duplicate = 1
		w.after(w.elections(0.5+w.nemesis.own.fraction()), func() {
			if !x.up || x.core.Brief().Leader != id {
				return
			}
			var p partition
			p.cut(w.net, x.place(), w.askToTakeOver(x).place(), false)
			w.cutExactly(p, int64(4*time.Millisecond))
		})
	case e.Kind == consensus.EventElected:
		for _, y := range w.others(x) {
			if y.core.Brief().Leader == y.id {
				w.strand(y, w.elections(2))
			}
		}
	}
}

// views is how many have been opened.
func (w *World) views() int { return len(w.openers) }

// briefSuccessor is race with a successor that crashes when it has been sent the
// first pools: the one after it collects them again.
func briefSuccessor(w *World, id uint64, e consensus.Event) {
	switch x := w.replica(id); {
	case w.views() == 0:
		race(w, id, e)
	case e.Kind == consensus.EventPooled && w.views() == 1 && x.core.Brief().Leader != 0:
		y := w.replica(x.core.Brief().Leader)
		life := y.life
		w.after(w.nemesis.own.between(50*time.Microsecond, 2*time.Millisecond), func() {
			if y.life == life && !w.healing {
				y.crash()
				w.after(int64(time.Millisecond), func() { w.restart(y) })
			}
		})
	}
}

// voteAndDie is race with witnesses that crash when their first vote has left.
func voteAndDie(w *World, id uint64, e consensus.Event) {
	race(w, id, e)
	if x := w.replica(id); e.Kind == consensus.EventVoted && x.life == 1 && !w.healing {
		w.after(w.nemesis.own.between(50*time.Microsecond, 500*time.Microsecond), func() {
			if x.life == 1 {
				x.crash()
				w.after(int64(time.Millisecond), func() { w.restart(x) })
			}
		})
	}
}

// behindSuccessor cuts a leader off, lets an operation complete on votes, and cuts
// the next leader's follower off when it has sent its pool: it knows of the first,
// empty entry of the new term, and not of the operation, which comes after it. Then
// the operation's client reads weakly.
func behindSuccessor(w *World, id uint64, e consensus.Event) {
	x := w.replica(id)
	switch {
	case e.Kind == consensus.EventOpened && w.views() == 0:
		w.silenceClients()
		c := w.clients[0]
		c.depth = 0
		w.after(w.elections(4), w.resumeClients)
		w.after(w.elections(0.5), func() {
			var p partition
			for _, y := range w.others(x) {
				p.cut(w.net, x.place(), y.place(), true)
			}
			w.cutExactly(p, w.elections(5))
			w.load.keys = 1
			c.depth, c.writes, c.weak = 1, 1, false
			c.plan()
			w.after(int64(20*time.Millisecond), func() { c.depth = 0 })
		})
	case e.Kind == consensus.EventPooled && w.views() == 1:
		if y := w.replica(x.core.Brief().Leader); y != nil {
			var p partition
			p.cut(w.net, y.place(), x.place(), false)
			w.cutExactly(p, w.elections(1))
			c := w.clients[0]
			w.load.weak, c.depth, c.writes, c.weak, c.think = 1, 3, 0, true, 0
			c.plan()
		}
	}
}

// forgetfulWitnesses cuts a leader off from the other replicas, not from clients.
// Its successor collects pools; anyone who has sent one restarts, and does not hear
// for a while that the new view is open. Meanwhile clients ask for votes in the old
// one.
func forgetfulWitnesses(w *World, id uint64, e consensus.Event) {
	x := w.replica(id)
	switch {
	case e.Kind == consensus.EventOpened && w.views() == 0:
		w.silenceClients()
		w.clients[0].depth = 0
		w.after(w.elections(6), w.resumeClients)
		w.after(w.elections(0.5), func() {
			var p partition
			for _, y := range w.others(x) {
				p.cut(w.net, x.place(), y.place(), true)
			}
			w.cutExactly(p, w.elections(4))
		})
	case e.Kind == consensus.EventElected && w.views() == 1:
		var p partition
		for _, c := range w.clients {
			p.cut(w.net, c.place, x.place(), true)
		}
		w.cutExactly(p, w.elections(2))
	case e.Kind == consensus.EventPooled && w.views() == 1:
		y := w.replica(x.core.Brief().Leader)
		if y == nil {
			return
		}
		var p partition
		p.cut(w.net, y.place(), x.place(), false)
		w.cutExactly(p, int64(50*time.Millisecond))
		life := x.life
		w.after(int64(10*time.Microsecond), func() {
			if x.life == life && !w.healing {
				x.crash()
				w.after(int64(100*time.Microsecond), func() { w.restart(x) })
			}
		})
		w.after(int64(35*time.Millisecond), w.resumeClients)
	}
}

// promotion has a fifth replica join four. When the leader has proposed to let it
// vote, and the others have that entry, the leader is cut off from them, and
// operations complete on the votes of two of them.
func promotion(w *World, id uint64, e consensus.Event) {
	x := w.replica(id)
	switch {
	case e.Kind == consensus.EventOpened && x.core.Brief().Leader == id && len(w.replicas) == 4 && w.admin.idle():
		w.silenceClients()
		w.clients[0].depth = 0
		w.after(w.elections(20), w.resumeClients)
		w.admin.promote(w.admin.join())
	case e.Kind == consensus.EventChanging && consensus.ChangeKind(e.Seq) == consensus.Promote:
		others := w.others(x)
		if len(others) != 4 {
			return
		}
		var back, forth partition
		for _, y := range others {
			back.cut(w.net, y.place(), x.place(), false)
			forth.cut(w.net, x.place(), y.place(), false)
		}
		for _, y := range others[2:] {
			for _, c := range w.clients {
				forth.cut(w.net, c.place, y.place(), true)
			}
		}
		w.cutExactly(back, w.elections(4))
		w.after(3*int64(w.profile.Delay), func() {
			w.cutExactly(forth, w.elections(4))
			w.resumeClients()
		})
	}
}
