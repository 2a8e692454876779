package catalogue

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/proxy/sqlscan/myscan"
)

// This file handles accounts that cannot see triggers, which is most that can only read and
// write rows. Another user may see the triggers of all databases. Otherwise any write may have
// any effect, and the log says what to grant.

// seesAllSQL returns a row if the account sees the triggers of all databases.
const seesAllSQL = "SELECT 1 FROM information_schema.USER_PRIVILEGES u WHERE u.GRANTEE = " + GranteeSQL + " AND u.PRIVILEGE_TYPE = 'TRIGGER'"

// grantsSQL shows which of an account's global privileges are revoked on some databases:
// MySQL's information_schema shows them as if they were not.
const grantsSQL = "SHOW GRANTS"

// revokesPartly reports whether the server can revoke a global privilege on one database
// (partial_revokes, from MySQL 8.0.16 on).
func revokesPartly(server myscan.Mode) bool { return !server.MariaDB && server.Version >= 80016 }

// A Querier runs queries on a connection of its own.
type Querier interface {
	Query(ctx context.Context, sql string) ([][]sql.NullString, error)
}

// ErrSeesNoTriggers says that a user lacks the privilege to see the triggers of all databases.
var ErrSeesNoTriggers = errors.New("no privilege TRIGGER")

// AllTriggers reads the triggers of all databases for SeeAll, on a connection of a user that may
// see them.
func AllTriggers(ctx context.Context, conn Querier, user string, server myscan.Mode) ([][][]byte, error) {
	if all, err := conn.Query(ctx, seesAllSQL); err != nil {
		return nil, fmt.Errorf("ask for the privilege TRIGGER: %w", err)
	} else if len(all) == 0 {
		return nil, fmt.Errorf("user %q has %w on all databases", user, ErrSeesNoTriggers)
	}
	if revokesPartly(server) {
		grants, err := conn.Query(ctx, grantsSQL)
		if err != nil {
			return nil, fmt.Errorf("ask what is revoked: %w", err)
		}
		for _, row := range grants {
			if g, ok := parseRevoke(row[0].String); ok && g.has("TRIGGER") {
				return nil, fmt.Errorf("user %q has %w on database %s", user, ErrSeesNoTriggers, g.database)
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

// Blind reports whether there are databases in which the account cannot see triggers, and that
// matters.
func (r *Reader) Blind() bool { return len(r.blind) > 0 && !trusted(r.trust) }

// SeeAll takes what AllTriggers returned in place of what the account sees.
func (r *Reader) SeeAll(triggers [][][]byte) {
	r.blind, r.triggers, r.unseen = nil, nil, make(map[string]bool)
	for _, row := range triggers {
		r.trigger(row)
		r.unseen[foldName(string(row[0]))] = true
	}
}

// blindness records a database in which the account cannot see triggers.
func (r *Reader) blindness(row [][]byte) {
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
func (r *Reader) revoked(line string) {
	g, ok := parseRevoke(line)
	if !ok {
		return
	}
	r.seesAll = r.seesAll && !g.has("SELECT")
	if g.has("TRIGGER") {
		r.blindness([][]byte{[]byte(g.database), []byte(g.account)})
	}
}

// maxNamed is how many databases Grant names.
const maxNamed = 10

// Grant returns the account, as CURRENT_USER() has it, in how many databases it cannot see
// triggers, and what to grant it.
func (r *Reader) Grant() (account string, databases int, grant string) {
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
	return r.account, len(r.names), strings.Join(grants, " ")
}
