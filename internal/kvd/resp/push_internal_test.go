package resp

import "testing"

// A value may be larger than what is kept of many changes: a client that reads is
// shown it all the same.
func TestPushOfAnySize(t *testing.T) {
	var q pushQueue
	if !q.add(make([]byte, 2*maxPushBytes)) {
		t.Error("a large push is not taken though nothing waits")
	}
	if q.add(make([]byte, 1)) {
		t.Error("a push is taken behind more than may wait")
	}
	q.take()
	if !q.add(make([]byte, 1)) {
		t.Error("no push is taken though nothing waits")
	}
}
