package replica

import (
	"fmt"
	"time"

	"github.com/weirdb/weir/internal/kvd/consensus"
	"github.com/weirdb/weir/internal/kvd/peer"
	"github.com/weirdb/weir/internal/kvd/wire"
)

// gatewayAddr is the address to which the core sends messages for this replica's own Redis
// clients. Connections of native clients are numbered from FirstClient and never get
// this number.
const gatewayAddr consensus.Addr = 1 << 63

// loop is the core goroutine: no other goroutine touches the core and the store.
type loop struct {
	*Replica
	carried uint64 // carries that were passed to the disk
	came    int    // messages since the last order to the disk
	counted consensus.Counters
	removed int // ticks since this replica was removed
	pace    *pace
	leads   bool // this replica, at the last tick
	alone   bool // it was the only one
	calm    bool // there was a leader, and nothing had to be done at a certain time

	served   int64 // Clock.Mono when a serving leader was last known; 0: never
	watchdog watchdog
	hangs    bool // the disk hangs, and that was logged

	outgoing map[consensus.Addr]*[]wire.Message // gathered in one turn
	order    []consensus.Addr
}

// run runs turns until stop is closed or the replica must not continue.
func (l *loop) run(stop <-chan struct{}) error {
	defer l.pace.ticker.Stop()
	var got letters
	for {
		ticked := false
		select {
		case <-l.inbox.wake:
		case <-l.pace.ticker.C: // one at most is waiting
			ticked = true
		case <-stop:
			return nil
		}
		got = l.inbox.take(got)
		// The clock is read after the letters were taken: time that passed before, as in a
		// process that was stopped, has passed for them, too.
		at := l.cfg.Clock()
		if err := l.turn(at, &got, ticked); err != nil {
			return err
		}
	}
}

// turn passes everything to the core and executes its effects. ticked says that the ticker has
// ticked.
func (l *loop) turn(at consensus.Clock, got *letters, ticked bool) error {
	slow := l.pace.slow
	ticks := l.pace.due(at.Mono, ticked)
	if slow { // they are over, and what has come is newer
		l.tick(at, ticks)
	}
	work := got.ticket > 0 || len(got.calls) > 0
	for i := range got.messages {
		p := &got.messages[i]
		for j := range p.messages {
			m := &p.messages[j]
			work = work || m.Kind != wire.Raft && m.Kind != wire.Lease
			l.core.Deliver(at, p.from, m)
		}
	}
	if got.ticket > 0 {
		l.core.Persisted(at, got.ticket)
	}
	for _, call := range got.calls {
		call(at)
	}
	if l.broken != nil {
		return l.broken
	}
	if !slow {
		l.tick(at, ticks)
	}
	l.stats.turns.Add(1)
	l.stats.taken.observe(float64(got.count))
	l.came += got.count
	effects := l.core.Take(at)
	work = work || effects.Ticket > 0 || effects.Save != nil || len(effects.Ships) > 0
	if err := l.act(effects); err != nil {
		return err
	}
	if ticks > 0 {
		if err := l.ticked(at, ticks); err != nil {
			return err
		}
	}
	l.pace.passed(at.Mono, ticks, l.leads, l.calm, work, got.count > 0 || l.alone)
	return nil
}

// tick tells the core that time passes.
func (l *loop) tick(at consensus.Clock, ticks int) {
	for range ticks {
		l.core.Hang(at, l.watchDisk())
		l.core.Tick(at)
	}
}

// quiet is how many messages come with an order to the disk if nothing else is
// going on: a request, or entries, and answers of the others. Then no other work needs
// the processor that a blocking call keeps.
const quiet = 8

// removedTicks is how long a replica that was removed continues to run, so that the
// others get from it what they need to end the change.
const removedTicks = 100

// act executes effects.
func (l *loop) act(e consensus.Effects) error {
	if e.Fatal != nil {
		return e.Fatal
	}
	if e.Ticket != 0 {
		l.record(order{records: e.Records, ticket: e.Ticket, sync: e.Sync, busy: l.came > quiet})
		l.came = 0
	}
	if wants := l.disk.wants.Load(); wants != l.carried && !l.cfg.Memory {
		// After all records so far and before all that follow, the live ones are
		// exactly these.
		l.carried = wants
		l.disk.put(order{roll: true, records: l.core.Carry()})
	}
	l.feed.drain(l.store)
	l.dispatch(e.Sends)
	l.core.Recycle(e.Sends)
	if e.Save != nil {
		l.snapshots.save(e.Save)
	}
	for i := range e.Ships {
		l.snapshots.ship(&e.Ships[i])
	}
	return l.alarm.set(e.Wake)
}

// record passes records to the disk. A replica that writes nothing counts them as durable
// at once.
func (l *loop) record(o order) {
	if l.cfg.Memory {
		l.disk.pretend(o.records)
		l.inbox.persisted(o.ticket)
		return
	}
	l.disk.put(o)
}

// dispatch sends messages, all for one address at once.
func (l *loop) dispatch(sends []consensus.Send) {
	if len(sends) == 0 {
		return
	}
	var last *[]wire.Message
	var lastTo consensus.Addr
	for i := range sends {
		to := sends[i].To
		if last == nil || to != lastTo {
			last, lastTo = l.gather(to), to
		}
		*last = append(*last, sends[i].Message)
	}
	for _, to := range l.order {
		ms := l.outgoing[to]
		if l.send(to, *ms) {
			clear(*ms)
			*ms = (*ms)[:0]
		} else {
			*ms = l.gateway.blank()
		}
	}
	if len(l.outgoing) > maxOutgoing {
		clear(l.outgoing) // most of them are clients that have left
	}
	l.order = l.order[:0]
}

// maxOutgoing bounds the addresses whose slices are kept for the next turn.
const maxOutgoing = 1024

func (l *loop) gather(to consensus.Addr) *[]wire.Message {
	ms := l.outgoing[to]
	if ms == nil {
		ms = new([]wire.Message)
		l.outgoing[to] = ms
	}
	if len(*ms) == 0 {
		l.order = append(l.order, to)
	}
	return ms
}

// send sends messages, and reports whether the slice may be reused.
func (l *loop) send(to consensus.Addr, ms []wire.Message) bool {
	switch to {
	case gatewayAddr:
		l.gateway.receive(l.cfg.ID, ms)
		return false
	case consensus.Clients:
		l.peers.toClients(ms)
		l.gateway.receive(l.cfg.ID, ms)
		return false
	default:
		l.peers.send(peer.Addr(to), ms)
		return true
	}
}

// ticked does the work that is due after ticks. The error says why this
// replica must not continue.
func (l *loop) ticked(at consensus.Clock, ticks int) error {
	status := l.publish()
	for i := range status.Peers {
		p := &status.Peers[i]
		if p.ID != l.cfg.ID {
			l.peers.acknowledged(p.ID, min(p.Match, status.Commit))
		}
	}
	l.rounds(&status.Counters)
	l.watchLeader(status, at.Mono)
	l.gateway.led(status.Leader)
	l.peers.whoLeads(status)
	l.peers.members(status)
	l.peers.meetPromoted(status)
	l.peers.joinGroup(status)
	l.peers.noteAcked(ticks)
	due := l.store.Due()
	l.leads, l.alone = status.Leader == l.cfg.ID, len(status.Members) == 1
	l.calm = status.Leader != 0 && status.Open && !status.Removed && l.disk.steps.Load()%2 == 0 &&
		len(l.peers.leaving) == 0 && (due == 0 || due > at.Wall+int64(time.Second))
	if !status.Removed {
		return nil
	}
	if l.removed++; l.removed > removedTicks {
		return &RemovedError{l.cfg.ID}
	}
	return nil
}

// watchLeader ends the watches of a replica that has known no serving leader for long,
// as in a minority: it would not learn of changes that the others make.
func (l *loop) watchLeader(s *Status, now int64) {
	if s.Leader != 0 && s.Open && s.Doubt == "" || l.served == 0 {
		l.served = now
		l.feed.joined()
		return
	}
	if away := time.Duration(now - l.served); away > l.cfg.CutOff && l.feed.cut == "" {
		why := fmt.Sprintf("replica %d has known no leader that serves for %v", l.cfg.ID, l.cfg.CutOff)
		l.cfg.Log.Warn("watches end", "reason", why)
		l.feed.cutOff(why)
	}
}

// rounds records how many operations the rounds since the last tick had: each of
// them counts as their mean.
func (l *loop) rounds(c *consensus.Counters) {
	rounds, operations := c.Rounds-l.counted.Rounds, c.Operations-l.counted.Operations
	l.counted = *c
	for range rounds {
		l.stats.rounds.observe(float64(operations) / float64(rounds))
	}
}
