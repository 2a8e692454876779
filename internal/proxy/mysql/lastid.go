package mysql

import (
	"strconv"
	"strings"

	"github.com/weirdb/weir/internal/mywire"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/sqlscan/myscan"
)

// This file keeps right what a statement may ask of the one before:
// LAST_INSERT_ID(), SHOW WARNINGS, ROW_COUNT() and FOUND_ROWS() belong to the
// connection on the server, while a client of weir changes connections.
//
// The id is kept by weir: where an answer tells it for certain, from the answer;
// where it does not (an INSERT with an explicit id answers with that id, but
// leaves LAST_INSERT_ID() alone) it stays on the connection until somebody else
// is to write there, and is then asked for. A statement that reads it finds it
// set before.
//
// The diagnostics stay on the connection. A client whose statement failed or
// left warnings keeps it until its next command, unless others wait: then weir
// fetches the warnings. A client that asks for diagnostics keeps its connection
// from then on. The one thing that cannot be had, counts that are already
// overwritten, is refused and never made up.

// lastStatement is what the session's last statement left.
type lastStatement struct {
	id       uint64   // LAST_INSERT_ID(), unless where
	where    *backend // alone knows it: its inserter is the client
	warnings uint16
	failed   bool
	spread   bool   // ran beside those of others: its diagnostics are gone
	stash    []byte // the answer to SHOW WARNINGS, fetched
	soft     bool   // the client keeps its backend for SHOW WARNINGS alone
}

// clear is for commands that leave no diagnostics.
func (l *lastStatement) clear() {
	l.warnings, l.failed, l.spread, l.stash = 0, false, false, nil
}

// setID is for a session that says what the id is.
func (l *lastStatement) setID(id uint64) { l.id, l.where = id, nil }

// note takes note of a statement that ran on the client's own backend.
func (l *lastStatement) note(u *unit) {
	if u.effects.Has(myscan.EffDiag) && u.verb == myscan.VerbShow {
		return // SHOW WARNINGS leaves what it shows
	}
	l.clear()
	l.warnings = u.ok.Warnings
	switch {
	case u.effects.Has(myscan.EffSetLastID | myscan.EffUnknownFunc | myscan.EffUnknown | myscan.EffMulti):
		l.where = u.c.link
	case u.ok.LastInsertID == 0:
	case u.generated:
		l.setID(u.ok.LastInsertID)
	default:
		l.where = u.c.link
	}
}

// fail takes note of one that failed there. It may have set the id.
func (l *lastStatement) fail(u *unit) {
	l.clear()
	l.failed = true
	if u.effects.Has(myscan.EffWrites | myscan.EffUnknown | myscan.EffUnknownFunc | myscan.EffSetLastID) {
		l.where = u.c.link
	}
}

// shared takes note of a statement that ran beside those of others.
func (l *lastStatement) shared(u *unit) {
	l.clear()
	l.warnings, l.failed, l.spread = u.ok.Warnings, u.failed, true
	if u.failed {
		l.warnings = 1
	}
	if l.warnings > 0 && u.shape != nil && !u.failed {
		u.shape.KeepAlone() // so that the warnings can be had the next time
	}
}

// grouped takes note of a write that ran in a group; id is what the client was
// told.
func (l *lastStatement) grouped(u *unit, id uint64, warnings uint16) {
	l.shared(u)
	l.warnings = warnings
	if id != 0 {
		l.setID(id)
	}
}

// forgetDiagnostics is for an error of weir's own.
func (c *client) forgetDiagnostics(*mywire.Error) {
	c.last.clear()
	c.last.failed, c.last.spread = true, true
}

// keepLastID leaves the client's id on a backend that it gives back, if that
// alone knows it.
func (c *client) keepLastID(b *backend) {
	if c.last.where == b {
		b.inserter = c
	} else if b.inserter == c {
		b.inserter = nil
	}
}

// yieldID asks for the id that only this connection knows, before somebody else
// than its client writes here.
func (b *backend) yieldID(to *client) {
	c := b.inserter
	if c == nil || c == to {
		return
	}
	b.inserter = nil
	if c.s.Closed {
		return
	}
	b.ask("SELECT LAST_INSERT_ID()", func(u *unit) {
		if c.last.where != b {
			return // it has another one by now
		}
		c.last.where = nil
		if rows := u.result(b.p.key.caps); len(rows) == 1 {
			c.last.id = parseUint(rows[0][0])
		}
		c.resume()
	})
}

// prepareDiagnostics sees to it that a statement about to run on the client's
// backend finds what it may ask about the session's last one. It reports false
// if the client has to wait.
func (c *client) prepareDiagnostics(info *myscan.Statement) (ready bool) {
	b := c.link
	if info.Effects.Has(myscan.EffLastID) && b.inserter != c && c.last.where != b {
		if w := c.last.where; w != nil {
			if w.mode == modeFree && !w.s.Closed {
				c.p.free = without(c.p.free, w)
				w.mode = modeOwn
			}
			w.yieldID(nil) // if nobody has made it yield already
			return false   // resumed when it is known
		}
		b.ask("SET SESSION last_insert_id="+strconv.FormatUint(c.last.id, 10), func(u *unit) {
			b.doomed = b.doomed || u.err != nil
		})
	}
	return true
}

// refusesDiagnostics answers a question about the last statement that nobody can
// answer any more, or that weir can answer itself, and reports whether it did.
func (c *client) refusesDiagnostics(sql string, info *myscan.Statement) bool {
	if info.Effects.Has(myscan.EffSequenceRead) && c.sequences && (c.link == nil || c.link.sequencer != c) && c.pins&pinSequence == 0 {
		c.p.keepSequences = true
		c.refuseHere(gone("the last value of the sequence"))
		return true
	}
	if !info.Effects.Has(myscan.EffDiag) {
		return false
	}
	if c.link != nil && c.link.lastUser == c {
		return false
	}
	l := &c.last
	switch {
	case l.stash != nil && isShowWarnings(sql):
		c.reply(l.stash)
		return true
	case l.warnings == 0 && !l.failed && info.Verb == myscan.VerbShow:
		if c.link != nil {
			c.link.ask("DO 0", func(*unit) {}) // whose warnings are there?
		}
		return false
	case c.link == nil && c.served != nil && c.served.lastUser == c && c.served.mode == modeFree && !c.served.s.Closed:
		return false // still there; take prefers it
	}
	c.addPins(pinDiag)
	c.refuseHere(gone("what the last statement left"))
	return true
}

// gone is the error for those who ask for what was overwritten.
func gone(what string) *mywire.Error {
	return mywire.NewError(mywire.ErrNotSupportedYet,
		"weir: %s was not kept, for its connection has served others since; from now on such sessions keep their connection: run both statements again, or use --mode session", what)
}

func isShowWarnings(sql string) bool {
	return strings.EqualFold(strings.Join(strings.Fields(strings.TrimRight(strings.TrimSpace(sql), ";")), " "), "show warnings")
}

// keepsForDiagnostics tells whether the client keeps its backend only because it
// may ask why its last statement failed.
func (c *client) keepsForDiagnostics() bool {
	return (c.last.warnings > 0 || c.last.failed) && !c.last.spread && c.l.srv.cfg.Mode == session.ModeAuto &&
		len(c.p.excl) == 0 && len(c.p.reads) == 0 && !c.draining
}

// reclaim takes backends back that clients keep for their diagnostics alone,
// when others wait.
func (p *pool) reclaim() {
	if len(p.soft) == 0 || (len(p.excl) == 0 && len(p.reads) == 0) {
		return
	}
	for _, c := range p.soft {
		if c.last.soft && c.link != nil && c.cur == nil && !c.probing && !c.s.Closed {
			c.fetchWarnings()
		}
	}
	p.soft = p.soft[:0]
}

// fetchWarnings asks for the warnings of the last statement, and then gives the
// backend back.
func (c *client) fetchWarnings() {
	c.probing = true
	b := c.link
	b.ask("SHOW WARNINGS", func(u *unit) {
		c.probing, c.last.soft = false, false
		c.last.spread = true
		if at := len(u.resp) - b.answer.Tail(); u.err == nil && len(u.resp) <= maxStash && at >= 0 {
			// What the session's state was then is not for the client.
			c.last.stash = mywire.AppendEnd(append([]byte(nil), u.resp[:at]...), u.resp[at+3], c.caps, &u.ok)
		}
		c.resume()
	})
}

// maxStash bounds the warnings that are kept for a client, in bytes.
const maxStash = 64 << 10
