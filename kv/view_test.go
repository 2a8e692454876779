package kv

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/kvd/wire"
	"github.com/weirdb/weir/internal/testkit"
)

// TestOpenWaitsUntilSessionsKnowTheView: a session that does not know the preset yet
// sends weak reads to the leader, and there may be none.
func TestOpenWaitsUntilSessionsKnowTheView(t *testing.T) {
	c := &Client{sessions: map[uint64]*Session{}, changed: make(chan struct{}), start: time.Now(), life: t.Context()}
	c.Session = c.newSession()
	c.Session.mu.Lock() // a session that is slow to hear of it
	delivered := make(chan struct{})
	go func() {
		defer close(delivered)
		c.receive(1, []wire.Message{{Kind: wire.NewView, View: 3, Leader: 1}})
	}()
	testkit.Eventually(t, "the client has the view", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.view != nil
	})
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.firstUp(over); !errors.Is(err, context.Canceled) {
		t.Errorf("Open is done before its session knows the view: %v", err)
	}
	c.Session.mu.Unlock()
	<-delivered
	c.wait.Wait()
	if err := c.firstUp(t.Context()); err != nil {
		t.Errorf("Open, once the session knows the view: %v", err)
	}
	if leader, view := c.Session.pure.Leader(); leader != 1 || view != 3 {
		t.Errorf("the session knows leader %d of view %d", leader, view)
	}
}
