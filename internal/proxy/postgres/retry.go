package postgres

import (
	"strings"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file handles answers that the client never sees, because the unit runs again.

// shouldRetry reports whether weir itself has caused an error, so that the unit
// runs again and the client never sees the error. This is only possible for whole units of
// whose answers nothing was sent; the server has rolled back what they did.
func (b *backend) shouldRetry(u *unit, e *pgwire.Error) bool {
	c := u.c
	if c == nil || c.s.Closed || len(u.raw) == 0 || u.park || b.owner != nil || c.inflight != 1+len(c.again) {
		return false
	}
	if again, turnOver := u.turnOver(e); turnOver {
		return again
	}
	if u.retries >= 3 {
		return false
	}
	if u.wrote && c.responder.markSeq != c.s.Flushes {
		return false
	}
	switch e.Code {
	case pgwire.CodeUndefinedStatement, pgwire.CodeDuplicateStatement:
		return missing(e)
	case pgwire.CodeFeatureNotSupported:
		if !strings.Contains(e.Message, "cached plan") {
			return false
		}
		return u.renewStatements()
	case pgwire.CodeQueryCanceled:
		return b.hazard && c.responder.cancelled != u
	}
	return false
}

// missing reports whether an error means that a statement under weir's name was lost, for
// instance by DISCARD in a function, or still exists.
func missing(e *pgwire.Error) bool {
	return (e.Code == pgwire.CodeUndefinedStatement || e.Code == pgwire.CodeDuplicateStatement) && strings.Contains(e.Message, srvPrefix)
}

// renewStatements replaces the statements that this unit itself parsed, after
// the server refused a plan because the schema had changed. It returns false if
// the client relies on a statement from before: then the error is the answer,
// as it would be directly.
func (u *unit) renewStatements() bool {
	p := u.c.p
	own := false
	for i := range u.ops {
		if o := &u.ops[i]; o.kind == pgwire.ClientParse {
			own = true
			old := o.st
			fresh := p.stmts.replaceStale(old)
			for j := range u.ops {
				if u.ops[j].st == old {
					u.ops[j].st = fresh
				}
			}
			u.c.stmts.replace(old, fresh)
		}
	}
	if !own {
		for i := range u.ops {
			if st := u.ops[i].st; st != nil {
				p.stmts.replaceStale(st)
			}
		}
	}
	return own
}
