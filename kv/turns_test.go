package kv

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/kvd/consensus/session"
	"github.com/weirdb/weir/internal/kvd/peer"
	"github.com/weirdb/weir/internal/kvd/wire"
	"github.com/weirdb/weir/internal/testkit"
)

// mute takes connections and says nothing.
type mute struct{}

func (mute) Up(peer.Addr, peer.Remote)         {}
func (mute) Down(peer.Addr, error)             {}
func (mute) Receive(peer.Addr, []wire.Message) {}

func (mute) ReceiveSnapshot(uint64, []byte, int64) (peer.SnapshotSink, error) {
	return nil, errors.New("not here")
}

// A program's callback for an operation may take its time. Connections come up and end
// meanwhile, and the sessions are looked after.
func TestReportsHoldNoLinksUp(t *testing.T) {
	var links []*link
	for id := uint64(1); id <= 2; id++ {
		replica, err := peer.Open(peer.Options{ID: id, Cluster: "weir", Listen: "127.0.0.1:0"}, mute{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = replica.Close() }()
		links = append(links, &link{addr: replica.Addr()})
	}
	s := alone()
	s.c.opts.DialTimeout = time.Minute
	s.c.links.Store(&links)
	let := make(chan struct{})
	if err := s.Issue(Put("a", nil), func(Result, error) { <-let }); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock() // of which the session has heard, and its caller has not
	s.pure.Receive(s.c.now(), 1, &wire.Message{Kind: wire.Refused, Code: wire.CodeExpired, Session: 7, Seq: 1})
	s.mu.Unlock()
	done := make(chan error, 4)
	go func() {
		done <- s.c.dial(t.Context(), links[0])
		done <- s.c.dial(t.Context(), links[1])
		s.c.lost(links[0], links[0].conn)
		done <- nil
		s.tend(func(p *session.Session, now int64) { p.Tick(now) })
		done <- nil
	}()
	testkit.Eventually(t, "two links come up, one ends, and the clock ticks", func() bool { return len(done) == cap(done) })
	for range cap(done) {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if s.c.to(1) != nil || s.c.to(2) == nil {
		t.Error("the wrong link has ended")
	}
	close(let)
	s.c.lost(links[1], links[1].conn)
	testkit.Eventually(t, "the report has ended", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return !s.corked
	})
}

// A session that is being closed while its client is does not wait for the cluster.
func TestSessionCloseBesideTheClients(t *testing.T) {
	s := alone()
	life, stop := context.WithCancel(t.Context())
	s.c.life, s.c.stop = life, stop
	if err := s.c.Close(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.finish(context.Background()) }() // which had begun before
	testkit.Eventually(t, "the session's end", func() bool { return len(ended) == 1 })
	if err := <-ended; !errors.Is(err, ErrClosed) {
		t.Errorf("it ended with %v, want ErrClosed", err)
	}
}

// When a client is closed, nothing is reported any more.
func TestCloseWaitsForReports(t *testing.T) {
	s := alone()
	s.c.life, s.c.stop = context.WithCancel(t.Context())
	let, reporting := make(chan struct{}), make(chan struct{})
	if err := s.Issue(Put("a", nil), func(Result, error) { close(reporting); <-let }); err != nil {
		t.Fatal(err)
	}
	s.tend(func(p *session.Session, now int64) {
		p.Receive(now, 1, &wire.Message{Kind: wire.Refused, Code: wire.CodeExpired, Session: 7, Seq: 1})
	})
	<-reporting
	closed := make(chan error, 1)
	go func() { closed <- s.c.Close() }()
	select { // it waits, which nobody can see
	case err := <-closed:
		t.Errorf("the client is closed amid a report (%v)", err)
		closed <- err
	case <-time.After(50 * time.Millisecond):
	}
	close(let)
	if err := <-closed; err != nil {
		t.Error(err)
	}
}
