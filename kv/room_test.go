package kv

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirdb/weir/internal/kvd/consensus/session"
	"github.com/weirdb/weir/internal/kvd/wire"
)

// Weak writes that have been answered take room until they are committed. Who
// waits for it must hear of the commit, which ends no operation.
func TestRoomIsMadeByCommits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &Client{sessions: map[uint64]*Session{}, byID: map[uint64]*Session{}, start: time.Now()}
		s := c.newSession()
		tell := func(m wire.Message) {
			s.event(func(p *session.Session, now int64) { p.Receive(now, 1, &m) })
		}
		tell(wire.Message{Kind: wire.ReadDone, Request: 1<<32 + 1, Revision: 7})
		value := make([]byte, 600<<10)
		if err := s.Issue(Put("a", value, Weak()), func(Result, error) {}); err != nil {
			t.Fatal(err)
		}
		tell(wire.Message{Kind: wire.WeakDone, Session: 7, Seq: 1})
		if err := s.Issue(Put("b", value, Weak()), func(Result, error) {}); !errors.Is(err, ErrFull) {
			t.Fatalf("with more than MaxUnstable: %v", err)
		}
		done := make(chan error, 1)
		go func() {
			_, err := s.Do(t.Context(), Put("b", value, Weak()))
			done <- err
		}()
		synctest.Wait()
		tell(wire.Message{Kind: wire.WeakDone, Session: 7, Seq: 1, Stable: 1})
		synctest.Wait()
		tell(wire.Message{Kind: wire.WeakDone, Session: 7, Seq: 2, Stable: 1})
		synctest.Wait()
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
		default:
			t.Fatal("the write waits for room that there is")
		}
	})
}

// The memory of what a session sends and reports is used again.
func TestEventsUseMemoryAgain(t *testing.T) {
	c := &Client{sessions: map[uint64]*Session{}, byID: map[uint64]*Session{}, start: time.Now()}
	s := c.newSession()
	tell := func(m wire.Message) {
		s.event(func(p *session.Session, now int64) { p.Receive(now, 1, &m) })
	}
	s.event(func(p *session.Session, now int64) { p.Connected(now, 1) })
	tell(wire.Message{Kind: wire.ReadDone, Request: 1<<32 + 1, Revision: 7})
	request := uint64(1<<32 + 1)
	once := func() {
		if err := s.Issue(Get("a"), func(Result, error) {}); err != nil {
			panic(err)
		}
		request++
		tell(wire.Message{Kind: wire.ReadDone, Session: 7, Request: request})
	}
	const most = 3 // the operation, its command and what that touches
	if n := testing.AllocsPerRun(100, once); n > most {
		t.Errorf("%v allocations for a read, at most %d", n, most)
	}
	if s.pure.Open() > 0 {
		t.Errorf("%d reads have no answer", s.pure.Open())
	}
}

func TestOpsWithoutOptionsAllocateNothing(t *testing.T) {
	var o Op
	value := []byte("v")
	if n := testing.AllocsPerRun(100, func() { o = Put("a", value); o = Get("a") }); n != 0 {
		t.Errorf("%v allocations for %s and another", n, o.name())
	}
}
