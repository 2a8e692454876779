package batch

import (
	"container/list"
	"context"
	"fmt"
	"sync"
	"time"
)

// Result is the outcome of one item.
type Result[R any] struct {
	Value R
	Err   error
}

// Flush processes a group. All items share the key; results has one entry per
// item in the same order, zeroed. A returned error becomes the error of every
// item whose own Err is nil. Both slices are reused: a Flush keeps neither. It
// runs on one of at most MaxLanes goroutines. A panic in it ends the program,
// because this package cannot know whether the group took effect.
type Flush[K comparable, T, R any] func(key K, items []T, results []Result[R]) error

// Options is the configuration of a [Batcher].
type Options[T any] struct {
	Config

	// Ordered keeps the groups of one key in order: the next one goes when the
	// previous one is done. Without it only the order inside a group and the
	// order of departure are kept. Default: false.
	Ordered bool

	// Refuse makes a full batcher return ErrFull at once instead of blocking
	// the submitter until there is room or its context ends. Default: false.
	Refuse bool

	// Size is an item's weight for MaxBytes and CapacityBytes. It is called
	// once per item. Default: nil, every item weighs 0.
	Size func(T) int
}

// call is one item in flight. Its fields are guarded by the batcher's lock, except that
// item is constant until it is dead and res belongs to the goroutine that received from done.
type call[T, R any] struct {
	item      T
	res       Result[R]
	done      chan struct{} // cap 1, kept when the call is reused
	then      func(R, error)
	finished  bool
	abandoned bool // the submitter went away; the worker recycles
	waiting   bool // in the queue
	dead      bool // abandoned while it waited; it is not recycled
	size      int
}

// Batcher gathers items that goroutines submit, and flushes them in groups of
// one key. It is safe for concurrent use. Its goroutines (one per lane that was
// ever needed and, if there are deadlines, one for the timer) end with Close.
// Keys take turns, one group each. Once warm, Submit does not allocate.
//
//	b := batch.New(batch.Options[Row]{}, insertRows)
//	defer b.Close()
//	id, err := b.Submit(ctx, "orders", row)
type Batcher[K comparable, T, R any] struct {
	opts  Options[T]
	flush Flush[K, T, R]
	zero  time.Time // origin of the queue's time
	pool  sync.Pool // *call[T, R]
	group sync.WaitGroup

	mu      sync.Mutex
	work    sync.Cond // idle workers wait here
	q       keyed[K, *call[T, R]]
	workers int
	idle    int           // workers in work.Wait that were not signalled yet
	line    list.List     // *guest: submitters that wait for room, in order
	alarm   *alarm        // nil until something is due by time
	armed   time.Duration // deadline that the alarm knows; 0 none
	precise bool          // false under a virtual clock
}

// New returns a batcher that flushes with flush. It panics when opts.Config is
// invalid (see [Config.Validate]).
func New[K comparable, T, R any](opts Options[T], flush Flush[K, T, R]) *Batcher[K, T, R] {
	if err := opts.validate(); err != nil {
		panic(err)
	}
	b := &Batcher[K, T, R]{opts: opts, flush: flush, zero: time.Now(), precise: true}
	b.opts.Config = opts.withDefaults()
	b.work.L = &b.mu
	b.q.gate.init(b.opts.Config)
	b.q.ordered = opts.Ordered
	b.q.isDead = func(c *call[T, R]) bool { return c.dead }
	b.q.lines = make(map[K]*line[K, *call[T, R]])
	b.pool.New = func() any { return &call[T, R]{done: make(chan struct{}, 1)} }
	return b
}

func (b *Batcher[K, T, R]) now() time.Duration { return time.Since(b.zero) }

// Submit hands in an item and waits for its result. The error is the item's
// own, that of its flush, [ErrFull], [ErrClosed] or ctx.Err(). When ctx ends
// while the item waits, it is removed and never flushed. When ctx ends after
// its group has left, Submit returns ctx.Err() at once and the flush continues:
// the caller does not know whether the item took effect.
func (b *Batcher[K, T, R]) Submit(ctx context.Context, key K, item T) (R, error) {
	c := b.pool.Get().(*call[T, R])
	c.item = item
	if err := b.enqueue(ctx, key, c); err != nil {
		b.recycle(c)
		var none R
		return none, err
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		if !b.cancel(key, c) {
			var none R
			return none, ctx.Err()
		}
		<-c.done
	}
	res := c.res
	b.recycle(c)
	return res.Value, res.Err
}

// Go hands in an item and returns; then is called with the result on the
// goroutine of the flush, whose lane it occupies, so it must be short and must
// not call Submit. When Go returns an error, then is not called. ctx bounds
// only the wait for room.
func (b *Batcher[K, T, R]) Go(ctx context.Context, key K, item T, then func(R, error)) error {
	c := b.pool.Get().(*call[T, R])
	c.item, c.then = item, then
	if err := b.enqueue(ctx, key, c); err != nil {
		b.recycle(c)
		return err
	}
	return nil
}

// recycle puts a call that nothing refers to any more back into the pool.
func (b *Batcher[K, T, R]) recycle(c *call[T, R]) {
	*c = call[T, R]{done: c.done}
	b.pool.Put(c)
}

// enqueue pushes the call, blocking for room if that was chosen.
func (b *Batcher[K, T, R]) enqueue(ctx context.Context, key K, c *call[T, R]) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if b.opts.Size != nil {
		c.size = b.opts.Size(c.item)
	}
	b.mu.Lock()
	err := ErrFull
	if b.line.Len() == 0 || b.q.gate.closed {
		err = b.push(key, c)
	}
	if err != ErrFull || b.opts.Refuse {
		b.mu.Unlock()
		return err
	}
	g := &guest[K, T, R]{key: key, c: c, answer: make(chan error, 1)}
	place := b.line.PushBack(g)
	b.mu.Unlock()
	select {
	case err := <-g.answer:
		return err
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case err := <-g.answer: // it came first
		return err
	default:
	}
	b.line.Remove(place)
	b.makeRoom() // this may have been the first, and the next may fit
	return ctx.Err()
}

// guest is a submitter that waits for room.
type guest[K comparable, T, R any] struct {
	key    K
	c      *call[T, R]
	answer chan error // gets nil when the call was let in
}

// push puts the call into the queue.
func (b *Batcher[K, T, R]) push(key K, c *call[T, R]) error {
	l, err := b.q.push(b.now(), key, c, c.size)
	if err != nil {
		return err
	}
	c.waiting = true
	at, ok := b.q.deadlineOf(l)
	b.expect(at, ok)
	return nil
}

// cancel takes a waiting call out and reports whether its result is there
// after all. If it is in flight, the worker will recycle it.
func (b *Batcher[K, T, R]) cancel(key K, c *call[T, R]) (finished bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.finished {
		return true
	}
	if !c.waiting {
		c.abandoned = true
		return false
	}
	var none T
	c.item, c.dead = none, true
	b.q.giveUp(key, c.size)
	b.makeRoom()
	if b.q.gate.closed {
		b.wakeAll() // this may have been the last item
	}
	return false
}

// makeRoom lets in waiting submitters, in their order: if small items could overtake, a
// large one might wait for as long as small ones come.
func (b *Batcher[K, T, R]) makeRoom() {
	for first := b.line.Front(); first != nil; first = b.line.Front() {
		g := first.Value.(*guest[K, T, R])
		err := b.push(g.key, g.c)
		if err == ErrFull {
			return
		}
		b.line.Remove(first)
		g.answer <- err
	}
}

// expect makes sure that a worker looks at the deadline in time: now, if it has come, else
// by the alarm.
func (b *Batcher[K, T, R]) expect(at time.Duration, ok bool) {
	if !ok {
		return
	}
	now := b.q.gate.now
	if at <= now {
		b.wake()
		return
	}
	if b.armed > 0 && b.armed <= at || b.q.gate.closed {
		return // closed: nothing is held back, each worker looks when it has finished
	}
	if b.alarm == nil {
		b.alarm = newAlarm(b.ring, b.precise)
		b.group.Go(b.alarm.run)
	}
	b.armed = at
	b.alarm.in(at - now)
}

// ring is called by the alarm.
func (b *Batcher[K, T, R]) ring() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.armed = 0
	b.wake()
}

// wake wakes one worker, unless one is awake that is not flushing: that one will
// look before it sleeps, and if it leaves something for a second lane, it calls
// wake in turn. So a burst of submissions wakes one worker, not all.
func (b *Batcher[K, T, R]) wake() {
	switch {
	case b.workers-b.idle > b.q.gate.lanes:
	case b.idle > 0:
		b.idle--
		b.work.Signal()
	case b.workers < b.opts.MaxLanes:
		b.workers++
		b.group.Go(b.run)
	}
}

// run is a worker: take a group, flush it, tell the members; until closed and
// empty.
func (b *Batcher[K, T, R]) run() {
	var (
		calls   []*call[T, R]
		items   []T
		results []Result[R]
	)
	// Nothing is deferred: when a flush or a callback panics, the lock is not held, and an
	// unlock then would be a fatal error that hides the panic.
	b.mu.Lock()
	for {
		var l *line[K, *call[T, R]]
		calls, l = b.q.take(b.now(), calls[:0])
		if l == nil {
			if b.q.gate.closed && b.q.gate.waiting == 0 {
				b.workers--
				b.mu.Unlock()
				return
			}
			b.expectNoWake()
			b.idle++
			b.work.Wait()
			continue
		}
		b.makeRoom()
		b.expect(b.q.deadline()) // a second lane may be free
		items = items[:0]
		for _, c := range calls {
			c.waiting = false
			items = append(items, c.item)
		}
		results = results[:0]
		for range calls {
			results = append(results, Result[R]{})
		}
		key := l.key
		b.mu.Unlock()
		began := b.now()
		err := b.flush(key, items, results)
		took := b.now() - began
		b.mu.Lock()
		b.q.done(b.now(), l, len(calls), took)
		b.deliver(calls, results, err)
		clear(items)
		clear(results)
		if b.q.gate.closed {
			b.wakeAll() // an ordered key may be free, or everything may be done
		}
	}
}

// expectNoWake arms the alarm before a worker sleeps. A deadline that has come
// cannot be left, because take has just found nothing.
func (b *Batcher[K, T, R]) expectNoWake() {
	if at, ok := b.q.deadline(); ok && at > b.q.gate.now {
		b.expect(at, ok)
	}
}

func (b *Batcher[K, T, R]) wakeAll() {
	b.idle = 0
	b.work.Broadcast()
}

// deliver hands out the results. It holds the lock except during callbacks.
func (b *Batcher[K, T, R]) deliver(calls []*call[T, R], results []Result[R], err error) {
	for i, c := range calls {
		calls[i] = nil
		c.res = results[i]
		if c.res.Err == nil {
			c.res.Err = err
		}
		switch {
		case c.abandoned:
			b.recycle(c)
		case c.then != nil:
			then, res := c.then, c.res
			b.recycle(c)
			b.mu.Unlock()
			then(res.Value, res.Err)
			b.mu.Lock()
		default:
			c.finished = true
			c.done <- struct{}{}
		}
	}
}

// Close refuses new items ([ErrClosed], also for submitters that wait for room),
// flushes what waits, and returns when all groups are done and every goroutine has
// ended. It is safe to call twice. A Flush or a callback must not call it.
func (b *Batcher[K, T, R]) Close() error {
	b.mu.Lock()
	first := !b.q.gate.closed
	b.q.gate.closed = true
	b.makeRoom()
	if b.q.gate.waiting > 0 {
		b.wake()
	}
	b.wakeAll()
	if first && b.alarm != nil {
		close(b.alarm.stop)
	}
	b.mu.Unlock()
	b.group.Wait()
	return nil
}

// Stats is a copy of all counters, about 9 KiB.
func (b *Batcher[K, T, R]) Stats() Stats {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.q.gate.snapshot()
}

// String names the batcher's state for logs.
func (b *Batcher[K, T, R]) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return fmt.Sprintf("batcher: %d waiting, %d of %d lanes", b.q.gate.waiting, b.q.gate.lanes, b.q.gate.limit())
}
