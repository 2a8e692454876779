package main

import (
	"net/url"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/cli/clitest"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
)

// weir's own proxy gives PostgreSQL's sessions another connection between
// transactions, so a relay works around it.
func TestOutboxRelayRefusesPoolers(t *testing.T) {
	clitest.ClearEnvironment(t)
	pg := labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast})
	log, stop := program.Serve(t, "proxy", "--postgres", pg.DSN("postgres"), "--listen-postgres", "127.0.0.1:0", "--admin", "off", "--trust-loopback")
	address := log.Await("weir proxy listens")["address"].(string)
	if out := program.Run(t, "outbox", "migrate", "--db", pg.DSN("postgres")); strings.Contains(out, "exit") {
		t.Fatal(out)
	}
	u, err := url.Parse(pg.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	u.Host, u.RawQuery = address, "sslmode=disable"
	for _, verb := range [][]string{{"relay", "--sink", "stdout:", "--admin", "off", "--log-level", "error"}, {"migrate"}} {
		if out := program.Run(t, append([]string{"outbox", verb[0], "--db", u.String()}, verb[1:]...)...); !strings.Contains(out, "pooler") || !strings.HasSuffix(out, "exit 1\n") {
			t.Errorf("%s through the proxy: %s", verb[0], out)
		}
	}
	if code := stop(); code != 0 {
		t.Errorf("the proxy ended with %d", code)
	}
}
