package consensus

import (
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// ask asks the leader for a change and waits for the answer, "" if it is in force.
func (r *rig) ask(g Change) string {
	r.t.Helper()
	r.inbox = nil
	r.deliver(r.leader(), wire.Message{Kind: wire.Configure, Request: 78, Data: g.Append(nil)})
	for range 300 {
		r.tick(1)
		for _, m := range r.inbox {
			if m.Request == 78 && m.Kind == wire.Refused {
				return string(m.Data)
			}
			if m.Request == 78 && m.Kind == wire.ReadDone {
				return ""
			}
		}
	}
	r.t.Fatalf("no answer to %+v", g)
	return ""
}

// A learner that never ran, or that has stopped, does not become a voter, however short the log
// is; nor does one that lacks a single entry, which may be a round of any size.
func TestALearnerMustShowThatItHasCaughtUp(t *testing.T) {
	for _, kind := range []ChangeKind{Promote, Replace} {
		r := newRig(t, 3, "raft")
		lead := r.leader()
		old := lead%3 + 1
		g := Change{Kind: kind, Member: Member{ID: 4}}
		if kind == Replace {
			g.Old = old
		}
		if why := r.ask(Change{Kind: AddLearner, Member: Member{ID: 4, Addr: "nowhere"}}); why != "" {
			t.Fatal(why)
		}
		if why := r.ask(g); !strings.Contains(why, "replica 4 does not answer") {
			t.Errorf("change %v of a replica that never ran: %q", kind, why)
		}
		if got := len(r.nodes[lead].core.state.members.voters()); got != 3 {
			t.Fatalf("%d voters", got)
		}

		// It comes, and answers, but the entries do not arrive.
		cfg := r.nodes[1].core.cfg
		cfg.ID, cfg.Members = 4, nil
		r.nodes[4] = &rigNode{}
		r.order = append(r.order, 4)
		r.start(4, cfg)
		r.tick(20)
		s := r.session(lead)
		r.nodes[4].stuck = true // what it gets is not on its disk
		r.deliver(lead, wire.Message{Kind: wire.Strong, Session: s, Seq: 1, Data: []byte("set a b")})
		r.tick(5)
		if why := r.ask(g); !strings.Contains(why, "try again when it has caught up") {
			t.Errorf("change %v of a replica that lacks one entry: %q", kind, why)
		}
		r.nodes[4].stuck = false
		r.tick(5)
		if why := r.ask(g); why != "" {
			t.Errorf("change %v of a replica that has caught up: %q", kind, why)
		}
	}
}

// A client that repeats a request for a change has not received the answer: it gets the same
// one.
func TestChangesMayBeAskedForAgain(t *testing.T) {
	r := newRig(t, 3, "raft")
	lead := r.leader()
	old := lead%3 + 1
	r.joins(4)
	r.joins(5)
	for _, g := range []Change{
		{Kind: AddLearner, Member: Member{ID: 4, Addr: "new"}},
		{Kind: Replace, Member: Member{ID: 4}, Old: old},
		{Kind: Promote, Member: Member{ID: 5}},
		{Kind: Remove, Member: Member{ID: 5}},
		{Kind: Transfer, Member: Member{ID: lead}},
	} {
		for i := range 3 {
			if why := r.ask(g); why != "" {
				t.Errorf("%+v, asked for the %d. time: %q", g, i+1, why)
			}
		}
	}
	// A change that ended otherwise is no success.
	for words, g := range map[string]Change{
		"is a member already, at new": {Kind: AddLearner, Member: Member{ID: 4, Addr: "elsewhere"}},
		"never used again":            {Kind: AddLearner, Member: Member{ID: 5, Addr: "new"}},
		"replica 4 is not a learner":  {Kind: Replace, Member: Member{ID: 4}, Old: lead},
		"replica 9 is not a member":   {Kind: Remove, Member: Member{ID: 9}},
	} {
		if why := r.ask(g); !strings.Contains(why, words) {
			t.Errorf("%+v: %q, want %q", g, why, words)
		}
	}
}
