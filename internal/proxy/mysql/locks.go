package mysql

import (
	"strings"

	"github.com/weirdb/weir/internal/proxy/sqlscan/myscan"
)

// noteLocks takes note of GET_LOCK and its relatives in a text. The names of
// locks matter only for finding out whether one is still held: where one is no
// plain literal, the pin lasts until RELEASE_ALL_LOCKS.
func (c *client) noteLocks(u *unit, sql string) {
	const unnamed = ""
	lower := strings.ToLower(sql)
	switch takes := strings.Contains(lower, "get_lock"); {
	case strings.Contains(lower, "release_all_locks") && !takes:
		u.change |= changeReleaseAll
	case strings.Contains(lower, "release_lock"), strings.Contains(lower, "release_all_locks"):
		u.change |= changeReleaseOne
	}
	for rest := lower; ; {
		i := strings.Index(rest, "get_lock")
		if i < 0 {
			return
		}
		at := len(lower) - len(rest) + i + len("get_lock")
		rest = lower[at:]
		name := unnamed
		arg := strings.TrimLeft(sql[at:], " \t\r\n(")
		if len(arg) > 1 && arg[0] == '\'' {
			if end := strings.IndexByte(arg[1:], '\''); end >= 0 && !strings.ContainsRune(arg[1:1+end], '\\') && strings.HasPrefix(strings.TrimLeft(arg[2+end:], " \t\r\n"), ",") {
				name = arg[1 : 1+end]
			}
		}
		if len(c.locks) < maxLocks {
			c.locks = append(c.locks, strings.Clone(name))
		}
	}
}

// A tableLock is a kind of lock under pinTableLock, by what ends it.
type tableLock uint8

const (
	lockedTables tableLock = 1 << iota // LOCK TABLES: UNLOCK TABLES, or the next transaction
	lockedServer                       // FLUSH TABLES WITH READ LOCK: UNLOCK TABLES
	lockedBackup                       // BACKUP, LOCK INSTANCE: the session's end, as far as weir cares
)

// noteTableLocks takes note of what a statement may lock.
func (c *client) noteTableLocks(info *myscan.Statement) {
	switch {
	case info.Count != 1:
		c.tableLocks |= lockedBackup
	case info.Verb == myscan.VerbLock && info.Effects.Has(myscan.EffImplicitCommit):
		c.tableLocks |= lockedTables
	case info.Verb == myscan.VerbAdmin:
		c.tableLocks |= lockedServer
	default:
		c.tableLocks |= lockedBackup
	}
}

// tablesUnlocked drops the pin when the last lock has gone.
func (c *client) tablesUnlocked(which tableLock) {
	if c.tableLocks &^= which; c.tableLocks == 0 {
		c.pins &^= pinTableLock
	}
}

// maxLocks bounds the names that are asked about; a session with more keeps its
// pin.
const maxLocks = 16

// askLocks asks the server whether the session still holds a lock.
func (c *client) askLocks() {
	if c.pins&pinLock == 0 || len(c.locks) == 0 || len(c.locks) >= maxLocks {
		return
	}
	var b strings.Builder
	b.WriteString("SELECT CONNECTION_ID() IN (0")
	for _, name := range c.locks {
		if name == "" {
			return
		}
		b.WriteString(", COALESCE(IS_USED_LOCK(" + lockLiteral(name) + "), 0)")
	}
	b.WriteString(")")
	c.probing = true
	c.link.ask(b.String(), func(u *unit) {
		c.probing = false
		if rows := u.result(c.p.key.caps); len(rows) == 1 && string(rows[0][0]) == "0" {
			c.pins &^= pinLock
			c.locks = c.locks[:0]
		}
		c.resume()
	})
}

func lockLiteral(name string) string { return "'" + strings.ReplaceAll(name, "'", "''") + "'" }
