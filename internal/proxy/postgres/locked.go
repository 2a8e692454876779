package postgres

import (
	"strconv"
	"time"

	"github.com/weirdb/weir/internal/proxy/core"
)

// This file is about reads that run alone, because they are slow, long or not known
// yet, and wait for a lock. One locked table could block a pool that way. When
// others wait for a backend, weir asks the server which of its sessions wait for a
// lock; the reads among them continue apart (apart.go), as far as there are slots.
// Reads that are only slow keep their backends.

const (
	// lockPatience is how long a read may run alone before weir asks what it waits
	// for, if others wait for a backend; probeEvery is how often it asks.
	lockPatience = 20 * time.Millisecond
	probeEvery   = 50 * time.Millisecond
)

// A lockProbe asks, for a pool, which sessions wait for a lock.
type lockProbe struct {
	p      *pool
	asked  time.Duration // last
	asking bool
}

const locksSQL = `SELECT pid FROM pg_catalog.pg_locks WHERE NOT granted`

// ask asks the server.
func (q *lockProbe) ask() {
	p := q.p
	if q.asking || p.l.Now-q.asked < probeEvery {
		return
	}
	var b *backend
	if len(p.Free) > 0 {
		b = p.Pick(len(p.Free) - 1) // whatever its settings
		b.Mode = core.ModeOwn
	} else {
		for _, s := range p.Shared.Backends {
			if s.Cancels == 0 && !s.Held && !s.Doomed && (b == nil || s.Depth() < b.Depth()) {
				b = s
			}
		}
	}
	q.asked = p.l.Now
	if b == nil {
		q.suspect() // there is no backend to ask on
		return
	}
	q.asking = true
	b.ask(locksSQL, func(u *unit) {
		q.asking = false
		for _, row := range u.rows {
			if pid, err := strconv.ParseUint(string(row[0]), 10, 32); err == nil {
				q.waits(uint32(pid))
			}
		}
	}).columns = 1
}

// suspect treats the read that has run alone for longest as one that waits for
// a lock: every backend of the pool is in use, perhaps all by such reads.
func (q *lockProbe) suspect() {
	p := q.p
	var longest *backend
	for _, b := range p.Backends {
		u := b.Head()
		if b.Mode == core.ModeOwn && u != nil && u.kind == unitClient && u.c != nil && u.read && u.Slot == core.SlotNone &&
			p.l.Now-b.Since > suspectAfter && (longest == nil || b.Since < longest.Since) {
			longest = b
		}
	}
	if longest != nil {
		q.waits(longest.pid)
	}
}

// suspectAfter is how long such a read must have run.
const suspectAfter = 200 * time.Millisecond

// waits makes the read that the backend runs continue apart.
func (q *lockProbe) waits(pid uint32) {
	p := q.p
	for _, b := range p.Backends {
		u := b.Head()
		if b.pid != pid || b.Mode != core.ModeOwn || u == nil || u.kind != unitClient || u.c == nil || !u.read || u.Slot != core.SlotNone ||
			p.l.Now-b.Since < lockPatience {
			continue
		}
		if u.shape != nil {
			u.shape.Stall(p.l.Now + core.StallMark)
		}
		p.Hold(&u.Turn, core.SlotFresh)
		if p.OverSlots() {
			b.preempt(u)
		}
	}
}
