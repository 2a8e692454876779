package cache_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/proxy/cache"
)

// A session is what a Client needs, run by hand.
type session struct {
	posted          []func()
	awaits, resumes int
	gone            bool
	client          cache.Client
	wants           cache.Query
	t               *testing.T
}

func (s *session) Post(f func()) { s.posted = append(s.posted, f) }
func (s *session) Await()        { s.awaits++ }
func (s *session) Resume()       { s.resumes++ }
func (s *session) Gone() bool    { return s.gone }

// run calls what was posted.
func (s *session) run() {
	for _, f := range s.posted {
		f()
	}
	s.posted = nil
}

// ask asks, and fails the test unless the role and the answer are these.
func (s *session) ask(want cache.Role, answer string) {
	s.t.Helper()
	q := s.wants
	role, a, _ := s.client.Ask(&q)
	got := ""
	if a != nil {
		got = string(a.Bytes)
	}
	if role != want || got != answer {
		s.t.Errorf("role %v, answer %q; want %v, %q", role, got, want, answer)
	}
}

// two returns a cache with two sessions that want the same.
func two(t *testing.T) (a, b *session) {
	c := cache.New()
	c.Configure(1<<20, 1<<16)
	sessions := [2]*session{}
	for i := range sessions {
		s := &session{t: t, wants: cache.Query{Key: []byte("k"), Database: c.Of("d"), TTL: time.Second, Now: time.Minute}}
		s.client = cache.NewClient(c, s)
		sessions[i] = s
	}
	return sessions[0], sessions[1]
}

func TestClientIsGivenTheAnswerThatItHasWaitedFor(t *testing.T) {
	t.Parallel()
	a, b := two(t)
	a.ask(cache.Lead, "")
	f := a.client.Made()
	if f == nil || a.client.Made() != nil || !a.client.Leads() {
		t.Fatal("the flight is not given once, to the unit that is made")
	}
	b.ask(cache.Follow, "")
	if b.awaits != 1 || !b.client.Waits() {
		t.Fatal("the session was not told to wait")
	}
	b.client.Wrote() // does not change what it waits for
	a.client.Ended()
	f.Keep([]byte("one"), 1, nil)
	if b.resumes != 0 {
		t.Fatal("the session was resumed on another's goroutine")
	}
	b.run()
	if b.resumes != 1 || b.client.Waits() {
		t.Fatal("the session was not resumed")
	}
	b.ask(cache.Shared, "one")
	b.ask(cache.Lead, "") // it has written since that was fetched
}

func TestClientRunsItsStatementAfterAFailedFlight(t *testing.T) {
	t.Parallel()
	a, b := two(t)
	a.ask(cache.Lead, "")
	b.ask(cache.Follow, "")
	a.client.Made().Fail()
	b.run()
	b.ask(cache.Direct, "")
}

func TestClientAsksAgainAfterAnAbandonedFlight(t *testing.T) {
	t.Parallel()
	a, b := two(t)
	a.ask(cache.Lead, "")
	b.ask(cache.Follow, "")
	a.client.Leave((*cache.Flight).Leave)
	b.run()
	b.ask(cache.Lead, "")
}

func TestClientKeepsItsFlightWhileItWaitsForAConnection(t *testing.T) {
	t.Parallel()
	a, b := two(t)
	a.ask(cache.Lead, "")
	a.ask(cache.Direct, "") // looked at again
	if a.client.Made() == nil {
		t.Fatal("the flight is lost")
	}
	a.wants.Key = []byte("another")
	a.ask(cache.Lead, "") // and the first flight is left to others
	b.ask(cache.Lead, "")
}

func TestClientThatDoesNotWaitAnyMoreIsNotResumed(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(s *session){
		"cancelled": func(s *session) { s.client.Cancel() },
		"left":      func(s *session) { s.client.Leave((*cache.Flight).Leave) },
		"gone":      func(s *session) { s.gone = true },
	} {
		a, b := two(t)
		a.ask(cache.Lead, "")
		b.ask(cache.Follow, "")
		stop(b)
		a.client.Made().Keep([]byte("one"), 1, nil)
		b.run()
		if b.resumes != 0 {
			t.Errorf("%s: the session was resumed", name)
		}
		if name != "gone" {
			b.ask(cache.Hit, "one") // as anybody is
		}
	}
}

func TestClientThatGivesUpRunsItsStatement(t *testing.T) {
	t.Parallel()
	a, b := two(t)
	a.ask(cache.Lead, "")
	b.ask(cache.Follow, "")
	b.client.GiveUp()
	if b.resumes != 1 {
		t.Fatal("the session was not resumed")
	}
	b.ask(cache.Direct, "")
	b.client.GiveUp() // waits for nothing
	if b.resumes != 1 {
		t.Error("a session that does not wait was resumed")
	}
}

func TestClientRefusesLongKeys(t *testing.T) {
	t.Parallel()
	a, _ := two(t)
	q := a.wants
	q.Key = bytes.Repeat([]byte("k"), cache.MaxKey+1)
	if role, _, _ := a.client.Ask(&q); role != cache.Direct || q.Why != cache.SkipKey {
		t.Errorf("role %v, why %v; want Direct, SkipKey", role, q.Why)
	}
}
