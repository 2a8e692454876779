package kvload

import (
	"context"
	"errors"
	"sync"
)

// Class is a kind of operation.
type Class uint8

// The classes. A strong operation is linearizable; a weak one has the weaker guarantees that
// the store offers.
const (
	StrongRead Class = iota
	StrongWrite
	WeakRead
	WeakWrite
	classes
)

// Weak reports whether the class is weak.
func (c Class) Weak() bool { return c == WeakRead || c == WeakWrite }

// Write reports whether operations of the class change the store.
func (c Class) Write() bool { return c == StrongWrite || c == WeakWrite }

func (c Class) String() string {
	return [...]string{"strong read", "strong write", "weak read", "weak write"}[c]
}

// Op is one operation.
type Op struct {
	Class Class
	Key   string
	// Value is what a write stores. It belongs to the stream, and does not change until the
	// operation has ended.
	Value []byte
}

// Answer is the outcome of an operation.
type Answer struct {
	Value []byte // of a successful read; valid during the call
	Found bool
	// Fast is set for a strong write that was answered by votes, before its commit.
	Fast bool
	Err  error
}

// Client is one session of a store. One goroutine calls Issue and Poll. Close may be called
// from another at any time, and ends a Poll.
type Client interface {
	// Issue starts an operation without waiting for anything. The slot, from 0 on, identifies
	// it until it has ended; a slot has one operation at a time.
	Issue(slot int, op *Op)
	// Poll sends what Issue has not sent, waits until an operation has ended, and reports each
	// one that has, without further waiting. Its own error is that of the session: no pending
	// operation will end.
	Poll(ended func(slot int, a Answer)) error
	Close() error
}

// Driver opens sessions of a store. It is safe for concurrent use.
type Driver interface {
	// Open opens the session of a stream, numbered from 0, with at most pendings operations in
	// flight.
	Open(ctx context.Context, stream, pendings int) (Client, error)
	// Near returns a driver whose sessions are as close to the leader as can be, without an
	// artificial distance: to store values before a run.
	Near() Driver
	// Promises are the guarantees of the store's sessions.
	Promises() Promises
}

// Promises are the guarantees that a store's answers must satisfy.
type Promises struct {
	// WeakReads is set if there are reads that cost less than strong ones, and WeakWrites
	// likewise for writes. Otherwise a weak operation is executed as a strong one.
	WeakReads, WeakWrites bool
	// OwnWrites is set if a weak read sees earlier writes of its session.
	OwnWrites bool
	// TellsFast is set if answers say whether a write took the fast path.
	TellsFast bool
}

// ErrClosed is the error of Poll after Close.
var ErrClosed = errors.New("session closed")

// Completions helps to implement a Client for a store whose operations end by a callback from
// any goroutine: the callback calls Put, and Poll calls Take. Create it with NewCompletions.
type Completions struct {
	mu     sync.Mutex // guards all below
	some   sync.Cond
	ready  []completion
	closed bool

	taken []completion // used by the goroutine that calls Take
}

type completion struct {
	slot   int
	answer Answer
}

// NewCompletions returns an empty one.
func NewCompletions() *Completions {
	c := &Completions{}
	c.some.L = &c.mu
	return c
}

// Put records that an operation has ended. The answer's value must not change afterwards.
func (c *Completions) Put(slot int, a Answer) {
	c.mu.Lock()
	c.ready = append(c.ready, completion{slot, a})
	first := len(c.ready) == 1
	c.mu.Unlock()
	if first {
		c.some.Signal()
	}
}

// Take waits for completions and reports all of them. After Close it returns ErrClosed.
func (c *Completions) Take(ended func(slot int, a Answer)) error {
	c.mu.Lock()
	for len(c.ready) == 0 && !c.closed {
		c.some.Wait()
	}
	if c.closed {
		c.mu.Unlock()
		return ErrClosed
	}
	c.taken, c.ready = c.ready, c.taken[:0]
	c.mu.Unlock()
	for i := range c.taken {
		ended(c.taken[i].slot, c.taken[i].answer)
		c.taken[i].answer.Value = nil
	}
	return nil
}

// Close ends Take.
func (c *Completions) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.some.Broadcast()
}
