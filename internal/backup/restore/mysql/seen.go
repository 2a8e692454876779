package mysql

import (
	"slices"

	my "github.com/weirdb/weir/internal/backup/bulk/mysql"
	"github.com/weirdb/weir/internal/wire/binlog"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// seen knows which part of the log a backup may have seen: what a statement in it makes may be
// there already, and what it drops gone. Tables are not among that: their definitions are those
// of the position of the rows.
type seen struct {
	until   binlog.Position // ReplayOptions.Settled
	reached bool            // the file in which it ends
	over    bool            // what follows has not been seen
}

// pass notes where an event lies.
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

// again is a statement as it is to be executed: of several views, of which one is gone, MySQL
// would drop none.
func (s *seen) again(sql string, ansi bool) string {
	t := &statement{tokens: tokens(sql, ansi)}
	if s.over || t.word() != "DROP" || !t.skip("VIEW", "SEQUENCE") || t.skip("IF") {
		return sql
	}
	behind := t.tokens[t.next-1].end
	return sql[:behind] + " IF EXISTS" + sql[behind:]
}

// excuses reports whether an error of a statement says that the backup shows what it does: it
// holds what is to be made, or does not hold what is to be dropped or changed. What is to be made
// of something that is missing is an error: it would be missing itself. So are rows that are to go
// into it.
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

// Errors of what makes a table, view or sequence, a routine, an event.
const (
	tableExists   = 1050
	routineExists = 1304
	eventExists   = 1537
)
