package netloop

import (
	"testing"
	"time"
)

func TestBackoffWaitsLongerAfterEachFailure(t *testing.T) {
	var b Backoff
	now := time.Hour
	for _, want := range []time.Duration{50, 100, 200, 400, 800, 1600, 2000, 2000} {
		want *= time.Millisecond
		b.Failed(now)
		if b.Start(now+want*3/4-1, 10) {
			t.Fatalf("an attempt began less than %s after a failure", want*3/4)
		}
		now += want*5/4 + 1
		if !b.Start(now, 10) {
			t.Fatalf("no attempt %s after a failure", want*5/4)
		}
	}
	b.Failed(now)
	b.Succeeded()
	if !b.Start(now, 10) {
		t.Fatal("no attempt right after a success")
	}
}

// TestBackoffBoundsSuccesses: connections that succeed and end at once are no
// reason to open thousands.
func TestBackoffBoundsSuccesses(t *testing.T) {
	for _, tc := range []struct{ perSecond, atOnce int }{{1, 40}, {100, 200}} {
		var b Backoff
		begun := 0
		for now := time.Hour; now < time.Hour+10*time.Second; now += time.Millisecond {
			if b.Start(now, tc.perSecond) {
				begun++
				b.Succeeded()
			}
		}
		rate := max(tc.perSecond, leastRate)
		if limit := tc.atOnce + 10*rate; begun > limit || begun < limit-2 {
			t.Errorf("%d a second: %d attempts in 10 s, want about %d", tc.perSecond, begun, limit)
		}
	}
}
