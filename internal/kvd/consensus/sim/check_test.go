package sim

import (
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// story returns a history without a run: two writes and a read of session 0, a read of session
// 1, all correct.
func story() *World {
	w := &World{Config: Config{SessionIdle: time.Hour}, log: commits{byOp: map[uint64]uint64{}, moments: []moment{{known: true}, {known: true, index: 1}}}, sessions: []*sessionRun{{}, {}}, replicas: []*replica{{}}}
	w.assemble()
	truth := newOracle()
	add := func(session, order int, command wire.Command, called, returned uint64) *operation {
		o := &operation{id: uint64(len(w.history) + 1), session: session, order: order, command: command, called: called, returned: returned}
		o.write = command.Verb.IsWrite()
		if o.write {
			o.command.Limit = o.id
		}
		o.bytes = o.command.Append(nil)
		o.command.Footprint(&o.foot)
		w.history = append(w.history, o)
		return o
	}
	commitAt := func(o *operation, revision, when uint64) {
		o.result = truth.Apply(revision, 1, o.bytes)
		for uint64(len(w.log.at)) <= revision {
			w.log.at = append(w.log.at, commit{})
		}
		w.log.at[revision] = commit{known: true, now: 1, command: o.bytes, result: o.result, op: o.id, when: when}
		w.log.byOp[o.id] = revision
		w.log.moments = append(w.log.moments, moment{known: true, index: revision, revision: revision, time: 1, when: when})
	}
	readAt := func(o *operation, index uint64) {
		o.index, o.result = index, truth.Evaluate(1, nil, o.bytes)
	}
	commitAt(add(0, 0, wire.Command{Verb: wire.Set, Key: "k0", Value: []byte("a")}, 1, 4), 2, 3)
	commitAt(add(0, 1, wire.Command{Verb: wire.Increment, Key: "c0", Delta: 1}, 5, 8), 3, 7)
	readAt(add(0, 2, wire.Command{Verb: wire.Get, Key: "k0"}, 9, 10), 3)
	readAt(add(1, 0, wire.Command{Verb: wire.Get, Key: "c0"}, 11, 12), 3)
	w.steps = 20
	return w
}

func TestChecksFindWhatIsWrong(t *testing.T) {
	ok := (&wire.Result{}).Append(nil)
	notFound := (&wire.Result{Code: wire.NotFound}).Append(nil)
	tests := []struct {
		name  string
		spoil func(*World)
		want  string // the check that must notice, "" for none
	}{
		{"all is well", func(*World) {}, ""},
		{"an acknowledged write is in no log", func(w *World) { delete(w.log.byOp, 2) }, "lost"},
		{"so is a weak one", func(w *World) { delete(w.log.byOp, 2); w.history[1].weak = true }, "lost"},
		{"its client crashed and a disk is lost", func(w *World) {
			delete(w.log.byOp, 2)
			w.log.at[3], w.log.moments[3] = commit{}, moment{known: true, index: 3, revision: 3, time: 1, when: 7}
			w.history[1].weak, w.sessions[0].crashed, w.replicas[0].gone = true, true, true
			w.history = w.history[:3]
		}, ""},
		{"a refused write was executed", func(w *World) { w.history[1].failure, w.history[1].refused = "no", true }, "refused"},
		{"a write was never answered", func(w *World) { w.history[1].returned = 0 }, "liveness"},
		{"a write was told another revision", func(w *World) { w.history[1].revision = 7 }, "answer"},
		{"a write got another result", func(w *World) { w.history[1].result = ok }, "answer"},
		{"a read got another result", func(w *World) { w.history[3].result = notFound }, "answer"},
		{"a read was answered at an entry that nobody has", func(w *World) { w.history[3].index = 9 }, "answer"},
		{"a read was answered before the entry was applied", func(w *World) { w.log.moments[3].when = 15 }, "uncommitted"},
		{"a weak read leaves out an own pending write", func(w *World) {
			w.history[0].weak, w.history[2].weak, w.history[2].index, w.history[2].result = true, true, 1, notFound
		}, "answer"},
		{"a strong read is older than a write before it", func(w *World) {
			w.history[3].index, w.history[3].result = 2, notFound
		}, "real time"},
		{"a session's writes changed places", func(w *World) { w.history[0].order, w.log.byOp[1], w.log.byOp[2] = 0, 3, 2 }, "session order"},
		{"a session's reads go back", func(w *World) {
			w.history[3].session, w.history[3].index, w.history[3].weak, w.history[3].result = 0, 2, true, notFound
			w.history[3].order = 3
		}, "read your writes"},
		{"a session's read is older than its write", func(w *World) {
			w.history[2].index, w.history[2].result, w.history[2].weak = 1, notFound, true
		}, "read your writes"},
		{"a wait ended too early", func(w *World) {
			w.history = append(w.history, &operation{id: 5, session: 0, order: 3, wait: true, called: 5, returned: 6})
		}, "wait"},
		{"the store and the oracle disagree", func(w *World) { w.log.at[3].result = ok; w.history[1].result = ok }, "machine"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := story()
			for _, o := range w.history {
				o.revision = 0
			}
			tt.spoil(w)
			w.checker.run()
			got := ""
			if len(w.Violations) > 0 {
				got = w.Violations[0].Check
			}
			if got != tt.want {
				t.Errorf("noticed by %q, want %q: %v", got, tt.want, w.Violations)
			}
		})
	}
}

func TestRegistersAreCheckedWithoutTheLog(t *testing.T) {
	w := story()
	w.Seed = 4
	w.checker.registers()
	if w.Stats.Keys == 0 || len(w.Violations) > 0 {
		t.Fatalf("%d histories, %v", w.Stats.Keys, w.Violations)
	}
	w.history[3].result = (&wire.Result{Code: wire.NotFound}).Append(nil)
	w.checker.registers()
	if len(w.Violations) == 0 || w.Violations[0].Check != "linearizable" {
		t.Errorf("a stale read was not noticed: %v", w.Violations)
	}
}

func TestDifferingReplicasAreNoticed(t *testing.T) {
	for want, other := range map[string]commit{
		"one order":   {now: 1, command: []byte("x")},
		"determinism": {now: 1},
	} {
		w := story()
		if want == "determinism" {
			other.command = w.log.at[3].command
		}
		w.log.apply(w, 2, 3, other)
		if len(w.Violations) == 0 || !strings.HasPrefix(w.Violations[0].Check, want) {
			t.Errorf("%s: %v", want, w.Violations)
		}
	}
	w := story()
	w.log.apply(w, 1, 4, commit{command: w.history[0].bytes})
	if len(w.Violations) == 0 || w.Violations[0].Check != "exactly once" {
		t.Errorf("a write that was executed twice: %v", w.Violations)
	}
}
