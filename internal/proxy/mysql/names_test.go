package mysql_test

import (
	"strings"
	"testing"
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
