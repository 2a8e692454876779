package outboxcmd

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/cli/clitest"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/outbox"
)

func TestOutboxRelayRefuses(t *testing.T) {
	clitest.ClearEnvironment(t)
	r := sqliteRig(t)
	if out := r.weir("migrate"); strings.Contains(out, "exit") {
		t.Fatal(out)
	}
	for _, tt := range []struct{ args, want string }{
		{"--purge-after 1d", "--purge-after: layout queue keeps nothing that was delivered"},
		{"--table other", "the tables do not exist"},
		{"--claim skip-locked --window 1h", "no SKIP LOCKED"},
	} {
		args := append([]string{"--sink", "stdout:", "--admin", "off", "--log-level", "error"}, strings.Fields(tt.args)...)
		if out := r.weir("relay", args...); !strings.Contains(out, tt.want) || !strings.HasSuffix(out, "exit 1\n") {
			t.Errorf("%s: %s", tt.args, out)
		}
	}
	ln := httptest.NewServer(http.NotFoundHandler())
	defer ln.Close()
	if out := r.weir("relay", "--sink", "stdout:", "--admin", ln.Listener.Addr().String()); !strings.Contains(out, "listen for --admin") {
		t.Errorf("a taken address: %s", out)
	}
	if out := r.weir("relay", "--sink", "stdout:", "--admin", "192.0.2.1:9188"); strings.Contains(out, "another relay") || !strings.Contains(out, "cannot assign requested address") {
		t.Errorf("an address of another machine: %s", out)
	}
	away := program.Call(t, "outbox", "status", "--db", "postgres://nobody@127.0.0.1:1/shop")
	if n := strings.Count(away.Stderr, "connection refused"); n != 1 || strings.Count(away.Stderr, "\n") != 1 {
		t.Errorf("a server that is not there: %s", away.Stderr)
	}
}

// TestOutboxRelayLogsInOneForm: a client of a broker writes nothing beside the log.
func TestOutboxRelayLogsInOneForm(t *testing.T) {
	clitest.ClearEnvironment(t)
	r := sqliteRig(t)
	r.weir("migrate")
	cmd := program.Command(t, "outbox", "relay", "--db", r.dsn, "--sink", "redis://127.0.0.1:1", "--admin", "off", "--log-format", "json")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stderr)
	for tries := 0; tries < 2 && lines.Scan(); {
		if !strings.HasPrefix(lines.Text(), "{") {
			t.Errorf("a line of the log in another form: %s", lines.Text())
		}
		if strings.Contains(lines.Text(), "waiting for the broker") {
			tries++
		}
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for lines.Scan() {
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

type relayProcess struct {
	*testing.T
	cmd    *exec.Cmd
	stdout *bufio.Reader
	log    *clitest.Log
}

func startRelay(t *testing.T, env []string, args ...string) *relayProcess {
	t.Helper()
	p := &relayProcess{T: t, cmd: program.Command(t, append([]string{"outbox", "relay"}, args...)...)}
	p.cmd.Env = append(p.cmd.Env, env...)
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	logs, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.stdout, p.log = bufio.NewReader(out), clitest.NewLog(t, logs)
	return p
}

func (p *relayProcess) end() error {
	p.Helper()
	_, _ = io.Copy(io.Discard, p.stdout)
	_, _ = io.Copy(&p.log.Seen, p.log.Lines)
	return p.cmd.Wait()
}

func TestOutboxRelayDeliversUntilSIGTERM(t *testing.T) {
	onEveryEngine(t, func(r *outboxRig) {
		if out := r.weir("migrate"); strings.Contains(out, "exit") {
			r.Fatal(out)
		}
		p := startRelay(r.T, []string{"WEIR_OUTBOX_DB=" + r.dsn}, "--sink", "stdout:", "--admin", "127.0.0.1:0", "--status-every", "10ms")
		admin := p.log.Await("weir outbox relay starts")["admin"].(string)
		p.log.Await("leading")
		for i := range 20 {
			r.enqueue(outbox.Message{Topic: "orders", Key: fmt.Sprint(i % 3), Payload: fmt.Append(nil, i)})
		}
		next := map[string]int{"0": 0, "1": 1, "2": 2}
		repeated := 0
		for n := 0; n < 20; {
			line, err := p.stdout.ReadString('\n')
			var m struct {
				Key     string
				Payload int
			}
			if err = errors.Join(err, json.Unmarshal([]byte(line), &m)); err != nil {
				r.Fatalf("%v in %q", err, line)
			}
			if m.Payload < next[m.Key] {
				repeated++
				continue
			}
			if m.Payload != next[m.Key] {
				r.Errorf("key %s: got %d, want %d", m.Key, m.Payload, next[m.Key])
			}
			next[m.Key] += 3
			n++
		}
		want := map[string]string{"sqlite": "poll", "postgres": "log", "mysql": "log"}[r.engine]
		var live struct {
			Pending   int
			Delivered int `json:"relay_delivered"`
			Claim     string
			Leases    []struct{ Held bool }
		}
		testkit.Await(r.T, func() bool {
			code, body := clitest.Get(r.T, admin+"status.json")
			live.Leases = nil
			return code == 200 && json.Unmarshal([]byte(body), &live) == nil && live.Pending == 0 && live.Delivered >= 20 && live.Claim == want &&
				len(live.Leases) == 1 && live.Leases[0].Held
		}, func() string { return fmt.Sprintf("status.json %+v", live) })
		if code, body := clitest.Get(r.T, admin+"readyz"); code != 200 {
			r.Errorf("readyz: %d %s", code, body)
		}
		// On a machine that stands still for a second the relay may lose its lead and
		// take it again; only then may messages come twice.
		_, body := clitest.Get(r.T, admin+"metrics")
		if once := strings.Contains(body, `weir_outbox_take_overs_total{table="weir_outbox"} 1`+"\n"); once && (repeated > 0 || live.Delivered > 20) {
			r.Errorf("%d messages were delivered, %d of them again, by one leader", live.Delivered, repeated)
		}
		if !strings.Contains(body, fmt.Sprintf(`weir_outbox_delivered_messages_total{table="weir_outbox"} %d`, live.Delivered)) ||
			!strings.Contains(body, `weir_outbox_held_shards{table="weir_outbox"} 1`) || !strings.Contains(body, "weir_build_info") {
			r.Errorf("metrics:\n%s", body)
		}
		if _, body := clitest.Get(r.T, admin); !strings.Contains(body, "weir outbox relay of weir_outbox") {
			r.Errorf("page: %s", body)
		}
		if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			r.Fatal(err)
		}
		stopped := p.log.Await("weir outbox relay has stopped")
		if recorded, _ := stopped["recorded"].(float64); recorded < 20 || recorded > float64(live.Delivered) {
			r.Errorf("%v recorded of %d delivered", stopped["recorded"], live.Delivered)
		}
		if err := p.end(); err != nil {
			r.Errorf("ended with %v, %v", err, stopped)
		}
		if s := r.status(); s.Pending != 0 || s.Leases[0].Held {
			r.Errorf("status: %+v", s)
		}
	})
}

func TestOutboxRelayDrains(t *testing.T) {
	clitest.ClearEnvironment(t)
	for _, impatient := range []bool{false, true} {
		r := sqliteRig(t)
		if out := r.weir("migrate"); strings.Contains(out, "exit") {
			t.Fatal(out)
		}
		asked, answer := make(chan struct{}, 10), make(chan struct{})
		broker := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			_, _ = io.Copy(io.Discard, req.Body)
			asked <- struct{}{}
			select {
			case <-answer:
			case <-req.Context().Done():
			}
		}))
		r.enqueue(outbox.Message{Topic: "orders", Payload: []byte("1")})
		p := startRelay(t, nil, "--db", r.dsn, "--sink", broker.URL+"?timeout=10m", "--admin", "off", "--drain-timeout", "10m")
		testkit.Receive(t, "the relay asks the broker", asked)
		if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		p.log.Await("weir outbox relay stops")
		want := int64(0)
		if impatient {
			want = 1
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_ = p.end()
			}()
			for done := false; !done; {
				_ = p.cmd.Process.Signal(syscall.SIGTERM) // until one counts as the second
				select {
				case <-ended:
					done = true
				case <-time.After(20 * time.Millisecond):
				}
			}
			if state := p.cmd.ProcessState.Sys().(syscall.WaitStatus); !state.Signaled() {
				t.Errorf("ended with %v, want by the signal", state)
			}
			close(answer)
		} else {
			close(answer)
			if err := p.end(); err != nil {
				t.Errorf("ended with %v\n%s", err, p.log.Seen.String())
			}
		}
		if s := r.status(); s.Pending != want {
			t.Errorf("impatient %v: %d pending, want %d", impatient, s.Pending, want)
		}
		broker.Close()
	}
}

func TestLastLineStaysLast(t *testing.T) {
	var b bytes.Buffer
	l := &lastLine{w: &b}
	l.set("")
	for _, step := range []func(){
		func() { fmt.Fprintln(l, "log 1") },
		func() { l.set("rate 1") },
		func() { fmt.Fprintln(l, "log 2") },
		func() { l.set("rate 2") },
		func() { l.set("") },
		func() { fmt.Fprintln(l, "log 3") },
	} {
		step()
	}
	const e = eraseLine
	if want := "log 1\n" + e + "rate 1" + e + "log 2\nrate 1" + e + "rate 2" + e + "log 3\n"; b.String() != want {
		t.Errorf("wrote %q, want %q", b.String(), want)
	}
}

func TestOutboxRelayWaitsForItsDatabase(t *testing.T) {
	pg := labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast})
	clitest.ClearEnvironment(t)
	if out := program.Run(t, "outbox", "migrate", "--db", pg.DSN("postgres")); strings.Contains(out, "exit") {
		t.Fatal(out)
	}
	execPostgres(t, pg.DSN("postgres"), "CHECKPOINT") // a fast server loses in a crash what it has not written
	pg.Kill()
	p := startRelay(t, nil, "--db", pg.DSN("postgres"), "--sink", "stdout:", "--admin", "off")
	p.log.Await("waiting for the database")
	ctx, cancel := context.WithTimeout(t.Context(), labtest.Patience)
	defer cancel()
	if err := pg.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	p.log.Await("leading")
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := p.end(); err != nil {
		t.Errorf("ended with %v\n%s", err, p.log.Seen.String())
	}
}

// While the broker is away the process is healthy and not ready, and a stop is
// no failure: nothing was in flight.
func TestOutboxRelayAnswersWhileItWaits(t *testing.T) {
	clitest.ClearEnvironment(t)
	r := sqliteRig(t)
	if out := r.weir("migrate"); strings.Contains(out, "exit") {
		t.Fatal(out)
	}
	held, err := lab.ReservePorts(2)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Release()
	admin := held.Addrs()[1]
	p := startRelay(t, []string{"WEIR_OUTBOX_DB=" + r.dsn}, "--sink", "nats://"+held.Addrs()[0]+"?timeout=1s", "--admin", admin)
	p.log.Await("waiting for the broker")
	if code, body := clitest.Get(t, "http://"+admin+"/healthz"); code != 200 {
		t.Errorf("healthz: %d %s", code, body)
	}
	if code, body := clitest.Get(t, "http://"+admin+"/readyz"); code != 503 || !strings.Contains(body, "waiting for the broker") {
		t.Errorf("readyz: %d %s", code, body)
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := p.end(); err != nil {
		t.Errorf("after SIGTERM: %v\n%s", err, p.log.Seen.String())
	}
}
