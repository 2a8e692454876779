package killtest_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
)

// balancerAddress is where HAProxy's connections to weir come from: those alone begin
// with a header of the PROXY protocol.
const balancerAddress = "127.0.0.2"

// A balancer is an HAProxy in front of several weirs.
type balancer struct {
	address, stats string
	cmd            *exec.Cmd
	log            tail
}

// haproxy finds the program, which `make setup` installs.
func haproxy(t *testing.T) string {
	t.Helper()
	for _, name := range []string{os.Getenv("WEIR_HAPROXY"), "haproxy", "/usr/sbin/haproxy"} {
		if path, err := exec.LookPath(name); name != "" && err == nil {
			return path
		}
	}
	t.Fatal("haproxy is not installed: make setup")
	return ""
}

func startBalancer(t *testing.T, address string, weirs []*fleetWeir) *balancer {
	t.Helper()
	dir := t.TempDir()
	b := &balancer{address: address, stats: filepath.Join(dir, "stats")}
	var config strings.Builder
	fmt.Fprintf(&config, `global
	nbthread 1
	stats socket %s
defaults
	mode tcp
	timeout connect 1m
	timeout client 10m
	timeout server 10m
	timeout check 1m
	retries 10
	option redispatch
listen weir
	bind %s
	balance leastconn
	option httpchk
	http-check send meth GET uri /readyz ver HTTP/1.1 hdr Host localhost
`, b.stats, address)
	for _, w := range weirs {
		_, port, err := net.SplitHostPort(w.admin)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&config, "\tserver %s %s source %s send-proxy-v2 check port %s inter 50ms fall 1 rise 1\n", w.name, w.address, balancerAddress, port)
	}
	path := filepath.Join(dir, "haproxy.cfg")
	if err := os.WriteFile(path, []byte(config.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	b.cmd = exec.Command(haproxy(t), "-db", "-f", path)
	b.cmd.Stdout, b.cmd.Stderr = &b.log, &b.log
	if err := b.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = b.cmd.Process.Kill()
		_ = b.cmd.Wait() // it was killed
		if t.Failed() {
			t.Log(b.log.String())
		}
	})
	return b
}

// says asks HAProxy whether a weir is UP or DOWN.
func (b *balancer) says(name, state string) bool {
	conn, err := net.Dial("unix", b.stats)
	if err != nil {
		return false
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "show stat\n"); err != nil {
		return false
	}
	text, err := io.ReadAll(conn)
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "weir,"+name+",") {
			return strings.Contains(line, ","+state+",")
		}
	}
	return false
}

// A fleetWeir is one of several.
type fleetWeir struct {
	weir
	name, address string
}

// clients is how many it has; -1 if it does not say.
func (w *fleetWeir) clients() int {
	c := http.Client{Timeout: labtest.Patience}
	defer c.CloseIdleConnections()
	resp, err := c.Get("http://" + w.admin + "/snapshot.json")
	if err != nil {
		return -1
	}
	defer resp.Body.Close()
	state := struct{ Clients int }{-1}
	if json.NewDecoder(resp.Body).Decode(&state) != nil {
		return -1
	}
	return state.Clients
}

// shutDown has the console end the process when its clients have left.
func (w *fleetWeir) shutDown(ctx context.Context, engine string) error {
	const command = "SHUTDOWN WAIT_FOR_CLIENTS"
	if engine == "postgres" {
		conn, err := pgx.Connect(ctx, "postgres://postgres@"+w.address+"/pgbouncer?sslmode=disable")
		if err != nil {
			return err
		}
		defer conn.Close(context.Background())
		_, err = conn.Exec(ctx, command, pgx.QueryExecModeSimpleProtocol)
		return err
	}
	db, err := sql.Open("mysql", "root@tcp("+w.address+")/weir")
	if err != nil {
		return err
	}
	defer db.Close()
	_, err = db.ExecContext(ctx, command)
	return err
}

// TestRollingRestart restarts two weirs behind HAProxy one after the other, while clients with
// short sessions write. No client may get an error, and no acknowledged write may be lost.
// WEIR_ROLLS is how often each is restarted; WEIR_KILLS_TABLE names a file for the table of
// results.
func TestRollingRestart(t *testing.T) {
	testkit.Long(t, "restarts every process of both engines")
	rolls := 1
	if text := os.Getenv("WEIR_ROLLS"); text != "" {
		if _, err := fmt.Sscan(text, &rolls); err != nil {
			t.Fatalf("WEIR_ROLLS=%s: %v", text, err)
		}
	}
	for i := range engines {
		e := &engines[i]
		t.Run(e.name, func(t *testing.T) {
			if os.Getenv("WEIR_ROLLS") == "" {
				t.Parallel()
			}
			rollingRestart(t, e, rolls)
		})
	}
}

func rollingRestart(t *testing.T, e *engine, rolls int) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rolls)*labtest.Patience)
	defer cancel()
	server := e.start(t)
	addrs := labtest.Addrs(t, 5)
	var weirs []*fleetWeir
	for i, name := range []string{"a", "b"} {
		w := &fleetWeir{name: name, address: addrs[2*i]}
		w.path, w.admin, w.lanes = program.Path(t), addrs[2*i+1], map[string]int{}
		w.args = append([]string{
			"proxy", "--trust-loopback", "--pool-size", "8", "--admin", w.admin,
			"--proxy-protocol-from", balancerAddress, "--shutdown-delay", "10m",
		}, e.flags(server, server.Addr(), w.address)...)
		if err := w.launch(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.kill)
		weirs = append(weirs, w)
	}
	b := startBalancer(t, addrs[4], weirs)
	await := func(what string, is func() bool) {
		t.Helper()
		testkit.Eventually(t, what, func() bool { return is() || ctx.Err() != nil })
	}
	for _, w := range weirs {
		await("weir "+w.name+" being up", func() bool { return b.says(w.name, "UP") })
	}

	g := &ground{engine: e, ledger: &ledger{}, errs: &census{}, done: new(pulse)}
	direct, err := e.dial(ctx, server.Addr(), false)
	if err != nil {
		t.Fatal(err)
	}
	defer direct.close()
	if err := g.make(ctx, direct); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	result := newResult("rolling restarts", e.name)
	var writers sync.WaitGroup
	var sessions atomic.Int64
	for i := range clients {
		c := &client{ground: g, address: b.address, random: rand.New(rand.NewPCG(uint64(i), 1))}
		writers.Go(func() { c.shortSessions(stop, &sessions) })
	}
	progress := func() {
		t.Helper()
		goal := g.done.count() + 50
		await("acknowledged writes", func() bool { return g.done.count() >= goal })
	}
	for _, w := range slices.Repeat(weirs, rolls) {
		progress()
		g.done.take()
		if err := w.signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		await("weir "+w.name+" getting no more clients", func() bool { return b.says(w.name, "DOWN") && w.clients() == 0 })
		if err := w.shutDown(ctx, e.name); err != nil {
			t.Errorf("shut down weir %s: %v", w.name, err)
		}
		select {
		case <-w.done:
		case <-ctx.Done():
			t.Fatalf("weir %s does not end:\n%s", w.name, w.log.String())
		}
		if how := w.ended(); how != "<nil>" {
			t.Errorf("weir %s ended with %s:\n%s", w.name, how, w.log.String())
		}
		progress()
		if err := w.launch(); err != nil {
			t.Fatal(err)
		}
		await("weir "+w.name+" being up again", func() bool { return b.says(w.name, "UP") })
		progress()
		result.faults[rollWeir]++
		result.gaps[rollWeir] = append(result.gaps[rollWeir], g.done.take())
	}
	close(stop)
	writers.Wait()

	found, bad, err := g.read(ctx, direct)
	if err != nil {
		t.Fatal(err)
	}
	v := g.ledger.verdict(found)
	for _, text := range bad {
		v.say(&v.wrong, "%s", text)
	}
	if v.breaches() > 0 || v.unknown > 0 || len(g.errs.of) > 0 {
		t.Errorf("%s; errors: %s\n%s", &v, g.errs, strings.Join(v.examples, "\n"))
	}
	t.Logf("%s: %s", e.name, &v)
	result.verdict, result.sessions = v, sessions.Load()
	g.errs.mu.Lock()
	maps.Copy(result.errs, g.errs.of)
	g.errs.mu.Unlock()
	publish(t, result)
}

// shortSessions writes what cannot fail until stop is closed, in sessions of a few
// writes each, which are counted.
func (c *client) shortSessions(stop <-chan struct{}, sessions *atomic.Int64) {
	defer c.hangUp()
	for {
		select {
		case <-stop:
			return
		case <-time.After(time.Duration(c.random.IntN(5000)) * time.Microsecond):
		}
		if c.session == nil {
			if !c.dial() {
				c.ledger.complain("a client could not connect")
				continue
			}
			sessions.Add(1)
		}
		switch c.random.IntN(4) {
		case 0:
			c.insert(c.doubles(), partRow)
		case 1:
			c.pair()
		case 2:
			c.appended(c.slot)
		default:
			c.transaction()
		}
		if c.session != nil && (!c.session.alive() || c.random.IntN(10) == 0) {
			c.hangUp()
		}
	}
}
