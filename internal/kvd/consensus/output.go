package consensus

import (
	"github.com/weirdb/weir/internal/kvd/wire"
)

// asker is who has queries: a session, or a client that has none.
type asker struct {
	from    Addr
	session uint64
}

// output gathers what leaves with the next Take, and keeps what waits for the disk.
type output struct {
	*Core
	effects  Effects        // gathered since the last Take
	sync     bool           // effects.Records hold something that is waited for
	ticket   uint64         // of the last Effects with records
	flushed  uint64         // the newest ticket that is on disk
	flushing uint64         // the newest ticket that is synced, or will be
	needed   uint64         // the newest ticket with records that a restart must not miss
	waiting  []promise      // what leaves when a ticket is on disk
	hangs    bool           // the disk neither ends a write nor fails it
	spoken   int            // bytes of the answers to queries in effects
	large    map[asker]bool // who had a large answer since no query waited
}

// promise is what may happen once the records of a ticket are durable.
type promise struct {
	ticket uint64
	do     func()
}

// whenDurable runs do once everything that is recorded so far is on disk.
func (o *output) whenDurable(do func()) {
	o.sync = true
	o.flushing = o.ticket + 1
	o.waiting = append(o.waiting, promise{o.flushing, do})
}

// whenSafe runs do once everything that is recorded so far is on disk, except for
// commit indexes: a restart learns them from its leader. Where only those are
// missing there, nothing is waited for, least of all a sync for their sake.
func (o *output) whenSafe(do func()) {
	switch {
	case o.needed <= o.flushed:
		do()
	case o.needed <= o.flushing:
		o.waiting = append(o.waiting, promise{o.flushing, do})
	default:
		o.whenDurable(do)
	}
}

func (o *output) record(kind uint8, term, index uint64, data []byte) {
	o.needed = o.ticket + 1
	o.note(kind, term, index, data)
}

// note records what may be lost.
func (o *output) note(kind uint8, term, index uint64, data []byte) {
	o.effects.Records = append(o.effects.Records, Record{Kind: kind, Term: term, Index: index, Data: data})
}

// send queues a message; to 0 is nobody.
func (o *output) send(to Addr, m wire.Message) {
	if to == 0 {
		return
	}
	o.effects.Sends = append(o.effects.Sends, Send{to, m})
}

// toPeers sends m to every other member.
func (o *output) toPeers(m wire.Message) {
	for _, p := range o.state.members.list {
		if p.ID != o.cfg.ID {
			o.send(Addr(p.ID), m)
		}
	}
}

// mayAnswer reports whether there is room for one more answer in this turn.
func (o *output) mayAnswer(from Addr, m *wire.Message) bool {
	if o.spoken < mostSpoken {
		return true
	}
	return o.spoken < 4*mostSpoken && !o.large[asker{from, m.Session}]
}
