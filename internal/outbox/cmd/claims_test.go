package outboxcmd

import (
	"strings"
	"syscall"
	"testing"

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
