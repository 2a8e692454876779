package myload

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/load"
	"github.com/weirdb/weir/internal/wire/mywire"
)

func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }

var mariadb = labtest.Share(func(ctx context.Context) (*lab.MySQL, error) {
	return lab.StartMariaDB(ctx, lab.MySQLConfig{Durability: lab.Fast, Light: true})
})

// database makes one for the load and returns how to reach it.
func database(t *testing.T, m *lab.MySQL) string {
	t.Helper()
	if err := m.Exec(t.Context(), "CREATE DATABASE "+t.Name()); err != nil {
		t.Fatal(err)
	}
	return m.DSN(t.Name())
}

func TestRunAgainstMariaDB(t *testing.T) {
	m := mariadb.Get(t)
	runEverything(t, m, database(t, m))
}

func TestRunAgainstMySQL(t *testing.T) {
	m := labtest.MySQL(t, lab.MySQLConfig{Durability: lab.Fast})
	runEverything(t, m, database(t, m))
}

// TestRunThroughARelay has every byte of answers come when it likes.
func TestRunThroughARelay(t *testing.T) {
	m := mariadb.Get(t)
	relay := labtest.Relay(t, m.Addr())
	runEverything(t, m, strings.Replace(database(t, m), m.Addr(), relay.Addr(), 1))
}

func runEverything(t *testing.T, m *lab.MySQL, dsn string) {
	for name, c := range map[string]load.Config{
		"insert":               {Workload: load.Insert{}, Connections: 8},
		"insert, one client":   {Workload: load.Insert{Hint: "/* batch:10 */"}, Connections: 1},
		"insert, text":         {Workload: load.Insert{}, Connections: 5, Threads: 3, Text: true},
		"insert, some fail":    {Workload: load.Insert{FailPercent: 10}, Connections: 8},
		"insert, text + fail":  {Workload: load.Insert{FailPercent: 10}, Connections: 4, Text: true},
		"insert, none fails":   {Workload: load.Insert{Guarded: true}, Connections: 4},
		"insert, other table":  {Workload: load.Insert{Table: "other"}, Connections: 2},
		"select":               {Workload: load.Select{Keys: 500}, Connections: 8},
		"select, text":         {Workload: load.Select{Keys: 500}, Connections: 3, Text: true},
		"update":               {Workload: load.Update{Keys: 50}, Connections: 8},
		"update, text":         {Workload: load.Update{Keys: 50, Hint: "/* batch */"}, Connections: 3, Text: true},
		"select, several fill": {Workload: load.Select{Keys: fillRows + 1}, Connections: 3},
	} {
		t.Run(name, func(t *testing.T) { runOne(t, m, dsn, c) })
	}
}

func runOne(t *testing.T, m *lab.MySQL, dsn string, c load.Config) {
	ctx := t.Context()
	c.DSN, c.Count = dsn, 600
	if err := Protocol.Setup(ctx, dsn, c.Workload); err != nil {
		t.Fatal(err)
	}
	c.Watch = map[string]func() (measure.Usage, error){
		bench.RoleServer: func() (measure.Usage, error) { return measure.Tree(m.PID()) },
	}
	o, err := Protocol.Run(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	s := o.Sample
	if len(s.Errors) > 0 {
		t.Fatalf("errors %v: %q", s.Errors, o.WrongExamples)
	}
	if o.TotalOps != 600 || o.Ledger.Sent() != 600 || o.Ledger.Unknown() != 0 || s.Ops != 600 {
		t.Errorf("%d operations, %d in the window, %d sent, %d unknown; want 600", o.TotalOps, s.Ops, o.Ledger.Sent(), o.Ledger.Unknown())
	}
	if s.Latency.Count() != uint64(s.Ops) || s.Seconds <= 0 || s.InFlight != c.Connections {
		t.Errorf("%d latencies for %d operations in %v s", s.Latency.Count(), s.Ops, s.Seconds)
	}
	if s.Processes[bench.RoleServer].RSSBytes == 0 {
		t.Errorf("server = %+v", s.Processes[bench.RoleServer])
	}
	if w, ok := c.Workload.(load.Update); ok {
		if sum, err := Protocol.Count(ctx, dsn, w); err != nil || w.Check(sum, o) != nil || w.Check(sum+1, o) == nil || w.Check(sum-1, o) == nil {
			t.Errorf("%d updates of %d in the table, %v", sum, o.TotalOps, err)
		}
	}
	w, ok := c.Workload.(load.Insert)
	if !ok {
		return
	}
	a, err := Protocol.Verify(ctx, dsn, w, o)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Err(); err != nil {
		t.Error(err)
	}
	if (w.FailPercent > 0) != (a.Rows < 600) {
		t.Errorf("%d rows of 600 inserts, %v %% of which fail", a.Rows, w.FailPercent)
	}
}

// TestVerifyFindsEveryLie has a server answer one insert in a way that looks
// right, so that only the table gives it away.
func TestVerifyFindsEveryLie(t *testing.T) {
	const when = 57
	for name, tc := range map[string]struct {
		lie  func(told *mywire.OK, stored *[]fakeRow)
		want load.Audit
	}{
		"the truth":          {lie: func(*mywire.OK, *[]fakeRow) {}, want: load.Audit{Rows: 200}},
		"not stored":         {lie: func(_ *mywire.OK, s *[]fakeRow) { *s = nil }, want: load.Audit{Rows: 199, Lost: 1}},
		"stored twice":       {lie: func(_ *mywire.OK, s *[]fakeRow) { *s = append(*s, fakeRow{9999, (*s)[0].client, (*s)[0].n}) }, want: load.Audit{Rows: 201, Twice: 1, WrongID: 1}},
		"another id":         {lie: func(o *mywire.OK, _ *[]fakeRow) { o.LastInsertID = 9999 }, want: load.Audit{Rows: 200, WrongID: 1}},
		"another's id":       {lie: func(o *mywire.OK, _ *[]fakeRow) { o.LastInsertID-- }, want: load.Audit{Rows: 200, WrongID: 1}},
		"another's values":   {lie: func(_ *mywire.OK, s *[]fakeRow) { (*s)[0].client = 77 }, want: load.Audit{Rows: 200, Lost: 1, Unexpected: 1}},
		"a number to come":   {lie: func(_ *mywire.OK, s *[]fakeRow) { (*s)[0].n += 1000 }, want: load.Audit{Rows: 200, Lost: 1, Unexpected: 1}},
		"a row nobody wrote": {lie: func(_ *mywire.OK, s *[]fakeRow) { *s = append(*s, fakeRow{9999, -1, -1}) }, want: load.Audit{Rows: 201, Unexpected: 1}},
	} {
		for _, text := range []bool{false, true} {
			f := startFake(t, func(n int64, told *mywire.OK, stored *[]fakeRow) {
				if n == when {
					tc.lie(told, stored)
				}
			})
			o, err := Protocol.Run(t.Context(), load.Config{DSN: f.dsn, Workload: load.Insert{}, Connections: 4, Count: 200, Text: text})
			if err != nil {
				t.Fatal(err)
			}
			if len(o.Sample.Errors) > 0 {
				t.Fatalf("%s: %v %q", name, o.Sample.Errors, o.WrongExamples)
			}
			a, err := Protocol.Verify(t.Context(), f.dsn, load.Insert{}, o)
			if err != nil {
				t.Fatal(err)
			}
			if got := (load.Audit{Rows: a.Rows, Lost: a.Lost, Twice: a.Twice, Unexpected: a.Unexpected, WrongID: a.WrongID, Undecided: a.Undecided}); got.Rows != tc.want.Rows ||
				got.Lost != tc.want.Lost || got.Twice != tc.want.Twice || got.Unexpected != tc.want.Unexpected || got.WrongID != tc.want.WrongID || got.Undecided != 0 {
				t.Errorf("%s: %+v, want %+v", name, got, tc.want)
			}
			if (a.Err() != nil) != (name != "the truth") {
				t.Errorf("%s: Err() = %v", name, a.Err())
			}
		}
	}
}

// TestRunCountsWrongAnswers has a server answer one insert in a way that no
// server answers it directly.
func TestRunCountsWrongAnswers(t *testing.T) {
	for name, lie := range map[string]func(told *mywire.OK){
		"two rows":         func(o *mywire.OK) { o.AffectedRows = 2 },
		"no id":            func(o *mywire.OK) { o.LastInsertID = 0 },
		"a warning":        func(o *mywire.OK) { o.Warnings = 1 },
		"a note":           func(o *mywire.OK) { o.Info = []byte("Records: 64  Duplicates: 0  Warnings: 0") },
		"in a transaction": func(o *mywire.OK) { o.Status |= mywire.StatusInTrans },
	} {
		f := startFake(t, func(n int64, told *mywire.OK, _ *[]fakeRow) {
			if n == 5 {
				lie(told)
			}
		})
		o, err := Protocol.Run(t.Context(), load.Config{DSN: f.dsn, Workload: load.Insert{}, Connections: 2, Count: 20})
		if err != nil {
			t.Fatal(err)
		}
		if o.Sample.Errors["wrong answer"] != 1 || o.TotalOps != 19 || len(o.WrongExamples) != 1 {
			t.Errorf("%s: errors %v, %d right: %q", name, o.Sample.Errors, o.TotalOps, o.WrongExamples)
		}
	}
}

func TestVerifyMissesTheSeedsOfAGuardedTable(t *testing.T) {
	m := mariadb.Get(t)
	dsn, w := database(t, m), load.Insert{Guarded: true}
	if err := Protocol.Setup(t.Context(), dsn, w); err != nil {
		t.Fatal(err)
	}
	o, err := Protocol.Run(t.Context(), load.Config{DSN: dsn, Workload: w, Count: 10})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Exec(t.Context(), "DELETE FROM "+t.Name()+".test WHERE value = -9"); err != nil {
		t.Fatal(err)
	}
	if _, err := Protocol.Verify(t.Context(), dsn, w, o); err == nil || !strings.Contains(err.Error(), "255 of the 256") {
		t.Errorf("error %v, want one that counts what is left", err)
	}
}

func TestRunReportsALostServer(t *testing.T) {
	m := labtest.MariaDB(t, lab.MySQLConfig{Durability: lab.Fast, Light: true})
	dsn := database(t, m)
	if err := Protocol.Setup(t.Context(), dsn, load.Insert{}); err != nil {
		t.Fatal(err)
	}
	killed := false
	o, err := Protocol.Run(t.Context(), load.Config{
		DSN: dsn, Workload: load.Insert{}, Connections: 4, Duration: time.Hour,
		Watch: map[string]func() (measure.Usage, error){"killer": func() (measure.Usage, error) {
			if !killed {
				killed = true
				m.Kill()
			}
			return measure.Usage{}, nil
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := o.Sample.Errors[load.ClassLost]; got != 4 {
		t.Errorf("errors = %v, want 4 lost connections (%q)", o.Sample.Errors, o.WrongExamples)
	}
	if u := o.Ledger.Unknown(); u > 4 {
		t.Errorf("%d operations unknown, at most 4 were in flight", u)
	}
}

func TestIdleSessionsStayAndEnd(t *testing.T) {
	m := mariadb.Get(t)
	end, err := OpenIdle(t.Context(), m.DSN(""))
	if err != nil {
		t.Fatal(err)
	}
	if err := end(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestConfigIsRefusedByName(t *testing.T) {
	for want, c := range map[string]load.Config{
		"DSN":      {Workload: load.Insert{}, Count: 1},
		"workload": {DSN: "x", Count: 1},
		"duration": {DSN: "x", Workload: load.Insert{}},
	} {
		if _, err := Protocol.Run(t.Context(), c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error = %v, want mention of %s", err, want)
		}
	}
}
