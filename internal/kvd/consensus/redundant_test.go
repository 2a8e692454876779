package consensus

import (
	"testing"

	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// engineMessage decodes what s carries for the engine, nil if it carries nothing.
func engineMessage(t *testing.T, s *Send) *pb.Message {
	t.Helper()
	if s.Message.Kind != wire.Raft {
		return nil
	}
	m := &pb.Message{}
	if err := proto.Unmarshal(s.Message.Data, m); err != nil {
		t.Fatal(err)
	}
	return m
}

// A lone write takes one sync on each replica, and of each follower one answer. How
// far the log is committed goes to them without either.
func TestLoneWriteCostsNoMoreThanItMust(t *testing.T) {
	r := newRig(t, 3, "raft")
	lead := r.leader()
	s := r.session(lead)
	r.tick(1)
	var entries, commits, answers int
	r.lose = func(_ uint64, s *Send) bool {
		switch m := engineMessage(t, s); {
		case m.GetType() == pb.MsgApp && len(m.GetEntries()) > 0:
			entries++
		case m.GetType() == pb.MsgApp:
			commits++
		case m.GetType() == pb.MsgAppResp:
			answers++
		}
		return false
	}
	before := map[uint64]int{}
	for _, id := range r.order {
		before[id] = r.nodes[id].syncs
	}
	r.deliver(lead, wire.Message{Kind: wire.Strong, Session: s, Seq: 1, Data: []byte("set a 1")})
	r.settle()
	r.one(wire.Done)
	if entries != 2 || commits != 2 || answers != 2 {
		t.Errorf("%d messages with entries, %d with the commit index alone, %d answers; want 2 of each", entries, commits, answers)
	}
	for _, id := range r.order {
		if n := r.nodes[id].syncs - before[id]; n != 1 {
			t.Errorf("replica %d: %d syncs, want 1", id, n)
		}
		if got := r.nodes[id].words.m["a"]; got != "1" {
			t.Errorf("replica %d: a = %q", id, got)
		}
	}
}

// While entries are in flight, a message that only says how far earlier ones are committed is
// not sent.
func TestCommitIndexWaitsForTheNextEntries(t *testing.T) {
	r := newRig(t, 3, "raft")
	lead := r.leader()
	l := r.nodes[lead].core
	app := func(entries int, commit uint64) *pb.Message {
		to := lead%3 + 1
		return &pb.Message{Type: pb.MsgApp.Enum(), To: &to, Commit: &commit, Entries: make([]*pb.Entry, entries)}
	}
	last := l.engine.log.lastIndex()
	r.tick(1)
	for _, step := range []struct {
		what      string
		m         *pb.Message
		ticks     int
		redundant bool
	}{
		{"a commit index, nothing sent in this tick", app(0, last-1), 0, false},
		{"entries", app(1, last-1), 0, false},
		{"a commit index, with entries under way", app(0, last-1), 0, true},
		{"the last commit index", app(0, last), 0, false},
		{"a commit index, a tick later", app(0, last-1), 1, false},
	} {
		r.tick(step.ticks)
		if got := l.engine.redundant(step.m); got != step.redundant {
			t.Errorf("%s: redundant %v", step.what, got)
		}
	}
}

// An answer is repeated only in another tick, to another replica, or in another term; a
// rejection always is.
func TestAnswersAreNotRepeated(t *testing.T) {
	r := newRig(t, 3, "raft")
	lead := r.leader()
	f := r.nodes[lead%3+1].core
	answer := func(to, term, index uint64, reject bool) *pb.Message {
		return &pb.Message{Type: pb.MsgAppResp.Enum(), To: &to, Term: &term, Index: &index, Reject: &reject}
	}
	for _, step := range []struct {
		what      string
		m         *pb.Message
		ticks     int
		redundant bool
	}{
		{"the first", answer(lead, f.engine.term, 100, false), 1, false},
		{"again", answer(lead, f.engine.term, 100, false), 0, true},
		{"an older one", answer(lead, f.engine.term, 99, false), 0, true},
		{"a refusal", answer(lead, f.engine.term, 99, true), 0, false},
		{"a newer one", answer(lead, f.engine.term, 101, false), 0, false},
		{"in another term", answer(lead, f.engine.term+1, 101, false), 0, false},
		{"to another leader", answer(9, f.engine.term+1, 101, false), 0, false},
		{"a tick later", answer(9, f.engine.term+1, 101, false), 1, false},
	} {
		f.ticks += uint64(step.ticks)
		if got := f.engine.redundant(step.m); got != step.redundant {
			t.Errorf("%s: redundant %v", step.what, got)
		}
	}
}
