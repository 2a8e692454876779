package mysql

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/wire/mywire"
)

// This file handles accounts that cannot see triggers, which is most that can only read and
// write rows. If the DSN's user can see the triggers of all databases, weir reads them as that
// user. Otherwise any write may have any effect, and the log says what to grant.

// seesAllSQL returns a row if the account sees the triggers of all databases.
const seesAllSQL = "SELECT 1 FROM information_schema.USER_PRIVILEGES u WHERE u.GRANTEE = " + granteeSQL + " AND u.PRIVILEGE_TYPE = 'TRIGGER'"

// asksDSN reports whether the DSN's user may see more than the account does.
func (r *catalogReader) asksDSN() bool {
	dsn := r.k.l.cfg.MySQL.User
	return r.err == nil && len(r.blind) > 0 && dsn != "" && dsn != r.k.user && !r.k.trusted()
}

// seeByDSN reads the triggers as the DSN's user, and ends the load.
func (k *catalog) seeByDSN(r *catalogReader) {
	srv := k.l.srv
	srv.Background.Go(func() {
		ctx, cancel := context.WithTimeout(srv.DialCtx, srv.cfg().ConnectTimeout)
		defer cancel()
		triggers, err := srv.allTriggersAgain(ctx)
		k.l.Post(func() {
			k.loading--
			if err != nil {
				r.missed = passing(err)
				srv.Log.Debug("the DSN's user does not show triggers", "user", k.user, "error", err)
			} else {
				r.blind, r.triggers, r.unseen = nil, nil, make(map[string]bool)
				for _, row := range triggers {
					r.trigger(row)
					r.unseen[foldName(string(row[0]))] = true
				}
			}
			k.loaded(r)
		})
	})
}

const (
	// maxAsks is how often one load of the catalog asks for the triggers while that fails for a
	// passing reason, and asksPause the pause after the first failure, which then doubles.
	maxAsks   = 3
	asksPause = 100 * time.Millisecond
)

// allTriggersAgain is allTriggers, repeated within bounds while it fails for a passing reason: a
// client that writes before the next load would keep its connection to its end.
func (s *Server) allTriggersAgain(ctx context.Context) (rows [][][]byte, err error) {
	pause := asksPause
	for try := 1; ; try++ {
		if rows, err = s.allTriggers(ctx); err == nil || try == maxAsks || !passing(err) {
			return rows, err
		}
		select {
		case <-time.After(pause):
			pause *= 2
		case <-ctx.Done():
			return nil, err
		}
	}
}

// errSeesNoTriggers says that the DSN's user cannot show them.
var errSeesNoTriggers = errors.New("no privilege TRIGGER")

// passing reports whether a lookup may succeed if it is repeated: a connection was lost, or the
// server had no room for it. Further refused logins could lock the account.
func passing(err error) bool {
	switch mywire.CodeOf(err) {
	case 0:
		return !errors.Is(err, errSeesNoTriggers)
	case mywire.ErrTooManyConnections, mywire.ErrUserLimit, mywire.ErrServerShutdown, mywire.ErrAborting, mywire.ErrNetRead, mywire.ErrNetReadInterrupted,
		mywire.ErrNetWrite, mywire.ErrNetWriteInterrupted, mywire.ErrQueryInterrupted, mywire.ErrQueryTimeout, mywire.ErrMariaStatementTimeout,
		mywire.ErrMariaConnectionKilled, mywire.ErrLockWaitTimeout, mywire.ErrDeadlock:
		return true
	}
	return false
}

// allTriggers reads the triggers of all databases as the DSN's user.
func (s *Server) allTriggers(ctx context.Context) ([][][]byte, error) {
	conn, _, err := s.visit(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	if all, err := conn.Query(ctx, seesAllSQL); err != nil {
		return nil, fmt.Errorf("ask for the privilege TRIGGER: %w", err)
	} else if len(all) == 0 {
		return nil, fmt.Errorf("user %q has %w on all databases", s.cfg().MySQL.User, errSeesNoTriggers)
	}
	if f := (&poolFacts{mariadb: conn.IsMariaDB(), version: versionID(conn.Greeting.Version)}); f.revokesPartly() {
		grants, err := conn.Query(ctx, grantsSQL)
		if err != nil {
			return nil, fmt.Errorf("ask what is revoked: %w", err)
		}
		for _, row := range grants {
			if g, ok := parseRevoke(row[0].String); ok && g.has("TRIGGER") {
				return nil, fmt.Errorf("user %q has %w on database %s", s.cfg().MySQL.User, errSeesNoTriggers, g.database)
			}
		}
	}
	rows, err := conn.Query(ctx, triggersSQL)
	if err != nil {
		return nil, fmt.Errorf("read triggers: %w", err)
	}
	out := make([][][]byte, len(rows))
	for i, row := range rows {
		for _, v := range row {
			var value []byte // stays nil for a hidden body
			if v.Valid {
				value = []byte(v.String)
			}
			out[i] = append(out[i], value)
		}
	}
	return out, nil
}

// blindness records a database in which the account cannot see triggers.
func (r *catalogReader) blindness(row [][]byte) {
	if row[0] == nil {
		r.seesAll = true
		return
	}
	if r.blind == nil {
		r.blind = make(map[string]bool)
	}
	r.blind[foldName(string(row[0]))] = true
	r.account = string(row[1])
	r.names = append(r.names, string(row[0]))
}

// grantsSQL shows which of an account's global privileges are revoked on some databases:
// MySQL's information_schema shows them as if they were not.
const grantsSQL = "SHOW GRANTS"

// revokesPartly reports whether the server can revoke a global privilege on one database
// (partial_revokes, from MySQL 8.0.16 on).
func (f *poolFacts) revokesPartly() bool { return !f.mariadb && f.version >= 80016 }

// A partialRevoke is a line of SHOW GRANTS that begins with REVOKE.
type partialRevoke struct {
	privileges []string
	database   string
	account    string // as CURRENT_USER() has it
}

func (g *partialRevoke) has(privilege string) bool {
	return slices.Contains(g.privileges, privilege) || slices.Contains(g.privileges, "ALL PRIVILEGES")
}

// parseRevoke parses a line of SHOW GRANTS; ok is false if it grants. Names are quoted by the
// session's sql_mode and sql_quote_show_create.
func parseRevoke(line string) (g partialRevoke, ok bool) {
	line, ok = strings.CutPrefix(line, "REVOKE ")
	privileges, line, on := strings.Cut(line, " ON ")
	if !ok || !on {
		return partialRevoke{}, false
	}
	g.privileges = strings.Split(privileges, ", ")
	for _, quote := range []string{"`", `"`, ""} {
		name, account, from := strings.Cut(line, quote+".* FROM ")
		if from && strings.HasPrefix(name, quote) {
			unquote := func(s string) string { return strings.ReplaceAll(s, quote+quote, quote) }
			if quote == "" {
				unquote = func(s string) string { return s }
			}
			g.database = unquote(name[len(quote):])
			g.account = strings.NewReplacer("`", "", `"`, "").Replace(account)
			return g, true
		}
	}
	return g, true
}

// revoked records what a line of SHOW GRANTS revokes.
func (r *catalogReader) revoked(line string) {
	g, ok := parseRevoke(line)
	if !ok {
		return
	}
	r.seesAll = r.seesAll && !g.has("SELECT")
	if g.has("TRIGGER") {
		r.blindness([][]byte{[]byte(g.database), []byte(g.account)})
	}
}

// maxNamed is how many databases the log names.
const maxNamed = 10

// sayBlind logs, once for each account, what to grant.
func (r *catalogReader) sayBlind() {
	srv := r.k.l.srv
	if len(r.blind) == 0 || r.k.trusted() {
		return
	}
	if _, said := srv.blind.LoadOrStore(r.account, true); said {
		return
	}
	slices.Sort(r.names)
	quote := func(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" }
	user, host := r.account, "%"
	if at := strings.LastIndexByte(r.account, '@'); at >= 0 {
		user, host = r.account[:at], r.account[at+1:]
	}
	var grants []string
	for _, n := range r.names[:min(len(r.names), maxNamed)] {
		pattern := strings.NewReplacer("_", `\_`, "%", `\%`).Replace(n)
		grants = append(grants, fmt.Sprintf("GRANT TRIGGER ON %s.* TO %s@%s;", quote(pattern), quote(user), quote(host)))
	}
	srv.Log.Warn("the account may not see triggers, so sessions that write keep their connection: let it see them, or have --mysql name a user with TRIGGER on all databases, or declare triggers and functions harmless (--mysql-trust-functions '*')",
		"user", r.k.user, "databases", len(r.names), "grant", strings.Join(grants, " "))
}
