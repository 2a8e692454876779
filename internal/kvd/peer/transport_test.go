package peer

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/kvd/wire"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
)

func TestReplicasKnowEachOtherWhenUp(t *testing.T) {
	nodes := mesh(t, 2, func(o *Options) {
		id := o.ID
		o.Position = func() (uint64, uint64) { return 10 * id, 100 * id }
	})
	for i, n := range nodes {
		other := nodes[1-i]
		n.lock.Lock()
		who := n.up[Addr(other.opts.ID)]
		n.lock.Unlock()
		if who.ID != other.opts.ID || who.Address != other.Addr() || who.Instance != other.Instance() ||
			who.Term != 10*who.ID || who.Index != 100*who.ID || who.From == nil || who.TLS != nil {
			t.Errorf("replica %d says of the other: %+v", i+1, who)
		}
	}
}

func TestMessagesArriveOnceAndInOrder(t *testing.T) {
	const each = 5000
	nodes := mesh(t, 3, seldomPings)
	var sending sync.WaitGroup
	for i, from := range nodes {
		for j := range nodes {
			if i == j {
				continue
			}
			sending.Go(func() {
				random := rand.New(rand.NewPCG(uint64(i), uint64(j)))
				for next := 1; next <= each; {
					n := min(1+random.IntN(300), each+1-next)
					mustSend(t, from.to(Addr(j+1)), numbered(next, n))
					next += n
				}
			})
		}
	}
	sending.Wait()
	for i, n := range nodes {
		for j := range nodes {
			if i != j {
				checkNumbered(t, n.awaitCount(t, Addr(j+1), each), each)
			}
		}
	}
	for i, n := range nodes {
		for _, p := range n.Stats().Peers {
			if !p.Up || p.Sent.Messages != each || p.Received.Messages != each || p.Dropped != 0 || p.Connects != 1 {
				t.Errorf("replica %d of %d: %+v", i+1, p.ID, p)
			}
			var frames uint64
			for _, n := range p.Sent.PerFrame {
				frames += n
			}
			if frames != p.Sent.Frames || p.Sent.Calls == 0 || p.Sent.Calls > p.Sent.Frames+firstPings {
				t.Errorf("replica %d of %d: %d frames by size, %d frames, %d calls", i+1, p.ID, frames, p.Sent.Frames, p.Sent.Calls)
			}
		}
	}
}

func TestLargeMessages(t *testing.T) {
	nodes := mesh(t, 2, nil)
	size := 20 << 20
	if testing.Short() {
		size = 5 << 20
	}
	large := wire.Message{Kind: wire.Raft, Data: bytes.Repeat([]byte("large"), size/5)}
	mustSend(t, nodes[0].to(2), []wire.Message{large, numbered(1, 1)[0]})
	got := nodes[1].awaitCount(t, 1, 2)
	if !bytes.Equal(got[0].Data, large.Data) || got[1].Seq != 1 {
		t.Error("a large message, or the one behind it, has changed on its way")
	}
	huge := wire.Message{Kind: wire.Raft, Data: make([]byte, MaxMessage)}
	if n, err := nodes[0].Send(2, []wire.Message{numbered(2, 1)[0], huge, large}); n != 1 || !errors.Is(err, ErrTooLarge) {
		t.Errorf("sent %d: %v, want 1 and ErrTooLarge", n, err)
	}
	c, _ := dialClient(t, nodes[0].Addr(), nil)
	if n, err := c.Send([]wire.Message{{Kind: wire.Weak, Data: make([]byte, MaxClientMessage)}}); n != 0 || !errors.Is(err, ErrTooLarge) {
		t.Errorf("client sent %d: %v, want 0 and ErrTooLarge", n, err)
	}
	most := wire.Message{Kind: wire.Weak, Data: bytes.Repeat([]byte{1}, wire.MaxCommand)}
	mustSend(t, c.Send, []wire.Message{most})
	if got := nodes[0].awaitCount(t, FirstClient, 1); !bytes.Equal(got[0].Data, most.Data) {
		t.Error("a client's largest command has changed on its way")
	}
}

func TestClient(t *testing.T) {
	n := open(t, 5, func(o *Options) { o.Position = func() (uint64, uint64) { return 3, 4 } })
	n.on(func(from Addr, ms []wire.Message) {
		if k, err := n.Send(from, ms); k != len(ms) || err != nil {
			t.Errorf("echo %d of %d: %v", k, len(ms), err)
		}
	})
	down := make(chan error, 2)
	c, r := dialClient(t, n.Addr(), func(o *ClientOptions) {
		o.Cluster, o.Replica = "test", 5
		o.Down = func(why error) { down <- why }
	})
	if c.RTT().Smoothed <= 0 {
		t.Error("no guess of the round trip")
	}
	n.awaitUp(t, FirstClient)
	if who := c.Remote(); who.ID != 5 || who.Term != 3 || who.Index != 4 || who.Instance != n.Instance() {
		t.Errorf("remote = %+v", who)
	}
	for i := range 100 {
		mustSend(t, c.Send, numbered(1+10*i, 10))
	}
	checkNumbered(t, r.awaitCount(t, 0, 1000), 1000)
	testkit.Eventually(t, "round trips of both sides", func() bool { return c.RTT().Min > 0 && n.RTT(FirstClient).Min > 0 })
	sent, received := c.Flows()
	if sent.Messages != 1000 || received.Messages != 1000 {
		t.Errorf("flows: %+v, %+v", sent, received)
	}
	if err := c.Err(); err != nil {
		t.Errorf("error of an open connection: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	<-c.Done()
	if why := <-down; !errors.Is(why, ErrClosed) || !errors.Is(c.Err(), ErrClosed) {
		t.Errorf("down: %v, error: %v", why, c.Err())
	}
	if k, err := c.Send(numbered(1, 1)); k != 0 || !errors.Is(err, ErrDown) {
		t.Errorf("sent %d after Close: %v", k, err)
	}
	n.await(t, "client down", func() bool { return len(n.downs[FirstClient]) == 1 })
	if k, err := n.Send(FirstClient, numbered(1, 1)); k != 0 || !errors.Is(err, ErrDown) {
		t.Errorf("sent %d to a client that is gone: %v", k, err)
	}
	if s := n.Stats().Clients; s.Connects != 1 || s.Sent.Messages != 1000 || s.Received.Messages != 1000 || s.Dropped != 1 {
		t.Errorf("stats of clients: %+v", s)
	}
	dialClient(t, n.Addr(), nil)
	n.awaitUp(t, FirstClient+1) // numbers are not used again
}

// A side that reads and writes through the scheduler costs its process thread switches, which
// only a profile shows.
func TestBothSidesReadAndWriteAlike(t *testing.T) {
	nodes := mesh(t, 2, nil)
	conn, _ := dialClient(t, nodes[0].Addr(), nil)
	nodes[0].awaitUp(t, FirstClient)
	dialed := kindOf(conn.l)
	for name, l := range map[string]*link{
		"the replica that accepts": nodes[0].linkTo(2), "the replica that dials": nodes[1].linkTo(1),
		"the replica of a client": nodes[0].linkTo(FirstClient),
	} {
		if got := kindOf(l); got != dialed {
			t.Errorf("%s has %s, a client %s", name, got, dialed)
		}
	}
}

// kindOf names how a link reads and writes.
func kindOf(l *link) string { return fmt.Sprintf("%T, %T", l.in.src, l.nc) }

func (n *node) linkTo(a Addr) *link {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.links[a]
}

func TestSendBeginsWithUp(t *testing.T) {
	n := open(t, 1, nil)
	n.recorder.lock.Lock()
	n.onUp = func(from Addr) {
		if k, err := n.Send(from, numbered(1, 3)); k != 3 || err != nil {
			t.Errorf("sent %d, %v", k, err)
		}
	}
	n.recorder.lock.Unlock()
	_, r := dialClient(t, n.Addr(), nil)
	checkNumbered(t, r.awaitCount(t, 0, 3), 3)
}

// TestCloseDoesNotWaitForStrangers opens connections that never send anything.
func TestCloseDoesNotWaitForStrangers(t *testing.T) {
	n := open(t, 1, nil)
	for range 3 {
		nc, err := net.Dial("tcp", n.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = nc.Close() }()
	}
	testkit.Eventually(t, "their handshakes", func() bool { return n.greeting.count() == 3 })
	two := open(t, 2, func(o *Options) { // and a replica that dials a listener that never answers
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = ln.Close() })
		o.Peers = map[uint64]string{1: ln.Addr().String()}
	})
	n.shut(t)
	two.shut(t)
	noGoroutines(t)
}

// Connections that never send anything do not keep out others.
func TestStrangersDoNotHoldHandshakes(t *testing.T) {
	n := open(t, 1, func(o *Options) { o.HandshakeTimeout = time.Hour })
	for range handshakesAtOnce {
		nc, err := net.Dial("tcp", n.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = nc.Close() }()
	}
	testkit.Eventually(t, "their handshakes", func() bool { return n.greeting.count() == handshakesAtOnce })
	dialClient(t, n.Addr(), nil)
	n.awaitUp(t, FirstClient)
}

func TestDisconnect(t *testing.T) {
	n := open(t, 1, nil)
	c, _ := dialClient(t, n.Addr(), nil)
	n.awaitUp(t, FirstClient)
	enough := errors.New("enough of this one")
	n.Disconnect(FirstClient, enough)
	n.await(t, "client down", func() bool { return len(n.downs[FirstClient]) == 1 })
	if got := seen(n.recorder, func() error { return n.downs[FirstClient][0] }); !errors.Is(got, enough) {
		t.Errorf("down for %v", got)
	}
	<-c.Done()
	if c.Err() == nil {
		t.Error("the client does not know why")
	}
}

func TestRestartedReplicaIsFoundAgain(t *testing.T) {
	for name, which := range map[string]int{"the dialed one": 0, "the dialing one": 1} {
		t.Run(name, func(t *testing.T) {
			nodes := mesh(t, 2, func(o *Options) { o.Listen = labtest.Addrs(t, 1)[0] })
			old, other := nodes[which], nodes[1-which]
			id := Addr(old.opts.ID)
			mustSend(t, other.to(id), numbered(1, 100))
			checkNumbered(t, old.awaitCount(t, Addr(other.opts.ID), 100), 100)
			old.shut(t)
			other.await(t, "the old one down", func() bool { return len(other.downs[id]) == 1 })
			if n, err := other.Send(id, numbered(1, 3)); n != 0 || !errors.Is(err, ErrDown) {
				t.Errorf("sent %d to a replica that is gone: %v", n, err)
			}
			fresh := open(t, uint64(id), func(o *Options) {
				o.Listen = old.Addr()
				o.Peers = map[uint64]string{other.opts.ID: other.Addr()}
			})
			other.await(t, "the new one up", func() bool { return other.ups[id] == 2 })
			fresh.awaitUp(t, Addr(other.opts.ID))
			if seen(other.recorder, func() [16]byte { return other.up[id].Instance }) == old.Instance() {
				t.Error("the instance is the same after a restart")
			}
			mustSend(t, other.to(id), numbered(1, 100))
			checkNumbered(t, fresh.awaitCount(t, Addr(other.opts.ID), 100), 100)
			if p := other.Stats().Peers[0]; p.Connects != 2 || p.Dropped != 3 || p.LastErr == "" {
				t.Errorf("stats: %+v", p)
			}
		})
	}
}

func TestPeersChangeAtRunTime(t *testing.T) {
	quick := func(o *Options) { o.RetryMax = 20 * time.Millisecond }
	nodes := mesh(t, 2, quick)
	third := open(t, 3, quick)
	third.SetPeers(map[uint64]string{1: nodes[0].Addr(), 2: nodes[1].Addr()})
	testkit.Eventually(t, "a refusal", func() bool { return nodes[0].Stats().Refused[CodeUnknown] > 0 })
	all := map[uint64]string{
		1: nodes[0].Addr(), 2: nodes[1].Addr(), 3: third.Addr(),
	}
	for _, n := range nodes {
		n.SetPeers(all)
		n.awaitUp(t, 3)
	}
	third.awaitUp(t, 1)
	third.awaitUp(t, 2)

	// Without replica 3 again: both sides notice, and it is refused from now on.
	delete(all, 3)
	nodes[0].SetPeers(all)
	nodes[0].await(t, "3 down", func() bool { _, is := nodes[0].up[3]; return !is })
	if why := seen(nodes[0].recorder, func() error { return nodes[0].downs[3][0] }); !errors.Is(why, errRemoved) {
		t.Errorf("down for %v", why)
	}
	third.await(t, "1 down", func() bool { return len(third.downs[1]) == 1 })
	before := nodes[0].Stats().Refused[CodeUnknown]
	testkit.Eventually(t, "another refusal", func() bool { return nodes[0].Stats().Refused[CodeUnknown] > before })
	if seen(nodes[0].recorder, func() bool { return nodes[0].ups[2] != 1 || len(nodes[0].downs[2]) != 0 }) {
		t.Error("the connection with 2 has suffered")
	}

	// Replica 1 moves: 2 follows when it is told.
	id, peers := uint64(1), map[uint64]string{2: nodes[1].Addr()}
	nodes[0].shut(t)
	moved := open(t, id, func(o *Options) { o.Peers = peers })
	nodes[1].SetPeers(map[uint64]string{1: moved.Addr(), 3: third.Addr()})
	nodes[1].await(t, "1 up again", func() bool { return nodes[1].ups[1] == 2 })
	moved.awaitUp(t, 2)
}

func TestAllowPeerDecides(t *testing.T) {
	var mu sync.Mutex
	asked, allow := map[bool]int{}, false
	n := open(t, 1, func(o *Options) {
		o.AllowPeer = func(who Remote, known bool) error {
			mu.Lock()
			defer mu.Unlock()
			asked[known]++
			if who.ID != 2 || who.Address == "" {
				t.Errorf("asked about %+v", who)
			}
			if !allow {
				return errors.New("not today")
			}
			return nil
		}
	})
	two := open(t, 2, func(o *Options) {
		o.Peers, o.RetryMax = map[uint64]string{1: n.Addr()}, 20*time.Millisecond
	})
	testkit.Eventually(t, "the reason", func() bool { return strings.Contains(two.Stats().Peers[0].LastErr, "not today") })
	mu.Lock()
	allow = true
	mu.Unlock()
	n.awaitUp(t, 2)
	two.awaitUp(t, 1)
	n.SetPeers(map[uint64]string{2: two.Addr()})
	two.Disconnect(1, errors.New("once more"))
	n.await(t, "2 up again", func() bool { return n.ups[2] == 2 })
	mu.Lock()
	defer mu.Unlock()
	if asked[false] < 2 || asked[true] < 1 {
		t.Errorf("asked: %v", asked)
	}
}

// TestAllowPeerIsAskedByWhoDials lets the dialing side refuse.
func TestAllowPeerIsAskedByWhoDials(t *testing.T) {
	one := open(t, 1, func(o *Options) { o.Position = func() (uint64, uint64) { return 1, 5 } })
	two := open(t, 2, func(o *Options) {
		o.Peers, o.RetryMax = map[uint64]string{1: one.Addr()}, 20*time.Millisecond
		o.AllowPeer = func(who Remote, known bool) error {
			if who.ID == 1 && who.Index == 5 && known {
				return errors.New("it has forgotten")
			}
			return nil
		}
	})
	one.SetPeers(map[uint64]string{2: two.Addr()})
	testkit.Eventually(t, "the reason", func() bool { return strings.Contains(two.Stats().Peers[0].LastErr, "it has forgotten") })
	testkit.Eventually(t, "another attempt", func() bool { return two.Stats().Peers[0].Failures > 1 })
	err := two.SendSnapshot(t.Context(), 1, nil, 0, nil)
	var refused *HandshakeError
	if !errors.As(err, &refused) || refused.Code != CodeUnknown || refused.Remote {
		t.Errorf("snapshot: %v", err)
	}
	if ups := seen(one.recorder, func() int { return one.ups[2] }); ups != 0 {
		t.Errorf("the refused one saw the other come up %d times", ups)
	}
}

func TestIdIsTakenWhileItsHolderLives(t *testing.T) {
	nodes := mesh(t, 2, nil)
	twin := open(t, 2, func(o *Options) {
		o.Peers, o.RetryMax = map[uint64]string{1: nodes[0].Addr()}, 20*time.Millisecond
	})
	testkit.Eventually(t, "a refusal", func() bool { return strings.Contains(twin.Stats().Peers[0].LastErr, CodeTaken.String()) })
	if seen(nodes[0].recorder, func() bool { return nodes[0].ups[2] != 1 || len(nodes[0].downs[2]) != 0 }) {
		t.Error("the first holder has suffered")
	}
	nodes[1].shut(t)
	twin.awaitUp(t, 1)
	nodes[0].await(t, "the twin", func() bool { return nodes[0].up[2].Instance == twin.Instance() })
}

func TestClientsAreBounded(t *testing.T) {
	n := open(t, 1, func(o *Options) { o.MaxClients = 2 })
	first, _ := dialClient(t, n.Addr(), nil)
	dialClient(t, n.Addr(), nil)
	_, err := Dial(t.Context(), n.Addr(), ClientOptions{Receive: func([]wire.Message) {}})
	var refused *HandshakeError
	if !errors.As(err, &refused) || refused.Code != CodeBusy || !refused.Remote {
		t.Fatalf("third client: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "room", func() bool { return n.Stats().Clients.Open == 1 })
	dialClient(t, n.Addr(), nil)
}

func TestOptionsAreChecked(t *testing.T) {
	secret := []byte("s")
	none := func(uint64, uint64) time.Duration { return 0 }
	for _, tt := range []struct {
		name string
		opts Options
		want string // part of the error, "" for none
	}{
		{"no id", Options{Cluster: "c", Listen: "127.0.0.1:0"}, "replica id 0"},
		{"a client's id", Options{ID: 1 << 32, Cluster: "c", Listen: "127.0.0.1:0"}, "replica id"},
		{"no cluster", Options{ID: 1, Listen: "127.0.0.1:0"}, "cluster name"},
		{"no port", Options{ID: 1, Cluster: "c", Listen: "127.0.0.1"}, "listen address"},
		{"open to all", Options{ID: 1, Cluster: "c", Listen: ":0"}, "can be reached by others"},
		{"open to some", Options{ID: 1, Cluster: "c", Listen: "192.0.2.1:0"}, "can be reached by others"},
		{"open with a secret", Options{ID: 1, Cluster: "c", Listen: ":0", Secret: secret}, ""},
		{"open to clients", Options{ID: 1, Cluster: "c", Listen: ":0", Secret: secret, ClientSecret: []byte{}}, "empty client secret"},
		{"open by wish", Options{ID: 1, Cluster: "c", Listen: ":0", Insecure: true}, ""},
		{"latency for others", Options{ID: 1, Cluster: "c", Listen: ":0", Insecure: true, Latency: none}, "artificial latency"},
		{"localhost", Options{ID: 1, Cluster: "c", Listen: "localhost:0", Latency: none}, ""},
		{"long delay", Options{ID: 1, Cluster: "c", Listen: "127.0.0.1:0", Delay: time.Second}, "delay"},
		{"negative", Options{ID: 1, Cluster: "c", Listen: "127.0.0.1:0", QueueBytes: -1}, "negative"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tr, err := Open(tt.opts, newRecorder())
			if err == nil {
				err = tr.Close()
			}
			if (tt.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error = %v, want %q", err, tt.want)
			}
		})
	}
	receive := func([]wire.Message) {}
	for want, opts := range map[string]ClientOptions{
		"no function to receive": {},
		"cluster name":           {Receive: receive, Cluster: strings.Repeat("c", 256)},
		"latency":                {Receive: receive, Latency: time.Minute},
		"negative":               {Receive: receive, QueueBytes: -1},
	} {
		if _, err := Dial(t.Context(), "127.0.0.1:1", opts); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("client: %v, want %q", err, want)
		}
	}
}

func TestNothingIsLeftAfterClose(t *testing.T) {
	nodes := mesh(t, 3, func(o *Options) { o.Latency = func(uint64, uint64) time.Duration { return 5 * time.Millisecond } })
	c, _ := dialClient(t, nodes[0].Addr(), nil)
	for i, n := range nodes {
		mustSend(t, n.to(Addr(1+(i+1)%3)), numbered(1, 1000))
	}
	nodes[1].SetPeers(map[uint64]string{1: "127.0.0.1:1", 3: nodes[2].Addr()})
	mustSend(t, c.Send, numbered(1, 10))
	var closing sync.WaitGroup
	for _, n := range nodes {
		closing.Go(func() { n.shut(t) })
		closing.Go(func() { n.shut(t) }) // a second Close waits, too
	}
	closing.Wait()
	<-c.Done()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	noGoroutines(t)
	if n, err := nodes[0].Send(2, numbered(1, 1)); n != 0 || !errors.Is(err, ErrDown) {
		t.Errorf("sent %d after Close: %v", n, err)
	}
	nodes[0].SetPeers(map[uint64]string{2: "127.0.0.1:1"}) // does nothing
	noGoroutines(t)
}

// Flows returns what was sent and received so far.
func (c *Conn) Flows() (sent, received Flow) { return c.count.sent.read(), c.count.received.read() }

// Instance is the random number by which others know this process.
func (t *Transport) Instance() [16]byte { return t.instance }
