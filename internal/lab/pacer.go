package lab

import (
	"container/heap"
	"fmt"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// pacer calls functions at points in time, never early and about 0.05 ms late.
// Go's own timers cannot: in an idle process they fire up to 1 ms late, because
// the runtime waits for them in the network poller, which counts milliseconds.
// One thread sleeps in ppoll, which counts nanoseconds, until the earliest
// function is due or an earlier one is added. It does not spin for the rest:
// on a small machine that would take the processor from what is measured.
//
//	at(t=9) ──► heap {9}      thread: ppoll(timeout 9-now) ────────┐
//	at(t=4) ──► heap {4, 9}   eventfd ──► wakes, ppoll(4-now) ─┐   │
//	                                                     calls f(4), then f(9)
//
// Functions run on the pacer's thread and must not block.
type pacer struct {
	wake int // an eventfd: readable when the heap has a new top

	mu     sync.Mutex // guards the fields below
	due    dueHeap
	closed bool
	order  uint64 // of insertion, so that equal times keep their order

	done chan struct{}
}

// newPacer starts a pacer; close stops it.
func newPacer() (*pacer, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("create event counter: %w", err)
	}
	p := &pacer{wake: fd, done: make(chan struct{})}
	go p.run()
	return p, nil
}

// at calls f at time t. A closed pacer calls nothing.
func (p *pacer) at(t time.Time, f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	p.order++
	e := &dueEntry{t, p.order, f}
	heap.Push(&p.due, e)
	if p.due[0] == e {
		p.poke()
	}
}

// poke wakes the thread. The caller holds the lock, so that the eventfd is still open; if its
// counter is full, the thread is already awake.
func (p *pacer) poke() {
	one := [8]byte{1} // a number in native byte order: any value except 0 works
	_, _ = unix.Write(p.wake, one[:])
}

// close stops the pacer and drops pending calls.
func (p *pacer) close() {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		p.poke()
	}
	p.mu.Unlock()
	<-p.done
}

func (p *pacer) run() {
	defer close(p.done)
	runtime.LockOSThread() // never unlocked: the thread ends, and its slack with it
	// By default the kernel may round a sleep up by 50 µs.
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	for {
		p.mu.Lock()
		if p.closed {
			_ = unix.Close(p.wake)
			p.due = nil
			p.mu.Unlock()
			return
		}
		now := time.Now()
		var ready []*dueEntry
		for len(p.due) > 0 && !p.due[0].at.After(now) {
			ready = append(ready, heap.Pop(&p.due).(*dueEntry))
		}
		var timeout *unix.Timespec // nil waits only for the event
		if len(p.due) > 0 {
			ts := unix.NsecToTimespec(int64(p.due[0].at.Sub(now)))
			timeout = &ts
		}
		p.mu.Unlock()
		if len(ready) > 0 {
			for _, e := range ready {
				e.f()
			}
			continue
		}
		fds := []unix.PollFd{{Fd: int32(p.wake), Events: unix.POLLIN}}
		if n, err := unix.Ppoll(fds, timeout, nil); err == nil && n > 0 {
			var count [8]byte
			_, _ = unix.Read(p.wake, count[:])
		}
	}
}

type dueEntry struct {
	at    time.Time
	order uint64
	f     func()
}

type dueHeap []*dueEntry

func (h dueHeap) Len() int { return len(h) }

func (h dueHeap) Less(i, j int) bool {
	if !h[i].at.Equal(h[j].at) {
		return h[i].at.Before(h[j].at)
	}
	return h[i].order < h[j].order
}

func (h dueHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

func (h *dueHeap) Push(x any) { *h = append(*h, x.(*dueEntry)) }

func (h *dueHeap) Pop() any {
	old := *h
	last := len(old) - 1
	e := old[last]
	old[last] = nil
	*h = old[:last]
	return e
}
