// Package residence watches the threads of a server from inside the kernel, by
// eBPF: from the system call that brings a request in to the one that sends the
// answer, and what the thread does meanwhile. It needs no help from the server and
// knows nothing of databases; it needs Linux, the right to load eBPF programs, and
// a kernel that describes its own types.
//
//	request arrives   thread runs, recv returns        send begins
//	     |--- Before ------>|------- Residence ------------|
//	                          CPU, Flush, Write, Read, Lock, Wait, RunQueue
//
// A request that arrives in several reads begins with the first of them; its residence ends
// with the first write of the answer.
//
// Watching costs: two small programs run at every system call of the machine and
// two at every switch between threads.
package residence

import "errors"

// ErrUnsupported says that this system cannot be watched.
var ErrUnsupported = errors.New("no eBPF for this system in this build")

// Totals are the sums over all watched threads since the watch began. Times are in nanoseconds,
// and exclude each other except for Before.
type Totals struct {
	// Requests counts the answers that began.
	Requests int64
	// Before is the time that threads without a request waited for a processor: mostly the time
	// between the arrival of a request and its being read.
	Before int64
	// Residence is the time that threads had a request.
	Residence int64
	// Flush, Write, Read, Lock and Wait are the parts of it spent in system calls
	// that flush files, write them, read them, wait for another thread (futex,
	// semaphore), and wait for an event (poll, epoll).
	Flush, Write, Read, Lock, Wait int64
	// RunQueue is the part in which the thread was runnable and had no processor.
	RunQueue int64
}

// CPU is the rest: the time that threads ran.
func (t Totals) CPU() int64 {
	return t.Residence - t.Flush - t.Write - t.Read - t.Lock - t.Wait - t.RunQueue
}

// Since returns the difference from an earlier reading.
func (t Totals) Since(e Totals) Totals {
	return Totals{
		t.Requests - e.Requests, t.Before - e.Before, t.Residence - e.Residence, t.Flush - e.Flush, t.Write - e.Write,
		t.Read - e.Read, t.Lock - e.Lock, t.Wait - e.Wait, t.RunQueue - e.RunQueue,
	}
}
