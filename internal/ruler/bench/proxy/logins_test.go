package proxybench

import (
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
	"github.com/weirdb/weir/internal/testkit"
)

// MariaDB is logged in at by each method, too.
func TestLoginsAtMariaDBAreMeasured(t *testing.T) {
	labtest.RequireMariaDB(t)
	got, err := Run(t.Context(), Options{
		Options: suite.Options{Out: t.TempDir(), Say: t.Logf, Experiments: []string{"logins-auto-2", "logins-file-2", "logins-trust-2"}},
		Engine:  suite.MariaDB, Binary: program.Path(t), Plan: Plan{Logins: []int{2}, Rounds: 1, Duration: 100 * time.Millisecond},
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Results) != 3 {
		t.Fatalf("%d experiments were run, want 3", len(got.Results))
	}
	var logins int64
	for _, r := range got.Results {
		for _, c := range r.Cases {
			s := c.Samples[0]
			logins += s.Ops
			if s.Failed() != 0 {
				t.Errorf("%s, %s: %v", r.Experiment.Name, c.Name, s.Errors)
			}
		}
	}
	if logins == 0 { // of all sides: a busy machine may leave the window of one empty
		t.Error("no logins")
	}
}

// Each way is logged in by, by a method of each kind.
func TestLoginsAreMeasured(t *testing.T) {
	testkit.Long(t, "runs experiments with three kinds of logins")
	labtest.RequirePostgres(t)
	got, err := Run(t.Context(), Options{
		Options: suite.Options{Out: t.TempDir(), Say: t.Logf, Experiments: []string{"logins-trust-2", "logins-auth-query-2", "logins-scram-2"}},
		Binary:  program.Path(t), Plan: Plan{Logins: []int{2}, Rounds: 1, Duration: 100 * time.Millisecond},
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Results) != 3 {
		t.Fatalf("%d experiments were run, want 3", len(got.Results))
	}
	for _, r := range got.Results {
		for _, c := range r.Cases {
			if s := c.Samples[0]; s.Ops == 0 || s.Seconds < 0.1 {
				t.Errorf("%s, %s: %d logins in %v s", r.Experiment.Name, c.Name, s.Ops, s.Seconds)
			}
		}
		if n := len(r.Cases); n < 2 {
			t.Errorf("%s: %d sides", r.Experiment.Name, n)
		}
	}
}
