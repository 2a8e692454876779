package kv

import (
	"errors"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/kvd/consensus/session"
	"github.com/weirdb/weir/internal/kvd/wire"
)

// alone is a session of a client that has no connections.
func alone() *Session {
	c := &Client{sessions: map[uint64]*Session{}, byID: map[uint64]*Session{}, start: time.Now()}
	s := c.newSession()
	s.pure = session.New(session.Config{ID: 7, Requests: s.number << 32})
	return s
}

// A session that has expired gives way to a new one. What had ended with it, and was
// about to be reported, is reported: a program that never hears of its write would write
// again.
func TestOutcomesOfAnExpiredSession(t *testing.T) {
	s := alone()
	var first error
	if err := s.Issue(Put("a", nil), func(_ Result, err error) { first = err }); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.corked = true // another goroutine reports at this moment
	s.pure.Receive(s.c.now(), 1, &wire.Message{Kind: wire.Refused, Code: wire.CodeExpired, Session: 7, Seq: 1})
	s.mu.Unlock()
	if err := s.Issue(Put("b", nil), func(Result, error) {}); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.corked = false
	s.after() // which it goes on with
	if !errors.Is(first, ErrExpired) {
		t.Errorf("the first write ended with %v, want ErrExpired", first)
	}
}

// Before the first write after a long time the session is replaced: the cluster may
// have forgotten the old one.
func TestSessionIsRenewedAfterLong(t *testing.T) {
	s := alone()
	s.c.start = time.Now().Add(-2 * idleForLong)
	old := s.pure
	issue := func() {
		t.Helper()
		if err := s.Issue(Put("a", nil), func(Result, error) {}); err != nil {
			t.Fatal(err)
		}
	}
	s.used = 1
	issue()
	if s.pure == old {
		t.Error("the session is the one that was idle for long")
	}
	young := s.pure
	s.used = 1
	issue() // the first is under way: nobody knows yet how it ends
	if s.pure != young {
		t.Error("a session was replaced while a write of it was under way")
	}
}
