package replica

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirdb/weir/internal/kvd/peer"
	"github.com/weirdb/weir/internal/kvd/resp"
	"github.com/weirdb/weir/internal/kvd/state"
	"github.com/weirdb/weir/internal/kvd/wire"
)

const (
	// feedChanges is how many changes may wait to be reported to watchers; beyond that,
	// watchers are told that they missed some.
	feedChanges = 1 << 17
	// feedWaiting is the same in bytes.
	feedWaiting = 64 << 20
	// feedBytes is the approximate size of one event.
	feedBytes = 1 << 20
	// missedPause is the pause between two attempts to reach a watcher that does not read.
	missedPause = 50 * time.Millisecond
	// maxWatches bounds the watches of one client.
	maxWatches = 4096
)

// A feed reports changes that were applied here to watchers: to Redis clients by
// invalidations, at once, and to native clients by events, from a goroutine of its
// own. Changes are never dropped silently: a watcher that cannot take them is told that
// it missed some.
type feed struct {
	front *resp.Server // nil without one
	send  func(to peer.Addr, ms []wire.Message) error
	stats feedStats

	hangUp func(to peer.Addr, why error)

	scratch []resp.Change // of the core goroutine
	cut     string        // also: why this replica reports no changes; "" while it does

	watching atomic.Int64 // number of watches, so that nothing is gathered for none

	mu      sync.Mutex // guards what follows
	pending []feedStep
	waiting int // changes in pending
	bytes   int // of their keys and values
	wake    chan struct{}
}

type feedStats struct{ events, changes, missed atomic.Uint64 }

// A feedStep is the next step of the feed's goroutine.
type feedStep struct {
	changes []wire.Change
	last    uint64 // revision up to which this step reports changes
	missed  bool   // changes up to last were not gathered

	add  *watch
	drop *watchID // request 0: all of the client
	cut  string   // all watches end for this reason
}

// watchID names a watch.
type watchID struct {
	client  peer.Addr
	request uint64
}

// A watch is one client's watch of a span of keys.
type watch struct {
	watchID
	span   wire.Span
	missed uint64 // it must be told that it missed changes up to here; 0: none
}

func newFeed() *feed { return &feed{wake: make(chan struct{}, 1)} }

// drain reports what was applied since the last call. The core goroutine calls it
// after each turn, before any answer is sent that may show these changes.
func (f *feed) drain(store *state.Store) {
	changes := store.Changes()
	if len(changes) == 0 {
		return
	}
	if f.front != nil && f.front.Interested() {
		f.scratch = f.scratch[:0]
		for i := range changes {
			f.scratch = append(f.scratch, resp.Change{Change: exported(&changes[i])})
		}
		f.front.Changed(f.scratch)
		clear(f.scratch)
	}
	if f.watching.Load() > 0 {
		f.push(feedStep{changes: allExported(changes), last: store.Revision()})
	}
}

// restored tells all watchers that anything may have changed.
func (f *feed) restored(revision uint64) {
	if f.front != nil {
		f.front.ChangedAll()
	}
	if f.watching.Load() > 0 {
		f.push(feedStep{missed: true, last: revision})
	}
}

func exported(c *state.Change) wire.Change {
	return wire.Change{Kind: wire.ChangeKind(c.Kind), Key: c.Key, Value: c.Value, Revision: c.Revision, Lease: c.Lease}
}

func allExported(changes []state.Change) []wire.Change {
	out := make([]wire.Change, len(changes))
	for i := range changes {
		out[i] = exported(&changes[i])
	}
	return out
}

func (f *feed) push(s feedStep) {
	bytes := 0
	for i := range s.changes {
		bytes += sizeOfChange(&s.changes[i])
	}
	f.mu.Lock()
	// One step is always accepted, however large: the store holds its values anyway.
	if full := f.waiting+len(s.changes) > feedChanges || f.waiting > 0 && f.bytes+bytes > feedWaiting; full && len(s.changes) > 0 {
		s.changes, s.missed, bytes = nil, true, 0
		if s.add != nil {
			s.add.missed = s.last // its beginning is lost
		}
	}
	f.waiting += len(s.changes)
	f.bytes += bytes
	f.pending = append(f.pending, s)
	f.mu.Unlock()
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

func sizeOfChange(c *wire.Change) int { return len(c.Key) + len(c.Value) + 16 }

// watch begins a watch. The core goroutine calls it: what was applied before is
// in the store's history, later changes will be drained.
func (f *feed) watch(store *state.Store, from peer.Addr, m *wire.Message) error {
	if f.cut != "" {
		return errCutOff
	}
	command, err := wire.ParseCommand(m.Data)
	if err != nil {
		return err
	}
	f.drain(store)
	w := &watch{watchID: watchID{from, m.Request}, span: wire.Span{From: command.Key, To: command.End}}
	step := feedStep{add: w, last: store.Revision()}
	if m.Revision != 0 {
		changes, _, compacted := store.History(m.Revision, w.span, 0)
		if compacted {
			w.missed = step.last
		}
		step.changes = allExported(changes)
	}
	f.watching.Add(1)
	f.push(step)
	return nil
}

// unwatch ends a watch. The core goroutine calls it, like watch, so that no watch that the
// client has asked for earlier begins after it.
func (f *feed) unwatch(from peer.Addr, request uint64) {
	f.push(feedStep{drop: &watchID{from, request}})
}

// errCutOff means that no watch begins; the feed's cut is the reason.
var errCutOff = errors.New("the replica is cut off")

// cutOff ends all watches, and refuses new ones until joined is called. Redis clients are
// told that they may have missed changes. The core goroutine calls it.
func (f *feed) cutOff(why string) {
	f.cut = why
	if f.front != nil {
		f.front.ChangedAll()
	}
	if f.watching.Load() > 0 {
		f.push(feedStep{cut: why})
	}
}

func (f *feed) joined() { f.cut = "" }

// gone removes a client. The core goroutine calls it, for the same reason.
func (f *feed) gone(from peer.Addr) {
	if f.watching.Load() > 0 {
		f.push(feedStep{drop: &watchID{client: from}})
	}
}

// run sends events to native clients until ctx ends.
func (f *feed) run(ctx context.Context) {
	t := teller{feed: f, byKey: map[string][]*watch{}, byClient: map[peer.Addr]map[uint64]*watch{}}
	for {
		var again <-chan time.Time
		if t.late > 0 {
			again = time.After(missedPause)
		}
		select {
		case <-ctx.Done():
			return
		case <-f.wake:
		case <-again:
		}
		f.mu.Lock()
		steps := f.pending
		f.pending, f.waiting, f.bytes = nil, 0, 0
		f.mu.Unlock()
		for i := range steps {
			t.step(&steps[i])
		}
		t.apologise()
	}
}

// A teller is the state of the feed's goroutine.
type teller struct {
	*feed
	byKey    map[string][]*watch // watches of single keys
	spans    []*watch            // all others
	byClient map[peer.Addr]map[uint64]*watch
	late     int // watches that must be told that they missed changes
}

func (t *teller) step(s *feedStep) {
	switch {
	case s.add != nil:
		if t.add(s.add) {
			t.tell(s.add, s.changes, s.last)
			if len(s.changes) == 0 {
				t.confirm(s.add, s.last)
			}
			return
		}
		refusal := wire.Message{Kind: wire.Refused, Request: s.add.request, Code: wire.CodeBusy, Data: []byte("too many watches")}
		if err := t.send(s.add.client, []wire.Message{refusal}); err != nil {
			t.hangUp(s.add.client, err)
		}
	case s.drop != nil:
		for request, w := range t.byClient[s.drop.client] {
			if s.drop.request == 0 || s.drop.request == request {
				t.remove(w)
			}
		}
	case s.cut != "":
		t.end(s.cut)
	case s.missed:
		for _, of := range t.byClient {
			for _, w := range of {
				t.miss(w, s.last)
			}
		}
	default:
		t.changes(s.changes, s.last)
	}
}

// end ends all watches.
func (t *teller) end(why string) {
	for client, of := range t.byClient {
		for request, w := range of {
			t.remove(w)
			if err := t.send(client, []wire.Message{cutOff(request, why)}); err != nil {
				t.hangUp(client, err)
			}
		}
	}
}

func cutOff(request uint64, why string) wire.Message {
	return wire.Message{Kind: wire.Refused, Request: request, Code: wire.CodeCutOff, Data: []byte(why)}
}

// single returns the key if the span contains no other.
func single(s wire.Span) (string, bool) {
	return s.From, s.To == s.From+"\x00"
}

// add begins a watch, and returns false if the client has too many.
func (t *teller) add(w *watch) bool {
	if before := t.byClient[w.client][w.request]; before != nil {
		t.remove(before)
	}
	of := t.byClient[w.client]
	if len(of) >= maxWatches {
		t.watching.Add(-1)
		return false
	}
	if of == nil {
		of = map[uint64]*watch{}
		t.byClient[w.client] = of
	}
	of[w.request] = w
	if w.missed != 0 {
		t.late++
	}
	if key, one := single(w.span); one {
		t.byKey[key] = append(t.byKey[key], w)
	} else {
		t.spans = append(t.spans, w)
	}
	return true
}

func (t *teller) remove(w *watch) {
	of := t.byClient[w.client]
	delete(of, w.request)
	if len(of) == 0 {
		delete(t.byClient, w.client)
	}
	if w.missed != 0 {
		t.late--
	}
	if key, one := single(w.span); one {
		if t.byKey[key] = without(t.byKey[key], w); len(t.byKey[key]) == 0 {
			delete(t.byKey, key)
		}
	} else {
		t.spans = without(t.spans, w)
	}
	t.watching.Add(-1)
}

func without(list []*watch, w *watch) []*watch {
	for i := range list {
		if list[i] == w {
			return slices.Delete(list, i, i+1)
		}
	}
	return list
}

// changes passes changes to the watches that they concern.
func (t *teller) changes(changes []wire.Change, last uint64) {
	of := map[*watch][]wire.Change{}
	for i := range changes {
		c := &changes[i]
		for _, w := range t.byKey[c.Key] {
			of[w] = append(of[w], *c)
		}
		for _, w := range t.spans {
			if w.span.Holds(c.Key) {
				of[w] = append(of[w], *c)
			}
		}
	}
	for w, concerned := range of {
		t.tell(w, concerned, last)
	}
}

// tell sends changes to one watch, or records that it missed them.
func (t *teller) tell(w *watch, changes []wire.Change, last uint64) {
	if w.missed != 0 {
		w.missed = max(w.missed, last)
		return
	}
	for len(changes) > 0 {
		n, size := 0, 0
		for n < len(changes) && size < feedBytes || n > 0 && n < len(changes) && changes[n].Revision == changes[n-1].Revision {
			size += sizeOfChange(&changes[n])
			n++
		}
		m := wire.Message{Kind: wire.WatchEvent, Request: w.request, Revision: changes[n-1].Revision, Data: wire.AppendChanges(nil, changes[:n])}
		if t.send(w.client, []wire.Message{m}) != nil {
			t.miss(w, last)
			return
		}
		t.stats.events.Add(1)
		t.stats.changes.Add(uint64(n))
		changes = changes[n:]
	}
}

// confirm tells a watch up to which revision it knows everything, so that it can continue
// from there elsewhere even if nothing has changed.
func (t *teller) confirm(w *watch, last uint64) {
	if w.missed == 0 && t.send(w.client, []wire.Message{{Kind: wire.WatchEvent, Request: w.request, Revision: last}}) != nil {
		t.miss(w, last)
	}
}

func (t *teller) miss(w *watch, last uint64) {
	if w.missed == 0 {
		t.late++
		t.stats.missed.Add(1)
	}
	w.missed = max(w.missed, last)
}

// apologise tells watchers that they missed changes, once they read again.
func (t *teller) apologise() {
	if t.late == 0 {
		return
	}
	for client, of := range t.byClient {
		for _, w := range of {
			if w.missed == 0 {
				continue
			}
			m := wire.Message{Kind: wire.WatchEvent, Request: w.request, Revision: w.missed, Code: wire.CodeMissed}
			if t.send(client, []wire.Message{m}) != nil {
				break
			}
			w.missed = 0
			t.late--
		}
	}
}
