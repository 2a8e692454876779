package mysql_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// Sessions made of several scripts at once: what one changes, another meets.
func mixedScriptsAreAnsweredAsDirect(t *testing.T, server *lab.MySQL) {
	dbs := &stateDatabases{tb: t, server: server}
	for seed := range uint64(8) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			db1, db2 := dbs.lend(t), dbs.lend(t)
			w := dbs.through(t, db2)
			direct, through := speakerTo(t, server.Addr(), db1, nil), w.speaker(nil)
			churn := newChurner(w, nil)
			var history []string
			refused := false
			for _, step := range mixedSteps(rand.New(rand.NewPCG(seed, 11)), 5) {
				want, run := runStep(server, direct, step, db1)
				if !run {
					continue
				}
				history = append(history, step)
				churn.run()
				got, _ := runStep(server, through, step, db2)
				// A refusal is an error that the direct session does not have: what a
				// statement left is not the same afterwards.
				refused = refused || strings.HasPrefix(got, fmt.Sprintf("ERROR %d weir: ", mywire.ErrNotSupportedYet))
				if refused && strings.Contains(step, "same:") {
					continue
				}
				if want, got := comparable(server, want, db1), comparable(server, got, db2); got != want {
					t.Fatalf("after %q\n  through weir: %s\n  direct:       %s", history, got, want)
				}
			}
		})
	}
}

// mixedSteps interleaves the steps of n scripts, each in its own order.
func mixedSteps(rnd *rand.Rand, n int) []string {
	var scripts [][]string
	for len(scripts) < n {
		s := stateScripts[rnd.IntN(len(stateScripts))]
		switch s.name {
		case "errors", "random seeds", "profiling and limits", "database created and dropped":
			continue // refusals, other steps or other databases change what follows
		}
		scripts = append(scripts, s.steps)
	}
	var steps []string
	for len(scripts) > 0 {
		i := rnd.IntN(len(scripts))
		steps = append(steps, scripts[i][0])
		if scripts[i] = scripts[i][1:]; len(scripts[i]) == 0 {
			scripts = append(scripts[:i], scripts[i+1:]...)
		}
	}
	return steps
}

// A session without a database has none wherever it runs, until it chooses one.
func sessionsWithoutDatabase(t *testing.T, server *lab.MySQL) {
	db := databaseOn(t, server, stateSetup...)
	w := startFor(t, server, db, twoBackends)
	none := func(c *mywire.ConnectConfig) { c.Database = "" }
	one, two, three := w.speaker(none), w.speaker(none), w.speaker(none)
	for range 3 {
		for _, c := range []speaker{one, two, three} {
			if got := c.value("SELECT DATABASE()"); got != "NULL" {
				t.Errorf("DATABASE() is %s", got)
			}
			if got := c.value("SELECT * FROM t"); got != "ERROR 1046" {
				t.Errorf("a table of no database: %s", got)
			}
		}
		two.must("BEGIN")
		one.must("USE " + db)
		three.must("DO 1")
		two.must("COMMIT")
		for range 2 {
			if got := one.value("SELECT CONCAT(DATABASE(), COUNT(*)) FROM churn"); got != db+"0" {
				t.Errorf("after USE: %s", got)
			}
			if got := three.value("SELECT DATABASE()"); got != "NULL" {
				t.Errorf("another session's database is %s", got)
			}
		}
		_ = one.Close()
		one = w.speaker(none)
	}
}
