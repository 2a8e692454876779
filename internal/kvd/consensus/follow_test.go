package consensus

import (
	"math"
	"testing"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// A client that waits for the writes of a session hears from any replica that the session has
// expired; redirects would send it around for ever.
func TestWaitForAnExpiredSession(t *testing.T) {
	r := newRig(t, 3, "curp-ho")
	lead := r.leader()
	s := r.session(lead)
	r.tick(6)
	for _, id := range r.order {
		r.nodes[id].core.state.sessions.expire(math.MaxInt64, func(uint64) {})
	}
	for _, id := range r.order {
		r.deliver(id, wire.Message{Kind: wire.Stable, Session: s, Seq: 1, Request: id})
		r.settle()
		if m := r.one(wire.Refused); m.Code != wire.CodeExpired || m.Request != id || m.Session != s {
			t.Errorf("replica %d: %v", id, &m)
		}
	}
	// A session that was granted later than this replica knows may well exist.
	r.deliver(lead, wire.Message{Kind: wire.Stable, Session: s + 1000, Seq: 1, Request: 9})
	r.settle()
	if m := r.one(wire.Redirect); m.Request != 9 {
		t.Errorf("of a session that is not known yet: %v", &m)
	}
}

// A wait ends when the session's writes are applied where it waits, at once if
// they are, and with an error if the session expires meanwhile.
func TestWaits(t *testing.T) {
	r := newRig(t, 3, "raft-ht")
	lead := r.leader()
	s := r.session(lead)
	r.tick(6)
	near := r.others(lead)[0]
	r.deliver(near, wire.Message{Kind: wire.Stable, Session: s, Seq: 2, Request: 1})
	r.deliver(near, wire.Message{Kind: wire.Stable, Session: s, Seq: 2, Request: 1}) // asked again
	r.settle()
	r.deliver(lead, wire.Message{Kind: wire.Strong, Session: s, Seq: 1, Data: []byte("set a 1")})
	r.tick(6)
	if got := r.take(wire.ReadDone); len(got) > 0 {
		t.Fatalf("answered before the second write: %+v", got)
	}
	r.deliver(lead, wire.Message{Kind: wire.Strong, Session: s, Seq: 2, Data: []byte("set a 2")})
	r.tick(6)
	if m := r.one(wire.ReadDone); m.Request != 1 || m.Stable != 2 || m.Session != s || m.Index == 0 {
		t.Errorf("%v", &m)
	}
	r.deliver(near, wire.Message{Kind: wire.Stable, Session: s, Seq: 2, Request: 2})
	r.settle()
	if m := r.one(wire.ReadDone); m.Request != 2 {
		t.Errorf("%v", &m)
	}
	c := r.nodes[near].core
	r.deliver(near, wire.Message{Kind: wire.Stable, Session: s, Seq: 3, Request: 3})
	c.weak.waiters.expired(c, s)
	r.settle()
	if m := r.one(wire.Refused); m.Request != 3 || m.Code != wire.CodeExpired {
		t.Errorf("%v", &m)
	}
	if len(c.weak.waiters) > 0 {
		t.Errorf("left: %v", c.weak.waiters)
	}
}
