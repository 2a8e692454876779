package mysql

import (
	"iter"
	"strings"

	"github.com/weirdb/weir/internal/proxy/sqlscan/myscan"
)

// noteLocks records the calls of GET_LOCK and related functions in a text. weir needs the names
// only to find out whether a lock is still held: if a name is no plain literal, the pin lasts
// until RELEASE_ALL_LOCKS.
func (ps *pins) noteLocks(u *unit, sql string) {
	folded := upper(sql)
	switch {
	case releasesAll(folded):
		u.change |= changeReleaseAll
	case strings.Contains(folded, "RELEASE_LOCK"), strings.Contains(folded, "RELEASE_ALL_LOCKS"):
		u.change |= changeReleaseOne // if it is called at all
	}
	for name := range lockNames(sql, folded) {
		if len(ps.locks) >= maxLocks {
			return
		}
		ps.locks = append(ps.locks, strings.Clone(name))
	}
}

const getLock = "GET_LOCK"

// releasesAll reports whether a text only calls RELEASE_ALL_LOCKS. In any other text the call
// may not be executed.
func releasesAll(folded string) bool {
	switch strings.Join(strings.Fields(strings.TrimRight(folded, "; \t\r\n")), "") {
	case "SELECTRELEASE_ALL_LOCKS()", "DORELEASE_ALL_LOCKS()":
		return true
	}
	return false
}

// lockNames yields the first argument of each GET_LOCK in a text, or "" for one that is no
// plain literal. folded is upper of the text: only the case of ASCII letters differs, so
// offsets are the same in both. That is not true of strings.ToLower, after which other letters,
// and invalid UTF-8, have another number of bytes.
func lockNames(sql, folded string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for at := 0; ; {
			i := strings.Index(folded[at:], getLock)
			if i < 0 {
				return
			}
			at += i + len(getLock)
			name := ""
			arg := strings.TrimLeft(sql[at:], " \t\r\n(")
			if len(arg) > 1 && arg[0] == '\'' {
				if end := strings.IndexByte(arg[1:], '\''); end >= 0 && !strings.ContainsRune(arg[1:1+end], '\\') && strings.HasPrefix(strings.TrimLeft(arg[2+end:], " \t\r\n"), ",") {
					name = arg[1 : 1+end]
				}
			}
			if !yield(name) {
				return
			}
		}
	}
}

// A tableLock is a kind of lock under pinTableLock, by what ends it.
type tableLock uint8

const (
	lockedTables tableLock = 1 << iota // LOCK TABLES: UNLOCK TABLES, or the next transaction
	lockedServer                       // FLUSH TABLES WITH READ LOCK: UNLOCK TABLES
	lockedBackup                       // BACKUP, LOCK INSTANCE: the session's end, as far as weir tracks it
)

// noteTableLocks records what a statement may lock.
func (ps *pins) noteTableLocks(info *myscan.Statement) {
	switch {
	case info.Count != 1:
		ps.tableLocks |= lockedBackup
	case info.Verb == myscan.VerbLock && info.Effects.Has(myscan.EffImplicitCommit):
		ps.tableLocks |= lockedTables
	case info.Verb == myscan.VerbAdmin:
		ps.tableLocks |= lockedServer
	default:
		ps.tableLocks |= lockedBackup
	}
}

// tablesUnlocked removes the pin when no lock is left.
func (ps *pins) tablesUnlocked(which tableLock) {
	if ps.tableLocks &^= which; ps.tableLocks == 0 {
		ps.held &^= pinTableLock
	}
}

// maxLocks bounds the names that weir tracks; a session with more keeps its pin.
const maxLocks = 16

// askLocks queries whether the session still holds a lock.
func (ps *pins) askLocks() {
	c := ps.c
	if ps.held&pinLock == 0 || len(ps.locks) == 0 || len(ps.locks) >= maxLocks {
		return
	}
	var b strings.Builder
	b.WriteString("SELECT CONNECTION_ID() IN (0")
	for _, name := range ps.locks {
		if name == "" {
			return
		}
		b.WriteString(", COALESCE(IS_USED_LOCK(" + lockLiteral(name) + "), 0)")
	}
	b.WriteString(")")
	link := c.link
	c.settings.keepingWarnings(link, func() {
		c.state.enter(stateAsking)
		link.ask(b.String(), func(u *unit) {
			c.state.leave(stateAsking)
			if rows := u.result(c.p.key.caps); len(rows) == 1 && string(rows[0][0]) == "0" {
				ps.held &^= pinLock
				ps.locks = ps.locks[:0]
			}
			c.resume()
		})
	})
}

func lockLiteral(name string) string { return "'" + strings.ReplaceAll(name, "'", "''") + "'" }
