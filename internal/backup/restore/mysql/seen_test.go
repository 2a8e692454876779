package mysql

import (
	"testing"

	"github.com/weirdb/weir/internal/wire/binlog"
)

// TestSeen tells which statements of the log the backup may have seen, and what that excuses.
func TestSeen(t *testing.T) {
	s := seen{until: binlog.Position{File: "log.2", Pos: 200}}
	for _, c := range []struct {
		file       string
		start, end uint64
		over       bool
	}{
		{"log.1", 500, 600, false},
		{"log.2", 4, 120, false},
		{"log.2", 120, 200, false}, // its server crashed, and nothing follows
		{"log.3", 4, 120, true},
		{"log.3", 120, 200, true},
	} {
		s.pass(&binlog.Event{Header: binlog.Header{Size: uint32(c.end - c.start)}, File: c.file, End: c.end})
		if s.over != c.over {
			t.Errorf("%s:%d: over is %v", c.file, c.start, s.over)
		}
	}
	s = seen{until: s.until}
	for sql, want := range map[string]string{
		"DROP VIEW `a`,`b`":       "DROP VIEW IF EXISTS `a`,`b`",
		"/*x*/ drop sequence a.s": "/*x*/ drop sequence IF EXISTS a.s",
		"DROP VIEW IF EXISTS a":   "DROP VIEW IF EXISTS a",
		"DROP TABLE a, b":         "DROP TABLE a, b",
		"DROP":                    "DROP",
	} {
		if got := s.again(sql, false); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	for _, c := range []struct {
		sql  string
		code uint16
		want bool
	}{
		{"CREATE ALGORITHM=UNDEFINED VIEW v AS SELECT 1", tableExists, true},
		{"CREATE TABLE t (a int)", tableExists, false},
		{"CREATE VIEW v AS SELECT * FROM gone", 1146, false},
		{"RENAME TABLE gone TO v", 1146, false},
		{"ALTER VIEW v AS SELECT 1", 1146, true},
		{"GRANT SELECT ON v TO u", 1146, true},
		{"INSERT INTO v VALUES (1)", 1146, false},
		{"/*x*/ replace v VALUES (1)", 1146, false},
		{"CALL p()", 1305, false},
		{"CREATE EVENT e DO DO 0", eventExists, true},
		{"DROP PROCEDURE p", 1305, true},
		{"DROP PROCEDURE p", 1064, false},
	} {
		if got := s.excuses(c.sql, false, c.code); got != c.want {
			t.Errorf("%s, error %d: excused is %v", c.sql, c.code, got)
		}
	}
	s.pass(&binlog.Event{File: "log.2", End: 300})
	if s.again("DROP VIEW a", false) != "DROP VIEW a" || s.excuses("DROP VIEW a", false, 1051) {
		t.Error("what follows is taken for seen")
	}
}
