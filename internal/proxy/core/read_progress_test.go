package core

import (
	"strings"
	"testing"
	"time"
)

// TestReaderHoldsUp: how long others are held up for a client that reads its answer slowly,
// or not at all, is bounded.
func TestReaderHoldsUp(t *testing.T) {
	const second, tick = time.Second, 100 * time.Millisecond
	for _, c := range []struct {
		name    string
		timeout time.Duration
		step    uint64        // bytes that it reads in each tick
		anew    time.Duration // it takes all that waits so often, and is held back again at once
		others  time.Duration // others wait from then on
		tick    time.Duration
		at      time.Duration
		why     string
	}{
		{"reads nothing", 0, 0, 0, 0, tick, 2 * second, "nothing of a long answer for 2s"},
		{"reads nothing, with a timeout", 50 * second, 0, 0, 0, tick, 5 * second, "nothing of a long answer for 5s"},
		{"reads nothing, with a short timeout", 2 * second, 0, 0, 0, tick, second / 5, "nothing of a long answer for 200ms"},
		{"reads nothing, others come later", 0, 0, 0, 60 * second, tick, 62 * second, "nothing of a long answer for 2s"},
		{"reads nothing, the loop looks rarely", 0, 0, 0, 0, 2 * second, 22 * second, "nothing of a long answer for 2s"},
		{"reads slowly", 0, 1, 0, 0, tick, 20 * second, "in 20s"},
		{"reads slowly, with a timeout", 50 * second, 1, 0, 0, tick, 50 * second, "in 50s"},
		{"reads slowly, with a short timeout", second, 1, 0, 0, tick, second, "in 1s"},
		{"reads slowly, others come later", 0, 1, 0, 60 * second, tick, 80 * second, "in 20s"},
		{"reads slowly, part by part", 0, 1, 3 * second, 0, tick, 20 * second, "in 20s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var r ReadProgress
			const from = time.Hour
			r.Reads(7, from-time.Minute)
			r.Holds(from-second, from)
			written := uint64(7)
			for now := from; ; now += c.tick {
				why := r.HoldsUp(written, now, c.timeout, now-from >= c.others)
				written += c.step
				if c.anew > 0 && (now-from)%c.anew == 0 {
					r.Frees(now)
					r.Holds(from-second, now)
				}
				if why == "" && now < from+2*c.at {
					continue
				}
				if after := now - from; after < c.at || after > c.at+2*c.tick || !strings.Contains(why, c.why) {
					t.Errorf("disconnected after %s: %q; want %s", after, why, c.at)
				}
				r.Holds(now, now)
				if why := r.HoldsUp(written, now, c.timeout, true); why != "" {
					t.Errorf("for its next answer disconnected at once: %q", why)
				}
				return
			}
		})
	}
}
