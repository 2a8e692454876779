package kv

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// A program that takes no changes is told that it missed some, instead of
// filling its memory.
func TestUntakenChangesAreBounded(t *testing.T) {
	w := &Watcher{replica: 1, ready: make(chan struct{}, 1)}
	tell := func(revision uint64) {
		change := []wire.Change{{Kind: wire.ChangePut, Key: "a", Revision: revision}}
		w.receive(1, &wire.Message{Kind: wire.WatchEvent, Revision: revision, Data: wire.AppendChanges(nil, change)})
	}
	for revision := uint64(1); revision <= maxUntaken; revision++ {
		tell(revision)
	}
	if len(w.queue) != maxUntaken || w.missed {
		t.Fatalf("%d changes wait, missed %v", len(w.queue), w.missed)
	}
	tell(maxUntaken + 1)
	if len(w.queue) != 0 {
		t.Fatalf("%d changes wait", len(w.queue))
	}
	if _, err := w.Next(t.Context()); !errors.Is(err, ErrMissed) {
		t.Fatalf("next: %v, want ErrMissed", err)
	}
	tell(maxUntaken + 2)
	if got, err := w.Next(t.Context()); err != nil || len(got) != 1 || got[0].Revision != maxUntaken+2 {
		t.Fatalf("next: %v, %v", got, err)
	}
}

// A program hears that it missed changes before it hears of those that came after.
func TestMissedChangesComeInTheirPlace(t *testing.T) {
	w := &Watcher{replica: 1, ready: make(chan struct{}, 1)}
	tell := func(revision uint64, code uint8) {
		m := &wire.Message{Kind: wire.WatchEvent, Revision: revision, Code: code}
		if code == 0 {
			m.Data = wire.AppendChanges(nil, []wire.Change{{Kind: wire.ChangePut, Key: "a", Revision: revision}})
		}
		w.receive(1, m)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // it does not wait
	next := func(what string, missed bool, want ...uint64) {
		t.Helper()
		changes, err := w.Next(ctx)
		var got []uint64
		for _, c := range changes {
			got = append(got, c.Revision)
		}
		if !slices.Equal(got, want) || missed != errors.Is(err, ErrMissed) || !missed && err != nil {
			t.Errorf("%s: %d, %v", what, got, err)
		}
	}
	for i, code := range []uint8{0, 0, wire.CodeMissed, 0, wire.CodeMissed, 0, 0} {
		tell(uint64(3+i), code)
	}
	next("before", false, 3, 4)
	next("two gaps, of which nothing between is told", true)
	next("after", false, 8, 9)
	if w.bytes != 0 || w.missed {
		t.Errorf("%d bytes are left, missed %v", w.bytes, w.missed)
	}
}

// A replica that was asked and has died before it said anything may have had
// something to say.
func TestWatchThatMovesUnconfirmed(t *testing.T) {
	for _, told := range []bool{false, true} {
		w := &Watcher{ready: make(chan struct{}, 1)}
		w.ask(1)
		if told {
			w.receive(1, &wire.Message{Kind: wire.WatchEvent, Revision: 5})
		}
		w.replica = 0 // the connection is lost
		m, ok := w.ask(2)
		if !ok || w.missed == told {
			t.Errorf("confirmed %v, asked %v, missed %v", told, ok, w.missed)
		}
		if told && m.Revision != 6 {
			t.Errorf("it goes on at %d, want 6", m.Revision)
		}
	}
}

// Connections to two replicas that come up at once both find the watch idle. The
// second one is not asked, and nothing has been missed.
func TestWatchIsAskedForOnce(t *testing.T) {
	w := &Watcher{ready: make(chan struct{}, 1)}
	if _, ok := w.ask(1); !ok {
		t.Fatal("nobody was asked")
	}
	if _, ok := w.ask(2); ok || w.missed || w.replica != 1 {
		t.Errorf("replica 2 asked %v, missed %v, replica %d tells", ok, w.missed, w.replica)
	}
}

// Large values fill memory sooner than many changes.
func TestUntakenBytesAreBounded(t *testing.T) {
	w := &Watcher{replica: 1, ready: make(chan struct{}, 1)}
	value := make([]byte, 8<<20)
	tell := func(revision uint64) {
		change := []wire.Change{{Kind: wire.ChangePut, Key: "a", Value: value, Revision: revision}}
		w.receive(1, &wire.Message{Kind: wire.WatchEvent, Revision: revision, Data: wire.AppendChanges(nil, change)})
	}
	for revision := uint64(1); revision <= 8; revision++ {
		tell(revision)
	}
	if len(w.queue) != 0 || w.bytes != 0 {
		t.Fatalf("%d changes of %d bytes wait", len(w.queue), w.bytes)
	}
	if _, err := w.Next(t.Context()); !errors.Is(err, ErrMissed) {
		t.Fatalf("next: %v, want ErrMissed", err)
	}
	tell(10)
	if got, err := w.Next(t.Context()); err != nil || len(got) != 1 {
		t.Fatalf("next: %d changes, %v", len(got), err)
	}
}

// A request that could not be sent was not made: nothing was missed by it.
func TestWatchThatCouldNotBeSent(t *testing.T) {
	w := &Watcher{ready: make(chan struct{}, 1)}
	w.ask(1)
	w.unasked(1)
	if _, ok := w.ask(1); !ok || w.missed {
		t.Errorf("asked again %v, missed %v", ok, w.missed)
	}
	w.replica = 0 // now the connection is lost
	w.ask(2)
	w.unasked(2)
	w.missed = false // the program was told
	if _, ok := w.ask(3); !ok || !w.missed {
		t.Errorf("asked a third one %v, missed %v", ok, w.missed)
	}
}

// A watch that all replicas refuse because they are cut off ends; a word of the cluster
// between makes each of them one to be asked again.
func TestWatchThatIsCutOff(t *testing.T) {
	w := &Watcher{c: &Client{}, ready: make(chan struct{}, 1)}
	refusal := wire.Message{Kind: wire.Refused, Code: wire.CodeCutOff, Data: []byte("no leader")}
	w.ask(1)
	w.refused(2, &refusal) // an old answer
	if w.err != nil || w.replica != 1 {
		t.Fatalf("ended by another replica: %v", w.err)
	}
	w.cut = []uint64{3}
	w.receive(1, &wire.Message{Kind: wire.WatchEvent, Revision: 5})
	if len(w.cut) != 0 {
		t.Errorf("cut off: %d", w.cut)
	}
	w.refused(1, &refusal)
	if _, err := w.Next(t.Context()); !errors.Is(err, ErrCutOff) {
		t.Errorf("next: %v, want ErrCutOff", err)
	}
}
