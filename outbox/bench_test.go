package outbox

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
)

// countSink confirms everything at once.
type countSink struct {
	n, want atomic.Int64
	done    chan struct{}
}

func (s *countSink) Publish(_ context.Context, msgs []Message) []error {
	if s.n.Add(int64(len(msgs))) == s.want.Load() {
		close(s.done)
	}
	return nil
}
func (s *countSink) Close() error { return nil }

// pageLease serves an endless backlog out of one page, to measure the relay
// without a database.
type pageLease struct {
	memLease
	rows []Row
	left int
}

func (l *pageLease) Read(_ context.Context, req ReadRequest) (Page, error) {
	n := min(req.Limit, l.left, len(l.rows))
	for i := range l.rows[:n] {
		l.rows[i].Seq = req.After + 1 + int64(i)
	}
	l.left -= n
	return Page{l.rows[:n], l.left > 0}, nil
}
func (l *pageLease) Ack(context.Context, []Ref) error { return nil }

type pageStore struct {
	*memStore
	lease *pageLease
}

func (s *pageStore) Lead(context.Context, int) (Lease, error) { return s.lease, nil }

// BenchmarkRelay is what a message costs in the relay alone.
func BenchmarkRelay(b *testing.B) {
	b.ReportAllocs()
	store := newMemStore()
	lease := &pageLease{memLease: memLease{s: store, lost: make(chan struct{})}, left: b.N}
	for i := range readLimit {
		lease.rows = append(lease.rows, Row{Message: Message{Topic: "t", Key: fmt.Sprint(i % 100), Payload: make([]byte, 512)}})
	}
	sink := &countSink{done: make(chan struct{})}
	sink.want.Store(int64(b.N))
	r, err := NewRelay(&pageStore{store, lease}, sink, Config{Claim: Poll})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	select {
	case err := <-done:
		b.Fatal(err)
	case <-sink.done:
	}
	b.StopTimer()
	cancel()
	<-done
}
