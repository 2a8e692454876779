package postgres

import (
	"testing"
	"time"
)

// A server that stops ends its connections one after the other: a client that takes up one
// after the other goes on. Connections that are opened and lost at once are counted.
func TestLossesOfOldConnectionsDoNotCount(t *testing.T) {
	t.Parallel()
	var ls losses
	for i := range 20 {
		if !ls.again(100+time.Duration(i), 50) {
			t.Fatalf("after %d connections that were there before, none may be tried", i+1)
		}
	}
	for i := range mostLost {
		now := 200 + 10*time.Duration(i)
		if !ls.again(now, now-1) {
			t.Fatalf("after %d connections that were opened meanwhile, none may be tried", i+1)
		}
	}
	if ls.again(300, 299) {
		t.Error("connections that are opened and lost at once are tried without end")
	}
}
