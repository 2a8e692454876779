package consensus

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// changes makes changes of members, at the leader.
type changes struct {
	*leadership
	underWay  bool // the fast path is closed meanwhile
	ask       *memberRequest
	candidate *candidate
	known     map[uint64]uint64 // by replica: index of the last change that it has applied and has on disk
}

// configure starts a change of members. If the same change is in force or in progress, the
// request is a repetition by a client that has not received the answer, and is answered once
// the change is durable.
func (ch *changes) configure(from Addr, m *wire.Message) {
	c := ch.c
	g, err := wire.ParseMemberChange(m.Data)
	if err != nil {
		c.refuse(from, m, wire.CodeInvalid, err.Error())
		return
	}
	force := g.Force
	g.Force = false // the log records the change, not how it was requested
	if ch.underWay || ch.ask != nil || c.state.members.joint() {
		if a := ch.ask; a != nil && a.change == g {
			a.from, a.request = from, m.Request
			return
		}
		c.refuse(from, m, wire.CodeInvalid, "another change is in flight; try again when it is done")
		return
	}
	if c.state.members.done(g) && c.state.members.index == 0 { // no change yet: all know the first members
		c.out.send(from, wire.Message{Kind: wire.ReadDone, View: c.witness.view, Request: m.Request, Index: c.state.applied})
		return
	}
	if c.state.members.done(g) {
		ch.ask = &memberRequest{from: from, request: m.Request, change: g, index: c.state.members.index}
		ch.lease.stamp()
		ch.answer()
		return
	}
	if err := c.state.members.check(g); err != nil {
		c.refuse(from, m, wire.CodeInvalid, err.Error())
		return
	}
	if !force && !ch.checkLeave(from, m, g) {
		return
	}
	switch g.Kind {
	case Transfer:
		ch.transfer(from, m, g.Member.ID)
	case Promote, Replace:
		ch.examine(from, m, g)
	default:
		ch.propose(from, m.Request, g)
	}
}

// checkLeave reports whether a voter may leave: the leader must reach a majority of the voters that
// stay. Otherwise it refuses the change, because the cluster would lose its quorum.
func (ch *changes) checkLeave(from Addr, m *wire.Message, g Change) bool {
	c := ch.c
	who := g.Member.ID
	if g.Kind == Replace {
		who = g.Old
	}
	if g.Kind != Remove && g.Kind != Replace || !c.state.members.votes(who) {
		return true
	}
	stay := slices.DeleteFunc(slices.Clone(c.state.members.voters()), func(id uint64) bool { return id == who })
	if g.Kind == Replace {
		stay = append(stay, g.Member.ID)
	}
	var silent []string
	since := c.now.Mono - c.election.electionNanos()
	for _, id := range stay {
		if echo, ok := ch.lease.echoes[id]; id != c.cfg.ID && (!ok || echo < since) {
			silent = append(silent, strconv.FormatUint(id, 10))
		}
	}
	switch {
	case len(stay)-len(silent) >= majority(len(stay)):
		return true
	case ch.ticks < c.cfg.ElectionTicks: // a new leader has not heard of all yet
		c.refuse(from, m, wire.CodeBusy, "the leader has not heard of a majority yet; try again")
	default:
		c.refuse(from, m, wire.CodeInvalid, fmt.Sprintf("without replica %d no majority of the voters would be left: %d of %d answer the leader, replica %s does not. "+
			"Start them, or remove a silent one first; --force removes replica %d nevertheless, and the cluster then stops until they are back",
			who, len(stay)-len(silent), len(stay), strings.Join(silent, ", "), who))
	}
	return false
}

// transfer asks a voter to take over leadership.
func (ch *changes) transfer(from Addr, m *wire.Message, to uint64) {
	c := ch.c
	if ch.lease.lives[to] == 0 && to != c.cfg.ID {
		c.refuse(from, m, wire.CodeBusy, "the replica has not answered this leader yet; try again")
		return
	}
	c.engine.node.TransferLeader(to)
	c.out.send(from, wire.Message{Kind: wire.ReadDone, View: c.witness.view, Request: m.Request, Index: c.state.applied})
}

// propose proposes a valid change.
func (ch *changes) propose(from Addr, request uint64, g Change) {
	c := ch.c
	if err := c.engine.node.ProposeConfChange(confChange(g)); err != nil {
		c.refuse(from, &wire.Message{Request: request}, wire.CodeBusy, err.Error())
		return
	}
	c.trace(Event{Kind: EventChanging, View: c.engine.term, Seq: uint64(g.Kind)})
	ch.underWay = true // before any later operation gets a speculative answer
	ch.ask = &memberRequest{from: from, request: request, change: g}
}

// finish ends the change in progress, when it was applied or the engine has replaced it by an
// empty entry.
func (ch *changes) finish(refused bool) {
	c := ch.c
	if c.state.members.joint() {
		return // the engine leaves the joint configuration by itself
	}
	ch.underWay = false
	if ch.ask == nil {
		return
	}
	if refused {
		c.refuse(ch.ask.from, &wire.Message{Request: ch.ask.request}, wire.CodeInvalid, "another change was in flight; try again")
		ch.ask = nil
		return
	}
	ch.ask.index = c.state.members.index
	ch.lease.stamp()
	ch.answer()
}

// noteKnown notes the index of the last change of members that a replica has applied and has on
// disk.
func (ch *changes) noteKnown(from, index uint64) {
	ch.known[from] = index
	ch.answer()
}

// answer confirms a change once a majority would know of it after a restart. The operator may
// then destroy a replica that was removed: its vote in the previous configuration is never
// needed again. A leader that has removed itself does not wait, since it is about to stop.
func (ch *changes) answer() {
	c, a := ch.c, ch.ask
	if a == nil || a.index == 0 {
		return
	}
	n := 0
	for _, id := range c.state.members.voters() {
		if id == c.cfg.ID && c.state.members.known >= a.index || ch.known[id] >= a.index {
			n++
		}
	}
	if n < majority(len(c.state.members.voters())) && c.state.members.votes(c.cfg.ID) {
		return
	}
	c.out.send(a.from, wire.Message{Kind: wire.ReadDone, View: c.witness.view, Request: a.request, Index: c.state.applied})
	ch.ask = nil
}
