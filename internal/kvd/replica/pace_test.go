package replica

import (
	"testing"
	"time"
)

// An idle replica wakes up with the heartbeats, and counts as many ticks as pass.
func TestPaceOfAnIdleReplica(t *testing.T) {
	const heartbeat = 5
	p := newPace(heartbeat)
	defer p.ticker.Stop()
	var now int64
	turns, ticks := 0, 0
	turn := func(after time.Duration, fired, work, heard bool) {
		now += int64(after)
		n := p.due(now, fired)
		turns++
		ticks += n
		p.passed(now, n, false, true, work, heard)
	}
	for range idleTicks {
		turn(tickEvery, true, false, true)
	}
	if !p.slow {
		t.Fatal("an idle replica does not slow down")
	}
	turns, ticks = 0, 0
	for i := range 100 { // heartbeats that are up to 4 ms early or late
		turn(heartbeat*tickEvery+time.Duration(i%3-1)*4*time.Millisecond, false, false, true)
	}
	if want := 100 * heartbeat; ticks < want-1 || ticks > want+1 {
		t.Errorf("%d ticks passed in %d turns, want %d", ticks, turns, want)
	}
	if !p.slow {
		t.Error("it is fast between heartbeats")
	}

	ticks = 0
	turn(time.Hour, true, false, true)
	if ticks > 2*heartbeat {
		t.Errorf("a process that was stopped counts %d ticks at once: they may hasten an election", ticks)
	}

	turns, ticks = 0, 0
	for p.slow && ticks < 100 { // the leader is gone
		turn((slowest+1)*tickEvery, true, false, false)
	}
	if ticks > 3*heartbeat {
		t.Errorf("it noticed after %d ticks that no heartbeat comes", ticks)
	}
	for range idleTicks {
		turn(tickEvery, true, false, true)
	}
	turn(0, false, true, true)
	if p.slow {
		t.Error("a request does not make it fast")
	}
}
