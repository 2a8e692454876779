package kv_test

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/kvd/peer"
	"github.com/weirdb/weir/internal/kvd/wire"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/kv"
)

// actor plays a replica: it tells clients who leads, and answers as a test says.
type actor struct {
	*peer.Transport
	id     uint64
	leader uint64
	answer func(a *actor, from peer.Addr, m *wire.Message)

	ready   chan struct{} // closed when Transport is set
	mu      sync.Mutex
	up      func(from peer.Addr) // nil: nothing more than to tell who leads
	clients []peer.Addr
	came    []wire.Kind
}

func newActor(t *testing.T, id, leader uint64, answer func(*actor, peer.Addr, *wire.Message)) *actor {
	t.Helper()
	a := &actor{id: id, leader: leader, answer: answer, ready: make(chan struct{})}
	transport, err := peer.Open(peer.Options{ID: id, Cluster: "weir", Listen: "127.0.0.1:0"}, a)
	if err != nil {
		t.Fatal(err)
	}
	a.Transport = transport
	close(a.ready)
	t.Cleanup(func() {
		if err := transport.Close(); err != nil {
			t.Error(err)
		}
	})
	return a
}

func (a *actor) Up(from peer.Addr, _ peer.Remote) {
	<-a.ready
	a.mu.Lock()
	a.clients = append(a.clients, from)
	up := a.up
	a.mu.Unlock()
	a.tell(from, wire.Message{Kind: wire.NewView, View: 1, Leader: a.leader})
	if up != nil {
		up(from)
	}
}

func (a *actor) Down(peer.Addr, error) {}

func (a *actor) Receive(from peer.Addr, ms []wire.Message) {
	<-a.ready
	for i := range ms {
		a.mu.Lock()
		a.came = append(a.came, ms[i].Kind)
		a.mu.Unlock()
		a.answer(a, from, &ms[i])
	}
}

func (a *actor) ReceiveSnapshot(uint64, []byte, int64) (peer.SnapshotSink, error) {
	return nil, errors.New("an actor takes no snapshot")
}

// tell sends a message; a client that has gone has no use for it.
func (a *actor) tell(to peer.Addr, m wire.Message) {
	_, _ = a.Send(to, []wire.Message{m})
}

// heard is how many messages of a kind have come.
func (a *actor) heard(kind wire.Kind) (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, k := range a.came {
		if k == kind {
			n++
		}
	}
	return n
}

func silent(*actor, peer.Addr, *wire.Message) {}

// A client that was not told where the leader is, because the replica that it asked could
// not say, asks again, though the leader does not change.
func TestAnUnknownLeaderIsSoughtAgain(t *testing.T) {
	t.Parallel()
	leader := newActor(t, 2, 2, silent)
	other := newActor(t, 1, 2, func(a *actor, from peer.Addr, m *wire.Message) {
		if m.Kind != wire.Inspect {
			return
		}
		state := []byte("no members yet")
		if a.heard(wire.Inspect) > 2 {
			state, _ = json.Marshal(map[string]any{"Members": []kv.Member{{ID: 2, Addr: leader.Addr()}}})
		}
		a.tell(from, wire.Message{Kind: wire.ReadDone, Request: m.Request, Data: state})
	})
	c, err := kv.Open(within(t), []string{other.Addr()}, kv.Options{})
	check(t, err, nil)
	defer func() { check(t, c.Close(), nil) }()
	testkit.Eventually(t, "the client is connected to the leader", func() bool {
		up, _ := c.Replicas()
		return up[2] != ""
	})
}

// A replica that takes connections and ends them at once is not asked for one after the other
// without a pause.
func TestAReplicaThatEndsConnectionsIsLeftInPeace(t *testing.T) {
	t.Parallel()
	good := newActor(t, 1, 1, silent)
	ends := newActor(t, 2, 1, silent)
	ends.mu.Lock()
	ends.up = func(from peer.Addr) { ends.Disconnect(from, errors.New("not now")) }
	ends.mu.Unlock()
	began := time.Now()
	c, err := kv.Open(within(t), []string{good.Addr(), ends.Addr()}, kv.Options{})
	check(t, err, nil)
	defer func() { check(t, c.Close(), nil) }()
	testkit.Eventually(t, "the replica has ended seven connections", func() bool {
		ends.mu.Lock()
		defer ends.mu.Unlock()
		return len(ends.clients) >= 7
	})
	if took := time.Since(began); took < 600*time.Millisecond { // 10 + 20 + ... + 320
		t.Errorf("seven connections within %v", took)
	}
}

// A program that waits for one operation where it hears of another holds up the answers of
// a replica. It can close the client nevertheless.
func TestCloseWhileACallbackWaits(t *testing.T) {
	replica := newActor(t, 1, 1, func(a *actor, from peer.Addr, m *wire.Message) {
		if m.Kind == wire.Read && a.heard(wire.Read) == 1 {
			a.tell(from, wire.Message{Kind: wire.ReadDone, Request: m.Request})
		}
	})
	c, err := kv.Open(within(t), []string{replica.Addr()}, kv.Options{})
	check(t, err, nil)
	other := c.NewSession()
	ended := make(chan error, 1)
	issued := make(chan error, 1)
	go func() { // which may have to deliver the answer
		issued <- c.Issue(kv.Get("a"), func(kv.Result, error) {
			_, err := other.Do(context.Background(), kv.Get("b"))
			ended <- err
		})
	}()
	testkit.Eventually(t, "the second operation is under way", func() bool { return replica.heard(wire.Read) > 1 })
	closed := make(chan error, 1)
	go func() { closed <- c.Close() }()
	testkit.Eventually(t, "the client is closed", func() bool { return len(closed) == 1 })
	check(t, <-closed, nil)
	check(t, <-ended, kv.ErrClosed)
	check(t, <-issued, nil)
}

// A change of the members that its leader does not answer, because it was stopped or has
// gone, is asked for again: it is a success if it was made.
func TestConfigureOutlivesItsLeader(t *testing.T) {
	for name, end := range map[string]func(a *actor, from peer.Addr){
		"stopped": func(*actor, peer.Addr) {},
		"gone":    func(a *actor, from peer.Addr) { a.Disconnect(from, errors.New("the replica ends")) },
	} {
		t.Run(name, func(t *testing.T) {
			var next *actor
			done := func(a *actor, from peer.Addr, m *wire.Message) {
				if m.Kind == wire.Configure {
					a.tell(from, wire.Message{Kind: wire.ReadDone, Request: m.Request})
				}
			}
			first := newActor(t, 1, 1, func(a *actor, from peer.Addr, m *wire.Message) {
				if m.Kind != wire.Configure {
					return
				}
				end(a, from)
				next.mu.Lock()
				clients := next.clients
				next.mu.Unlock()
				for _, client := range clients {
					next.tell(client, wire.Message{Kind: wire.NewView, View: 2, Leader: 2})
				}
			})
			next = newActor(t, 2, 1, done)
			c, err := kv.Open(within(t), []string{first.Addr(), next.Addr()}, kv.Options{})
			check(t, err, nil)
			defer func() { check(t, c.Close(), nil) }()
			testkit.Eventually(t, "both are connected", func() bool {
				next.mu.Lock()
				defer next.mu.Unlock()
				up, _ := c.Replicas()
				return len(up) == 2 && len(next.clients) == 1
			})
			check(t, c.Configure(within(t), kv.MemberChange{Kind: kv.Remove, Member: kv.Member{ID: 3}}), nil)
			if first.heard(wire.Configure) == 0 || next.heard(wire.Configure) == 0 {
				t.Errorf("the first leader was asked %d times, the next one %d times", first.heard(wire.Configure), next.heard(wire.Configure))
			}
		})
	}
}
