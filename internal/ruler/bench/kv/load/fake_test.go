package kvload

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"
)

// fake is a store in memory, whose operations each take some time and end in a
// goroutine of their own. What is wrong with it can be chosen.
type fake struct {
	takes time.Duration
	// spoil, if not nil, may change an answer.
	spoil    func(op *Op, a Answer) Answer
	breaks   func(stream int) error // what Open says
	promises Promises

	mu     sync.Mutex // guards all below
	values map[string][]byte
	open   int
}

func newFake(takes time.Duration) *fake {
	return &fake{takes: takes, values: make(map[string][]byte), promises: Promises{WeakReads: true, WeakWrites: true, OwnWrites: true, TellsFast: true}}
}

func (f *fake) Promises() Promises { return f.promises }

func (f *fake) Near() Driver { return f }

func (f *fake) snapshot() map[string][]byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.values)
}

func (f *fake) Open(_ context.Context, stream, _ int) (Client, error) {
	if f.breaks != nil {
		if err := f.breaks(stream); err != nil {
			return nil, err
		}
	}
	f.mu.Lock()
	f.open++
	f.mu.Unlock()
	return &fakeClient{store: f, done: NewCompletions(), end: make(chan struct{})}, nil
}

type fakeClient struct {
	store *fake
	done  *Completions
	end   chan struct{}
	once  sync.Once
	under sync.WaitGroup
}

func (c *fakeClient) Issue(slot int, op *Op) {
	c.under.Go(func() {
		t := time.NewTimer(c.store.takes)
		defer t.Stop()
		select {
		case <-t.C:
			c.done.Put(slot, c.store.do(op))
		case <-c.end:
		}
	})
}

func (f *fake) do(op *Op) Answer {
	f.mu.Lock()
	defer f.mu.Unlock()
	var a Answer
	if !op.Class.Write() {
		a.Value, a.Found = f.values[op.Key]
	}
	if f.spoil != nil {
		a = f.spoil(op, a)
	}
	if op.Class.Write() && !errors.Is(a.Err, errLostWrite) {
		f.values[op.Key] = append([]byte(nil), op.Value...)
	}
	return a
}

// errLostWrite has the fake not do a write; it is answered with it.
var errLostWrite = errors.New("lost")

func (c *fakeClient) Poll(ended func(int, Answer)) error { return c.done.Take(ended) }

func (c *fakeClient) Close() error {
	c.once.Do(func() {
		close(c.end)
		c.done.Close()
		c.under.Wait()
		c.store.mu.Lock()
		c.store.open--
		c.store.mu.Unlock()
	})
	return nil
}
