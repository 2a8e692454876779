// Package sim plays package batch on a virtual clock against a model of the
// thing behind it, so that policies can be compared exactly: the same seed
// gives the same arrivals and the same answer on every machine, and an hour of
// load takes as long as its events take to compute.
//
// The model is small on purpose. Items arrive as a Poisson process (open loop)
// or from clients that think and come back (closed loop). A flush of n items is
// Fixed + n×PerItem of work. Flushes in flight share Servers equally (processor
// sharing): with unlimited servers lanes do not disturb each other, with two
// they are two cores, with one they are one disk. A database on the machine of its
// clients is modelled by [Cost.Log] and [Load.Return]. Nothing here measures a
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

	// Log makes Fixed the flush of a database's log: it takes no server's time, the
	// log is flushed by one group at a time, and a flush is for all groups whose
	// items are done when it begins.
	Log bool
}

// String is such as "2ms+2µs/2".
func (c Cost) String() string {
	s := "∞"
	if c.Servers > 0 {
		s = fmt.Sprint(c.Servers)
	}
	if c.Log {
		s += " log"
	}
	return fmt.Sprintf("%v+%v/%s", c.Fixed, c.PerItem, s)
}

// Load is who sends. Exactly one of Rate and Clients is set.
type Load struct {
	Rate    float64       // open loop: Poisson arrivals per second
	Clients int           // closed loop: each with one item at a time
	Think   time.Duration // closed loop: mean of the exponential pause between items

	// Return is what it takes of one of the cost's servers until an answered client
	// has sent again, before Think. Clients return one after another: those of a large
	// group take long, longer if a group is at work meanwhile.
	Return time.Duration
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
	stage stage
}

// stage is how far a flight is. Without a log it is working until it ends.
type stage uint8

const (
	working stage = iota
	waiting       // for the flush of another group
	flushing
)

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
	line    []int         // clients that return one after another
	comes   float64       // nanoseconds of work left for the first of them
	flushed time.Duration // end of the log's flush; never if there is none
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
		flushed: never,
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
		comes := w.nextReturn()
		next := min(first, comes, w.flushed, w.arrival, w.think.first())
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
			w.worked(who)
		case w.flushed == next:
			w.endFlush()
		case comes == next:
			w.returned()
		case w.arrival == next:
			w.push(item{at: next})
			w.arrival = next + w.gap()
		case w.think.first() == next:
			w.push(item{at: next, client: w.think.pop()})
		}
		w.take()
	}
}

// speed is the share of a server that each flight at work, and the client that
// returns, gets.
func (w *world) speed() float64 {
	n := 0
	for i := range w.flights {
		if w.flights[i].stage == working {
			n++
		}
	}
	if len(w.line) > 0 {
		n++
	}
	if s := w.run.Cost.Servers; s > 0 && n > s {
		return float64(s) / float64(n)
	}
	return 1
}

// advance moves the clock and the work of what is in flight.
func (w *world) advance(to time.Duration) {
	d := float64(to - w.now)
	work := d * w.speed()
	for i := range w.flights {
		if w.flights[i].stage == working {
			w.flights[i].work -= work
		}
	}
	if len(w.line) > 0 {
		w.comes -= work
	}
	if w.counting {
		w.laneTime += d * float64(len(w.flights))
		if w.full {
			w.fullTime += to - w.now
		}
	}
	w.now = to
}

// after is when so much work is done if nothing else happens.
func (w *world) after(work float64) time.Duration {
	return w.now + time.Duration(math.Ceil(max(work, 0)/w.speed()))
}

// nextDone is when the first flight at work will have done it if nothing else
// happens, and which.
func (w *world) nextDone() (time.Duration, int) {
	first, who := math.Inf(1), -1
	for i := range w.flights {
		if f := &w.flights[i]; f.stage == working && f.work < first {
			first, who = f.work, i
		}
	}
	if who < 0 {
		return never, who
	}
	return w.after(first), who
}

// nextReturn is when the first client of the line will have sent.
func (w *world) nextReturn() time.Duration {
	if len(w.line) == 0 {
		return never
	}
	return w.after(w.comes)
}

// worked is the end of the work of flight i.
func (w *world) worked(i int) {
	if !w.run.Cost.Log {
		w.finish(i)
		return
	}
	w.flights[i].stage = waiting
	if w.flushed == never {
		w.beginFlush()
	}
}

// beginFlush flushes the log for all groups that wait for it.
func (w *world) beginFlush() {
	for i := range w.flights {
		if f := &w.flights[i]; f.stage == waiting {
			f.stage, w.flushed = flushing, w.now+w.run.Cost.Fixed
		}
	}
}

// endFlush ends the groups of a flush, and begins the next one.
func (w *world) endFlush() {
	w.flushed = never
	for i := 0; i < len(w.flights); {
		if w.flights[i].stage == flushing {
			w.finish(i) // another takes its place
		} else {
			i++
		}
	}
	w.beginFlush()
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
		switch {
		case w.run.Load.Return > 0:
			if len(w.line) == 0 {
				w.comes = w.walk()
			}
			w.line = append(w.line, it.client)
		case w.run.Load.Clients > 0:
			w.think.push(w.now+w.pause(), it.client)
		}
	}
	w.spare = append(w.spare, f.items[:0])
}

// walk is the work for one client's return.
func (w *world) walk() float64 { return w.rng.ExpFloat64() * float64(w.run.Load.Return) }

// returned is the return of the first client of the line.
func (w *world) returned() {
	client := w.line[0]
	w.line = w.line[1:]
	w.comes = w.walk()
	if w.run.Load.Think > 0 {
		w.think.push(w.now+w.pause(), client)
	} else {
		w.push(item{at: w.now, client: client})
	}
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
		work := time.Duration(len(group)) * w.run.Cost.PerItem
		if !w.run.Cost.Log {
			work += w.run.Cost.Fixed
		}
		w.flights = append(w.flights, flight{items: group, began: w.now, work: float64(work)})
		if w.full {
			w.full, w.arrival = false, w.now+w.gap()
		}
	}
	if w.full {
		w.arrival = never
	}
}
