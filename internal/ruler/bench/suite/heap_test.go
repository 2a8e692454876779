package suite

import (
	"strings"
	"testing"
)

func TestHeapGrowth(t *testing.T) {
	for _, tc := range []struct {
		name   string
		h      Heap
		growth float64
		always bool
	}{
		{"nothing", Heap{}, 0, false},
		{"steady", Heap{Readings: []HeapReading{{0, 5e6}, {1000, 4e6}, {2000, 5e6}}}, 0, false},
		{"leak", Heap{Readings: []HeapReading{{0, 1000}, {100, 3400}, {200, 5800}}}, 24, true},
		{"smaller", Heap{Readings: []HeapReading{{0, 1000}, {100, 900}}}, -1, false},
	} {
		if growth, always := tc.h.Growth(); growth != tc.growth || always != tc.always {
			t.Errorf("%s: grew by %v B a statement, each time: %v; want %v, %v", tc.name, growth, always, tc.growth, tc.always)
		}
	}
}

func TestHeapSection(t *testing.T) {
	s := HeapSection([]Heap{{
		Case: "weir auto", Readings: []HeapReading{{0, 4e6}, {100, 4e6}, {200, 4.1e6}}, Bytes: 20_000, Objects: 300,
		Kept: []HeapSite{{"a", 2e6}}, Made: []HeapSite{{"b", 3e6}},
	}})
	if len(s.Tables) != 3 {
		t.Fatalf("%d tables, want growth, in use and allocated", len(s.Tables))
	}
	var cells []string
	for _, c := range s.Tables[0].Rows[0] {
		cells = append(cells, c.Text)
	}
	if got, want := strings.Join(cells, "|"), "weir auto|200|100|1.50|4000|4100|500.00"; got != want {
		t.Errorf("row %s, want %s", got, want)
	}
}
