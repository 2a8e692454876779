package peer

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirdb/weir/internal/kvd/wire"
	"github.com/weirdb/weir/internal/wire/netwire"
)

// errSilent ends a connection on which nothing came, or nothing went, for too
// long.
var errSilent = errors.New("the other side is silent")

// link is one connection after its handshake, of either side. Two goroutines
// serve it: its writer, which run starts, and its reader, which is run itself.
// A third one calls tend from time to time. Safe for concurrent use.
type link struct {
	who   Remote
	nc    net.Conn
	raw   net.Conn // nc, or what is below its TLS
	in    *inbox
	count *counters
	limit int  // bytes that may wait to be written
	most  int  // bytes of the largest message
	hold  bool // stop reading while more than half of limit waits
	again bool // what receive was given is free when it returns
	rtt   rtt

	spent []wire.Message // of the reader: what receive was given, if it is to be used again

	origin time.Time   // of all times below
	timed  atomic.Bool // the queue wants to be told the time

	mu      sync.Mutex // guards what follows
	more    sync.Cond  // there is something to write, or the end
	room    sync.Cond  // less than a quarter of limit waits, or the end
	q       queue
	answers queue // with another replica: large answers of queries, in turn with q
	apart   bool  // they go there
	last    *queue
	resting bool // the writer waits for more
	writing int  // bytes that the writer has taken and not yet written
	why     error

	arrived atomic.Uint64 // reads that brought something
	written atomic.Uint64 // writes that ended
	busy    atomic.Bool   // the reader is not reading, by this side's own doing
	inWrite atomic.Bool

	watched watched // of tend alone
}

// watched is what tend saw last, and for how many calls nothing changed since.
type watched struct {
	arrived, written      uint64
	silentFor, stuckFor   int
	silentMost, stuckMost int
}

// linkConfig is what makes a link out of a connection.
type linkConfig struct {
	latency     time.Duration
	limit, most int
	keep        int // bytes of memory that an idle queue keeps
	hold        bool
	again       bool
	apart       bool // large answers of queries go in turn with everything else
	silentTicks int  // calls of tend without a sign of life that end the link
}

func newLink(s *session, count *counters, cfg linkConfig) *link {
	nc := s.nc
	if r, ok := nc.(*rewound); ok && len(r.first) == 0 {
		nc = r.TCPConn // the connection itself, which Quick knows
		if s.in != nil && s.in.src == s.nc {
			s.in.src = nc
		}
	}
	l := &link{
		who: s.who, nc: nc, raw: nc, in: s.in, count: count, limit: cfg.limit, most: cfg.most, hold: cfg.hold, again: cfg.again,
		origin: time.Now(), q: queue{latency: int64(cfg.latency), keep: cfg.keep}, apart: cfg.apart,
	}
	l.timed.Store(cfg.latency > 0)
	l.answers = l.q
	l.answers.grain = frameTarget
	if t, ok := nc.(*tls.Conn); ok {
		l.raw = t.NetConn()
	} else if l.in != nil && l.in.src == nc {
		l.nc = netwire.Quick(nc) // one goroutine reads, and one writes
		l.in.src = l.nc
	}
	l.rtt.guess(s.trip + 2*cfg.latency)
	l.busy.Store(true) // until run
	l.more.L, l.room.L = &l.mu, &l.mu
	l.watched.silentMost, l.watched.stuckMost = cfg.silentTicks, cfg.silentTicks
	return l
}

func (l *link) now() int64 { return int64(time.Since(l.origin)) }

// send queues messages until one does not fit, and returns how many it took.
// Messages that the engine sends again anyway are dropped instead, and count as
// taken.
func (l *link) send(ms []wire.Message) (int, error) {
	var now int64
	if l.timed.Load() {
		now = l.now()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.why != nil {
		l.count.dropped.Add(uint64(len(ms)))
		return 0, ErrDown
	}
	for i := range ms {
		m := &ms[i]
		size := m.Size()
		err := error(nil)
		if l.apart && m.Kind == wire.ReadDone && size >= largeAnswer && size <= l.most {
			if waiting := l.answers.bytes; waiting+size > l.limit/2 && waiting > 0 {
				l.count.dropped.Add(1) // it is asked for again
				continue
			}
			l.answers.add(now, m, size, &l.count.sent)
			continue
		}
		if size > l.most {
			err = fmt.Errorf("%w: %d bytes of kind %d", ErrTooLarge, size, m.Kind)
		} else if waiting := l.q.bytes + l.writing; waiting+size > l.limit && waiting > 0 {
			if repaired(m.Kind) {
				l.count.dropped.Add(1)
				continue
			}
			err = ErrFull
		}
		if err != nil {
			l.count.dropped.Add(uint64(len(ms) - i))
			l.wake()
			return i, err
		}
		l.q.add(now, m, size, &l.count.sent)
	}
	l.wake()
	return len(ms), nil
}

// largeAnswer is from which size on an answer of a query goes beside everything else.
const largeAnswer = 64 << 10

// repaired reports whether the sender of a lost message sends it again, or a
// newer one, without being told.
func repaired(k wire.Kind) bool { return k == wire.Raft || k == wire.Lease }

// control queues a frame that is not of messages. Such frames are few and small:
// they always fit.
func (l *link) control(kind byte, body []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.why == nil {
		l.q.control(l.now(), kind, body, &l.count.sent)
		l.wake()
	}
}

// wake rouses the writer. The caller holds the lock.
func (l *link) wake() {
	if l.resting && !l.empty() {
		l.resting = false
		l.more.Signal()
	}
}

// queued is how many bytes wait to be written.
func (l *link) queued() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.q.bytes + l.answers.bytes + l.writing
}

// empty reports that nothing waits to be written. The caller holds the lock.
func (l *link) empty() bool { return l.q.empty() && l.answers.empty() }

// next is the queue whose turn it is: one of them does not wait for more than one
// chunk of the other. The caller holds the lock; something waits.
func (l *link) next() *queue {
	switch {
	case l.answers.empty():
		return &l.q
	case l.q.empty():
		return &l.answers
	case l.timed.Load() && l.q.due() != l.answers.due():
		if l.q.due() < l.answers.due() {
			return &l.q
		}
		return &l.answers
	case l.last == &l.q:
		return &l.answers
	}
	return &l.q
}

// setDelay changes the delay. What waits already may go by the old one.
func (l *link) setDelay(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.q.delay, l.answers.delay = int64(d), int64(d)
	l.timed.Store(l.q.delay > 0 || l.q.latency > 0)
}

// end closes the connection, for the reason that comes first.
func (l *link) end(why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.why != nil {
		return
	}
	l.why = why
	l.resting = false
	l.more.Broadcast()
	l.room.Broadcast()
	// Ends the reads and writes under way. A farewell of TLS could block, and
	// nothing is lost without it.
	_ = l.raw.Close()
}

// run carries the connection to its end and returns why it ended. It calls
// receive for messages, one call at a time. When it returns, nothing of the link
// runs any more.
func (l *link) run(receive func([]wire.Message)) error {
	var writer sync.WaitGroup
	writer.Go(l.write)
	l.ping()
	l.end(l.read(receive))
	writer.Wait()
	return l.reason()
}

// reason is why the link ended, nil while it lasts.
func (l *link) reason() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.why
}

// read hands over what arrives, all messages of one read in one call.
func (l *link) read(receive func([]wire.Message)) error {
	var bodies [][]byte
	l.busy.Store(false)
	for {
		bodies = bodies[:0]
		for {
			payload, ok, err := l.in.next()
			if err != nil {
				return err
			}
			if !ok {
				break
			}
			l.count.received.bytes.Add(uint64(headerBytes + len(payload)))
			if payload[0] == frameMessages {
				bodies = append(bodies, payload[1:])
			} else if err := l.onControl(payload[0], payload[1:]); err != nil {
				return err
			}
		}
		if len(bodies) > 0 {
			if err := l.deliver(bodies, receive); err != nil {
				return err
			}
		}
		if l.hold {
			l.awaitRoom()
		}
		if err := l.in.fill(); err != nil {
			return fmt.Errorf("read: %w", err)
		}
		l.arrived.Add(1)
		l.count.received.calls.Add(1)
	}
}

func (l *link) deliver(bodies [][]byte, receive func([]wire.Message)) error {
	ms, err := messages(bodies, l.spent, &l.count.received)
	if err != nil {
		return err
	}
	l.busy.Store(true)
	receive(ms)
	l.busy.Store(false)
	if l.again && cap(ms) <= mostAgain {
		clear(ms)
		l.spent = ms
	}
	return nil
}

// mostAgain is how many messages a slice has at most that is used again.
const mostAgain = 64

// awaitRoom holds the reader back while too many answers wait: requests that are
// not read make no more of them.
func (l *link) awaitRoom() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.q.bytes+l.writing <= l.limit/2 {
		return
	}
	l.busy.Store(true)
	for l.why == nil && l.q.bytes+l.writing > l.limit/4 {
		l.room.Wait()
	}
	l.busy.Store(false)
}

func (l *link) onControl(kind byte, body []byte) error {
	if len(body) != 8 {
		return fmt.Errorf("%w: %d bytes of kind %d", errCorrupt, len(body), kind)
	}
	switch kind {
	case framePing:
		l.control(framePong, body)
	case framePong:
		if d := l.now() - int64(binary.LittleEndian.Uint64(body)); d >= 0 {
			l.rtt.add(time.Duration(d))
		}
	default:
		return fmt.Errorf("%w: kind %d has no place here", errCorrupt, kind)
	}
	return nil
}

func (l *link) ping() {
	var stamp [8]byte
	binary.LittleEndian.PutUint64(stamp[:], uint64(l.now()))
	l.control(framePing, stamp[:])
}

// tend is called at even intervals: it measures the round trip, and ends a link
// that has been silent for too many calls. It compares counters, so that reads
// and writes need not look at a clock.
func (l *link) tend() {
	w := &l.watched
	arrived, written := l.arrived.Load(), l.written.Load()
	if arrived != w.arrived || l.busy.Load() {
		w.silentFor = 0
	} else {
		w.silentFor++
	}
	if written != w.written || !l.inWrite.Load() {
		w.stuckFor = 0
	} else {
		w.stuckFor++
	}
	w.arrived, w.written = arrived, written
	switch {
	case w.stuckFor >= w.stuckMost:
		l.end(fmt.Errorf("%w: it does not read", errSilent))
	case w.silentFor >= w.silentMost:
		l.end(fmt.Errorf("%w: nothing came", errSilent))
	default:
		l.ping()
	}
}

// writeAtMost bounds one write, so that progress is seen.
const writeAtMost = 1 << 20

// write is the writer: it takes all that was queued since its last take and
// writes it with one call, for as long as the connection lasts.
func (l *link) write() {
	var pace pacer // opened when a delay or a latency first wants it
	defer pace.close()
	for {
		run, ok := l.take(&pace)
		if !ok {
			return
		}
		checksum(run)
		for rest := run; len(rest) > 0; {
			n := min(len(rest), writeAtMost)
			l.inWrite.Store(true)
			_, err := l.nc.Write(rest[:n])
			l.inWrite.Store(false)
			if err != nil {
				l.end(fmt.Errorf("write: %w", err))
				return
			}
			l.written.Add(1)
			l.count.sent.calls.Add(1)
			l.count.sent.bytes.Add(uint64(n))
			rest = rest[n:]
		}
		l.wrote(run)
	}
}

// take waits for something to write.
func (l *link) take(pace *pacer) (run []byte, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		for l.empty() && l.why == nil {
			l.resting = true
			l.more.Wait()
		}
		if l.why != nil {
			return nil, false
		}
		if !l.timed.Load() {
			break
		}
		due := l.next().due()
		pace.open(l.origin, l.q.delay > 0)
		l.mu.Unlock()
		ready := pace.nap(due)
		l.mu.Lock()
		if ready && !l.empty() && l.next().due() <= l.now() {
			break
		}
	}
	l.last = l.next()
	run = l.last.take(&l.count.sent)
	l.writing = len(run)
	return run, l.why == nil
}

// wrote notes that what was taken is on its way.
func (l *link) wrote(run []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.writing = 0
	l.last.recycle(run)
	if l.hold && l.q.bytes <= l.limit/4 {
		l.room.Signal()
	}
}
