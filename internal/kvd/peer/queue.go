package peer

import (
	"time"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// queue holds what waits to be written to one connection, in order. It is a list of
// chunks only if an artificial latency distinguishes them by time, or if
// another queue may be written in between; otherwise there is one chunk, which grows until the
// writer takes it. It is pure: the link
// guards it and passes the time, in nanoseconds, which matters only if
// delay or latency is set.
type queue struct {
	delay, latency int64 // ns
	keep           int   // bytes of memory kept while the queue is empty
	grain          int   // size from which on a chunk accepts no more; 0: no limit

	chunks []chunk
	spare  []byte // memory of a chunk that was written
	bytes  int    // in chunks
}

// chunk is a run of frames that are written together.
type chunk struct {
	frames
	born int64 // when its first byte was added
	last int64 // when its latest byte was added
}

// latencyGrain is how long a chunk accepts more messages under an artificial
// latency: the first of them is late by that much.
const latencyGrain = int64(20 * time.Microsecond)

func (q *queue) empty() bool { return len(q.chunks) == 0 }

// tail returns the chunk for the next message.
func (q *queue) tail(now int64, flow *flow) *chunk {
	if n := len(q.chunks); n > 0 {
		c := &q.chunks[n-1]
		if (q.grain == 0 || len(c.buf) < q.grain) && (q.latency == 0 || now < c.born+max(q.delay, latencyGrain)) {
			c.last = now
			return c
		}
		if closed := c.close(); closed > 0 {
			flow.frame(closed)
		}
	}
	q.chunks = append(q.chunks, chunk{frames: frames{buf: q.spare[:0]}, born: now, last: now})
	q.spare = nil
	return &q.chunks[len(q.chunks)-1]
}

// add appends a message of the given size.
func (q *queue) add(now int64, m *wire.Message, size int, flow *flow) {
	c := q.tail(now, flow)
	before := len(c.buf)
	if closed := c.add(m, size); closed > 0 {
		flow.frame(closed)
	}
	q.bytes += len(c.buf) - before
}

// control appends a frame of another kind.
func (q *queue) control(now int64, kind byte, body []byte, flow *flow) {
	c := q.tail(now, flow)
	if closed := c.close(); closed > 0 {
		flow.frame(closed)
	}
	before := len(c.buf)
	c.control(kind, body)
	q.bytes += len(c.buf) - before
}

// due is when the first chunk may be written. The queue must not be empty.
func (q *queue) due() int64 {
	c := &q.chunks[0]
	return max(c.born+q.delay, c.last) + q.latency
}

// take removes the first chunk and returns its frames, without checksums.
func (q *queue) take(flow *flow) []byte {
	c := &q.chunks[0]
	if closed := c.close(); closed > 0 {
		flow.frame(closed)
	}
	run := c.buf
	q.bytes -= len(run)
	n := copy(q.chunks, q.chunks[1:])
	q.chunks[n] = chunk{}
	q.chunks = q.chunks[:n]
	return run
}

// recycle returns memory from take.
func (q *queue) recycle(run []byte) {
	if cap(run) <= q.keep && cap(run) > cap(q.spare) {
		q.spare = run
	}
}
