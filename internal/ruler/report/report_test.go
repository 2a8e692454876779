package report

import (
	"bytes"
	"encoding/json"
	"flag"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirdb/weir/internal/measure"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the golden files")

// sample is a report with every kind of part in it.
func sample() *Doc {
	return &Doc{
		Title:    "Write batching: direct, fixed windows, adaptive",
		Subtitle: "64 clients, one INSERT an operation, PostgreSQL 15.20, flushed at commit. Figures are made up.",
		Env: &measure.Environment{
			Time: time.Date(2026, 2, 18, 13, 5, 0, 0, time.UTC), CPU: "Example CPU", Cores: 2, GOMAXPROCS: 2, MemoryBytes: 24 << 30,
			OS: "Debian GNU/Linux 12", Kernel: "6.18.44", Virtualisation: "virtual machine", ClockSource: "tsc", GoVersion: "go1.26.8",
			Command: []string{"weir", "bench", "proxy", "--plan", "mini"}, Durability: "prod",
			Servers:     []measure.Server{{Name: "PostgreSQL", Version: "15.20", Settings: map[string]string{"fsync": "on", "shared_buffers": "128MB"}}},
			FsyncBefore: &measure.Flush{Bytes: 8192, Count: 1000, P50Ns: 62_000, P99Ns: 310_000, MaxNs: 900_000},
			FsyncAfter:  &measure.Flush{Bytes: 8192, Count: 1000, P50Ns: 3_010_000, P99Ns: 9_310_000, MaxNs: 20_900_000},
		},
		Findings: []Finding{
			{Claim: "weir adaptive is better than direct: 2.61x [2.48, 2.77] of the throughput.", Evidence: []string{"8 pairs of rounds, bootstrap of the median log ratio, 95 % confidence"}, See: "Throughput, with 95 % intervals"},
			{Warn: true, Claim: "weir batch:100 is limited by its own window: 64 clients that wait 100 ms cannot exceed 640 ops/s, and it reaches 97 % of that.", Advice: "Let the group size follow the load."},
		},
		Sections: []Section{
			{
				Title: "Performance",
				Text:  []string{"Rounds alternate between all sides. Latency percentiles are those of all rounds' histograms merged, never an average of percentiles <of anything>."},
				Tables: []Table{{
					Title: "PostgreSQL, 64 clients",
					Columns: []Column{
						{Name: "case"},
						{Name: "throughput", Unit: "ops/s", Numeric: true},
						{Name: "p50", Unit: "ms", Numeric: true},
						{Name: "CPU, all", Unit: "us/op", Numeric: true},
					},
					Rows: [][]Cell{
						Cells("direct", "19,964", "2.90", "78.1"),
						Cells("batch:1 | literal", "12,950", "4.94", "96.0"),
						{{Text: "adaptive", Strong: true}, {Text: "52,110", Strong: true}, {Text: "0.98"}, {Text: "21.4"}},
					},
					Note: "ops/s is the median of 8 rounds.",
				}},
				Findings: []Finding{{Claim: "1 ms of window is best.", Evidence: []string{"1 ms: 12,950 ops/s"}}},
				Charts: []Chart{
					{
						Title: "Throughput, with 95 % intervals", Kind: Bars, YLabel: "operations per second",
						Categories: []string{"direct", "batch:1", "batch:10", "batch:100", "adaptive"},
						Series: []Series{
							{Name: "64 clients", Points: []Point{{Y: 19964, Lo: 18900, Hi: 20810}, {Y: 12950, Lo: 12100, Hi: 13400}, {Y: 4565, Lo: 4300, Hi: 4700}, {Y: 622, Lo: 615, Hi: 630}, {Y: 52110, Lo: 49300, Hi: 54800}}},
							{Name: "256 clients", Points: []Point{{Y: 13464, Lo: 12000, Hi: 14300}, {Y: 11024, Lo: 10300, Hi: 11900}, {Y: 12569, Lo: 11700, Hi: 13100}, {Y: 2480, Lo: 2400, Hi: 2530}, {Y: 78232, Lo: 74400, Hi: 81900}}},
						},
						Note: "Whiskers are order-statistic intervals of the median.",
					},
					{
						Title: "Throughput against window", Kind: Lines, LogX: true, LogY: true, XLabel: "window, ms", YLabel: "operations per second",
						Series: []Series{
							{Name: "64 clients", Points: []Point{{X: 0.1, Y: 21000, Lo: 19800, Hi: 22400}, {X: 1, Y: 12950, Lo: 12100, Hi: 13400}, {X: 10, Y: 4565, Lo: 4300, Hi: 4700}, {X: 100, Y: 622, Lo: 615, Hi: 630}}},
							{Name: "256 clients", Points: []Point{{X: 0.1, Y: 14100, Lo: 12800, Hi: 15600}, {X: 1, Y: 11024, Lo: 10300, Hi: 11900}, {X: 10, Y: 12569, Lo: 11700, Hi: 13100}, {X: 100, Y: 2480, Lo: 2400, Hi: 2530}}},
						},
					},
				},
			},
			{
				Title: "Latency and CPU",
				Charts: []Chart{
					{
						Title: "Latency by percentile", Kind: Percentiles, LogY: true, XLabel: "percentile", YLabel: "ms",
						Series: []Series{
							{Name: "direct", Points: []Point{{X: 0, Y: 0.4}, {X: .5, Y: 2.9}, {X: .9, Y: 4.8}, {X: .99, Y: 8.5}, {X: .999, Y: 21}, {X: .9999, Y: 33}}},
							{Name: "adaptive", Points: []Point{{X: 0, Y: 0.2}, {X: .5, Y: 0.98}, {X: .9, Y: 1.6}, {X: .99, Y: 3.1}, {X: .999, Y: 6.4}, {X: .9999, Y: 14}}},
						},
					},
					{
						Title: "CPU time by category, exclusive", Kind: Stacked,
						Categories: []string{"proxy", "load generator"},
						Series: []Series{
							{Name: "system calls and network I/O", Points: []Point{{Y: .43}, {Y: .66}}},
							{Name: "scheduler", Points: []Point{{Y: .17}, {Y: .02}}},
							{Name: "epoll and netpoll", Points: []Point{{Y: .12}, {Y: .2}}},
							{Name: "batching", Points: []Point{{Y: .11}, {Y: 0}}},
							{Name: "driver and protocol", Points: []Point{{Y: .09}, {Y: .05}}},
							{Name: "other", Points: []Point{{Y: .08}, {Y: .07}}},
						},
					},
				},
			},
			{
				Title: "Boundaries",
				Charts: []Chart{
					{
						Title: "Against direct", Kind: Intervals, YLabel: "ratio", LogY: true, Categories: []string{"throughput", "p50", "CPU, all"},
						Series: []Series{{Name: "adaptive", Points: []Point{{Y: 2.61, Lo: 2.48, Hi: 2.77}, {Y: .338, Lo: .31, Hi: .36}, {None: true}}}},
						Marks:  []Mark{{At: 1, Label: "no difference"}},
					},
					{
						Title: "Where an operation's time goes", Kind: Segments, YLabel: "mean time", Unit: "us", Categories: []string{"pool 5", "pool 100, cold"},
						Series: []Series{{Name: "pool queue", Points: []Point{{Y: 210e3}, {Y: 12}}}, {Name: "connect", Points: []Point{{Y: 0}, {Y: 69e3}}}, {Name: "network and server", Points: []Point{{Y: 8100}, {Y: 13200}}}, {Name: "not attributable", Rest: true, Points: []Point{{Y: 310}, {Y: 450}}}},
					},
					{
						Title: "Throughput over time", Kind: TimeSeries, YLabel: "operations per second", XLabel: "time since the start",
						Series: []Series{{Name: "adaptive", Points: []Point{{X: 0, Y: 18000}, {X: 1, Y: 47000}, {X: 2, None: true}, {X: 3, Y: 51900}, {X: 4, Y: 52400}}}},
						Marks:  []Mark{{At: 0, To: 1, Label: "warm-up"}, {At: 3, Label: "checkpoint"}},
						Note:   "The second second was disturbed.",
					},
					{
						Title: "Workers and pool", Kind: Heat, XLabel: "connections in the pool", YLabel: "operations per second", Categories: []string{"1", "5", "100"},
						Series: []Series{{Name: "1 worker", Points: []Point{{Y: 4100}, {None: true}, {None: true}}}, {Name: "100 workers", Points: []Point{{Y: 4000}, {Y: 12900, Strong: true}, {Y: 9800}}}},
					},
					{
						Title: "CPU time by call", Kind: Flame, Unit: "ms", Categories: []string{"driver and protocol", "system calls and network I/O"},
						Root: &Frame{Name: "all", Value: 12400, Children: []*Frame{
							{Name: "example.org/app.worker", Value: 11800, Children: []*Frame{
								{Name: "example.org/driver.(*Conn).Query", Value: 9100, Category: "driver and protocol", Children: []*Frame{{Name: "syscall.write", Value: 6200, Category: "system calls and network I/O"}, {Name: "syscall.read", Value: 1900, Category: "system calls and network I/O"}}},
								{Name: "example.org/app.think", Value: 5},
							}},
						}},
					},
				},
			},
		},
	}
}

func TestGolden(t *testing.T) {
	for _, f := range Formats() {
		t.Run(string(f), func(t *testing.T) {
			var got bytes.Buffer
			if err := sample().Write(&got, f); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join("testdata", "sample."+string(f))
			if *rewrite {
				if err := os.WriteFile(path, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got.String()); diff != "" {
				t.Errorf("differs from %s; if that is meant, run with -rewrite (-want +got):\n%s", path, diff)
			}
		})
	}
}

func TestHTMLNeedsNothingElse(t *testing.T) {
	var b bytes.Buffer
	if err := sample().Write(&b, FormatHTML); err != nil {
		t.Fatal(err)
	}
	if m := regexp.MustCompile(`(?i)https?:|<link|@import|url\(|<img|src=`).FindString(b.String()); m != "" {
		t.Errorf("the page refers to something outside: %q", m)
	}
	if strings.Contains(b.String(), "<of anything>") {
		t.Error("text is not escaped")
	}
	if b.Len() > 300<<10 {
		t.Errorf("%d bytes", b.Len())
	}
}

func TestChartsOfDegenerateData(t *testing.T) {
	for name, c := range map[string]Chart{
		"all zero bars":  {Kind: Bars, Categories: []string{"a"}, Series: []Series{{Name: "s", Points: []Point{{}}}}},
		"one point":      {Kind: Lines, Series: []Series{{Name: "s", Points: []Point{{X: 1, Y: 1}}}}},
		"one log point":  {Kind: Lines, LogX: true, LogY: true, Series: []Series{{Name: "s", Points: []Point{{X: 10, Y: 10}}}}},
		"one percentile": {Kind: Percentiles, LogY: true, Series: []Series{{Name: "s", Points: []Point{{X: .5, Y: 3}}}}},
		"only minimum":   {Kind: Percentiles, Series: []Series{{Name: "s", Points: []Point{{X: 0, Y: 3}}}}},
		"empty shares":   {Kind: Stacked, Categories: []string{"a"}, Series: []Series{{Name: "s", Points: []Point{{}}}}},
	} {
		if err := c.validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if svg := drawChart(&c, "c"); strings.Contains(svg, "NaN") || strings.Contains(svg, "Inf") {
			t.Errorf("%s: a coordinate is not a number:\n%s", name, svg)
		}
	}
}

func TestJSONRoundTrip(t *testing.T) {
	var b bytes.Buffer
	if err := sample().Write(&b, FormatJSON); err != nil {
		t.Fatal(err)
	}
	var back Doc
	if err := json.Unmarshal(b.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	want := sample()
	want.Schema = Schema
	if diff := cmp.Diff(want, &back); diff != "" {
		t.Errorf("report changed on its way through JSON:\n%s", diff)
	}
}

func TestRefusals(t *testing.T) {
	for want, change := range map[string]func(*Doc){
		"environment":   func(d *Doc) { d.Env = nil },
		"lacks command": func(d *Doc) { d.Env.Command = nil },
		"no title":      func(d *Doc) { d.Title = "" },
		"cells":         func(d *Doc) { d.Sections[0].Tables[0].Rows[1] = Cells("x") },
		"points":        func(d *Doc) { d.Sections[0].Charts[0].Categories = []string{"a"} },
		"log axis":      func(d *Doc) { d.Sections[0].Charts[1].Series[0].Points[0].X = 0 },
		"quantile":      func(d *Doc) { d.Sections[1].Charts[0].Series[0].Points[0].X = 1 },
		"no series":     func(d *Doc) { d.Sections[1].Charts[0].Series = nil },
		"unknown kind":  func(d *Doc) { d.Sections[1].Charts[0].Kind = "pie" },
	} {
		d := sample()
		change(d)
		var b bytes.Buffer
		if err := d.Write(&b, FormatText); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error = %v, want mention of %q", err, want)
		}
		if b.Len() > 0 {
			t.Errorf("%s: something was written all the same", want)
		}
	}
	if err := sample().Write(io.Discard, "pdf"); err == nil {
		t.Error("an unknown format was accepted")
	}
}

func TestScaleTicksAndLabels(t *testing.T) {
	for _, tc := range []struct {
		kind   scaleKind
		lo, hi float64
		want   string
	}{
		{linear, 0, 54_800, "0 20k 40k 60k"},
		{linear, 0, 0.9, "0 0.2 0.4 0.6 0.8 1"},
		{logarithmic, 0.1, 100, "0.1 1 10 100"},
		{logarithmic, 3, 40, "2 5 10 20 50"},
		{nines, 0, .999, "min p50 p90 p99 p99.9"},
	} {
		s := newScale(tc.kind, tc.lo, tc.hi, 0, 100)
		var got []string
		for _, v := range s.ticks {
			got = append(got, s.label(v))
		}
		if strings.Join(got, " ") != tc.want {
			t.Errorf("[%v, %v]: ticks %q, want %q", tc.lo, tc.hi, strings.Join(got, " "), tc.want)
		}
	}
}

func TestReadDocRefusals(t *testing.T) {
	var whole bytes.Buffer
	if err := sample().Write(&whole, FormatJSON); err != nil {
		t.Fatal(err)
	}
	for want, text := range map[string]string{
		"is empty":         " \n",
		"cut short":        whole.String()[:whole.Len()/2],
		"invalid char":     "report",
		"weir.report/2":    `{"schema": "weir.report/2", "sections": "of another form"}`,
		"no title":         `{"schema": "weir.report/1"}`,
		"cannot unmarshal": `{"schema": "weir.report/1", "sections": 3}`,
	} {
		if _, err := ReadDoc(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error = %v, want mention of %q", err, want)
		}
	}
	// Reports of before there was a version.
	old := strings.Replace(whole.String(), `"schema": "`+Schema+`",`, "", 1)
	if d, err := ReadDoc(strings.NewReader(old)); err != nil || d.Schema != Schema {
		t.Errorf("a report without a version: %v", err)
	}
}

// FuzzReadDoc reads what claims to be a report. What is accepted can be written
// in every format, and has no coordinate that is not a number.
func FuzzReadDoc(f *testing.F) {
	for _, s := range sample().Sections {
		for _, c := range s.Charts {
			var b bytes.Buffer
			if err := (&Doc{Title: "t", Env: sample().Env, Sections: []Section{{Charts: []Chart{c}}}}).Write(&b, FormatJSON); err != nil {
				f.Fatal(err)
			}
			f.Add(b.Bytes())
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := ReadDoc(bytes.NewReader(b))
		if err != nil || len(b) > 1<<16 {
			return
		}
		for _, format := range Formats() {
			var out strings.Builder
			if err := d.Write(&out, format); err != nil {
				if format == FormatSVG && strings.Contains(err.Error(), "no charts") {
					continue
				}
				t.Fatalf("%s: %v", format, err)
			}
			if format == FormatSVG && coordinate.MatchString(out.String()) {
				t.Errorf("a coordinate is not a number: %s", coordinate.FindString(out.String()))
			}
		}
	})
}

var coordinate = regexp.MustCompile(`(?:[xydwh0-9]|width|height|[MLhvZ ])="?[^"<>]*(?:NaN|Inf)[^"<>]*"`)
