package main

import (
	"net/url"
	"strings"
	"syscall"
	"testing"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/outbox"
)

// A relay that would deliver what another one delivers does not start, and says why.
func TestOutboxRelayRefusesOtherClaims(t *testing.T) {
	onEveryEngine(t, func(r *outboxRig) {
		if r.engine == "sqlite" {
			return // has no SKIP LOCKED, which TestOutboxRelayRefuses shows
		}
		if out := r.weir("migrate"); strings.Contains(out, "exit") {
			r.Fatal(out)
		}
		for _, claims := range [][2]string{{"poll", "skip-locked"}, {"skip-locked", "auto"}} {
			p := startRelay(r.T, []string{"WEIR_OUTBOX_DB=" + r.dsn}, "--sink", "stdout:", "--admin", "off", "--claim", claims[0])
			r.enqueue(outbox.Message{Topic: "t", Payload: []byte("x")})
			if _, err := p.stdout.ReadString('\n'); err != nil {
				r.Fatal(err)
			}
			out := r.weir("relay", "--sink", "stdout:", "--admin", "off", "--log-level", "error", "--claim", claims[1])
			if !strings.Contains(out, "skip-locked") || !strings.Contains(out, "stop the others first") || !strings.HasSuffix(out, "exit 1\n") {
				r.Errorf("%s beside %s: %s", claims[1], claims[0], out)
			}
			if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
				r.Fatal(err)
			}
			if err := p.end(); err != nil {
				r.Error(err)
			}
		}
	})
}

// weir's own proxy gives PostgreSQL's sessions another connection between
// transactions, so a relay works around it.
func TestOutboxRelayRefusesPoolers(t *testing.T) {
	pg := labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast})
	log, stop := startProxy(t, "--postgres", pg.DSN("postgres"))
	address := log.Await("weir proxy listens")["address"].(string)
	direct := &outboxRig{T: t, dsn: pg.DSN("postgres")}
	if out := direct.weir("migrate"); strings.Contains(out, "exit") {
		t.Fatal(out)
	}
	u, err := url.Parse(direct.dsn)
	if err != nil {
		t.Fatal(err)
	}
	u.Host, u.RawQuery = address, "sslmode=disable"
	pooled := &outboxRig{T: t, dsn: u.String()}
	for _, verb := range [][]string{{"relay", "--sink", "stdout:", "--admin", "off", "--log-level", "error"}, {"migrate"}} {
		if out := pooled.weir(verb[0], verb[1:]...); !strings.Contains(out, "pooler") || !strings.HasSuffix(out, "exit 1\n") {
			t.Errorf("%s through the proxy: %s", verb[0], out)
		}
	}
	if code := stop(); code != 0 {
		t.Errorf("the proxy ended with %d", code)
	}
}
