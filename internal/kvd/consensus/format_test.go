package consensus

import (
	"errors"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// knows restarts a replica as a version that knows formats up to f.
func (r *rig) knows(id, f uint64) {
	r.t.Helper()
	cfg := r.nodes[id].core.cfg
	cfg.Knows = f
	r.start(id, cfg)
}

func (r *rig) formats() (all []uint64) {
	for _, id := range r.order {
		all = append(all, r.nodes[id].core.state.format)
	}
	return all
}

// A cluster writes in a newer form when all its members know it, not before, and a
// replica that is older then stops with words, from its log and from a snapshot.
func TestFormatRisesWhenAllKnowIt(t *testing.T) {
	r := newRig(t, 3, "raft")
	r.knows(1, 2)
	r.knows(2, 2)
	lead := r.leader()
	s := r.session(lead)
	write := func(seq uint64) {
		t.Helper()
		r.deliver(r.leader(), wire.Message{Kind: wire.Strong, Session: s, Seq: seq, Ack: seq - 1, Data: []byte("set a b")})
		r.settle()
		r.tick(10)
	}
	write(1)
	for _, f := range r.formats() {
		if f != 1 {
			t.Fatalf("formats %v while replica 3 knows only the first", r.formats())
		}
	}
	r.knows(3, 2)
	r.leader()
	r.tick(60)
	write(2)
	for _, f := range r.formats() {
		if f != 2 {
			t.Fatalf("formats %v though all know the second", r.formats())
		}
	}

	refuses := func(when string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "is of format 2, and this version of weir knows formats up to 1") {
			t.Errorf("%s: %v", when, err)
		}
	}
	older := r.nodes[lead].core.cfg
	older.Knows = 1
	n := r.nodes[lead]
	if len(n.disk) == 0 {
		t.Fatal("nothing on disk")
	}
	c, err := New(older, &words{m: map[string]string{}}, Recovered{Records: func(yield func(Record) error) error {
		for _, x := range n.disk {
			if err := yield(x); err != nil {
				return err
			}
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	var fatal error
	for range 100 {
		r.now.Mono += 10e6
		c.Tick(r.now)
		if e := c.Take(r.now); e.Fatal != nil {
			fatal = e.Fatal
			break
		}
	}
	refuses("an older version on a newer log", fatal)

	old := assemble(older, &words{m: map[string]string{}})
	refuses("an older version and a newer snapshot", old.snapshots.adopt(head{format: 2}, strings.NewReader("{}")))
}

// The format of a cluster under constant load rises, too.
func TestFormatRisesUnderLoad(t *testing.T) {
	r := newRig(t, 3, "raft")
	for id := uint64(1); id <= 3; id++ {
		r.knows(id, 2)
	}
	r.lose = func(_ uint64, s *Send) bool { return s.Message.Kind == wire.Lease } // nobody says yet what it knows
	s := r.session(r.leader())
	r.lose = nil
	for seq := uint64(1); seq <= 60; seq++ {
		r.deliver(r.leader(), wire.Message{Kind: wire.Strong, Session: s, Seq: seq, Ack: seq - 1, Data: []byte("set a b")})
		r.tick(1) // which finds the write waiting
	}
	for _, f := range r.formats() {
		if f != 2 {
			t.Fatalf("formats %v though all know the second", r.formats())
		}
	}
	raised := 0
	for _, rec := range r.nodes[r.leader()].disk {
		if rec.Kind == RecordEntry && len(rec.Data) > 1 {
			if e := (entry{}); e.decode(rec.Data[1:]) == nil && e.format == 2 && len(e.ops) == 0 {
				raised++
			}
		}
	}
	if raised != 1 {
		t.Errorf("%d entries raise the format, want one", raised)
	}
}

func TestEntriesOfUnknownForm(t *testing.T) {
	for _, b := range [][]byte{{3}, {2}, {2, 0}, {2, 1}, {2, 0x80}, {}} {
		if _, _, err := cutFormat(b); !errors.Is(err, errEntry) {
			t.Errorf("%v: %v", b, err)
		}
	}
	for _, want := range []uint64{1, 2, 300} {
		got, rest, err := cutFormat(append(appendEntryFormat(nil, want), 7))
		if err != nil || got != want || len(rest) != 1 {
			t.Errorf("format %d: %d, %d bytes left, %v", want, got, len(rest), err)
		}
	}
}
