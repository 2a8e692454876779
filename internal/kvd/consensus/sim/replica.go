package sim

import (
	"bytes"
	"fmt"
	"time"

	"github.com/weirdb/weir/internal/kvd/consensus"
	"github.com/weirdb/weir/internal/kvd/wire"
)

// replica is a machine of the world with a consensus.Core. Like package replica, it collects
// events, reads the clock, passes the events to the core and executes the effects.
type replica struct {
	w       *World
	id      uint64
	random  *random
	clock   machineClock
	disk    *disk
	members []consensus.Member // the first members; none: it joins
	preset  consensus.Switches

	core    *consensus.Core
	machine *recordingMachine
	life    uint64 // counts starts and crashes: events of an earlier life are void
	up      bool
	gone    bool // permanently: its disk is lost
	inbox   []func(consensus.Clock)
	turning bool // a turn is scheduled
	paused  int64
	before  consensus.Clock // when the pause began
	stuck   bool            // permanently, or until a restart
	slow    float64         // factor of the duration of a turn, 1 is normal
	hung    int             // ticks for which it has led with a hung disk
	conns   []*conn         // of clients, in order of connection

	seen inspection // the last inspection of the core

	knows  uint64 // the newest format that its version knows, 0: the newest of all
	starts uint64
	odd    int64 // since when its state differs from those of the others
	spoilt bool  // its state is to differ from the next write on
}

func (r *replica) place() place { return place(r.id) }

// start starts the replica from its disk.
func (r *replica) start() {
	r.life++
	r.starts++
	r.up, r.inbox, r.turning, r.stuck, r.paused, r.slow = true, nil, false, false, 0, 1
	r.machine = &recordingMachine{machine: r.w.newMachine(), replica: r}
	cfg := r.w.coreConfig(r)
	core, err := consensus.New(cfg, r.machine, r.disk.recovered())
	if err != nil {
		r.w.violate("recovery", "replica %d does not start on its own disk: %v", r.id, err)
		r.up, r.gone = false, true
		return
	}
	r.core = core
	r.seen = inspection{}
	r.w.note("replica %d starts", r.id)
	r.plan()
	r.tick(r.life)
}

// crash stops the replica between two instructions.
func (r *replica) crash() {
	if !r.up {
		return
	}
	r.w.note("replica %d crashes", r.id)
	r.w.Stats.Faults.Crashes++
	r.life++
	r.up, r.core, r.inbox = false, nil, nil
	r.disk.crash()
	for _, c := range append([]*conn(nil), r.conns...) {
		c.broken()
	}
	r.conns = nil
}

// pause stops the process, but not its clocks.
func (r *replica) pause(length int64) {
	if !r.up || r.paused > r.w.now {
		return
	}
	r.before = r.clock.read(r.w.now)
	r.paused = r.w.now + length
}

func (r *replica) tick(life uint64) {
	r.w.after(r.clock.until(r.w.now, r.clock.read(r.w.now).Mono+r.w.Config.Tick), func() {
		if r.life != life {
			return
		}
		if r.paused <= r.w.now {
			r.enqueue(func(now consensus.Clock) {
				r.core.Hang(now, r.disk.hangs())
				r.core.Tick(now)
				r.checkStepsDown()
				r.checkStops()
			})
		}
		r.tick(life)
	})
}

// checkStepsDown checks that a leader whose disk hangs soon stops leading.
func (r *replica) checkStepsDown() {
	if !r.disk.hangs() || r.core.Brief().Leader != r.id {
		r.hung = 0
		return
	}
	if r.hung++; r.hung > 12*r.w.Config.Election { // three times the longest election timeout
		r.w.violate("hang", "replica %d leads for %d ticks though its disk hangs", r.id, r.hung)
	}
}

// checkStops checks that a replica whose state differs soon stops.
func (r *replica) checkStops() {
	if w := r.w; r.odd != 0 && w.now-r.odd > w.elections(12) {
		w.violate("divergence", "replica %d goes on for %d ms though its state differs", r.id, (w.now-r.odd)/1e6)
	}
}

// enqueue adds an event to the next turn.
func (r *replica) enqueue(do func(consensus.Clock)) {
	if !r.up {
		return
	}
	if most := r.w.Defects.SmallQueue; most > 0 && len(r.inbox) >= most {
		r.stuck = true
	}
	if r.stuck {
		return
	}
	r.inbox = append(r.inbox, do)
	r.plan()
}

func (r *replica) plan() {
	if r.turning {
		return
	}
	r.turning = true
	life := r.life
	at := r.random.between(time.Microsecond, time.Duration(float64(40*time.Microsecond)*r.slow))
	r.w.after(max(at, r.paused-r.w.now), func() {
		if r.life == life {
			r.turn()
		}
	})
}

// turn runs one iteration of the replica's loop.
func (r *replica) turn() {
	if r.paused > r.w.now { // it was paused after this turn was scheduled
		life := r.life
		r.w.after(r.paused-r.w.now, func() {
			if r.life == life {
				r.turn()
			}
		})
		return
	}
	r.turning = false
	now := r.clock.read(r.w.now)
	if r.paused != 0 && r.w.Defects.StaleClock {
		now = r.before // the clock was read before the process was stopped
	}
	r.paused = 0
	events := r.inbox
	r.inbox = nil
	for _, do := range events {
		do(now)
	}
	e := r.core.Take(now)
	r.carryOut(now, e)
	if r.up {
		r.inspect()
	}
}

func (r *replica) carryOut(now consensus.Clock, e consensus.Effects) {
	if e.Fatal != nil {
		if r.odd == 0 {
			r.w.violate("fatal", "%v", e.Fatal)
		}
		r.crash()
		r.gone, r.odd = true, 0
		return
	}
	if e.Ticket != 0 {
		r.w.hashRecords(r.id, e.Records)
		r.disk.write(e.Records, e.Ticket, e.Sync)
	}
	r.w.Defects.spoil(e.Sends)
	for i := range e.Sends {
		r.send(&e.Sends[i])
	}
	if e.Save != nil {
		r.disk.save(e.Save)
	}
	for i := range e.Ships {
		r.ship(&e.Ships[i])
	}
	r.disk.release(r.core.Brief().Snapshot)
	if e.Wake > 0 {
		life := r.life
		r.w.after(r.clock.until(r.w.now, e.Wake), func() {
			if r.life == life {
				r.plan()
			}
		})
	}
}

func (r *replica) send(s *consensus.Send) {
	b := s.Message.Append(nil)
	r.w.hashMessage(r.id, uint64(s.To), b)
	switch {
	case s.To == consensus.Clients:
		for _, c := range append([]*conn(nil), r.conns...) {
			c.toClient(append([]byte(nil), b...))
		}
	case s.To >= consensus.FirstClient:
		for _, c := range r.conns {
			if c.addr == s.To {
				c.toClient(b)
				return
			}
		}
	default:
		to := r.w.replica(uint64(s.To))
		if to == nil {
			r.w.violate("address", "replica %d sends %v to replica %d, which never was", r.id, s.Message.Kind, s.To)
			return
		}
		if r.w.tracing() {
			r.w.trace("%d -> %d  %s", r.id, s.To, describe(&s.Message))
		}
		r.w.net.send(r.place(), to.place(), b, func(b []byte) { to.deliver(consensus.Addr(r.id), b) }, func() {})
	}
}

// deliver passes a message to the core.
func (r *replica) deliver(from consensus.Addr, b []byte) {
	if !r.up {
		return
	}
	m := new(wire.Message)
	if err := m.Decode(b); err != nil {
		r.w.violate("wire", "a message to replica %d does not decode: %v", r.id, err)
		return
	}
	r.w.hashMessage(uint64(from), r.id, b)
	r.enqueue(func(now consensus.Clock) { r.core.Deliver(now, from, m) })
}

// ship sends the newest snapshot file to a replica that is far behind.
func (r *replica) ship(s *consensus.Ship) {
	to := r.w.replica(uint64(s.To))
	state := r.disk.snapshot
	life := r.life
	shipped := func(ok bool) {
		if r.life == life {
			r.enqueue(func(now consensus.Clock) { r.core.Shipped(now, s.To, ok) })
		}
	}
	if to == nil || state.index < s.Index {
		shipped(false)
		return
	}
	r.w.Stats.Ships++
	r.w.trace("%d -> %d  ships the snapshot of %d", r.id, s.To, state.index)
	b := s.Message.Append(nil)
	r.w.after(r.random.between(time.Millisecond, 100*time.Millisecond), func() {
		r.w.net.send(r.place(), to.place(), b, func(b []byte) {
			to.install(consensus.Addr(r.id), b, state)
			shipped(true)
		}, func() { shipped(false) })
	})
}

// install passes a snapshot file and its message to the core.
func (r *replica) install(from consensus.Addr, b []byte, state savedState) {
	m := new(wire.Message)
	if err := m.Decode(b); err != nil {
		r.w.violate("wire", "a message to replica %d does not decode: %v", r.id, err)
		return
	}
	r.enqueue(func(now consensus.Clock) {
		r.disk.delivered = append(r.disk.delivered, state) // several may arrive in one turn
		r.core.Install(now, from, m, bytes.NewReader(state.data))
	})
}

func (r *replica) String() string { return fmt.Sprintf("replica %d", r.id) }
