package cache

import (
	"bytes"
	"strings"
	"time"

	"github.com/maypok86/otter/v2"
)

// A Flight is a statement in flight whose answer will be kept. The caller that began it ends
// it by Keep, Refuse, Fail or Leave; only the first call counts.
type Flight struct {
	c        *Cache
	key      string
	database *Database
	epoch    uint64
	began    uint64
	at       time.Duration
	ttl      time.Duration
	tag      string

	purged  bool                     // guarded by c.mu: its answer is only for those who already wait
	ended   bool                     // guarded by c.mu
	waiters []func(Outcome, *Answer) // guarded by c.mu
}

// An Outcome is the result of a flight, for those who wait for it.
type Outcome uint8

// The outcomes.
const (
	// Landed: there is an answer.
	Landed Outcome = iota
	// Failed: each waiter runs its own statement. Errors are not shared.
	Failed
	// Abandoned: no client fetches it any more; each waiter asks again.
	Abandoned
)

// begin begins a flight. c.mu is held.
func (c *Cache) begin(q *Query) *Flight {
	f := &Flight{
		c: c, key: string(q.Key), database: q.Database, epoch: q.Database.epoch.Load(), began: c.seq.Add(1),
		at: q.Now, ttl: q.TTL, tag: strings.Clone(q.Tag),
	}
	c.flights[f.key] = f
	return f
}

// refresh begins a flight unless there is one that is usable.
func (c *Cache) refresh(key string, q *Query) *Flight {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f := c.flights[key]; f != nil && f.usable(q) {
		return nil
	}
	return c.begin(q)
}

// usable reports whether the flight's answer will be new enough for a query: it is as old as
// the flight, or newer. c.mu is held.
func (f *Flight) usable(q *Query) bool {
	return !f.purged && f.began > q.After && f.epoch == q.Database.epoch.Load() && q.Now-f.at <= 2*q.TTL
}

// Wait calls wake when the flight has ended, on whatever goroutine ends it. It
// returns false if the flight has already ended.
func (f *Flight) Wait(wake func(Outcome, *Answer)) bool {
	f.c.mu.Lock()
	defer f.c.mu.Unlock()
	if f.ended {
		return false
	}
	f.waiters = append(f.waiters, wake)
	f.database.shared.Add(1)
	return true
}

// Is reports whether the flight is for a key.
func (f *Flight) Is(key []byte) bool { return f.key == string(key) }

// Keep ends the flight with an answer, whose bytes are copied.
func (f *Flight) Keep(p []byte, rows uint64, info any) {
	f.end(Landed, &Answer{Bytes: bytes.Clone(p), Rows: rows, Info: info})
}

// Refuse ends the flight because its answer cannot be kept. For as long as the answer would
// have been fresh, no client waits for another flight.
func (f *Flight) Refuse(why Skip) {
	f.database.Skipped(why)
	f.end(Failed, &Answer{refused: why})
}

// Fail ends the flight because its statement has failed.
func (f *Flight) Fail() { f.end(Failed, nil) }

// Leave ends the flight because its statement does not run any more.
func (f *Flight) Leave() { f.end(Abandoned, nil) }

func (f *Flight) end(how Outcome, a *Answer) {
	c := f.c
	c.mu.Lock()
	if f.ended {
		c.mu.Unlock()
		return
	}
	f.ended = true
	if c.flights[f.key] == f {
		delete(c.flights, f.key)
	}
	if a != nil {
		a.database, a.epoch, a.began, a.at, a.ttl, a.tag = f.database, f.epoch, f.began, f.at, f.ttl, f.tag
		if st := c.store.Load(); st != nil && !f.purged && f.epoch == f.database.epoch.Load() {
			old, ok := st.GetIfPresent(f.key)
			if !ok || old.began < f.began {
				f.database.entries.Add(1)
				f.database.bytes.Add(a.size(f.key))
				st.Set(f.key, a)
			}
		}
	}
	waiters := f.waiters
	f.waiters = nil
	c.mu.Unlock()
	for _, wake := range waiters {
		wake(how, a)
	}
}

// Purge removes the answers of a database, or of all for "". Answers in flight are not kept:
// they are only for those who already wait.
func (c *Cache) Purge(database string) {
	c.mu.Lock()
	c.forget(database)
	c.mu.Unlock()
}

// forget is Purge. c.mu is held.
func (c *Cache) forget(database string) {
	for name, d := range c.databases {
		if database == "" || name == database {
			d.epoch.Add(1)
		}
	}
}

// PurgeTag removes the answers with a tag. It visits every entry.
func (c *Cache) PurgeTag(tag string) {
	c.mu.Lock()
	for key, f := range c.flights {
		if f.tag == tag {
			f.purged = true
			delete(c.flights, key)
		}
	}
	c.mu.Unlock()
	c.drop(func(a *Answer) bool { return a.tag == tag })
}

// Sweep frees purged entries. It visits every entry.
func (c *Cache) Sweep() {
	c.drop(func(a *Answer) bool { return a.epoch != a.database.epoch.Load() })
}

func (c *Cache) drop(gone func(a *Answer) bool) {
	st := c.store.Load()
	if st == nil {
		return
	}
	for key, a := range st.All() {
		if gone(a) {
			st.ComputeIfPresent(key, func(now *Answer) (*Answer, otter.ComputeOp) {
				if gone(now) {
					return nil, otter.InvalidateOp
				}
				return now, otter.CancelOp
			})
		}
	}
}
