package postgres

import (
	"errors"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file determines where a unit of a client with a backend ends, if not at its first Sync
// or Query:
//
//   - A server that expects CopyData ignores Sync and Flush. A client that runs COPY FROM
//     STDIN by extended messages may have sent the Sync before it knew that this was a
//     COPY, and sends another one after its data: only that one is answered.
//   - After an extended message that failed, the server skips everything up to the next
//     Sync, including a Query.
//
// In both cases one ReadyForQuery ends what weir first took for several units.

// ignoresSync reports whether the server will ignore a Sync that is passed on now: it expects
// CopyData, and the client has not ended that.
func (fw *forwarder) ignoresSync() bool {
	u := fw.c.link.Head()
	return fw.c.state == stateCopying && !fw.dataEnded && u != nil && !u.failed
}

// endsData records a CopyDone or CopyFail that is passed on.
func (fw *forwarder) endsData() {
	c := fw.c
	units := c.link.Units()
	switch {
	case c.state == stateCopying:
		fw.dataEnded = true
	case c.cur != nil: // sent before the server has asked for it
		c.cur.dataWithin = true
	case len(units) > 0:
		units[len(units)-1].dataBehind = true
	}
}

// copies records that the server expects CopyData for u, which is at the head.
func (fw *forwarder) copies(u *unit) {
	fw.c.state = stateCopying
	defer fw.c.resume() // a Terminate may wait
	fw.dataEnded = u.dataWithin || u.dataBehind
	if u.open || u.byQuery || u.dataWithin {
		return
	}
	u.ignored = true
	for ended := false; !u.open && !ended; {
		ended = u.dataBehind
		if more, ok := fw.rejoin(u); more || !ok {
			break
		}
		fw.dataEnded = fw.dataEnded || u.dataBehind
	}
}

// skips records that u, at the head, has failed in one of its extended messages: the server
// skips the Query that should have ended it.
func (fw *forwarder) skips(u *unit) {
	for u.byQuery && !u.open {
		if _, ok := fw.rejoin(u); !ok {
			return
		}
	}
}

// rejoin joins the unit behind u, which is at the head and was ended, to u, because
// what should have ended u did not. If there is none, u is open again. It reports whether that
// unit had messages besides its Sync, and whether they could be joined.
func (fw *forwarder) rejoin(u *unit) (more, ok bool) {
	c := fw.c
	b := c.link
	u.byQuery, u.dataBehind = false, false
	if b.Depth() == 1 {
		u.open, c.cur = true, u
		return false, true
	}
	v := b.Units()[1]
	if v.kind != unitClient || v.c != c {
		b.Cut(errors.New("a question of weir's own met a COPY, or a message that the server skips"))
		return false, false
	}
	b.Withdraw(1)
	more = v.byQuery || v.statements > 0 || len(v.exp) > 0
	if v.flushedTo > 0 {
		u.flushedTo = len(u.exp) + v.flushedTo
	}
	for _, n := range v.lends {
		n.at += len(u.exp)
		u.lends = append(u.lends, n)
	}
	u.exp, u.parsed, u.sets, u.reached = append(u.exp, v.exp...), append(u.parsed, v.parsed...), append(u.sets, v.sets...), append(u.reached, v.reached...)
	u.effects |= v.effects
	u.statements += v.statements
	u.lastNum = max(u.lastNum, v.lastNum)
	u.named = max(u.named, v.named)
	u.ends, u.resets, u.numbers, u.hides = u.ends || v.ends, u.resets || v.resets, u.numbers || v.numbers, u.hides || v.hides
	u.unsettles, u.probe = u.unsettles || v.unsettles, u.probe || v.probe
	if v.frees != "" {
		u.frees = v.frees
	}
	if v.barrier && u.barrier {
		fw.barriers--
	}
	u.barrier = u.barrier || v.barrier
	u.byQuery, u.dataBehind, u.open = v.byQuery, v.dataBehind, v.open
	if c.cur == v {
		c.cur = u
	}
	c.stats.units--
	c.l.recycle(v)
	return more, true
}

// concluded records that the server has answered u, whether or not its client has ended it.
func (fw *forwarder) concluded(b *backend, u *unit) {
	if fw.c.cur == u {
		u.open, fw.c.cur = false, nil // a COPY that failed before the Sync that should have been ignored
	} else if u.ignored && u.failed {
		// It is unknown whether the COPY failed before the server reached that Sync, which the
		// server would then answer separately.
		b.Doomed = true
	}
}

// skipped passes on what the server skips: everything after a message that failed, up to
// the Sync.
func (fw *forwarder) skipped(typ byte) bool {
	u := fw.c.cur
	return u != nil && u.failed && (typ == pgwire.ClientQuery || typ == pgwire.ClientFunction)
}
