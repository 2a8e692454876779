package consensus

import (
	"github.com/weirdb/weir/internal/kvd/wire"
)

// querier is a client that sends queries: a session, or a connection without one.
type querier struct {
	from    Addr
	session uint64
}

// output collects the effects of the next Take, and what waits for the disk.
type output struct {
	*Core
	effects     Effects          // gathered since the last Take
	sync        bool             // something waits for effects.Records
	ticket      uint64           // of the last Effects with records
	flushed     uint64           // the newest ticket that is durable
	flushing    uint64           // the newest ticket that is being flushed, or will be
	needed      uint64           // the newest ticket with records that must survive a restart
	waiting     []promise        // waits until a ticket is durable
	hangs       bool             // the disk neither completes a write nor fails it
	answerBytes int              // answers to queries in effects
	large       map[querier]bool // clients that received a large answer since queries last had to wait
}

// promise is a function to call when the records of a ticket are durable.
type promise struct {
	ticket uint64
	do     func()
}

// whenDurable calls do once everything recorded so far is durable.
func (o *output) whenDurable(do func()) {
	o.sync = true
	o.flushing = o.ticket + 1
	o.waiting = append(o.waiting, promise{o.flushing, do})
}

// whenSafe calls do once everything recorded so far is durable, except for commit indexes: a
// restarted replica learns those from its leader, so nothing needs to wait for them or to be
// flushed.
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

// note adds a record that may be lost.
func (o *output) note(kind uint8, term, index uint64, data []byte) {
	o.effects.Records = append(o.effects.Records, Record{Kind: kind, Term: term, Index: index, Data: data})
}

// send queues a message. Messages to address 0 are dropped.
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

// mayAnswer reports whether this Take has room for another answer.
func (o *output) mayAnswer(from Addr, m *wire.Message) bool {
	if o.answerBytes < maxAnswerBytes {
		return true
	}
	return o.answerBytes < 4*maxAnswerBytes && !o.large[querier{from, m.Session}]
}
