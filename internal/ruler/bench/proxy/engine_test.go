package proxybench

import (
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
)

// TestSidesAgainstMariaDB measures a direct way and a way through a relay, as the
// experiments do with weir, with all that is read and compared around a round.
func TestSidesAgainstMariaDB(t *testing.T) {
	labtest.RequireMariaDB(t)
	r := mariaRig(t, "")
	relay := labtest.Relay(t, r.db.(*lab.MySQL).Addr())
	dsn, err := through(r.direct().dsn, relay.Addr())
	if err != nil {
		t.Fatal(err)
	}
	failing := r.insert("/* batch */")
	failing.FailPercent = 10
	for _, tc := range []struct {
		kind string
		side func(w way) bench.Side
	}{
		{"inserts", func(w way) bench.Side { return r.side(w, 8, r.insert("/* batch:1 */"), false) }},
		{"literals", func(w way) bench.Side { return r.side(w, 8, r.insert(""), true) }},
		{"failing", func(w way) bench.Side { return r.side(w, 8, failing, false) }},
		{"reads", func(w way) bench.Side { return r.side(w, 8, r.lookup(), false) }},
	} {
		e := r.experiment(tc.kind, 8, tc.kind)
		e.Sides = []bench.Side{
			tc.side(r.direct()),
			tc.side(way{name: "relay", dsn: dsn, window: bench.NotApplicable, via: "relay"}),
		}
		res, err := measureWith(t, r, e)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range res.Cases {
			s := c.Samples[0]
			// Of the whole run: a disk that is busy may leave the window empty.
			if s.Server == nil || s.Server.Ops == 0 || s.Server.Ops < s.Ops || s.Failed() != 0 {
				t.Errorf("%s %s: %d operations, errors %v, server %+v", tc.kind, c.Name, s.Ops, s.Errors, s.Server)
			}
			if _, ok := s.Processes[bench.RoleServer]; !ok {
				t.Errorf("%s %s: the server's processor time is missing", tc.kind, c.Name)
			}
			if tc.kind == "inserts" && s.Server.Fsyncs == 0 {
				t.Errorf("%s: inserts without a flush", c.Name)
			}
		}
		if s := res.Env.Servers; len(s) != 1 || s[0].Name != "MariaDB" || res.Env.Durability != "prod" {
			t.Errorf("environment: %+v, %s", s, res.Env.Durability)
		}
	}
}

// TestAServerOfSomebodyElse uses tables of its own, and knows nothing of the
// process.
func TestAServerOfSomebodyElse(t *testing.T) {
	labtest.RequireMariaDB(t)
	theirs := labtest.MariaDB(t, lab.MySQLConfig{Durability: lab.Fast, Light: true})
	if err := theirs.Exec(t.Context(), "CREATE DATABASE app"); err != nil {
		t.Fatal(err)
	}
	r := mariaRig(t, theirs.DSN("app"))
	if got := r.insert("").TableName(); got == "test" {
		t.Errorf("table %s is not ours to replace", got)
	}
	e := r.experiment("inserts", 4, "inserts")
	e.Sides = []bench.Side{r.side(r.direct(), 4, r.insert(""), false)}
	res, err := measureWith(t, r, e)
	if err != nil {
		t.Fatal(err)
	}
	s := res.Cases[0].Samples[0]
	if _, ok := s.Processes[bench.RoleServer]; ok || s.Server == nil || s.Server.Ops == 0 {
		t.Errorf("sample = %+v", s)
	}
	if res.Env.Durability == "prod" {
		t.Error("nobody has made sure of the server's durability")
	}
}

// measureWith runs an experiment on a rig.
func measureWith(t *testing.T, rig *rig, e bench.Experiment) (*bench.Result, error) {
	out := &Outcome{}
	o := rig.o.Options
	o.Out = t.TempDir() // each is a run of its own
	runner, err := suite.NewRunner(o, &out.Outcome)
	if err != nil {
		return nil, err
	}
	if err := (&run{Runner: runner, rig: rig, o: rig.o, out: out}).measure(t.Context(), e); err != nil {
		return nil, err
	}
	return out.Results[len(out.Results)-1], nil
}

// mariaRig is a rig without weir.
func mariaRig(t *testing.T, dsn string) *rig {
	t.Helper()
	r := &rig{o: Options{
		Options: suite.Options{Out: t.TempDir(), Say: t.Logf}, Engine: suite.MariaDB, DSN: dsn,
		Plan: Plan{Rounds: 1, Warmup: 50 * time.Millisecond, Duration: 150 * time.Millisecond},
	}}
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Error(err)
		}
	})
	var err error
	if r.engine, err = engineOf(suite.MariaDB); err != nil {
		t.Fatal(err)
	}
	db, err := r.startServer(t.Context(), needs{connections: 50})
	if err != nil {
		t.Fatal(err)
	}
	r.db = db
	m, err := r.engine.meter(r.direct().dsn)
	if err != nil {
		t.Fatal(err)
	}
	r.meter = m
	if r.info, err = m.Server(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestThroughReplacesTheAddressAlone(t *testing.T) {
	for in, want := range map[string]string{
		"mysql://root@127.0.0.1:3306/bench":                "mysql://root@127.0.0.1:1/bench",
		"mysql://me:p%40ss@db/app?charset=x":               "mysql://me:p%40ss@127.0.0.1:1/app?charset=x",
		"postgres://postgres@[::1]:5/postgres?sslmode=off": "postgres://postgres@127.0.0.1:1/postgres?sslmode=off",
	} {
		if got, err := through(in, "127.0.0.1:1"); err != nil || got != want {
			t.Errorf("through(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
	for _, in := range []string{"", "root@tcp(db)/app", "host=db user=me password=hidden", "mysql://u:hid%zzden@db/"} {
		if _, err := through(in, "127.0.0.1:1"); err == nil || strings.Contains(err.Error(), "hid") {
			t.Errorf("%q: error %v, want one without the password", in, err)
		}
	}
}

func TestEveryEngineIsComplete(t *testing.T) {
	for _, name := range Engines() {
		e, err := engineOf(name)
		if err != nil {
			t.Fatal(err)
		}
		if e.start == nil || e.Protocol == nil || e.idle == nil ||
			e.database == "" || e.serverEnv == "" || e.listenFlag == "" || e.ungrouped == "" || name.Title() == "" {
			t.Errorf("engine %s lacks something: %+v", name, e)
		}
	}
	if _, err := engineOf("oracle"); err == nil {
		t.Error("an engine that there is not")
	}
}
