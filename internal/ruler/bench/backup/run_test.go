package backupbench

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/subject/moves"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
	"github.com/weirdb/weir/internal/ruler/report"
	"github.com/weirdb/weir/internal/testkit"
)

// tiny is everything that the benchmark does, on next to nothing.
func tiny() Plan {
	plan := Plans(300_000)["smoke"]
	plan.Buffers, plan.Copy, plan.Compress, plan.CPU = false, 0, nil, false // tested without a server
	plan.Slow, plan.Profiles, plan.Jobs = true, profileNames(), []int{1, 2}
	plan.Shapes = append(plan.Shapes, Size{"many", 150_000})
	return plan
}

// TestScenarioEndToEnd runs every way with the real programs. Each archive is read
// back and each restored row compared, so an error here is a wrong restore or a
// program that is called wrongly. What is the same of both engines is played on one of
// them, unless make torture runs it: a second shape on MariaDB, sides that are weir's own
// on PostgreSQL.
func TestScenarioEndToEnd(t *testing.T) {
	testkit.Long(t, "runs most experiments on both engines")
	t.Run("PostgreSQL", func(t *testing.T) {
		labtest.RequirePostgres(t)
		endToEnd(t, suite.PostgreSQL, []string{"dump-shop", "restore-shop", "profiles-dump-shop", "profiles-restore-shop", "jobs-dump-shop", "jobs-restore-shop", "adaptive-dump-shop", "adaptive-restore-shop", "settings-restore-shop", "memory-shop", "dump-many", "restore-many"})
	})
	t.Run("MariaDB", func(t *testing.T) {
		labtest.RequireMariaDB(t)
		endToEnd(t, suite.MariaDB, []string{"dump-shop", "restore-shop", "profiles-dump-shop", "profiles-restore-shop", "jobs-dump-shop", "jobs-restore-shop", "adaptive-dump-shop", "adaptive-restore-shop", "memory-shop", "dump-many", "restore-many"})
	})
}

func endToEnd(t *testing.T, e suite.Engine, want []string) {
	dir := t.TempDir()
	plan := tiny()
	if !testkit.All() {
		var elsewhere []string
		if e == suite.MariaDB {
			plan.Profiles, plan.Jobs, plan.Adaptive = nil, nil, false
			elsewhere = []string{"profiles-", "jobs-", "adaptive-"}
		} else {
			plan.Profiles = []string{plan.Profiles[0], plan.Profiles[len(plan.Profiles)-1]}
			plan.Shapes, plan.Memory, plan.Settings = plan.Shapes[:1], false, false // TestStorageIsCompared has the settings
			elsewhere = []string{"dump-many", "restore-many", "memory-", "settings-"}
		}
		want = slices.DeleteFunc(want, func(name string) bool {
			return slices.ContainsFunc(elsewhere, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
		})
	}
	o := Options{Options: suite.Options{Out: dir, Say: t.Logf}, Engine: e, Binary: weir.Path(t), Plan: plan}
	got, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	var peak int64
	for _, r := range got.Results {
		names = append(names, r.Experiment.Name)
		peak = max(peak, checkSamples(t, r))
	}
	if peak < 1<<20 {
		t.Errorf("the most memory that any program was seen to hold is %d bytes", peak)
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("experiments (-want +got):\n%s", diff)
	}
	if _, err := os.Stat(filepath.Join(dir, "archives")); !os.IsNotExist(err) {
		t.Errorf("archives are left: %v", err)
	}
	if _, err := got.Save(dir); err != nil {
		t.Fatal(err)
	}
	if e == suite.MariaDB || testkit.All() {
		resumed(t, o, got)
	}
}

// checkSamples checks what every round must contain, and returns the largest peak of memory.
// With such small databases a single program may end before it is sampled; pipelines test that
// memory is measured.
func checkSamples(t *testing.T, r *bench.Result) (peak int64) {
	t.Helper()
	for _, c := range r.Cases {
		for _, s := range c.Samples {
			m := moves.Of(s.Parts)
			if m == nil || m.PlainBytes == 0 || m.Verified == "" || s.Seconds <= 0 {
				t.Errorf("%s, %s: %+v", r.Experiment.Name, c.Name, m)
				continue
			}
			peak = max(peak, m.PeakBytes)
			if strings.HasPrefix(c.Name, "weir") { // who tells of its inside
				in := m.Inside
				readers := in[moves.InsideServer] + in[moves.InsideOwn] + in[moves.InsideCompressor] + in[moves.InsideStorage]
				if in["goroutines"] < 2 || in["mem_peak"] <= 0 || in["jobs_completed"] < 1 || strings.Contains(r.Experiment.Name, "dump") && (readers < 99 || readers > 101) {
					t.Errorf("%s, %s: inside %v", r.Experiment.Name, c.Name, in)
				}
			}
			dumped := strings.Contains(r.Experiment.Name, "dump") || strings.HasPrefix(c.Name, "backup")
			if dumped != (m.StoredBytes > 0) || dumped == (m.Rows > 0) {
				t.Errorf("%s, %s: stored %d bytes, compared %d rows", r.Experiment.Name, c.Name, m.StoredBytes, m.Rows)
			}
			if s.Processes[bench.RoleClient].CPUSeconds() <= 0 || s.Processes[bench.RoleServer].Processes == 0 {
				t.Errorf("%s, %s: processes %+v", r.Experiment.Name, c.Name, s.Processes)
			}
		}
	}
	return peak
}

// resumed runs again over the same directory: all samples are there, so that the
// report is the same; without the restores' samples, they are taken anew from
// archives that are made anew.
func resumed(t *testing.T, o Options, first *Outcome) {
	t.Helper()
	o.Resume = true
	o.Plan.Adaptive, o.Plan.Settings = false, false
	o.Plan.Profiles, o.Plan.Jobs, o.Plan.Memory, o.Plan.Shapes = nil, nil, false, o.Plan.Shapes[:1]
	if err := os.RemoveAll(filepath.Join(o.Out, "restore-shop")); err != nil {
		t.Fatal(err)
	}
	var cached, taken int
	o.Progress = func(p bench.Progress) {
		if p.Cached {
			cached++
		} else {
			taken++
		}
	}
	again, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if n, m := len(first.Results[0].Cases), len(first.Results[1].Cases); cached != n || taken != m {
		t.Errorf("%d samples were kept and %d taken, want %d and %d", cached, taken, n, m)
	}
	var a, b bytes.Buffer
	for _, pair := range []struct {
		r *bench.Result
		w *bytes.Buffer
	}{{first.Results[0], &a}, {again.Results[0], &b}} {
		d := &report.Doc{Title: "t", Env: &first.Results[0].Env, Sections: []report.Section{section(pair.r)}}
		if err := d.Write(pair.w, report.FormatMarkdown); err != nil {
			t.Fatal(err)
		}
	}
	if a.String() != b.String() {
		t.Errorf("resumed, the report of the backups is another:\n%s", cmp.Diff(a.String(), b.String()))
	}
}

// TestStorageIsCompared backs up into a directory and into an S3 server, and restores
// from both. What lies there is counted alike. It restores with some settings of sessions,
// too, and its tables are many.
func TestStorageIsCompared(t *testing.T) {
	labtest.RequirePostgres(t)
	labtest.RequireS3(t)
	plan := tiny()
	plan.Storage, plan.Shapes, plan.Slow = storages(), plan.Shapes[1:], false
	o := Options{
		Options: suite.Options{Out: t.TempDir(), Say: t.Logf, Experiments: []string{"storage-many", "settings-many"}},
		Engine:  suite.PostgreSQL, Binary: weir.Path(t), Plan: plan,
	}
	got, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Results) != 3 || got.Results[0].Experiment.Name != "settings-restore-many" || len(got.Results[0].Cases) != 5 {
		t.Fatalf("%d experiments, left out %q, want settings of a restore, backup and restore", len(got.Results), got.Left)
	}
	checkSamples(t, got.Results[0])
	stored := got.Results[1:]
	for _, r := range stored {
		checkSamples(t, r)
		if len(r.Cases) != 2 || r.Find("weir, dir") == nil || r.Find("weir, s3") == nil {
			t.Errorf("%s has cases %+v", r.Experiment.Name, r.Cases)
		}
	}
	dir, s3 := stored[0].Find("weir, dir"), stored[0].Find("weir, s3")
	if way := s3.Factors["way"]; !strings.Contains(way, "s3://weir/DIR") {
		t.Errorf("the way is %q: it must not name a port, which is another in a resumed run", way)
	}
	if a, b := dir.Summary["stored"].Median, s3.Summary["stored"].Median; b < a/2 || b > 2*a {
		t.Errorf("%g MB are stored in a directory and %g MB in S3", a, b)
	}
}

// filled starts a rig on the server of o with a database of that size.
func filled(t *testing.T, o Options, size Size) (*rig, *source) {
	t.Helper()
	ctx := t.Context()
	r, err := newRig(o)
	if err != nil {
		t.Fatal(err)
	}
	if r.engine, err = openPostgres(ctx, &o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.close(context.WithoutCancel(ctx)); err != nil {
			t.Error(err)
		}
	})
	src, err := r.fill(ctx, size)
	if err != nil {
		t.Fatal(err)
	}
	return r, src
}

// A tool that loses a row, changes one, or forgets an index is found, as is one
// whose archive cannot be read back.
func TestWrongRestoresAreFound(t *testing.T) {
	server := labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast})
	psql := filepath.Join(server.BinDir(), "psql")
	ctx := t.Context()
	o := Options{Options: suite.Options{Out: t.TempDir()}, DSN: server.DSN("postgres"), Binary: "none", Plan: Plan{Rounds: 1}}.withDefaults()
	r, src := filled(t, o, Size{"huge", 50_000})
	honest := plainWay(filepath.Join(server.BinDir(), "pg_dump"), psql, "")
	if _, err := r.dump(ctx, honest, src); err != nil {
		t.Fatal(err)
	}
	if _, err := r.restore(ctx, honest, src); err != nil {
		t.Fatal(err)
	}
	for sql, want := range map[string]string{
		"DELETE FROM public.measurements WHERE id = 7":                    "table measurements has",
		"UPDATE public.measurements SET value = value + 1 WHERE id = 7":   "table measurements has",
		"UPDATE public.measurements SET remark = '' WHERE remark IS NULL": "table measurements has",
		"DROP INDEX public.measurements_sensor":                           "it has 1 indexes",
		"DROP TABLE public.measurements":                                  "table measurements is missing",
		"CREATE TABLE public.more (id int)":                               "table more is unexpected",
	} {
		w := plainWay(filepath.Join(server.BinDir(), "pg_dump"), psql, sql)
		if _, err := r.restore(ctx, w, src); err == nil || !strings.Contains(err.Error(), "differs from its source: "+want) {
			t.Errorf("%s: said %v, want %q", sql, err, want)
		}
	}
	honest.check = func(dir string) pipeline { return command("grep", "-q", "nothing of the kind", dir+"/dump.sql") }
	if _, err := r.dump(ctx, honest, src); err == nil || !strings.Contains(err.Error(), "check of the archive") {
		t.Errorf("of an archive that cannot be read back it said %v", err)
	}
}

// plainWay is a way whose restore also runs a statement.
func plainWay(dump, psql, also string) way {
	return way{
		name: "plain",
		dump: func(db place, dir string) pipeline {
			return pipeline{stages: [][]string{{dump, "-f", dir + "/dump.sql"}}, env: db.env}
		},
		restore: func(db place, dir string) pipeline {
			return pipeline{stages: [][]string{{psql, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", db.database, "-f", dir + "/dump.sql", "-c", also}}, env: db.env, stdout: dir + "/said"}
		},
	}
}

func TestOptionsAreJudged(t *testing.T) {
	whole := Options{Options: suite.Options{Out: "o"}, Binary: "b", Plan: Plans(MB)["mini"]}
	for want, change := range map[string]func(*Options){
		"":                       func(*Options) {},
		"--engine":               func(o *Options) { o.Engine = "oracle" },
		"directory for results":  func(o *Options) { o.Out = "" },
		"another kind":           func(o *Options) { o.DSN = "mysql://u@h/" },
		"--shapes":               func(o *Options) { o.Plan.Shapes = []Size{{"none", 1}} },
		"would be empty":         func(o *Options) { o.Plan.Shapes = []Size{{"shop", 0}} },
		"want a URL with a host": func(o *Options) { o.DSN = "postgres:///x" },
	} {
		o := whole.withDefaults()
		change(&o)
		err := o.validate()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("said %v, want %q", err, want)
		}
	}
}
