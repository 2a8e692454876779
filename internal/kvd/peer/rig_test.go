package peer

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/kvd/wire"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
)

func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }

// patience bounds every wait for something that must happen.
const patience = 60 * time.Second

// recorder is a Handler that keeps what it is told.
type recorder struct {
	lock   sync.Mutex
	change *sync.Cond
	up     map[Addr]Remote
	ups    map[Addr]int
	downs  map[Addr][]error
	got    map[Addr][]wire.Message
	calls  int
	broken []string // breaches of Handler's contract

	counting   *counting                          // instead of all that, in benchmarks
	onUp       func(from Addr)                    // called first, if not nil
	onReceive  func(from Addr, ms []wire.Message) // called first, if not nil
	onSnapshot func(from uint64, meta []byte, size int64) (SnapshotSink, error)
}

func newRecorder() *recorder {
	r := &recorder{up: map[Addr]Remote{}, ups: map[Addr]int{}, downs: map[Addr][]error{}, got: map[Addr][]wire.Message{}}
	r.change = sync.NewCond(&r.lock)
	return r
}

func (r *recorder) Up(from Addr, who Remote) {
	r.lock.Lock()
	defer r.lock.Unlock()
	if r.onUp != nil {
		r.onUp(from)
	}
	if _, is := r.up[from]; is {
		r.broken = append(r.broken, fmt.Sprintf("%v is up twice", from))
	}
	r.up[from] = who
	r.ups[from]++
	r.change.Broadcast()
}

func (r *recorder) Receive(from Addr, ms []wire.Message) {
	r.lock.Lock()
	first, count := r.onReceive, r.counting
	r.lock.Unlock()
	if count != nil {
		count.count(len(ms))
		return
	}
	if first != nil {
		first(from, ms)
	}
	r.lock.Lock()
	defer r.lock.Unlock()
	if _, is := r.up[from]; !is {
		r.broken = append(r.broken, fmt.Sprintf("%v sends while it is down", from))
	}
	r.got[from] = append(r.got[from], ms...)
	r.calls++
	r.change.Broadcast()
}

func (r *recorder) Down(from Addr, why error) {
	r.lock.Lock()
	defer r.lock.Unlock()
	if _, is := r.up[from]; !is {
		r.broken = append(r.broken, fmt.Sprintf("%v is down twice", from))
	}
	if why == nil {
		r.broken = append(r.broken, fmt.Sprintf("%v is down for no reason", from))
	}
	delete(r.up, from)
	r.downs[from] = append(r.downs[from], why)
	r.change.Broadcast()
}

func (r *recorder) ReceiveSnapshot(from uint64, meta []byte, size int64) (SnapshotSink, error) {
	r.lock.Lock()
	take := r.onSnapshot
	r.lock.Unlock()
	if take == nil {
		return nil, fmt.Errorf("no snapshot wanted")
	}
	return take(from, meta, size)
}

// await waits until cond, which is called with the lock held, is true.
func (r *recorder) await(t testing.TB, what string, cond func() bool) {
	t.Helper()
	late := time.AfterFunc(patience, func() {
		r.lock.Lock()
		defer r.lock.Unlock()
		r.change.Broadcast()
	})
	defer late.Stop()
	begin := time.Now()
	r.lock.Lock()
	defer r.lock.Unlock()
	for !cond() {
		if time.Since(begin) >= patience {
			t.Fatalf("waited in vain: %s\nup: %v\ndowns: %v", what, slices.Collect(maps.Keys(r.up)), r.downs)
		}
		r.change.Wait()
	}
}

func (r *recorder) awaitUp(t testing.TB, a Addr) {
	t.Helper()
	r.await(t, a.String()+" up", func() bool { _, is := r.up[a]; return is })
}

func (r *recorder) awaitCount(t testing.TB, from Addr, n int) []wire.Message {
	t.Helper()
	r.await(t, fmt.Sprintf("%d messages of %v", n, from), func() bool { return len(r.got[from]) >= n })
	r.lock.Lock()
	defer r.lock.Unlock()
	return slices.Clone(r.got[from])
}

// node is a transport with its recorder.
type node struct {
	*Transport
	*recorder
}

// never is a time that no test takes.
const never = time.Hour

// open starts a transport that ends with the test. It takes no silence amiss, as
// that of a busy machine, unless tweak says so: see impatient.
func open(t testing.TB, id uint64, tweak func(*Options)) *node {
	t.Helper()
	opts := Options{ID: id, Cluster: "test", Listen: "127.0.0.1:0", SilentAfter: never, HandshakeTimeout: never}
	if tweak != nil {
		tweak(&opts)
	}
	r := newRecorder()
	tr, err := Open(opts, r)
	if err != nil {
		t.Fatal(err)
	}
	n := &node{tr, r}
	t.Cleanup(func() { n.shut(t) })
	return n
}

// shut closes a node and checks that its handler was called as promised.
func (n *node) shut(t testing.TB) {
	t.Helper()
	if err := n.Transport.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	n.lock.Lock()
	defer n.lock.Unlock()
	for _, b := range n.broken {
		t.Error(b)
	}
	n.broken = nil
	if len(n.up) > 0 {
		t.Errorf("after Close still up: %v", n.up)
	}
}

// mesh starts replicas 1 to n that are all connected.
func mesh(t testing.TB, n int, tweak func(*Options)) []*node {
	t.Helper()
	nodes := make([]*node, n)
	peers := map[uint64]string{}
	for i := range nodes {
		nodes[i] = open(t, uint64(i+1), tweak)
		peers[uint64(i+1)] = nodes[i].Addr()
	}
	for _, n := range nodes {
		n.SetPeers(peers)
	}
	for i, n := range nodes {
		for j := range nodes {
			if i != j {
				n.awaitUp(t, Addr(j+1))
			}
		}
	}
	return nodes
}

// dialClient connects a client that ends with the test.
func dialClient(t testing.TB, addr string, tweak func(*ClientOptions)) (*Conn, *recorder) {
	t.Helper()
	r := newRecorder()
	opts := ClientOptions{SilentAfter: never, HandshakeTimeout: never, Receive: func(ms []wire.Message) {
		r.lock.Lock()
		defer r.lock.Unlock()
		r.got[0] = append(r.got[0], ms...)
		r.change.Broadcast()
	}}
	if tweak != nil {
		tweak(&opts)
	}
	c, err := Dial(t.Context(), addr, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c, r
}

// seldomPings leaves a connection with the ping of its beginning and its answer
// to that of the other side, however long the test takes.
func seldomPings(o *Options) { o.PingEvery = never }

// firstPings is how many writes they cost at most.
const firstPings = 2

// numbered returns messages that carry the numbers from, from+1, ….
func numbered(from, n int) []wire.Message {
	ms := make([]wire.Message, n)
	for i := range ms {
		ms[i] = wire.Message{Kind: wire.Weak, Session: 7, Seq: uint64(from + i), Data: bytes.Repeat([]byte{byte(from + i)}, (from+i)%200)}
	}
	return ms
}

// checkNumbered demands messages 1 to n, each as numbered made it.
func checkNumbered(t testing.TB, got []wire.Message, n int) {
	t.Helper()
	if len(got) != n {
		t.Errorf("%d messages, want %d", len(got), n)
	}
	for i := range got {
		if want := numbered(i+1, 1)[0]; got[i].Seq != want.Seq || !bytes.Equal(got[i].Data, want.Data) {
			t.Fatalf("message %d is number %d with %d bytes", i+1, got[i].Seq, len(got[i].Data))
		}
	}
}

func mustSend(t testing.TB, send func([]wire.Message) (int, error), ms []wire.Message) {
	t.Helper()
	if n, err := send(ms); n != len(ms) || err != nil {
		t.Fatalf("sent %d of %d: %v", n, len(ms), err)
	}
}

func (n *node) to(a Addr) func([]wire.Message) (int, error) {
	return func(ms []wire.Message) (int, error) { return n.Send(a, ms) }
}

// noGoroutines fails when, in a while, goroutines of this package remain that
// are none of a test's own.
func noGoroutines(t *testing.T) {
	t.Helper()
	var left string
	testkit.Await(t, func() bool {
		buf := make([]byte, 1<<20)
		left = ""
		for _, g := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
			if strings.Contains(g, "/internal/kvd/peer.") && !strings.Contains(g, "testing.tRunner") && !strings.Contains(g, "peer.TestMain") {
				left += g + "\n\n"
			}
		}
		return left == ""
	}, func() string { return "goroutines are left:\n" + left })
}

// on sets what the recorder calls first.
func (r *recorder) on(receive func(from Addr, ms []wire.Message)) {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.onReceive = receive
}

// seen reads what the recorder keeps.
func seen[T any](r *recorder, read func() T) T {
	r.lock.Lock()
	defer r.lock.Unlock()
	return read()
}
