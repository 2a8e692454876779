package demo

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// order identifies an order: the n-th of a customer. A customer is not reused after an order
// whose outcome is unknown, so that each order of a customer is placed after the one before was
// answered.
type order struct {
	customer string
	number   int
}

// ledger records the answers that the shop received, and compares them with what is stored. It
// is safe for concurrent use.
type ledger struct {
	mu sync.Mutex

	acked   map[order]struct{}
	unknown int // orders whose answer was lost

	seen     map[order]struct{} // delivered events
	latest   map[string]int     // by customer: the largest number among first deliveries
	repeated int
	disorder int

	counted  map[int64]struct{} // values returned by the counter
	uncount  int                // increments whose answer was lost
	counter  int64              // the counter's value at the end
	twice    int                // values answered twice
	locks    int
	held     string
	until    time.Time // when the lock expires
	overlaps int

	slowest time.Duration // longest time between two acknowledged orders
	last    time.Time
}

func newLedger() *ledger {
	return &ledger{
		acked: make(map[order]struct{}), seen: make(map[order]struct{}), latest: make(map[string]int), counted: make(map[int64]struct{}),
	}
}

// ordered records an acknowledged order.
func (l *ledger) ordered(o order) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.acked[o] = struct{}{}
	now := time.Now()
	if !l.last.IsZero() {
		l.slowest = max(l.slowest, now.Sub(l.last))
	}
	l.last = now
}

func (l *ledger) lostAnswer() {
	l.mu.Lock()
	l.unknown++
	l.mu.Unlock()
}

// delivered records an event.
func (l *ledger) delivered(o order) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, again := l.seen[o]; again {
		l.repeated++
		return
	}
	l.seen[o] = struct{}{}
	if o.number < l.latest[o.customer] {
		l.disorder++
	}
	l.latest[o.customer] = max(l.latest[o.customer], o.number)
}

// incremented records an answer of the counter.
func (l *ledger) incremented(value int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, again := l.counted[value]; again {
		l.twice++
	}
	l.counted[value] = struct{}{}
}

func (l *ledger) lostIncrement() {
	l.mu.Lock()
	l.uncount++
	l.mu.Unlock()
}

// locked records that a worker got the lock, which it holds until the given time.
func (l *ledger) locked(who string, until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if !now.Before(until) {
		return // the answer came too late: the lock has expired
	}
	if l.held != "" && now.Before(l.until) {
		l.overlaps++
	}
	l.held, l.until = who, until
	l.locks++
}

// released records that a worker is about to release the lock.
func (l *ledger) released(who string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held == who {
		l.held = ""
	}
}

// counts are the current figures.
type counts struct {
	acked, unknown, seen, repeated, disorder, pending int
	increments, uncounted, twice, locks, overlaps     int
	quiet                                             time.Duration // since the last acknowledged order
	slowest                                           time.Duration
}

func (l *ledger) counts() counts {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := counts{
		acked: len(l.acked), unknown: l.unknown, seen: len(l.seen), repeated: l.repeated, disorder: l.disorder,
		increments: len(l.counted), uncounted: l.uncount, twice: l.twice, locks: l.locks, overlaps: l.overlaps, slowest: l.slowest,
	}
	if !l.last.IsZero() {
		c.quiet = time.Since(l.last)
	}
	c.pending = max(0, c.acked-c.seen)
	return c
}

// snapshot returns the orders acknowledged until now.
func (l *ledger) snapshot() map[order]struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.acked)
}

// undelivered counts the orders without an event.
func (l *ledger) undelivered(stored map[order]struct{}) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return missing(stored, l.seen)
}

// missing counts the elements of want that are not in have.
func missing(want, have map[order]struct{}) (n int) {
	for o := range want {
		if _, ok := have[o]; !ok {
			n++
		}
	}
	return n
}

// Promise is a promise and its verdict.
type Promise struct {
	What   string `json:"what"`
	Held   bool   `json:"held"`
	Figure string `json:"figure"` // what was measured
	How    string `json:"how"`    // how it was judged
}

// judge compares the answers with what is stored.
func (l *ledger) judge(stored map[order]struct{}) []Promise {
	l.mu.Lock()
	defer l.mu.Unlock()
	lost, undelivered, made := missing(l.acked, stored), missing(stored, l.seen), missing(l.seen, stored)
	low, high := int64(len(l.counted)), int64(len(l.counted)+l.uncount)
	exact := l.counter >= low && l.counter <= high && l.twice == 0
	if n := len(l.counted); exact && n > 0 {
		exact = slices.Max(slices.Collect(maps.Keys(l.counted))) <= l.counter
	}
	return []Promise{
		{
			"acknowledged orders are kept", lost == 0, fmt.Sprintf("%d lost of %d acknowledged; %d more without an answer", lost, len(l.acked), l.unknown),
			"at the end, each order that was acknowledged must be in the table",
		},
		{
			"every order's event is delivered", undelivered == 0 && made == 0,
			fmt.Sprintf("%d undelivered of %d stored; %d without an order; %d repeated", undelivered, len(stored), made, l.repeated),
			"each row of the table must have an event in NATS, and each event a row",
		},
		{
			"events of a customer arrive in order", l.disorder == 0, fmt.Sprintf("%d out of order of %d", l.disorder, len(l.seen)),
			"the first delivery of an event must have a higher number than all earlier ones of its customer",
		},
		{
			"the counter is exact", exact, fmt.Sprintf("value %d; %d increments answered, %d more without an answer; %d values twice", l.counter, low, l.uncount, l.twice),
			"it must be at least the number of answered increments, at most that plus the unanswered ones, and no value may be returned twice",
		},
		{
			"the lock has one holder at a time", l.overlaps == 0, fmt.Sprintf("%d overlaps, held %d times", l.overlaps, l.locks),
			"a worker records when it gets the lock and before it releases it; no other may get it in between",
		},
	}
}
