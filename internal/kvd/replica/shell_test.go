package replica

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/weirdb/weir/internal/kvd/consensus"
	"github.com/weirdb/weir/internal/kvd/peer"
	"github.com/weirdb/weir/internal/kvd/state"
	"github.com/weirdb/weir/internal/kvd/wal"
	"github.com/weirdb/weir/internal/kvd/wire"
	"github.com/weirdb/weir/internal/testkit"
)

func TestParseMembers(t *testing.T) {
	got, err := ParseMembers("1=10.0.0.1:7000/6379, 2=[::1]:7000/redis.example.com:1, 3=h:7000")
	if err != nil {
		t.Fatal(err)
	}
	want := []consensus.Member{
		{ID: 1, Addr: "10.0.0.1:7000", Client: "10.0.0.1:6379"},
		{ID: 2, Addr: "[::1]:7000", Client: "redis.example.com:1"},
		{ID: 3, Addr: "h:7000"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("members (-want +got):\n%s", diff)
	}
	for _, bad := range []string{"", "1", "=h:1", "0=h:1", "x=h:1", "1=h", "1=:7000", "1=h:0", "1=h:x", "1=h:1/", "1=h:1/:2", "1=h:1/x"} {
		if m, err := ParseMembers(bad); err == nil {
			t.Errorf("%q: %+v, want an error", bad, m)
		}
	}
}

func TestAlarmRings(t *testing.T) {
	rung := make(chan struct{}, 1)
	a, err := newAlarm(func() { rung <- struct{}{} })
	if err != nil {
		t.Fatal(err)
	}
	at := now().Mono + int64(3*time.Millisecond)
	for _, moment := range []int64{at + int64(time.Hour), 0, at} {
		if err := a.set(moment); err != nil {
			t.Fatal(err)
		}
	}
	<-rung
	if early := at - now().Mono; early > 0 {
		t.Errorf("%d ns too early", early)
	}
	if err := a.set(now().Mono - 1); err != nil { // a moment that has passed rings at once
		t.Fatal(err)
	}
	<-rung
	if err := a.close(); err != nil {
		t.Error(err)
	}
}

// A sender with more than the inbox holds waits until the core has taken it, and is released
// when the core ends.
func TestInboxHoldsBack(t *testing.T) {
	in := newInbox()
	in.deliver(1, make([]wire.Message, inboxMessages))
	delivered := make(chan struct{})
	go func() {
		defer close(delivered)
		in.deliver(2, make([]wire.Message, 1))
		in.deliver(2, make([]wire.Message, inboxMessages))
		in.deliver(2, make([]wire.Message, 1)) // ended by close
	}()
	in.persisted(7)
	in.persisted(5)
	got := in.take(letters{})
	if got.count != inboxMessages || got.ticket != 7 {
		t.Fatalf("took %d messages, ticket %d", got.count, got.ticket)
	}
	for n := 0; n < inboxMessages+1; {
		<-in.wake
		got = in.take(got)
		for _, p := range got.messages {
			if p.from != 2 {
				t.Fatalf("a message from %d", p.from)
			}
		}
		n += got.count
	}
	if !in.call(func(consensus.Clock) {}) {
		t.Error("an open inbox takes no call")
	}
	if left := in.close(); len(left) != 1 {
		t.Errorf("%d calls were left", len(left))
	}
	<-delivered
	if in.call(func(consensus.Clock) {}) {
		t.Error("a closed inbox takes a call")
	}
}

func TestHistogram(t *testing.T) {
	h := newHistogram([]float64{1, 10})
	for _, v := range []float64{0.5, 1, 2, 10, 11} {
		h.observe(v)
	}
	var out dto.Metric
	if err := h.metric(prometheus.NewDesc("x", "x", nil, nil)).Write(&out); err != nil {
		t.Fatal(err)
	}
	got := out.GetHistogram()
	if got.GetSampleCount() != 5 || got.GetSampleSum() != 24.5 || got.GetBucket()[0].GetCumulativeCount() != 2 || got.GetBucket()[1].GetCumulativeCount() != 4 {
		t.Errorf("%v", got)
	}
}

// The disk in memory does what that of a directory does.
func TestMemoryDisk(t *testing.T) {
	log, found, err := wal.Open("", wal.Identity{Cluster: "c", Replica: 1}, wal.Options{SegmentBytes: memorySegment, Disk: newMemoryDisk()})
	if err != nil || !found.Created {
		t.Fatalf("%+v, %v", found, err)
	}
	state := bytes.Repeat([]byte("state"), 100_000)
	for index := uint64(1); index <= 4; index++ {
		_, err := log.Snapshots().Create(wal.SnapshotInfo{Index: index, Term: 1}, func(w io.Writer) error {
			_, err := w.Write(state)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := log.Snapshots().Prune(2); err != nil {
		t.Fatal(err)
	}
	list := log.Snapshots().List()
	if len(list) != 2 || list[0].Index != 3 {
		t.Fatalf("snapshots %+v", list)
	}
	r, err := log.Snapshots().Open(list[1])
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, state) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if err := errors.Join(r.Close(), log.Close()); err != nil {
		t.Error(err)
	}
}

// More records than a round of the log holds are written in pieces.
func TestDiskWritesInPieces(t *testing.T) {
	files := newMemoryDisk()
	open := func() (*wal.Log, *wal.Recovered) {
		log, found, err := wal.Open("", wal.Identity{Cluster: "c", Replica: 1}, wal.Options{SegmentBytes: 1 << 20, Disk: files})
		if err != nil {
			t.Fatal(err)
		}
		return log, found
	}
	log, _ := open()
	if err := log.Prepare(); err != nil { // or the log grows until a segment is made
		t.Fatal(err)
	}
	in := newInbox()
	d := newDisk(log, in, slog.New(slog.DiscardHandler))
	var records []consensus.Record
	data := bytes.Repeat([]byte("x"), roundBytes/3)
	for index := uint64(1); index <= 9; index++ {
		records = append(records, consensus.Record{Kind: consensus.RecordEntry, Term: 1, Index: index, Data: data})
	}
	d.put(order{records: records, ticket: 1})
	d.put(order{ticket: 2, sync: true})
	d.stop()
	if err := d.run(); err != nil {
		t.Fatal(err)
	}
	if got := in.take(letters{}).ticket; got != 2 || d.stats.syncs.Load() < 3 {
		t.Errorf("ticket %d, %d flushes", got, d.stats.syncs.Load())
	}
	if d.wants.Load() != 1 {
		t.Errorf("a new segment was asked for %d times", d.wants.Load())
	}
	log, found := open()
	if found.Last != 9 {
		t.Errorf("the last entry is %d", found.Last)
	}
	if err := log.Close(); err != nil {
		t.Error(err)
	}
}

// crampedDisk has no room for a segment in advance.
type crampedDisk struct {
	*memoryDisk
	full  atomic.Bool
	tries atomic.Int32
}

func (d *crampedDisk) Create(name string) (wal.File, error) {
	if d.full.Load() && strings.HasPrefix(name, "spare-") {
		d.tries.Add(1)
		return nil, syscall.ENOSPC
	}
	return d.memoryDisk.Create(name)
}

// Without room for a segment in advance the log asks for a roll as it did, and does not fill
// the disk again and again.
func TestDiskWithoutRoomForASpare(t *testing.T) {
	files := &crampedDisk{memoryDisk: newMemoryDisk()}
	log, _, err := wal.Open("", wal.Identity{Cluster: "c", Replica: 1}, wal.Options{SegmentBytes: 1 << 20, Disk: files})
	if err != nil {
		t.Fatal(err)
	}
	d := newDisk(log, newInbox(), slog.New(slog.DiscardHandler))
	files.full.Store(true)
	for index := uint64(1); index <= 20; index++ {
		records := []consensus.Record{{Kind: consensus.RecordEntry, Term: 1, Index: index, Data: make([]byte, 64<<10)}}
		if err := d.carryOut([]order{{records: records, ticket: index, sync: true}}); err != nil {
			t.Fatal(err)
		}
		d.spare.Wait()
	}
	if n := files.tries.Load(); n != 1 || d.wants.Load() != 1 {
		t.Errorf("a segment was tried %d times, and a roll asked for %d times", n, d.wants.Load())
	}
	if err := log.Close(); err != nil {
		t.Error(err)
	}
}

// asideDisk is a disk whose files can write aside.
type asideDisk struct{ *memoryDisk }

type asideFile struct{ wal.File }

func (f asideFile) WriteSync(b []byte, off int64, aside bool) (bool, error) {
	_, err := f.WriteAt(b, off)
	return aside, err
}

func (d asideDisk) Create(name string) (wal.File, error) {
	f, err := d.memoryDisk.Create(name)
	return asideFile{f}, err
}

func (d asideDisk) Open(name string, write bool) (wal.File, error) {
	f, err := d.memoryDisk.Open(name, write)
	return asideFile{f}, err
}

// A write that comes with much else goes to the disk's own thread; one that comes alone is a
// blocking call.
func TestDiskWritesAside(t *testing.T) {
	log, _, err := wal.Open("", wal.Identity{Cluster: "c", Replica: 1}, wal.Options{SegmentBytes: 1 << 20, Disk: asideDisk{newMemoryDisk()}})
	if err != nil {
		t.Fatal(err)
	}
	d := newDisk(log, newInbox(), slog.New(slog.DiscardHandler))
	index := uint64(0)
	for _, busy := range []bool{false, true, false, true, true} {
		index++
		before := d.stats.aside.Load()
		records := []consensus.Record{{Kind: consensus.RecordEntry, Term: 1, Index: index}}
		if err := d.carryOut([]order{{records: records, ticket: index, sync: true, busy: busy}}); err != nil {
			t.Fatal(err)
		}
		if aside := d.stats.aside.Load() > before; aside != busy {
			t.Errorf("order %d, busy %t, was written aside: %t", index, busy, aside)
		}
	}
	if err := log.Close(); err != nil {
		t.Error(err)
	}
}

// reader is a client of a feed that may refuse to take events.
type reader struct {
	full bool
	got  []wire.Message
}

func testFeed(readers map[peer.Addr]*reader) (*feed, *teller) {
	f := newFeed()
	f.send = func(to peer.Addr, ms []wire.Message) error {
		r := readers[to]
		if r.full {
			return peer.ErrFull
		}
		r.got = append(r.got, ms...)
		return nil
	}
	f.hangUp = func(peer.Addr, error) {}
	return f, &teller{feed: f, byKey: map[string][]*watch{}, byClient: map[peer.Addr]map[uint64]*watch{}}
}

// turn does what run does once.
func (t *teller) turn() {
	t.mu.Lock()
	steps := t.pending
	t.pending, t.waiting = nil, 0
	t.mu.Unlock()
	for i := range steps {
		t.step(&steps[i])
	}
	t.apologise()
}

// Every watch is told every change of its keys in order, or that it missed
// some; against a slow and obvious reckoning.
func TestFeedTellsAllOrSaysSo(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for round := range testkit.Rounds(15, 50) {
		readers := map[peer.Addr]*reader{peer.FirstClient: {}, peer.FirstClient + 1: {}}
		f, tell := testFeed(readers)
		store := state.New(state.Config{Changes: 100})
		spans := []wire.Command{
			{Verb: wire.Range, Key: "k3", End: "k3\x00"}, {Verb: wire.Range, Key: "k2", End: "k6"}, {Verb: wire.Range},
		}
		for a := range readers {
			for i := range spans {
				m := wire.Message{Request: uint64(i + 1), Data: spans[i].Append(nil)}
				if err := f.watch(store, a, &m); err != nil {
					t.Fatal(err)
				}
			}
		}
		var applied []wire.Change
		for revision := uint64(1); revision <= 200; revision++ {
			c := wire.Command{Verb: wire.Set, Key: fmt.Sprint("k", random.IntN(9)), Value: []byte(fmt.Sprint(revision))}
			store.Apply(revision, 1, c.Append(nil))
			applied = append(applied, wire.Change{Kind: wire.ChangePut, Key: c.Key, Value: c.Value, Revision: revision})
			if random.IntN(4) == 0 {
				f.drain(store)
			}
			if random.IntN(8) == 0 {
				readers[peer.FirstClient].full = !readers[peer.FirstClient].full
			}
			if random.IntN(3) == 0 {
				tell.turn()
			}
		}
		readers[peer.FirstClient].full = false
		f.drain(store)
		tell.turn()
		tell.turn()
		for a, r := range readers {
			for i := range spans {
				span := wire.Span{From: spans[i].Key, To: spans[i].End}
				checkWatch(t, fmt.Sprintf("round %d, client %d, watch %d", round, a-peer.FirstClient, i+1), r.got, uint64(i+1), span, applied)
			}
			missed := 0
			for i := range r.got {
				if r.got[i].Code == wire.CodeMissed {
					missed++
				}
			}
			if a != peer.FirstClient && missed > 0 {
				t.Errorf("round %d: a client that reads missed changes", round)
			}
		}
	}
}

// checkWatch goes through what one watch was told.
func checkWatch(t *testing.T, what string, got []wire.Message, request uint64, span wire.Span, applied []wire.Change) {
	t.Helper()
	next := 0 // in applied
	skip := func(to uint64) {
		for next < len(applied) && applied[next].Revision <= to {
			next++
		}
	}
	for i := range got {
		m := &got[i]
		if m.Request != request {
			continue
		}
		if m.Code == wire.CodeMissed {
			skip(m.Revision)
			continue
		}
		changes, err := wire.ParseChanges(m.Data)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range changes {
			for next < len(applied) && !span.Holds(applied[next].Key) {
				next++
			}
			if next == len(applied) || cmp.Diff(applied[next], c) != "" {
				t.Fatalf("%s: told %+v, want change %d of %v", what, c, next, len(applied))
			}
			next++
		}
	}
	for ; next < len(applied); next++ {
		if span.Holds(applied[next].Key) {
			t.Fatalf("%s: change %+v was left out in silence", what, applied[next])
		}
	}
}

// More changes than may wait are a miss, not a pile of memory.
func TestFeedIsBounded(t *testing.T) {
	r := &reader{}
	f, tell := testFeed(map[peer.Addr]*reader{peer.FirstClient: r})
	store := state.New(state.Config{Changes: 10})
	all := wire.Command{Verb: wire.Range}
	if err := f.watch(store, peer.FirstClient, &wire.Message{Request: 1, Data: all.Append(nil)}); err != nil {
		t.Fatal(err)
	}
	f.push(feedStep{changes: make([]wire.Change, feedChanges), last: 1})
	f.push(feedStep{changes: make([]wire.Change, 1), last: 2})
	if f.waiting != feedChanges {
		t.Errorf("%d changes wait", f.waiting)
	}
	f.pending[1].changes = nil // they are not real
	tell.turn()
	if len(r.got) != 2 || r.got[0].Code != 0 || r.got[1].Code != wire.CodeMissed || r.got[1].Revision != 2 {
		t.Errorf("told %v, want that the watch begins, and that it missed changes", r.got)
	}
	f.gone(peer.FirstClient)
	tell.turn()
	if n := f.watching.Load(); n != 0 {
		t.Errorf("%d watches are left", n)
	}
}

func TestWatchesOfOneClientAreBounded(t *testing.T) {
	r := &reader{}
	f, tell := testFeed(map[peer.Addr]*reader{peer.FirstClient: r})
	store := state.New(state.Config{Changes: 10})
	one := wire.Command{Verb: wire.Range, Key: "k", End: "k\x00"}
	for i := range uint64(maxWatches + 1) {
		if err := f.watch(store, peer.FirstClient, &wire.Message{Request: i + 1, Data: one.Append(nil)}); err != nil {
			t.Fatal(err)
		}
	}
	tell.turn()
	if n := f.watching.Load(); n != maxWatches || len(r.got) != maxWatches+1 || r.got[maxWatches].Kind != wire.Refused {
		t.Errorf("%d watches, told %d times", n, len(r.got))
	}
}

func TestFeedRunEnds(t *testing.T) {
	f, _ := testFeed(nil)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); f.run(ctx) }()
	cancel()
	<-done
}

func TestSnapshotMeta(t *testing.T) {
	m := wire.Message{Kind: wire.Raft, Data: []byte("x")}
	b := appendSnapshotMeta(nil, wal.SnapshotInfo{Index: 300, Term: 7}, &m)
	info, got, err := parseSnapshotMeta(b)
	if err != nil || info.Index != 300 || info.Term != 7 || string(got.Data) != "x" {
		t.Errorf("%+v, %v, %v", info, got, err)
	}
	for n := range b {
		if _, _, err := parseSnapshotMeta(b[:n]); err == nil {
			t.Errorf("the first %d of %d bytes make sense", n, len(b))
		}
	}
}

func FuzzParseSnapshotMeta(f *testing.F) {
	m := wire.Message{Kind: wire.Raft, Data: []byte("x")}
	f.Add(appendSnapshotMeta(nil, wal.SnapshotInfo{Index: 300, Term: 7}, &m))
	f.Fuzz(func(_ *testing.T, b []byte) {
		if _, m, err := parseSnapshotMeta(b); err == nil && m.Kind == 0 {
			panic("a message of no kind")
		}
	})
}

func TestValidate(t *testing.T) {
	good := Config{ID: 1, Members: []consensus.Member{{ID: 1, Addr: "127.0.0.1:1"}}, Dir: "d"}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Config){
		"no id":                      func(c *Config) { c.ID = 0 },
		"no peers":                   func(c *Config) { c.Members = nil },
		"not among":                  func(c *Config) { c.ID = 2 },
		"data directory":             func(c *Config) { c.Dir = "" },
		"writes nothing":             func(c *Config) { c.Memory = true },
		"election":                   func(c *Config) { c.Election = time.Millisecond },
		"batch":                      func(c *Config) { c.BatchDelay = -1 },
		"largest value":              func(c *Config) { c.MaxValue = wire.MaxValue + 1 },
		"session idle":               func(c *Config) { c.SessionIdle = time.Second },
		"must not be negative":       func(c *Config) { c.SnapshotBytes = -1 },
		"do not survive the loss of": func(c *Config) { c.Members = append(c.Members, consensus.Member{ID: 2}) },
	} {
		c := good
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error with %q: %v", want, err)
		}
	}
}

// The most frequent requests go to the core without a copy on the heap.
func TestRequestsAllocateNothing(t *testing.T) {
	p, from := &peers{}, peer.FirstClient
	ms := []wire.Message{{Kind: wire.WeakRead}, {Kind: wire.Read}, {Kind: wire.Strong}, {Kind: wire.Weak}}
	if n := testing.AllocsPerRun(100, func() {
		if got := p.requests(from, ms); len(got) != len(ms) {
			panic("requests are missing")
		}
	}); n != 0 {
		t.Errorf("%v allocations for %d requests", n, len(ms))
	}
}
