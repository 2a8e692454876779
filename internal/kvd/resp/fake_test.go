package resp_test

import (
	"context"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/kvd/resp"
	"github.com/weirdb/weir/internal/kvd/state"
	"github.com/weirdb/weir/internal/kvd/wire"
)

// fakeStore is a cluster of one: a state.Store whose operations commit at once.
// Requests are kept while held is set, and then executed at release.
type fakeStore struct {
	mu       sync.Mutex
	store    *state.Store
	revision uint64
	clock    func() int64
	held     bool
	waiting  []heldRequest
	fail     error // completes requests instead of the store
	server   *resp.Server
	status   atomic.Pointer[resp.Status]
	seen     []seenRequest
	sessions []*fakeSession
	replicas int // that WAIT finds
	late     chan heldRequest
}

// countRequests makes WAIT answer how many requests were handed in before it.
const countRequests = -1

// heldRequest is a request, of whose command only the encoded form is still good.
type heldRequest struct {
	session *fakeSession
	command []byte
	write   bool
	request resp.Request
}

// seenRequest is what a test looks at afterwards.
type seenRequest struct {
	verb  wire.Verb
	level resp.Level
	blind bool
}

type fakeSession struct {
	store   *fakeStore
	replies resp.Replies
	view    uint64
	index   uint64
	closed  atomic.Bool
}

func newFakeStore() *fakeStore {
	f := &fakeStore{
		store:    state.New(state.Config{Changes: 16}),
		clock:    func() int64 { return time.Now().UnixNano() },
		replicas: 2,
	}
	f.store.SetFormat(wire.FormatOverflow)
	f.status.Store(&resp.Status{
		ID: 1, Leader: 1, Term: 3, View: 3, Preset: "raft-ht", Version: "test",
		Members: []resp.Member{
			{ID: 1, Resp: "127.0.0.1:7001", Voter: true, Up: true, Applied: 10},
			{ID: 2, Resp: "127.0.0.1:7002", Voter: true, Up: true, Applied: 9},
			{ID: 3, Resp: "127.0.0.1:7003", Voter: true, Up: false, Applied: 7},
		},
	})
	return f
}

func (f *fakeStore) Open(replies resp.Replies) resp.Session {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := &fakeSession{store: f, replies: replies, view: 3}
	f.sessions = append(f.sessions, s)
	return s
}

func (f *fakeStore) Status() *resp.Status { return f.status.Load() }

func (s *fakeSession) Do(batch []resp.Request) {
	f := s.store
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range batch {
		r := heldRequest{s, batch[i].Command.Append(nil), batch[i].Command.Verb.IsWrite(), batch[i]}
		r.request.Command = wire.Command{}
		var print wire.Footprint
		batch[i].Command.Footprint(&print)
		f.seen = append(f.seen, seenRequest{batch[i].Command.Verb, batch[i].Level, print.Blind})
		if f.late != nil {
			f.late <- r
			continue
		}
		if f.held {
			f.waiting = append(f.waiting, r)
			continue
		}
		f.execute(r)
	}
}

// execute completes one request; f.mu is held.
func (f *fakeStore) execute(r heldRequest) {
	result, err := f.outcome(r)
	r.request.Reply.Done(result, err)
}

// outcome applies or evaluates one request; f.mu is held.
func (f *fakeStore) outcome(r heldRequest) (wire.Result, error) {
	if f.fail != nil {
		return wire.Result{}, f.fail
	}
	r.session.index++
	now := f.clock()
	if !r.write {
		f.apply(now, nil, nil) // what is due goes
		return wire.ParseResult(f.store.Evaluate(now, nil, r.command))
	}
	result, err := wire.ParseResult(f.apply(now, r.command, r.session))
	result.Revision = f.revision
	return result, err
}

// delay executes requests on a goroutine of its own, in order, and completes
// each a random while later, out of order, until stop is called.
func (f *fakeStore) delay(r *rand.Rand) (stop func()) {
	requests, ended := make(chan heldRequest, 1<<16), make(chan struct{})
	f.mu.Lock()
	f.late = requests
	f.mu.Unlock()
	type completion struct {
		heldRequest
		result wire.Result
		err    error
	}
	go func() {
		defer close(ended)
		var open []completion
		complete := func(i int) {
			open[i].request.Reply.Done(open[i].result, open[i].err)
			open[i].session.replies.Flush()
			open[i] = open[len(open)-1]
			open = open[:len(open)-1]
		}
		for request := range requests {
			f.mu.Lock()
			result, err := f.outcome(request)
			f.mu.Unlock()
			open = append(open, completion{request, result, err})
			for len(open) > 0 && (len(requests) == 0 || r.IntN(2) == 0) {
				complete(r.IntN(len(open)))
				if r.IntN(4) == 0 {
					runtime.Gosched()
				}
			}
		}
	}()
	return func() {
		close(requests)
		<-ended
	}
}

func (f *fakeStore) apply(now int64, command []byte, origin resp.Session) []byte {
	f.revision++
	result := f.store.Apply(f.revision, now, command)
	changes := f.store.Changes()
	if f.server == nil || !f.server.Interested() || len(changes) == 0 {
		return result
	}
	var told []resp.Change
	for _, c := range changes {
		told = append(told, resp.Change{
			Change: wire.Change{Kind: wire.ChangeKind(c.Kind), Key: c.Key, Value: c.Value, Revision: c.Revision},
			Origin: origin,
		})
	}
	f.server.Changed(told)
	return result
}

// hold keeps requests back.
func (f *fakeStore) hold() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.held = true
}

// release executes what was kept back, completes it in the order that order
// gives, and lets the rest through.
func (f *fakeStore) release(order func(n int) []int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.held = false
	for _, i := range order(len(f.waiting)) {
		f.execute(f.waiting[i])
		f.waiting[i].session.replies.Flush()
	}
	f.waiting = nil
}

// heldCount is how many requests are kept back.
func (f *fakeStore) heldCount() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.waiting)
}

func (s *fakeSession) Wait(replicas int, _ time.Duration, reply *resp.Reply) {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	n := s.store.replicas
	if n == countRequests {
		n = len(s.store.seen)
	}
	reply.Done(wire.Result{Number: int64(n)}, nil)
}

func (s *fakeSession) Token() (view, index uint64) {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	return s.view, s.index
}

func (s *fakeSession) Advance(view, index uint64) {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	s.view, s.index = view, index
}

func (s *fakeSession) Resume() {}

func (s *fakeSession) Close() { s.closed.Store(true) }

// serve starts a server on a loopback address and ends it with the test.
func serve(tb testing.TB, backend resp.Backend, cfg resp.Config) (*resp.Server, string) {
	tb.Helper()
	s, err := resp.New(backend, cfg)
	if err != nil {
		tb.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, ln) }()
	tb.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			tb.Error(err)
		}
	})
	return s, ln.Addr().String()
}

// serveFake serves a fakeStore.
func serveFake(tb testing.TB, cfg resp.Config) (*fakeStore, string) {
	tb.Helper()
	f := newFakeStore()
	s, addr := serve(tb, f, cfg)
	f.mu.Lock()
	f.server = s
	f.mu.Unlock()
	return f, addr
}
