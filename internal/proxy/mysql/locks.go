package mysql

import "strings"

// noteLocks takes note of GET_LOCK and its relatives in a text. The names of
// locks matter only for finding out whether one is still held: where one is no
// plain literal, the pin lasts until RELEASE_ALL_LOCKS.
func (c *client) noteLocks(u *unit, sql string) {
	const unnamed = ""
	lower := strings.ToLower(sql)
	if strings.Contains(lower, "release_all_locks") {
		u.change |= changeReleaseAll
	}
	if strings.Contains(lower, "release_lock") {
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
			if end := strings.IndexByte(arg[1:], '\''); end >= 0 && !strings.ContainsRune(arg[1:1+end], '\\') && !strings.HasPrefix(arg[2+end:], "'") {
				name = arg[1 : 1+end]
			}
		}
		if len(c.locks) < maxLocks {
			c.locks = append(c.locks, strings.Clone(name))
		}
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
