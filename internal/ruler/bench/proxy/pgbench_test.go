package proxybench

import (
	"testing"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/ruler/bench"
)

func TestParsePgbench(t *testing.T) {
	const head = "transaction type: <builtin: simple update>\nscaling factor: 10\n"
	for name, tc := range map[string]struct {
		said string
		tps  float64
		done int64
		ok   bool
	}{
		"15": {
			said: head + "number of transactions actually processed: 4321\nnumber of failed transactions: 0 (0.000%)\nlatency average = 1.5 ms\ninitial connection time = 5.0 ms\ntps = 2160.500000 (without initial connection time)\n",
			tps:  2160.5, done: 4321, ok: true,
		},
		"13, which counts no failures": {
			said: head + "number of transactions actually processed: 10\ntps = 5.0 (without initial connection time)\n",
			tps:  5, done: 10, ok: true,
		},
		"some failed":  {said: head + "number of transactions actually processed: 10\nnumber of failed transactions: 3 (23.0%)\ntps = 5.0 (without initial connection time)\n"},
		"none done":    {said: head + "number of transactions actually processed: 0\ntps = 0.000000 (without initial connection time)\n"},
		"cut off":      {said: head},
		"other counts": {said: "tps = 5.0 (including connections establishing)\n"},
	} {
		t.Run(name, func(t *testing.T) {
			tps, done, err := parsePgbench(tc.said)
			if (err == nil) != tc.ok || tc.ok && (tps != tc.tps || done != tc.done) {
				t.Errorf("%g tps, %d done, %v", tps, done, err)
			}
		})
	}
}

func TestPgbenchRound(t *testing.T) {
	db := labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast})
	bin, err := pgbenchPath(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pgbench(t.Context(), bin, nil, "-i", "-q", "-s", "1", db.DSN("postgres")); err != nil {
		t.Fatal(err)
	}
	s, err := pgbenchRound(t.Context(), bin, way{name: "direct", dsn: db.DSN("postgres")}, 3, 0, db.PID())
	if err != nil {
		t.Fatal(err)
	}
	if s.Ops == 0 || s.Seconds <= 0 || s.Machine == nil || s.Started.IsZero() {
		t.Errorf("sample %+v", s)
	}
	for _, role := range []string{bench.RoleClient, bench.RoleServer} {
		if s.Processes[role].CPUSeconds() == 0 {
			t.Errorf("%s used no processor time", role)
		}
	}
	if _, err := pgbenchRound(t.Context(), bin, way{name: "nowhere", dsn: "postgres://127.0.0.1:1/postgres"}, 1, 0, db.PID()); err == nil {
		t.Error("a server that is not there gave a round")
	}
}
