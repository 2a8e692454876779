package testkit

import (
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"strings"
	"time"
)

// Held counts resources of a process that a test may leak.
type Held struct {
	Goroutines int
	Files      int // open file descriptors; 0 if there is no /proc
}

// HeldNow counts the resources of this process.
func HeldNow() Held {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		entries = nil
	}
	return Held{Goroutines: runtime.NumGoroutine(), Files: len(entries)}
}

// Settle waits until the process holds no more than h, which was counted before the tests:
// closed connections take a moment to end. If that does not happen, it returns an error with
// all goroutines.
func (h Held) Settle() error { return h.settle(Patience) }

func (h Held) settle(patience time.Duration) error {
	deadline := time.Now().Add(patience)
	for {
		now := HeldNow()
		if now.Goroutines <= h.Goroutines && now.Files <= h.Files {
			return nil
		}
		if time.Now().After(deadline) {
			var b strings.Builder
			_ = pprof.Lookup("goroutine").WriteTo(&b, 1)
			return fmt.Errorf("leak: %+v before the tests, %+v after them\n%s\n%s", h, now, files(), b.String())
		}
		// The pipes that package net uses for splicing are closed by the second garbage
		// collection that finds them unused; without it, that takes minutes.
		runtime.GC()
		time.Sleep(5 * time.Millisecond) // between polls
	}
}

// files returns the open file descriptors, one per line.
func files() string {
	const dir = "/proc/self/fd/"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err.Error()
	}
	var b strings.Builder
	for _, e := range entries {
		if to, err := os.Readlink(dir + e.Name()); err == nil {
			fmt.Fprintf(&b, "%s -> %s\n", e.Name(), to)
		}
	}
	return b.String()
}
