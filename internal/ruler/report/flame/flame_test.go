package flame

import (
	"bytes"
	"errors"
	"flag"
	"maps"
	"math"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/pprof/profile"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/report"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the golden files")

// build makes a profile of stacks, written leaf first and parted by spaces, with
// the values that each has.
func build(types []*profile.ValueType, stacks map[string][]int64) *profile.Profile {
	p := &profile.Profile{SampleType: types, PeriodType: types[0], Period: 10_000_000, DurationNanos: 4e9}
	functions := make(map[string]*profile.Location)
	for _, stack := range slices.Sorted(maps.Keys(stacks)) {
		s := &profile.Sample{Value: stacks[stack]}
		for name := range strings.FieldsSeq(stack) {
			loc := functions[name]
			if loc == nil {
				id := uint64(len(functions) + 1)
				f := &profile.Function{ID: id, Name: name, Filename: "/src/" + strings.ReplaceAll(name, "/", "_") + ".go"}
				loc = &profile.Location{ID: id, Line: []profile.Line{{Function: f, Line: int64(10 * id)}}}
				functions[name] = loc
				p.Function = append(p.Function, f)
				p.Location = append(p.Location, loc)
			}
			s.Location = append(s.Location, loc)
		}
		p.Sample = append(p.Sample, s)
	}
	return p
}

func cpuProfile() *profile.Profile {
	return build([]*profile.ValueType{{Type: "samples", Unit: "count"}, {Type: "cpu", Unit: "nanoseconds"}}, map[string][]int64{
		"internal/runtime/syscall.Syscall6 syscall.write net.(*conn).Write github.com/jackc/pgx/v5.(*Conn).Query main.work main.main": {43, 430e6},
		"runtime.memmove github.com/jackc/pgx/v5.(*Conn).Query main.work main.main":                                                   {21, 210e6},
		"main.work main.work main.main":        {17, 170e6},
		"runtime.findRunnable runtime.mcall":   {11, 110e6},
		"example.org/odd.Thing":                {7, 70e6},
		"runtime.mallocgc main.work main.main": {34, 340e6},
	})
}

func heapProfile() *profile.Profile {
	return build([]*profile.ValueType{{Type: "alloc_objects", Unit: "count"}, {Type: "alloc_space", Unit: "bytes"}, {Type: "inuse_objects", Unit: "count"}, {Type: "inuse_space", Unit: "bytes"}}, map[string][]int64{
		"bytes.growSlice main.read main.main": {4000, 40e6, 2, 20480},
		"main.cache main.main":                {10, 1e6, 10, 1e6},
	})
}

func environment() *measure.Environment {
	return &measure.Environment{Time: time.Date(2026, 2, 18, 13, 5, 0, 0, time.UTC), CPU: "Example CPU", Cores: 2, Kernel: "6.18", Command: []string{"weir", "report", "cpu.pb.gz"}}
}

func TestGolden(t *testing.T) {
	for name, p := range map[string]*profile.Profile{"cpu": cpuProfile(), "heap": heapProfile()} {
		sections, err := Sections("weir", p, measure.DefaultRules())
		if err != nil {
			t.Fatal(err)
		}
		d := &report.Doc{Title: "Profile", Env: environment(), Sections: sections}
		for _, f := range []report.Format{report.FormatText, report.FormatSVG} {
			var got bytes.Buffer
			if err := d.Write(&got, f); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join("testdata", name+"."+string(f))
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
		}
	}
}

// The colour of a frame and the category table are made in different ways, and must
// tell the same.
func TestColoursAgreeWithCategories(t *testing.T) {
	p, rules := cpuProfile(), measure.DefaultRules()
	b, err := rules.Breakdown(p)
	if err != nil {
		t.Fatal(err)
	}
	root, err := Tree(p, "cpu", 1, categorise(rules))
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]float64)
	var walk func(f *report.Frame)
	walk = func(f *report.Frame) {
		c := f.Category
		if c == "" {
			c = measure.OtherCategory
		}
		got[c] += f.Self() / root.Value
		for _, child := range f.Children {
			walk(child)
		}
	}
	walk(root)
	sum := 0.0
	for _, c := range b.Categories {
		if math.Abs(got[c.Name]-c.Exclusive) > 1e-9 {
			t.Errorf("%s: %.4f of the colours, %.4f of the table", c.Name, got[c.Name], c.Exclusive)
		}
		sum += c.Exclusive
	}
	if math.Abs(sum-1) > 1e-9 {
		t.Errorf("exclusive shares add up to %v", sum)
	}
}

func TestSmallFramesAreGathered(t *testing.T) {
	stacks := map[string][]int64{"big root": {1, 1_000_000}}
	for _, s := range []string{"a", "b", "c"} {
		stacks[s+" root"] = []int64{1, 100}
	}
	root, err := Tree(build([]*profile.ValueType{{Type: "samples"}, {Type: "cpu"}}, stacks), "cpu", 1, func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	below := root.Children[0].Children
	if len(below) != 2 || below[1].Name != SmallFrames || below[1].Value != 300 {
		t.Errorf("below the root: %+v", below)
	}
	if s := root.Children[0].Self(); s != 0 {
		t.Errorf("the root took %v itself, although others took it", s)
	}
}

func TestRoundTogetherAddsUp(t *testing.T) {
	for _, shares := range [][]float64{{1}, {1. / 3, 1. / 3, 1. / 3}, {.9995, .0003, .0002}, {.125, .125, .25, .5}} {
		sum := 0
		for i, n := range roundTogether(shares, 1000) {
			sum += n
			if math.Abs(float64(n)-shares[i]*1000) >= 1 {
				t.Errorf("%v: part %d became %d", shares, i, n)
			}
		}
		if sum != 1000 {
			t.Errorf("%v: parts add up to %d", shares, sum)
		}
	}
}

func TestLiveProfilesOfThisProcess(t *testing.T) {
	keep := make([]byte, 8<<20)
	for _, name := range []string{"heap", "goroutine", "threadcreate"} {
		var b bytes.Buffer
		if err := pprof.Lookup(name).WriteTo(&b, 0); err != nil {
			t.Fatal(err)
		}
		p, err := Read(&b)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		sections, err := Sections("", p, measure.DefaultRules())
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		d := &report.Doc{Title: name, Env: environment(), Sections: sections}
		if err := d.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	keep[0] = 1
}

func TestRefusals(t *testing.T) {
	cpu := []*profile.ValueType{{Type: "samples"}, {Type: "cpu"}}
	for want, p := range map[string]*profile.Profile{
		"no CPU time":      build(cpu, nil),
		"no memory":        build(heapProfile().SampleType, nil),
		"negative value":   build(cpu, map[string][]int64{"main.a": {1, 500}, "main.b": {-1, -100}}),
		"has no values":    {},
		"holds no threads": build([]*profile.ValueType{{Type: "threads", Unit: "count"}}, nil),
	} {
		if _, err := Sections("", p, measure.DefaultRules()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error = %v, want mention of %q", err, want)
		}
	}
	for want, text := range map[string]string{"empty": "", "read profile": "{\"schema\": 1}", "unpack": "\x1f\x8bnot gzip"} {
		if _, err := Read(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error = %v, want mention of %q", err, want)
		}
	}
	if _, err := Read(failing{}); !errors.Is(err, errBroken) {
		t.Errorf("error = %v, want that of the file", err)
	}
}

var errBroken = errors.New("broken")

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errBroken }

func FuzzSections(f *testing.F) {
	for _, p := range []*profile.Profile{cpuProfile(), heapProfile()} {
		var packed, plain bytes.Buffer
		if err := p.Write(&packed); err != nil {
			f.Fatal(err)
		}
		if err := p.WriteUncompressed(&plain); err != nil {
			f.Fatal(err)
		}
		f.Add(packed.Bytes())
		f.Add(plain.Bytes())
	}
	rules := measure.DefaultRules()
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := Read(bytes.NewReader(b))
		if err != nil {
			return
		}
		sections, err := Sections("x", p, rules)
		if err != nil {
			return
		}
		d := &report.Doc{Title: "x", Env: environment(), Sections: sections}
		for _, format := range report.Formats() {
			if err := d.Write(&bytes.Buffer{}, format); err != nil && !strings.Contains(err.Error(), "no charts") {
				t.Fatalf("%s: %v", format, err)
			}
		}
	})
}
