package mysql

import (
	"slices"

	my "github.com/weirdb/weir/internal/backup/bulk/mysql"
	"github.com/weirdb/weir/internal/wire/binlog"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// seen tracks which part of the log a backup may already include: the effects of its statements
// may exist already. Tables are not among them: their definitions are from the position of the
// rows.
type seen struct {
	until   binlog.Position // ReplayOptions.Settled
	reached bool            // the file in which that part ends
	over    bool            // the rest is not included
}

// pass records the position of an event.
func (s *seen) pass(e *binlog.Event) {
	switch {
	case s.until.IsZero():
		s.over = true
	case e.File == s.until.File:
		s.reached, s.over = true, e.Start() >= s.until.Pos
	case s.reached: // nothing follows in that file, as after a crash of its server
		s.over = true
	}
}

// again returns the statement to execute: if one of several views is missing, MySQL would drop
// none of them.
func (s *seen) again(sql string, ansi bool) string {
	t := &statement{tokens: tokens(sql, ansi)}
	if s.over || t.word() != "DROP" || !t.skip("VIEW", "SEQUENCE") || t.skip("IF") {
		return sql
	}
	behind := t.tokens[t.next-1].end
	return sql[:behind] + " IF EXISTS" + sql[behind:]
}

// excuses reports whether an error of a statement says that the backup already has its effect:
// the object to create exists, or the object to drop or change does not. If a statement needs
// another object that is missing, its error counts: the result would be missing itself. So do
// rows for it.
func (s *seen) excuses(sql string, ansi bool, code uint16) bool {
	if s.over {
		return false
	}
	t := &statement{tokens: tokens(sql, ansi)}
	verb := t.word()
	switch code {
	case tableExists:
		return !t.skip("TABLE")
	case routineExists, eventExists:
		return true
	}
	return slices.Contains([]string{"DROP", "ALTER", "GRANT", "REVOKE"}, verb) && my.Missing(&mywire.Error{Code: code})
}

// Errors of statements that create a table, view or sequence, a routine, an event.
const (
	tableExists   = 1050
	routineExists = 1304
	eventExists   = 1537
)
