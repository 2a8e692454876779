package sight

import "testing"

// A word in the place of a name is shown only when the server knew it.
func TestNamesShowOnlyOfStatementsThatSucceeded(t *testing.T) {
	shapes := NewShapes()
	text := func(s string) func(int) string { return func(int) string { return s } }
	good, bad := shapes.Of(1, "SELECT", text("SELECT name FROM t")), shapes.Of(2, "SELECT", text(`SELECT "hunter2"`))
	good.Runs, good.Errors = 3, 2
	bad.Runs, bad.Errors = 2, 2
	var snap Snapshot
	snap.AddShapes(shapes)
	got := make(map[string]uint64)
	for _, s := range snap.Shapes {
		got[s.Text] += s.Errors
	}
	if len(got) != 2 || got["SELECT name FROM t"] != 2 || got[unproven] != 2 {
		t.Errorf("shown, with their errors: %v", got)
	}
}
