package suite

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/report"
)

// shop is a suite as products write theirs.
type shop struct {
	Outcome `json:"-"`
	Extra   string   `json:"extra,omitempty"`
	Files   []string `json:"profiles,omitempty"`
}

func (s *shop) ProfileFiles() []string { return s.Files }

func (s *shop) Targets() []Target {
	goal := AtLeast("sales-1", "a", "b", "rate", 1.5, "b is ahead")
	if r := s.Find("sales-1"); r != nil {
		if t, ok := goal.Judge(r); ok {
			return []Target{t}
		}
	}
	return nil
}

func (s *shop) Report() *report.Doc {
	return s.Layout("A shop", "made up", nil, TargetSection(s.Targets())...)
}
func (s *shop) Brief() *report.Doc { return Shorten(s.Report(), s.Tables("rate"), s.LeftOut()) }

var shopFile = &File{Name: "shop.json", Bench: "shop", Schema: "shop/1", Group: "kind", Factors: []string{"size"}, Samples: true}

// side does so many operations a second.
func side(name string, rate int64, invalid ...string) bench.Side {
	return bench.Side{Name: name, Factors: map[string]string{"size": name + name}, Run: func(_ context.Context, round int) (bench.Sample, error) {
		return bench.Sample{Seconds: 1, Ops: rate + int64(round), Invalid: invalid, Server: &bench.ServerCounters{Ops: rate}}, nil
	}}
}

// steps are two groups, and one that fails unless it is told not to.
func steps(r *Runner, broken error) []Step {
	measure := func(name string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := r.Measure(ctx, bench.Experiment{
				Description: bench.Description{Name: name, Title: "Sales " + name, Rounds: 3, Factors: map[string]string{"kind": "sales"}},
				Sides:       []bench.Side{side("a", 100), side("b", 200)},
			}, measure.ReadEnvironment(), "")
			return err
		}
	}
	both := func(ctx context.Context) error { return errors.Join(measure("up")(ctx), measure("down")(ctx)) }
	return []Step{
		{Group: "sales", Names: []string{"sales-1"}, Run: measure("sales-1")},
		{Group: "sales", Names: []string{"sales-2"}, Run: measure("sales-2")},
		{Group: "sick", Names: []string{"sick"}, Run: func(context.Context) error { return broken }},
		{Group: "moves", Names: []string{"up", "down"}, Run: both},
		{Names: []string{"idle"}, Run: func(context.Context) error { r.Leave("idle: nobody is"); return nil }},
	}
}

func TestExperimentsAreChosenByNameOrGroup(t *testing.T) {
	for names, want := range map[string]string{
		"":             "sales-1 sales-2 up down",
		"sales":        "sales-1 sales-2",
		"sales-2,down": "sales-2 down",
		"idle,up":      "up",
	} {
		out := &Outcome{}
		o := Options{Out: t.TempDir()}
		if names != "" {
			o.Experiments = strings.Split(names, ",")
		}
		r, err := NewRunner(o, out)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Run(t.Context(), steps(r, nil)); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range out.Results {
			got = append(got, r.Experiment.Name)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q ran %q, want %q", names, got, want)
		}
	}
	_, _, err := Choose(steps(nil, nil), []string{"sales", "sale"})
	want := `no experiment "sale": want one or more of sales (sales-1, sales-2), sick, moves (up, down), idle`
	if err == nil || err.Error() != want {
		t.Errorf("said %v, want %s", err, want)
	}
}

func TestAStepThatFails(t *testing.T) {
	broken := errors.New("it broke")
	for _, independent := range []bool{false, true} {
		out := &Outcome{}
		r, err := NewRunner(Options{Out: t.TempDir()}, out)
		if err != nil {
			t.Fatal(err)
		}
		r.Independent = independent
		err = r.Run(t.Context(), steps(r, broken))
		if want := map[bool]int{false: 2, true: 4}[independent]; !errors.Is(err, broken) || len(out.Results) != want {
			t.Errorf("independent %v: %d results, want %d; error %v", independent, len(out.Results), want, err)
		}
		if said := strings.Contains(fmt.Sprint(out.Left), "sick: it broke"); said != independent {
			t.Errorf("independent %v: left out %q", independent, out.Left)
		}
	}
}

// sold is a saved run of the shop.
func sold(t *testing.T) (string, *shop) {
	t.Helper()
	dir, run := t.TempDir(), &shop{Extra: "more"}
	run.Engine = MariaDB
	r, err := NewRunner(Options{Out: dir}, &run.Outcome)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Run(t.Context(), steps(r, nil)); err != nil {
		t.Fatal(err)
	}
	if _, err := NewRunner(Options{Out: dir}, &Outcome{}); err == nil || !strings.Contains(err.Error(), dir+" already holds results (down/results.jsonl)") {
		t.Errorf("a second run, not resumed: %v", err)
	}
	return dir, run
}

func TestASavedRunIsLoaded(t *testing.T) {
	dir, run := sold(t)
	var stdout bytes.Buffer
	if err := new(Flags).Finish(shopFile, dir, run, nil, &stdout); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(stdout.String(), "Sales up") || !strings.HasSuffix(stdout.String(), "report  "+filepath.Join(dir, "report.html")+"\n") {
		t.Errorf("printed\n%s", stdout.String())
	}
	var asked Flags
	set := pflag.NewFlagSet("bench", pflag.ContinueOnError)
	asked.Add(set, "shop", "mini")
	if err := set.Parse([]string{"--json"}); err != nil {
		t.Fatal(err)
	}
	stdout.Reset()
	if err := asked.Finish(shopFile, dir, run, nil, &stdout); err != nil || !json.Valid(stdout.Bytes()) || !strings.Contains(stdout.String(), "Sales up") {
		t.Errorf("with --json: %v\n%s", err, stdout.String())
	}
	for name, want := range map[string]string{
		"report.html": "b is ahead", "report.md": "## Targets", "report.csv": "Sales sales-1", "report.json": "weir.report/",
		"summary.csv": "kind,experiment,case,size,metric,unit,median,lo,hi,rounds,invalid\nsales,sales-1,a,aa,rate,ops/s,101,100,102,3,0\n",
		samplesFile:   `{"experiment":"sales-1","case":"a","factors":{"kind":"sales","size":"aa"},`,
		"shop.json":   `"scenario": "shop"`,
	} {
		if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !bytes.Contains(b, []byte(want)) {
			t.Errorf("%s, %v: no %q in\n%.400s", name, err, want, b)
		}
	}
	// Each line of samples is one object with the server's name, and its counters by another.
	lines, err := os.ReadFile(filepath.Join(dir, samplesFile))
	if n := bytes.Count(lines, []byte("\n")); err != nil || n != 24 || bytes.Count(lines, []byte(`"server":"`)) != n || bytes.Count(lines, []byte(`"server_counters":{"ops":`)) != n || bytes.Contains(lines, []byte(`"server":{`)) || bytes.Count(lines, []byte(`,"round":`)) != n {
		t.Errorf("%d lines of samples, %v:\n%.400s", n, err, lines)
	}
	again := &shop{}
	if err := shopFile.Load(dir, again); err != nil {
		t.Fatal(err)
	}
	if again.Extra != "more" || again.Engine != MariaDB || len(again.Left) != 1 {
		t.Errorf("loaded %+v", again)
	}
	if diff := cmp.Diff(run.Report(), again.Report()); diff != "" {
		t.Errorf("the report of a loaded run differs (-run +loaded):\n%s", diff)
	}
}

func TestLoadRefusesWhatIsNotWhole(t *testing.T) {
	dir := t.TempDir()
	if err := shopFile.Load(dir, &shop{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an empty directory: %v", err)
	}
	for content, want := range map[string]string{
		"{":                                    "read " + dir,
		`{"schema":"shop/9"}`:                  `schema "shop/9", this program reads "shop/1"`,
		`{"schema":"shop/1","experiments":[]}`: "names no experiments",
		`{"schema":"shop/1","experiments":["gone"]}`:                         "the result of gone is missing",
		`{"schema":"shop/1","experiments":["../etc"]}`:                       "is not a file name",
		`{"schema":"shop/1","experiments":["x"],"profiles":["/etc/passwd"]}`: "is not a file name",
	} {
		if err := os.WriteFile(filepath.Join(dir, shopFile.Name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := shopFile.Load(dir, &shop{}); err == nil || errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error that says %q", content, err, want)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, shopFile.Name), []byte(`{"scenario":"garden"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := shopFile.Load(dir, &shop{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("another suite's: %v", err)
	}
}

func TestLoadSaysWhetherTheDirectoryExists(t *testing.T) {
	dir := t.TempDir()
	for path, want := range map[string]string{dir: "holds no run of weir bench", filepath.Join(dir, "nosuch"): "no such file or directory"} {
		if _, _, err := Load(path, nil); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want fs.ErrNotExist that says %q", path, err, want)
		}
	}
}

func TestBrokenPromisesFallShort(t *testing.T) {
	o := &Outcome{Results: []*bench.Result{{
		Experiment: bench.Description{Name: "focus"},
		Cases:      []*bench.Case{{Name: "poll", Samples: []bench.Sample{{}, {Round: 1, Invalid: []string{"1 of 9 messages were lost"}}}}},
	}}}
	err := Judge(o)
	if cli.ExitCode(err) != cli.ExitShortfall || !strings.Contains(err.Error(), "focus, poll, round 1: 1 of 9 messages were lost") {
		t.Errorf("error %v", err)
	}
	o.Results[0].Cases[0].Samples = o.Results[0].Cases[0].Samples[:1]
	if err := Judge(o); err != nil {
		t.Errorf("nothing is broken: %v", err)
	}
}

// TestStampedNamesOneRun: two that start in the same second do not share a directory.
func TestStampedNamesOneRun(t *testing.T) {
	if name := NewDirName("demo"); !strings.HasSuffix(name, fmt.Sprint("-", os.Getpid())) || !strings.HasPrefix(name, filepath.Join("out", "demo-2")) {
		t.Errorf("%s does not name this process", name)
	}
}
