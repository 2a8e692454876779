package kvload

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench/subject/kvs"
)

// never is a time that does not come.
const never = int64(1<<63 - 1)

// control is shared by the streams of a run.
type control struct {
	workload Workload
	run      string   // distinguishes this run from others on the same store
	names    []string // of the shared keys
	promises Promises
	clock    measure.Clock
	from, to atomic.Int64 // the window; never until it opens and closes
	stop     atomic.Bool  // issue no more operations
	limit    int64        // operations of the window, 0 for no limit
	tickets  atomic.Int64 // taken
	shards   []shard
	timeline *measure.Timeline
	live     *atomic.Int64
}

// shard is what several streams record into.
type shard struct {
	mu       sync.Mutex // guards all below
	latency  [classes]measure.Hist
	failed   measure.Hist
	errors   map[string]int64
	missed   int64
	checked  int64
	wrong    int64
	fast     int64
	examples []string
	total    int64 // answered as expected, including warm-up and drain
	_        [40]byte
}

// maxExamples limits the described wrong answers per shard.
const maxExamples = 3

// ticket reports whether one more operation may start.
func (c *control) ticket() bool {
	switch {
	case c.stop.Load():
		return false
	case c.limit == 0 || c.from.Load() == never:
		return true
	default:
		return c.tickets.Add(1) <= c.limit
	}
}

// slot is one operation in flight.
type slot struct {
	op    Op
	value []byte
	key   int
	own   bool
	floor uint64 // of a read of the stream's own key
	began int64
}

// stream keeps the operations of one session in flight. It is used by one goroutine.
type stream struct {
	number   int
	control  *control
	client   Client
	choose   *chooser
	own      *own
	slots    []slot
	shard    *shard
	series   *measure.TimelineShard
	underway int
	idle     []int // slots that ended in this turn
	failures int   // in a row
}

func newStream(c *control, number, pendings int, client Client) *stream {
	s := &stream{
		number: number, control: c, client: client, choose: newChooser(c.workload, number), own: newOwn(c.workload, number, c.run),
		slots: make([]slot, pendings), shard: &c.shards[number%len(c.shards)], series: c.timeline.Shard(number % len(c.shards)),
	}
	for i := range s.slots {
		s.slots[i].value = newValue(c.workload.ValueBytes)
	}
	return s
}

// maxFailures in a row mean that the store does not recover by itself.
const maxFailures = 10_000

// run returns when no more operations may be issued and all are answered.
func (s *stream) run() error {
	now := s.control.clock.Now()
	for i := range s.slots {
		if !s.issue(i, now) {
			break
		}
	}
	var last error
	for s.underway > 0 {
		now := int64(-1)
		s.idle = s.idle[:0]
		err := s.client.Poll(func(i int, a Answer) {
			if now < 0 {
				now = s.control.clock.Now()
				s.shard.mu.Lock()
			}
			if a.Err != nil {
				last = a.Err
			}
			s.ended(i, a, now)
		})
		if now >= 0 {
			s.shard.mu.Unlock()
		}
		if err != nil {
			return fmt.Errorf("stream %d: %w", s.number, err)
		}
		if s.failures >= maxFailures {
			return fmt.Errorf("stream %d: %d operations have failed in a row, the last one: %w", s.number, s.failures, last)
		}
		for _, i := range s.idle {
			if !s.issue(i, now) {
				break
			}
		}
	}
	return nil
}

// issue starts the next operation in a slot, if there is one.
func (s *stream) issue(i int, now int64) bool {
	if !s.control.ticket() {
		return false
	}
	t := &s.slots[i]
	t.op.Class, t.own, t.began = s.choose.class(), s.choose.own(), now
	if t.own && t.op.Class.Write() && s.own.busy {
		t.own = false
	}
	if t.own {
		t.key, t.op.Key, t.floor = s.own.key, s.own.name, s.own.ended
	} else {
		t.key = s.choose.key()
		t.op.Key = s.control.names[t.key]
	}
	t.op.Value = nil
	if t.op.Class.Write() {
		count := uint64(0)
		if t.own {
			s.own.begun++
			s.own.busy = true
			count = s.own.begun
		}
		stamp(t.value, t.key, s.number, count)
		t.op.Value = t.value
	}
	s.underway++
	s.client.Issue(i, &t.op)
	return true
}

// ended records an operation. The caller holds the shard's lock.
func (s *stream) ended(i int, a Answer, now int64) {
	t := &s.slots[i]
	s.underway--
	s.idle = append(s.idle, i)
	s.settle(t, a)
	from, to := s.control.from.Load(), s.control.to.Load()
	within := now >= from && now < to
	d := now - t.began
	if a.Err != nil {
		s.failures++
		if within {
			if s.shard.errors == nil {
				s.shard.errors = make(map[string]int64)
			}
			s.shard.errors[classify(a.Err)]++
			s.shard.failed.Record(d)
			s.series.Record(now-from, d, true)
		}
		return
	}
	s.failures = 0
	s.shard.total++
	if s.control.live != nil {
		s.control.live.Add(1)
	}
	if within {
		s.shard.latency[t.op.Class].Record(d)
		if a.Fast && t.op.Class == StrongWrite {
			s.shard.fast++
		}
		s.series.Record(now-from, d, false)
	}
}

// settle checks an answer, and records the outcome of a write of the stream's own key.
func (s *stream) settle(t *slot, a Answer) {
	if t.op.Class.Write() {
		if !t.own {
			return
		}
		s.own.busy = false
		if a.Err != nil {
			s.own.lost = true
		} else {
			s.own.ended = s.own.begun
		}
		return
	}
	if a.Err != nil {
		return
	}
	size := s.control.workload.ValueBytes
	wrong := ""
	switch {
	case !t.own:
		wrong = judgeShared(a.Value, a.Found, size, t.key)
		if !a.Found {
			s.shard.missed++
		}
	case t.op.Class == WeakRead && s.control.promises.WeakReads && !s.control.promises.OwnWrites:
		// It may be older.
	default:
		var judged bool
		if wrong, judged = s.own.judge(a.Value, a.Found, size, t.floor); judged {
			s.shard.checked++
		}
	}
	if wrong != "" {
		s.shard.wrong++
		if len(s.shard.examples) < maxExamples {
			s.shard.examples = append(s.shard.examples, fmt.Sprintf("%s: %s", t.op.Class, wrong))
		}
	}
}

// classify returns the class of an error: its Class method's, or "error".
func classify(err error) string {
	var named interface{ Class() string }
	if errors.As(err, &named) {
		return named.Class()
	}
	return "error"
}

// kv merges the shards.
func (c *control) kv() (*kvs.KV, *measure.Hist) {
	kv, all := &kvs.KV{}, &measure.Hist{}
	if c.promises.TellsFast {
		kv.Fast = new(int64)
	}
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		for class, to := range []**measure.Hist{&kv.StrongRead, &kv.StrongWrite, &kv.WeakRead, &kv.WeakWrite} {
			h := &s.latency[class]
			if h.Count() == 0 {
				continue
			}
			if *to == nil {
				*to = &measure.Hist{}
			}
			(*to).Merge(h)
			all.Merge(h)
		}
		kv.Missed += s.missed
		kv.Checked += s.checked
		kv.Wrong += s.wrong
		if kv.Fast != nil {
			*kv.Fast += s.fast
		}
		kv.Examples = append(kv.Examples, s.examples...)
		s.mu.Unlock()
	}
	return kv, all
}
