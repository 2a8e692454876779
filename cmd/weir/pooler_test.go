package main

import (
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weirdb/weir/internal/cli/clitest"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
)

// weir's own proxy gives PostgreSQL's sessions another connection between transactions, and a
// relay refuses it: also while nothing is known of the database's functions, so that each session
// keeps its connection, and with an event loop for each of the sessions that the relay opens.
func TestOutboxRelayRefusesPoolers(t *testing.T) {
	clitest.ClearEnvironment(t)
	pg := labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast})
	if out := program.Run(t, "outbox", "migrate", "--db", pg.DSN("postgres")); strings.Contains(out, "exit") {
		t.Fatal(out)
	}
	unreadable, err := pgx.Connect(t.Context(), pg.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unreadable.Exec(t.Context(), "BEGIN; LOCK TABLE pg_catalog.pg_policy"); err != nil {
		t.Fatal(err)
	}
	for _, mode := range []string{"auto", "session"} {
		log, stop := program.Serve(t, "proxy", "--postgres", pg.DSN("postgres"), "--listen-postgres", "127.0.0.1:0", "--admin", "off", "--trust-loopback", "--loops", "8", "--mode", mode)
		u, err := url.Parse(pg.DSN("postgres"))
		if err != nil {
			t.Fatal(err)
		}
		u.Host, u.RawQuery = log.Await("weir proxy listens")["address"].(string), "sslmode=disable"
		for _, verb := range [][]string{{"relay", "--sink", "stdout:", "--admin", "off", "--log-level", "error"}, {"migrate"}} {
			if mode == "session" && verb[0] == "relay" {
				continue
			}
			out := program.Run(t, append([]string{"outbox", verb[0], "--db", u.String()}, verb[1:]...)...)
			refused := strings.Contains(out, "pooler") && strings.HasSuffix(out, "exit 1\n")
			if refused != (mode == "auto") || !refused && strings.Contains(out, "exit") {
				t.Errorf("%s through the proxy in mode %s: %s", verb[0], mode, out)
			}
		}
		if code := stop(); code != 0 {
			t.Errorf("the proxy ended with %d", code)
		}
		_ = unreadable.Close(t.Context())
	}
}
