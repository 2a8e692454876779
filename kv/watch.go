package kv

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// Change is one change of one key.
type Change struct {
	Kind ChangeKind
	Item
}

// ChangeKind says how a key was changed.
type ChangeKind = wire.ChangeKind

// Kinds of changes.
const (
	Changed = wire.ChangePut
	Deleted = wire.ChangeDelete
	Expired = wire.ChangeExpire
)

// Watcher returns the changes of a span of keys, in order, each once. It watches at one
// replica, and continues at another if that one is lost or cut off from the others; Next
// returns ErrCutOff if all are.
type Watcher struct {
	c       *Client
	request uint64
	from    string
	to      string

	mu      sync.Mutex
	replica uint64 // 0 while no replica reports changes
	asked   bool   // a replica was asked to report changes
	before  bool   // asked, before the present replica
	next    uint64 // the first revision that was not reported
	queue   []Change
	missed  bool     // the changes after those in queue were missed
	later   []Change // what came after the gap
	bytes   int      // of queue and later
	cut     []uint64 // replicas that have been cut off from the others since the last report
	err     error
	ready   chan struct{} // has one token when there is something for Next
}

// Watch watches the keys from from (inclusive) to to (exclusive; empty: the end), from
// revision since on; 0 means from now on. The caller must close the Watcher.
func (c *Client) Watch(from, to string, since uint64) (*Watcher, error) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, ErrClosed
	}
	c.requests++
	w := &Watcher{c: c, request: askRange<<32 | c.requests, from: from, to: to, next: since, ready: make(chan struct{}, 1)}
	c.watches[w.request] = w
	c.mu.Unlock()
	c.askFor(w, 0)
	return w, nil
}

// Next waits for changes and returns all that have come since the last call, at
// least one. After ErrMissed, which says that the replicas no longer know some of the
// changes, the watch continues with later ones.
func (w *Watcher) Next(ctx context.Context) ([]Change, error) {
	for {
		w.mu.Lock()
		queue, missed, err := w.queue, w.missed, w.err
		if len(queue) > 0 {
			w.queue, w.bytes = nil, sizeOf(w.later)
		} else {
			w.missed, w.queue, w.later = false, w.later, nil
		}
		w.mu.Unlock()
		switch {
		case len(queue) > 0:
			return queue, nil
		case missed:
			return nil, ErrMissed
		case err != nil:
			return nil, err
		}
		select {
		case <-w.ready:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Close ends the watch.
func (w *Watcher) Close() error {
	w.c.mu.Lock()
	delete(w.c.watches, w.request)
	w.c.mu.Unlock()
	w.mu.Lock()
	at := w.replica
	w.mu.Unlock()
	w.end(ErrClosed)
	if conn := w.c.to(at); conn != nil {
		if _, err := conn.Send([]wire.Message{{Kind: wire.Unwatch, Request: w.request}}); err != nil {
			return fmt.Errorf("kv: end watch: %w", err)
		}
	}
	return nil
}

func (w *Watcher) end(err error) {
	w.mu.Lock()
	w.err = err
	w.mu.Unlock()
	w.wake()
}

func (w *Watcher) wake() {
	select {
	case w.ready <- struct{}{}:
	default:
	}
}

// maxUntaken is how many changes may wait for Next. If a program takes none, they must
// not fill its memory: it gets ErrMissed instead.
const maxUntaken = 64 << 10

// maxUntakenBytes bounds the size of their keys and values. The changes of one event are
// kept whatever their size.
const maxUntakenBytes = 64 << 20

func sizeOf(changes []Change) (bytes int) {
	for i := range changes {
		bytes += len(changes[i].Key) + len(changes[i].Value)
	}
	return bytes
}

// refused handles a replica's refusal of a watch. If that replica is cut off from the others,
// the watch tries another one, if there is any.
func (w *Watcher) refused(from uint64, m *wire.Message) {
	if m.Code == wire.CodeCutOff {
		w.move(from, string(m.Data))
		return
	}
	w.mu.Lock()
	defer w.wake()
	defer w.mu.Unlock()
	if from == w.replica && w.err == nil {
		w.err = fmt.Errorf("kv: watch: replica %d refuses it: %s", from, m.Data)
	}
}

// move continues at another replica.
func (w *Watcher) move(from uint64, why string) {
	w.mu.Lock()
	if from != w.replica || w.err != nil {
		w.mu.Unlock()
		return
	}
	w.cut = append(w.cut, from)
	cut := slices.Clone(w.cut)
	w.replica = 0
	w.mu.Unlock()
	if other := w.c.nearestBut(cut); other != 0 {
		w.c.rewatch(other)
		return
	}
	w.end(fmt.Errorf("%w: watch: %s", ErrCutOff, why))
}

// receive handles a replica's report of changes.
func (w *Watcher) receive(from uint64, m *wire.Message) {
	changes, err := wire.ParseChanges(m.Data)
	w.mu.Lock()
	defer w.wake()
	defer w.mu.Unlock()
	if from != w.replica {
		return
	}
	if err != nil {
		w.err = fmt.Errorf("kv: watch: %w", err)
		return
	}
	if m.Code == wire.CodeMissed { // together with what came since it last missed some
		w.missed, w.later, w.bytes = true, nil, w.bytes-sizeOf(w.later)
	}
	w.cut = nil
	waited := w.bytes
	for _, g := range changes {
		if g.Revision >= w.next {
			to := &w.queue
			if w.missed {
				to = &w.later
			}
			*to = append(*to, Change{Kind: g.Kind, Item: Item{Key: g.Key, Value: g.Value, Revision: g.Revision, Lease: g.Lease}})
			w.bytes += len(g.Key) + len(g.Value)
		}
	}
	w.next = max(w.next, m.Revision+1)
	if len(w.queue)+len(w.later) > maxUntaken || waited > 0 && w.bytes > maxUntakenBytes {
		w.queue, w.missed, w.later, w.bytes = nil, true, nil, 0
	}
}

// ask returns the request for a replica that should report from here on, unless another
// one was asked meanwhile: several connections may come up at once.
func (w *Watcher) ask(id uint64) (m wire.Message, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.replica != 0 || w.err != nil {
		return m, false
	}
	w.replica = id
	if w.asked && w.next == 0 {
		w.missed = true // the one before has not said where "from now on" began
		w.wake()
	}
	w.before, w.asked = w.asked, true
	command := wire.Command{Verb: wire.Range, Key: w.from, End: w.to}
	return wire.Message{Kind: wire.Watch, Request: w.request, Revision: w.next, Data: command.Append(nil)}, true
}

// unasked undoes ask.
func (w *Watcher) unasked(id uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.replica == id {
		w.replica, w.asked = 0, w.before
	}
}

// rewatch finds a replica for each watch that has none; just is the replica that was
// connected last.
func (c *Client) rewatch(just uint64) {
	c.mu.Lock()
	var idle []*Watcher
	for _, w := range c.watches {
		w.mu.Lock()
		if w.replica == 0 {
			idle = append(idle, w)
		}
		w.mu.Unlock()
	}
	c.mu.Unlock()
	for _, w := range idle {
		c.askFor(w, just)
	}
}

// askFor sends a watch's request to a replica, unless another one was asked; 0 is the nearest.
func (c *Client) askFor(w *Watcher, id uint64) {
	if id == 0 {
		id = c.nearest()
	}
	conn := c.to(id)
	if conn == nil {
		return
	}
	m, ok := w.ask(id)
	if !ok {
		return
	}
	if _, err := conn.Send([]wire.Message{m}); err != nil {
		w.unasked(id) // the connection is full, or ending: tick will try again soon
	}
}

// unwatched notes that a replica no longer reports anything.
func (c *Client) unwatched(id uint64) {
	c.mu.Lock()
	for _, w := range c.watches {
		w.mu.Lock()
		if w.replica == id {
			w.replica = 0
		}
		w.mu.Unlock()
	}
	closed := c.closed
	c.mu.Unlock()
	if other := c.nearest(); other != 0 && other != id && !closed {
		c.rewatch(other)
	}
}

// nearest is the connected replica with the shortest round trip, 0 if none is.
func (c *Client) nearest() uint64 { return c.nearestBut(nil) }

// nearestBut is nearest, excluding some replicas.
func (c *Client) nearestBut(these []uint64) (id uint64) {
	best := int64(-1)
	for _, l := range c.linked() {
		l.mu.Lock()
		if l.conn != nil && !slices.Contains(these, l.id) {
			if rtt := int64(l.conn.RTT().Smoothed); best < 0 || rtt < best {
				best, id = rtt, l.id
			}
		}
		l.mu.Unlock()
	}
	return id
}
