package backupbench

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirdb/weir/internal/cli/clitest"
	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/subject/moves"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
	"github.com/weirdb/weir/internal/ruler/report"
)

// moved makes a case of six rounds: seconds, MB stored and held, CPU seconds of
// the program and of the server.
func moved(name, way string, seconds, stored, peak, client, server float64) *bench.Case {
	c := &bench.Case{Name: name, Factors: map[string]string{"way": way}}
	for round := range 6 {
		c.Samples = append(c.Samples, bench.Sample{
			Round: round, Ops: 1, Seconds: seconds * (1 + float64(round%3)/50),
			Parts:     []bench.Part{&moves.Transfer{PlainBytes: 766e6, StoredBytes: int64(stored * 1e6), PeakBytes: int64(peak * 1e6), Verified: "rows", Rows: 1000}},
			Processes: map[string]measure.Usage{bench.RoleClient: {UserSeconds: client}, bench.RoleServer: {UserSeconds: server}},
		})
	}
	return c
}

// finished makes a result of cases.
func finished(name, title string, factors map[string]string, cases ...*bench.Case) *bench.Result {
	r := &bench.Result{
		Schema: bench.Schema, ID: name,
		Env: measure.Environment{
			Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), CPU: "Example CPU", Cores: 2, MemoryBytes: 8 << 30, OS: "Example Linux", Kernel: "6.1",
			ClockSource: "tsc", GoVersion: "go1.26", Command: []string{"weir", "bench", "backup"}, Durability: "prod",
			Servers: []measure.Server{{Name: "PostgreSQL", Version: "15.20"}},
		},
		Experiment: bench.Description{Name: name, Title: title, Rounds: 6, Loop: "closed", Baseline: cases[0].Name, Factors: factors},
		Cases:      cases,
	}
	r.Evaluate()
	return r
}

// synthetic is an outcome whose figures are close to those of the reference.
func synthetic() *Outcome {
	whole := map[string]string{"engine": "postgres", "bytes": "803209216"}
	buffers := finished("buffers-256k", "1000 buffers of 256 KiB", nil, moved("made anew", "made anew", 0.02, 0, 0, 0, 0), moved("weir's pool", "weir's pool", 0.0001, 0, 0, 0, 0))
	for i := range buffers.Cases {
		for j := range buffers.Cases[i].Samples {
			s := &buffers.Cases[i].Samples[j]
			moves.Of(s.Parts).PlainBytes, moves.Of(s.Parts).AllocatedBytes, s.Processes = 0, int64(1-i)*262144*bufferCycles, nil
		}
	}
	buffers.Evaluate()
	small, large := moved("backup, 76.6 MB", "backup", 1, 25, 55, 1, 0.7), moved("backup, 766 MB", "backup", 8, 250, 60, 7, 6)
	small.Factors["bytes"], large.Factors["bytes"] = "80320921", "803209216"
	return &Outcome{Outcome: suite.Outcome{
		Engine: suite.PostgreSQL, Left: []string{"mydumper was not found"},
		Results: []*bench.Result{
			buffers,
			finished("dump-shop", "Backup of shop, 766 MB", whole,
				moved("pg_dump 15, gzip", "pg_dump -Fd -j2 -f DIR/dump", 66.9, 259, 21, 37.1, 6.9),
				moved("pg_dump 17, zstd:1", "pg_dump -Fd -j2 -f DIR/dump --compress=zstd:1", 4.9, 247, 24, 3.0, 5.6),
				moved("weir", "weir backup DSN --to DIR", 7.5, 250, 27, 5.5, 7.1)),
			finished("restore-shop", "Restore of shop, 766 MB", whole,
				moved("pg_restore 15", "pg_restore -j2 -d DB DIR/dump", 25.4, 0, 12, 1.5, 36),
				moved("weir", "weir restore DIR --to DSN", 18.2, 0, 60, 4.5, 26.9)),
			finished("memory-shop", "Peak memory of weir at 76.6 MB and 766 MB", whole, small, large),
		},
	}}
}

func TestReportIsWhatItWas(t *testing.T) {
	var got bytes.Buffer
	if err := synthetic().Report().Write(&got, report.FormatMarkdown); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join("testdata", "report.md")
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	clitest.Golden(t, path, string(have), got.String())
	for _, f := range report.Formats() {
		if err := synthetic().Brief().Write(&got, report.FormatText); err != nil {
			t.Error(err)
		}
		if f == report.FormatSVG {
			continue // of one chart at a time
		}
		if err := synthetic().Report().Write(&got, f); err != nil {
			t.Errorf("%s: %v", f, err)
		}
	}
}

func TestTargetsAreJudged(t *testing.T) {
	got := make(map[string]string)
	for _, target := range synthetic().Targets() {
		got[target.Claim] = target.Verdict
	}
	want := map[string]string{
		"backup of a shop, against pg_dump 15 at its defaults, 766 MB": suite.Met,
		"backup of a shop, against a pg_dump that has zstd, 766 MB":    suite.NotMet,
		"archive of a shop, against a pg_dump that has zstd, 766 MB":   suite.NotMet,
		"restore of a shop, against pg_restore, 766 MB":                suite.Met,
		"memory of weir, backup, 76.6 MB":                              suite.Met,
		"memory of weir, backup, 766 MB":                               suite.Met,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("verdicts (-want +got):\n%s", diff)
	}
	fat := &Outcome{Outcome: suite.Outcome{Results: []*bench.Result{finished("memory-shop", "m", nil, moved("a", "a", 1, 1, 300, 1, 1), moved("b", "b", 1, 1, 400, 1, 1))}}}
	for _, target := range fat.Targets() {
		if target.Verdict != suite.NotMet {
			t.Errorf("%+v", target)
		}
	}
}

func TestNamedFindsACase(t *testing.T) {
	r := finished("dump-shop", "t", nil, moved("pg_dump 15, gzip", "", 9, 1, 1, 1, 1), moved("pg_dump 16, zstd:1", "", 5, 1, 1, 1, 1),
		moved("pg_dump 18, zstd:1", "", 4, 1, 1, 1, 1), moved("pg_dump 18, zstd:19", "", 1, 1, 1, 1, 1), moved("weir", "", 3, 1, 1, 1, 1),
		moved("weir, none", "", 2, 1, 1, 1, 1), moved("mydumper 1.0.3, zstd", "", 3, 1, 1, 1, 1), moved("mydumper 1.0.3, none", "", 1, 1, 1, 1, 1), moved("mydumper 0.10.0, gzip", "", 1, 1, 1, 1, 1))
	for pattern, want := range map[string]string{
		"pg_dump 15, gzip": "pg_dump 15, gzip", "pg_dump 1[678], zstd:1": "pg_dump 18, zstd:1", "weir": "weir", "mydumper 1*, zstd": "mydumper 1.0.3, zstd",
	} {
		if c := r.Match(pattern); c == nil || c.Name != want {
			t.Errorf("%q is %+v, want %s", pattern, c, want)
		}
	}
	if c := r.Match("pg_restore*"); c != nil {
		t.Errorf("found %s", c.Name)
	}
}
