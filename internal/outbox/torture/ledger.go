package torture

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
)

// Entry is one message: the N-th of a chain, in the given attempt of its producer. Producers count
// from 1 and continue with N+1 only after N is known to be committed, so the order of a chain is
// the order of its commits. Attempts distinguish the message of a committed transaction from those
// of earlier transactions that did not commit.
type Entry struct {
	Chain   string `json:"c"`
	N       int    `json:"n"`
	Attempt int    `json:"a"`
	// Poison marks a message that the broker always rejects.
	Poison bool `json:"p,omitempty"`
}

func (e Entry) encode() []byte {
	text, err := json.Marshal(e)
	if err != nil {
		panic(err) // strings and numbers
	}
	return text
}

// DecodeEntry reads the payload of a message.
func DecodeEntry(payload []byte) (Entry, error) {
	var e Entry
	if err := json.Unmarshal(payload, &e); err != nil {
		return e, fmt.Errorf("decode ledger entry: %w", err)
	}
	if e.Chain == "" || e.N < 1 || e.N > maxN || e.Attempt < 1 {
		return e, fmt.Errorf("decode ledger entry: %q is none", payload)
	}
	return e, nil
}

// maxN bounds the numbers of a chain, and so the memory of the ledger.
const maxN = 1 << 24

// free is the prefix of chains whose messages have no key, and therefore no order.
const free = "free"

// Ledger records what producers committed and what the broker received. Verdict compares the two.
// It is safe for concurrent use.
type Ledger struct {
	mu         sync.Mutex
	chains     map[string]*chain
	deliveries int
	early      int // first deliveries that came after a later one of their chain
	looked     int // deliveries whose transaction was looked for when they came
	invisible  int // of those, the ones whose transaction could not be seen
	wrong      []string
}

// chain is the state of the messages with one key.
type chain struct {
	acknowledged int           // greatest N whose COMMIT returned
	committed    map[int]Entry // as the database holds them, at the end
	delivered    []delivery    // by N-1
	last         int           // greatest N delivered
}

// delivery is how often a message arrived, and in which attempt first.
type delivery struct {
	times   int
	attempt int
}

// NewLedger returns an empty ledger.
func NewLedger() *Ledger { return &Ledger{chains: map[string]*chain{}} }

func (l *Ledger) chain(name string) *chain {
	c := l.chains[name]
	if c == nil {
		c = &chain{committed: map[int]Entry{}}
		l.chains[name] = c
	}
	return c
}

// Acknowledged records that the COMMIT of the chain's messages up to n returned.
func (l *Ledger) Acknowledged(name string, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.chain(name)
	c.acknowledged = max(c.acknowledged, n)
}

// Committed records a message that is committed in the database at the end of the run.
func (l *Ledger) Committed(e Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.chain(e.Chain).committed[e.N] = e
}

// Delivered records a message that arrived at the broker, in the order of arrival.
func (l *Ledger) Delivered(e Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.chain(e.Chain)
	l.deliveries++
	for len(c.delivered) < e.N {
		c.delivered = append(c.delivered, delivery{})
	}
	d := &c.delivered[e.N-1]
	if d.times++; d.times > 1 {
		if d.attempt != e.Attempt {
			l.note("%s %d was delivered in attempts %d and %d: one of them was rolled back", e.Chain, e.N, d.attempt, e.Attempt)
		}
		return
	}
	d.attempt = e.Attempt
	if e.N < c.last && !isFree(e.Chain) {
		l.early++
		l.note("out of order: %s %d came first after %d", e.Chain, e.N, c.last)
	}
	c.last = max(c.last, e.N)
}

// NoteVisible records whether the transaction of a delivery was visible to another session of the
// database when it arrived.
func (l *Ledger) NoteVisible(e Entry, seen bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.looked++
	if !seen {
		l.invisible++
		l.note("%s %d of attempt %d was delivered before its transaction could be seen", e.Chain, e.N, e.Attempt)
	}
}

// maxExamples is the most examples of violations that are kept.
const maxExamples = 20

func (l *Ledger) note(format string, args ...any) {
	if len(l.wrong) < maxExamples {
		l.wrong = append(l.wrong, fmt.Sprintf(format, args...))
	}
}

func isFree(chain string) bool { return len(chain) >= len(free) && chain[:len(free)] == free }

// Arrived returns the number of deliveries so far, including repeated ones.
func (l *Ledger) Arrived() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.deliveries
}

// Verdict is the result of a ledger.
type Verdict struct {
	Committed    int `json:"committed"`     // messages in the database's own record
	Delivered    int `json:"delivered"`     // of them, those that arrived
	Dead         int `json:"dead"`          // of them, those that lie in the dead letters
	Waiting      int `json:"waiting"`       // of them, those that did not arrive and are still in the outbox
	Lost         int `json:"lost"`          // of them, those that are nowhere
	OutOfOrder   int `json:"out_of_order"`  // first deliveries after a later one of their key
	Phantoms     int `json:"phantoms"`      // deliveries of what never was committed
	Forgotten    int `json:"forgotten"`     // acknowledged commits that the database lost
	Duplicates   int `json:"duplicates"`    // deliveries beyond the first
	PoisonPassed int `json:"poison_passed"` // messages that the sink must refuse, and that were delivered
	Looked       int `json:"looked"`        // deliveries whose transaction was looked for when they arrived
	Invisible    int `json:"invisible"`     // of those, the ones whose transaction could not be seen yet

	// Examples are some of the violations.
	Examples []string `json:"examples,omitempty"`
}

// Holds reports whether nothing was lost, reordered or made up. The caller judges duplicates: it
// knows how often something was killed.
func (v *Verdict) Holds() bool {
	return v.Waiting+v.Lost+v.OutOfOrder+v.Phantoms+v.Forgotten+v.PoisonPassed+v.Invisible == 0
}

// Verdict compares commits and deliveries. dead are the dead letters, waiting the messages still in
// the outbox. Call it after all Committed.
func (l *Ledger) Verdict(dead, waiting []Entry) Verdict {
	l.mu.Lock()
	defer l.mu.Unlock()
	v := Verdict{OutOfOrder: l.early, Looked: l.looked, Invisible: l.invisible}
	buried := make(map[Entry]bool, len(dead))
	for _, e := range dead {
		buried[e] = true
		if !e.Poison {
			l.note("%s %d lies in the dead letters although the broker would take it", e.Chain, e.N)
		}
	}
	pending := make(map[Entry]bool, len(waiting))
	for _, e := range waiting {
		pending[e] = true
	}
	for _, name := range slices.Sorted(maps.Keys(l.chains)) {
		l.judge(&v, name, l.chains[name], buried, pending)
	}
	v.Examples = slices.Clone(l.wrong)
	return v
}

func (l *Ledger) judge(v *Verdict, name string, c *chain, buried, pending map[Entry]bool) {
	for n := 1; n <= c.acknowledged; n++ {
		if _, there := c.committed[n]; !there {
			v.Forgotten++
			l.note("forgotten by the database: %s %d, whose commit it had acknowledged", name, n)
		}
	}
	for i, d := range c.delivered {
		if d.times == 0 {
			continue
		}
		v.Duplicates += d.times - 1
		if e, there := c.committed[i+1]; !there || e.Attempt != d.attempt {
			v.Phantoms++
			l.note("phantom: %s %d of attempt %d was never committed", name, i+1, d.attempt)
		}
	}
	for _, n := range slices.Sorted(maps.Keys(c.committed)) {
		e := c.committed[n]
		v.Committed++
		arrived := n <= len(c.delivered) && c.delivered[n-1].times > 0
		switch {
		case arrived && e.Poison:
			v.PoisonPassed++
			l.note("%s %d is poison and was delivered", name, n)
		case arrived:
			v.Delivered++
		case buried[e]:
			v.Dead++
		case pending[e]:
			v.Waiting++
			l.note("not delivered, but still in the outbox: %s %d", name, n)
		default:
			v.Lost++
			l.note("lost: %s %d", name, n)
		}
	}
}
