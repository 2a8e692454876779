package core

import (
	"strings"
	"testing"
	"time"
)

// TestReaderHoldsUp: how long others are held up for a client that reads its answer slowly,
// or not at all, is bounded.
func TestReaderHoldsUp(t *testing.T) {
	const second = time.Second
	for _, c := range []struct {
		name    string
		timeout time.Duration
		step    uint64        // bytes that it reads in each 100 ms
		anew    time.Duration // it takes all that waits so often, and is held back again at once
		at      time.Duration
		why     string
	}{
		{"reads nothing", 0, 0, 0, 2 * second, "nothing of a long answer for 2s"},
		{"reads nothing, with a timeout", 50 * second, 0, 0, 5 * second, "nothing of a long answer for 5s"},
		{"reads slowly", 0, 1, 0, 20 * second, "in 20s"},
		{"reads slowly, with a timeout", 50 * second, 1, 0, 50 * second, "in 50s"},
		{"reads slowly, part by part", 0, 1, 3 * second, 20 * second, "in 20s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var r Reading
			const from = time.Hour
			r.Reads(7, from-time.Minute)
			r.Holds(from-second, from)
			written := uint64(7)
			for now := from; ; now += 100 * time.Millisecond {
				why := r.HoldsUp(written, now, c.timeout)
				written += c.step
				if c.anew > 0 && (now-from)%c.anew == 0 {
					r.Frees(now)
					r.Holds(from-second, now)
				}
				if why == "" && now < from+2*c.at {
					continue
				}
				if after := now - from; after < c.at || after > c.at+200*time.Millisecond || !strings.Contains(why, c.why) {
					t.Errorf("disconnected after %s: %q; want %s", after, why, c.at)
				}
				r.Holds(now, now)
				if why := r.HoldsUp(written, now, c.timeout); why != "" {
					t.Errorf("for its next answer disconnected at once: %q", why)
				}
				return
			}
		})
	}
}
