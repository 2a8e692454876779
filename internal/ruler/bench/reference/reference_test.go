package reference

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/subject"
	"github.com/weirdb/weir/internal/ruler/bench/subject/moves"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
)

func TestDocumentsAreWhole(t *testing.T) {
	for _, d := range Documents() {
		if len(d.Tables) == 0 || len(d.Claims) == 0 || len(d.Published()) == 0 {
			t.Errorf("%s has %d tables, %d claims", d.ID, len(d.Tables), len(d.Claims))
		}
		titles := make(map[string]bool)
		for _, table := range d.Tables {
			if key := table.Section + ": " + table.Title; titles[key] {
				t.Errorf("%s: two tables %q", d.ID, key)
			} else {
				titles[key] = true
			}
			published := 0
			for i, c := range table.Columns {
				if c.Own {
					continue
				}
				if published++; published <= i {
					t.Errorf("%s, %s: a column of ours stands before %q, which the document has", d.ID, table.Title, c.Name)
				}
				if _, ok := bench.MetricByKey(c.Metric, subject.All()...); c.Metric != "" && !ok {
					t.Errorf("%s, %s: no metric %q", d.ID, table.Title, c.Metric)
				}
			}
			for _, r := range table.Rows {
				if len(r.Cells) != published {
					t.Errorf("%s, %s, %s: %d cells for %d columns", d.ID, table.Title, r.Cells[0], len(r.Cells), published)
				}
			}
		}
		for _, c := range d.Claims {
			if c.Text == "" || c.Said == "" || c.Reading == "" || c.Judge == nil {
				t.Errorf("%s: claim %+v", d.ID, c)
			}
		}
	}
}

// Every place that a document names is a part of each plan that measures.
func TestPlansMeasureWhatDocumentsName(t *testing.T) {
	for _, plan := range Plans() {
		parts, err := PartsOf(plan)
		if err != nil {
			t.Fatal(err)
		}
		names := make(map[string]bool)
		for _, p := range parts {
			names[p.Name] = true
		}
		for _, d := range Documents() {
			if len(partsOf(parts, d.ID)) == 0 {
				t.Errorf("plan %s measures nothing for %s", plan, d.ID)
			}
			for _, table := range d.Tables {
				for _, r := range table.Rows {
					if r.At.Part != "" && !names[r.At.Part] {
						t.Errorf("plan %s has no part %s, which %s names", plan, r.At.Part, table.Title)
					}
				}
			}
		}
	}
	if _, err := PartsOf("all"); err == nil {
		t.Error("plan all is none")
	}
}

func TestChoose(t *testing.T) {
	parts, err := PartsOf("mini")
	if err != nil {
		t.Fatal(err)
	}
	names := func(asked ...string) string {
		chosen, err := choose(parts, asked)
		if err != nil {
			return err.Error()
		}
		var out []string
		for _, p := range chosen {
			i := slices.Index(p.Args, "--experiments")
			if i >= 0 {
				out = append(out, p.Name+"("+p.Args[i+1]+")")
			} else {
				out = append(out, p.Name)
			}
		}
		return strings.Join(out, " ")
	}
	for want, asked := range map[string][]string{
		"000-postgres(inserts-100,leak) 000-drivers-postgres(drivers) 000-mariadb(inserts-100) 000-drivers-mariadb(drivers)": {"000"},
		"000-mariadb(inserts-100) 003": {"003", "000-mariadb"},
		"001(delay,tunings)":           {"001/delay", "001/tunings"},
	} {
		if got := names(asked...); got != want {
			t.Errorf("%q: %s, want %s", asked, got, want)
		}
	}
	for asked, want := range map[string]string{"005": "no part \"005\": want some of 000, 000-postgres,", "003/pools": "has one experiment"} {
		if got := names(asked); !strings.Contains(got, want) {
			t.Errorf("%q: %s, want an error that says %q", asked, got, want)
		}
	}
	if i := slices.IndexFunc(parts, func(p Part) bool { return p.Name == "001" }); slices.Contains(parts[i].Args, "delay,tunings") {
		t.Errorf("choosing has changed the plan: %q", parts[i].Args)
	}
}

// steady is a case whose rounds lie within a percent of a rate.
func steady(name string, rate, latencyMs float64, rounds int, factors map[string]string) *bench.Case {
	c := &bench.Case{Name: name, Factors: factors}
	for i := range rounds {
		r := rate * (1 + float64(i%3)/100)
		s := bench.Sample{Round: i, Seconds: 2, Ops: int64(2 * r), InFlight: 100, Latency: spread(millis(latencyMs)), Groups: &bench.Groups{Flushes: 10, Items: 500}}
		c.Samples = append(c.Samples, s)
	}
	return c
}

func resultOf(name string, cases ...*bench.Case) *bench.Result {
	r := &bench.Result{
		Schema: bench.Schema, ID: name, Env: measure.ReadEnvironment(), Cases: cases,
		Experiment: bench.Description{Name: name, Title: name, Rounds: len(cases[0].Samples), Loop: "closed", Baseline: cases[0].Name, Factors: map[string]string{}},
	}
	r.Env.Durability = "none"
	r.Evaluate()
	return r
}

func window(ms string) map[string]string { return map[string]string{"via": "weir", "window": ms} }

// inserts are measured as if windows were worth what report 000 says, times good.
func inserts(rounds int, good float64) *bench.Result {
	return resultOf("inserts-100",
		steady("weir 0", 10_000, 10, rounds, window("0")), steady("weir 1", 10_100, 10, rounds, window("1")),
		steady("weir 10", 10_000*good, 12, rounds, window("10")), steady("weir 100", 900, 105, rounds, window("100")))
}

func verdicts(m *Measured, id string, t *testing.T) map[string]judged {
	t.Helper()
	d := documentOf(t, id)
	out := make(map[string]judged)
	for _, j := range d.judge(m) {
		out[j.Text] = j
	}
	return out
}

func TestClaimsAreJudged(t *testing.T) {
	const best, gained, worse, size = "MySQL: a 10 ms batch window achieves the best throughput", "MySQL: the gain over no batching", "MySQL: 100 ms batching degrades performance", "MySQL: the optimal batch holds 800 to 900 operations"
	measured := func(r *bench.Result) *Measured {
		return &Measured{parts: map[string]*PartResults{"000-mariadb": {Results: []*bench.Result{r}, State: State{Status: Complete}}}}
	}
	for _, tc := range []struct {
		name string
		m    *Measured
		want map[string]Verdict
	}{
		{"as the document says", measured(inserts(6, 2.5)), map[string]Verdict{best: Holds, gained: Holds, worse: Holds, size: DoesNotHold}},
		{"less", measured(inserts(6, 1.5)), map[string]Verdict{best: Holds, gained: DoesNotHold, worse: Holds}},
		{"slower", measured(inserts(6, 0.5)), map[string]Verdict{best: DoesNotHold, gained: DoesNotHold}},
		{"one round", measured(inserts(1, 2.5)), map[string]Verdict{best: CannotTell, gained: CannotTell, worse: CannotTell, size: CannotTell}},
		{"nothing", &Measured{}, map[string]Verdict{best: CannotTell, gained: CannotTell}},
	} {
		got := verdicts(tc.m, "000", t)
		for claim, want := range tc.want {
			if j := got[claim]; j.Verdict != want || j.Evidence == "" {
				t.Errorf("%s: %q: %s (%s), want %s", tc.name, claim, j.Verdict, j.Evidence, want)
			}
		}
	}
	broken := inserts(6, 2.5)
	broken.Cases[2].Samples[0].Invalid = []string{"a row is missing"}
	if j := verdicts(measured(broken), "000", t)[gained]; j.Verdict != CannotTell || !strings.Contains(j.Evidence, "a row is missing") {
		t.Errorf("a case that broke a promise: %s (%s)", j.Verdict, j.Evidence)
	}
}

// A speed that was measured while something else was at work decides nothing; a ratio
// of sides that took turns does, and so does memory.
func TestDisturbedFiguresDecideNothing(t *testing.T) {
	restless := func(c *bench.Case) {
		for i := range c.Samples {
			c.Samples[i].Machine = &measure.Activity{Seconds: 1, BusySeconds: 1, StealSeconds: 1, CPUKnown: true}
			c.Samples[i].Parts = []bench.Part{&moves.Transfer{PlainBytes: 1e6, PeakBytes: 10e6, Verified: "yes"}}
		}
	}
	a, b := steady("a", 100, 1, 6, map[string]string{"way": "a"}), steady("b", 300, 1, 6, map[string]string{"way": "b"})
	restless(a)
	restless(b)
	r := resultOf("dump-shop", a, b)
	m := &Measured{parts: map[string]*PartResults{"002": {Results: []*bench.Result{r}, State: State{Status: Complete}}}}
	at := At{"002", "dump-shop", "b"}
	for name, tc := range map[string]struct {
		judge func(*Measured) Judgement
		want  Verdict
	}{
		"speed":  {atLeast(at.figure("plain_rate", 1), 1e6, "speed"), CannotTell},
		"memory": {atMost(at.figure("peak", 1), 100, "memory"), Holds},
		"ratio":  {atLeast(at.over(at.with("a"), "rate"), 2, "ratio"), Holds},
		"apart":  {atLeast(apart(at, at.with("a"), "rate"), 2, "apart"), CannotTell},
	} {
		if j := tc.judge(m); j.Verdict != tc.want {
			t.Errorf("%s: %s (%s), want %s", name, j.Verdict, j.Evidence, tc.want)
		}
	}
}

// A leak is told from a heap that only breathes.
func TestHeapThatGrows(t *testing.T) {
	every := func(statements int64, bytes ...float64) *Measured {
		h := suite.Heap{Case: "weir auto", Bytes: 4e6, Objects: 6000}
		for i, b := range bytes {
			h.Readings = append(h.Readings, suite.HeapReading{Statements: int64(i) * statements, Bytes: b})
		}
		return &Measured{parts: map[string]*PartResults{"000-postgres": {Heaps: []suite.Heap{h}, State: State{Status: Complete}}}}
	}
	taken := func(bytes ...float64) *Measured { return every(50_000, bytes...) }
	for _, tc := range []struct {
		name string
		m    *Measured
		want Verdict
	}{
		{"too few to tell", every(1000, 5e6, 5.1e6, 5.2e6, 5.3e6), CannotTell},
		{"steady", taken(5e6, 4.9e6, 5.001e6, 5.002e6), CannotTell},
		{"leak", taken(5e6, 10e6, 15e6, 20e6), DoesNotHold},
		{"breathes", taken(5e6, 4.9e6, 15e6, 14e6), CannotTell},
		{"one reading", taken(5e6), CannotTell},
		{"nothing", &Measured{}, CannotTell},
	} {
		j := keepsNothing("000-postgres", "000-mariadb")(tc.m)
		if j.Verdict != tc.want || j.Evidence == "" || strings.Contains(j.Evidence, "No object is kept") != (tc.name == "steady") {
			t.Errorf("%s: %s (%s), want %s", tc.name, j.Verdict, j.Evidence, tc.want)
		}
	}
	got, why := heapFigure("000-postgres", "kB", func(h *suite.Heap) float64 { return h.Bytes / float64(h.Statements()) })(every(1000, 1, 2, 3))
	if why != "" || got.Median != 2000 {
		t.Errorf("allocated for each of 2000 statements: %v, %s", got.Median, why)
	}
}

func TestWithin(t *testing.T) {
	i := func(lo, hi float64, n int) bench.Interval {
		return bench.Interval{Median: (lo + hi) / 2, Lo: lo, Hi: hi, N: n}
	}
	for _, tc := range []struct {
		i           bench.Interval
		least, most float64
		want        Verdict
	}{
		{i(2, 3, 6), 2, math.Inf(1), Holds},
		{i(1, 3, 6), 2, math.Inf(1), CannotTell},
		{i(1, 1.9, 6), 2, math.Inf(1), DoesNotHold},
		{i(1, 1.9, 6), math.Inf(-1), 2, Holds},
		{i(2.1, 3, 6), math.Inf(-1), 2, DoesNotHold},
		{i(5, 5, 1), 2, math.Inf(1), CannotTell},
		{i(850, 870, 4), 800, 900, Holds},
	} {
		if got := within(tc.i, tc.least, tc.most); got != tc.want {
			t.Errorf("%+v in [%v, %v]: %s, want %s", tc.i, tc.least, tc.most, got, tc.want)
		}
	}
}

// A document's columns keep their order, each with ours beside it; what has no
// counterpart says why.
func TestTablesStandBesideOurs(t *testing.T) {
	d := documentOf(t, "000")
	m := &Measured{parts: map[string]*PartResults{"000-mariadb": {Results: []*bench.Result{inserts(3, 2)}, State: State{Status: Complete}}}}
	s := d.Tables[0].section(m)
	var columns []string
	for _, c := range s.Tables[0].Columns {
		columns = append(columns, c.Name)
	}
	if got, want := strings.Join(columns, "|"), "Batch Hint (ms)|Throughput|Throughput, here|Avg Latency|Avg Latency, here|against hint 0, here|operations in a group, here"; got != want {
		t.Errorf("columns %s, want %s", got, want)
	}
	row := s.Tables[0].Rows[2]
	if row[0].Text != "10" || row[1].Text != "82.6" || !strings.HasPrefix(row[2].Text, "20.2 [20.0, 20.4]") || !strings.HasPrefix(row[5].Text, "2.00") {
		t.Errorf("row %+v", row)
	}
	if text := strings.Join(s.Text, " "); !strings.Contains(text, `inserts-100 had no case "direct"`) {
		t.Errorf("nothing says why a row is empty: %q", text)
	}
	if len(s.Charts) != 1 || len(s.Charts[0].Categories) != 4 {
		t.Errorf("charts %+v", s.Charts)
	}
}

// script is a program that stands for weir: what is tested is what is run and kept.
func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "weir")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// keep has a part's directory hold a result, as weir profile leaves it.
const keep = `while [ "$1" != --out ]; do shift; done; mkdir -p "$2"; cp "$RESULT" "$2/"; echo "$@" >> "$2/calls"`

func allOf(t *testing.T, program string) Options {
	t.Helper()
	r := inserts(3, 2)
	dir := t.TempDir()
	if err := r.WriteFiles(dir); err != nil {
		t.Fatal(err)
	}
	t.Setenv("RESULT", filepath.Join(dir, r.Experiment.Name+".json"))
	return Options{
		Plan: "smoke", Out: t.TempDir(), Binary: script(t, program),
		Parts:  []Part{{Name: "000-mariadb", Document: "000", Args: []string{"profile"}}, {Name: "001", Document: "001", Args: []string{"profile", "two"}}},
		sleeps: func([]time.Duration) []bench.Slept { return nil },
		free:   func(string) (uint64, error) { return 1 << 50, nil },
	}
}

func runAll(t *testing.T, o Options, ctx context.Context) error {
	t.Helper()
	r, err := Start(o)
	if err != nil {
		return err
	}
	return r.Parts(ctx)
}

func calls(t *testing.T, o Options, part string) int {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(o.Out, part, "calls"))
	if err != nil {
		return 0
	}
	return strings.Count(string(b), "\n")
}

func checkPages(t *testing.T, o Options, want ...string) {
	t.Helper()
	var all strings.Builder
	for _, name := range []string{"index", "000", "001", "002", "003", "004"} {
		for _, ending := range []string{".html", ".md", ".json"} {
			b, err := os.ReadFile(filepath.Join(o.Out, name+ending))
			if err != nil || len(b) < 1000 {
				t.Fatalf("page %s%s: %d bytes, %v", name, ending, len(b), err)
			}
			all.Write(b)
		}
	}
	for _, w := range want {
		if !strings.Contains(all.String(), w) {
			t.Errorf("no page says %q", w)
		}
	}
}

func TestRunKeepsPagesAndResumes(t *testing.T) {
	o := allOf(t, keep+`; case "$*" in */001*) [ -e "$2/again" ] || { touch "$2/again"; echo "weir: no such luck" >&2; exit 1; };; esac`)
	err := runAll(t, o, t.Context())
	if err == nil || !strings.Contains(err.Error(), "001 failed: no such luck") {
		t.Fatalf("a part that fails: %v", err)
	}
	checkPages(t, o, "20.2 [20.0, 20.4]", "001: failed: no such luck", "000-mariadb")
	if err := runAll(t, o, t.Context()); err == nil || !strings.Contains(err.Error(), "already holds a run") {
		t.Errorf("a second run in the same directory: %v", err)
	}
	o.Resume, o.Plan = true, "mini"
	if err := runAll(t, o, t.Context()); err == nil || !strings.Contains(err.Error(), "--plan mini cannot resume it") {
		t.Errorf("another plan: %v", err)
	}
	o.Plan = "smoke"
	if err := runAll(t, o, t.Context()); err != nil {
		t.Fatal(err)
	}
	if a, b := calls(t, o, "000-mariadb"), calls(t, o, "001"); a != 1 || b != 2 {
		t.Errorf("parts ran %d and %d times, want the complete one once and the failed one again", a, b)
	}
	o.Verb = "all" // resumes what an earlier version wrote, without its verb
	if err := runAll(t, o, t.Context()); err != nil {
		t.Fatal(err)
	}
	peers := o
	peers.Verb = "peers"
	if err := runAll(t, peers, t.Context()); err == nil || !strings.Contains(err.Error(), "weir bench peers cannot resume it") {
		t.Errorf("another verb: %v", err)
	}
	o.Parts[0].Args = []string{"profile", "other"}
	if err := runAll(t, o, t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := calls(t, o, "000-mariadb"); n != 2 {
		t.Errorf("a part with other arguments ran %d times in all, want 2", n)
	}
}

// watched is a writer whose run is ended by a word that it reads.
type watched struct {
	bytes.Buffer // read when the program has ended
	word         string
	end          func()
}

func (w *watched) Write(p []byte) (int, error) {
	n, err := w.Buffer.Write(p)
	if strings.Contains(w.String(), w.word) {
		w.end()
	}
	return n, err
}

func TestRunThatIsInterrupted(t *testing.T) {
	o := allOf(t, keep+`; case "$*" in */001*) trap 'echo "weir: interrupted; all is stopped" >&2; exit 130' INT; echo it runs >&2; while :; do sleep 0.05; done;; esac`)
	ctx, cancel := context.WithCancel(t.Context())
	shown := &watched{word: "it runs", end: cancel}
	o.Output = shown
	err := runAll(t, o, ctx)
	if stopped := new(StoppedError); !errors.As(err, &stopped) || stopped.Part != "001" || !strings.Contains(err.Error(), "go on with --resume --out "+o.Out) {
		t.Fatalf("interrupted: %v", err)
	}
	if errors.Is(err, context.Canceled) {
		t.Errorf("%v wraps the end of the context: the hint would be replaced by the word for all verbs", err)
	}
	const last = "weir: interrupted"
	if text := shown.String(); !strings.Contains(text, "it runs") || strings.Contains(text, last) {
		t.Errorf("shown of the part: %q; that it stopped is said by the run alone", text)
	}
	if log, err := os.ReadFile(filepath.Join(o.Out, "001.log")); err != nil || !strings.Contains(string(log), last) {
		t.Errorf("log %q, %v, want all that the part said", log, err)
	}
	checkPages(t, o, "20.2 [20.0, 20.4]", "001: interrupted")
}

// killed in the environment makes this test binary a run whose first part does not end, to be
// killed.
const killed = "WEIR_REFERENCE_TEST_KILLED"

// A run that is killed leaves no part behind that would measure, and write, beside the next.
func TestRunThatIsKilled(t *testing.T) {
	o := allOf(t, `echo $$ >&2; exec sleep 600`)
	if out := os.Getenv(killed); out != "" {
		o.Out, o.Output = out, os.Stdout
		runAll(t, o, t.Context())
		return
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestRunThatIsKilled$", "-test.timeout=2m")
	cmd.Env = append(os.Environ(), killed+"="+o.Out, "TMPDIR="+o.Out)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var part int
	if _, err := fmt.Fscanln(out, &part); err != nil {
		t.Fatalf("the part's process ID: %v", err)
	}
	if err := errors.Join(syscall.Kill(part, 0), cmd.Process.Kill()); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	for deadline := time.Now().Add(time.Minute); syscall.Kill(part, 0) == nil && !zombie(part); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			syscall.Kill(part, syscall.SIGKILL)
			t.Fatal("a minute after the run was killed, its part still runs")
		}
	}
}

// zombie reports whether a process has ended and nobody has taken notice.
func zombie(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || bytes.Contains(b, []byte(") Z "))
}

func TestRunWithoutAServer(t *testing.T) {
	o := allOf(t, `echo "weir: start mysql: find MySQL: not in /usr; install it with: apt-get install mysql-server" >&2; exit 1`)
	o.Parts = append(o.Parts, Part{Name: "002", Document: "002", Bench: "backup", Args: []string{"bench", "backup"}})
	if err := runAll(t, o, t.Context()); err != nil {
		t.Fatalf("what is not installed must not fail the run: %v", err)
	}
	checkPages(t, o, "left out: start mysql: find MySQL", "this program has no weir bench backup", "0 hold on this machine")
}

// A tool that is not there is no part that was not measured.
func TestWhatIsShort(t *testing.T) {
	d := documentOf(t, "002")
	parts := []Part{{Name: "002", Document: "002"}, {Name: "002-b", Document: "002"}}
	for _, tc := range []struct {
		name  string
		taken map[string]*PartResults
		want  []string // claims; "!" marks a caution
	}{
		{"all", map[string]*PartResults{"002": {State: State{Status: Complete}}}, nil},
		{"no pg_dump 17", map[string]*PartResults{"002": {State: State{Status: Complete}, Left: []string{"no pg_dump 17"}}}, []string{"Every part of report 002 ran to its end; something optional was left out."}},
		{"killed", map[string]*PartResults{"002": {State: State{Status: Interrupted}}}, []string{"!Report 002 is not whole: parts of it are not measured."}},
		{"both", map[string]*PartResults{"002": {State: State{Status: Complete}, Left: []string{"no pg_dump 17"}}, "002-b": {}}, []string{
			"!Report 002 is not whole: parts of it are not measured.", "Parts of report 002 that ran to their end left something optional out.",
		}},
	} {
		var got []string
		for _, f := range d.incomplete(&Measured{parts: tc.taken}, parts) {
			claim := f.Claim
			if f.Warn {
				claim = "!" + claim
			}
			got = append(got, claim)
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}

func TestRunWithoutRoom(t *testing.T) {
	o := allOf(t, keep)
	o.free = func(string) (uint64, error) { return 1e9, nil }
	if err := runAll(t, o, t.Context()); err == nil || !strings.Contains(err.Error(), "has 1.0 GB free, plan smoke may need 2 GB") {
		t.Errorf("no room: %v", err)
	}
}

// A broken promise is told, and does not make the part run again.
func TestRunWithInvalidRounds(t *testing.T) {
	o := allOf(t, keep+`; exit 3`)
	if err := runAll(t, o, t.Context()); err != nil {
		t.Fatal(err)
	}
	checkPages(t, o, string(Broken))
}

func TestCommandRefusesWhatMakesNoSense(t *testing.T) {
	for args, want := range map[string]string{
		"--plan none":       "--plan",
		"--resume":          "--resume: name the directory with --out",
		"--experiments 009": "no part",
	} {
		cmd := Command([]suite.Bench{})
		cmd.SetArgs(strings.Fields(args))
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", args, err, want)
		}
	}
	if got := fmt.Sprint(sleepsHere([]time.Duration{time.Millisecond})[0].Took >= time.Millisecond); got != "true" {
		t.Error("a sleep was shorter than it was told")
	}
}

func TestUnbraced(t *testing.T) {
	for name, want := range map[string]string{"0 (no batching)": "0 (no batching)", "(direct, without a proxy)": "direct, without a proxy", "10": "10", "": ""} {
		if got := unbraced(name); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}

// The last line of a part may say where to find its help: the reason stands before it.
func TestTheLastWordOfAPart(t *testing.T) {
	for said, want := range map[string]string{
		"weir: no disk\n": "no disk",
		"at work\nweir: no experiment \"x\"\nRun 'weir bench kv --help' for usage.\n": "no experiment \"x\"",
		"Run 'weir bench kv --help' for usage.\n":                                     "Run 'weir bench kv --help' for usage.",
		"": "",
	} {
		tl := &tail{}
		if _, err := tl.Write([]byte(said)); err != nil {
			t.Fatal(err)
		}
		if got := tl.last(); got != want {
			t.Errorf("last of %q = %q, want %q", said, got, want)
		}
	}
}
