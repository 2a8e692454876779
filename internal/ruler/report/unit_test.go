package report

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/weirdb/weir/internal/measure"
)

func TestValuesWithUnits(t *testing.T) {
	for _, tc := range []struct {
		v          float64
		unit, want string
	}{
		{0, "", "0"},
		{0, "us", "0 us"},
		{52110, "", "52.1k"},
		{999.7, "", "1k"},
		{-1500, "", "-1.5k"},
		{1_920_000, "/s", "1.92M /s"},
		{0.5, "us", "500 ns"},
		{1500, "us", "1.5 ms"},
		{210_000, "us", "210 ms"},
		{12_400, "ms", "12.4 s"},
		{90_000, "s", "90000 s"},
		{20480, "B", "20.5 kB"},
		{1.5e9, "kB", "1.5 TB"},
		{12, "%", "12 %"},
		{0.000012, "", "0.000012"},
	} {
		if got := withUnit(tc.v, tc.unit); got != tc.want {
			t.Errorf("%v %s is written %q, want %q", tc.v, tc.unit, got, tc.want)
		}
	}
}

func TestRangesShowTwoDigitsOfTheirWidth(t *testing.T) {
	for _, tc := range []struct {
		p          Point
		unit, want string
	}{
		{Point{Y: 1.002, Lo: .984, Hi: 1.019}, "", "1.002 [0.984, 1.019]"},
		{Point{Y: 2.61, Lo: 2.48, Hi: 2.77}, "x", "2.61 x [2.48, 2.77]"},
		{Point{Y: 19964, Lo: 18900, Hi: 20810}, "", "20.0k [18.9k, 20.8k]"},
		{Point{Y: 3.1e6, Lo: 1.86e6, Hi: 4.34e6}, "ns", "3.1 ms [1.9, 4.3]"},
		{Point{Y: 5, Lo: 5, Hi: 5}, "", "5.00 [5.00, 5.00]"},
	} {
		if got := withRange(tc.p, tc.unit); got != tc.want {
			t.Errorf("%+v %s is written %q, want %q", tc.p, tc.unit, got, tc.want)
		}
	}
	if got := figureRange(Point{Y: 19964, Lo: 18900, Hi: 20810}); got != "19,964 [18,900, 20,810]" {
		t.Errorf("in a table: %q", got)
	}
	for v, want := range map[float64]string{1234567: "1,234,567", -1234.5: "-1,234", 99.96: "100", 99.94: "99.9", 0.0712: "0.0712"} {
		if got := figure(v); got != want {
			t.Errorf("%v is written %q, want %q", v, got, want)
		}
	}
}

func TestNamesAreShortenedInTheMiddle(t *testing.T) {
	const name = "PostgreSQL 15.20, pool 100, warm, prepared, loopback"
	for room := 20.0; room < 400; room += 7 {
		got := fit(name, room)
		if w := textWidth(got); w > room {
			t.Errorf("%q is %.0f wide, more than %.0f", got, w, room)
		}
		if head, tail, cut := strings.Cut(got, "…"); cut && (!strings.HasPrefix(name, head) || !strings.HasSuffix(name, tail)) {
			t.Errorf("%q is not made of the ends of the name", got)
		}
	}
	if got := fit("short", 100); got != "short" {
		t.Errorf("a name that fits became %q", got)
	}
	if got := fit("日本語の名前", 40); !utf8.ValidString(got) {
		t.Errorf("%q is not text", got)
	}
}

// spread against an oracle of what must hold, since the best places are hard to
// know: order, gaps, bounds, and that nothing moves that need not.
func TestSpreadKeepsOrderAndGaps(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 6))
	const gap, lo, hi = 15.0, 10.0, 280.0
	for range 2000 {
		at := make([]float64, 1+r.IntN(8))
		for i := range at {
			at[i] = lo + (hi-lo)*r.Float64()
		}
		slices.Sort(at)
		got := spread(at, gap, lo, hi)
		free := true
		for i, v := range got {
			if v < lo-1e-9 || v > hi+1e-9 {
				t.Fatalf("%v: %v is outside", at, got)
			}
			if i > 0 && v < got[i-1]+gap-1e-6 {
				t.Fatalf("%v: %v are too close", at, got)
			}
			free = free && (i == 0 || at[i] >= at[i-1]+gap)
		}
		if free && !slices.Equal(at, got) {
			t.Fatalf("%v were free, and moved to %v", at, got)
		}
	}
}

func TestDigestOfALongSeries(t *testing.T) {
	c := Chart{Title: "t", Kind: TimeSeries, Unit: "ms", Series: []Series{{Name: "p99"}, {Name: "nothing", Points: []Point{{None: true}}}}}
	for i := range 500 {
		c.Series[0].Points = append(c.Series[0].Points, Point{X: float64(i), Y: float64(100 + (i*37)%500), None: i == 3})
	}
	table := c.Figures()
	if len(table.Rows) != 2 {
		t.Fatalf("%d rows, want one for each series", len(table.Rows))
	}
	var got []string
	for _, cell := range table.Rows[0] {
		got = append(got, cell.Text)
	}
	// 37 and 500 share no factor, so each of 100..599 comes once but the 211 at 3, and
	// 37 * 27 = 999 = 499 modulo 500.
	if want := "p99 499 100 100 0 350 599 27 563"; strings.Join(got, " ") != want {
		t.Errorf("digest %q, want %q", strings.Join(got, " "), want)
	}
}

func TestFramesOfAFunctionAreAddedUp(t *testing.T) {
	leaf := func(v float64) *Frame { return &Frame{Name: "write", Value: v} }
	c := Chart{Kind: Flame, Unit: "ms", Root: &Frame{Name: "all", Value: 100, Children: []*Frame{
		{Name: "a", Value: 60, Children: []*Frame{leaf(40), {Name: "a", Value: 10, Children: []*Frame{leaf(10)}}}},
		{Name: "b", Value: 40, Children: []*Frame{leaf(40)}},
	}}}
	if err := c.validate(); err != nil {
		t.Fatal(err)
	}
	rows := c.Figures().Rows
	if got := rows[0]; got[0].Text != "write" || got[1].Text != "90" || got[3].Text != "90.0" {
		t.Errorf("write: %v", got)
	}
	if got := rows[1]; got[0].Text != "a" || got[1].Text != "10" || got[3].Text != "60.0" {
		t.Errorf("a, which calls itself: %v", got)
	}
}

func TestPickChart(t *testing.T) {
	d := sample()
	for which, want := range map[string]string{
		"2":                         "Throughput against window",
		"cpu time by call":          "CPU time by call",
		"latency":                   "Latency by percentile",
		"THROUGHPUT, with 95":       "Throughput, with 95 % intervals",
		"throughput against window": "Throughput against window",
	} {
		if got, err := d.PickChart(which); err != nil || got.Title != want {
			t.Errorf("%q gives %v, %v", which, got, err)
		} else if err := got.Validate(); err != nil {
			t.Errorf("%q: %v", which, err)
		}
	}
	for which, want := range map[string]string{"0": "has 9", "10": "has 9", "through": "3 charts", "pie": "want one of"} {
		if _, err := d.PickChart(which); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want mention of %q", which, err, want)
		}
	}
}

func TestCommandLineCanBePasted(t *testing.T) {
	got := commandLine([]string{"weir", "bench", "--note", "it's", "", "a b", "postgres://u@h/db?x=1"})
	if want := `weir bench --note 'it'\''s' '' 'a b' 'postgres://u@h/db?x=1'`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestProvenanceTellsOfADiskThatMoved(t *testing.T) {
	e := sample().Env
	if got := provenance(e); !strings.Contains(got, "62 us at the median before the run and 3.01 ms after it, so figures that depend on the disk varied") {
		t.Errorf("%s", got)
	}
	e.FsyncAfter = &measure.Flush{P50Ns: 70_000}
	if got := provenance(e); strings.Contains(got, "varied") || !strings.Contains(got, "70 us after it.") {
		t.Errorf("%s", got)
	}
	e.Servers = append(e.Servers, measure.Server{Name: "PgBouncer", Version: "1.18"}, measure.Server{Name: "weir", Version: "0.1"})
	if got := provenance(e); !strings.Contains(got, "; with PostgreSQL 15.20, PgBouncer 1.18 and weir 0.1.") {
		t.Errorf("%s", got)
	}
}

func TestAnchorsAreThoseOfGitHub(t *testing.T) {
	used := map[string]int{}
	for _, tc := range [][2]string{{"CPU time by category", "cpu-time-by-category"}, {"Inserts, 64 clients", "inserts-64-clients"}, {"Inserts, 64 clients", "inserts-64-clients-1"}, {"a/b_c: 95 % é", "ab_c-95--é"}} {
		if got := slug(tc[0], used); got != tc[1] {
			t.Errorf("%q became %q, want %q", tc[0], got, tc[1])
		}
	}
}

func TestWideTablesAreTurned(t *testing.T) {
	wide := Table{Title: "t", Columns: []Column{{Name: "case"}}, Note: "n"}
	for _, name := range strings.Fields("a b c d e f g h i j k") {
		wide.Columns = append(wide.Columns, Column{Name: name, Unit: "ms", Numeric: true})
	}
	for _, name := range []string{"direct", "weir"} {
		row := Cells(name)
		for i := range wide.Columns[1:] {
			row = append(row, Cell{Text: name[:1] + wide.Columns[i+1].Name, Strong: i == 3})
		}
		wide.Rows = append(wide.Rows, row)
	}
	got := wide.transposed()
	if len(got.Columns) != 4 || len(got.Rows) != 11 || got.Title != "t" || got.Note != "n" {
		t.Fatalf("%d columns, %d rows: %+v", len(got.Columns), len(got.Rows), got)
	}
	if want := []Cell{{Text: "d"}, {Text: "ms"}, {Text: "dd", Strong: true}, {Text: "wd", Strong: true}}; !slices.Equal(got.Rows[3], want) {
		t.Errorf("fourth row %v, want %v", got.Rows[3], want)
	}
	if !got.Columns[2].Numeric || got.Columns[0].Numeric || got.Columns[1].Numeric {
		t.Errorf("numbers are not where they were: %+v", got.Columns)
	}
	for name, table := range map[string]Table{"narrow": {Columns: wide.Columns[:10], Rows: [][]Cell{wide.Rows[0][:10]}}, "long": {Columns: wide.Columns, Rows: slices.Repeat(wide.Rows, 6)}} {
		if got := table.transposed(); len(got.Columns) != len(table.Columns) {
			t.Errorf("a %s table was turned", name)
		}
	}
}

func TestColumnsAreMadeOfNames(t *testing.T) {
	got := Columns(":case", "p50|ms", "rounds", ":")
	want := []Column{{Name: "case"}, {Name: "p50", Unit: "ms", Numeric: true}, {Name: "rounds", Numeric: true}, {}}
	if !slices.Equal(got, want) {
		t.Errorf("columns %+v, want %+v", got, want)
	}
}
