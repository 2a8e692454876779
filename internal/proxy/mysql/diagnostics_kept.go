package mysql

import (
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// This file has what a client that reads diagnostics keeps: its connection, until others want
// it, and then the answer to its question; see diagnostics.go.

const (
	showWarnings    = "SHOW WARNINGS"
	selectRowCount  = "SELECT ROW_COUNT()"
	selectFoundRows = "SELECT FOUND_ROWS()"
)

func isShowWarnings(sql string) bool { return saysOnly(sql, showWarnings) }

// asksForRows reports whether a text reads only a number of rows of the last statement.
func asksForRows(sql string) bool {
	return saysOnly(sql, selectRowCount) || saysOnly(sql, selectFoundRows)
}

func saysOnly(sql, what string) bool {
	return strings.EqualFold(strings.Join(strings.Fields(strings.TrimRight(strings.TrimSpace(sql), ";")), " "), what)
}

// asked records that the client reads diagnostics. For warnings alone, or one number of rows in
// the same words each time, it need not keep its connection.
func (dg *diagnostics) asked(cmd byte, sql string) {
	c := dg.c
	switch plain := cmd == mywire.ComQuery && c.l.cfg.Mode == session.ModeAuto; {
	case plain && isShowWarnings(sql):
		dg.asks = true
	case plain && sql == dg.asksRows:
	case plain && dg.asksRows == "" && len(sql) <= maxQuestion && asksForRows(sql):
		dg.asksRows = strings.Clone(sql)
	default:
		c.pins.add(pinDiag)
	}
}

// alone reports whether the client's statements run beside no others, so that it can read their
// diagnostics.
func (dg *diagnostics) alone() bool { return dg.asks || dg.asksRows != "" }

// rowsOn reports whether the last statement has left the number of rows on a connection that
// the client reads.
func (dg *diagnostics) rowsOn(b *backend) bool {
	l := &dg.last
	if dg.asksRows == "" || l.spread || l.on != b {
		return false
	}
	return saysOnly(dg.asksRows, selectRowCount) && !l.probed || saysOnly(dg.asksRows, selectFoundRows) && l.found == b
}

// leftOn reports whether the last statement has left diagnostics on a connection that the
// client may read.
func (dg *diagnostics) leftOn(b *backend) bool {
	return b.lastUser == dg.c && (dg.last.leftOn(b) || dg.rowsOn(b))
}

// keepsBackend reports whether the client keeps its backend only because it may ask why its
// last statement failed: until others wait, or until the warnings are fetched.
func (dg *diagnostics) keepsBackend() bool {
	c := dg.c
	switch {
	case !dg.leftOn(c.link) || c.l.cfg.Mode != session.ModeAuto || c.draining:
		return false
	case !c.p.soft.wanted():
		dg.last.soft = true
		c.p.soft.add(c)
		return true
	case dg.alone():
		dg.fetch(nil)
		return true
	}
	return false
}

// softDiagnostics are the clients that may keep a backend only for their diagnostics.
type softDiagnostics struct {
	p       *pool
	clients []*client
}

// wanted reports whether such a backend is needed: others wait, here or in a pool that is to
// get a connection from this one, or the pool is paused.
func (so *softDiagnostics) wanted() bool {
	p := so.p
	return len(p.Excl) > 0 || len(p.Reads) > 0 || p.Paused || p.ConnManager().Owes()
}

// reclaim takes back backends that clients keep only for their diagnostics, if they are wanted.
func (so *softDiagnostics) reclaim() {
	if len(so.clients) == 0 || !so.wanted() {
		return
	}
	for _, c := range so.clients {
		if c.diag.softIn != so.p {
			continue // it has moved to another pool
		}
		c.diag.softIn = nil
		if c.diag.last.soft && c.link != nil && c.cur == nil && !c.state.asking() && !c.s.Closed {
			c.diag.fetch(nil)
		}
	}
	so.clients = so.clients[:0]
}

// add adds a client that may keep a backend only for its diagnostics. From time to time it
// removes those that no longer do.
func (so *softDiagnostics) add(c *client) {
	if c.diag.softIn == so.p {
		return
	}
	c.diag.softIn = so.p
	if len(so.clients) >= 2*len(so.p.Backends)+16 {
		so.clients = slices.DeleteFunc(so.clients, func(other *client) bool {
			switch {
			case other == c || other.diag.softIn != so.p:
				return true
			case other.diag.last.soft && !other.s.Closed:
				return false
			}
			other.diag.softIn = nil
			return true
		})
	}
	so.clients = append(so.clients, c)
}

// leftOn reports whether the last statement has left diagnostics on a connection.
func (l *lastStatement) leftOn(b *backend) bool {
	return l.left() && !l.spread && l.on == b
}

// fetch queries the warnings of the last statement, or the number of rows that the client reads,
// so that the backend can be used for other statements, and then calls then unless it is nil. If
// the connection is lost meanwhile, so is the session, for then was to ask for a part of its state.
// Warnings that are too long to keep stay on the connection, and so does a client that reads
// them, or both warnings and rows: to query the one overwrites the other.
func (dg *diagnostics) fetch(then func()) {
	c := dg.c
	b := c.link
	question := showWarnings
	switch warned, rows := dg.last.leftOn(b), dg.rowsOn(b); {
	case b.lastUser != c || !warned && !rows:
		dg.last.soft, dg.last.spread = false, true // overwritten
		c.quietSoon()
		return
	case rows && warned && dg.asks && then == nil:
		dg.last.soft = false
		c.pins.add(pinDiag)
		return
	case rows && !(warned && dg.asks):
		question = dg.asksRows
	}
	c.state.enter(stateAsking)
	asked := b.ask(question, func(u *unit) {
		c.state.leave(stateAsking)
		dg.last.soft = false
		dg.last.spread = true
		switch at := len(u.resp) - b.answer.Tail(); {
		case u.err != nil:
		case u.bytes <= u.most && at >= 0:
			// The client does not see the session state of this answer.
			dg.last.stash = mywire.AppendEnd(append([]byte(nil), u.resp[:at]...), u.resp[at+3], c.caps, &u.ok)
			dg.last.stashOf = question
			dg.last.stashWarnings = u.ok.Warnings
		case dg.asks:
			c.pins.add(pinDiag)
			if then == nil && b.Depth() == 0 {
				// Nothing has overwritten them, only the numbers of rows.
				b.lastUser, dg.last.spread, dg.last.probed, dg.last.found = c, false, true, nil
			}
		}
		switch {
		case then == nil:
		case b.s.Closed:
			c.pins.add(pinSet) // what then would have asked for is lost with the connection
		default:
			then()
		}
		c.resume()
	})
	asked.most = maxStash
}

// maxQuestion bounds the question for a number of rows that weir keeps for a client, in bytes.
const maxQuestion = 64

// maxStash bounds the warnings that weir keeps for a client, in bytes.
const maxStash = 64 << 10
