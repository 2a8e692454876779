package mysql_test

import (
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/proxy/mysql"
)

// TestNamesOfLanesShowWhenTheServerKnewThem: what stands where a name belongs may be
// anything, such as a password without quotes.
func TestNamesOfLanesShowWhenTheServerKnewThem(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE t (known INT)"), nil)
	c := w.dial(nil)
	shown := func(name string) (lanes, shapes bool) {
		snap := w.snapshot()
		for _, l := range snap.Lanes {
			lanes = lanes || strings.Contains(l.Text, name)
		}
		for _, s := range snap.Shapes {
			shapes = shapes || strings.Contains(s.Text, name)
		}
		return lanes, shapes
	}
	eventually(t, "the write that succeeds has a lane that shows its text", func() bool {
		c.must("/* batch */ INSERT INTO t (known) VALUES (1)")
		lanes, shapes := shown("known")
		return lanes && shapes
	})
	for range 3 {
		if _, err := c.Exec(ctxFor(t), "/* batch */ INSERT INTO t (hunter2) VALUES (1)"); code(err) != 1054 {
			t.Fatalf("an unknown column: %v", err)
		}
	}
	unproven := 0
	for _, l := range w.snapshot().Lanes {
		if l.Text == "statement that never succeeded" {
			unproven++
		}
	}
	if lanes, shapes := shown("hunter2"); lanes || shapes || unproven != 1 {
		t.Errorf("a name that the server does not know is shown by lanes: %v, by shapes: %v; %d lanes without a text, want 1", lanes, shapes, unproven)
	}
}

// A routine of another database says nothing about one of the same name here: no session
// keeps its connection for it.
func TestRoutinesOfAnotherDatabase(t *testing.T) {
	t.Parallel()
	const sets = "CREATE FUNCTION same() RETURNS INT DETERMINISTIC BEGIN SET @called = DATABASE(); RETURN 1; END"
	db := database(t, "CREATE FUNCTION same() RETURNS INT DETERMINISTIC RETURN 2", "CREATE FUNCTION outer_one() RETURNS INT DETERMINISTIC RETURN same() + 1")
	other := database(t, sets, "CREATE FUNCTION outer_one() RETURNS INT DETERMINISTIC RETURN same() + 1")
	w := start(t, db, func(c *mysql.Config) { c.PoolSize, c.ReadLanes = 1, -1 })
	reader := w.dial(nil)
	for _, x := range []struct {
		statement string
		pins      bool
	}{
		{"SELECT same()", false},
		{"SELECT outer_one()", false},
		{"SELECT " + other + ".same()", true},
		{"SELECT " + other + ".outer_one()", true},
	} {
		c := w.dial(nil)
		c.one(x.statement)
		if x.pins {
			if got := c.one("SELECT @called"); got != other {
				t.Errorf("%s: the variable is %s", x.statement, got)
			}
			if p := w.pool(); p.Free != 0 {
				t.Errorf("%s: the connection is free: %+v", x.statement, p)
			}
		} else {
			eventually(t, x.statement+" leaves the connection", func() bool { return w.pool().Free == 1 })
		}
		_ = c.Close()
		if got := reader.one("SELECT @called"); got != "NULL" {
			t.Errorf("%s: another session reads %s", x.statement, got)
		}
		reader.must("COMMIT")
	}
}
