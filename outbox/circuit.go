package outbox

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Router is a sink that knows which messages share a destination: something that
// may be full, or fail, while others take messages. Without it a topic is one.
type Router interface {
	Destination(m *Message) string
}

// Parter is a sink whose destinations have parts, such as partitions, that can be
// unavailable by themselves, and that knows which part a message goes to.
type Parter interface {
	// Part names it, unlike any other part and any destination. Empty: the destination
	// has no parts, or none is known for the message.
	Part(m *Message) string
}

// Constants of circuits, which need no tuning.
const (
	crowd         = 3    // messages that fail without one being taken: it is not the message
	probes        = 8    // messages that a destination is tried with
	mostSuspects  = 4096 // failing messages of one destination that are remembered
	mostTaken     = 4096 // destinations of which it is remembered that they took messages
	probePatience = 30 * time.Second
	longestNamed  = time.Hour // that a destination may ask for
)

// circuits decides, for each destination, whether a failure is the message's or the
// destination's. A message that fails while others are taken spends its attempts. Where a
// destination takes none, its messages wait and spend nothing, and it is tried with a few
// now and then, while other destinations go on.
//
//	closed --three messages failed, none taken--> open --time--> tried with a few
//	   ^                                            ^---all failed----'      |
//	   '-------------------one was taken--------------------------------------'
//
// Where all that may be sent is refused for good, each first of its key, say, nothing
// would ever be taken: one is given up now and then, so that what is behind it is sent.
//
// It is safe for concurrent use.
type circuits struct {
	route   func(*Message) string // to its destination
	place   func(*Message) string // to the part of it that may be away, as a destination of its own
	parts   bool                  // they differ
	nOpen   atomic.Int64
	changed bell // rung when a destination takes messages again
	closes  atomic.Uint64

	mu     sync.Mutex
	by     map[string]*circuit // those that have something to remember
	count  uint64              // of confirmations: one for each call that had some
	latest [2]confirmation     // of two destinations, the last first
	taken  map[string]uint64   // count of the last confirmation of each
	dark   bool                // a call met no broker, and nothing was confirmed since
	lit    atomic.Uint64       // how often that has ended, so far as that is taken note of
	litAt  time.Time           // and when last
}

// confirmation is of the last call in which a destination took messages.
type confirmation struct {
	destination string
	at          uint64 // by circuits.count
}

// circuit is what is known of one destination.
type circuit struct {
	taken    uint64             // messages that it has taken
	failing  map[int64]struct{} // that failed since it took the last one, up to crowd
	since    uint64             // circuits.count when the first of them did
	suspects map[int64]suspect  // that fail, by number
	open     bool
	until    time.Time // open: nothing is sent before
	left     int       // open: how many more it is tried with then
	tried    time.Time // the first of them
	wait     backoff
	away     bool      // open: for it was not met
	missed   time.Time // when it was seen first that it is not met
	missing  time.Time // and last, or until when it asked for patience then
	lose     time.Time // open: from then on one message that is refused is given up
	lost     bool      // one was given up while nothing had been taken yet
}

// suspect is a message that has failed.
type suspect struct {
	taken   uint64 // what its destination had taken when it failed first
	tries   int
	refused int // of tries, those that were refusals for good
}

func newCircuits(s Sink) *circuits {
	c := &circuits{route: func(m *Message) string { return m.Topic }, by: map[string]*circuit{}, taken: map[string]uint64{}}
	if r, ok := s.(Router); ok {
		c.route = r.Destination
	}
	c.place = c.route
	if p, ok := s.(Parter); ok {
		c.parts = true
		c.place = func(m *Message) string {
			if part := p.Part(m); part != "" {
				return part
			}
			return c.route(m)
		}
	}
	return c
}

// admit reports whether a message may be sent now to its destination, and its part of
// that, and if not which of the two keeps it waiting, and until when.
func (c *circuits) admit(m *Message, now time.Time) (ok bool, until time.Time, by string) {
	by = c.route(m)
	if ok, until = c.admitTo(by, now); !ok || !c.parts {
		return ok, until, by
	}
	if part := c.place(m); part != by {
		if ok, until = c.admitTo(part, now); !ok {
			c.giveBack(by)
		}
		by = part
	}
	return ok, until, by
}

// giveBack undoes admitTo for a message that is not sent after all.
func (c *circuits) giveBack(destination string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k := c.by[destination]; k != nil && k.open && k.left < probes {
		k.left++
	}
}

// admitTo is admit for one name.
func (c *circuits) admitTo(destination string, now time.Time) (ok bool, until time.Time) {
	if c.nOpen.Load() == 0 {
		return true, now
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.by[destination]
	switch {
	case k == nil || !k.open:
		return true, now
	case now.Before(k.until):
		return false, k.until
	case k.left == probes:
		k.tried = now
	case k.left == 0 && now.Sub(k.tried) > probePatience: // the lane that tried it has gone
		k.left, k.tried = probes, now
	case k.left == 0:
		return false, now.Add(100 * time.Millisecond)
	}
	k.left--
	return true, now
}

// untold takes back tries of which nothing was told: who has made them leads no more.
func (c *circuits) untold() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.by {
		if k.open {
			k.left = probes
		}
	}
}

// calm reports whether nothing has failed that is remembered.
func (c *circuits) calm() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.by) == 0
}

// placesOf lists where rows went, destinations and, while something fails, their parts,
// each at least once.
func (c *circuits) placesOf(rows []Row) (names []string) {
	const few = 16 // of which none is named twice
	parts := c.parts && !c.calm()
	add := func(name string) {
		if n := len(names); n > 0 && names[n-1] == name || n <= few && slices.Contains(names, name) {
			return
		}
		names = append(names, name)
	}
	for i := range rows {
		add(c.route(&rows[i].Message))
		if parts {
			add(c.place(&rows[i].Message))
		}
	}
	return names
}

// isOpen reports whether messages wait for the destination.
func (c *circuits) isOpen(destination string) bool {
	open, _ := c.state(destination)
	return open
}

// state reports whether messages wait for the destination, and whether that is because
// it was not met.
func (c *circuits) state(destination string) (open, away bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.by[destination]
	open = k != nil && k.open
	return open, open && k.away
}

// took notes that the destination has taken messages, by number. It reports
// whether it had taken none before.
func (c *circuits) took(destination string, seqs []int64) (again bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.by[destination]
	if k == nil {
		return false
	}
	k.taken += uint64(len(seqs))
	clear(k.failing)
	for _, seq := range seqs {
		delete(k.suspects, seq)
	}
	if again = k.open; again {
		k.open = false
		k.wait.reset()
		c.nOpen.Add(-1)
		c.closes.Add(1)
		c.changed.ring()
	}
	if len(k.suspects) == 0 {
		delete(c.by, destination)
	}
	return again
}

// now is the number of confirmations so far, for confirmed and takesOthers.
func (c *circuits) now() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count
}

// confirmed notes that a call had messages taken by the destinations given.
func (c *circuits) confirmed(destinations []string) {
	if len(destinations) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count++
	if c.dark {
		c.relight(time.Now())
	}
	for _, d := range destinations {
		if c.latest[0].destination != d {
			c.latest[1] = c.latest[0]
		}
		c.latest[0] = confirmation{d, c.count}
		if _, known := c.taken[d]; !known && len(c.taken) >= mostTaken {
			clear(c.taken)
		}
		c.taken[d] = c.count
	}
}

// missed notes that a call met no broker.
func (c *circuits) missed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dark = true
}

// relight has destinations that were not met tried at once: the broker is back that
// took nothing, and perhaps they are. It does so now and then only: a call that meets
// none may have had messages of one part alone. c.mu is held.
func (c *circuits) relight(now time.Time) {
	c.dark = false
	if now.Sub(c.litAt) < awayLongest {
		return
	}
	c.litAt = now
	for _, k := range c.by {
		if k.open && k.away {
			k.until, k.left = now, probes
		}
	}
	c.lit.Add(1)
	c.changed.ring()
}

// takesOthers reports whether the broker takes messages while this one, sent after so
// many confirmations, met none: of its own destination since the call began or since
// the message failed first, or of another one since the call began or since its own
// failed first.
func (c *circuits) takesOthers(destination string, seq int64, before uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.taken[destination] > before {
		return true
	}
	if k := c.by[destination]; k != nil {
		if s, known := k.suspects[seq]; known && k.taken > s.taken {
			return true
		}
		if len(k.failing) > 0 {
			before = min(before, k.since)
		}
	}
	other := c.latest[0]
	if other.destination == destination {
		other = c.latest[1]
	}
	return other.at > before
}

// failure is what a failed message brings.
type failure struct {
	destination string
	seq         int64
	kind        failureKind
	others      bool          // of the same call, the destination has taken some
	named       time.Duration // that the destination asked for
	took        time.Duration // the call
	before      uint64        // confirmations when it began
	past        past
}

// ruling is what comes of a failure: whether it spends an attempt, and how long the
// message waits if not. opened reports that from now on all of its destination wait.
type ruling struct {
	spend  bool
	wait   time.Duration
	opened bool
	past   past
}

type failureKind int

const (
	faulty   failureKind = iota // likely the message's
	doubtful                    // the message's or the destination's
	busy                        // the destination's
	absent                      // the same, and to find out may take the sink's time-out
	refused                     // the message's, unless all are refused
)

// A destination that is away is tried seldom if that takes long: after a call of ten
// seconds, in which its lane does nothing else, the next one comes forty seconds later.
const (
	awayFactor  = 4
	awayLongest = time.Minute
)

// patience is how long at least one waits after a failure. A call that began before
// the first one was known to have failed says little: it may have taken its time-out
// for a broker that was gone for a moment.
func (k *circuit) patience(f failure, now time.Time) time.Duration {
	if f.kind != absent {
		return 0
	}
	if now.Add(-f.took).Sub(later(k.missing, k.until)) > 2*awayLongest {
		k.missed = now
	}
	k.missing = later(k.missing, now.Add(min(f.named, longestNamed)))
	if !now.Add(-f.took).After(k.missed) {
		return 0
	}
	return min(awayFactor*f.took, awayLongest)
}

// failed notes a failure and decides what comes of it.
func (c *circuits) failed(f failure, policy RetryPolicy, now time.Time) (r ruling) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.by[f.destination]
	if k == nil {
		k = &circuit{failing: map[int64]struct{}{}, suspects: map[int64]suspect{}, wait: backoff{least: 200 * time.Millisecond, most: 5 * time.Second}}
		c.by[f.destination] = k
	}
	s, known := k.suspects[f.seq]
	if !known {
		s.taken, s.tries = k.taken, f.past.tries
	}
	s.tries++
	if f.kind == refused {
		s.refused++
	}
	if !known {
		k.makeRoom()
	}
	k.suspects[f.seq] = s
	proven := f.others || k.taken > s.taken
	if f.kind != refused && c.taken[f.destination] > f.before { // others may have been refused since
		f.others, proven = true, true
	}
	patience := k.patience(f, now)
	if f.kind == absent && (proven || f.past.apart) {
		// Its destination is there, and takes others: it is a part of it that is not.
		r.past = past{true, s.tries}
		r.wait = max(min(policy.delay(s.tries), awayLongest/2), patience, min(f.named, longestNamed))
		return r
	}
	r.past.tries = s.tries
	if !f.others && len(k.failing) < crowd {
		if len(k.failing) == 0 {
			k.since = c.count
		}
		k.failing[f.seq] = struct{}{}
	}
	first := f.kind == refused && !proven && k.taken == 0 && c.taken[f.destination] == 0
	if !f.others && (len(k.failing) >= crowd || first && k.lost) && (f.kind != refused || !proven) {
		if f.kind == refused && k.open && s.refused >= crowd && !now.Before(k.lose) {
			k.lose = now.Add(policy.givesUpAfter())
			r.spend = true
			return r
		}
		if !k.open {
			k.lose = now.Add(policy.givesUpAfter())
		}
		r.wait = k.refuse(f, now, patience, &c.nOpen, &r.opened)
		if f.kind == refused { // perhaps it is the message: others are tried before it
			r.wait = max(r.wait, policy.delay(s.tries))
		}
		return r
	}
	r.wait = max(policy.delay(s.tries), min(f.named, longestNamed))
	switch {
	case first && s.refused < crowd:
		// Nothing has been taken yet: perhaps all that follows is refused, too, as it was
		// before this relay began.
		r.wait = min(r.wait, time.Second)
	case f.kind == faulty, f.kind == refused, f.kind == doubtful && proven:
		r.spend = true
		k.lost = k.lost || first
	case f.kind == absent:
		r.wait = max(min(policy.delay(s.tries), awayLongest/2), patience, min(f.named, longestNamed))
	}
	return r
}

// makeRoom forgets one of the messages that fail when there are too many: it may be
// another's by now.
func (k *circuit) makeRoom() {
	if len(k.suspects) < mostSuspects {
		return
	}
	for seq := range k.suspects {
		delete(k.suspects, seq)
		return
	}
}

// givesUpAfter is how long a destination has taken nothing when a message that it
// refuses for good is given up, and how long after that the next one is.
func (p RetryPolicy) givesUpAfter() time.Duration {
	const least = 10 * time.Minute
	return max(least, min(time.Duration(p.MaxAttempts), 1000)*min(p.Max, 24*time.Hour))
}

// refuse opens the circuit, or renews its time when it was tried in vain.
func (k *circuit) refuse(f failure, now time.Time, patience time.Duration, nOpen *atomic.Int64, opened *bool) time.Duration {
	if !k.open {
		k.open, *opened = true, true
		nOpen.Add(1)
		k.until = time.Time{}
	}
	k.away = f.kind == absent
	if !now.Before(k.until) {
		k.until = now.Add(max(k.wait.take(), patience))
		k.left = probes
	}
	if asked := now.Add(min(f.named, longestNamed)); asked.After(k.until) {
		k.until = asked
	}
	// Behind those that have not been tried yet.
	return k.until.Sub(now) + 10*time.Millisecond
}

// forget drops what is known of messages that are dead letters now.
func (c *circuits) forget(destination string, seq int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.by[destination]
	if k == nil {
		return
	}
	delete(k.suspects, seq)
	if !k.open && len(k.suspects) == 0 && len(k.failing) == 0 {
		delete(c.by, destination)
	}
}

// waiting is how many destinations take nothing now.
func (c *circuits) waiting() int { return int(c.nOpen.Load()) }
