package session

import (
	"testing"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// started is a registered session that knows three replicas, of which the first
// leads view 2 with all switches on.
func started(t *testing.T, cfg Config) *Session {
	t.Helper()
	s := New(cfg)
	for id := uint64(1); id <= 3; id++ {
		s.Connected(1, id)
	}
	const everything = 1 | 2<<1 | 2<<3 // curp-ho, as consensus.Switches encodes it
	s.Receive(1, 1, &wire.Message{Kind: wire.NewView, View: 2, Leader: 1, Code: everything})
	s.Receive(1, 1, &wire.Message{Kind: wire.ReadDone, Request: 1, Revision: 7})
	if s.ID() != 7 {
		t.Fatalf("session id %d", s.ID())
	}
	s.Take()
	return s
}

// set issues a write and returns what is sent.
func set(t *testing.T, s *Session, key string, size int, weak bool) []Send {
	t.Helper()
	if err := s.Write(1, 1, wire.Command{Verb: wire.Set, Key: key, Value: make([]byte, size)}, weak); err != nil {
		t.Fatal(err)
	}
	sends, _ := s.Take()
	return sends
}

// Weak writes that a fast write brings along are sent to all replicas with each of them.
func TestLongBundlesGoThroughTheLog(t *testing.T) {
	s := started(t, Config{Fast: Always})
	set(t, s, "a", 40<<10, true)
	if sends := set(t, s, "b", 1, false); len(sends) != 3 || len(sends[0].Message.Bundle) != 1 {
		t.Fatalf("a write after a weak one goes to %d replicas with a bundle of %d, want 3 and 1", len(sends), len(sends[0].Message.Bundle))
	}
	set(t, s, "c", 40<<10, true)
	sends := set(t, s, "d", 1, false)
	if len(sends) != 1 || sends[0].Message.Flags&wire.FlagFast != 0 {
		t.Fatalf("a write after 80 KiB of weak ones goes to %d replicas", len(sends))
	}
	if n := len(sends[0].Message.Bundle); n != 2 {
		t.Fatalf("it brings %d writes along, want the 2 weak ones", n)
	}
}

// Requests of a session that replaces an expired one have the same numbers.
func TestWaitOfAnotherSession(t *testing.T) {
	s := started(t, Config{})
	set(t, s, "a", 1, false)
	if err := s.Wait(1, 9); err != nil {
		t.Fatal(err)
	}
	sends, _ := s.Take()
	answer := wire.Message{Kind: wire.ReadDone, Session: 5, Request: sends[0].Message.Request, Stable: 1}
	s.Receive(1, 1, &answer)
	if _, ended := s.Take(); len(ended) != 0 {
		t.Fatalf("the answer to another session ends %+v", ended)
	}
	answer.Session = s.ID()
	s.Receive(1, 1, &answer)
	if _, ended := s.Take(); len(ended) != 1 || ended[0].Tag != 9 {
		t.Fatalf("ended: %+v", ended)
	}
}
