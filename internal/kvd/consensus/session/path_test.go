package session

import (
	"fmt"
	"testing"
	"time"
)

// takes issues a strong write, lets it take d, by votes or by its commit, and
// reports which way it went.
func (p *script) takes(seq uint64, fast, slow time.Duration) bool {
	p.t.Helper()
	p.strong(seq, fmt.Sprint("k", seq))
	tried := len(p.sends) > 1
	if tried {
		p.now += int64(fast)
		p.receive(1, spec(seq, 3))
		p.receive(2, yes(seq))
		p.receive(3, yes(seq))
	} else {
		p.now += int64(slow)
		p.done(seq, seq, 10+seq, "")
	}
	if len(p.ends) != 1 {
		p.t.Fatalf("write %d ends %v", seq, p.ends)
	}
	p.sends, p.ends = nil, nil
	return tried
}

func TestPathOfPolicies(t *testing.T) {
	for policy, want := range map[Policy]bool{Always: true, Never: false} {
		p := play(t, 3, "curp", Config{Fast: policy})
		p.s.Distance(1, int64(time.Second)) // what is measured does not matter
		for seq := range uint64(3 * probe) {
			// The way that is asked for is the worse one.
			fast, slow := time.Millisecond, time.Millisecond
			if want {
				fast *= 10
			} else {
				slow *= 10
			}
			if got := p.takes(seq+1, fast, slow); got != want {
				t.Fatalf("policy %d: write %d fast: %v", policy, seq+1, got)
			}
		}
	}
}

// The fast path needs a cluster that has it, a leader that is known and connected, and voters.
func TestPathNeedsItsConditions(t *testing.T) {
	fast := func(p *script) bool {
		p.strong(1, "a")
		defer p.sent()
		return len(p.sends) > 1
	}
	if p := play(t, 3, "raft-ht", Config{Fast: Always}); fast(p) {
		t.Error("without the switch")
	}
	if p := play(t, 1, "curp", Config{Fast: Always}); fast(p) {
		t.Error("of one replica")
	}
	p := play(t, 3, "curp", Config{Fast: Always})
	p.s.Disconnected(p.now, 1)
	if fast(p) {
		t.Error("without a leader")
	}
	p = &script{t: t, s: New(Config{Fast: Always, ID: sessionID}), now: 1}
	p.s.Connected(1, 1)
	p.s.Connected(1, 2)
	if fast(p) {
		t.Error("before a view is known")
	}
	if p = play(t, 3, "curp", Config{Fast: Always}); !fast(p) {
		t.Error("never")
	}
}

// Before anything is measured the distance to the leader decides: on a local
// network the fast path costs more than it saves.
func TestPathBeforeAnyMeasurement(t *testing.T) {
	for rtt, want := range map[time.Duration]bool{100 * time.Microsecond: false, time.Millisecond: true, 80 * time.Millisecond: true} {
		p := play(t, 3, "curp", Config{})
		p.s.Distance(1, int64(rtt))
		p.s.Distance(2, int64(time.Hour)) // of no interest
		if got := p.takes(1, time.Millisecond, time.Millisecond); got != want {
			t.Errorf("leader at %v: fast %v", rtt, got)
		}
	}
}

// Every 64th write takes the other way, so the first 64 are enough to know both,
// and a change of the times is noticed.
func TestPathIsMeasured(t *testing.T) {
	for _, c := range []struct {
		name       string
		rtt        time.Duration
		fast, slow time.Duration
		want       bool
	}{
		{"half the time", 0, time.Millisecond, 2 * time.Millisecond, true},
		{"half the time, far", 2 * time.Millisecond, time.Millisecond, 2 * time.Millisecond, true},
		{"twice the time", 0, 2 * time.Millisecond, time.Millisecond, false},
		{"twice the time, far", 2 * time.Millisecond, 2 * time.Millisecond, time.Millisecond, false},
		{"hardly less", 0, 95 * time.Millisecond, 100 * time.Millisecond, false},
		{"hardly less, far", 2 * time.Millisecond, 95 * time.Millisecond, 100 * time.Millisecond, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := play(t, 3, "curp", Config{})
			p.s.Distance(1, int64(c.rtt))
			seq := uint64(1)
			for ; seq <= probe; seq++ {
				first := c.rtt >= time.Duration(longTrip)
				if got, want := p.takes(seq, c.fast, c.slow), first != (seq == probe); got != want {
					t.Fatalf("write %d, before both are known: fast %v", seq, got)
				}
			}
			for ; seq <= 3*probe; seq++ {
				if got, want := p.takes(seq, c.fast, c.slow), c.want != (seq%probe == 0); got != want {
					t.Fatalf("write %d: fast %v", seq, got)
				}
			}
			// The network changes: the times of the two ways change places. An
			// average of the last ten probes or so tells.
			for ; seq <= 15*probe; seq++ {
				p.takes(seq, c.slow, c.fast)
			}
			fast := 0
			for ; seq <= 16*probe; seq++ {
				if p.takes(seq, c.slow, c.fast) {
					fast++
				}
			}
			if want := float64(c.slow) < gain*float64(c.fast); want != (fast > probe/2) {
				t.Errorf("after the change %d of %d writes are fast", fast, probe)
			}
		})
	}
}

// A write that had no votes and was answered by its commit is what trying costs.
// One that was sent again tells nothing of either way.
func TestPathLearnsFromWhatFails(t *testing.T) {
	p := play(t, 3, "curp", Config{Fast: Always})
	p.strong(1, "a")
	p.now += 5000
	p.done(1, 1, 11, "")
	if p.s.path.fast != 5000 || p.s.path.slow != 0 {
		t.Errorf("measured: %+v, want 5000 for the fast path", p.s.path)
	}
	p.strong(2, "a")
	p.s.Connected(p.now, 1) // sent again
	p.now += 900_000
	p.done(2, 2, 12, "")
	p.weak(3, "a")
	p.now += 900_000
	p.done(3, 3, 13, "")
	if p.s.path.fast != 5000 || p.s.path.slow != 0 {
		t.Errorf("measured: %+v, want what was known before", p.s.path)
	}
}

// The way that a write has taken stands when it is sent again.
func TestPathStandsForRetries(t *testing.T) {
	p := play(t, 3, "curp", Config{})
	p.s.Distance(1, int64(time.Second))
	p.strong(1, "a")
	p.sent("2 Record 2/0 #1 a", "3 Record 2/0 #1 a", "1 Strong 2/0 #1 a fast")
	p.s.Distance(1, 0)
	p.s.Connected(p.now, 1)
	p.sent("2 Record 2/0 #1 a", "3 Record 2/0 #1 a", "1 Strong 2/0 #1 a fast")
	if p.s.path.count != 1 {
		t.Errorf("%d choices, want 1", p.s.path.count)
	}
}
