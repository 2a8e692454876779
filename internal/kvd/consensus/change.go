package consensus

import "github.com/weirdb/weir/internal/kvd/kvwire"

// Changes of the members, as the leader makes them.

// configure starts a change of the members. One that is in force, or under way, is
// answered when it is known to last: anyone who asks again has not got the answer.
func (l *leadership) configure(from Addr, m *kvwire.Message) {
	c := l.c
	g, err := kvwire.ParseMemberChange(m.Data)
	if err != nil {
		c.refuse(from, m, kvwire.CodeInvalid, err.Error())
		return
	}
	if l.changing || l.changeAsk != nil || c.members.joint() {
		if a := l.changeAsk; a != nil && a.change == g {
			a.from, a.request = from, m.Request
			return
		}
		c.refuse(from, m, kvwire.CodeInvalid, "another change is in flight; try again when it is done")
		return
	}
	if c.members.done(g) && c.members.index == 0 { // nothing has changed since the beginning, which all know
		c.send(from, kvwire.Message{Kind: kvwire.ReadDone, View: c.view, Request: m.Request, Index: c.applied})
		return
	}
	if c.members.done(g) {
		l.changeAsk = &asked{from: from, request: m.Request, change: g, index: c.members.index}
		l.stamp()
		l.answerChange()
		return
	}
	if err := c.members.check(g); err != nil {
		c.refuse(from, m, kvwire.CodeInvalid, err.Error())
		return
	}
	switch g.Kind {
	case Transfer:
		l.transfer(from, m, g.Member.ID)
	case Promote, Replace:
		l.examine(from, m, g)
	default:
		l.change(from, m.Request, g)
	}
}

// transfer asks a voter to lead.
func (l *leadership) transfer(from Addr, m *kvwire.Message, to uint64) {
	c := l.c
	if l.lives[to] == 0 && to != c.cfg.ID {
		c.refuse(from, m, kvwire.CodeBusy, "the replica has not answered this leader yet; try again")
		return
	}
	c.node.TransferLeader(to)
	c.send(from, kvwire.Message{Kind: kvwire.ReadDone, View: c.view, Request: m.Request, Index: c.applied})
}

// change proposes a change that makes sense.
func (l *leadership) change(from Addr, request uint64, g Change) {
	c := l.c
	if err := c.node.ProposeConfChange(confChange(g)); err != nil {
		c.refuse(from, &kvwire.Message{Request: request}, kvwire.CodeBusy, err.Error())
		return
	}
	c.trace(Event{Kind: EventChanging, View: c.term, Seq: uint64(g.Kind)})
	l.changing = true // before any later operation gets a speculative answer
	l.changeAsk = &asked{from: from, request: request, change: g}
}

// memberChanged is called when a change, or an empty entry in its place, was
// applied.
func (l *leadership) memberChanged(refused bool) {
	c := l.c
	if c.members.joint() {
		return // the engine leaves it by itself
	}
	l.changing = false
	if l.changeAsk == nil {
		return
	}
	if refused {
		c.refuse(l.changeAsk.from, &kvwire.Message{Request: l.changeAsk.request}, kvwire.CodeInvalid, "another change was in flight; try again")
		l.changeAsk = nil
		return
	}
	l.changeAsk.index = c.members.index
	l.stamp()
	l.answerChange()
}

// knows notes the last change of members that a replica has applied and on disk.
func (l *leadership) knows(from, index uint64) {
	l.known[from] = index
	l.answerChange()
}

// answerChange says that a change is in force when a majority would know that after
// a restart. Anyone who asked may then destroy a replica that has left: its vote, by
// the configuration before, is never needed again. A leader that has left itself
// does not wait: it is about to be stopped.
func (l *leadership) answerChange() {
	c, a := l.c, l.changeAsk
	if a == nil || a.index == 0 {
		return
	}
	n := 0
	for _, id := range c.members.voters() {
		if id == c.cfg.ID && c.members.known >= a.index || l.known[id] >= a.index {
			n++
		}
	}
	if n < majority(len(c.members.voters())) && c.members.votes(c.cfg.ID) {
		return
	}
	c.send(a.from, kvwire.Message{Kind: kvwire.ReadDone, View: c.view, Request: a.request, Index: c.applied})
	l.changeAsk = nil
}
