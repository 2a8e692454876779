package mysql

import (
	"context"
	"fmt"
	"slices"
	"strings"

	my "github.com/weirdb/weir/internal/backup/bulk/mysql"
)

// A loadable is a loadable function (UDF) that a statement of the log creates. Of other objects
// outside databases servers log only accounts, neither plugins nor linked servers.
type loadable struct {
	name, library string
	lenient       bool // IF NOT EXISTS, OR REPLACE
}

// loadableOf parses a statement of the log; its name is empty if it creates no loadable
// function.
func loadableOf(sql string, ansi bool) loadable {
	s := &statement{tokens: tokens(sql, ansi)}
	l := loadable{}
	if s.word() != "CREATE" {
		return l
	}
	if s.skip("OR") {
		l.lenient = s.skip("REPLACE")
	}
	s.skip("AGGREGATE")
	if s.word() != "FUNCTION" {
		return l
	}
	if s.peek().kind == wordToken && strings.EqualFold(s.peek().text, "IF") {
		s.exists()
		l.lenient = true
	}
	name := s.peek().text
	s.next++
	if !s.skip("RETURNS") {
		return l
	}
	s.word()
	if s.skip("SONAME") {
		l.name, l.library = name, s.peek().literal
	}
	return l
}

// planLoadables checks the loadable functions that a log creates, and returns which of them the
// server has from the same library.
func planLoadables(ctx context.Context, s *my.Session, made []loadable) (warnings []string, err error) {
	if len(made) == 0 {
		return nil, nil
	}
	there := map[string]string{} // library by name
	err = s.Query(ctx, "SELECT name, dl FROM mysql.func", func(row []string) error {
		there[strings.ToLower(row[0])] = row[1]
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("the log makes functions of libraries; list those of the server: %w", err)
	}
	for i, l := range made {
		if slices.ContainsFunc(made[i+1:], func(later loadable) bool { return strings.EqualFold(later.name, l.name) }) {
			continue // the log drops it, and creates another
		}
		library, is := there[strings.ToLower(l.name)]
		switch {
		case !is || l.lenient:
		case library != l.library:
			return nil, fmt.Errorf("the log makes function %s of library %s, and the server has one of %s: drop it there (DROP FUNCTION %s), or restore into another server",
				l.name, l.library, library, my.Ident(l.name))
		default:
			warnings = append(warnings, fmt.Sprintf("function %s of library %s, which the log makes, exists already", l.name, library))
		}
	}
	return warnings, nil
}

// The server's errors for a statement whose effect exists already, as when a log is replayed a
// second time: for grants on everything and databases, on tables, on routines, and of roles.
// PlanReplay has compared functions that exist.
const functionExists = 1125

var noSuchGrant = []uint16{1141, 1147, 1403, 1962}

// hasBeen reports whether an error of the server says that the effect of a statement exists
// already.
func hasBeen(sql string, ansi bool, code uint16) bool {
	switch {
	case code == functionExists:
		return loadableOf(sql, ansi).name != ""
	case slices.Contains(noSuchGrant, code):
		return (&statement{tokens: tokens(sql, ansi)}).word() == "REVOKE"
	}
	return false
}
