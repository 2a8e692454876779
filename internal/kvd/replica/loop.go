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

	served   int64 // Clock.Mono when a serving leader was last known; 0: never
	watchdog watchdog
	hangs    bool // the disk hangs, and that was logged

	outgoing map[consensus.Addr]*[]wire.Message // gathered in one turn
	order    []consensus.Addr
}

// run runs turns until stop is closed or the replica must not continue.
func (l *loop) run(stop <-chan struct{}) error {
	var got letters
	for {
		select {
		case <-l.inbox.wake:
		case <-stop:
			return nil
		}
		got = l.inbox.take(got)
		// The clock is read after the letters were taken: time that passed before, as in a
		// process that was stopped, has passed for them, too.
		at := l.cfg.Clock()
		if err := l.turn(at, &got); err != nil {
			return err
		}
	}
}

// turn passes everything to the core and executes its effects.
func (l *loop) turn(at consensus.Clock, got *letters) error {
	for i := range got.messages {
		p := &got.messages[i]
		for j := range p.messages {
			l.core.Deliver(at, p.from, &p.messages[j])
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
	if got.ticked {
		l.core.Hang(at, l.watchDisk())
		l.core.Tick(at)
	}
	l.stats.turns.Add(1)
	l.stats.taken.observe(float64(got.count))
	l.came += got.count
	if err := l.act(l.core.Take(at)); err != nil {
		return err
	}
	if !got.ticked {
		return nil
	}
	return l.ticked()
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

// ticked does the work that is due once per tick. The error says why this
// replica must not continue.
func (l *loop) ticked() error {
	status := l.publish()
	for i := range status.Peers {
		p := &status.Peers[i]
		if p.ID != l.cfg.ID {
			l.peers.acknowledged(p.ID, min(p.Match, status.Commit))
		}
	}
	l.rounds(&status.Counters)
	l.watchLeader(status, l.cfg.Clock().Mono)
	l.peers.whoLeads(status)
	l.peers.members(status)
	l.peers.meetPromoted(status)
	l.peers.joinGroup(status)
	l.peers.noteAcked()
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
