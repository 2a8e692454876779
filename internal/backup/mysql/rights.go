package mysql

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	my "github.com/weirdb/weir/internal/backup/bulk/mysql"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// rights are the grants of an account. Servers silently omit from their lists what an account
// cannot see; the grants tell whether a list is complete.
type rights []right

// right is one line of SHOW GRANTS that concerns whole databases, or mysql.proc.
type right struct {
	privileges map[string]bool
	databases  *regexp.Regexp
	table      string
}

var grantLine = regexp.MustCompile("^GRANT (.+) ON (\\*|`(?:[^`]|``)+`)\\.(\\*|`(?:[^`]|``)+`) TO ")

// parseRight parses a line of SHOW GRANTS; ok is false if it does not concern databases or
// tables.
func parseRight(line string) (r right, ok bool) {
	m := grantLine.FindStringSubmatch(line)
	if m == nil {
		return r, false
	}
	r = right{privileges: map[string]bool{}, table: unquoted(m[3])}
	for p := range strings.SplitSeq(m[1], ", ") {
		r.privileges[strings.ToUpper(p)] = true
	}
	pattern := "(?s)^"
	escaped := m[2] != "*" && m[3] != "*" // a table's grant names one database
	for name := unquoted(m[2]); name != ""; {
		c := name[:1]
		name = name[1:]
		switch {
		case m[2] == "*":
			pattern += ".*"
		case escaped:
			pattern += regexp.QuoteMeta(c)
		case c == "\\" && name != "":
			pattern += regexp.QuoteMeta(name[:1])
			name = name[1:]
		case c == "%":
			pattern += ".*"
		case c == "_":
			pattern += "."
		default:
			pattern += regexp.QuoteMeta(c)
		}
	}
	r.databases = regexp.MustCompile(pattern + "$")
	return r, true
}

func unquoted(name string) string {
	if len(name) < 2 || name[0] != '`' {
		return name
	}
	return strings.ReplaceAll(name[1:len(name)-1], "``", "`")
}

// have reports whether the account has one of the privileges on all of a database, or on one of
// its tables.
func (all rights) have(database, table string, privileges ...string) bool {
	for _, r := range all {
		if r.table != "*" && r.table != table || !r.databases.MatchString(database) {
			continue
		}
		for _, p := range append(privileges, "ALL PRIVILEGES", "ALL") {
			if r.privileges[p] {
				return true
			}
		}
	}
	return false
}

// rightsOf queries the privileges of a session's account, including its roles.
func rightsOf(ctx context.Context, s *my.Session) (rights, error) {
	sql := "SHOW GRANTS"
	if !s.IsMariaDB() && s.Version() >= 80000 {
		row, err := s.Row(ctx, "SELECT CURRENT_ROLE()")
		if err != nil {
			return nil, fmt.Errorf("ask for the account's rights: %w", err)
		}
		if row[0] != "NONE" {
			sql = "SHOW GRANTS FOR CURRENT_USER() USING " + row[0]
		}
	}
	var all rights
	err := s.Query(ctx, sql, func(row []string) error {
		if one, ok := parseRight(row[0]); ok {
			all = append(all, one)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("ask for the account's rights: %w", err)
	}
	return all, nil
}

// unseen returns the kinds of objects of a database that the account may not see, and the
// privileges that show them.
func (all rights) unseen(database string, selective bool) (kinds, privileges []string) {
	miss := func(kind, privilege string) { kinds, privileges = append(kinds, kind), append(privileges, privilege) }
	if !all.have(database, "", "TRIGGER") {
		miss("triggers", "TRIGGER")
	}
	if selective {
		return kinds, privileges
	}
	if !all.have(database, "", "SELECT") {
		miss("tables and views", "SELECT")
	}
	if !all.have(database, "", "EVENT") {
		miss("events", "EVENT")
	}
	// Users who may execute routines see their names, and get an error for those that they may
	// not read.
	if !all.have(database, "", "EXECUTE", "ALTER ROUTINE", "CREATE ROUTINE", "SHOW CREATE ROUTINE", "SHOW_ROUTINE") && !all.have("mysql", "proc", "SELECT") {
		miss("routines", "EXECUTE")
	}
	return kinds, privileges
}

// look warns about objects that are missing because the account cannot see them.
func (r *runner) look(ctx context.Context) error {
	all, err := rightsOf(ctx, r.main)
	switch {
	case my.ErrorCode(err) == mywire.ErrOptionPrevents:
		return nil // with skip_grant_tables, everyone sees everything
	case my.ErrorCode(err) != 0:
		r.warn("whether the account sees all that is to be backed up is unknown: %v", err)
		return nil
	case err != nil:
		return err
	}
	for _, d := range r.databases {
		kinds, privileges := all.unseen(d.name, r.opts.Filter.Selective())
		if len(kinds) == 0 {
			continue
		}
		r.hidden = true
		r.warn("database %s: %s that the account may not see are NOT in this backup, should there be any (GRANT %s ON %s.* shows them)",
			d.name, strings.Join(kinds, ", "), strings.Join(privileges, ", "), my.Ident(d.name))
	}
	return nil
}
