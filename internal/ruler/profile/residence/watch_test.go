//go:build linux && amd64

package residence

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// start skips the test where the machine does not allow it.
func start(t *testing.T, processes ...int) *Watch {
	t.Helper()
	w, err := Start(processes)
	if errors.Is(err, os.ErrPermission) || errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, os.ErrNotExist) {
		t.Skipf("this machine does not allow it: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// serve answers n requests on a thread of its own, and does something for each.
func serve(t *testing.T, socket, n int, each func()) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		var b [16]byte
		for range n {
			if _, _, err := unix.Recvfrom(socket, b[:], 0); err != nil {
				done <- err
				return
			}
			each()
			if err := unix.Sendto(socket, b[:1], 0, nil); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	return done
}

func TestWatchTellsWhatAThreadDoes(t *testing.T) {
	const requests = 5
	const nap = 20 * time.Millisecond
	w := start(t, os.Getpid())
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	file, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	before, err := w.Read()
	if err != nil {
		t.Fatal(err)
	}
	done := serve(t, pair[0], requests, func() {
		ts := unix.NsecToTimespec(int64(nap))
		for errors.Is(unix.Nanosleep(&ts, &ts), unix.EINTR) { // the rest of it
			continue
		}
		_, _ = file.Write(make([]byte, 4096))
		_ = unix.Fdatasync(int(file.Fd()))
	})
	var b [16]byte
	for range requests {
		if _, err := unix.Write(pair[1], b[:1]); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.Read(pair[1], b[:]); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	after, err := w.Read()
	if err != nil {
		t.Fatal(err)
	}
	got := after.Since(before)
	t.Logf("%+v, CPU %d", got, got.CPU())
	if got.Requests != requests {
		t.Errorf("%d requests, want %d", got.Requests, requests)
	}
	// A process that is preempted just before it sleeps sleeps less: one of five, at most.
	if floor := int64((requests - 1) * nap); got.Wait < floor || got.Residence < got.Wait {
		t.Errorf("waited %d ns of %d ns with a request; slept at least %d ns", got.Wait, got.Residence, floor)
	}
	if got.Flush <= 0 || got.Write <= 0 {
		t.Errorf("flushes took %d ns, writes %d ns", got.Flush, got.Write)
	}
	if got.CPU() < 0 {
		t.Errorf("the parts exceed the whole by %d ns", -got.CPU())
	}
}

func TestOnlyTargetsAreWatched(t *testing.T) {
	w := start(t) // nobody
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	done := serve(t, pair[0], 1, func() {})
	var b [1]byte
	if _, err := unix.Write(pair[1], b[:]); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got, err := w.Read(); err != nil || got != (Totals{}) {
		t.Errorf("totals %+v, %v; want none", got, err)
	}
}
