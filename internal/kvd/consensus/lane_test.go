package consensus

import (
	"testing"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// The next round starts when the one before is committed, or after some time, or at once if
// results are sent before the commit.
func TestRoundsWaitForTheCommit(t *testing.T) {
	for preset, waits := range map[string]bool{"raft": true, "raft-ht": true, "curp": false, "curp-ho": false} {
		t.Run(preset, func(t *testing.T) {
			r := newRig(t, 3, preset)
			lead := r.leader()
			s := r.session(lead)
			r.tick(1)
			c := r.nodes[lead].core
			rounds := func() uint64 { return c.Status().Counters.Rounds }
			write := func(seq uint64) {
				r.deliver(lead, wire.Message{Kind: wire.Strong, Session: s, Seq: seq, Data: []byte("set a 1")})
			}
			for _, id := range r.order {
				if id != lead {
					r.cut[[2]uint64{lead, id}] = true // nothing commits
				}
			}
			before := rounds()
			write(1)
			r.settle()
			write(2)
			wake := c.Take(r.now).Wake
			r.settle()
			want := before + 2
			if waits {
				want--
			}
			if got := rounds(); got != want || (wake != 0) != waits {
				t.Fatalf("%d rounds, want %d; wake at %d", got, want, wake)
			}
			if waits {
				r.now.Mono = wake
				r.settle()
				if got := rounds(); got != before+2 {
					t.Fatalf("%d rounds when the patience is over, want %d", got, before+2)
				}
			}
			// With a commit there is nothing to wait for.
			r.cut = map[[2]uint64]bool{}
			r.tick(10)
			before = rounds()
			for seq := uint64(3); seq < 6; seq++ {
				write(seq)
				r.settle()
			}
			if got := rounds(); got != before+3 {
				t.Errorf("%d rounds, want %d", got, before+3)
			}
		})
	}
}

// Rounds wait for no commit where commits take much longer than this replica's disk.
func TestRoundsDoNotWaitForFarReplicas(t *testing.T) {
	r := newRig(t, 3, "raft")
	lead := r.leader()
	s, seq := r.session(lead), uint64(0)
	write := func() {
		seq++
		r.deliver(lead, wire.Message{Kind: wire.Strong, Session: s, Seq: seq, Data: []byte("set a 1")})
		r.settle()
	}
	stuck := func(others, own bool) {
		for _, id := range r.order {
			r.nodes[id].stuck = id == lead && own || id != lead && others
		}
		r.settle()
	}
	const flush = 1_000_000
	for _, step := range []struct {
		commit int64 // after the flush
		rounds uint64
	}{{flush / 2, 1}, {10 * flush, 2}, {flush / 2, 1}} {
		for range 40 {
			stuck(true, true)
			write()
			r.now.Mono += flush
			stuck(true, false)
			r.now.Mono += step.commit
			stuck(false, false)
		}
		stuck(true, true)
		before := r.nodes[lead].core.Status().Counters.Rounds
		write()
		r.now.Mono += flush
		stuck(true, false)
		write()
		if got := r.nodes[lead].core.Status().Counters.Rounds - before; got != step.rounds {
			t.Errorf("commits %d ns after the disk: %d rounds in flight, want %d", step.commit, got, step.rounds)
		}
		stuck(false, false)
	}
}
