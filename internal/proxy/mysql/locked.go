package mysql

import (
	"context"
	"database/sql"
	"strconv"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sqlscan/myscan"
)

// This file handles reads that do not share, and wait for a lock on a connection that their
// client owns. One locked table could occupy a pool that way. When a client waits for a backend
// and none can be opened, weir queries which of the server's sessions wait for a lock; the
// reads among them go on apart (apart.go), as far as there are slots. Reads that are only slow
// are left alone.

const (
	// lockPatience is how long a read may take before weir queries what it waits for.
	lockPatience = 20 * time.Millisecond
	// probeEvery is the first interval between two queries, and maxProbeWait what it grows to
	// while no read waits for a lock: each query takes a connection.
	probeEvery   = 50 * time.Millisecond
	maxProbeWait = time.Second
	// suspectAfter is how long a read must have taken to count as one that waits for a lock if
	// the query fails.
	suspectAfter = 200 * time.Millisecond
)

// A lockProbe queries which of a pool's reads wait for a lock.
type lockProbe struct {
	p      *pool
	asking bool
	at     time.Duration // when the next query may start
	wait   time.Duration // current interval
}

// mayMove reports whether a read on the client's own connection could run on any other as well,
// because the session has no state there that the next statement needs.
func (fw *forwarder) mayMove(u *unit, info *myscan.Statement) bool {
	c := fw.c
	return routeOf(info) == routeRead && c.pins.held == 0 && !c.diag.alone() && len(c.texts.unjudged) == 0 && !c.inTx() && c.autocommit() && c.p.facts.known &&
		!c.p.facts.silent && c.l.cfg.Mode != session.ModeSession && u.change == 0 && len(u.asks) == 0 && !u.hidesID
}

// lockable returns the unit that the backend executes if that is a read that may go on apart,
// and has taken at least took.
func (b *backend) lockable(took time.Duration) *unit {
	u := b.Head()
	if b.Mode != core.ModeOwned || u == nil || b.Depth() != 1 || !u.movable || u.wrote || u.dead || b.Cancels > 0 || b.owner != u.c ||
		u.c.s.Closed || u.c.state.asking() || b.p.l.Now-b.Since < took {
		return nil
	}
	return u
}

// ask queries which sessions wait for a lock, if there are reads that may.
func (q *lockProbe) ask() {
	p := q.p
	if q.asking || p.l.Now < q.at {
		return
	}
	some := false
	for _, b := range p.Backends {
		some = some || b.lockable(lockPatience) != nil
	}
	if !some {
		return
	}
	srv := p.l.srv
	if !srv.mayDial(p.key) {
		q.answered(nil, errNoSecret)
		return
	}
	q.asking = true
	srv.Background.Go(func() {
		ctx, cancel := context.WithTimeout(srv.DialCtx, srv.cfg().ConnectTimeout)
		defer cancel()
		waits := make(map[uint32]bool)
		conn, _, err := srv.connect(ctx, p.key)
		if err == nil {
			var rows [][]sql.NullString
			rows, err = conn.Query(ctx, "SHOW PROCESSLIST")
			_ = conn.Close() // err is what matters
			for _, r := range rows {
				if id, perr := strconv.ParseUint(r[0].String, 10, 32); perr == nil && len(r) > processState && strings.HasPrefix(r[processState].String, "Waiting for ") {
					waits[uint32(id)] = true
				}
			}
		}
		p.l.Post(func() {
			q.asking = false
			q.answered(waits, err)
		})
	})
}

// processState is the column of SHOW PROCESSLIST with the state of a session.
const processState = 6

// answered makes the reads that wait for a lock go on apart. If the query failed, the read that
// has taken longest counts as one.
func (q *lockProbe) answered(waits map[uint32]bool, err error) {
	p := q.p
	var found []*backend
	for _, b := range p.Backends {
		switch {
		case err == nil && waits[b.id] && b.lockable(lockPatience) != nil:
			found = append(found, b)
		case err != nil && b.lockable(suspectAfter) != nil && (found == nil || b.Since < found[0].Since):
			found = []*backend{b}
		}
	}
	q.wait = min(max(2*q.wait, probeEvery), maxProbeWait)
	if len(found) > 0 {
		q.wait = probeEvery
	}
	q.at = p.l.Now + q.wait
	for _, b := range found {
		u := b.Head()
		b.putApart(u)
		if u.shape != nil {
			u.shape.Stall(p.l.Now + core.StallMark)
		}
		if p.OverSlots() {
			b.preempt(u)
		}
	}
}

// putApart takes the backend from the client whose read it executes. The read goes on there.
func (b *backend) putApart(u *unit) {
	c := u.c
	c.link, c.cur, c.reader, c.diag.last.soft = nil, nil, nil, false
	c.inflight++
	c.diag.keepID(b)
	b.Mode, b.owner, b.lastUser = core.ModeOwn, nil, nil
	u.read = true
	b.p.Hold(&u.Turn, core.SlotFresh)
}
