package peer

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
)

// shelf keeps snapshots by their description, as a disk does.
type shelf struct {
	lock   sync.Mutex
	change *sync.Cond
	bytes  map[string][]byte
	whole  map[string]bool
	closes int
	starts []int64 // offset of each stream
	fail   func(at int64) error
}

func newShelf() *shelf {
	s := &shelf{bytes: map[string][]byte{}, whole: map[string]bool{}}
	s.change = sync.NewCond(&s.lock)
	return s
}

func (s *shelf) take(_ uint64, meta []byte, size int64) (SnapshotSink, error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	name := string(meta)
	if strings.HasPrefix(name, "unwanted") {
		return nil, errors.New("newer ones are here")
	}
	s.starts = append(s.starts, int64(len(s.bytes[name])))
	return &slot{s, name, size}, nil
}

type slot struct {
	s    *shelf
	name string
	size int64
}

func (s *slot) Offset() int64 {
	s.s.lock.Lock()
	defer s.s.lock.Unlock()
	return int64(len(s.s.bytes[s.name]))
}

func (s *slot) Write(p []byte) (int, error) {
	s.s.lock.Lock()
	defer s.s.lock.Unlock()
	if s.s.fail != nil {
		if err := s.s.fail(int64(len(s.s.bytes[s.name]))); err != nil {
			return 0, err
		}
	}
	s.s.bytes[s.name] = append(s.s.bytes[s.name], p...)
	s.s.change.Broadcast()
	return len(p), nil
}

func (s *slot) Close() error {
	s.s.lock.Lock()
	defer s.s.lock.Unlock()
	s.s.closes++
	s.s.whole[s.name] = int64(len(s.s.bytes[s.name])) == s.size
	if strings.HasPrefix(s.name, "unsaved") {
		return errors.New("disk is full")
	}
	return nil
}

// source serves contents from an offset on.
func source(contents []byte) func(int64) (io.ReadCloser, error) {
	return func(offset int64) (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(contents[offset:])), nil
	}
}

func contents(n int) []byte {
	b := make([]byte, n)
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(b)
	return b
}

func TestSnapshotsArriveInBothDirections(t *testing.T) {
	ca := newAuthority(t)
	for name, tweak := range map[string]func(*Options){
		"plain": nil,
		"TLS":   func(o *Options) { o.TLS, o.Secret = ca.issue(t, "a", ca), []byte("swordfish") },
	} {
		t.Run(name, func(t *testing.T) {
			nodes := mesh(t, 2, tweak)
			for i, to := range nodes {
				s := newShelf()
				to.recorder.lock.Lock()
				to.onSnapshot = s.take
				to.recorder.lock.Unlock()
				from := nodes[1-i]
				for _, size := range []int{0, 1, chunkBytes, 3*chunkBytes + 17} {
					want := contents(size)
					if err := from.SendSnapshot(t.Context(), uint64(i+1), []byte{byte(size), 1}, int64(size), source(want)); err != nil {
						t.Fatalf("%d bytes: %v", size, err)
					}
					key := string([]byte{byte(size), 1})
					if !bytes.Equal(s.bytes[key], want) || !s.whole[key] {
						t.Errorf("%d bytes: %d arrived, whole: %v", size, len(s.bytes[key]), s.whole[key])
					}
					delete(s.bytes, key)
				}
				want := uint64(1 + chunkBytes + 3*chunkBytes + 17)
				if a, b := from.Stats().Peers[0].SnapshotSent, to.Stats().Peers[0].SnapshotReceived; a != want || b != want {
					t.Errorf("%d bytes sent, %d received, want %d", a, b, want)
				}
			}
		})
	}
}

// TestSnapshotGoesOnWhereItWasCut cuts each connection after some bytes.
func TestSnapshotGoesOnWhereItWasCut(t *testing.T) {
	one, two := open(t, 1, nil), open(t, 2, func(o *Options) { o.RetryMax = 20 * time.Millisecond })
	r := labtest.Relay(t, one.Addr())
	one.SetPeers(map[uint64]string{2: "127.0.0.1:1"})
	s := newShelf()
	one.recorder.lock.Lock()
	one.onSnapshot = s.take
	one.recorder.lock.Unlock()
	two.SetPeers(map[uint64]string{1: r.Addr()})
	two.awaitUp(t, 1)
	want := contents(8 << 20)
	opens, cuts := []int64{}, 0
	open := func(offset int64) (io.ReadCloser, error) {
		opens = append(opens, offset)
		if cuts < 3 {
			cuts++
			r.CutAfter(lab.ToServer, 1<<20+12345)
		}
		return io.NopCloser(bytes.NewReader(want[offset:])), nil
	}
	if err := two.SendSnapshot(t.Context(), 1, []byte("x"), int64(len(want)), open); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(s.bytes["x"], want) || !s.whole["x"] {
		t.Error("the contents have suffered")
	}
	if len(opens) != 4 || opens[0] != 0 || opens[1] == 0 || !slices.IsSorted(opens) {
		t.Errorf("opened at %v", opens)
	}
	if s.closes != len(s.starts) {
		t.Errorf("%d sinks, %d closed", len(s.starts), s.closes)
	}
}

// TestNewerSnapshotStreamReplacesTheOlder: one of them is dead, and it is not the
// newer one.
func TestNewerSnapshotStreamReplacesTheOlder(t *testing.T) {
	n := open(t, 1, func(o *Options) { o.Peers = map[uint64]string{2: "127.0.0.1:1"} })
	s := newShelf()
	n.recorder.lock.Lock()
	n.onSnapshot = s.take
	n.recorder.lock.Unlock()
	want := contents(1000)
	streams := make([]*session, 2)
	for i := range streams {
		d := replicaTwo()
		d.hello.Role = roleSnapshot
		var err error
		if streams[i], err = d.open(t.Context(), n.Addr()); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = streams[i].nc.Close() }()
		u := &upload{meta: []byte("x"), size: int64(len(want))}
		at, err := u.begin(streams[i])
		if err != nil || at != int64(400*i) {
			t.Fatalf("stream %d begins at %d, %v", i, at, err)
		}
		if err := writeFrame(streams[i].nc, frameChunk, want[400*i:400+600*i]); err != nil {
			t.Fatal(err)
		}
		s.lock.Lock()
		for len(s.bytes["x"]) < 400+600*i {
			s.change.Wait()
		}
		s.lock.Unlock()
	}
	if err := writeFrame(streams[1].nc, frameEnd, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := expect(streams[1].in, frameStored); err != nil {
		t.Error(err)
	}
	if _, _, err := streams[0].in.frame(); err == nil {
		t.Error("the older stream goes on")
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	if !bytes.Equal(s.bytes["x"], want) || !s.whole["x"] || s.closes != 2 {
		t.Errorf("%d bytes, whole: %v, %d sinks closed", len(s.bytes["x"]), s.whole["x"], s.closes)
	}
}

// TestSnapshotStreamsThatMakeNoSense speak the protocol wrongly.
func TestSnapshotStreamsThatMakeNoSense(t *testing.T) {
	n := open(t, 1, func(o *Options) { o.Peers = map[uint64]string{2: "127.0.0.1:1"} })
	s := newShelf()
	n.recorder.lock.Lock()
	n.onSnapshot = s.take
	n.recorder.lock.Unlock()
	ten := append(binary.AppendUvarint(nil, 10), "x"...)
	for name, say := range map[string][]string{
		"no size":        {framed(frameSnapshot, "")},
		"a huge size":    {framed(frameSnapshot, string(binary.AppendUvarint(nil, 1<<63)))},
		"no beginning":   {framed(frameChunk, "0123456789")},
		"too much":       {framed(frameSnapshot, string(ten)), framed(frameChunk, "0123456789a")},
		"too little":     {framed(frameSnapshot, string(ten)), framed(frameEnd, "")},
		"another's":      {framed(frameSnapshot, string(ten)), framed(framePing, "01234567")},
		"messages in it": {framed(frameSnapshot, string(ten)), framed(frameMessages, "\x02\x01\x00")},
	} {
		d := replicaTwo()
		d.hello.Role = roleSnapshot
		stream, err := d.open(t.Context(), n.Addr())
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range say {
			if _, err := stream.nc.Write([]byte(f)); err != nil {
				t.Fatal(err)
			}
		}
		var refused *HandshakeError
		for err == nil {
			_, err = expect(stream.in, frameResume)
		}
		if !errors.As(err, &refused) || refused.Code != CodeMalformed || !refused.Remote {
			t.Errorf("%s: %v", name, err)
		}
		_ = stream.nc.Close()
	}
	n.shut(t)
	if s.closes != len(s.starts) || s.whole["x"] {
		t.Errorf("%d sinks, %d closed, whole: %v", len(s.starts), s.closes, s.whole["x"])
	}
}

func TestSnapshotsThatFail(t *testing.T) {
	nodes := mesh(t, 2, func(o *Options) { o.RetryMin, o.RetryMax = time.Millisecond, 2*time.Millisecond })
	s := newShelf()
	nodes[1].recorder.lock.Lock()
	nodes[1].onSnapshot = s.take
	nodes[1].recorder.lock.Unlock()
	send := func(meta string, size int64, open func(int64) (io.ReadCloser, error)) error {
		return nodes[0].SendSnapshot(t.Context(), 2, []byte(meta), size, open)
	}
	want := contents(3 * chunkBytes)
	for _, tt := range []struct {
		meta, words string
		size        int64
		open        func(int64) (io.ReadCloser, error)
		code        Code
	}{
		{"unwanted", "newer ones are here", 10, source(want), CodeSnapshot},
		{"unsaved", "disk is full", 10, source(want), CodeSnapshot},
		{"short", "read snapshot at", int64(len(want)) + 1, source(want), 0},
		{"unopened", "no such file", 10, func(int64) (io.ReadCloser, error) { return nil, errors.New("no such file") }, 0},
		{"negative", "too large", -1, source(want), 0},
		{strings.Repeat("m", MaxSnapshotMeta+1), "too large", 10, source(want), 0},
	} {
		err := send(tt.meta, tt.size, tt.open)
		var refused *HandshakeError
		if err == nil || !strings.Contains(err.Error(), tt.words) || errors.As(err, &refused) != (tt.code != 0) {
			t.Errorf("%.20s: %v, want %q", tt.meta, err, tt.words)
		} else if tt.code != 0 && (refused.Code != tt.code || !refused.Remote) {
			t.Errorf("%.20s: %+v", tt.meta, refused)
		}
	}
	s.fail = func(at int64) error {
		if at >= chunkBytes {
			return errors.New("bad sector")
		}
		return nil
	}
	if err := send("failing", int64(len(want)), source(want)); err == nil || !strings.Contains(err.Error(), "bad sector") {
		t.Errorf("a sink that fails: %v", err)
	}
	if err := nodes[0].SendSnapshot(t.Context(), 9, nil, 1, source(want)); !errors.Is(err, ErrDown) {
		t.Errorf("to nobody: %v", err)
	}
	nodes[1].shut(t)
	if err := send("late", 10, source(want)); err == nil || !strings.Contains(err.Error(), "5 attempts") {
		t.Errorf("to a replica that is gone: %v", err)
	}
	if s.closes != len(s.starts) {
		t.Errorf("%d sinks, %d closed", len(s.starts), s.closes)
	}
}

func TestSnapshotEndsWithItsContextAndItsTransport(t *testing.T) {
	for name, end := range map[string]func(cancel func(error), nodes []*node){
		"context":            func(cancel func(error), _ []*node) { cancel(errors.New("enough")) },
		"sender is closed":   func(_ func(error), nodes []*node) { _ = nodes[0].Transport.Close() },
		"receiver is closed": func(_ func(error), nodes []*node) { _ = nodes[1].Transport.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			nodes := mesh(t, 2, func(o *Options) {
				o.RetryMin, o.RetryMax = time.Millisecond, 2*time.Millisecond
				o.SnapshotRate = 1 << 20
			})
			s := newShelf()
			nodes[1].recorder.lock.Lock()
			nodes[1].onSnapshot = s.take
			nodes[1].recorder.lock.Unlock()
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			result := make(chan error)
			want := contents(1 << 30 / 64) // 16 s at this rate
			go func() { result <- nodes[0].SendSnapshot(ctx, 2, []byte("x"), int64(len(want)), source(want)) }()
			s.lock.Lock()
			for len(s.bytes["x"]) == 0 {
				s.change.Wait()
			}
			s.lock.Unlock()
			end(cancel, nodes)
			if err := <-result; err == nil {
				t.Error("a snapshot arrived that was ended")
			}
			for _, n := range nodes {
				n.shut(t)
			}
			s.lock.Lock()
			defer s.lock.Unlock()
			if s.closes != len(s.starts) || s.whole["x"] {
				t.Errorf("%d sinks, %d closed, whole: %v", len(s.starts), s.closes, s.whole["x"])
			}
			noGoroutines(t)
		})
	}
}

// TestSnapshotRate derives the least time: all but what may run ahead, which is
// a tenth of a second's worth and a chunk of as much.
func TestSnapshotRate(t *testing.T) {
	const rate, size = 4 << 20, 2 << 20
	nodes := mesh(t, 2, func(o *Options) { o.SnapshotRate = rate })
	s := newShelf()
	nodes[1].recorder.lock.Lock()
	nodes[1].onSnapshot = s.take
	nodes[1].recorder.lock.Unlock()
	begin := time.Now()
	if err := nodes[0].SendSnapshot(t.Context(), 2, []byte("x"), size, source(contents(size))); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took < 290*time.Millisecond {
		t.Errorf("%v for 2 MiB at 4 MiB/s", took)
	}
}
