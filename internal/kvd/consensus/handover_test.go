package consensus

import (
	"testing"

	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// handover is a cluster whose leader has asked a replica to take over. The
// request is on its way; nothing else is, or was lost.
type handover struct {
	*rig
	lead, heir uint64
	term       uint64
	request    wire.Message
}

func newHandover(t *testing.T) *handover {
	t.Helper()
	h := &handover{rig: newRig(t, 3, "raft")}
	h.lead = h.leader()
	h.heir = h.lead%3 + 1
	h.term = h.nodes[h.lead].core.engine.term
	h.tick(10)
	h.lose = func(_ uint64, s *Send) bool {
		m := &pb.Message{}
		if s.Message.Kind != wire.Raft || proto.Unmarshal(s.Message.Data, m) != nil || m.GetType() != pb.MsgTimeoutNow {
			return false
		}
		h.request = s.Message
		return true
	}
	g := Change{Kind: Transfer, Member: Member{ID: h.heir}}
	h.deliver(h.lead, wire.Message{Kind: wire.Configure, Request: 3, Data: g.Append(nil)})
	h.settle()
	if h.request.Kind == 0 {
		t.Fatal("nobody was asked to take over")
	}
	return h
}

// arrives delivers the request, late, and reports whether the replica stood.
func (h *handover) arrives() bool {
	h.t.Helper()
	m := h.request
	h.nodes[h.heir].core.Deliver(h.now, Addr(h.lead), &m)
	h.settle()
	return h.nodes[h.heir].core.engine.term > h.term
}

// leased reports that the leader would answer a read by itself.
func (h *handover) leased() bool {
	l := h.nodes[h.lead].core.lead
	return l != nil && l.lease.held()
}

func TestRequestToTakeOver(t *testing.T) {
	h := newHandover(t)
	if h.leased() {
		t.Error("a lease while somebody is asked to take over")
	}
	if !h.arrives() {
		t.Error("a replica that is asked to take over does not stand for election")
	}
}

// When the replica has answered a later stamp, the leader has its lease again,
// and the replica no longer takes over.
func TestLeaseAfterAHandoverThatFailed(t *testing.T) {
	h := newHandover(t)
	h.cut[[2]uint64{h.heir, h.lead}] = true // what it answers does not come through
	h.tick(10)
	if h.leased() {
		t.Error("a lease without an answer of who was asked to take over")
	}
	delete(h.cut, [2]uint64{h.heir, h.lead})
	h.tick(10)
	if !h.leased() {
		t.Error("no lease though who was asked to take over has answered since")
	}
	if h.arrives() {
		t.Error("a replica takes over though it has answered a later stamp")
	}
}

// An answer to a stamp that was sent before the request says nothing.
func TestAnswersFromBeforeTheRequest(t *testing.T) {
	h := newHandover(t)
	l := h.nodes[h.lead].core.lead
	l.lease.echo(h.heir, &wire.Message{Time: h.request.Time, Count: h.request.Count, Stable: uint64(l.c.election.electionNanos())})
	l.lease.echo(h.heir, &wire.Message{Time: h.request.Time - 1, Count: h.request.Count, Stable: uint64(l.c.election.electionNanos())})
	if len(l.lease.successors) != 1 {
		t.Error("the lease is back by an answer from before the request")
	}
	l.lease.echo(6-h.lead-h.heir, &wire.Message{Time: h.request.Time + 1, Count: 1, Stable: uint64(l.c.election.electionNanos())})
	if len(l.lease.successors) != 1 {
		t.Error("the lease is back by the answer of another replica")
	}
}

// A request from before a restart does not reach the replica's next life, which does not
// remember the stamps that the last one answered.
func TestRequestOfAFormerLife(t *testing.T) {
	h := newHandover(t)
	h.now.Mono++
	h.start(h.heir, h.nodes[h.heir].core.cfg)
	if h.arrives() {
		t.Error("a replica takes over that was asked before it restarted")
	}
	h.tick(1)
	if h.arrives() {
		t.Error("a replica takes over that was asked before it restarted, with a stamp heard since")
	}
	h.tick(10)
	if !h.leased() {
		t.Error("no lease though the restarted replica has answered")
	}
	// It can be asked again.
	g := Change{Kind: Transfer, Member: Member{ID: h.heir}}
	h.tick(40) // the engine has given the first attempt up
	h.deliver(h.lead, wire.Message{Kind: wire.Configure, Request: 4, Data: g.Append(nil)})
	h.settle()
	if !h.arrives() {
		t.Error("a restarted replica cannot take over")
	}
}

// A request of another term is not for the replica of this one.
func TestRequestOfAnotherTerm(t *testing.T) {
	h := newHandover(t)
	s := &h.nodes[h.heir].core.election
	for _, term := range []uint64{h.term - 1, h.term + 1} {
		if s.mayTakeOver(term, &h.request) {
			t.Errorf("a request of term %d is taken in term %d", term, h.term)
		}
	}
	if !s.mayTakeOver(h.term, &h.request) {
		t.Error("the request is not taken")
	}
}
