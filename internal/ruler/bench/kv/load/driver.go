package kvload

import (
	"context"
	"errors"
	"iter"
	"sync"
)

// Class is a kind of operation.
type Class uint8

// The classes. A strong operation is linearizable; a weak one is what the store
// offers beside that.
const (
	StrongRead Class = iota
	StrongWrite
	WeakRead
	WeakWrite
	classes
)

// Weak reports whether the class is a weak one.
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
	// Value is what a write stores. It is the stream's, and does not change until
	// the operation has ended.
	Value []byte
}

// Answer is how an operation has ended.
type Answer struct {
	Value []byte // of a read that found something; valid during the call
	Found bool
	// Fast tells of a strong write that it ended by votes, before its commit.
	Fast bool
	Err  error
}

// Client is one session of a store. One goroutine calls Issue and Poll; Close may
// come from another at any time, and ends a Poll.
type Client interface {
	// Issue begins an operation without waiting for anything. The slot, from 0 on,
	// names it until it has ended; there is one operation of a slot at a time.
	Issue(slot int, op *Op)
	// Poll sends what Issue has left unsent, waits until an operation has ended,
	// and reports each that has, without waiting in between. Its own error is that
	// of the session: nothing that is under way will end.
	Poll(ended func(slot int, a Answer)) error
	Close() error
}

// Driver opens sessions of a store. It is safe for concurrent use.
type Driver interface {
	// Open opens the session of a stream, numbered from 0, that will have at most
	// so many operations under way.
	Open(ctx context.Context, stream, pendings int) (Client, error)
	// Load stores values before a run.
	Load(ctx context.Context, values iter.Seq2[string, []byte]) error
	// Promises is what the store's sessions promise.
	Promises() Promises
}

// Promises is what may be expected of a store's answers.
type Promises struct {
	// WeakReads tells that there are reads that cost less than strong ones, and
	// WeakWrites the same of writes. Without, a weak operation is done as a strong
	// one.
	WeakReads, WeakWrites bool
	// OwnWrites tells that a weak read sees what its session has written before.
	OwnWrites bool
	// TellsFast tells that answers say whether a write took the fast path.
	TellsFast bool
}

// ErrClosed is the error of Poll after Close.
var ErrClosed = errors.New("session closed")

// Completions lets a Client be made of a store whose operations end by a callback
// from any goroutine: the callback calls Put, and Poll is Take. Make one by
// NewCompletions.
type Completions struct {
	mu     sync.Mutex // guards all below
	some   sync.Cond
	ready  []completion
	closed bool

	taken []completion // of the goroutine that takes
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

// Put notes that an operation has ended. The answer's value must stay as it is.
func (c *Completions) Put(slot int, a Answer) {
	c.mu.Lock()
	c.ready = append(c.ready, completion{slot, a})
	first := len(c.ready) == 1
	c.mu.Unlock()
	if first {
		c.some.Signal()
	}
}

// Take waits for completions and reports all that are there. After Close it
// returns ErrClosed.
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
