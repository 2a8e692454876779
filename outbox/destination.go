package outbox

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// DestinationStats is what a relay knows of one destination since it was made: of a
// topic, or of what the sink says shares a fate (see [Router]).
type DestinationStats struct {
	// Name is empty for all destinations beyond the first 64 together.
	Name string

	Delivered uint64 // messages that it took
	Bytes     uint64 // their payloads
	Failed    uint64 // attempts that failed, spent or not; not those without a broker
	Buried    uint64 // messages that became dead letters

	// Delay is from the insert to the confirmation of the message it took last, by
	// the database's and this machine's clock; 0: it took none.
	Delay time.Duration
	// Failing are messages that have failed and wait for another attempt, at most
	// 256; Oldest is when the oldest of them was inserted. Those that wait behind
	// them are not among them.
	Failing int
	Oldest  time.Time
	Blocked bool // it takes no messages now
	// LastError is of the attempt that failed last, in at most 200 bytes, until the
	// destination takes a message with none failing.
	LastError string
}

// Lag is how far the destination is behind: the age of its oldest failing message,
// or if none fails the delay of the last one that it took.
func (d *DestinationStats) Lag(now time.Time) time.Duration {
	if d.Oldest.IsZero() {
		return d.Delay
	}
	return max(d.Delay, now.Sub(d.Oldest))
}

const (
	// mostDestinations are told apart: a topic may be a customer's.
	mostDestinations = 64
	mostFailing      = 256
	longestLastError = 200
	// failingGrace is how long after its next attempt is due a message counts as
	// failing: another relay may have delivered it.
	failingGrace = time.Minute
)

// destinations counts by destination. It is safe for concurrent use.
type destinations struct {
	mu sync.Mutex
	by map[string]*destination // guarded by mu
}

type destination struct {
	DestinationStats
	failing map[int64]failing // by number
}

// failing is a message that has failed.
type failing struct{ inserted, due time.Time }

// of returns the destination with a name. d.mu is held.
func (d *destinations) of(name string) *destination {
	if k := d.by[name]; k != nil {
		return k
	}
	if d.by == nil {
		d.by = map[string]*destination{}
	}
	if len(d.by) >= mostDestinations {
		if name = ""; d.by[name] != nil {
			return d.by[name]
		}
	}
	k := &destination{DestinationStats: DestinationStats{Name: name}, failing: map[int64]failing{}}
	d.by[name] = k
	return k
}

// took notes messages that were taken. route names the destination of each.
func (d *destinations) took(rows []Row, route func(*Message) string, now time.Time) {
	if len(rows) == 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var k *destination
	last := ""
	for i := range rows {
		row := &rows[i]
		if name := route(&row.Message); k == nil || name != last {
			k, last = d.of(name), name
		}
		k.Delivered++
		k.Bytes += uint64(len(row.Payload))
		if !row.CreatedAt.IsZero() {
			k.Delay = max(0, now.Sub(row.CreatedAt))
		}
		if k.LastError == "" {
			continue
		}
		if delete(k.failing, row.Seq); len(k.failing) == 0 {
			k.LastError = ""
		}
	}
}

// failed notes an attempt that failed; the next is after wait.
func (d *destinations) failed(name string, row *Row, wait time.Duration, err error, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	k := d.of(name)
	k.Failed++
	k.LastError = err.Error()
	k.LastError = k.LastError[:min(len(k.LastError), longestLastError)]
	if _, known := k.failing[row.Seq]; known || len(k.failing) < mostFailing {
		k.failing[row.Seq] = failing{row.CreatedAt, now.Add(wait)}
	}
}

// buried notes a message that became a dead letter.
func (d *destinations) buried(name string, seq int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	k := d.of(name)
	k.Buried++
	delete(k.failing, seq)
}

// forget drops what was failing: a leadership has ended, and others go on with it.
// A destination that goes on failing is noted again.
func (d *destinations) forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, k := range d.by {
		clear(k.failing)
	}
}

// stats lists all by name, the rest last.
func (d *destinations) stats(blocked func(name string) bool, now time.Time) []DestinationStats {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make([]DestinationStats, 0, len(d.by))
	for name, k := range d.by {
		s := k.DestinationStats
		s.Blocked = blocked(name)
		for seq, f := range k.failing {
			if !s.Blocked && now.Sub(f.due) > failingGrace {
				delete(k.failing, seq)
				continue
			}
			if s.Failing++; s.Oldest.IsZero() || f.inserted.Before(s.Oldest) {
				s.Oldest = f.inserted
			}
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b DestinationStats) int {
		if (a.Name == "") != (b.Name == "") {
			return cmp.Compare(b.Name, a.Name)
		}
		return cmp.Compare(a.Name, b.Name)
	})
	return out
}
