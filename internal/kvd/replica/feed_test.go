package replica

import (
	"testing"

	"github.com/weirdb/weir/internal/kvd/consensus"
	"github.com/weirdb/weir/internal/kvd/peer"
	"github.com/weirdb/weir/internal/kvd/wire"
	"github.com/weirdb/weir/internal/testkit"
)

// A watch does not outlive its client, nor its end, though both come before the core
// goroutine has begun it.
func TestWatchesEndWithTheirClients(t *testing.T) {
	r := startRig(t, 1, "raft-ht", nil)
	n := r.nodes[r.leader()]
	all := wire.Command{Verb: wire.Range}
	watch := wire.Message{Kind: wire.Watch, Request: 1, Data: all.Append(nil)}
	busy := make(chan struct{})
	n.inbox.call(func(consensus.Clock) { <-busy })
	gone, stays := peer.FirstClient+1000, peer.FirstClient+1001
	n.peers.Receive(gone, []wire.Message{watch})
	n.peers.Down(gone, peer.ErrClosed)
	n.peers.Receive(stays, []wire.Message{watch, {Kind: wire.Unwatch, Request: 1}})
	close(busy)
	if err := n.inLoop(func(consensus.Clock) {}); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "no watch is left", func() bool { return n.feed.watching.Load() == 0 })
}

// Changes that do not fit while a watch begins behind many others are not dropped silently.
func TestWatchThatBeginsBehindManyChanges(t *testing.T) {
	f := newFeed()
	f.waiting = feedChanges
	w := &watch{}
	f.push(feedStep{add: w, changes: make([]wire.Change, 1), last: 7})
	if w.missed != 7 || len(f.pending[0].changes) != 0 {
		t.Errorf("the watch has missed changes up to %d, want 7", w.missed)
	}
}

func TestFeedBoundsBytes(t *testing.T) {
	f := newFeed()
	value := make([]byte, feedWaiting/2)
	for range 3 {
		f.push(feedStep{changes: []wire.Change{{Value: value}}, last: 9})
	}
	if f.pending[0].missed || !f.pending[1].missed || !f.pending[2].missed {
		t.Errorf("steps: %v, %v, %v, want the first alone to be kept", f.pending[0].missed, f.pending[1].missed, f.pending[2].missed)
	}
	large := newFeed()
	large.push(feedStep{changes: []wire.Change{{Value: make([]byte, 2*feedWaiting)}}})
	if large.pending[0].missed {
		t.Error("a change that nothing waits before is left out")
	}
}
