package pgrepl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
)

// shelf stores segments in memory.
type shelf struct {
	mu       sync.Mutex
	segments map[string]*kept
	history  map[string]string
	// changed is sent to after each Sync and Close.
	changed chan struct{}
	fail    error // of the next WriteAt
}

type kept struct {
	s        *shelf
	data     []byte
	written  int64
	synced   int64
	opened   int
	complete bool
	closed   bool
}

func newShelf() *shelf {
	return &shelf{segments: map[string]*kept{}, history: map[string]string{}, changed: make(chan struct{}, 1)}
}

func (s *shelf) OpenSegment(g Segment) (SegmentWriter, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.segments[g.Name()]
	if k == nil {
		k = &kept{s: s, data: make([]byte, g.Size)}
		s.segments[g.Name()] = k
	}
	if g.Timeline > 1 && s.history[fmt.Sprintf("%08X.history", g.Timeline)] == "" {
		return nil, errors.New("a segment before the history of its timeline")
	}
	k.opened++
	k.written, k.synced, k.complete, k.closed = 0, 0, false, false
	return k, nil
}

func (s *shelf) History(h History) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.history[h.Name] = string(h.Content)
	return nil
}

func (k *kept) WriteAt(p []byte, off int64) (int, error) {
	k.s.mu.Lock()
	defer k.s.mu.Unlock()
	if k.s.fail != nil {
		return 0, k.s.fail
	}
	if off != k.written || k.closed {
		return 0, fmt.Errorf("write at %d, expected %d (closed: %v)", off, k.written, k.closed)
	}
	k.written += int64(len(p))
	return copy(k.data[off:], p), nil
}

func (k *kept) Sync() error {
	k.s.mu.Lock()
	k.synced = k.written
	k.s.mu.Unlock()
	k.s.tell()
	return nil
}

func (k *kept) Close(complete bool) error {
	k.s.mu.Lock()
	defer k.s.mu.Unlock()
	if complete && (k.synced != k.written || k.written != int64(len(k.data))) {
		return fmt.Errorf("complete with %d bytes written and %d safe", k.written, k.synced)
	}
	k.complete, k.closed = complete, true
	return nil
}

func (s *shelf) tell() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// names lists segments; those that are not complete end in ".partial".
func (s *shelf) names() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := map[string]bool{}
	for name, k := range s.segments {
		m[name] = k.complete
	}
	return m
}

// same compares the received segments with the server's own files, and returns how many it
// compared.
func (s *shelf) same(t *testing.T, dir string) int {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for name, k := range s.segments {
		file, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Errorf("segment %s: %v", name, err)
			continue
		}
		n++
		if !bytes.Equal(file[:k.synced], k.data[:k.synced]) || k.synced == 0 {
			t.Errorf("segment %s differs from the server's in its first %d bytes", name, k.synced)
		}
	}
	return n
}

// reception is a running ReceiveWAL.
type reception struct {
	cancel   context.CancelFunc
	done     chan struct{}
	timeline uint32
	flushed  LSN
	err      error
}

func startReceiving(t *testing.T, c *Conn, cfg ReceiveConfig, sink WALSink) *reception {
	t.Helper()
	ctx, cancel := context.WithCancel(patient(t))
	r := &reception{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.timeline, r.flushed, r.err = c.ReceiveWAL(ctx, cfg, sink)
	}()
	t.Cleanup(r.stop)
	return r
}

// mustRun fails the test if the reception has ended.
func (r *reception) mustRun(t *testing.T) {
	t.Helper()
	select {
	case <-r.done:
		t.Fatalf("the reception has ended: %v", r.err)
	default:
	}
}

func (r *reception) stop() {
	r.cancel()
	<-r.done
}

// churn makes the server write some log and begin a new segment.
func churn(t *testing.T, sql *Conn) LSN {
	t.Helper()
	run(t, sql, "create table if not exists churn (a text)", "insert into churn select repeat('x', 500) from generate_series(1, 500)")
	return askLSN(t, sql, "select pg_switch_wal()")
}

// roomy starts a server that keeps its old log, so that it can be compared.
func roomy(t *testing.T) (*lab.Postgres, *Conn) {
	t.Helper()
	p := server(t, map[string]string{"wal_keep_size": "512MB"})
	return p, connect(t, config(t, p), SQL)
}

func TestReceiveWALIsTheServersOwn(t *testing.T) {
	p, sql := roomy(t)
	c := connect(t, config(t, p), Physical)
	if _, err := c.CreateSlot(patient(t), SlotConfig{Name: "archive", Kind: PhysicalSlot, Reserve: true}); err != nil {
		t.Fatal(err)
	}
	var start LSN
	if c.Version() < 150000 { // these servers cannot report the slot's position
		start = askLSN(t, sql, "select restart_lsn from pg_replication_slots")
	}
	for range 3 {
		churn(t, sql)
	}
	s := newShelf()
	var flushed []LSN
	cfg := ReceiveConfig{Slot: "archive", Start: start, Synchronous: true, OnFlush: func(_ uint32, at LSN) { flushed = append(flushed, at) }}
	r := startReceiving(t, c, cfg, s)
	run(t, sql, "insert into churn values ('the end')")
	end := askLSN(t, sql, "select pg_current_wal_flush_lsn()")
	testkit.Eventually(t, "the server knows that all is safe", func() bool {
		r.mustRun(t)
		return askLSN(t, sql, "select coalesce(max(flush_lsn), '0/0') from pg_stat_replication") >= end
	})
	// The server shows the confirmed position before it moves the slot.
	testkit.Eventually(t, "the slot lets go of what is safe", func() bool {
		return askLSN(t, sql, "select restart_lsn from pg_replication_slots") >= end
	})
	r.stop()
	if !errors.Is(r.err, context.Canceled) || r.timeline != 1 || r.flushed < end {
		t.Errorf("safe up to %s of %s on timeline %d: %v", r.flushed, end, r.timeline, r.err)
	}
	if n := s.same(t, filepath.Join(p.DataDir(), "pg_wal")); n < 4 {
		t.Errorf("%d segments", n)
	}
	for i, at := range flushed {
		if i > 0 && at <= flushed[i-1] {
			t.Errorf("flushed %s after %s", at, flushed[i-1])
		}
	}
	if len(flushed) == 0 || flushed[len(flushed)-1] != r.flushed {
		t.Errorf("OnFlush ends at %v, the reception at %s", flushed, r.flushed)
	}
}

func TestReceiveWALUntil(t *testing.T) {
	p, sql := roomy(t)
	start := askLSN(t, sql, "select pg_current_wal_flush_lsn()")
	churn(t, sql)
	run(t, sql, "insert into churn values ('x')")
	end := askLSN(t, sql, "select pg_current_wal_flush_lsn()")
	run(t, sql, "insert into churn values ('y')")
	c := connect(t, config(t, p), Physical)
	s := newShelf()
	timeline, flushed, err := c.ReceiveWAL(patient(t), ReceiveConfig{Start: start, Until: end}, s)
	if err != nil || timeline != 1 || flushed < end {
		t.Fatalf("timeline %d, safe up to %s of %s: %v", timeline, flushed, end, err)
	}
	first := SegmentAt(1, start, 16<<20)
	second := Segment{1, first.Number + 1, first.Size}
	if diff := cmp.Diff(map[string]bool{first.Name(): true, second.Name(): false}, s.names()); diff != "" {
		t.Errorf("segments (-want +got):\n%s", diff)
	}
	s.same(t, filepath.Join(p.DataDir(), "pg_wal"))
	if _, err := c.Identify(patient(t)); err != nil {
		t.Errorf("the connection afterwards: %v", err)
	}
	// Again on the same connection, from the present position, into the same segments.
	if _, again, err := c.ReceiveWAL(patient(t), ReceiveConfig{Start: flushed, Until: flushed}, s); err != nil || again < flushed {
		t.Errorf("again up to %s: %v", again, err)
	}
}

func TestReceiveWALSurvivesBrokenConnections(t *testing.T) {
	p, sql := roomy(t)
	relay := labtest.Relay(t, p.Addr())
	connectRelay := func() *Conn { return connect(t, config(t, p, relay.Addr()), Physical) }
	c := connectRelay()
	if _, err := c.CreateSlot(patient(t), SlotConfig{Name: "archive", Kind: PhysicalSlot, Reserve: true}); err != nil {
		t.Fatal(err)
	}
	s := newShelf()
	cfg := ReceiveConfig{Slot: "archive", Synchronous: true}
	// In the middle of a segment, in the middle of a message.
	relay.CutAfter(lab.ToClient, 3<<20+12345)
	r := startReceiving(t, c, cfg, s)
	churn(t, sql)
	churn(t, sql)
	<-r.done
	if r.err == nil || errors.Is(r.err, context.Canceled) {
		t.Fatalf("after a cut: %v", r.err)
	}
	idle(t, sql, "archive") // the server may notice the cut later than the receiver
	cfg.Start, cfg.Timeline = r.flushed, r.timeline
	r = startReceiving(t, connectRelay(), cfg, s)
	end := churn(t, sql)
	testkit.Eventually(t, "all is safe", func() bool {
		r.mustRun(t)
		return askLSN(t, sql, "select restart_lsn from pg_replication_slots") >= end
	})
	r.stop()
	if n := s.same(t, filepath.Join(p.DataDir(), "pg_wal")); n < 3 {
		t.Errorf("%d segments", n)
	}
}

// A server that shuts down waits for the receiver, so nothing is missing, not even its last
// record.
func TestReceiveWALToTheLastByte(t *testing.T) {
	p, sql := roomy(t)
	s := newShelf()
	r := startReceiving(t, connect(t, config(t, p), Physical), ReceiveConfig{}, s)
	churn(t, sql)
	testkit.Eventually(t, "we receive", func() bool {
		return run(t, sql, "select count(*) from pg_stat_replication where state = 'streaming'") == "1"
	})
	run(t, sql, "insert into churn values ('the end')")
	restarted := make(chan error, 1)
	go func() { restarted <- p.Restart(patient(t)) }()
	<-r.done
	if !errors.Is(r.err, ErrShutdown) {
		t.Errorf("at shutdown: %v", r.err)
	}
	if err := <-restarted; err != nil {
		t.Fatal(err)
	}
	s.same(t, filepath.Join(p.DataDir(), "pg_wal"))
	// The shutdown checkpoint is the last record, and the one from which the server started
	// again.
	sql = connect(t, config(t, p), SQL)
	if at := askLSN(t, sql, "select checkpoint_lsn from pg_control_checkpoint()"); r.flushed <= at {
		t.Errorf("safe up to %s, the shutdown checkpoint is at %s", r.flushed, at)
	}
}

// Received log is flushed in time, even if no more arrives.
func TestReceiveWALFlushesWhenQuiet(t *testing.T) {
	p, sql := roomy(t)
	c := connect(t, config(t, p), Physical)
	if _, err := c.CreateSlot(patient(t), SlotConfig{Name: "archive", Kind: PhysicalSlot, Reserve: true}); err != nil {
		t.Fatal(err)
	}
	r := startReceiving(t, c, ReceiveConfig{Slot: "archive", StreamConfig: StreamConfig{StatusInterval: 50 * time.Millisecond}}, newShelf())
	run(t, sql, "create table q (a int)")
	end := askLSN(t, sql, "select pg_current_wal_flush_lsn()")
	testkit.Eventually(t, "the server knows that all is safe", func() bool {
		r.mustRun(t)
		return askLSN(t, sql, "select restart_lsn from pg_replication_slots") >= end
	})
}

func TestReceiveWALFollowsTimelines(t *testing.T) {
	p, sql := roomy(t)
	start := askLSN(t, sql, "select pg_current_wal_flush_lsn()")
	churn(t, sql)
	promote(t, p)
	sql = connect(t, config(t, p), SQL)
	churn(t, sql)
	promote(t, p)
	sql = connect(t, config(t, p), SQL)
	churn(t, sql)
	run(t, sql, "insert into churn values ('the end')")
	end := askLSN(t, sql, "select pg_current_wal_flush_lsn()")

	s := newShelf()
	timeline, flushed, err := connect(t, config(t, p), Physical).ReceiveWAL(patient(t), ReceiveConfig{Start: start, Timeline: 1, Until: end}, s)
	if err != nil || timeline != 3 || flushed < end {
		t.Fatalf("timeline %d, safe up to %s of %s: %v", timeline, flushed, end, err)
	}
	if len(s.history) != 2 {
		t.Errorf("histories %v", s.history)
	}
	for name, content := range s.history {
		file, err := os.ReadFile(filepath.Join(p.DataDir(), "pg_wal", name))
		if err != nil || string(file) != content {
			t.Errorf("history %s: %q, the server has %q (%v)", name, content, file, err)
		}
	}
	h, err := connect(t, config(t, p), Physical).TimelineHistory(patient(t), 3)
	if err != nil {
		t.Fatal(err)
	}
	ancestors, err := h.Ancestors()
	if err != nil || len(ancestors) != 2 || ancestors[0].Timeline != 1 || ancestors[1].Timeline != 2 || ancestors[0].End < start || ancestors[1].End < ancestors[0].End {
		t.Errorf("ancestors %v: %v", ancestors, err)
	}
	s.mu.Lock()
	seen := map[string]bool{}
	for name := range s.segments {
		seen[name[:8]] = true
	}
	s.mu.Unlock()
	if !seen["00000001"] || !seen["00000002"] || !seen["00000003"] {
		t.Errorf("segments of timelines %v", seen)
	}
	// The server renames the last segment of an old timeline when it leaves it.
	for name, k := range s.segments {
		file, err := os.ReadFile(filepath.Join(p.DataDir(), "pg_wal", name))
		if errors.Is(err, os.ErrNotExist) {
			file, err = os.ReadFile(filepath.Join(p.DataDir(), "pg_wal", name+".partial"))
		}
		if err != nil || !bytes.Equal(file[:k.synced], k.data[:k.synced]) {
			t.Errorf("segment %s: differs in its first %d bytes, or %v", name, k.synced, err)
		}
	}
}

// promote restarts the server as a standby without a primary and promotes it, which begins a new
// timeline.
func promote(t *testing.T, p *lab.Postgres) {
	t.Helper()
	p.Kill()
	signal := filepath.Join(p.DataDir(), "standby.signal")
	if err := os.WriteFile(signal, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	chownLike(t, filepath.Join(p.DataDir(), "PG_VERSION"), signal)
	if err := p.Restart(patient(t)); err != nil {
		t.Fatal(err)
	}
	sql := connect(t, config(t, p), SQL)
	if run(t, sql, "select pg_promote()") != "t" {
		t.Fatal("the server was not promoted")
	}
	if err := sql.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestReceiveWALReportsItsSink(t *testing.T) {
	p, sql := roomy(t)
	s := newShelf()
	s.fail = errors.New("disk full")
	r := startReceiving(t, connect(t, config(t, p), Physical), ReceiveConfig{}, s)
	churn(t, sql)
	<-r.done
	if !errors.Is(r.err, s.fail) || !strings.Contains(r.err.Error(), "write segment 0000") {
		t.Errorf("%v", r.err)
	}
}

func TestReceiveWALRefusals(t *testing.T) {
	p, _ := roomy(t)
	c := connect(t, config(t, p), Physical)
	for _, tt := range []struct {
		name string
		cfg  ReceiveConfig
		want string
	}{
		{"no such slot", ReceiveConfig{Slot: "none"}, `replication slot "none" does not exist`},
		{"bad slot", ReceiveConfig{Slot: "none at all"}, "slot name"},
		{"a position to come", ReceiveConfig{Start: 1 << 60}, "ahead of the WAL flush position"},
		{"no such timeline", ReceiveConfig{Timeline: 7}, "timeline 7"},
	} {
		_, _, err := c.ReceiveWAL(patient(t), tt.cfg, newShelf())
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	if _, err := c.Identify(patient(t)); err != nil {
		t.Errorf("the connection afterwards: %v", err)
	}
}

// A history that a damaged server might send is refused.
func TestAncestorsRefuses(t *testing.T) {
	for _, content := range []string{"1", "x\t0/1\tr", "1\t1\tr", "3\t0/1\tr", "2\t0/1\tr\n1\t0/2\tr"} {
		if list, err := (History{Timeline: 3, Content: []byte(content)}).Ancestors(); err == nil {
			t.Errorf("%q: %v", content, list)
		}
	}
	if list, err := (History{Timeline: 3, Content: []byte("# by hand\n\n1 0/A reason with words\n")}).Ancestors(); err != nil || len(list) != 1 || list[0] != (Ancestor{1, 10}) {
		t.Errorf("%v: %v", list, err)
	}
}

// slowSegment takes a while to sync.
type slowSegment struct {
	SegmentWriter
	takes time.Duration
}

func (s slowSegment) Sync() error {
	time.Sleep(s.takes)
	return nil
}

// After a flush that took longer than StatusInterval, the next one waits at least as long,
// unless the server asks for a reply.
func TestSlowSinkGetsAsMuchTimeAsItTakes(t *testing.T) {
	const takes = 20 * time.Millisecond
	r := &receiver{
		cfg:    ReceiveConfig{StreamConfig: StreamConfig{StatusInterval: time.Nanosecond}},
		stream: &Stream{}, writer: slowSegment{takes: takes}, at: 1,
	}
	if err := r.flush(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if r.pause < takes {
		t.Errorf("the next flush is due in %v, and this one took %v", r.pause, takes)
	}
	r.pause = time.Hour // so that a busy machine does not matter
	if r.due(Frame{}) || !r.due(Frame{ReplyRequested: true}) {
		t.Error("a flush is due at once, or not when the server asks")
	}
	if err := r.flush(t.Context(), false); err != nil || r.pause >= time.Hour {
		t.Errorf("after a flush that had nothing to do: %v, pause %v", err, r.pause)
	}
}
