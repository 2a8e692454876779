package postgres

import (
	"strconv"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/proxy/session"
)

// facts are what a pool's backends have reported about the server and their user's rights.
type facts struct {
	known       bool
	at          time.Duration
	silent      bool          // it does not report changes of settings
	version     string        // server_version
	syncDefault string        // synchronous_commit by default
	lockDefault time.Duration // lock_timeout by default; 0: none
	canFlush    bool          // may call pg_logical_emit_message

	connections    int  // maximum of the server
	ownConnections int  // ... of the user, or of the database; 0: any number
	superuser      bool // no limit of those two applies to the user
}

// factsColumns is how many columns factsSQL has.
const factsColumns = 5

// factsSQL asks for the facts, without pg_settings and pg_proc, which would take the server
// more time than everything else here; so does pg_roles, which is not asked about a superuser.
// The function that flushes the log has a fourth argument from PostgreSQL 17 on, with a default.
var (
	factsSQL = factsOf(`(SELECT coalesce(pg_catalog.min(l.n), 0) FROM (SELECT rolconnlimit FROM pg_catalog.pg_roles WHERE rolname = session_user
  UNION ALL SELECT datconnlimit FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()) AS l(n) WHERE l.n > 0)`)
	superuserFactsSQL = factsOf("0")
)

func factsOf(limit string) string {
	return own(`SELECT pg_catalog.current_setting('lock_timeout'),
 pg_catalog.current_setting('synchronous_commit'),
 NOT pg_catalog.pg_is_in_recovery() AND coalesce(pg_catalog.has_function_privilege(coalesce(
  pg_catalog.to_regprocedure('pg_catalog.pg_logical_emit_message(pg_catalog.bool, pg_catalog.text, pg_catalog.text)'),
  pg_catalog.to_regprocedure('pg_catalog.pg_logical_emit_message(pg_catalog.bool, pg_catalog.text, pg_catalog.text, pg_catalog.bool)'))::pg_catalog.oid,
  'EXECUTE'), false),
 coalesce(pg_catalog.current_setting('max_connections', true)::pg_catalog.int4, 0)
  - coalesce(pg_catalog.current_setting('superuser_reserved_connections', true)::pg_catalog.int4, 0)
  - coalesce(pg_catalog.current_setting('reserved_connections', true)::pg_catalog.int4, 0),
 ` + limit)
}

// sql asks for the facts.
func (f *facts) sql() string {
	if f.superuser {
		return superuserFactsSQL
	}
	return factsSQL
}

// factsKeep is how old the facts may be while there are lanes: a reload of the
// server's configuration may have changed what a commit promises by default.
const factsKeep = 5 * time.Second

// learn records the answer. It returns false if the server has not
// answered: the lane that needs these facts stays off.
func (f *facts) learn(u *unit, now time.Duration) bool {
	f.known = true
	if u.err != nil || len(u.rows) != 1 {
		return false
	}
	f.at = now
	f.lockDefault, _ = readTimeout(string(u.rows[0][0]))
	f.syncDefault = string(u.rows[0][1])
	f.canFlush = string(u.rows[0][2]) == "t"
	f.connections, _ = strconv.Atoi(string(u.rows[0][3]))
	f.ownConnections, _ = strconv.Atoi(string(u.rows[0][4]))
	return true
}

// lockBound is how long a write may wait for a lock in its present turn, and
// whether that bound is weir's. If it is the client's own timeout, or what is left of
// it, the error that ends the wait is the client's, too.
func (f *facts) lockBound(set *session.Set, turn, waited time.Duration) (bound time.Duration, ours bool) {
	own, ok := f.lockTimeout(set)
	if !ok {
		return 0, false
	}
	if own > 0 && own-waited <= turn {
		return max(own-waited, time.Millisecond), false
	}
	return turn, true
}

// lockTimeout is lock_timeout in the given settings, 0 if there is none; ok is
// false if weir does not know it.
func (f *facts) lockTimeout(set *session.Set) (d time.Duration, ok bool) {
	own, has := set.Get("lock_timeout")
	if !has {
		return f.lockDefault, true
	}
	return readTimeout(own.Value)
}

// readTimeout reads a setting in milliseconds as SET, startup packets and the server spell it.
func readTimeout(value string) (time.Duration, bool) {
	v := strings.TrimSpace(value)
	if len(v) >= 2 && v[0] == '\'' && v[len(v)-1] == '\'' {
		v = strings.TrimSpace(v[1 : len(v)-1])
	}
	unit := time.Millisecond
	for _, u := range []struct {
		name string
		d    time.Duration
	}{{"ms", time.Millisecond}, {"us", time.Microsecond}, {"min", time.Minute}, {"s", time.Second}, {"h", time.Hour}, {"d", 24 * time.Hour}} {
		if strings.HasSuffix(v, u.name) {
			v, unit = strings.TrimSpace(strings.TrimSuffix(v, u.name)), u.d
			break
		}
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 0 {
		return 0, false
	}
	return time.Duration(n) * unit, true
}
