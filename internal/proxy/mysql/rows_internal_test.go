package mysql

import (
	"fmt"
	"slices"
	"testing"

	"github.com/weirdb/weir/internal/proxy/sight"
)

// A group's warnings are assigned to its rows, and its shape stays groupable as long as that is
// certain.
func TestWarningsAreAssignedToRows(t *testing.T) {
	for _, tc := range []struct {
		name   string
		rows   int
		total  int
		listed []string
		want   string
		apart  bool
	}{
		{"none", 3, 0, nil, "[0 0 0]", false},
		{"of some rows", 3, 3, []string{"cut at row 1", "cut at row 3", "out of range at row 3"}, "[1 0 2]", false},
		{"of every row without its number", 2, 2, []string{"now is late", "now is late"}, "[1 1]", false},
		{"of every row, and of one", 2, 3, []string{"now is late", "now is late", "cut at row 2"}, "[1 2]", false},
		{"two of the statement", 2, 2, []string{"deprecated", "unsafe"}, "[1 1]", true},
		{"one of the statement", 3, 1, []string{"unsafe"}, "[1 1 1]", true},
		{"one of the statement, and one of every row", 3, 4, []string{"unsafe", "late", "late", "late"}, "[2 2 2]", true},
		{"more than are listed", 2, 4, []string{"cut at row 1", "cut at row 1"}, "[2 2]", true},
		{"a number that is no row's", 2, 1, []string{"cut at row 7"}, "[1 1]", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			shape := sight.NewShapes().Of(1, "INSERT", func(int) string { return "" })
			g := &group{units: make([]*unit, tc.rows)}
			for i := range g.units {
				g.units[i] = &unit{shape: shape}
			}
			for text := range slices.Values(tc.listed) {
				g.warnings = append(g.warnings, [][]byte{[]byte("Warning"), []byte("1"), []byte(text)})
			}
			if got := fmt.Sprint(g.countWarnings(tc.total)); got != tc.want || shape.Groupable() == tc.apart {
				t.Errorf("warnings %s, groupable %v; want %s, %v", got, shape.Groupable(), tc.want, !tc.apart)
			}
		})
	}
}
