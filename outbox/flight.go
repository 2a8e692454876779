package outbox

import (
	"container/heap"
	"time"
)

// Constants of overlapping calls, which do not need tuning.
const (
	slowCall    = time.Second // a call is slow if it takes longer than this,
	slowFactor  = 4           // and longer than this many times the usual duration
	mostSlow    = 4           // slow calls of one stream
	mostFlights = 3 * (1 + mostSlow)
)

// stream is the Publish calls of one kind. There is one at a time; but a call that takes
// long, perhaps because of a message for a part of the broker that is away, no longer counts:
// the next one begins beside it, without the keys that the slow one has. Messages for a part
// that is away have a stream of their own, since each of its calls may take the sink's
// timeout, and no other message must wait for that.
// waiting.
//
//	fresh  |-- 1 --|-- 2 --|-- 3 ... slow -------------|
//	                         1s later |-- 4 --|-- 5 --|-- 6 --|
//	again       |-- 1 --|                |-- 2 --|
//	gone   |-- scout ------------------| pause |-- scout -------
type stream struct {
	due  blockades // the waiting ones, by due time; empty for new messages
	call *flight   // in flight, unless it is slow
	slow int       // number of slow calls in flight
	at   time.Time // the next call does not begin before this
	wait backoff
	// Of gone: the next call only tries a few messages. When one of them is taken,
	// all are due.
	scout bool
}

func newStream() stream {
	return stream{scout: true, wait: backoff{least: 50 * time.Millisecond, most: 5 * time.Second}}
}

// flight is a Publish call in flight.
type flight struct {
	stream *stream
	rows   []Row
	bs     []*blockade    // that the rows waited in, now without them
	pasts  map[int64]past // of rows, by number
	began  time.Time
	before uint64 // confirmations of the relay when the call began
	slow   bool   // it no longer counts
	by     *courier
	errs   []error
	took   time.Duration
}

// ready reports whether the stream may start a call.
func (s *stream) ready(now time.Time) bool { return s.call == nil && !now.Before(s.at) }

// delay postpones the first blockade of the heap.
func (s *stream) delay(until time.Time) {
	s.due[0].due = until
	heap.Fix(&s.due, 0)
}

func (n *lane) streams() []*stream { return []*stream{&n.fresh, &n.again, &n.gone} }

// streamOf is the stream that a blockade belongs to.
func (n *lane) streamOf(b *blockade) *stream {
	if b.away {
		return &n.gone
	}
	return &n.again
}

// publish passes rows to the sink. bs are the blockades that they waited in, now without
// them, or nil. It does not wait: see land.
func (n *lane) publish(s *stream, rows []Row, bs []*blockade, pasts map[int64]past) {
	if len(rows) == 0 || n.limit.wait(n.live, len(rows)) != nil {
		return // abandoned, if any: they stay pending
	}
	f := &flight{stream: s, rows: rows, bs: bs, pasts: pasts, began: time.Now(), before: n.circuits.now()}
	if last := len(n.spare) - 1; last >= 0 {
		f.by, n.spare = n.spare[last], n.spare[:last]
	} else {
		f.by = &courier{Relay: n.Relay, log: n.log, broker: n.broker}
	}
	s.call = f
	n.flying++
	go func() { // await waits for it
		f.errs = f.by.publish(n.work, n.live, f.rows)
		f.took = time.Since(f.began)
		n.landed <- f
	}()
}

// land handles the outcome of each row of a call.
func (n *lane) land(f *flight) error {
	n.flying--
	n.spare = append(n.spare, f.by)
	s := f.stream
	if f.slow {
		s.slow--
		n.slow.Add(-int64(len(f.rows)))
	} else {
		s.call = nil
	}
	v, err := n.judge(call{n.work, f.before, f.took, n.stuck(f.rows), f.pasts}, f.rows, f.errs)
	if err != nil {
		return err
	}
	if f.errs == nil {
		n.usual += (f.took - n.usual) / 8
	}
	n.away.note(&v)
	n.rec.published(f.took, len(f.rows), v.delivered)
	if err := n.apply(v, f.rows, f.bs); err != nil {
		return err
	}
	n.pace(s, &v)
	return nil
}

// pace says when the next call of the stream may begin.
func (n *lane) pace(s *stream, v *verdict) {
	n.broker.note(n.Relay, n.log, v.outage)
	now := time.Now()
	if len(v.delivered) > 0 { // who waits for the broker need not wait for long
		for _, other := range []*stream{&n.fresh, &n.again} {
			if soon := now.Add(other.wait.least); other.at.After(soon) {
				other.at = soon
			}
		}
	}
	switch {
	case v.outage != nil:
		d := s.wait.take()
		if named, ok := retryDelay(v.outage); ok {
			d = max(d, min(named, longestPause))
		}
		s.at = now.Add(d)
		s.scout = true
	case s != &n.gone:
		s.wait.reset()
	case len(v.delivered) == 0:
		s.at = now.Add(s.wait.take())
		s.scout = true
	default:
		s.wait.reset()
		if s.scout {
			s.scout = false
			for _, b := range s.due {
				b.due = now
			}
		}
	}
}

// await waits for the calls on their way, when the lane makes no more.
func (n *lane) await() {
	for n.flying > 0 {
		if err := n.land(<-n.landed); err != nil {
			n.fail(err)
		}
	}
}

// isSlow reports whether a call has taken so long that its stream may go on without it,
// and when it will have.
func (n *lane) isSlow(f *flight, now time.Time) (slow bool, at time.Time) {
	at = f.began.Add(max(slowCall, slowFactor*n.usual))
	return !now.Before(at), at
}

// mayLetGo reports whether the stream has something to send beside the call that is on
// its way. While the broker is away for everything it has not; nor has a scout
// another beside it; and calls that were let go have half of what may be in flight.
func (n *lane) mayLetGo(s *stream, now time.Time) bool {
	switch {
	case s.call == nil, s.slow == mostSlow, s == &n.gone && s.scout, n.broker.isDown():
		return false
	case s == &n.fresh && len(n.queue) == 0, s != &n.fresh && (len(s.due) == 0 || now.Before(s.due[0].due)):
		return false
	}
	return n.slow.Load()+int64(len(s.call.rows)) <= int64(n.cfg.MaxInFlight/2)
}

// letGo lets streams go on without calls that take long. Later rows of their keys wait
// behind them.
func (n *lane) letGo(now time.Time) {
	for _, s := range n.streams() {
		if !n.mayLetGo(s, now) {
			continue
		}
		f := s.call
		if slow, _ := n.isSlow(f, now); !slow {
			continue
		}
		f.slow, s.call = true, nil
		s.slow++
		n.slow.Add(int64(len(f.rows)))
		if s != &n.fresh || n.cfg.Unordered {
			continue // those of blockades have theirs
		}
		for i := range f.rows {
			if key := f.rows[i].Key; key != "" && n.blocked[key] == nil {
				b := &blockade{key: key}
				n.blocked[key] = b
				f.bs = append(f.bs, b)
			}
		}
	}
}

// nextStep is when the lane has something to do if nothing happens; zero: never.
func (n *lane) nextStep(now time.Time) (at time.Time) {
	sooner := func(t time.Time) {
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	for _, s := range n.streams() {
		switch {
		case s.call != nil:
			if n.mayLetGo(s, now) {
				_, t := n.isSlow(s.call, now)
				sooner(t)
			} else if len(s.due) > 0 && now.Before(s.due[0].due) {
				sooner(s.due[0].due)
			}
		case s == &n.fresh && len(n.queue) > 0:
			sooner(s.at)
		case len(s.due) > 0:
			sooner(later(s.at, s.due[0].due))
		}
	}
	return at
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
