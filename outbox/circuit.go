package outbox

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Router is a sink that knows which messages share a destination: something that may
// be full, or fail, while others take messages. Without it a topic is a destination.
type Router interface {
	Destination(m *Message) string
}

// Parter is a sink whose destinations have parts, such as partitions, that can be
// unavailable separately, and that knows which part a message goes to.
type Parter interface {
	// Part is the part's name, which differs from those of other parts and of destinations.
	// Empty: the destination has no parts, or the part is unknown.
	Part(m *Message) string
}

// Constants of circuits, which do not need tuning.
const (
	crowd         = 3    // if so many messages fail and none is taken, the messages are not to blame
	probes        = 8    // messages with which a blocked destination is tried
	mostSuspects  = 4096 // failing messages that are remembered of one destination
	mostTaken     = 4096 // destinations that are remembered to have taken messages
	probePatience = 30 * time.Second
	longestNamed  = time.Hour // longest pause that a destination may ask for
)

// circuits decides, for each destination, whether a failure is the fault of the message or
// of the destination. A message that fails while others are taken spends its attempts. If a
// destination takes none, its messages wait and spend no attempt, and the relay tries it with
// a few of them from time to time, while other destinations go on.
// now and then, while other destinations go on.
//
//	closed --three messages failed, none taken--> open --time--> tried with a few
//	   ^                                            ^---all failed----'      |
//	   '-------------------one was taken--------------------------------------'
//
// If all messages that may be sent are refused permanently, say because each is the first of
// its key, none would ever be taken: one is given up from time to time, so that those behind
// it are sent.
//
// It is safe for concurrent use.
type circuits struct {
	route   func(*Message) string // to its destination
	place   func(*Message) string // to the part of it that may be away, named like a destination
	parts   bool                  // the two differ
	nOpen   atomic.Int64
	changed bell // rung when a destination takes messages again
	closes  atomic.Uint64

	mu     sync.Mutex
	by     map[string]*circuit // only those with something to remember
	count  uint64              // of calls with confirmations
	latest [2]confirmation     // of two destinations, the last one first
	taken  map[string]uint64   // count at the last confirmation of each
	dark   bool                // a call did not reach the broker, and nothing was confirmed since
	lit    atomic.Uint64       // how often dark has ended
	litAt  time.Time           // when it last ended
}

// confirmation is the last call in which a destination took messages.
type confirmation struct {
	destination string
	at          uint64 // by circuits.count
}

// circuit is the state of one destination.
type circuit struct {
	taken    uint64             // messages that it has taken
	failing  map[int64]struct{} // messages that failed since it last took one, up to crowd
	since    uint64             // circuits.count when the first of them failed
	suspects map[int64]suspect  // failing messages, by number
	open     bool
	until    time.Time // open: nothing is sent before
	left     int       // open: how many more messages it is tried with then
	tried    time.Time // when the first of them was sent
	wait     backoff
	away     bool      // open because it could not be reached
	missed   time.Time // when it could first not be reached
	missing  time.Time // when it last could not, or until when it then asked to wait
	lose     time.Time // open: from then on one refused message is given up
	lost     bool      // one was given up while nothing had been taken yet
}

// suspect is a message that has failed.
type suspect struct {
	taken   uint64 // what its destination had taken when it first failed
	tries   int
	refused int // tries that ended in a permanent refusal
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

// admit reports whether a message may be sent now to its destination, and to its part of
// that; if not, which of the two blocks it, and until when.
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

// giveBack undoes admitTo for a message that was not sent.
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
	case k.left == 0 && now.Sub(k.tried) > probePatience: // the lane that tried it has ended
		k.left, k.tried = probes, now
	case k.left == 0:
		return false, now.Add(100 * time.Millisecond)
	}
	k.left--
	return true, now
}

// cancelTries undoes tries without an outcome: the leadership that made them has ended.
func (c *circuits) cancelTries() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.by {
		if k.open {
			k.left = probes
		}
	}
}

// calm reports whether no failure is remembered.
func (c *circuits) calm() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.by) == 0
}

// placesOf lists the destinations of rows and, while something fails, their parts; some
// may be named twice.
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
// it could not be reached.
func (c *circuits) state(destination string) (open, away bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.by[destination]
	open = k != nil && k.open
	return open, open && k.away
}

// took records that the destination has taken messages, by number. It reports
// whether it was blocked before.
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

// confirmed records that the given destinations took messages in a call.
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

// missed records that a call did not reach the broker.
func (c *circuits) missed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dark = true
}

// relight makes destinations that could not be reached due at once, because the broker is
// back after it took nothing, and they may be, too. It does so only from time to time: a call
// that does not reach the broker may have had messages for one part alone. c.mu is held.
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

// takesOthers reports whether the broker takes other messages while this one, sent when before
// calls were confirmed, did not reach it: messages of its own destination since the call began
// or since this message first failed, or of another destination since the call began or since
// its own destination first failed.
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

// failure is a failed message, for failed.
type failure struct {
	destination string
	seq         int64
	kind        failureKind
	others      bool          // in the same call the destination has taken other messages
	named       time.Duration // the pause that the destination asked for
	took        time.Duration // duration of the call
	before      uint64        // confirmed calls when it began
	past        past
}

// ruling is the decision about a failure: whether it spends an attempt, and how long the
// message waits if not. opened reports that the destination is blocked from now on.
type ruling struct {
	spend  bool
	wait   time.Duration
	opened bool
	past   past
}

type failureKind int

const (
	faulty   failureKind = iota // probably the message's fault
	doubtful                    // the message's or the destination's fault
	busy                        // the destination's fault
	absent                      // the same, and it may take the sink's timeout to find out
	refused                     // the message's fault, unless all are refused
)

// A destination that is away is tried less often if that takes long: after a call of ten
// seconds, in which its lane does nothing else, the next one comes forty seconds later.
const (
	awayFactor  = 4
	awayLongest = time.Minute
)

// patience is how long a message waits at least after a failure. A call that began before
// the first failure was known says little: it may have used its timeout for a broker that
// was gone for a moment.
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

// failed records a failure and decides what follows from it.
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
		// Its destination can be reached, and takes others: only a part of it cannot.
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
		if f.kind == refused { // perhaps the message is at fault: others are tried before it
			r.wait = max(r.wait, policy.delay(s.tries))
		}
		return r
	}
	r.wait = max(policy.delay(s.tries), min(f.named, longestNamed))
	switch {
	case first && s.refused < crowd:
		// Nothing has been taken yet: perhaps everything that follows is refused, too, as it was
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

// makeRoom forgets one of the failing messages if there are too many: its number may
// belong to another message by now.
func (k *circuit) makeRoom() {
	if len(k.suspects) < mostSuspects {
		return
	}
	for seq := range k.suspects {
		delete(k.suspects, seq)
		return
	}
}

// givesUpAfter is how long a destination must have taken nothing before a message that it
// refuses permanently is given up, and the interval between two such messages.
func (p RetryPolicy) givesUpAfter() time.Duration {
	const least = 10 * time.Minute
	return max(least, min(time.Duration(p.MaxAttempts), 1000)*min(p.Max, 24*time.Hour))
}

// refuse opens the circuit, or extends it after a try that failed.
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

// forget removes messages that are dead letters now.
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

// waiting is how many destinations are blocked now.
func (c *circuits) waiting() int { return int(c.nOpen.Load()) }
