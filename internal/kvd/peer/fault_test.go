package peer

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/kvd/wire"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
)

// relayed starts replicas 1 and 2, of which 2 reaches 1 through a bad network.
func relayed(t *testing.T, tweak func(*Options)) (one, two *node, r *lab.Relay) {
	t.Helper()
	one = open(t, 1, tweak)
	two = open(t, 2, tweak)
	r = labtest.Relay(t, one.Addr())
	one.SetPeers(map[uint64]string{2: two.Addr()})
	two.SetPeers(map[uint64]string{1: r.Addr()})
	one.awaitUp(t, 2)
	two.awaitUp(t, 1)
	return one, two, r
}

// impatient notices silence soon. Tests with it must not mind a connection that
// a busy machine makes silent.
func impatient(o *Options) {
	o.PingEvery, o.SilentAfter, o.RetryMax = 20*time.Millisecond, 100*time.Millisecond, 50*time.Millisecond
}

// keepSending sends messages numbered 1, 2, … until stop, and goes on with the
// one that was not taken. Each time the connection comes up it begins an epoch,
// which the messages carry.
func keepSending(n *node, to Addr, stop <-chan struct{}) {
	seq, epoch := uint64(0), uint64(0)
	for {
		select {
		case <-stop:
			return
		default:
		}
		if e := uint64(seen(n.recorder, func() int { return n.ups[to] })); e != epoch {
			epoch = e
		}
		ms := make([]wire.Message, 10)
		for i := range ms {
			ms[i] = wire.Message{Kind: wire.Weak, Session: epoch + 1, Seq: seq + uint64(i) + 1, Data: make([]byte, 100)}
		}
		took, err := n.Send(to, ms)
		seq += uint64(took)
		if err != nil {
			time.Sleep(100 * time.Microsecond) // only to be kind to the processor
		}
	}
}

// TestConnectionsThatAreCut cuts connections again and again, also in the middle
// of frames: of each connection arrives a prefix of what Send took, in order.
func TestConnectionsThatAreCut(t *testing.T) {
	one, two, r := relayed(t, func(o *Options) { o.RetryMax = 20 * time.Millisecond })
	// Messages arrive on one connection without gaps.
	var lock sync.Mutex
	last, connection, gaps := uint64(0), 0, 0
	one.on(func(from Addr, ms []wire.Message) {
		ups := seen(one.recorder, func() int { return one.ups[2] })
		lock.Lock()
		defer lock.Unlock()
		for i := range ms {
			if ups == connection && ms[i].Seq != last+1 || ms[i].Seq <= last {
				gaps++
			}
			last, connection = ms[i].Seq, ups
		}
	})
	stop := make(chan struct{})
	var sending sync.WaitGroup
	sending.Go(func() { keepSending(two, 1, stop) })
	for i := range 10 {
		before := len(seen(one.recorder, func() []wire.Message { return one.got[2] }))
		one.await(t, "more messages", func() bool { return len(one.got[2]) > before+100 })
		downs := seen(one.recorder, func() int { return len(one.downs[2]) })
		if i%2 == 0 {
			r.Cut()
		} else {
			r.CutAfter(lab.ToServer, int64(1001+i)) // not where a frame ends
		}
		one.await(t, "down", func() bool { return len(one.downs[2]) > downs })
	}
	close(stop)
	sending.Wait()
	lock.Lock()
	defer lock.Unlock()
	if gaps > 0 {
		t.Errorf("%d gaps or repetitions within connections", gaps)
	}
	if s := one.Stats(); s.Corrupt != 0 {
		t.Errorf("%d corrupt frames", s.Corrupt)
	}
}

func TestHalfOpenConnectionIsGivenUpAndMadeAgain(t *testing.T) {
	for name, ways := range map[string][]lab.Direction{
		"nothing gets through": nil, "nothing comes": {lab.ToClient}, "nothing arrives": {lab.ToServer},
	} {
		t.Run(name, func(t *testing.T) {
			one, two, r := relayed(t, impatient)
			downs := seen(two.recorder, func() int { return len(two.downs[1]) })
			r.Stall(ways...)
			two.await(t, "the end of the connection", func() bool { return len(two.downs[1]) > downs })
			testkit.Eventually(t, "a side that has noticed", func() bool { return one.Stats().Silent+two.Stats().Silent > 0 })
			ups := seen(one.recorder, func() int { return one.ups[2] })
			r.Heal()
			one.await(t, "up again", func() bool { _, is := one.up[2]; return is && one.ups[2] > ups })
			two.awaitUp(t, 1)
			testkit.Eventually(t, "a message", func() bool { // which may be lost with one more connection
				_, _ = two.Send(1, numbered(1, 1))
				return seen(one.recorder, func() bool { return len(one.got[2]) > 0 })
			})
		})
	}
}

func TestSlowNetworkKeepsOrder(t *testing.T) {
	one, two, r := relayed(t, seldomPings)
	r.SetLink(lab.ToServer, lab.Link{Delay: 3 * time.Millisecond, BytesPerSecond: 2 << 20})
	for i := range 20 {
		mustSend(t, two.to(1), numbered(1+i*100, 100))
	}
	checkNumbered(t, one.awaitCount(t, 2, 2000), 2000)
	if p := two.Stats().Peers[0]; p.Sent.Calls > p.Sent.Frames+firstPings {
		t.Errorf("%d calls for %d frames", p.Sent.Calls, p.Sent.Frames)
	}
}

func TestFullQueueDropsWhatRaftRepairsAndRefusesTheRest(t *testing.T) {
	one, two, r := relayed(t, func(o *Options) { o.QueueBytes = 1 << 20 })
	r.Stall(lab.ToServer)
	raft := wire.Message{Kind: wire.Raft, Data: make([]byte, 128<<10)}
	rafts, weaks, dropped := 0, 0, uint64(0) // what was taken, and what was not
	// Fill the kernel's buffers and the queue. While the writer still finds room in
	// the former there is soon some in the latter.
	testkit.Eventually(t, "a full queue", func() bool {
		if k, err := two.Send(1, []wire.Message{raft}); k != 1 || err != nil {
			t.Fatalf("raft message: sent %d, %v", k, err)
		}
		p := two.Stats().Peers[0]
		if p.Dropped == dropped {
			rafts++
			return false
		}
		dropped++
		if p.Queued > 1<<20+64 || p.Dropped != dropped {
			t.Fatalf("%d bytes in a queue of 1 MiB, %d dropped of %d", p.Queued, p.Dropped, dropped)
		}
		k, err := two.Send(1, numbered(200+weaks, 2000))
		weaks, dropped = weaks+k, dropped+uint64(2000-k)
		if (k < 2000) != errors.Is(err, ErrFull) || k == 2000 && err != nil {
			t.Fatalf("sent %d of 2000: %v", k, err)
		}
		if got := two.Stats().Peers[0].Dropped; got != dropped {
			t.Fatalf("%d not taken by the counter, %d by the answers", got, dropped)
		}
		return k < 2000
	})
	r.Heal()
	testkit.Eventually(t, "room", func() bool { return two.Stats().Peers[0].Queued == 0 })
	mustSend(t, two.to(1), numbered(200+weaks, 1))
	next := uint64(200)
	for _, m := range one.awaitCount(t, 2, rafts+weaks+1) {
		if m.Kind != wire.Weak {
			rafts--
		} else if m.Seq != next {
			t.Fatalf("message number %d where %d is to come", m.Seq, next)
		} else {
			next++
		}
	}
	if rafts != 0 {
		t.Errorf("%d raft messages are missing", rafts)
	}
}

// TestClientThatReadsLateIsHeldBack has a client ask much and not take the
// answers: the replica stops reading its questions instead of hoarding answers.
func TestClientThatReadsLateIsHeldBack(t *testing.T) {
	const limit, questions = 1 << 20, 1500 // their answers are more than sockets hold
	n := open(t, 1, func(o *Options) { o.QueueBytes = limit })
	question, answer := make([]byte, 8<<10), make([]byte, 8<<10)
	var most atomic.Int64
	n.on(func(from Addr, ms []wire.Message) {
		for i := range ms {
			ms[i].Data = answer
			if k, err := n.Send(from, ms[i:i+1]); k != 1 || err != nil {
				t.Errorf("answer refused: %v", err)
			}
		}
		n.Transport.mu.RLock()
		defer n.Transport.mu.RUnlock()
		most.Store(max(most.Load(), int64(n.links[from].queued())))
	})
	release := make(chan struct{})
	free := sync.OnceFunc(func() { close(release) })
	defer free()
	var wait sync.Once
	c, r := dialClient(t, n.Addr(), func(o *ClientOptions) {
		receive := o.Receive
		o.Receive = func(ms []wire.Message) {
			wait.Do(func() { <-release })
			receive(ms)
		}
	})
	var sending sync.WaitGroup
	sending.Go(func() {
		for i := range questions {
			mustSend(t, c.Send, []wire.Message{{Kind: wire.Weak, Seq: uint64(i + 1), Data: question}})
		}
	})
	n.await(t, "questions", func() bool { return len(n.got[FirstClient]) > 100 })
	testkit.Eventually(t, "the replica to stop reading", func() bool {
		n.Transport.mu.RLock()
		defer n.Transport.mu.RUnlock()
		l := n.links[FirstClient]
		return l.busy.Load() && l.queued() > limit/4
	})
	if held := seen(n.recorder, func() int { return len(n.got[FirstClient]) }); held >= questions {
		t.Errorf("all %d questions were read", held)
	}
	free()
	sending.Wait()
	got := r.awaitCount(t, 0, questions)
	for i := range got {
		if got[i].Seq != uint64(i+1) {
			t.Fatalf("answer %d is to question %d", i+1, got[i].Seq)
		}
	}
	// Over half of the limit, plus the answers to one read of questions.
	if most.Load() > limit {
		t.Errorf("%d bytes waited", most.Load())
	}
}

// TestClientThatNeverReadsIsDisconnected has a client that asks, and is dead.
func TestClientThatNeverReadsIsDisconnected(t *testing.T) {
	n := open(t, 1, func(o *Options) {
		impatient(o)
		o.QueueBytes = 64 << 10
	})
	answer := []wire.Message{{Kind: wire.Done, Data: make([]byte, 16<<10)}}
	n.on(func(from Addr, ms []wire.Message) {
		for range ms {
			_, _ = n.Send(from, answer) // refused when it is full
		}
	})
	d := &dialer{hello: hello{Role: roleClient}, connect: patience, handshake: patience, maxFrame: maxFrame}
	s, err := d.open(t.Context(), n.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.nc.Close() }()
	var f frames
	m := numbered(1, 1)[0]
	f.add(&m, m.Size())
	f.close()
	checksum(f.buf)
	for { // asks until it is cut off
		if _, err := s.nc.Write(f.buf); err != nil {
			break
		}
		time.Sleep(100 * time.Microsecond) // the answers are larger
	}
	n.await(t, "down", func() bool { return len(n.downs[FirstClient]) == 1 })
	if why := seen(n.recorder, func() error { return n.downs[FirstClient][0] }); !errors.Is(why, errSilent) {
		t.Errorf("down for %v", why)
	}
}

// TestReplicaThatNeverReadsIsGivenUp has the handler of one side block.
func TestReplicaThatNeverReadsIsGivenUp(t *testing.T) {
	nodes := mesh(t, 2, func(o *Options) {
		impatient(o)
		o.QueueBytes = 1 << 20
	})
	release := make(chan struct{})
	var once sync.Once
	nodes[0].on(func(Addr, []wire.Message) { once.Do(func() { <-release }) })
	stop := make(chan struct{})
	var sending sync.WaitGroup
	sending.Go(func() { keepSending(nodes[1], 1, stop) })
	nodes[1].await(t, "given up", func() bool { return len(nodes[1].downs[1]) > 0 })
	close(release)
	before := seen(nodes[0].recorder, func() int { return len(nodes[0].got[2]) })
	nodes[0].await(t, "messages again", func() bool { return len(nodes[0].got[2]) > before+1000 })
	close(stop)
	sending.Wait()
}

// TestAlteredBytesEndTheConnection has a middleman alter one byte.
func TestAlteredBytesEndTheConnection(t *testing.T) {
	one := open(t, 1, nil)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var middle sync.WaitGroup
	defer middle.Wait()
	defer func() { _ = ln.Close() }()
	var alter atomic.Bool
	middle.Go(func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", one.Addr())
			if err != nil {
				_ = in.Close()
				continue
			}
			middle.Go(func() { _, _ = io.Copy(in, out); _ = in.Close() })
			middle.Go(func() {
				buf := make([]byte, 64<<10)
				for {
					k, err := in.Read(buf)
					if k > 100 && alter.CompareAndSwap(true, false) {
						buf[k/2] ^= 1
					}
					_, _ = out.Write(buf[:k])
					if err != nil {
						_ = out.Close()
						return
					}
				}
			})
		}
	})
	two := open(t, 2, func(o *Options) { o.Peers = map[uint64]string{1: ln.Addr().String()} })
	one.SetPeers(map[uint64]string{2: two.Addr()})
	two.awaitUp(t, 1)
	one.awaitUp(t, 2)
	mustSend(t, two.to(1), numbered(1, 100))
	checkNumbered(t, one.awaitCount(t, 2, 100), 100)
	alter.Store(true)
	mustSend(t, two.to(1), numbered(101, 100))
	one.await(t, "down", func() bool { return len(one.downs[2]) == 1 })
	if why := seen(one.recorder, func() error { return one.downs[2][0] }); !errors.Is(why, errCorrupt) {
		t.Errorf("down for %v", why)
	}
	if got := one.Stats().Corrupt; got != 1 {
		t.Errorf("%d corrupt frames counted", got)
	}
	if got := seen(one.recorder, func() int { return len(one.got[2]) }); got != 100 {
		t.Errorf("%d messages handed over, want 100", got)
	}
	two.await(t, "up again", func() bool { return two.ups[1] == 2 })
	mustSend(t, two.to(1), numbered(101, 100))
	checkNumbered(t, one.awaitCount(t, 2, 200), 200)
	one.shut(t)
	two.shut(t)
}
