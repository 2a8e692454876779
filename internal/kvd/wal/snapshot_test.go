package wal_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/weirdb/weir/internal/kvd/wal"
	"github.com/weirdb/weir/internal/kvd/wal/waltest"
)

func randomBytes(n int) []byte {
	b := make([]byte, n)
	if _, err := (noise{rand.New(rand.NewPCG(9, 9))}).Read(b); err != nil {
		panic(err) // it has no error
	}
	return b
}

func createSnapshot(t testing.TB, l *wal.Log, index uint64, state []byte) wal.SnapshotInfo {
	t.Helper()
	info, err := l.Snapshots().Create(wal.SnapshotInfo{Index: index, Term: 1, Meta: []byte("members")}, func(w io.Writer) error {
		_, err := io.Copy(w, iotest.OneByteReader(bytes.NewReader(state[:min(len(state), 9)])))
		if err == nil && len(state) > 9 {
			_, err = w.Write(state[9:])
		}
		return err
	})
	must(t, err)
	return info
}

func TestSnapshotComesBack(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, _ := open(t, dir)
	sizes := []int{0, 1, 1<<20 - 1, 1 << 20, 1<<20 + 1, 3<<20 + 5}
	for i, size := range sizes {
		state := randomBytes(size)
		info := createSnapshot(t, l, uint64(i+1), state)
		r, err := l.Snapshots().Open(info)
		must(t, err)
		if size < 100 {
			err = iotest.TestReader(r, state)
		} else if got, readErr := io.ReadAll(r); readErr != nil || !bytes.Equal(got, state) {
			err = fmt.Errorf("read %d, %w", len(got), readErr)
		}
		if err != nil {
			t.Errorf("%d bytes: %v", size, err)
		}
		must(t, r.Close())
	}
	must(t, l.Close())
	l, r := open(t, dir)
	if r.Snapshot.Index != uint64(len(sizes)) || string(r.Snapshot.Meta) != "members" || r.Snapshot.Bytes < 3<<20 {
		t.Errorf("recovered %+v", r.Snapshot)
	}
	if got := l.Snapshots().List(); len(got) != len(sizes) {
		t.Errorf("%d snapshots, want %d", len(got), len(sizes))
	}
	must(t, l.Close())
}

func TestSnapshotThatFailsDoesNotCount(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, _ := open(t, dir)
	broken := errors.New("broken")
	_, err := l.Snapshots().Create(wal.SnapshotInfo{Index: 3, Term: 1}, func(w io.Writer) error {
		if _, err := w.Write(make([]byte, 2<<20)); err != nil {
			return err
		}
		return broken
	})
	if !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
	if _, err := l.Snapshots().Create(wal.SnapshotInfo{}, func(io.Writer) error { return nil }); err == nil {
		t.Error("a snapshot of nothing is created")
	}
	files, err := filepath.Glob(filepath.Join(dir, "snapshot*"))
	if err != nil || len(files) != 0 || len(l.Snapshots().List()) != 0 {
		t.Errorf("it left %v, %v", files, err)
	}
	must(t, l.Close())
}

func TestPruneKeepsTheNewest(t *testing.T) {
	t.Parallel()
	l, _ := open(t, t.TempDir())
	must(t, l.Snapshots().Prune(2))
	var last *wal.SnapshotReader
	for i := uint64(1); i <= 4; i++ {
		info := createSnapshot(t, l, i, []byte("state"))
		if i == 1 {
			var err error
			last, err = l.Snapshots().Open(info)
			must(t, err)
		}
	}
	must(t, l.Snapshots().Prune(2))
	if got := l.Snapshots().List(); len(got) != 2 || got[0].Index != 3 || got[1].Index != 4 {
		t.Errorf("snapshots %v", got)
	}
	must(t, l.Snapshots().Prune(0))
	if got := l.Snapshots().List(); len(got) != 1 || got[0].Index != 4 {
		t.Errorf("snapshots %v", got)
	}
	// One that is being sent stays readable.
	if b, err := io.ReadAll(last); err != nil || string(b) != "state" {
		t.Errorf("read %q, %v", b, err)
	}
	must(t, last.Close())
	must(t, l.Close())
}

// sender has a snapshot of three chunks, and its bytes as a peer sends them.
func sender(t *testing.T) (info wal.SnapshotInfo, file []byte) {
	t.Helper()
	l, _, err := wal.Open(t.TempDir(), wal.Identity{Cluster: "test", Replica: 2}, small())
	must(t, err)
	info = createSnapshot(t, l, 7, randomBytes(2<<20+77))
	r, err := l.Snapshots().Open(info)
	must(t, err)
	file, err = io.ReadAll(r.File())
	must(t, err)
	must(t, r.Close())
	must(t, l.Close())
	return info, file
}

func TestReceive(t *testing.T) {
	t.Parallel()
	want, file := sender(t)
	dir := t.TempDir()
	l, _ := open(t, dir)
	r, err := l.Snapshots().Receive(want)
	must(t, err)
	const piece = 100_000
	send := func(r *wal.Receiver, until int64) {
		t.Helper()
		for r.Offset() < until {
			at := r.Offset()
			must(t, r.Write(at, file[at:min(at+piece, int64(len(file)))]))
		}
	}
	send(r, 1<<20+piece)
	must(t, r.Write(0, file[:piece])) // known already
	for _, at := range []int64{-1, r.Offset() + 1, int64(len(file))} {
		if err := r.Write(at, []byte("x")); err == nil {
			t.Errorf("bytes at %d after %d were taken", at, r.Offset())
		}
	}
	if _, err := r.Finish(); err == nil {
		t.Error("half a snapshot is finished")
	}
	must(t, r.Close())
	must(t, l.Close())

	// The next process goes on after the last whole chunk.
	l, rec := open(t, dir)
	if rec.Snapshot.Index != 0 {
		t.Errorf("half a snapshot counts: %+v", rec.Snapshot)
	}
	r, err = l.Snapshots().Receive(want)
	must(t, err)
	if r.Offset() < 1<<20 || r.Offset() > 1<<20+100 {
		t.Errorf("resumed at %d", r.Offset())
	}
	send(r, want.Bytes)
	got, err := r.Finish()
	must(t, err)
	if got.Index != 7 || string(got.Meta) != "members" || got.Bytes != want.Bytes {
		t.Errorf("received %+v", got)
	}
	must(t, l.Append(wal.Record{Kind: wal.Reset, Index: 7, Term: 1}))
	must(t, l.Close())
	if b, err := os.ReadFile(filepath.Join(dir, "snapshot-00000000000000000007-00000000000000000001")); err != nil || !bytes.Equal(b, file) {
		t.Errorf("the file is not the sender's: %v", err)
	}
	l, rec = open(t, dir)
	if rec.Snapshot.Index != 7 {
		t.Errorf("recovered %+v", rec.Snapshot)
	}
	must(t, l.Close())
}

func TestReceiveAnotherOneInstead(t *testing.T) {
	t.Parallel()
	want, file := sender(t)
	dir := t.TempDir()
	l, _ := open(t, dir)
	older := want
	older.Index = 5
	first, err := l.Snapshots().Receive(older)
	must(t, err)
	must(t, first.Write(0, file[:1000]))
	second, err := l.Snapshots().Receive(want)
	must(t, err)
	if second.Offset() != 0 {
		t.Errorf("it begins at %d", second.Offset())
	}
	if err := first.Write(1000, file[1000:2000]); err == nil {
		t.Error("the first one still takes bytes")
	}
	must(t, second.Write(0, file))
	_, err = second.Finish()
	must(t, err)
	parts, err := filepath.Glob(filepath.Join(dir, "*.part"))
	if err != nil || len(parts) != 0 {
		t.Errorf("left %v, %v", parts, err)
	}
	// Snapshots that are not newer than the newest one are removed when the log is opened.
	late, err := l.Snapshots().Receive(older)
	must(t, err)
	must(t, late.Close())
	must(t, l.Append(wal.Record{Kind: wal.Reset, Index: 7, Term: 1}))
	must(t, l.Close())
	l, _ = open(t, dir)
	if parts, err := filepath.Glob(filepath.Join(dir, "*.part")); err != nil || len(parts) != 0 {
		t.Errorf("left %v, %v", parts, err)
	}
	third, err := l.Snapshots().Receive(wal.SnapshotInfo{Index: 9, Term: 1, Bytes: 100})
	must(t, err)
	must(t, third.Abort())
	if _, err := l.Snapshots().Receive(wal.SnapshotInfo{Index: 9, Term: 1, Bytes: 10}); err == nil {
		t.Error("a snapshot of 10 bytes is received")
	}
	must(t, l.Close())
}

// slowPart is a disk on which the first write of the first part of a snapshot takes its time.
type slowPart struct {
	wal.Disk
	once    sync.Once
	written chan struct{} // closed when it has been written
	gate    chan struct{} // after which that is told
}

func (d *slowPart) Create(name string) (wal.File, error) {
	f, err := d.Disk.Create(name)
	if strings.HasSuffix(name, ".part") {
		f = slowFile{f, d}
	}
	return f, err
}

type slowFile struct {
	wal.File
	disk *slowPart
}

func (f slowFile) WriteAt(b []byte, at int64) (int, error) {
	n, err := f.File.WriteAt(b, at)
	f.disk.once.Do(func() { close(f.disk.written); <-f.disk.gate })
	return n, err
}

// A snapshot of one replica may come amid that of another, as where leaders change. The
// one that was first is given up, while it is being written.
func TestReceiveAnotherOneMeanwhile(t *testing.T) {
	t.Parallel()
	disk := &slowPart{Disk: waltest.NewDisk(), written: make(chan struct{}), gate: make(chan struct{})}
	l, _, err := openOn(disk)
	must(t, err)
	const size = 16 << 20 // which is flushed on the way
	first, err := l.Snapshots().Receive(wal.SnapshotInfo{Index: 5, Term: 1, Bytes: size})
	must(t, err)
	writing, instead := make(chan error, 1), make(chan error, 1)
	go func() { writing <- first.Write(0, make([]byte, size)) }()
	<-disk.written
	go func() {
		second, err := l.Snapshots().Receive(wal.SnapshotInfo{Index: 9, Term: 2, Bytes: 100})
		if err == nil {
			err = second.Close()
		}
		instead <- err
	}()
	select { // it waits for the write, which nobody can see
	case err := <-instead:
		t.Errorf("the file of another one was taken while it was written to (%v)", err)
		instead <- err
	case <-time.After(50 * time.Millisecond):
	}
	close(disk.gate)
	must(t, <-writing)
	must(t, <-instead)
	if _, err := first.Finish(); err == nil || !strings.Contains(err.Error(), "another one took its place") {
		t.Errorf("finish of the abandoned one: %v", err)
	}
	must(t, l.Close())
}

func TestReceivedBytesAreVerified(t *testing.T) {
	t.Parallel()
	info, err := snapshotBytes("test", 3)
	must(t, err)
	other, err := snapshotBytes("another", 3)
	must(t, err)
	damaged := func(at int) []byte { b := slices.Clone(info); b[at] ^= 0x20; return b }
	tests := map[string][]byte{"cluster": other, "short": info[:len(info)-1], "long": append(slices.Clone(info), 0)}
	for at := range info {
		tests[fmt.Sprint("byte ", at)] = damaged(at)
	}
	disk := waltest.NewDisk()
	l, _, err := openOn(disk)
	must(t, err)
	for name, b := range tests {
		r, err := l.Snapshots().Receive(wal.SnapshotInfo{Index: 3, Term: 1, Bytes: int64(len(b))})
		must(t, err)
		if r.Offset() != 0 {
			t.Fatalf("%s: bad bytes were kept", name)
		}
		must(t, r.Write(0, b))
		if _, err := r.Finish(); !isCorrupt(err) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	if got := l.Snapshots().List(); len(got) != 0 {
		t.Errorf("snapshots %v", got)
	}
	must(t, l.Close())
}

func snapshotBytes(cluster string, index uint64) ([]byte, error) {
	disk := waltest.NewDisk()
	l, _, err := wal.Open("", wal.Identity{Cluster: cluster, Replica: 2}, wal.Options{SegmentBytes: 1024, Disk: disk})
	if err != nil {
		return nil, err
	}
	_, err = l.Snapshots().Create(wal.SnapshotInfo{Index: index, Term: 1, Meta: []byte("m")}, func(w io.Writer) error {
		_, err := io.WriteString(w, "the state")
		return err
	})
	return disk.Bytes(fmt.Sprintf("snapshot-%020d-%020d", index, 1)), errors.Join(err, l.Close())
}
