package mysql

import (
	"testing"
	"time"
)

// TestStarting repeats a start that is locked out: it locks first only after a statement that
// alters a table, or every other time if such a statement cannot be seen, and only the time that it
// waits for locks counts.
func TestStarting(t *testing.T) {
	for _, c := range []struct {
		altered verdict
		want    string // of the attempts: P pins first, L locks first
	}{{no, "PPPPPP"}, {yes, "PLPLPL"}, {unknown, "PPLPLP"}} {
		s := starting{altered: c.altered}
		got := ""
		var waited time.Duration
		for again := true; again; {
			if s.lockFirst {
				got += "L"
			} else {
				got += "P"
			}
			wait := time.Duration(s.patience(time.Minute)) * time.Second
			waited += wait
			again = s.again(wait, time.Minute)
		}
		if got != c.want || waited != time.Minute {
			t.Errorf("altered %d: %s in %v, want %s in a minute", c.altered, got, waited, c.want)
		}
	}
	s := starting{lockedOut: 100}
	if got := s.patience(-1); got != 1<<16 || !s.again(time.Hour, -1) {
		t.Errorf("without a limit: %d s", got)
	}
}

func TestDML(t *testing.T) {
	for sql, want := range map[string]bool{
		"INSERT INTO t VALUES (1)": true, "\n update t SET a = 1": true, "(SELECT 1)": true, "LOAD DATA INFILE 'f' INTO TABLE t": true,
		"ALTER TABLE t ADD b INT": false, "DROP TABLE t": false, "INSERTED": false, "": false, "OPTIMIZE TABLE selected": false,
	} {
		if got := dml.MatchString(sql); got != want {
			t.Errorf("%q: %t", sql, got)
		}
	}
}
