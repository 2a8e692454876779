package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
)

var galleryFile = flag.String("gallery", "", "write a page with every kind of chart, and the awkward ones, to this file")

// gallery is a page of charts that are hard to draw.
func gallery() *Doc {
	d := &Doc{Title: "Gallery of charts", Subtitle: "Every kind, and what is awkward about it. Figures are made up.", Env: sample().Env}
	d.Sections = []Section{
		{Title: "Bars", Charts: galleryBars()},
		{Title: "Intervals", Charts: galleryIntervals()},
		{Title: "Lines", Charts: galleryLines()},
		{Title: "Time", Charts: galleryTime()},
		{Title: "Shares and segments", Charts: gallerySegments()},
		{Title: "Heat maps", Charts: galleryHeat()},
		{Title: "Flame graphs", Charts: galleryFlames()},
	}
	return d
}

// points makes points of values, with ranges of the given share around them.
func points(share float64, values ...float64) []Point {
	out := make([]Point, len(values))
	for i, v := range values {
		out[i].Y = v
		if share > 0 {
			out[i].Lo, out[i].Hi = v*(1-share), v*(1+share)
		}
	}
	return out
}

func numbered(format string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf(format, i+1)
	}
	return out
}

func galleryBars() []Chart {
	r := rand.New(rand.NewPCG(1, 1))
	many := make([]float64, 40)
	for i := range many {
		many[i] = r.Float64() * 90000
	}
	return []Chart{
		{Title: "One case", Kind: Bars, YLabel: "operations per second", Categories: []string{"direct"}, Series: []Series{{Name: "rate", Points: points(.1, 19964)}}},
		{Title: "One case, zero", Kind: Bars, Categories: []string{"direct"}, Series: []Series{{Name: "rate", Points: points(0, 0)}}},
		{Title: "Names in two lines", Kind: Bars, YLabel: "operations per second", Categories: []string{"direct connection", "PgBouncer transaction", "weir without window", "weir window 10 ms", "weir adaptive lanes"}, Series: []Series{{Name: "rate", Points: points(.06, 19964, 17800, 24511, 4565, 52110)}}},
		{
			Title: "Two series, with a limit and a gap", Kind: Bars, YLabel: "p99, ms", Categories: numbered("case %d", 6),
			Series: []Series{{Name: "64 clients", Points: append(points(.08, 4, 8, 15, 16, 23), Point{None: true})}, {Name: "256 clients", Points: points(.08, 9, 12, 19, 29, 31, 42)}},
			Marks:  []Mark{{At: 20, Label: "limit 20 ms"}},
		},
		{Title: "Huge differences", Kind: Bars, YLabel: "ops/s", Categories: []string{"a", "b", "c", "d"}, Series: []Series{{Name: "rate", Points: points(0, 3, 800, 52110, 1_920_000)}}},
		{Title: "Above and below zero", Kind: Bars, YLabel: "change", Unit: "%", Categories: []string{"p50", "p95", "p99", "rate"}, Series: []Series{{Name: "change", Points: []Point{{Y: -12, Lo: -15, Hi: -8}, {Y: 4, Lo: -1, Hi: 9}, {Y: 0}, {Y: 23, Lo: 20, Hi: 27}}}}},
		{
			Title: "Long names", Kind: Bars, YLabel: "operations per second", Categories: []string{
				"PostgreSQL 15.20, pool 100, 100 workers, warm, prepared statements, loopback",
				"PostgreSQL 15.20, pool 5, 100 workers, warm, prepared statements, loopback",
				"MariaDB 10.11.19, pool 100, 100 workers, warm, prepared statements, unix socket", "sleep",
			},
			Series: []Series{{Name: "rate", Points: points(.05, 9817, 7611, 5311, 19422)}},
		},
		{Title: "Forty cases", Kind: Bars, YLabel: "operations per second", Categories: numbered("window %d us", 40), Series: []Series{{Name: "rate", Points: points(.1, many...)}}},
		{Title: "Twelve cases, three series", Kind: Bars, YLabel: "us of CPU per operation", Categories: numbered("workload number %d", 12), Series: []Series{{Name: "client", Points: points(.1, many[:12]...)}, {Name: "weir", Points: points(.1, many[12:24]...)}, {Name: "server", Points: points(.1, many[24:36]...)}}},
	}
}

func galleryIntervals() []Chart {
	return []Chart{
		{
			Title: "Ratios to the baseline", Kind: Intervals, YLabel: "ratio to direct", LogY: true, Categories: []string{"throughput", "p50", "p99", "CPU, all", "CPU, server"},
			Series: []Series{
				{Name: "weir", Points: []Point{{Y: 2.61, Lo: 2.48, Hi: 2.77}, {Y: .34, Lo: .31, Hi: .36}, {Y: .92, Lo: .7, Hi: 1.25}, {Y: .51, Lo: .49, Hi: .54}, {Y: .27, Lo: .26, Hi: .28}}},
				{Name: "PgBouncer", Points: []Point{{Y: .86, Lo: .81, Hi: .9}, {Y: 1.16, Lo: 1.1, Hi: 1.22}, {Y: 1.4, Lo: 1.1, Hi: 1.9}, {Y: 1.31, Lo: 1.28, Hi: 1.35}, {None: true}}},
			},
			Marks: []Mark{{At: 1, Label: "no change"}},
		},
		{
			Title: "An A/A run", Kind: Intervals, YLabel: "ratio B/A", Categories: []string{"throughput", "p50", "CPU"}, Series: []Series{{Name: "B/A", Points: []Point{{Y: 1.002, Lo: .984, Hi: 1.019}, {Y: .997, Lo: .97, Hi: 1.022}, {Y: 1.001, Lo: .996, Hi: 1.007}}}},
			Marks: []Mark{{At: .97, To: 1.03, Label: "differences below 3 % count as none"}},
		},
		{Title: "Eight decades", Kind: Intervals, LogY: true, YLabel: "latency", Unit: "ns", Categories: []string{"clock read", "channel", "loopback", "flush", "a very long name of something that takes a good while to be done with"}, Series: []Series{{Name: "cost", Points: points(.4, 36, 210, 24e3, 3.1e6, 2.2e9)}}},
	}
}

func galleryLines() []Chart {
	line := func(name string, pts ...float64) Series {
		s := Series{Name: name}
		for i := 0; i+1 < len(pts); i += 2 {
			s.Points = append(s.Points, Point{X: pts[i], Y: pts[i+1], Lo: pts[i+1] * .93, Hi: pts[i+1] * 1.06})
		}
		return s
	}
	var nine []Series
	for i, name := range numbered("payload of %d00 bytes", 9) {
		f := 1 + float64(i)/3
		nine = append(nine, line(name, 1, 900*f, 2, 1700*f, 4, 2600*f, 8, 2900*f, 16, 2950*f))
	}
	return append([]Chart{
		{Title: "Pool size against throughput", Kind: Lines, LogX: true, XLabel: "connections in the pool", YLabel: "operations per second", Series: []Series{
			line("warm", 1, 4100, 2, 7600, 5, 12900, 10, 15200, 20, 15500, 50, 14900, 100, 13800), line("cold", 1, 4000, 2, 7400, 5, 11800, 10, 12000, 20, 9900, 50, 6100, 100, 3500),
		}, Marks: []Mark{{At: 10, Label: "smallest of the plateau"}}},
		{Title: "Lines that end together", Kind: Lines, XLabel: "workers", YLabel: "rows per second", Series: []Series{line("batch 1", 1, 10, 2, 19, 3, 30), line("batch 10", 1, 12, 2, 22, 3, 31), line("batch 100", 1, 14, 2, 25, 3, 31.5), line("batch 1000", 1, 9, 2, 20, 3, 30.5), line("batch 10000", 1, 5, 2, 12, 3, 30)}},
		{Title: "Nine lines", Kind: Lines, LogX: true, LogY: true, XLabel: "workers", YLabel: "rows per second", Series: nine},
		{Title: "One point", Kind: Lines, XLabel: "workers", YLabel: "rows per second", Series: []Series{line("alone", 5, 100)}},
		{Title: "Zeros", Kind: Lines, XLabel: "workers", YLabel: "errors", Series: []Series{{Name: "errors", Points: []Point{{X: 1}, {X: 2}, {X: 3}}}}},
		{Title: "With a gap, and six decades", Kind: Lines, LogY: true, XLabel: "round", YLabel: "fsyncs per second", Series: []Series{{Name: "fsyncs", Points: []Point{{X: 1, Y: .02}, {X: 2, Y: 4}, {X: 3, None: true}, {X: 4, Y: 310}, {X: 5, Y: 21000}}}}},
	}, galleryPercentiles()...)
}

func galleryPercentiles() []Chart {
	tail := func(name string, base, growth, most float64) Series {
		s := Series{Name: name}
		for n := 0; n <= 50 && float64(n)/10 <= most; n++ {
			q := 1 - math.Pow(10, -float64(n)/10)
			s.Points = append(s.Points, Point{X: q, Y: base * math.Exp(growth*float64(n)/10)})
		}
		return s
	}
	return []Chart{
		{Title: "Latency in nines", Kind: Percentiles, LogY: true, XLabel: "percentile of operations", YLabel: "latency", Unit: "ms", Series: []Series{tail("direct", .9, .9, 5), tail("weir", .4, .7, 4.5), tail("weir, window 10 ms", 9.8, .1, 4.2), tail("PgBouncer", 1, .95, 5)}, Marks: []Mark{{At: 20, OnY: true, Label: "limit 20 ms"}}},
		{Title: "Few operations", Kind: Percentiles, YLabel: "latency", Unit: "ms", Series: []Series{tail("direct", .9, .4, 1)}},
	}
}

func galleryTime() []Chart {
	r := rand.New(rand.NewPCG(2, 2))
	walk := func(name string, n int, level, step float64) Series {
		s := Series{Name: name}
		for i := range n {
			level = max(level+step*(r.Float64()-.5), 1)
			p := Point{X: float64(i), Y: level, Lo: level * .9, Hi: level * 1.1}
			if i > n/2 && i < n/2+n/20 {
				p = Point{X: float64(i), None: true}
			}
			s.Points = append(s.Points, p)
		}
		return s
	}
	return []Chart{
		{
			Title: "Ten minutes with events", Kind: TimeSeries, XLabel: "time since the start", YLabel: "operations per second", Series: []Series{walk("weir", 600, 52000, 3000), walk("direct", 600, 20000, 2000)},
			Marks: []Mark{{At: 0, To: 45, Label: "warm-up"}, {At: 240, Label: "checkpoint begins"}, {At: 262, Label: "checkpoint ends"}, {At: 300, To: 330, Label: "server stopped"}, {At: 590, Label: "end of the load"}},
		},
		{Title: "Ten seconds", Kind: TimeSeries, YLabel: "p99", Unit: "ms", LogY: true, Series: []Series{walk("p99", 10, 12, 9)}},
		{Title: "One second", Kind: TimeSeries, YLabel: "ops/s", Series: []Series{walk("rate", 1, 12, 9)}},
	}
}

func gallerySegments() []Chart {
	segment := func(name string, v ...float64) Series { return Series{Name: name, Points: points(0, v...)} }
	timeline := []Series{
		segment("pool queue", 8, 210000, 12), segment("connect", 0, 0, 69000), segment("check", 2, 3, 2), segment("encode", 3, 3, 3), segment("send", 11, 14, 12),
		segment("network and server", 92, 8100, 13200), segment("receive", 6, 8, 7), segment("wake-up", 14, 900, 1200), segment("decode", 4, 4, 5), segment("release", 1, 2, 2), segment("unattributed", 1, 3, 4),
	}
	var forty []Series
	for i := range 3 {
		s := Series{Name: fmt.Sprintf("part %d", i+1)}
		for j := range 40 {
			s.Points = append(s.Points, Point{Y: float64(1 + (i+2)*(j+3)%17)})
		}
		forty = append(forty, s)
	}
	timeline[len(timeline)-1].Rest = true
	return []Chart{
		{Title: "Where an operation's time goes", Kind: Segments, YLabel: "mean time of an operation", Unit: "us", Categories: []string{"1 worker", "100 workers, pool 5", "100 workers, pool 100, cold"}, Series: timeline},
		{Title: "Shares of eleven", Kind: Stacked, Categories: []string{"1 worker", "100 workers, pool 5", "100 workers, pool 100, cold, a name that is much longer than there is room for"}, Series: shares(timeline)},
		{Title: "Forty cases in segments", Kind: Segments, Unit: "us", Categories: numbered("pool %d", 40), Series: forty},
		{Title: "Nothing", Kind: Segments, Unit: "us", Categories: []string{"a"}, Series: []Series{segment("x", 0)}},
	}
}

// shares turns amounts into shares of their category.
func shares(in []Series) []Series {
	out := make([]Series, len(in))
	for i, s := range in {
		out[i] = Series{Name: s.Name, Rest: s.Rest, Points: make([]Point, len(s.Points))}
		for j := range s.Points {
			sum := 0.0
			for _, o := range in {
				sum += o.Points[j].Y
			}
			out[i].Points[j].Y = s.Points[j].Y / sum
		}
	}
	return out
}

func galleryHeat() []Chart {
	r := rand.New(rand.NewPCG(3, 3))
	grid := func(rows, columns int, name string, value func(i, j int) Point) []Series {
		out := make([]Series, rows)
		for i := range out {
			out[i].Name = fmt.Sprintf(name, 1<<i)
			if rows > 12 {
				out[i].Name = fmt.Sprintf(name, i+1)
			}
			for j := range columns {
				out[i].Points = append(out[i].Points, value(i, j))
			}
		}
		return out
	}
	var pools []string
	for j := range 7 {
		pools = append(pools, fmt.Sprint(1<<j))
	}
	return []Chart{
		{Title: "Workers and pool", Kind: Heat, XLabel: "connections in the pool", SeriesLabel: "load", YLabel: "operations per second", Unit: "/s", Categories: pools, Series: grid(8, 7, "%d workers", func(i, j int) Point {
			if j > i {
				return Point{None: true}
			}
			return Point{Y: 4000 * math.Sqrt(float64(int(1)<<j)) * (1 - .04*float64(i-j)), Strong: i == 4 && j == 4}
		})},
		{Title: "Latency over time", Kind: Heat, LogY: true, XLabel: "seconds", YLabel: "operations", Categories: numbered("%d s", 150), Series: grid(30, 150, "2^%d us", func(i, j int) Point {
			v := 4000 * math.Exp(-math.Pow(float64(i)-12-6*math.Sin(float64(j)/40), 2)/8) * (.5 + r.Float64())
			return Point{Y: math.Floor(v), None: v < 1}
		})},
		{Title: "One cell", Kind: Heat, YLabel: "ratio", Categories: []string{"only"}, Series: []Series{{Name: "row", Points: points(0, 1)}}},
		{Title: "Long names everywhere", Kind: Heat, YLabel: "cost", Unit: "us", Categories: []string{"PostgreSQL over a unix socket", "PostgreSQL over loopback", "MariaDB over loopback"}, Series: []Series{{Name: "a workload with a name that does not end before it has said everything", Points: points(0, 1, 20, 300)}, {Name: "ping", Points: points(0, 1, 2, 3)}}},
	}
}

func galleryFlames() []Chart {
	r := rand.New(rand.NewPCG(4, 4))
	categories := []string{"system calls", "scheduler", "driver and protocol", "application"}
	var grow func(value float64, depth int, name, category string) *Frame
	grow = func(value float64, depth int, name, category string) *Frame {
		f := &Frame{Name: name, Value: value, Category: category}
		for left, i := value*.95, 0; depth < 24 && value > 8 && left > value*.05 && i < 5; i++ {
			part := left * (.3 + .7*r.Float64())
			left -= part
			c := category
			if r.Float64() < .25 {
				c = categories[r.IntN(4)]
			}
			f.Children = append(f.Children, grow(part, depth+1+r.IntN(3), fmt.Sprintf("example.org/some/module/package%d.(*Type).Method%d", depth, i), c))
		}
		return f
	}
	return []Chart{
		{Title: "CPU time", Kind: Flame, Unit: "ms", Categories: categories, Root: grow(12400, 0, "all", "")},
		{Title: "One frame", Kind: Flame, Unit: "B", Root: &Frame{Name: "main.main", Value: 3}},
	}
}

func TestGalleryIsValid(t *testing.T) {
	var b bytes.Buffer
	if err := gallery().Write(&b, FormatHTML); err != nil {
		t.Fatal(err)
	}
	if *galleryFile != "" {
		if err := os.WriteFile(*galleryFile, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range Formats() {
		if err := gallery().Write(io.Discard, f); err != nil {
			t.Errorf("%s: %v", f, err)
		}
	}
}

func TestChartsAreWellFormedXML(t *testing.T) {
	for _, d := range []*Doc{sample(), gallery()} {
		for _, s := range d.Sections {
			for _, c := range s.Charts {
				svg := drawChart(&c, "c1-1")
				if err := wellFormed(svg); err != nil {
					t.Errorf("%s: %v", c.Title, err)
				}
				if strings.Contains(svg, "NaN") || strings.Contains(svg, "Inf") {
					t.Errorf("%s: a coordinate is not a number", c.Title)
				}
			}
		}
		var b strings.Builder
		if err := d.Write(&b, FormatSVG); err != nil {
			t.Fatal(err)
		}
		if err := wellFormed(b.String()); err != nil {
			t.Errorf("%s: %v", d.Title, err)
		}
		if strings.Contains(b.String(), "var(") {
			t.Errorf("%s: the picture has a colour that depends on a page", d.Title)
		}
	}
}

func wellFormed(text string) error {
	for d := xml.NewDecoder(strings.NewReader(text)); ; {
		switch _, err := d.Token(); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}
