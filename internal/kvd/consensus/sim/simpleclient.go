package sim

import (
	"time"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// simpleClient sends strong operations to the leader, and to another replica if there is no
// answer. It shares no code with package session, so that a bug there does not hide one in the
// core.
type simpleClient struct {
	w       *World
	random  *random
	up      []uint64 // connected replicas, in order of connection
	leader  uint64   // as far as it knows
	id      uint64   // of the session, 0: not granted yet
	nextSeq uint64
	request uint64
	asked   int64
	lapsed  bool // it has expired

	open     []*simpleOp // in order of issue
	requests []request
	outcomes []outcome
}

type simpleOp struct {
	operation *operation
	seq       uint64 // of a write
	request   uint64 // of a read
	sent      int64
	times     int
	patience  int64
}

func newSimpleClient(w *World) driver {
	return &simpleClient{w: w, random: w.random.fork("plain").forkNumber(len(w.sessions)), nextSeq: 1}
}

func (r *random) forkNumber(n int) *random {
	f := &random{r.state + uint64(n)*0x9e3779b97f4a7c15}
	f.next()
	return f
}

func (p *simpleClient) connected(replica uint64) {
	p.up = append(p.up, replica)
	p.again(replica)
}

func (p *simpleClient) disconnected(replica uint64) {
	for i, r := range p.up {
		if r == replica {
			p.up = append(p.up[:i:i], p.up[i+1:]...)
			break
		}
	}
	if p.leader == replica {
		p.leader = 0
	}
}

// again sends waiting operations to a replica that may be the leader.
func (p *simpleClient) again(replica uint64) {
	if p.leader == 0 {
		p.leader = replica
	}
	if p.leader != replica {
		return
	}
	if p.id == 0 {
		p.register()
		return
	}
	for _, o := range p.open {
		p.transmit(o)
	}
}

func (p *simpleClient) register() {
	p.asked = p.w.now
	p.request++
	p.requests = append(p.requests, request{p.leader, &wire.Message{Kind: wire.Register, Request: p.request, Count: 1}})
}

func (p *simpleClient) issue(o *operation) {
	if p.lapsed {
		p.outcomes = append(p.outcomes, outcome{operation: o, failure: "the session has expired", refused: true, lapsed: true})
		return
	}
	x := &simpleOp{operation: o}
	if o.write {
		x.seq = p.nextSeq
		p.nextSeq++
	} else {
		p.request++
		x.request = p.request
	}
	p.open = append(p.open, x)
	if p.id != 0 && p.leader != 0 {
		p.transmit(x)
	}
}

// acked returns the number up to which all writes are answered.
func (p *simpleClient) acked() uint64 {
	for _, o := range p.open {
		if o.seq != 0 {
			return o.seq - 1
		}
	}
	return p.nextSeq - 1
}

func (p *simpleClient) transmit(x *simpleOp) {
	x.sent = p.w.now
	x.times++
	x.patience = p.random.between(40*time.Millisecond, 200*time.Millisecond)
	m := &wire.Message{Kind: wire.Read, Session: p.id, Request: x.request, Data: x.operation.bytes}
	if x.seq != 0 {
		m = &wire.Message{Kind: wire.Strong, Session: p.id, Seq: x.seq, Ack: p.acked(), Data: x.operation.bytes}
	}
	p.requests = append(p.requests, request{p.leader, m})
}

func (p *simpleClient) receive(replica uint64, m *wire.Message) {
	switch m.Kind {
	case wire.NewView:
		if m.Leader != 0 && m.Leader != p.leader {
			p.turnTo(m.Leader)
		}
	case wire.Redirect:
		if replica == p.leader {
			p.leader = 0
			if m.Leader != 0 {
				p.turnTo(m.Leader)
			}
		}
	case wire.Refused:
		p.refused(m)
	case wire.ReadDone:
		if p.id == 0 && m.Request == p.request {
			p.id = m.Revision
			p.again(p.leader)
			return
		}
		p.answer(m, func(o *simpleOp) bool { return o.request != 0 && o.request == m.Request })
	case wire.Done:
		p.answer(m, func(o *simpleOp) bool { return o.seq != 0 && o.seq == m.Seq })
	}
}

func (p *simpleClient) answer(m *wire.Message, is func(*simpleOp) bool) {
	for i, x := range p.open {
		if is(x) {
			p.open = append(p.open[:i:i], p.open[i+1:]...)
			p.outcomes = append(p.outcomes, outcome{operation: x.operation, result: m.Data, revision: m.Revision, index: m.Index, view: m.View})
			return
		}
	}
}

func (p *simpleClient) refused(m *wire.Message) {
	if m.Code == wire.CodeBusy || m.Code == wire.CodeNoQuorum || m.Code == wire.CodeDoubt {
		return // it is sent again later
	}
	if m.Code == wire.CodeExpired {
		p.lapse(m)
		return
	}
	for i, x := range p.open {
		if x.seq != 0 && x.seq == m.Seq && m.Session == p.id || x.request != 0 && x.request == m.Request {
			p.open = append(p.open[:i:i], p.open[i+1:]...)
			p.outcomes = append(p.outcomes, outcome{operation: x.operation, failure: "refused: " + string(m.Data), refused: true})
			return
		}
	}
}

// lapse ends the session. A write that was sent once and refused has not happened; the outcome
// of the others is unknown.
func (p *simpleClient) lapse(m *wire.Message) {
	for _, x := range p.open {
		refused := x.times == 0 || x.times == 1 && x.seq == m.Seq && x.seq != 0
		p.outcomes = append(p.outcomes, outcome{operation: x.operation, failure: "the session has expired", refused: refused, lapsed: true})
	}
	p.open, p.lapsed = nil, true
}

func (p *simpleClient) turnTo(leader uint64) {
	for _, r := range p.up {
		if r == leader {
			p.leader = leader
			p.again(leader)
			return
		}
	}
}

func (p *simpleClient) tick() {
	if p.leader == 0 && len(p.up) > 0 {
		p.leader = pick(p.random, p.up)
		p.again(p.leader)
		return
	}
	if p.leader == 0 {
		return
	}
	late := p.id == 0 && p.w.now-p.asked > int64(200*time.Millisecond)
	for _, x := range p.open {
		late = late || p.id != 0 && x.sent != 0 && p.w.now-x.sent > x.patience
	}
	if late {
		p.leader = pick(p.random, p.up)
		p.again(p.leader)
	}
}

func (p *simpleClient) take() ([]request, []outcome) {
	requests, outcomes := p.requests, p.outcomes
	p.requests, p.outcomes = nil, nil
	return requests, outcomes
}
