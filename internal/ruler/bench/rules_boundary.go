package bench

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Rules about where the time of operations goes.

const (
	dominantShare = 0.40 // of an operation's time: a segment with this much is worth naming
	queueShare    = 0.50 // operations wait for the pool
	wakeShare     = 0.30 // answers wait until the client reads them
	coldShare     = 0.10 // opening connections is a considerable part of the figures
	networkShare  = 0.50
	lockShare     = 0.20
)

// meaning describes each segment.
var meaning = map[string]string{
	SegmentSchedule: "the wait between the intended and the actual start",
	SegmentQueue:    "the wait for a connection of the pool",
	SegmentConnect:  "opening connections",
	SegmentCheck:    "checking pooled connections",
	SegmentEncode:   "the driver building requests",
	SegmentSend:     "writing to the socket",
	SegmentServer:   "network and server",
	SegmentReceive:  "reading the rest of answers",
	SegmentWake:     "answers that have arrived and wait for their goroutine",
	SegmentDecode:   "the driver reading answers",
	SegmentRelease:  "giving connections back",
	SegmentHarness:  "the load generator itself",
}

// boundaryOf adds up the boundaries of a case's rounds; nil if it has none.
func boundaryOf(c *Case) *Boundary {
	var out *Boundary
	ops := int64(0)
	for i := range c.Samples {
		s := &c.Samples[i]
		if s.Boundary == nil {
			continue
		}
		if out == nil {
			out = &Boundary{Cold: s.Boundary.Cold, ArrivalKnown: true}
		}
		out.Add(s.Boundary, s.Ops)
		ops += s.Ops
	}
	if out != nil {
		out.Divide(ops)
	}
	return out
}

// shares lists the segments of a boundary with their shares of the whole, largest first,
// without those below one percent.
func (b *Boundary) shares() []string {
	type part struct {
		name  string
		share float64
	}
	var parts []part
	for _, s := range b.Segments {
		if v := b.Share(s.Name); v >= 0.01 {
			parts = append(parts, part{s.Name, v})
		}
	}
	slices.SortStableFunc(parts, func(a, b part) int { return cmp.Compare(b.share, a.share) })
	var out []string
	for _, p := range parts {
		out = append(out, fmt.Sprintf("%s %.0f %%", p.name, 100*p.share))
	}
	return out
}

// dominantSegment names the segment that takes the largest part of the time, in one finding for
// all cases in which it is the same.
func dominantSegment(r *Result) []Finding {
	var out []Finding
	at := make(map[string]int)
	most := make(map[string]float64)
	names := make(map[string][]string)
	for _, c := range r.Cases {
		b := boundaryOf(c)
		if b == nil {
			continue
		}
		top, share := "", 0.0
		for _, s := range b.Segments {
			if v := b.Share(s.Name); v > share {
				top, share = s.Name, v
			}
		}
		if share < dominantShare {
			continue
		}
		if _, ok := at[top]; !ok {
			at[top] = len(out)
			out = append(out, Finding{ID: "dominant-segment", Severity: Info})
		}
		f := &out[at[top]]
		f.Evidence = append(f.Evidence, c.Name+": "+strings.Join(b.shares(), ", "))
		most[top] = max(most[top], share)
		names[top] = append(names[top], c.Name)
	}
	for top, i := range at {
		where := strings.Join(names[top], ", ")
		if n := len(names[top]); n > 3 {
			where = fmt.Sprintf("%d cases", n)
		}
		upTo := ""
		if len(names[top]) > 1 {
			upTo = "up to "
		}
		out[i].Claim = fmt.Sprintf("%s%.0f %% of an operation's time is %s (%s), in %s.", upTo, 100*most[top], cmp.Or(meaning[top], top), top, where)
		out[i].Claim = strings.ToUpper(out[i].Claim[:1]) + out[i].Claim[1:]
	}
	return out
}

// coldPool finds figures that show the opening of connections rather than their use: a run of a
// few operations on an empty pool consists of little else.
func coldPool(r *Result) []Finding {
	var evidence []string
	worst := 0.0
	for _, c := range r.Cases {
		b := boundaryOf(c)
		if text, share := queuedWhileOpening(c, b); text != "" {
			evidence, worst = append(evidence, text), max(worst, share)
			continue
		}
		if b == nil || b.Connects == 0 {
			continue
		}
		share := b.Share(SegmentConnect)
		if b.Cold {
			share += coldQueue(r, c, b)
		}
		if share < coldShare || !b.Cold && b.Share(SegmentConnect) < coldShare {
			continue
		}
		worst = max(worst, share)
		text := fmt.Sprintf("%s: %d connections opened within the window, connect %.0f %% and queue %.0f %% of the time",
			c.Name, b.Connects, 100*b.Share(SegmentConnect), 100*b.Share(SegmentQueue))
		if b.Cold && b.Share(SegmentConnect, SegmentQueue)-share >= 0.005 {
			text += fmt.Sprintf(" (%.0f %% beyond what the warm pool queues for)", 100*share)
		}
		evidence = append(evidence, text)
	}
	return Found(evidence, Finding{
		ID: "cold-pool", Severity: Warn,
		Claim:  fmt.Sprintf("Connections were opened during the measurement: up to %.0f %% of the time is the cost of a cold pool, which a warm pool pays once.", 100*worst),
		Advice: "Quote warm figures for a service that runs; fill the pool before the first request.",
	})
}

// queuedWhileOpening finds time spent waiting for a pool that has a connection for every worker:
// that can only be the opening of connections, even where the caller calls it acquiring. text
// is "" if there is none.
func queuedWhileOpening(c *Case, b *Boundary) (text string, share float64) {
	if b == nil || len(c.Samples) == 0 || c.Samples[0].InFlight == 0 || b.PoolMax < c.Samples[0].InFlight || b.Segment(SegmentConnect).Sum() > 0 {
		return "", 0
	}
	share = b.Share(SegmentQueue)
	if share < coldShare {
		return "", 0
	}
	return fmt.Sprintf("%s: %.0f %% of the time is spent waiting for one of %d connections, enough for all %d workers: they are being opened",
		c.Name, 100*share, b.PoolMax, c.Samples[0].InFlight), share
}

// coldQueue returns the share of a cold case's time that workers waited for connections which
// were being opened: the whole queue segment, less what the same case has when warm.
func coldQueue(r *Result, c *Case, b *Boundary) float64 {
	queue, whole := b.Share(SegmentQueue), 0.0
	for _, s := range b.Segments {
		whole += s.Hist.Mean()
	}
	for _, o := range LikeBut(r, c, "start") {
		w := boundaryOf(o)
		if w == nil || w.Cold || w.Segment(SegmentQueue) == nil || whole == 0 {
			continue
		}
		return max(0, queue-w.Segment(SegmentQueue).Mean()/whole)
	}
	return queue
}

// otherPools returns the cases that differ from c only in the size of the pool, the factor
// "pool".
func otherPools(r *Result, c *Case) []*Case { return LikeBut(r, c, "pool") }

// LikeBut returns the other cases that have the factors of c, except for one factor.
func LikeBut(r *Result, c *Case, factor string) []*Case {
	without := func(f map[string]string) map[string]string {
		f = maps.Clone(f)
		delete(f, factor)
		return f
	}
	var out []*Case
	for _, o := range r.Cases {
		if o != c && maps.Equal(without(o.Factors), without(c.Factors)) {
			out = append(out, o)
		}
	}
	return out
}

// poolSize looks at cases that wait for their pool, or for their turn to read an answer, and at
// the same case with other pools. Waiting for a pool alone proves nothing: if there are more
// workers than processors of the server, they must wait somewhere.
func poolSize(r *Result) []Finding {
	var out []Finding
	for _, c := range r.Cases {
		b := boundaryOf(c)
		if b == nil || b.PoolMax == 0 {
			continue
		}
		if b.Share(SegmentQueue) >= queueShare && !b.Cold {
			out = append(out, poolTooSmall(r, c, b))
		}
		if b.Share(SegmentWake) >= wakeShare {
			out = append(out, poolTooLarge(r, c, b))
		}
	}
	return out
}

func poolTooSmall(r *Result, c *Case, b *Boundary) Finding {
	f := Finding{
		ID: "pool-wait", Severity: Info, Evidence: []string{c.Name + ": " + strings.Join(b.shares(), ", ")},
		Claim: fmt.Sprintf("In %s, %.0f %% of the time is spent waiting for one of %d connections.", c.Name, 100*b.Share(SegmentQueue), b.PoolMax),
	}
	var best *Comparison
	larger := 0
	for _, o := range otherPools(r, c) {
		if ob := boundaryOf(o); ob == nil || ob.PoolMax <= b.PoolMax {
			continue
		}
		k, err := Compare(c, o, "rate")
		if err != nil || k.Ratio.N < 2 {
			continue
		}
		larger++
		f.Evidence = append(f.Evidence, fmt.Sprintf("%s: %s of its throughput, %s", o.Name, RatioText(k.Ratio), k.Verdict))
		if k.Verdict == Better && (best == nil || k.Ratio.Median > best.Ratio.Median) {
			best = &k
		}
	}
	switch {
	case best != nil:
		f.ID, f.Severity = "pool-small", Warn
		f.Claim = fmt.Sprintf("The pool of %d is too small: %s reaches %s of its throughput.", b.PoolMax, best.B, RatioText(best.Ratio))
		f.Advice = "Take the smallest pool whose throughput cannot be told from the best."
	case larger > 0:
		f.Claim += " No larger pool proved faster: with one, operations only wait elsewhere."
	default:
		f.Advice = "Only a sweep over the pool's size can tell whether a larger one is faster."
	}
	return f
}

func poolTooLarge(r *Result, c *Case, b *Boundary) Finding {
	f := Finding{
		ID: "wake-bound", Severity: Info, Evidence: []string{c.Name + ": " + strings.Join(b.shares(), ", ")},
		Claim: fmt.Sprintf("In %s, answers that have arrived wait for their goroutine during %.0f %% of the time: the client has more operations in flight than its processors can handle.",
			c.Name, 100*b.Share(SegmentWake)),
		Advice: "Try a smaller pool: the same number of answers, read sooner.",
	}
	for _, o := range otherPools(r, c) {
		ob := boundaryOf(o)
		if ob == nil || ob.PoolMax >= b.PoolMax {
			continue
		}
		rate, errRate := Compare(c, o, "rate")
		p99, errP99 := Compare(c, o, "p99")
		if errRate != nil || errP99 != nil || rate.Ratio.N < 2 {
			continue
		}
		f.Evidence = append(f.Evidence, fmt.Sprintf("%s: %s of its throughput, %s; %s of its p99, %s", o.Name, RatioText(rate.Ratio), rate.Verdict, RatioText(p99.Ratio), p99.Verdict))
		if p99.Verdict == Better && (rate.Verdict == Better || rate.Verdict == NoDifference) {
			f.ID, f.Severity = "pool-large", Warn
			f.Claim = fmt.Sprintf("The pool of %d is too large: %s loses no throughput, and its p99 is %s as long. With the large pool, answers wait for their goroutine during %.0f %% of the time.",
				b.PoolMax, o.Name, RatioText(p99.Ratio), 100*b.Share(SegmentWake))
			f.Advice = "Take the smaller pool."
		}
	}
	return f
}

// insideServer finds what the time in the segment server consists of, if the server or the
// kernel reports it: locks, or the network in between.
func insideServer(r *Result) []Finding {
	var locks, network []string
	worstLock, worstNetwork := 0.0, 0.0
	for _, c := range r.Cases {
		b := boundaryOf(c)
		mean := c.Latency().Mean()
		if b == nil || mean == 0 {
			continue
		}
		lock, net := 0.0, 0.0
		for _, p := range b.Inside {
			switch {
			case strings.Contains(p.Name, "lock"):
				lock = max(lock, p.MeanNs/mean) // sources overlap: take the largest
			case strings.Contains(p.Name, "network"):
				net = max(net, p.MeanNs/mean)
			}
		}
		ops := float64(c.Latency().Count())
		if rtt, ok := roundTrip(c); ok && ops > 0 {
			net = max(net, min(rtt*float64(b.RoundTrips)/ops/mean, b.Share(SegmentServer)))
		}
		if lock >= lockShare {
			worstLock = max(worstLock, lock)
			locks = append(locks, fmt.Sprintf("%s: locks %.0f %% of %s", c.Name, 100*lock, Micros(mean)))
		}
		if net >= networkShare {
			worstNetwork = max(worstNetwork, net)
			network = append(network, fmt.Sprintf("%s: network %.0f %% of %s, %.2g round trips an operation", c.Name, 100*net, Micros(mean), float64(b.RoundTrips)/max(ops, 1)))
		}
	}
	return slices.Concat(
		Found(locks, Finding{
			ID: "lock-wait", Severity: Warn,
			Claim:  fmt.Sprintf("Operations wait for each other's locks in the server, during up to %.0f %% of their time.", 100*worstLock),
			Advice: "Fewer clients, shorter transactions, or rows that fewer of them share; a faster disk or network changes little.",
		}),
		Found(network, Finding{
			ID: "network-bound", Severity: Info,
			Claim:  fmt.Sprintf("Round trips over the network take up to %.0f %% of an operation's time.", 100*worstNetwork),
			Advice: "Make fewer of them: use pipelining, batches, or one statement in place of several.",
		}))
}

// roundTrip is the delay that a relay adds to each round trip, in nanoseconds, from the factor
// rtt, or from the factor transport with a value such as rtt:1ms.
func roundTrip(c *Case) (float64, bool) {
	for _, text := range []string{c.Factors["rtt"], strings.TrimPrefix(c.Factors["transport"], "rtt:")} {
		if d, err := time.ParseDuration(text); err == nil && d > 0 {
			return float64(d), true
		}
	}
	return 0, false
}
