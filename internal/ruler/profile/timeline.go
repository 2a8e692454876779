package profile

import (
	"sync"
	"sync/atomic"

	"github.com/weirdb/weir/internal/ruler/bench"
)

// segment is the segment that an operation is in. The order is that of the timeline.
type segment int8

const (
	segSchedule segment = iota
	segQueue
	segConnect
	segCheck
	segEncode
	segSend
	segServer
	segWake
	segReceive
	segDecode
	segRelease
	segHarness
	segments
	segNone segment = -1 // the operation has not begun, or has ended
)

// segmentNames are the names in the result format.
var segmentNames = [segments]string{
	bench.SegmentSchedule, bench.SegmentQueue, bench.SegmentConnect, bench.SegmentCheck, bench.SegmentEncode, bench.SegmentSend,
	bench.SegmentServer, bench.SegmentWake, bench.SegmentReceive, bench.SegmentDecode, bench.SegmentRelease, bench.SegmentHarness,
}

// split is the time that an operation spent in each segment, in nanoseconds.
type split [segments]int64

func (s *split) total() int64 {
	var n int64
	for _, d := range s {
		n += d
	}
	return n
}

// sides are the two parts that reference report 4 distinguishes: acquire, until there is a
// working connection, and query, from then until the answer has been read. Neither includes
// what comes before or after, or the harness's own time.
func (s *split) sides() (acquire, query int64) {
	acquire = s[segQueue] + s[segConnect] + s[segCheck]
	return acquire, s[segEncode] + s[segSend] + s[segServer] + s[segWake] + s[segReceive] + s[segDecode]
}

// timeline records the segments of one operation. Every event ends the current segment and
// starts the next one at the same time:
//
//	start    acquired   write      write ends   arrives   read ends      done    end
//	  | queue  | encode   | send      | server     | wake    | decode      | rel. |
//	  '- connect, check                            '- the rest: receive
//
// An operation with several statements goes through encode to decode several times. Times come
// from one clock; a time before the last event counts as the time of that event. Events that do
// not fit the current segment are ignored, so a connection may outlive its operation.
//
// A timeline is safe for concurrent use, since drivers read and connect in their own goroutines.
// It is used for one operation after another.
type timeline struct {
	mu    sync.Mutex // guards all below
	spent split
	in    segment
	since int64

	roundTrips, overtaken int64
	early                 bool // in segSend: an answer has been read

	decoding atomic.Bool // in is segDecode; written under the lock, read without
}

func newTimeline() *timeline { return &timeline{in: segNone} }

// start begins an operation: the caller asks the pool for a connection. In an open loop, the
// time that it waited before is not on this timeline.
func (t *timeline) start(now int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.spent = split{}
	t.roundTrips, t.overtaken, t.early = 0, 0, false
	t.in, t.since = segQueue, now
	t.decoding.Store(false)
}

// to moves to the next segment. The caller holds the lock.
func (t *timeline) to(next segment, now int64) {
	if t.in == segNone {
		return
	}
	now = max(now, t.since)
	t.spent[t.in] += now - t.since
	if was, is := t.in == segDecode, next == segDecode; was != is {
		t.decoding.Store(is)
	}
	t.in, t.since = next, now
}

// within moves from one segment to another, and does nothing in any other segment.
func (t *timeline) within(from, next segment, now int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.in == from {
		t.to(next, now)
	}
}

func (t *timeline) connectBegins(now int64) { t.within(segQueue, segConnect, now) }
func (t *timeline) connectEnds(now int64)   { t.within(segConnect, segQueue, now) }
func (t *timeline) checkBegins(now int64)   { t.within(segQueue, segCheck, now) }
func (t *timeline) checkEnds(now int64)     { t.within(segCheck, segQueue, now) }

// callBegins is the start of a statement: the first one ends the acquisition.
func (t *timeline) callBegins(now int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.to(segEncode, now)
}

// probeBegins and probeEnds enclose a read of the socket by which a driver checks its
// connection within a call.
func (t *timeline) probeBegins(now int64) { t.within(segEncode, segCheck, now) }
func (t *timeline) probeEnds(now int64)   { t.within(segCheck, segEncode, now) }

func (t *timeline) writeBegins(now int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch t.in {
	case segEncode, segServer, segReceive, segDecode:
		t.to(segSend, now)
		t.early = false
	default:
	}
}

// writeEnds is the end of a write. If a driver reads in the background because the write takes
// long, the answer may already have been read.
func (t *timeline) writeEnds(now int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.in != segSend:
	case t.early:
		t.roundTrips++
		t.overtaken++
		t.to(segDecode, now)
	default:
		t.to(segServer, now)
	}
}

// restAwaited reports whether a read that starts now is for the rest of an answer, so that
// readBegins must read the clock.
func (t *timeline) restAwaited() bool { return t.decoding.Load() }

// readBegins matters only if the head of the answer has been read: the wait is then for the
// rest.
func (t *timeline) readBegins(now int64) { t.within(segDecode, segReceive, now) }

// readEnds is the end of a read. arrived is when the kernel received the last byte of what was
// read, and 0 if unknown.
func (t *timeline) readEnds(arrived, now int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch t.in {
	case segSend:
		t.early = true
		return
	case segServer:
		t.roundTrips++
		if arrived == 0 {
			break
		}
		if arrived < t.since {
			t.overtaken++
		}
		t.to(segWake, min(arrived, now))
	case segReceive:
		// Bytes that were there before the read began caused no wait.
		if arrived > t.since {
			t.to(segWake, min(arrived, now))
		}
	default:
		return
	}
	t.to(segDecode, now)
}

// done is the end of the last statement.
func (t *timeline) done(now int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.to(segRelease, now)
}

// end closes the operation and returns where its time went.
func (t *timeline) end(now int64) (s split, roundTrips, overtaken int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.to(segNone, now)
	return t.spent, t.roundTrips, t.overtaken
}
