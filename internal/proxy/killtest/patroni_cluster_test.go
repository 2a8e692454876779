package killtest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
)

// ttl is how long the primary's claim to lead outlives it, in seconds: the least that
// Patroni allows.
const ttl = 20

// A patroni is a cluster of PostgreSQL servers that Patroni runs, with etcd as its store.
type patroni struct {
	t     *testing.T
	ctl   string // patronictl
	dir   string
	nodes []*patroniNode
}

// A patroniNode is one member, with its own patroni.
type patroniNode struct {
	t                     *testing.T
	name, dir, sql, rest  string
	program, config, data string
	daemon                *exec.Cmd
	ended                 chan struct{}
	log                   tail
}

// findPatroni returns the patroni program. `make setup` does not install it, so its
// absence skips the test in CI, too.
func findPatroni(t *testing.T) string {
	t.Helper()
	names := []string{os.Getenv("WEIR_PATRONI_PROGRAM"), "patroni"}
	if root, err := filepath.Abs("../../.."); err == nil {
		names = slices.Insert(names, 1, filepath.Join(root, "bin/tools/patroni/bin/patroni"))
	}
	for _, name := range names {
		if path, err := exec.LookPath(name); name != "" && err == nil {
			return path
		}
	}
	t.Skip("Patroni is not installed: scripts/patroni")
	return ""
}

// unprivileged has a command run as the user postgres where this process is root, as
// whom PostgreSQL and PgBouncer do not run.
func unprivileged(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if os.Geteuid() == 0 {
		uid, gid := postgresUser(t)
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
}

func postgresUser(t *testing.T) (uid, gid int) {
	t.Helper()
	u, err := user.Lookup("postgres")
	if err != nil {
		t.Fatal(err)
	}
	uid, uerr := strconv.Atoi(u.Uid)
	gid, gerr := strconv.Atoi(u.Gid)
	if err := errors.Join(uerr, gerr); err != nil {
		t.Fatal(err)
	}
	return uid, gid
}

// directory makes one that such a command may write to.
func directory(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if os.Geteuid() == 0 {
		uid, gid := postgresUser(t)
		for d := dir; d != os.TempDir() && len(d) > len(os.TempDir()); d = filepath.Dir(d) {
			if err := os.Chmod(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chown(dir, uid, gid); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func startPatroni(t *testing.T) *patroni {
	t.Helper()
	program := findPatroni(t)
	bin, _, err := lab.FindPostgres(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	etcd := labtest.Etcd(t, lab.EtcdConfig{Nodes: 1})
	p := &patroni{t: t, ctl: filepath.Join(filepath.Dir(program), "patronictl"), dir: directory(t)}
	addrs := labtest.Addrs(t, 4)
	for i := range 2 {
		n := &patroniNode{t: t, name: fmt.Sprintf("pg%d", i+1), sql: addrs[2*i], rest: addrs[2*i+1], program: program}
		n.dir = directory(t)
		n.data, n.config = filepath.Join(n.dir, "data"), filepath.Join(n.dir, "patroni.json")
		n.configure(bin, strings.TrimPrefix(etcd.Endpoints()[0], "http://"))
		p.nodes = append(p.nodes, n)
	}
	for _, n := range p.nodes {
		n.launch()
		t.Cleanup(n.kill)
		p.await("a leader", func() bool { return p.leader() != nil })
	}
	p.whole()
	return p
}

// configure writes Patroni's configuration: YAML, of which JSON is a part.
func (n *patroniNode) configure(bin, etcd string) {
	type m = map[string]any
	account := func(name string) m { return m{"username": name, "password": "secret"} }
	text, err := json.Marshal(m{
		"scope": "weir", "name": n.name,
		"log":     m{"level": "INFO"},
		"restapi": m{"listen": n.rest, "connect_address": n.rest},
		"etcd3":   m{"hosts": []string{etcd}},
		"bootstrap": m{
			"dcs": m{
				"ttl": ttl, "loop_wait": 1, "retry_timeout": 3,
				"synchronous_mode": true, "primary_start_timeout": 0, "master_start_timeout": 0,
				"postgresql": m{"use_pg_rewind": true, "use_slots": true, "parameters": m{"max_connections": 200, "wal_log_hints": "on"}},
			},
			"initdb": []any{m{"encoding": "UTF8"}, "data-checksums", m{"auth": "trust"}},
		},
		"postgresql": m{
			"listen": n.sql, "connect_address": n.sql, "data_dir": n.data, "bin_dir": bin, "pgpass": filepath.Join(n.dir, "pgpass"),
			"authentication": m{"superuser": m{"username": "postgres", "password": "secret"}, "replication": account("replicator"), "rewind": account("rewinder")},
			"parameters":     m{"unix_socket_directories": n.dir, "shared_buffers": "32MB"},
			"pg_hba":         []string{"local all all trust", "host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"},
		},
	})
	if err == nil {
		err = os.WriteFile(n.config, text, 0o644)
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

func (n *patroniNode) launch() {
	n.t.Helper()
	cmd := exec.Command(n.program, n.config)
	cmd.Dir, cmd.Stdout, cmd.Stderr = n.dir, &n.log, &n.log
	cmd.Env = append(os.Environ(), "HOME="+n.dir, "LC_ALL=C.UTF-8")
	unprivileged(n.t, cmd)
	cmd.WaitDelay = time.Second // it may have started a server again meanwhile
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.daemon, n.ended = cmd, make(chan struct{})
	go func() {
		_ = cmd.Wait() // it is killed
		close(n.ended)
	}()
}

// killServer kills the PostgreSQL server with all its processes, as a crash would.
func (n *patroniNode) killServer() {
	text, err := os.ReadFile(filepath.Join(n.data, "postmaster.pid"))
	if err != nil {
		return // it does not run
	}
	first, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(first)
	if err != nil || pid <= 1 {
		return
	}
	for _, sig := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGKILL} { // it starts no other processes meanwhile
		children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
		if err != nil {
			return // it has just ended
		}
		_ = syscall.Kill(pid, sig) // as it may have here
		for child := range strings.FieldsSeq(string(children)) {
			if id, err := strconv.Atoi(child); err == nil {
				_ = syscall.Kill(id, sig)
			}
		}
	}
}

// kill kills Patroni first, which would start the server again.
func (n *patroniNode) kill() {
	_ = n.daemon.Process.Kill() // it may have ended
	n.killServer()              // which has Patroni's standard output
	<-n.ended
	if n.t.Failed() {
		n.t.Logf("patroni %s:\n%s", n.name, n.log.String())
	}
}

// A patroniMember is one of GET /cluster.
type patroniMember struct{ Name, Role, State string }

// members asks any node.
func (p *patroni) members() []patroniMember {
	c := http.Client{Timeout: labtest.Patience}
	defer c.CloseIdleConnections()
	for _, n := range p.nodes {
		resp, err := c.Get("http://" + n.rest + "/cluster")
		if err != nil {
			continue
		}
		var answer struct{ Members []patroniMember }
		err = json.NewDecoder(resp.Body).Decode(&answer)
		_ = resp.Body.Close()
		if err == nil {
			return answer.Members
		}
	}
	return nil
}

// leader is the node that leads and runs, nil while there is none.
func (p *patroni) leader() *patroniNode {
	for _, m := range p.members() {
		if m.Role == "leader" && m.State == "running" {
			return p.node(m.Name)
		}
	}
	return nil
}

func (p *patroni) node(name string) *patroniNode {
	for _, n := range p.nodes {
		if n.name == name {
			return n
		}
	}
	return nil
}

// other is the node that is not n.
func (p *patroni) other(n *patroniNode) *patroniNode {
	if p.nodes[0] == n {
		return p.nodes[1]
	}
	return p.nodes[0]
}

func (p *patroni) await(what string, is func() bool) {
	p.t.Helper()
	testkit.Eventually(p.t, what, is)
}

// whole waits until there is a leader with a synchronous standby, and returns the leader.
func (p *patroni) whole() (leader *patroniNode) {
	p.t.Helper()
	p.await("a leader with a synchronous standby", func() bool {
		leader = p.leader()
		return leader != nil && slices.ContainsFunc(p.members(), func(m patroniMember) bool {
			return m.Role == "sync_standby" && (m.State == "streaming" || m.State == "running")
		})
	})
	return leader
}

// switchover has the leader hand over to the other node, in an orderly way.
func (p *patroni) switchover(ctx context.Context, from *patroniNode) {
	p.t.Helper()
	var out []byte
	p.await("patronictl switchover", func() bool {
		cmd := exec.CommandContext(ctx, p.ctl, "-c", from.config, "switchover", "weir", "--leader", from.name, "--candidate", p.other(from).name, "--force")
		cmd.Env = append(os.Environ(), "HOME="+p.dir, "LC_ALL=C.UTF-8")
		var err error
		out, err = cmd.CombinedOutput()
		return err == nil || ctx.Err() != nil || p.leader() == p.other(from)
	})
	if ctx.Err() != nil {
		p.t.Fatalf("patronictl switchover: %s", out)
	}
}

// hosts are the addresses of all servers, as connection strings take them.
func (p *patroni) hosts() string {
	return p.nodes[0].sql + "," + p.nodes[1].sql
}

// startPgBouncer starts a PgBouncer in front of what balances at address.
func startPgBouncer(t *testing.T, address, listen string) {
	t.Helper()
	path := os.Getenv(lab.EnvPgBouncer)
	if path == "" {
		path = "/usr/sbin/pgbouncer"
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	lhost, lport, err := net.SplitHostPort(listen)
	if err != nil {
		t.Fatal(err)
	}
	dir := directory(t)
	config := filepath.Join(dir, "pgbouncer.ini")
	users := filepath.Join(dir, "users.txt")
	text := fmt.Sprintf(`[databases]
postgres = host=%s port=%s user=postgres
[pgbouncer]
listen_addr = %s
listen_port = %s
unix_socket_dir =
auth_type = any
auth_file = %s
pool_mode = transaction
default_pool_size = 8
server_login_retry = 1
server_connect_timeout = 2
query_wait_timeout = 60
`, host, port, lhost, lport, users)
	if err := errors.Join(os.WriteFile(config, []byte(text), 0o644), os.WriteFile(users, []byte("\"postgres\" \"\"\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	var log tail
	cmd := exec.Command(path, config)
	cmd.Stdout, cmd.Stderr = &log, &log
	unprivileged(t, cmd)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
		if t.Failed() {
			t.Logf("PgBouncer:\n%s", log.String())
		}
	})
}

// startPrimaryBalancer starts an HAProxy that connects to whichever node says, by
// Patroni's REST API, that it is the primary, as Patroni's own template has it, and asks
// as often as weir does.
func startPrimaryBalancer(t *testing.T, p *patroni, address string) {
	t.Helper()
	var config strings.Builder
	fmt.Fprintf(&config, `global
	nbthread 1
defaults
	mode tcp
	retries 2
	timeout connect 2s
	timeout client 30m
	timeout server 30m
	timeout check 2s
listen primary
	bind %s
	option httpchk OPTIONS /primary
	http-check expect status 200
	default-server inter 1s fall 1 rise 1 on-marked-down shutdown-sessions
`, address)
	for _, n := range p.nodes {
		_, port, err := net.SplitHostPort(n.rest)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&config, "\tserver %s %s maxconn 100 check port %s\n", n.name, n.sql, port)
	}
	path := filepath.Join(t.TempDir(), "haproxy.cfg")
	if err := os.WriteFile(path, []byte(config.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	var log tail
	cmd := exec.Command(haproxy(t), "-db", "-f", path)
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
		if t.Failed() {
			t.Logf("HAProxy:\n%s", log.String())
		}
	})
}
