package wal_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/weirdb/weir/internal/kvd/wal"
)

// holdEnv makes TestHoldLog, run as a process of its own, hold a log's directory.
const holdEnv = "WEIR_WAL_TEST_HOLD"

func TestHoldLog(t *testing.T) {
	dir := os.Getenv(holdEnv)
	if dir == "" {
		t.Skip("it is the other process of TestDirectoryOfAnotherProcess")
	}
	l, _ := open(t, dir)
	fmt.Println("holding")
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		t.Error(err)
	}
	must(t, l.Append(hard("held")))
	must(t, l.Sync())
	os.Exit(0) // like a crash: it is not closed
}

func TestDirectoryOfAnotherProcess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=^TestHoldLog$")
	cmd.Env = append(os.Environ(), holdEnv+"="+dir)
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "holding\n" {
		t.Fatalf("the other process said %q, %v", line, err)
	}
	want := fmt.Sprintf("lock %s: process %d uses it; stop that one or use another directory", dir, cmd.Process.Pid)
	var locked *wal.LockedError
	_, _, err = wal.Open(dir, me, small())
	if !errors.As(err, &locked) || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("open: %v, want %s", err, want)
	}
	if _, err := wal.Verify(dir, func(wal.Finding) {}); !errors.As(err, &locked) {
		t.Errorf("verify: %v, want a LockedError", err)
	}
	must(t, in.Close())
	must(t, cmd.Wait())
	l, r := open(t, dir)
	if r.Clean {
		t.Error("a log that was not closed is clean")
	}
	same(t, show(t, r), []string{"hard 0 0 held"})
	must(t, l.Close())
}

func TestDirectoryOfAnotherReplica(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, _ := open(t, dir)
	must(t, l.Close())
	_, _, err := wal.Open(dir, wal.Identity{Cluster: "test", Replica: 2}, small())
	var other *wal.IdentityError
	if !errors.As(err, &other) || other.Field != "replica" || other.Have != "1" || other.Want != "2" {
		t.Errorf("error %v", err)
	}
	l, _ = open(t, dir) // the lock was given back
	must(t, l.Close())
}

// A directory may hold files of others; the log does not touch them.
func TestFilesOfOthersStay(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	names := []string{"notes.tmp", "film.part", "spare-1.tmp", "snapshot-1", "1.wal", "LOCK.tmp"}
	for _, name := range names {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600))
	}
	ours := []string{"identity.tmp", "spare-00000000000000000007", "spare-00000000000000000009.tmp"}
	for _, name := range ours {
		must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	for range 2 {
		l, _ := open(t, dir)
		must(t, l.Close())
	}
	for _, name := range names {
		if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(b) != name {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	for _, name := range ours {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			t.Errorf("%s is still there", name)
		}
	}
}

func TestNoDirectory(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "some", "where")
	if _, err := wal.Verify(dir, func(wal.Finding) {}); err == nil {
		t.Error("verify of nothing says nothing")
	}
	l, _ := open(t, dir)
	must(t, l.Close())
	file := filepath.Join(dir, "file")
	must(t, os.WriteFile(file, nil, 0o600))
	if _, _, err := wal.Open(file, me, small()); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("open of a file: %v", err)
	}
}

// mount mounts a tmpfs, where the tests may do that.
func mount(t *testing.T, options string, flags uintptr) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("weir-test", dir, "tmpfs", flags, options); err != nil {
		t.Skipf("a small file system cannot be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestReadOnlyDirectory(t *testing.T) {
	t.Parallel()
	dir := mount(t, "size=1m", 0)
	l, _ := open(t, dir)
	must(t, l.Append(entry(1, 1)))
	must(t, l.Close())
	must(t, syscall.Mount("weir-test", dir, "tmpfs", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""))
	if _, _, err := wal.Open(dir, me, small()); !errors.Is(err, syscall.EROFS) {
		t.Errorf("open: %v", err)
	}
	sum, err := wal.Verify(dir, func(wal.Finding) {})
	if err != nil || sum.Problems != 0 || sum.Last != 1 {
		t.Errorf("verify: %+v, %v", sum, err)
	}
}

func TestFullDisk(t *testing.T) {
	t.Parallel()
	dir := mount(t, "size=256k", 0)
	opts := wal.Options{SegmentBytes: 64 << 10}
	l, _, err := wal.Open(dir, me, opts)
	must(t, err)
	must(t, l.Append(entry(1, 1)))
	must(t, l.Sync())
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 256<<10), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}

	// No space for another segment, nor for a snapshot: the log goes on.
	for what, err := range map[string]error{"prepare": l.Prepare(), "roll": l.Roll([]wal.Record{hard("carried")}), "snapshot": bigSnapshot(l, 1)} {
		if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "free some space, nothing that was flushed is lost") {
			t.Errorf("%s: %v", what, err)
		}
	}
	must(t, l.Append(entry(1, 2)))
	must(t, l.Sync())
	must(t, os.Remove(ballast))
	must(t, l.Roll([]wal.Record{hard("carried")}))
	must(t, os.WriteFile(ballast, make([]byte, 64<<10), 0o600))

	// No space for a round beyond the segment's size: that is the end.
	must(t, l.Append(wal.Record{Kind: wal.Other, Data: make([]byte, 1<<20)}))
	err = l.Sync()
	if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "free some space") {
		t.Errorf("sync: %v", err)
	}
	if again := l.Close(); !errors.Is(again, err) {
		t.Errorf("close: %v", again)
	}
	if sum, err := wal.Verify(dir, func(wal.Finding) {}); err != nil || sum.Problems != 0 || sum.Last != 2 {
		t.Errorf("verify: %+v, %v", sum, err)
	}
	must(t, os.Remove(ballast))
	l, r, err := wal.Open(dir, me, opts)
	must(t, err)
	same(t, show(t, r), []string{"entry 1 1 e1.1", "entry 1 2 e1.2", "hard 0 0 carried"})
	must(t, l.Close())
}

func bigSnapshot(l *wal.Log, index uint64) error {
	_, err := l.Snapshots().Create(wal.SnapshotInfo{Index: index, Term: 1}, func(w io.Writer) error {
		_, err := w.Write(make([]byte, 2<<20))
		return err
	})
	return err
}

func fdatasync(f *os.File) error { return syscall.Fdatasync(int(f.Fd())) }
