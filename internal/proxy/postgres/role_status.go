package postgres

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

// A roleStatus is what the server's catalogue says about a role and a database at one
// moment. The zero value is that of a server that has no such catalogue.
type roleStatus struct {
	role     bool // there is such a role
	database bool // there is such a database
	login    bool // LOGIN
	connect  bool // CONNECT on the database
	open     bool // the database takes connections
	expired  bool // VALID UNTIL has passed
	// noRole and noDatabase: CONNECTION LIMIT of the role, or of the database, is 0 and applies to
	// the role.
	noRole, noDatabase bool

	// sees: secret is the stored password; otherwise it is the result of the auth query, if
	// there is one.
	sees   bool
	secret pgwire.Secret

	// mark changes whenever the server may decide a login differently, or begin a session
	// differently; "" if unknown. same is the same without load, the last known time at which
	// the server read its files: sessions notice that one after the other.
	mark, same, load string

	// id is the OID of the role, which stays when it is renamed, and begins the settings
	// with which its sessions begin. Connections keep those with which they were opened.
	// server is the server's start time. weir asked no earlier, and heard it no later.
	server, id, begins string

	asked, heard time.Time
}

// roleStatusSQL asks for a role status. Logins wait for its answer, so it must be cheap: the
// answer is binary, and what does not change while the server runs is asked only once per
// connection. It has everything that can change the server's decision: a role that was
// dropped and created again, its limits and memberships (which pg_hba.conf may name), the
// defaults of its sessions, and the server's last reading of its files.
const roleStatusSQL = `SELECT r.oid, d.oid, coalesce(r.rolcanlogin, false),
 coalesce(pg_catalog.has_database_privilege(r.oid, d.oid, 'CONNECT'), false), coalesce(d.datallowconn, false),
 coalesce(r.rolvaliduntil <= pg_catalog.now(), false), %s, pg_catalog.pg_conf_load_time(),
 ARRAY(SELECT pg_catalog.concat_ws('/', s.setdatabase, s.setrole, s.setconfig)
  FROM pg_catalog.pg_db_role_setting s WHERE s.setdatabase IN (0, d.oid) AND s.setrole IN (0, r.oid) ORDER BY s.setdatabase, s.setrole),
 r.rolsuper, r.rolvaliduntil, r.rolconnlimit, d.datconnlimit, pg_catalog.pg_is_in_recovery(),
 ARRAY(SELECT m.roleid FROM pg_catalog.pg_auth_members m WHERE m.member = r.oid ORDER BY m.roleid)
 FROM (VALUES (1)) one LEFT JOIN pg_catalog.%s r ON r.rolname = $1 LEFT JOIN pg_catalog.pg_database d ON d.datname = $2`

// The named columns of the answer, and their number.
const (
	statusRole = iota
	statusDatabase
	statusLogin
	statusConnect
	statusOpen
	statusExpired
	statusSecret
	statusLoaded // when the answering session last read the server's files, in microseconds
	statusBegins
	statusSuper
	statusUntil
	statusRoleLimit
	statusDatabaseLimit
	statusColumns = 15
)

// roleStatusQuery returns the query for a session that sees the stored passwords, or
// does not.
func roleStatusQuery(sees bool) string {
	if sees {
		return fmt.Sprintf(roleStatusSQL, "r.rolpassword", "pg_authid")
	}
	return fmt.Sprintf(roleStatusSQL, "NULL::pg_catalog.text", "pg_roles")
}

// parseRoleStatus parses the answer of a session that sees the stored passwords, or
// does not. server is when its server started.
func parseRoleStatus(row [][]byte, sees bool, server string) (st roleStatus, err error) {
	if len(row) != statusColumns {
		return st, fmt.Errorf("query the status of a role: the answer has %d columns", len(row))
	}
	is := func(i int) bool { return len(row[i]) == 1 && row[i][0] == 1 }
	st = roleStatus{
		role: row[statusRole] != nil, database: row[statusDatabase] != nil,
		login: is(statusLogin), connect: is(statusConnect), open: is(statusOpen), expired: is(statusExpired), sees: sees,
		server: server, id: string(row[statusRole]), begins: string(row[statusDatabase]) + string(row[statusBegins]),
	}
	if !is(statusSuper) {
		none := func(i int) bool { return bytes.Equal(row[i], make([]byte, 4)) }
		st.noRole, st.noDatabase = none(statusRoleLimit), none(statusDatabaseLimit)
	}
	st.secret, err = pgwire.ParseSecret(string(row[statusSecret]))
	if _, plain := st.secret.Plain(); err != nil || plain {
		// The form is unknown: the server may know what to do with it.
		st.secret, st.sees = pgwire.Secret{}, false
	}
	st.same, st.load = server, string(row[statusLoaded])
	row[statusLoaded] = nil
	st.marks(row)
	return st, nil
}

// marks adds to the mark.
func (st *roleStatus) marks(row [][]byte) {
	all := binary.AppendUvarint(nil, uint64(len(st.same)))
	all = append(all, st.same...)
	for _, v := range row {
		all = binary.AppendUvarint(all, uint64(len(v)))
		all = append(all, v...)
	}
	sum := sha256.Sum256(all) // so that no secret is kept only to compare it
	st.same = string(sum[:])
	st.mark = st.same + st.load
}

// found processes the answer to the auth query. The secret of a user who is not found
// is the zero one, which fails like a wrong password.
func (st *roleStatus) found(row [][]byte) (err error) {
	st.secret = pgwire.Secret{}
	if len(row) != 0 && len(row) != 2 {
		return fmt.Errorf("the auth query returned %d columns; want name and secret", len(row))
	}
	if len(row) == 2 {
		if st.secret, err = pgwire.ParseSecret(string(row[1])); err != nil {
			return err
		}
	}
	if st.mark != "" {
		st.sees = true
		st.marks(row)
	}
	return nil
}

// refusal is the server's own error to a login, nil if it would accept it. byPassword
// means that the client has shown a password: VALID UNTIL applies only then, as in
// the server.
func (st *roleStatus) refusal(key poolKey, byPassword bool) *pgwire.Error {
	switch {
	case st == nil || st.mark == "":
		return nil
	case !st.role:
		return pgwire.NewFatal(pgwire.CodeInvalidAuthorization, "role %q does not exist", key.user)
	case st.expired && byPassword:
		return pgwire.NewFatal(pgwire.CodeInvalidPassword, "password authentication failed for user %q", key.user)
	case !st.login:
		return pgwire.NewFatal(pgwire.CodeInvalidAuthorization, "role %q is not permitted to log in", key.user)
	case st.noRole:
		return pgwire.NewFatal(pgwire.CodeTooManyConnections, "too many connections for role %q", key.user)
	case !st.database:
		return pgwire.NewFatal(pgwire.CodeInvalidDatabase, "database %q does not exist", key.database)
	case !st.open:
		return pgwire.NewFatal(pgwire.CodeObjectState, "database %q is not currently accepting connections", key.database)
	case !st.connect:
		e := pgwire.NewFatal(pgwire.CodeInsufficientPrivilege, "permission denied for database %q", key.database)
		e.Detail = "User does not have CONNECT privilege."
		return e
	case st.noDatabase:
		return pgwire.NewFatal(pgwire.CodeTooManyConnections, "too many connections for database %q", key.database)
	}
	return nil
}

const (
	// verdictKeep is how long the server's decision about a login remains valid if weir
	// sees no change: it cannot see who stands behind a name in
	// pg_hba.conf.
	verdictKeep = time.Minute
	// verdictKeepBlind is the same if weir does not see the stored
	// password, or nothing at all.
	verdictKeepBlind = time.Second
	// maxVerdicts bounds what is remembered. A name is no longer than a startup packet.
	maxVerdicts = 4096
)

// verdicts remember the server's decisions about logins, by user and database. Safe for
// concurrent use.
type verdicts struct {
	mu   sync.Mutex
	seen map[poolKey]verdict // guarded by mu
}

// A verdict is the server's last decision about a login.
type verdict struct {
	mark    string            // of the role's status then
	method  pgwire.AuthMethod // what it asked for
	asked   time.Time
	granted time.Time // when it last let the user in, if it has
}

// methodOf is the method that the server asks the user for, "" if it is unknown.
func (v *verdicts) methodOf(key poolKey, st *roleStatus, now time.Time) pgwire.AuthMethod {
	v.mu.Lock()
	defer v.mu.Unlock()
	if have, ok := v.seen[key]; ok && have.mark == st.mark && now.Sub(have.asked) < verdictKeep {
		return have.method
	}
	return ""
}

// granted reports whether the server has let the user in recently, and nothing has
// changed since. st is nil if there is no role status.
func (v *verdicts) granted(key poolKey, st *roleStatus, now time.Time) bool {
	keep, mark := verdictKeepBlind, ""
	if st != nil {
		mark = st.mark
		if st.sees {
			keep = verdictKeep
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	have, ok := v.seen[key]
	return ok && have.mark == mark && !have.granted.IsZero() && now.Sub(have.granted) < keep
}

// note records the method that the server has asked for, if known, and whether it has let
// the user in. changed reports that sessions may now begin differently than before.
func (v *verdicts) note(key poolKey, st *roleStatus, method pgwire.AuthMethod, granted bool, now time.Time) (changed bool) {
	mark := ""
	if st != nil {
		mark = st.mark
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	have, ok := v.seen[key]
	if !ok && len(v.seen) >= maxVerdicts {
		v.seen = nil
	}
	if v.seen == nil {
		v.seen = make(map[poolKey]verdict)
	}
	if changed = !ok || have.mark != mark; changed {
		have = verdict{mark: mark}
		key = poolKey{database: strings.Clone(key.database), user: strings.Clone(key.user)}
	}
	if method != "" {
		have.method, have.asked = method, now
	}
	if granted {
		have.granted = now
	}
	v.seen[key] = have
	return changed
}

// refute forgets that the server lets the user in.
func (v *verdicts) refute(key poolKey) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.seen, key)
}
