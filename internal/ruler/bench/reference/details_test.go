package reference

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/pprof/profile"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/measure/outside"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
	"github.com/weirdb/weir/internal/ruler/profile/study"
	"github.com/weirdb/weir/internal/ruler/report"
)

// profileIn keeps a profile of two functions, of so many samples, in a directory.
func profileIn(t *testing.T, dir, name, role string, samples int64) suite.CPUProfile {
	t.Helper()
	p := &profile.Profile{
		SampleType: []*profile.ValueType{{Type: "samples", Unit: "count"}, {Type: "cpu", Unit: "nanoseconds"}},
		PeriodType: &profile.ValueType{Type: "cpu", Unit: "nanoseconds"}, Period: 1e7,
	}
	for i, fn := range []string{"syscall.write", "github.com/lib/pq.(*conn).simpleExec"} {
		f := &profile.Function{ID: uint64(i + 1), Name: fn, SystemName: fn}
		l := &profile.Location{ID: uint64(i + 1), Line: []profile.Line{{Function: f}}}
		p.Function, p.Location = append(p.Function, f), append(p.Location, l)
		n := samples * int64(3-2*i) / 4 // three quarters and one
		p.Sample = append(p.Sample, &profile.Sample{Location: []*profile.Location{l}, Value: []int64{n, n * 1e7}})
	}
	kept, err := suite.SaveProfile(dir, name, role, p)
	if err != nil {
		t.Fatal(err)
	}
	return kept
}

func titles(sections []report.Section) string {
	var out []string
	for _, s := range sections {
		out = append(out, s.Title)
	}
	return strings.Join(out, "; ")
}

// The page of report 000 names the functions of each category, with a flame graph, and
// those of the server, and shows the heap over a long load.
func TestDetailsOfReport000(t *testing.T) {
	dir := t.TempDir()
	m := &Measured{parts: map[string]*PartResults{
		"000-drivers-postgres": {Dir: dir, CPU: []suite.CPUProfile{profileIn(t, dir, "pq", bench.RoleClient, 400), profileIn(t, dir, "pgx-sql", bench.RoleClient, 8)}},
		"000-postgres": {
			Dir:     dir,
			Servers: []suite.ServerCPU{{Case: "direct", Server: "PostgreSQL", Profile: &outside.Profile{Seconds: 2, Hz: 199, Samples: 4, Functions: []outside.Function{{Name: "hash_search", Object: "postgres", Samples: 3}, {Name: "copy", Object: "kernel", Samples: 1}}}}},
			Leak:    &suite.Leak{Case: "weir auto", Clients: 4, Seconds: 10, Points: []suite.LeakPoint{{Seconds: 1}, {Seconds: 2}, {Seconds: 3}}, Growth: bench.Interval{Median: .1, Lo: -.2, Hi: .4, N: 20}},
		},
	}}
	d := documentOf(t, "000")
	sections := d.Details(m)
	if got := titles(sections); !strings.Contains(got, "functions of each category; Where the CPU time of the server goes, 000-postgres; Memory over a long load, 000-postgres") {
		t.Fatalf("sections: %s", got)
	}
	load := sections[0]
	if len(load.Charts) != 1 || load.Charts[0].Kind != report.Flame {
		t.Errorf("charts %+v", load.Charts)
	}
	if !slices.ContainsFunc(load.Tables[0].Rows, func(r []report.Cell) bool {
		return r[2].Text == "github.com/lib/pq.(*conn).simpleExec" && r[3].Text == "25.0"
	}) {
		t.Errorf("functions %+v", load.Tables[0].Rows)
	}
	if text := strings.Join(load.Text, " "); !strings.Contains(text, "8 samples of the CPU profile tell no shares") {
		t.Errorf("of too few samples it says %q", text)
	}
	j := verdicts(m, "000", t)["No obvious memory leaks"]
	if j.Verdict != Holds || !strings.Contains(j.Evidence, "less than an object") {
		t.Errorf("a flat heap: %s (%s)", j.Verdict, j.Evidence)
	}
	for _, tc := range []struct {
		growth bench.Interval
		want   Verdict
	}{
		{bench.Interval{Median: 60, Lo: 40, Hi: 80, N: 20}, DoesNotHold},
		{bench.Interval{Median: 5, Lo: -40, Hi: 50, N: 20}, CannotTell},
		{bench.Interval{Median: 0, Lo: -1, Hi: 1, N: 3}, CannotTell},
	} {
		m.parts["000-postgres"].Leak.Growth = tc.growth
		if j := verdicts(m, "000", t)["No obvious memory leaks"]; j.Verdict != tc.want {
			t.Errorf("%+v: %s (%s), want %s", tc.growth, j.Verdict, j.Evidence, tc.want)
		}
	}
	if none := d.Details(&Measured{}); len(none) != 0 {
		t.Errorf("of nothing: %s", titles(none))
	}
}

// A profile whose file is gone leaves its table, one that cannot be read says so.
func TestFlameWithoutAFile(t *testing.T) {
	dir := t.TempDir()
	at := profileAt{"001", "0 us", bench.RoleReplica}
	m := &Measured{parts: map[string]*PartResults{"001": {Dir: dir, CPU: []suite.CPUProfile{profileIn(t, dir, at.Case, at.Role, 400)}}}}
	path := filepath.Join(dir, suite.ProfileName(at.Case, at.Role))
	section := func() report.Section {
		s := replicaDetails(m)
		if len(s) != 1 || len(s[0].Tables) != 1 {
			t.Fatalf("sections %+v", s)
		}
		return s[0]
	}
	if s := section(); len(s.Charts) != 1 || len(s.Text) != 0 {
		t.Errorf("%d charts, %q", len(s.Charts), s.Text)
	}
	if err := os.WriteFile(path, []byte("no profile"), 0o644); err != nil {
		t.Fatal(err)
	}
	if s := section(); len(s.Charts) != 0 || !strings.Contains(strings.Join(s.Text, " "), "cannot be drawn") {
		t.Errorf("of a broken file: %d charts, %q", len(s.Charts), s.Text)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if s := section(); len(s.Charts) != 0 || len(s.Text) != 0 {
		t.Errorf("of no file: %d charts, %q", len(s.Charts), s.Text)
	}
}

// The share of system calls of the replicas decides the claim of report 001, when the
// profile has samples enough.
func TestCPUOfReplicasIsJudged(t *testing.T) {
	const claim = "System calls are the bottleneck: 38.76 % of CPU"
	of := func(samples int64, calls float64) *Measured {
		return &Measured{parts: map[string]*PartResults{"001": {CPU: []suite.CPUProfile{{Case: "0 us", Role: bench.RoleReplica, Breakdown: &measure.CPUBreakdown{
			Samples: samples, Categories: []measure.Category{{Name: "system calls and network I/O", Exclusive: calls}, {Name: "scheduler", Exclusive: 1 - calls}},
		}}}}}}
	}
	for _, tc := range []struct {
		m    *Measured
		want Verdict
	}{
		{of(1000, .8), Holds}, {of(1000, .2), DoesNotHold}, {of(1000, .5), CannotTell}, {of(20, .9), CannotTell}, {&Measured{}, CannotTell},
	} {
		if j := verdicts(tc.m, "001", t)[claim]; j.Verdict != tc.want || j.Evidence == "" {
			t.Errorf("%s (%s), want %s", j.Verdict, j.Evidence, tc.want)
		}
	}
}

// A smaller plan measures less of the grid and of the delays at the writers: what it left
// out takes no row, and what it measured one.
func TestRowsThatAPlanLeavesOut(t *testing.T) {
	r := resultOf("grid", steady("5 pending, 0 us", 1000, 1, 2, map[string]string{"pendings": "5", "delay": "0"}), steady("15 pending, 150 us", 2000, 1, 2, map[string]string{"pendings": "15", "delay": "150"}))
	m := &Measured{parts: map[string]*PartResults{"001": {Results: []*bench.Result{r}, State: State{Status: Complete}}}}
	grid := gridTable()
	s := grid.section(m)
	if rows := s.Tables[0].Rows; len(rows) != 2 || rows[0][0].Text != "5" || rows[1][0].Text != "15" || len(rows[1]) != 3 || rows[1][2].Text == "-" || rows[1][1].Text != "-" {
		t.Errorf("rows %+v", rows)
	}
	if len(s.Text) != 0 {
		t.Errorf("what was left out is told: %q", s.Text)
	}
	writers := writerTable()
	if s := writers.section(m); len(s.Tables) != 0 || len(s.Text) != 1 {
		t.Errorf("of nothing: %d tables, %q", len(s.Tables), s.Text)
	}
}

func TestPassesStandOnThePage(t *testing.T) {
	m := &Measured{parts: map[string]*PartResults{"003": {Passes: []study.Pass{{Tool: "strace", Engine: "postgres", Case: "warm", Missing: "strace is not available here"}}}}}
	d := documentOf(t, "003")
	if s := d.Details(m); len(s) != 1 || !strings.Contains(s[0].Text[0], "strace is not available here") {
		t.Errorf("%+v", s)
	}
}
