package outboxbench

import (
	"encoding/csv"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/subject/messages"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
	"github.com/weirdb/weir/internal/testkit"
)

// smoke runs experiments of the smallest plan.
func smoke(t *testing.T, e suite.Engine, dir string, resume bool, experiments ...string) (*Outcome, []bench.Progress) {
	t.Helper()
	plan := Plans()["smoke"]
	if e != suite.SQLite {
		plan.Rates = nil // what they show, SQLite has shown
	}
	var seen []bench.Progress
	out, err := Run(t.Context(), Options{
		Engine: e, Plan: plan, Floor: true,
		Options: suite.Options{Out: dir, Resume: resume, Experiments: experiments, Progress: func(p bench.Progress) { seen = append(seen, p) }},
	})
	if lab.NotInstalled(err) && os.Getenv("CI") == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if broken := out.Invalid(); len(broken) > 0 {
		t.Errorf("invalid: %q", broken)
	}
	return out, seen
}

func TestEveryPhaseRunsOnSQLite(t *testing.T) {
	dir := t.TempDir()
	out, seen := smoke(t, suite.SQLite, dir, false)
	var names []string
	for _, r := range out.Results {
		names = append(names, r.Experiment.Name)
	}
	want := []string{"screen", "focus", "payload-128", "payload-16384", "enqueue-2", "mixed-2", "rate-100"}
	if !slices.Equal(names, want) {
		t.Errorf("experiments %q, want %q", names, want)
	}
	if len(out.Left) != 6 { // SKIP LOCKED, the log, the mixed grid, payloads out of band, partitions, other outboxes
		t.Errorf("left out: %q", out.Left)
	}
	if slices.ContainsFunc(seen, func(p bench.Progress) bool { return p.Cached }) {
		t.Error("a first run finds samples")
	}
	page, err := out.Save(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(page); err != nil {
		t.Error(err)
	}

	t.Run("resumed, nothing is measured again", func(t *testing.T) {
		again, seen := smoke(t, suite.SQLite, dir, true)
		if i := slices.IndexFunc(seen, func(p bench.Progress) bool { return !p.Cached }); i >= 0 || len(seen) == 0 {
			t.Errorf("sample %d of %d is measured again", i, len(seen))
		}
		if len(again.Results) != len(out.Results) {
			t.Errorf("%d results, %d before", len(again.Results), len(out.Results))
		}
	})

	t.Run("read back, it is the same", func(t *testing.T) {
		back := &Outcome{}
		if err := file.Load(dir, back); err != nil {
			t.Fatal(err)
		}
		if back.Engine != suite.SQLite || len(back.Results) != len(out.Results) || !slices.Equal(back.Left, out.Left) {
			t.Errorf("read back: %s, %d results, left out %q", back.Engine, len(back.Results), back.Left)
		}
		lines, err := os.ReadFile(filepath.Join(dir, "results.jsonl"))
		if err != nil || strings.Count(string(lines), "\n") != len(seen) {
			t.Errorf("%d lines of samples for %d samples, %v", strings.Count(string(lines), "\n"), len(seen), err)
		}
		f, err := os.Open(filepath.Join(dir, "summary.csv"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if rows, err := csv.NewReader(f).ReadAll(); err != nil || len(rows) < len(seen) || rows[0][0] != "phase" {
			t.Errorf("%d rows of summaries, %v", len(rows), err)
		}
	})
}

func TestARunIsNotOverwritten(t *testing.T) {
	dir := t.TempDir()
	smoke(t, suite.SQLite, dir, false, "focus")
	_, err := Run(t.Context(), Options{Options: suite.Options{Out: dir, Experiments: []string{Focus}}, Engine: suite.SQLite, Plan: Plans()["smoke"]})
	if err == nil || !strings.Contains(err.Error(), "already holds results") {
		t.Errorf("error %v", err)
	}
}

// TestPhasesOnServers runs what needs a server: the customary design, the log and
// the backlog of the past, whose rows SQL makes and the ledger must recognise.
func TestPhasesOnServers(t *testing.T) {
	for _, e := range []suite.Engine{suite.PostgreSQL, suite.MariaDB} {
		t.Run(string(e), func(t *testing.T) {
			if e != suite.PostgreSQL {
				testkit.Long(t, "runs three experiments on each engine")
			}
			out, _ := smoke(t, e, t.TempDir(), false, "focus", "mixed", "partition")
			past := out.Results[len(out.Results)-1]
			for _, name := range []string{"flat, window", "flat, no window", "partitioned, window", "partitioned, no window", "poll", "log"} {
				c := past.Find(name)
				if c == nil {
					t.Errorf("no case %s", name)
					continue
				}
				l := messages.Of(c.Samples[0].Parts).Ledger
				visible := past.Experiment.Factors["records"] // 1800 rows over 90 days
				if l.Handed != 1800 || l.Strangers != 0 || l.Delivered < 20 || l.Delivered+l.Pending < 1800 {
					t.Errorf("%s of %s rows: ledger %+v", name, visible, l)
				}
				if window := strings.HasSuffix(name, ", window"); window && l.Delivered != 20 {
					t.Errorf("%s: %d rows lie in the window, want 20", name, l.Delivered)
				}
			}
			for _, r := range out.Results[:2] {
				c := r.Find("log, floor")
				if c == nil {
					t.Errorf("%s has no floor", r.Experiment.Name)
					continue
				}
				// The messages left were delivered and not noted.
				s := c.Samples[0]
				if l := messages.Of(s.Parts).Ledger; messages.Of(s.Parts).Settings["notes"] != "none" || l.Delivered == 0 || l.Lost != 0 {
					t.Errorf("%s: settings %v, ledger %+v", r.Experiment.Name, messages.Of(s.Parts).Settings, l)
				}
			}
			for _, c := range out.Results[0].Cases {
				if s := c.Samples[0]; s.Server == nil || s.Processes[bench.RoleServer].RSSBytes == 0 || len(messages.Of(s.Parts).Settings) < 5 {
					t.Errorf("%s: server %+v, processes %v, settings %v", c.Name, s.Server, s.Processes, messages.Of(s.Parts).Settings)
				}
			}
		})
	}
}

// TestGridAndPayloadsOutOfBand runs producers beside every combination, and payloads
// that lie in a table of their own: the ledger sees every message, and the table is
// empty where consumers have fetched what was in it.
func TestGridAndPayloadsOutOfBand(t *testing.T) {
	testkit.Long(t, "runs four experiments on both engines")
	for _, e := range []suite.Engine{suite.PostgreSQL, suite.MariaDB} {
		t.Run(string(e), func(t *testing.T) {
			out, _ := smoke(t, e, t.TempDir(), false, "grid", "out-of-band", "payload-128", "partition")
			cases := make(map[string]int)
			for _, r := range out.Results {
				cases[r.Experiment.Name] = len(r.Cases)
				for _, c := range r.Cases {
					s := c.Samples[0]
					if l := messages.Of(s.Parts).Ledger; l.Strangers != 0 || l.Lost != 0 || l.Committed == 0 {
						t.Errorf("%s, %s: ledger %+v", r.Experiment.Name, c.Name, l)
					}
					if s.Server.PageRequests <= 0 && r.Experiment.Name == "out-of-band-65536" {
						t.Errorf("%s, %s: no pages were counted: %+v", r.Experiment.Name, c.Name, s.Server)
					}
				}
			}
			want := map[string]int{"grid-2": 3, "out-of-band-512": 3, "out-of-band-65536": 3, "out-of-band-enqueue-65536": 2, "payload-128": 4, "partition": 6}
			if !maps.Equal(cases, want) {
				t.Errorf("cases %v, want %v", cases, want)
			}
			past := out.Results[len(out.Results)-1]
			flat, parts := messages.Of(past.Find("flat, window").Samples[0].Parts).ClaimPages, messages.Of(past.Find("partitioned, window").Samples[0].Parts).ClaimPages
			if parts <= 0 || flat <= parts {
				t.Errorf("a claim with a window looks at %g pages for a row of the flat table and at %g of the partitioned one", flat, parts)
			}
		})
	}
}

func TestOptionsThatMakeNoSense(t *testing.T) {
	for _, o := range []Options{
		{Engine: "oracle"},
		{Engine: suite.SQLite, FsyncLatency: time.Millisecond},
		{Engine: suite.PostgreSQL, FsyncLatency: time.Millisecond, Durability: lab.Fast},
		{Engine: suite.PostgreSQL, FsyncLatency: time.Millisecond, DSN: "postgres://h/d"},
	} {
		if err := o.Validate(); err == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
}
