package mysql

import (
	"fmt"

	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// backendStmts are the statements that are prepared on a backend.
type backendStmts struct {
	b         *backend
	prepared  map[*stmt]*instance
	textBytes int // of the prepared statements' texts
	useSeq    uint64
}

// An instance is a prepared statement on one backend.
type instance struct {
	id   uint32
	used uint64
}

// use marks a prepared statement as used, and returns its id on the backend.
func (k *backendStmts) use(st *stmt) uint32 {
	in := k.prepared[st]
	k.useSeq++
	in.used = k.useSeq
	return in.id
}

// learn prepares a statement, and makes room for it.
func (k *backendStmts) learn(st *stmt, done func(err *mywire.Error)) {
	k.makeRoom(st)
	k.prepareAway(st, func(u *unit) {
		if u.err == nil {
			k.learned(st, u)
		}
		done(u.err)
	})
}

// prepareAway prepares a statement with the meaning that it had where its client prepared it:
// its names belong to the database of that time. If the session has another one by now, it
// switches there and back, in the settings that determine how a text is read and no others: a
// change of autocommit would commit the client's transaction.
func (k *backendStmts) prepareAway(st *stmt, done func(u *unit)) {
	b := k.b
	b.Doomed = b.Doomed || traces(st.sql, &st.info)
	away := readsOtherwise(st.set, b.set) && reachable(b.set, st.set, b.p.key.database)
	if away || !b.p.facts.mariadb { // whose PREPARE leaves numbers of rows and, without a table, warnings
		b.lastUser = nil
	}
	var astray *mywire.Error
	var there *session.Set
	if away {
		there = b.readingAs(st.set)
		b.visit(b.set, there, func(e *mywire.Error) { astray, b.Doomed = e, true })
	}
	b.hidden(mywire.ComStmtPrepare, func(u *unit) {
		if astray != nil {
			u.err, u.failed = astray, true // where it was prepared now, it means something else
		}
		done(u)
	}).st = st
	b.s.Out = mywire.AppendPrepare(b.s.OutBuf(), st.sql)
	if away {
		b.visit(there, b.set, func(e *mywire.Error) {
			if !b.s.Closed {
				b.fail(fmt.Errorf("restore the settings of a session: %w", e)) // the next command would run in other settings
			}
		})
	}
}

// learned records a prepared statement from the server's answer.
func (k *backendStmts) learned(st *stmt, u *unit) {
	b := k.b
	m, err := mywire.ParsePrepared(u.resp[mywire.HeaderLen:])
	if err != nil {
		b.fail(err) // cannot happen: the parser has checked the packet
		return
	}
	if old := k.prepared[st]; old != nil {
		b.s.Out = mywire.AppendStmtClose(b.s.OutBuf(), old.id)
		b.s.Touch()
	} else {
		k.textBytes += len(st.sql)
	}
	k.useSeq++
	k.prepared[st] = &instance{id: m.StmtID, used: k.useSeq}
	st.params = int(m.Params)
	st.answer, st.at = append(st.answer[:0], u.resp...), b.p.l.Now
}

// makeRoom closes statements that were not used for long, if there are too many or too long
// ones.
func (k *backendStmts) makeRoom(st *stmt) {
	if len(k.prepared) >= maxPrepared {
		k.evict()
	}
	for k.textBytes > 0 && k.textBytes+len(st.sql) > maxPreparedBytes {
		before := len(k.prepared)
		if k.evict(); len(k.prepared) == before {
			return
		}
	}
}

// evict closes the least recently used of a few statements.
func (k *backendStmts) evict() {
	b := k.b
	var victim *stmt
	oldest, seen := ^uint64(0), 0
	for st, in := range k.prepared {
		if in.used < oldest && !k.needed(st) {
			victim, oldest = st, in.used
		}
		if seen++; seen >= 16 && victim != nil {
			break
		}
	}
	if victim == nil {
		return
	}
	b.s.Out = mywire.AppendStmtClose(b.s.OutBuf(), k.prepared[victim].id)
	b.s.Touch()
	delete(k.prepared, victim)
	k.textBytes -= len(victim.sql)
}

// needed reports whether a lane is about to execute the statement here.
func (k *backendStmts) needed(st *stmt) bool { return k.b.lane != nil && k.b.lane.needs(st) }
