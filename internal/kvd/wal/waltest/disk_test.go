package waltest_test

import (
	"errors"
	"math/rand/v2"
	"syscall"
	"testing"

	"github.com/weirdb/weir/internal/kvd/wal/waltest"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// outcomes does the same to many disks, cuts the power, and counts what is left.
func outcomes(t *testing.T, do func(*waltest.Disk), left func(*waltest.Disk) string) map[string]int {
	t.Helper()
	seen := map[string]int{}
	for seed := range uint64(300) {
		d := waltest.NewDisk()
		do(d)
		d.Restart(rand.New(rand.NewPCG(seed, 0)))
		seen[left(d)]++
	}
	return seen
}

func create(t *testing.T, d *waltest.Disk, name, content string) {
	t.Helper()
	f, err := d.Create(name)
	must(t, err)
	_, err = f.WriteAt([]byte(content), 0)
	must(t, err)
	must(t, f.Sync())
	must(t, f.Close())
	must(t, d.SyncDir())
}

func TestBytesThatWereNotFlushed(t *testing.T) {
	t.Parallel()
	seen := outcomes(t, func(d *waltest.Disk) {
		d.Sector = 2
		create(t, d, "f", "aabb")
		f, err := d.Open("f", true)
		must(t, err)
		_, err = f.WriteAt([]byte("xxyyzz"), 0)
		must(t, err)
	}, func(d *waltest.Disk) string { return string(d.Bytes("f")) })
	for _, want := range []string{"aabb", "xxbb", "aayy", "xxyy", "xxyyzz", "aabbzz", "aabb\x00\x00"} {
		if seen[want] == 0 {
			t.Errorf("%q was never left: %v", want, seen)
		}
	}
	for got := range seen {
		if (got[:2] != "aa" && got[:2] != "xx") || (got[2:4] != "bb" && got[2:4] != "yy") {
			t.Errorf("%q was left: half a sector", got)
		}
	}
}

func TestNamesThatWereNotFlushed(t *testing.T) {
	t.Parallel()
	seen := outcomes(t, func(d *waltest.Disk) {
		create(t, d, "old", "a")
		create(t, d, "gone", "b")
		must(t, d.Rename("old", "new"))
		must(t, d.Remove("gone"))
	}, func(d *waltest.Disk) string {
		return "old=" + string(d.Bytes("old")) + " new=" + string(d.Bytes("new")) + " gone=" + string(d.Bytes("gone"))
	})
	for _, want := range []string{"old=a new= gone=b", "old= new=a gone=b", "old=a new= gone=", "old= new=a gone="} {
		if seen[want] == 0 {
			t.Errorf("%q was never left: %v", want, seen)
		}
		delete(seen, want)
	}
	if len(seen) > 0 {
		t.Errorf("left, too: %v", seen)
	}
}

func TestWhatIsFlushedStays(t *testing.T) {
	t.Parallel()
	seen := outcomes(t, func(d *waltest.Disk) { create(t, d, "f", "content") },
		func(d *waltest.Disk) string { return string(d.Bytes("f")) })
	if seen["content"] != 300 {
		t.Errorf("left %v", seen)
	}
}

// A flush that failed leaves the bytes in memory, where they are seen, and no
// later flush writes them.
func TestFailedFlush(t *testing.T) {
	t.Parallel()
	d := waltest.NewDisk()
	create(t, d, "f", "old")
	f, err := d.Open("f", true)
	must(t, err)
	_, err = f.WriteAt([]byte("new"), 0)
	must(t, err)
	d.FailAt(1, syscall.EIO)
	if err := f.Sync(); !errors.Is(err, syscall.EIO) {
		t.Errorf("flush: %v", err)
	}
	must(t, f.Sync())
	if got := string(d.Bytes("f")); got != "new" {
		t.Errorf("seen %q", got)
	}
	d.Restart(rand.New(rand.NewPCG(1, 1)))
	if got := string(d.Bytes("f")); got != "old" {
		t.Errorf("left %q", got)
	}
}

func TestPowerFails(t *testing.T) {
	t.Parallel()
	d := waltest.NewDisk()
	create(t, d, "f", "old")
	lock, err := d.Lock(false)
	must(t, err)
	f, err := d.Open("f", true)
	must(t, err)
	d.PowerAt(2)
	_, err = f.WriteAt([]byte("one"), 0)
	must(t, err)
	for range 2 {
		if err := f.Sync(); !errors.Is(err, waltest.ErrPower) {
			t.Errorf("flush: %v", err)
		}
	}
	if _, err := d.List(); !errors.Is(err, waltest.ErrPower) {
		t.Errorf("list: %v", err)
	}
	d.Restart(rand.New(rand.NewPCG(1, 1)))
	if _, err := f.Size(); err == nil {
		t.Error("a handle of a former life is good")
	}
	again, err := d.Lock(false)
	must(t, err)
	must(t, lock.Close()) // of a former life: it unlocks nothing
	if _, err := d.Lock(false); err == nil {
		t.Error("locked twice")
	}
	must(t, again.Close())
}
