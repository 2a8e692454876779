// Package sim plays package batch on a virtual clock against a model of the
// thing behind it, so that policies can be compared exactly: the same seed
// gives the same arrivals and the same answer on every machine, and an hour of
// load takes as long as its events take to compute.
//
// The model is small on purpose. Items arrive as a Poisson process (open loop)
// or from clients that think and come back (closed loop). A flush of n items is
// Fixed + n×PerItem of work. Flushes in flight share Servers equally (processor
// sharing): with unlimited servers lanes do not disturb each other, with two
// they are two cores, with one they are one disk. Nothing here measures a
// real server: it weeds out policies before they are tried on one.
package sim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/weirdb/weir/batch"
)

// Cost is the model of what a flush crosses into.
type Cost struct {
	Fixed   time.Duration // work per flush
	PerItem time.Duration // work per item in it
	Servers int           // flushes that run at full speed together; 0 is unlimited
}

// String is such as "2ms+2µs/2".
func (c Cost) String() string {
	s := "∞"
	if c.Servers > 0 {
		s = fmt.Sprint(c.Servers)
	}
	return fmt.Sprintf("%v+%v/%s", c.Fixed, c.PerItem, s)
}

// Load is who sends. Exactly one of Rate and Clients is set.
type Load struct {
	Rate    float64       // open loop: Poisson arrivals per second
	Clients int           // closed loop: each with one item at a time
	Think   time.Duration // closed loop: mean of the exponential pause between items
}

// String is such as "10000/s" or "64 clients".
func (l Load) String() string {
	if l.Clients > 0 {
		return fmt.Sprintf("%d clients", l.Clients)
	}
	return fmt.Sprintf("%.0f/s", l.Rate)
}

// Policy is a way to batch with a name.
type Policy struct {
	Name   string
	Config batch.Config
}

// Run is one cell of a comparison.
type Run struct {
	Cost   Cost
	Load   Load
	Policy Policy
	Warmup time.Duration // virtual time before anything counts
	Length time.Duration // virtual time that counts
	Seed   uint64
}

// Result is what one Run did after its warm-up.
type Result struct {
	Throughput float64       // items done per second
	Wait50     time.Duration // median from push to take
	Wait99     time.Duration
	Response50 time.Duration // median from push to done
	Response99 time.Duration
	Group      float64 // mean items per group
	Lanes      float64 // mean groups in flight
	Full       float64 // share of the time that the queue was full (overload)
	Probes     uint64  // comparisons by the controller, warm-up included
	Moves      uint64  // of these, changes
	Limit      int     // lanes allowed at the end
	Holding    bool    // hold in force at the end
}

// item remembers when it was pushed and by whom.
type item struct {
	at     time.Duration
	client int
}

// flight is a group being flushed.
type flight struct {
	items []item
	began time.Duration
	work  float64 // nanoseconds of work left
}

const never = time.Duration(math.MaxInt64)

// world is the state of one simulation.
type world struct {
	run     Run
	rng     *rand.Rand
	queue   *batch.Queue[item]
	now     time.Duration
	arrival time.Duration // next open-loop arrival
	full    bool          // arrivals are being refused
	think   returns
	flights []flight
	spare   [][]item // buffers to reuse

	counting   bool
	done       int
	response   batch.Histogram
	laneTime   float64
	fullTime   time.Duration
	countingAt time.Duration
}

// Simulate plays one run. It panics when the run makes no sense (no load, or an
// invalid Config).
func Simulate(run Run) Result {
	if (run.Load.Rate > 0) == (run.Load.Clients > 0) {
		panic("sim: a load has either a rate or clients")
	}
	w := &world{
		run:     run,
		rng:     rand.New(rand.NewPCG(run.Seed, 0x77656972)),
		queue:   batch.NewQueue[item](run.Policy.Config),
		arrival: never,
	}
	if run.Load.Rate > 0 {
		w.arrival = w.gap()
	}
	for c := range run.Load.Clients {
		w.think.push(w.pause(), c)
	}
	w.until(run.Warmup)
	before := w.queue.Stats()
	w.counting, w.countingAt = true, w.now
	w.until(run.Warmup + run.Length)
	return w.result(&before)
}

func (w *world) result(before *batch.Stats) Result {
	s := w.queue.Stats()
	s.Wait.Sub(&before.Wait)
	s.GroupSize.Sub(&before.GroupSize)
	length := (w.now - w.countingAt).Seconds()
	return Result{
		Throughput: float64(w.done) / length,
		Wait50:     time.Duration(s.Wait.Quantile(0.50)),
		Wait99:     time.Duration(s.Wait.Quantile(0.99)),
		Response50: time.Duration(w.response.Quantile(0.50)),
		Response99: time.Duration(w.response.Quantile(0.99)),
		Group:      s.GroupSize.Mean(),
		Lanes:      w.laneTime / (length * 1e9),
		Full:       w.fullTime.Seconds() / length,
		Probes:     s.Probes,
		Moves:      s.Moves,
		Limit:      s.Lanes,
		Holding:    s.Holding,
	}
}

// gap is the time to the next Poisson arrival.
func (w *world) gap() time.Duration {
	return time.Duration(w.rng.ExpFloat64() / w.run.Load.Rate * 1e9)
}

// pause is a client's time between an answer and its next item.
func (w *world) pause() time.Duration {
	return time.Duration(w.rng.ExpFloat64() * float64(w.run.Load.Think))
}

// until plays events up to a time.
func (w *world) until(end time.Duration) {
	for {
		first, who := w.nextDone()
		next := min(first, w.arrival, w.think.first())
		if at, ok := w.queue.Deadline(); ok {
			next = min(next, max(at, w.now))
		}
		if next > end {
			w.advance(end)
			return
		}
		w.advance(next)
		switch {
		case first == next:
			w.finish(who)
		case w.arrival == next:
			w.push(item{at: next})
			w.arrival = next + w.gap()
		case w.think.first() == next:
			w.push(item{at: next, client: w.think.pop()})
		}
		w.take()
	}
}

// speed is the share of a server that each flight gets.
func (w *world) speed() float64 {
	n := len(w.flights)
	if s := w.run.Cost.Servers; s > 0 && n > s {
		return float64(s) / float64(n)
	}
	return 1
}

// advance moves the clock and the work of what is in flight.
func (w *world) advance(to time.Duration) {
	d := float64(to - w.now)
	for i := range w.flights {
		w.flights[i].work -= d * w.speed()
	}
	if w.counting {
		w.laneTime += d * float64(len(w.flights))
		if w.full {
			w.fullTime += to - w.now
		}
	}
	w.now = to
}

// nextDone is when the first flight will end if nothing else happens, and
// which.
func (w *world) nextDone() (time.Duration, int) {
	first, who := math.Inf(1), -1
	for i := range w.flights {
		if w.flights[i].work < first {
			first, who = w.flights[i].work, i
		}
	}
	if who < 0 {
		return never, who
	}
	return w.now + time.Duration(math.Ceil(max(first, 0)/w.speed())), who
}

// finish ends flight i.
func (w *world) finish(i int) {
	f := w.flights[i]
	last := len(w.flights) - 1
	w.flights[i] = w.flights[last]
	w.flights = w.flights[:last]
	w.queue.Done(w.now, len(f.items), w.now-f.began)
	for _, it := range f.items {
		if w.counting {
			w.response.Record(int64(w.now - it.at))
			w.done++
		}
		if w.run.Load.Clients > 0 {
			w.think.push(w.now+w.pause(), it.client)
		}
	}
	w.spare = append(w.spare, f.items[:0])
}

// push offers an item. A full queue stops an open loop's arrivals until there
// is room again: a Poisson process has no memory, so drawing anew is exact and
// the refused need not be played.
func (w *world) push(it item) {
	if err := w.queue.Push(w.now, it, 0); err != nil {
		w.full = true
	}
}

// take starts all groups that may go.
func (w *world) take() {
	for {
		var buf []item
		if n := len(w.spare); n > 0 {
			buf, w.spare = w.spare[n-1], w.spare[:n-1]
		}
		group, why := w.queue.Take(w.now, buf)
		if why == batch.ReasonNone {
			if cap(buf) > 0 {
				w.spare = append(w.spare, buf)
			}
			break
		}
		work := w.run.Cost.Fixed + time.Duration(len(group))*w.run.Cost.PerItem
		w.flights = append(w.flights, flight{items: group, began: w.now, work: float64(work)})
		if w.full {
			w.full, w.arrival = false, w.now+w.gap()
		}
	}
	if w.full {
		w.arrival = never
	}
}
