package wal_test

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirdb/weir/internal/kvd/wal"
	"github.com/weirdb/weir/internal/kvd/wal/waltest"
)

var me = wal.Identity{Cluster: "test", Replica: 1}

// small returns options for small files.
func small() wal.Options { return wal.Options{SegmentBytes: 4096} }

func open(t testing.TB, dir string) (*wal.Log, *wal.Recovered) {
	t.Helper()
	l, r, err := wal.Open(dir, me, small())
	if err != nil {
		t.Fatal(err)
	}
	return l, r
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// show returns what was recovered, one line per record.
func show(t testing.TB, r *wal.Recovered) []string {
	t.Helper()
	var lines []string
	for rec, err := range r.Records() {
		must(t, err)
		lines = append(lines, fmt.Sprintf("%s %d %d %s", rec.Kind, rec.Term, rec.Index, rec.Data))
	}
	return lines
}

func same(t testing.TB, got, want []string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("recovered (-want +got):\n%s", diff)
	}
}

func entry(term, index uint64) wal.Record {
	return wal.Record{Kind: wal.Entry, Term: term, Index: index, Data: fmt.Appendf(nil, "e%d.%d", term, index)}
}

func hard(s string) wal.Record { return wal.Record{Kind: wal.Hard, Data: []byte(s)} }

func TestWhatIsFlushedComesBack(t *testing.T) {
	dir := t.TempDir()
	l, r := open(t, dir)
	if !r.Created {
		t.Error("a new log does not say so")
	}
	must(t, l.Append(hard("t1"), entry(1, 1), entry(1, 2)))
	must(t, l.Sync())
	must(t, l.Append(entry(1, 3), entry(2, 3), hard("t2")))
	must(t, l.Close())
	l, r = open(t, dir)
	if r.Created || !r.Clean || r.Torn != nil || r.Last != 3 || r.LastTerm != 2 {
		t.Errorf("recovered %+v", r)
	}
	same(t, show(t, r), []string{"hard 0 0 t1", "entry 1 1 e1.1", "entry 1 2 e1.2", "entry 2 3 e2.3", "hard 0 0 t2"})
	must(t, l.Close())
}

func TestReplacedEntriesAreGone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, _ := open(t, dir)
	for i := uint64(1); i <= 5; i++ {
		must(t, l.Append(entry(1, i)))
	}
	must(t, l.Roll(nil))
	must(t, l.Append(entry(2, 4), entry(2, 5)))
	must(t, l.Sync())
	must(t, l.Append(entry(3, 5), entry(3, 6)))
	must(t, l.Roll(nil))
	must(t, l.Append(entry(4, 6)))
	if index, term := l.Last(); index != 6 || term != 4 {
		t.Errorf("last is %d of term %d", index, term)
	}
	must(t, l.Close())
	l, r := open(t, dir)
	same(t, show(t, r), []string{"entry 1 1 e1.1", "entry 1 2 e1.2", "entry 1 3 e1.3", "entry 2 4 e2.4", "entry 3 5 e3.5", "entry 4 6 e4.6"})
	must(t, l.Close())
}

func TestOnlyTheNewestCarryIsAlive(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, _ := open(t, dir)
	must(t, l.Append(hard("old"), entry(1, 1), wal.Record{Kind: wal.Witness, Data: []byte("w1")}))
	must(t, l.Roll([]wal.Record{hard("carried"), {Kind: wal.Witness, Term: 7, Index: 8, Data: []byte("w1")}}))
	must(t, l.Append(hard("new"), wal.Record{Kind: wal.MaxKind}))
	must(t, l.Close())
	for range 2 {
		var r *wal.Recovered
		l, r = open(t, dir)
		same(t, show(t, r), []string{"entry 1 1 e1.1", "hard 0 0 carried", "witness 7 8 w1", "hard 0 0 new", "kind-127 0 0 "})
		must(t, l.Close())
	}
}

func TestRecordsMayBeReadAgainAndLeft(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, _ := open(t, dir)
	must(t, l.Append(entry(1, 1), entry(1, 2)))
	must(t, l.Close())
	l, r := open(t, dir)
	for rec, err := range r.Records() {
		must(t, err)
		if rec.Index != 1 {
			t.Errorf("first record %+v", rec)
		}
		break
	}
	same(t, show(t, r), []string{"entry 1 1 e1.1", "entry 1 2 e1.2"})
	must(t, l.Append(entry(1, 3)))
	must(t, l.Sync())
	same(t, show(t, r), []string{"entry 1 1 e1.1", "entry 1 2 e1.2"})
	must(t, l.Close())
}

func TestWhatCannotBeAppended(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		rec  wal.Record
		want string
	}{
		{"hole", entry(1, 4), "append entry record: entry 4 follows entry 2: those between are missing"},
		{"zero", entry(1, 0), "append entry record: entries count from 1"},
		{"term goes down", entry(1, 3), "append entry record: entry 3 of term 1 follows one of term 2"},
		{"no kind", wal.Record{}, "append kind-0 record: kinds are 1 to 127"},
		{"kind of the log", wal.Record{Kind: 0xf1}, "append close record: kinds are 1 to 127"},
	}
	for _, tt := range tests {
		l, _ := open(t, t.TempDir())
		must(t, l.Append(entry(1, 1), entry(2, 2)))
		err := l.Append(tt.rec)
		if err == nil || err.Error() != tt.want {
			t.Errorf("%s: error %v, want %s", tt.name, err, tt.want)
			continue
		}
		for _, again := range []error{l.Append(hard("x")), l.Sync(), l.Roll(nil), l.Release(0), l.Close()} {
			if !errors.Is(again, err) {
				t.Errorf("%s: then %v", tt.name, again)
			}
		}
		if again := l.Close(); !errors.Is(again, wal.ErrClosed) {
			t.Errorf("%s: second Close: %v", tt.name, again)
		}
	}
	l, _ := open(t, t.TempDir())
	if err := l.Roll([]wal.Record{entry(1, 1)}); err == nil || !strings.Contains(err.Error(), "only what is alive besides entries is carried") {
		t.Errorf("carry of an entry: %v", err)
	}
	if err := l.Close(); err == nil {
		t.Error("a failed log closes without an error")
	}
}

func TestResetReplacesTheLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, _ := open(t, dir)
	must(t, l.Append(entry(1, 1), entry(1, 2)))
	takeSnapshot(t, l, 2)
	_, err := l.Snapshots().Create(wal.SnapshotInfo{Index: 100, Term: 5}, func(io.Writer) error { return nil })
	must(t, err)
	must(t, l.Append(wal.Record{Kind: wal.Reset, Index: 100, Term: 5}, entry(5, 101), hard("x")))
	must(t, l.Close())
	l, r := open(t, dir)
	if r.Snapshot.Index != 100 || r.First != 101 || r.Last != 101 {
		t.Errorf("recovered %+v", r)
	}
	same(t, show(t, r), []string{"entry 5 101 e5.101", "hard 0 0 x"})
	must(t, l.Close())
	// Without that snapshot the log cannot be opened: what came before it is invalid.
	must(t, os.Remove(filepath.Join(dir, "snapshot-00000000000000000100-00000000000000000005")))
	if _, _, err := wal.Open(dir, me, small()); err == nil || !strings.Contains(err.Error(), "the log begins with entry 101, the newest usable snapshot ends at 2") {
		t.Errorf("error %v", err)
	}
}

// A snapshot from a peer is valid as soon as it is complete, even if a crash comes before the
// log is reset.
func TestSnapshotAheadOfTheLogWins(t *testing.T) {
	t.Parallel()
	for name, snap := range map[string]wal.SnapshotInfo{
		"ahead":      {Index: 100, Term: 5},
		"contradict": {Index: 2, Term: 5},
	} {
		dir := t.TempDir()
		l, _ := open(t, dir)
		must(t, l.Append(entry(1, 1), entry(1, 2), entry(1, 3), hard("x")))
		_, err := l.Snapshots().Create(snap, func(io.Writer) error { return nil })
		must(t, err)
		must(t, l.Close())
		for range 2 {
			l, r := open(t, dir)
			if r.Snapshot.Index != snap.Index || r.Last != snap.Index || r.LastTerm != 5 {
				t.Errorf("%s: recovered %+v", name, r)
			}
			same(t, show(t, r), []string{"hard 0 0 x"})
			must(t, l.Close())
		}
		l, _ = open(t, dir)
		must(t, l.Append(entry(5, snap.Index+1)))
		must(t, l.Close())
		l, r := open(t, dir)
		same(t, show(t, r), []string{"hard 0 0 x", fmt.Sprintf("entry 5 %d e5.%d", snap.Index+1, snap.Index+1)})
		must(t, l.Close())
	}
}

func TestReleaseMakesSparesThatAreWrittenAgain(t *testing.T) {
	t.Parallel()
	disk := waltest.NewDisk()
	l, _, err := openOn(disk)
	must(t, err)
	if err := l.Release(1); err == nil || err.Error() != "release entries up to 1: the newest snapshot ends at 0" {
		t.Errorf("release without a snapshot: %v", err)
	}
	for i := uint64(1); i <= 5; i++ {
		must(t, l.Append(entry(1, i)))
		must(t, l.Roll(nil))
	}
	takeSnapshot(t, l, 5)
	must(t, l.Release(3))
	if s := l.Stats(); s.Segments != 3 || s.Spares != 2 {
		t.Errorf("after release of 3 of 6 segments: %+v, want 2 spares and no more", s)
	}
	files, err := disk.List()
	must(t, err)
	created := len(files)
	must(t, l.Prepare())
	must(t, l.Roll(nil))
	must(t, l.Roll(nil))
	if s := l.Stats(); s.Segments != 5 || s.Spares != 0 {
		t.Errorf("after two more: %+v", s)
	}
	if files, err = disk.List(); err != nil || len(files) != created {
		t.Errorf("files %v, want the same %d", files, created)
	}
	must(t, l.Prepare())
	must(t, l.Prepare())
	must(t, l.Release(5))
	if s := l.Stats(); s.Segments != 1 || s.Spares != 2 {
		t.Errorf("after release of all: %+v", s)
	}
	must(t, l.Close())
	l, r, err := openOn(disk)
	must(t, err)
	if r.First != 6 || r.Last != 5 || l.Stats().Spares != 2 {
		t.Errorf("recovered %+v, %+v", r, l.Stats())
	}
	must(t, l.Append(entry(1, 6)))
	must(t, l.Close())
}

func TestFullBeforeTheSegmentGrows(t *testing.T) {
	t.Parallel()
	disk := waltest.NewDisk()
	l, _, err := openOn(disk)
	must(t, err)
	for !l.Full() {
		must(t, l.Append(hard("0123456789")))
		must(t, l.Sync())
	}
	if n := len(disk.Bytes(seg1)); n != 1024 {
		t.Errorf("the segment has %d bytes when it is full", n)
	}
	for range 100 { // late is no harm
		must(t, l.Append(hard("0123456789")))
		must(t, l.Sync())
	}
	must(t, l.Roll([]wal.Record{hard(strings.Repeat("big", 1000))}))
	must(t, l.Close())
	l, r, err := openOn(disk)
	must(t, err)
	if got := show(t, r); len(got) != 1 {
		t.Errorf("recovered %q", got)
	}
	must(t, l.Close())
}

func TestNoSync(t *testing.T) {
	t.Parallel()
	disk := waltest.NewDisk()
	opts := wal.Options{SegmentBytes: 1024, Disk: disk, NoSync: true}
	l, _, err := wal.Open("", me, opts)
	must(t, err)
	must(t, l.Append(entry(1, 1)))
	must(t, l.Sync())
	must(t, l.Roll(nil))
	must(t, l.Append(entry(1, 2)))
	must(t, l.Sync())
	disk.Kill()
	l, r, err := wal.Open("", me, opts)
	must(t, err)
	same(t, show(t, r), []string{"entry 1 1 e1.1", "entry 1 2 e1.2"})
	calls := disk.Calls()
	must(t, l.Append(entry(1, 3)))
	must(t, l.Sync())
	if got := disk.Calls() - calls; got != 1 {
		t.Errorf("a round took %d calls, want a write alone", got)
	}
	must(t, l.Close())
}

func TestEmptySyncWritesNothing(t *testing.T) {
	t.Parallel()
	disk := waltest.NewDisk()
	l, _, err := openOn(disk)
	must(t, err)
	before, calls := l.Stats(), disk.Calls()
	must(t, l.Sync())
	if l.Stats() != before || disk.Calls() != calls {
		t.Error("it wrote something")
	}
	must(t, l.Append(hard("a"), hard("b")))
	must(t, l.Sync())
	if got := disk.Calls() - calls; got != 2 {
		t.Errorf("a round took %d calls, want a write and a flush", got)
	}
	if s := l.Stats(); s.Rounds != before.Rounds+1 || s.Records != before.Records+2 || s.Bytes <= before.Bytes {
		t.Errorf("stats %+v", s)
	}
	must(t, l.Close())
}

// After a failed flush a second one could succeed without the data that the first one lost, so
// the log does not try again.
func TestFailedFlushIsFinal(t *testing.T) {
	t.Parallel()
	for n := 1; n <= 2; n++ {
		disk := waltest.NewDisk()
		l, _, err := openOn(disk)
		must(t, err)
		must(t, l.Append(hard("kept")))
		must(t, l.Sync())
		disk.FailAt(n, syscall.EIO)
		must(t, l.Append(hard("lost")))
		first := l.Sync()
		if !errors.Is(first, syscall.EIO) {
			t.Fatalf("error %v", first)
		}
		for _, err := range []error{l.Sync(), l.Append(), l.Roll(nil), l.Close()} {
			if !errors.Is(err, first) {
				t.Errorf("then %v, want %v", err, first)
			}
		}
		disk.Restart(rand.New(rand.NewPCG(0, uint64(n))))
		l, r, err := openOn(disk)
		must(t, err)
		if got := show(t, r); got[0] != "hard 0 0 kept" {
			t.Errorf("recovered %q", got)
		}
		must(t, l.Close())
	}
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, _, err := wal.Open(dir, me, wal.Options{SegmentBytes: 100}); err == nil || !strings.Contains(err.Error(), "a segment of 100 bytes is too small") {
		t.Errorf("error %v", err)
	}
	if _, _, err := wal.Open(dir, me, wal.Options{SegmentBytes: 1024, Rand: strings.NewReader("too short")}); err == nil {
		t.Error("a log without randomness opens")
	}
	// The files of that attempt do not prevent the next one.
	l, r := open(t, dir)
	if !r.Created {
		t.Errorf("recovered %+v", r)
	}
	must(t, l.Close())
}

// Segments are created and snapshots written while the log is being written.
func TestPrepareAndSnapshotsBesideTheWriter(t *testing.T) {
	t.Parallel()
	disk := waltest.NewDisk()
	l, _, err := openOn(disk)
	must(t, err)
	must(t, l.Append(entry(1, 1)))
	must(t, l.Sync())
	stop := make(chan struct{})
	done := make(chan error, 2)
	repeat := func(do func(i uint64) error) {
		for i := uint64(1); ; i++ {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			if err := do(i); err != nil {
				done <- err
				return
			}
		}
	}
	go repeat(func(uint64) error { return l.Prepare() })
	go repeat(func(i uint64) error {
		_, err := l.Snapshots().Create(wal.SnapshotInfo{Index: i, Term: 1}, func(io.Writer) error { return nil })
		return errors.Join(err, l.Snapshots().Prune(2))
	})
	for i := uint64(2); i < 200; i++ {
		must(t, l.Append(entry(1, i)))
		if i%5 == 0 {
			must(t, l.Roll(nil))
			snaps := l.Snapshots().List()
			if len(snaps) > 0 {
				must(t, l.Release(min(i, snaps[0].Index)))
			}
		}
		must(t, l.Sync())
	}
	close(stop)
	must(t, errors.Join(<-done, <-done))
	must(t, l.Close())
	l, r, err := openOn(disk)
	must(t, err)
	if r.Last < 199 {
		t.Errorf("recovered %+v", r)
	}
	must(t, l.Close())
}

// Until the new segment has its name, the old one is unchanged.
func TestRollThatFailsMayBeTriedAgain(t *testing.T) {
	t.Parallel()
	for n := 1; n <= 2; n++ { // the spare is created; with one, it is written
		disk := waltest.NewDisk()
		l, _, err := openOn(disk)
		must(t, err)
		if n == 2 {
			must(t, l.Prepare())
		}
		disk.FailAt(1, syscall.ENOSPC)
		if err := l.Roll([]wal.Record{hard("carried")}); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("roll on a full disk: %v", err)
		}
		if got := l.Stats().Spares; got != n-1 {
			t.Errorf("%d spares are left, want %d", got, n-1)
		}
		must(t, l.Append(hard("old segment")))
		must(t, l.Sync())
		must(t, l.Roll([]wal.Record{hard("carried")}))
		must(t, l.Append(hard("new segment")))
		must(t, l.Close())
		l, r, err := openOn(disk)
		must(t, err)
		same(t, show(t, r), []string{"hard 0 0 carried", "hard 0 0 new segment"})
		must(t, l.Close())
	}
}

// Files are lengthened in advance only for speed: if there is no room for that, the log goes on
// without it.
func TestNoRoomToLengthen(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		why  syscall.Errno
		ends bool
	}{{syscall.ENOSPC, false}, {syscall.EDQUOT, false}, {syscall.EFBIG, false}, {syscall.EIO, true}} {
		disk := waltest.NewDisk()
		l, _, err := openOn(disk) // whose segment is small
		must(t, err)
		must(t, l.Close())
		opts := wal.Options{SegmentBytes: 4 << 20, Disk: disk}
		l, _, err = wal.Open("", me, opts)
		must(t, err)
		must(t, l.Append(entry(1, 1), wal.Record{Kind: wal.Entry, Term: 1, Index: 2, Data: make([]byte, 8<<10)}))
		disk.FailAt(2, c.why) // the first is the write of the round
		if err := l.Sync(); errors.Is(err, c.why) != c.ends {
			t.Fatalf("%v: %v", c.why, err)
		}
		if c.ends {
			continue
		}
		must(t, l.Append(entry(1, 3)))
		must(t, l.Close())
		l, r, err := wal.Open("", me, opts)
		must(t, err)
		if got := show(t, r); r.Last != 3 || got[0] != "entry 1 1 e1.1" || got[2] != "entry 1 3 e1.3" {
			t.Errorf("%v: recovered up to %d, %q, %q", c.why, r.Last, got[0], got[2])
		}
		must(t, l.Close())
	}
}
