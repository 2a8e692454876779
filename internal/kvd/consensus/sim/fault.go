package sim

import (
	"time"

	"github.com/weirdb/weir/internal/kvd/consensus"
)

// fault does something bad to the world, and plans its end.
type fault func(w *World, r *random)

// Faults counts what was done to a world.
type Faults struct {
	Crashes, ClientCrashes, Disconnects  uint64
	Partitions, Lost, CutOff, Duplicated uint64
	SlowDisks, FailedSyncs, LostDisks    uint64
	HungDisks                            uint64
	TornRecords                          uint64
	SlowReplicas, Pauses, ClockJumps     uint64
	Transfers, MemberChanges             uint64
}

// nemesis draws faults until the end.
func (w *World) nemesis(p *Profile, end int64) {
	r := w.random.fork("nemesis")
	total := 0
	for _, f := range p.weights() {
		total += f.weight
	}
	if total == 0 {
		return
	}
	var next func()
	next = func() {
		if w.now >= end {
			return
		}
		at := r.below(total)
		for _, f := range p.weights() {
			if at -= f.weight; at < 0 {
				f.kind(w, r)
				break
			}
		}
		w.after(r.between(p.Every/4, p.Every*7/4), next)
	}
	w.after(r.between(p.Every/4, p.Every*7/4), next)
}

// heal ends every fault: who is down comes back, the network is whole, disks
// and processes are healthy.
func (w *World) heal() {
	w.note("everything heals")
	w.net.heal(w.places())
	w.net.loss, w.net.duplicate = 0, 0
	for _, r := range w.replicas {
		r.disk.slow, r.disk.fail, r.slow = 1, 0, 1
		w.restart(r)
	}
}

// restart brings a replica back unless it is gone for good.
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
			panic(err) // the list and the table are side by side
		}
		all = append(all, s)
	}
	return all
}

// alive lists the replicas that run.
func (w *World) alive() []*replica {
	var list []*replica
	for _, r := range w.replicas {
		if r.up {
			list = append(list, r)
		}
	}
	return list
}

// leader is the replica that leads in the highest term, nil if none does.
func (w *World) leader() *replica {
	var found *replica
	var term uint64
	for _, r := range w.alive() {
		if s := r.core.Status(); s.Leader == r.id && s.Term > term {
			found, term = r, s.Term
		}
	}
	return found
}

func (w *World) crashFor(r *random, x *replica) {
	x.crash()
	down := r.between(5*time.Millisecond, 300*time.Millisecond)
	switch {
	case r.chance(0.1):
		down *= 5
	case r.chance(0.3): // sooner than anybody notices
		down = r.between(time.Millisecond/10, 5*time.Millisecond)
	}
	w.after(down, func() { w.restart(x) })
}

func (w *World) faultCrash(r *random) {
	if alive := w.alive(); len(alive) > 0 {
		w.crashFor(r, pick(r, alive))
	}
}

func (w *World) faultCrashLeader(r *random) {
	if x := w.leader(); x != nil {
		w.crashFor(r, x)
	}
}

func (w *World) faultCrashAll(r *random) {
	for _, x := range w.alive() {
		w.crashFor(r, x)
	}
}

// split cuts the replicas of one side, with some clients, off from the others.
func (w *World) split(r *random, side []*replica, both bool) {
	in := map[place]bool{}
	for _, x := range side {
		in[x.place()] = true
	}
	for _, c := range w.clients {
		if r.chance(0.4) {
			in[c.place] = true
		}
	}
	var p partition
	places := w.places()
	for _, a := range places {
		for _, b := range places {
			if in[a] && !in[b] && (a.isReplica() || b.isReplica()) {
				p.cut(w.net, a, b, both)
			}
		}
	}
	w.note("partition: %v cut off, both ways %v", side, both)
	w.net.cutFor(p, r)
}

func (w *World) faultPartition(r *random) {
	all := append([]*replica(nil), w.replicas...)
	shuffle(r, all)
	w.split(r, all[:1+r.below(len(all)/2+1)], true)
}

func (w *World) faultIsolate(r *random) {
	if x := w.leader(); x != nil {
		w.isolate(r, x)
	}
}

// isolate cuts a replica off, half of the time from other replicas only: then
// clients reach both sides.
func (w *World) isolate(r *random, x *replica) {
	if r.chance(0.5) {
		w.split(r, []*replica{x}, true)
		return
	}
	var p partition
	for _, y := range w.replicas {
		if y != x {
			p.cut(w.net, x.place(), y.place(), true)
		}
	}
	w.note("partition: %v cut off from other replicas", x)
	w.net.cutFor(p, r)
}

// ambush strikes where something delicate has just happened.
func (w *World) ambush(x *replica) {
	r := w.ambusher
	if w.healing || !r.chance(w.profile.Ambush) {
		return
	}
	life := x.life
	w.after(r.between(0, 3*w.profile.Delay), func() {
		if x.life != life {
			return
		}
		switch r.below(4) {
		case 0:
			w.pauseOne(r, x)
		case 1:
			w.crashFor(r, x)
		default:
			w.isolate(r, x)
			w.after(r.between(0, 300*time.Millisecond), func() {
				if x.life == life && r.chance(0.5) {
					w.crashFor(r, x)
				}
			})
		}
	})
}

func (w *World) faultOneWay(r *random) { w.split(r, []*replica{pick(r, w.replicas)}, false) }

func (w *World) faultTriangle(r *random) {
	x := w.leader()
	if y := pick(r, w.replicas); x != nil && y != x {
		var p partition
		p.cut(w.net, x.place(), y.place(), true)
		w.note("partition: %v and %v do not hear each other", x, y)
		w.net.cutFor(p, r)
	}
}

func (w *World) faultCutClient(r *random) {
	var p partition
	p.cut(w.net, pick(r, w.clients).place, pick(r, w.replicas).place(), true)
	w.net.cutFor(p, r)
}

func (w *World) faultSlowDisk(r *random) {
	d := pick(r, w.replicas).disk
	w.Stats.Faults.SlowDisks++
	d.slow = 5 + 100*r.fraction()
	w.after(r.between(50*time.Millisecond, time.Second), func() { d.slow = 1 })
}

func (w *World) faultHangDisk(r *random) {
	x := pick(r, w.replicas)
	w.Stats.Faults.HungDisks++
	w.note("the disk of replica %d hangs", x.id)
	x.disk.hang = w.now + r.between(100*time.Millisecond, 6*time.Second)
}

func (w *World) faultFailDisk(r *random) {
	x := pick(r, w.replicas)
	x.disk.fail = 0.2
	w.after(r.between(50*time.Millisecond, 300*time.Millisecond), func() {
		x.disk.fail = 0
		w.restart(x)
	})
}

func (w *World) faultSlowReplica(r *random) {
	x := pick(r, w.replicas)
	w.Stats.Faults.SlowReplicas++
	x.slow = 10 + 500*r.fraction()
	w.after(r.between(50*time.Millisecond, 500*time.Millisecond), func() { x.slow = 1 })
}

func (w *World) pauseOne(r *random, x *replica) {
	if x == nil {
		return
	}
	w.Stats.Faults.Pauses++
	length := r.between(time.Millisecond, 2*time.Second)
	if r.chance(0.6) { // about as long as a lease
		length = int64(float64(w.Config.Tick*int64(w.Config.Election)) * (0.5 + 2.5*r.fraction()))
	}
	w.note("replica %d pauses for %d ms", x.id, length/int64(time.Millisecond))
	x.pause(length)
}

func (w *World) faultPause(r *random) {
	if alive := w.alive(); len(alive) > 0 {
		w.pauseOne(r, pick(r, alive))
	}
}

func (w *World) faultPauseLeader(r *random) { w.pauseOne(r, w.leader()) }

func (w *World) faultClockJump(r *random) {
	w.Stats.Faults.ClockJumps++
	pick(r, w.replicas).clock.jump(r.between(-5*time.Second, 5*time.Second))
}

func (w *World) faultClientCrash(r *random) {
	if c := pick(r, w.clients); c.driver != nil {
		c.crash()
	}
}
