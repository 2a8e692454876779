package outboxcmd

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/cli/clitest"
	"github.com/weirdb/weir/internal/outbox/torture"
)

func TestOutboxTortureUsage(t *testing.T) {
	for args, want := range map[string]string{
		"--engine oracle":                        `--engine "oracle": want one of postgres, mariadb, mysql, sqlite`,
		"--sink pulsar":                          `--sink "pulsar": want one of ledger, redis, nats, rabbitmq, kafka`,
		"--claim luck":                           `--claim: outbox: unknown claim "luck"`,
		"--layout heap":                          `--layout: outbox: unknown layout "heap"`,
		"--engine postgres --db postgres://h/d":  "--db and --engine: want one of them",
		"--db postgres://h/d --database-kills 1": "only a database server that the run has started can be killed",
		"--engine sqlite --database-kills 1":     "only a database server that the run has started can be killed",
		"--kills -1":                             "kills at least 0",
	} {
		out := program.Run(t, append([]string{"outbox", "torture"}, strings.Fields(args)...)...)
		if !strings.Contains(out, want) || !strings.HasSuffix(out, "exit 2\n") {
			t.Errorf("%s: %s, want %q and exit code 2", args, out, want)
		}
	}
}

// A run on SQLite needs no server; its relay processes are this program.
func TestOutboxTorture(t *testing.T) {
	clitest.AsWeir(t)
	out := program.Run(t, "outbox", "torture", "--engine", "sqlite", "--duration", "1s", "--kills", "4", "--broker-kills", "1", "--json")
	var res torture.Result
	if err := json.Unmarshal([]byte(out), &res); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if !res.Holds() || len(res.Violations) > 0 || res.Committed == 0 || res.Kills == 0 {
		t.Errorf("result %+v", res)
	}
	text := program.Run(t, "outbox", "torture", "--engine", "sqlite", "--duration", "400ms", "--kills", "1", "--quiet")
	for _, want := range []string{"SQLite", "to ledger, claim poll, layout queue", "lost                 0\n", "out of order         0\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("the text has no %q:\n%s", want, text)
		}
	}
}

// A broken promise has an exit code of its own, and the result is printed.
func TestOutboxTortureFallsShort(t *testing.T) {
	v := outboxTorture{}
	var out bytes.Buffer
	err := v.conclude(&out, &torture.Result{
		Verdict: torture.Verdict{Lost: 1, Examples: []string{"lost: key-1 7"}}, Violations: []string{"1 messages were lost"},
	})
	if cli.ExitCode(err) != cli.ExitShortfall || !strings.Contains(err.Error(), "1 messages were lost") {
		t.Errorf("error %v, want exit code 3", err)
	}
	if !strings.Contains(out.String(), "for example        lost: key-1 7") {
		t.Errorf("printed:\n%s", out.String())
	}
}
