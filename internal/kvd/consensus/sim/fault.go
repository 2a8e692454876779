package sim

import (
	"time"

	"github.com/weirdb/weir/internal/kvd/consensus"
)

// nemesis injects faults into a world.
type nemesis struct {
	*World
	own *random // for faults in response to events
}

// fault injects a fault and schedules its end.
type fault func(n *nemesis, r *random)

// Faults counts the injected faults.
type Faults struct {
	Crashes       uint64 // of replicas
	ClientCrashes uint64 // of clients
	Disconnects   uint64 // of clients
	Partitions    uint64 // of the network
	Lost          uint64 // messages lost at random
	CutOff        uint64 // messages lost because of a partition
	Duplicated    uint64 // messages delivered twice
	SlowDisks     uint64 // disks that became slow for a while
	FailedSyncs   uint64 // flushes that failed
	LostDisks     uint64 // replicas that lost their disk permanently
	HungDisks     uint64 // disks that hung for a while
	TornRecords   uint64 // records lost or cut by a crash before their flush
	SlowReplicas  uint64 // replicas that became slow for a while
	Pauses        uint64 // replicas that were stopped for a while
	ClockJumps    uint64 // jumps of a wall clock
	Transfers     uint64 // leaderships handed over on request
	MemberChanges uint64 // changes of members
}

// run injects faults at random until the end.
func (n *nemesis) run(p *Profile, end int64) {
	r := n.random.fork("nemesis")
	total := 0
	for _, f := range p.weights() {
		total += f.weight
	}
	if total == 0 {
		return
	}
	var next func()
	next = func() {
		if n.now >= end {
			return
		}
		at := r.below(total)
		for _, f := range p.weights() {
			if at -= f.weight; at < 0 {
				f.kind(n, r)
				break
			}
		}
		n.after(r.between(p.Every/4, p.Every*7/4), next)
	}
	n.after(r.between(p.Every/4, p.Every*7/4), next)
}

// heal ends every fault: stopped replicas restart, and the network, disks and processes work
// normally.
func (w *World) heal() {
	w.note("everything heals")
	w.net.heal(w.places())
	w.net.loss, w.net.duplicate = 0, 0
	for _, r := range w.replicas {
		r.disk.slow, r.disk.fail, r.slow = 1, 0, 1
		w.restart(r)
	}
}

// restart restarts a replica unless it is gone permanently.
func (w *World) restart(r *replica) {
	if r.up || r.gone {
		return
	}
	if w.profile.Presets && !w.healing && r.random.chance(0.5) {
		r.preset = pick(r.random, allPresets())
	}
	r.start()
}

func allPresets() []consensus.Switches {
	var all []consensus.Switches
	for _, name := range consensus.PresetNames() {
		s, err := consensus.Preset(name)
		if err != nil {
			panic(err) // list and table have the same names
		}
		all = append(all, s)
	}
	return all
}

// alive returns the running replicas.
func (w *World) alive() []*replica {
	var list []*replica
	for _, r := range w.replicas {
		if r.up {
			list = append(list, r)
		}
	}
	return list
}

// leader returns the leader of the highest term, nil if there is none.
func (w *World) leader() *replica {
	var found *replica
	var term uint64
	for _, r := range w.alive() {
		if s := r.core.Brief(); s.Leader == r.id && s.Term > term {
			found, term = r, s.Term
		}
	}
	return found
}

func (n *nemesis) crashFor(r *random, x *replica) {
	x.crash()
	down := r.between(5*time.Millisecond, 300*time.Millisecond)
	switch {
	case r.chance(0.1):
		down *= 5
	case r.chance(0.3): // sooner than any replica notices
		down = r.between(time.Millisecond/10, 5*time.Millisecond)
	}
	n.after(down, func() { n.restart(x) })
}

func (n *nemesis) crash(r *random) {
	if alive := n.alive(); len(alive) > 0 {
		n.crashFor(r, pick(r, alive))
	}
}

func (n *nemesis) crashLeader(r *random) {
	if x := n.leader(); x != nil {
		n.crashFor(r, x)
	}
}

func (n *nemesis) crashAll(r *random) {
	for _, x := range n.alive() {
		n.crashFor(r, x)
	}
}

// split separates the replicas of one side, with some clients, from the others.
func (n *nemesis) split(r *random, side []*replica, both bool) {
	in := map[place]bool{}
	for _, x := range side {
		in[x.place()] = true
	}
	for _, c := range n.clients {
		if r.chance(0.4) {
			in[c.place] = true
		}
	}
	var p partition
	places := n.places()
	for _, a := range places {
		for _, b := range places {
			if in[a] && !in[b] && (a.isReplica() || b.isReplica()) {
				p.cut(n.net, a, b, both)
			}
		}
	}
	n.note("partition: %v cut off, both ways %v", side, both)
	n.net.cutFor(p, r)
}

func (n *nemesis) partition(r *random) {
	all := append([]*replica(nil), n.replicas...)
	shuffle(r, all)
	n.split(r, all[:1+r.below(len(all)/2+1)], true)
}

func (n *nemesis) isolateOne(r *random) {
	if x := n.leader(); x != nil {
		n.isolate(r, x)
	}
}

// isolate separates a replica, half of the time from other replicas only: then clients reach
// both sides.
func (n *nemesis) isolate(r *random, x *replica) {
	if r.chance(0.5) {
		n.split(r, []*replica{x}, true)
		return
	}
	var p partition
	for _, y := range n.replicas {
		if y != x {
			p.cut(n.net, x.place(), y.place(), true)
		}
	}
	n.note("partition: %v cut off from other replicas", x)
	n.net.cutFor(p, r)
}

// faultAfterEvent injects a fault right after a critical event.
func (n *nemesis) faultAfterEvent(x *replica) {
	r := n.own
	if n.healing || !r.chance(n.profile.AfterEvent) {
		return
	}
	life := x.life
	n.after(r.between(0, 3*n.profile.Delay), func() {
		if x.life != life {
			return
		}
		switch r.below(4) {
		case 0:
			n.pauseOne(r, x)
		case 1:
			n.crashFor(r, x)
		default:
			n.isolate(r, x)
			n.after(r.between(0, 300*time.Millisecond), func() {
				if x.life == life && r.chance(0.5) {
					n.crashFor(r, x)
				}
			})
		}
	})
}

func (n *nemesis) oneWay(r *random) { n.split(r, []*replica{pick(r, n.replicas)}, false) }

func (n *nemesis) triangle(r *random) {
	x := n.leader()
	if y := pick(r, n.replicas); x != nil && y != x {
		var p partition
		p.cut(n.net, x.place(), y.place(), true)
		n.note("partition: %v and %v do not hear each other", x, y)
		n.net.cutFor(p, r)
	}
}

func (n *nemesis) cutClient(r *random) {
	var p partition
	p.cut(n.net, pick(r, n.clients).place, pick(r, n.replicas).place(), true)
	n.net.cutFor(p, r)
}

func (n *nemesis) slowDisk(r *random) {
	d := pick(r, n.replicas).disk
	n.Stats.Faults.SlowDisks++
	d.slow = 5 + 100*r.fraction()
	n.after(r.between(50*time.Millisecond, time.Second), func() { d.slow = 1 })
}

func (n *nemesis) hangDisk(r *random) {
	x := pick(r, n.replicas)
	n.Stats.Faults.HungDisks++
	n.note("the disk of replica %d hangs", x.id)
	x.disk.hang = n.now + r.between(100*time.Millisecond, 6*time.Second)
}

func (n *nemesis) failDisk(r *random) {
	x := pick(r, n.replicas)
	x.disk.fail = 0.2
	n.after(r.between(50*time.Millisecond, 300*time.Millisecond), func() {
		x.disk.fail = 0
		n.restart(x)
	})
}

func (n *nemesis) slowReplica(r *random) {
	x := pick(r, n.replicas)
	n.Stats.Faults.SlowReplicas++
	x.slow = 10 + 500*r.fraction()
	n.after(r.between(50*time.Millisecond, 500*time.Millisecond), func() { x.slow = 1 })
}

func (n *nemesis) pauseOne(r *random, x *replica) {
	if x == nil {
		return
	}
	n.Stats.Faults.Pauses++
	length := r.between(time.Millisecond, 2*time.Second)
	if r.chance(0.6) { // about the length of a lease
		length = int64(float64(n.Config.Tick*int64(n.Config.Election)) * (0.5 + 2.5*r.fraction()))
	}
	n.note("replica %d pauses for %d ms", x.id, length/int64(time.Millisecond))
	x.pause(length)
}

func (n *nemesis) pause(r *random) {
	if alive := n.alive(); len(alive) > 0 {
		n.pauseOne(r, pick(r, alive))
	}
}

func (n *nemesis) pauseLeader(r *random) { n.pauseOne(r, n.leader()) }

func (n *nemesis) clockJump(r *random) {
	n.Stats.Faults.ClockJumps++
	pick(r, n.replicas).clock.jump(r.between(-5*time.Second, 5*time.Second))
}

func (n *nemesis) crashClient(r *random) {
	if c := pick(r, n.clients); c.driver != nil {
		c.crash()
	}
}
