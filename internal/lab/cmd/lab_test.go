package labcmd

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
)

// startLab runs `weir lab` with args and returns its output and its end.
func startLab(t *testing.T, ctx context.Context, args ...string) (*bufio.Reader, <-chan error) {
	t.Helper()
	labtest.RequirePostgres(t)
	r, w := io.Pipe()
	cmd := newLabCommand()
	cmd.SetArgs(args)
	cmd.SetOut(w)
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	end := make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	late := time.AfterFunc(labtest.Patience, func() {
		t.Errorf("weir lab %s: still running after %s", strings.Join(args, " "), labtest.Patience)
		cancel()
	})
	t.Cleanup(func() { late.Stop(); cancel() })
	go func() {
		err := cmd.ExecuteContext(ctx)
		_ = w.CloseWithError(io.EOF)
		end <- err
	}()
	return bufio.NewReader(r), end
}

func TestLabUpServesUntilSignalled(t *testing.T) {
	out, end := startLab(t, t.Context(), "up", "--durability", "fast", "--auth", "scram-sha-256",
		"--set", "work_mem=3MB", "--json")
	line, err := out.ReadString('\n')
	if err != nil {
		t.Fatalf("no report: %v (%v)", err, <-end)
	}
	var r labReport
	if err := json.Unmarshal([]byte(line), &r); err != nil {
		t.Fatal(err)
	}
	if r.Durability != "fast" || len(r.Servers) != 1 || r.Servers[0].Name != "postgres" {
		t.Fatalf("report: %s", line)
	}
	conn, err := pgx.Connect(t.Context(), r.Servers[0].DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	var workMem string
	if err := conn.QueryRow(t.Context(), "SHOW work_mem").Scan(&workMem); err != nil || workMem != "3MB" {
		t.Errorf("work_mem %q, %v; want 3MB", workMem, err)
	}
	// The command has registered for the signal before it printed anything.
	if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-end; err != nil {
		t.Errorf("ended with %v, want success", err)
	}
	if _, err := os.Stat(r.Servers[0].Data); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("data directory afterwards: %v, want it gone", err)
	}
}

func TestLabUpPrintsForPeople(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out, end := startLab(t, ctx, "up", "--fsync-latency", "2ms", "--set", "work_mem=3MB")
	var text strings.Builder
	for {
		line, err := out.ReadString('\n')
		text.WriteString(line)
		if err != nil {
			t.Fatalf("output ended early: %q, %v", text.String(), <-end)
		}
		if strings.HasPrefix(line, "Ctrl-C") {
			break
		}
	}
	for _, want := range []string{
		"postgres   postgres://postgres@127.0.0.1:", "/psql 'postgres://",
		"durability prod, each flush 2ms slower\n", "setting    work_mem = 3MB\n",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("output lacks %q:\n%s", want, text.String())
		}
	}
	cancel()
	if err := <-end; err != nil {
		t.Errorf("ended with %v, want success", err)
	}
}

func TestLabUpEndsWithItsServer(t *testing.T) {
	out, end := startLab(t, t.Context(), "up", "--durability", "fast", "--json")
	var r labReport
	if err := json.NewDecoder(out).Decode(&r); err != nil {
		t.Fatal(err, <-end)
	}
	// SIGINT is PostgreSQL's fast shutdown, as if another program stopped it.
	if err := syscall.Kill(r.Servers[0].PID, syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := <-end; err == nil || !strings.Contains(err.Error(), "ended by itself") {
		t.Errorf("ended with %v, want to hear of the server's end", err)
	}
	if _, err := os.Stat(filepath.Dir(r.Servers[0].Data)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("run directory afterwards: %v, want it gone", err)
	}
}

func TestLabUpRefuses(t *testing.T) {
	tests := []struct {
		args []string
		want string
	}{
		{[]string{"up", "--durability", "some"}, `--durability: durability "some": must be prod or fast`},
		{[]string{"up", "--postgres=false"}, "nothing to start"},
		{[]string{"up", "--postgres", "--engine", "mariadb"}, "name every server in --engine"},
		{[]string{"up", "--engine", "oracle"}, `--engine "oracle": must be one of postgres, mariadb, mysql, nats, redis, rabbitmq, kafka, s3, etcd`},
		{[]string{"up", "--engine", "nats,oracle"}, `--engine "oracle"`},
		{[]string{"up", "--engine", "nats,redis,nats"}, "nats twice"},
		{[]string{"up", "--engine", "nats,postgres", "--pgbouncer"}, "--pgbouncer is for --engine postgres, not nats"},
		{[]string{"up", "--engine", "nats", "--fsync-latency", "1ms"}, "--fsync-latency is for --engine postgres or mariadb or mysql, not nats"},
		{[]string{"up", "--engine", "etcd", "--port", "2379"}, "kafka or s3, not etcd"},
		{[]string{"up", "--engine", "redis", "--auth", "md5"}, "--engine redis has trust and password"},
		{[]string{"up", "--engine", "redis", "--set", "a b=c"}, `setting "a b"`},
		{[]string{"up", "--engine", "mariadb", "--pgbouncer"}, "--pgbouncer is for --engine postgres, not mariadb"},
		{[]string{"up", "--tls=some"}, `--tls: TLS mode "some"`},
		{[]string{"up", "--binlog"}, "--binlog is for --engine mariadb or mysql, not postgres"},
		{[]string{"up", "--engine", "mysql", "--auth", "md5"}, "--engine mysql has trust and password"},
		{[]string{"up", "--engine", "mariadb", "--bin-dir", "/nonexistent"}, "does not hold mariadbd"},
		{[]string{"up", "--auth", "magic"}, `auth "magic"`},
		{[]string{"up", "--durability", "fast", "--fsync-latency", "1ms"}, "needs durability prod"},
		{[]string{"up", "extra"}, "unknown command"},
		{[]string{"up", "--bin-dir", "/nonexistent"}, "does not hold postgres"},
	}
	for _, tt := range tests {
		_, end := startLab(t, t.Context(), tt.args...)
		if err := <-end; err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("weir lab %s: %v, want %q", strings.Join(tt.args, " "), err, tt.want)
		}
	}
}

// TestLabUpRefusesATakenPort: in its own words, not by a server's log.
func TestLabUpRefusesATakenPort(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, port, _ := net.SplitHostPort(taken.Addr().String())
	_, end := startLab(t, t.Context(), "up", "--port", port)
	if err := <-end; err == nil || err.Error() != "--port "+port+": another program listens there: choose another, or leave --port out for a free one" {
		t.Errorf("weir lab up --port %s: %v", port, err)
	}
}

// TestLabUpMySQLFamily runs the client line that the verb prints: what it says
// must be enough to get in.
func TestLabUpMySQLFamily(t *testing.T) {
	tests := []struct {
		engine, name string
		require      func(testing.TB)
	}{
		{"mariadb", "MariaDB", labtest.RequireMariaDB},
		{"mysql", "MySQL", labtest.RequireMySQL},
	}
	for _, tt := range tests {
		t.Run(tt.engine, func(t *testing.T) {
			tt.require(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			out, end := startLab(t, ctx, "up", "--engine", tt.engine, "--durability", "fast", "--auth", "password", "--tls=optional",
				"--binlog", "--set", "innodb_lock_wait_timeout=7", "--json")
			var r labReport
			if err := json.NewDecoder(out).Decode(&r); err != nil {
				t.Fatal(err, <-end)
			}
			if len(r.Servers) != 1 || r.Servers[0].Name != tt.engine || r.Servers[0].CACert == "" || r.Psql != "" {
				t.Fatalf("report: %+v", r)
			}
			u, err := url.Parse(r.Servers[0].DSN)
			if err != nil || u.Scheme != "mysql" || u.Port() != strconv.Itoa(r.Servers[0].Port) {
				t.Errorf("DSN: %v (%v)", u.Redacted(), err)
			}
			if r.Client == "" {
				t.Skip("no client of the server's version is installed")
			}
			shell := exec.CommandContext(ctx, "sh", "-c", r.Client+" -N -e 'SELECT @@innodb_lock_wait_timeout, @@log_bin'")
			if answer, err := shell.CombinedOutput(); err != nil || strings.TrimSpace(string(answer)) != "7\t1" {
				t.Errorf("%s: %q, %v; want the settings asked for", r.Client, answer, err)
			}
			cancel()
			if err := <-end; err != nil {
				t.Errorf("ended with %v, want success", err)
			}
		})
	}
}

// TestLabUpSeveral starts a database and brokers, of which only the first has
// what the flags say; the end of one is the end of all.
func TestLabUpSeveral(t *testing.T) {
	labtest.RequireNATS(t)
	labtest.RequireRedis(t)
	labtest.RequireS3(t)
	out, end := startLab(t, t.Context(), "up", "--engine", "postgres,nats,redis,s3", "--durability", "fast",
		"--auth", "password", "--set", "work_mem=3MB", "--json")
	var r labReport
	if err := json.NewDecoder(out).Decode(&r); err != nil {
		t.Fatal(err, <-end)
	}
	var schemes []string
	for _, s := range r.Servers {
		u, err := url.Parse(s.DSN)
		if err != nil {
			t.Fatal(err)
		}
		schemes = append(schemes, s.Name+" by "+u.Scheme)
		if s.Port == 0 || s.PID == 0 || s.Version == "" || s.Data == "" {
			t.Errorf("%s: %+v", s.Name, s)
		}
		if _, asked := u.User.Password(); asked != (s.Name == "postgres") {
			t.Errorf("%s has a password: %v", s.Name, asked)
		}
		if got := len(s.Env) > 0; got != (s.Name == "s3") {
			t.Errorf("%s: environment %v", s.Name, s.Env)
		}
	}
	if got, want := strings.Join(schemes, ", "), "postgres by postgres, nats by nats, redis by redis, s3 by s3"; got != want {
		t.Fatalf("servers: %s; want %s", got, want)
	}
	if !strings.Contains(r.Client, "psql") || r.Client != r.Psql {
		t.Errorf("client %q, psql %q", r.Client, r.Psql)
	}
	if err := syscall.Kill(r.Servers[1].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := <-end; err == nil || !strings.Contains(err.Error(), "nats ended by itself") {
		t.Errorf("ended with %v, want to hear of the server's end", err)
	}
	for _, s := range r.Servers {
		if _, err := os.Stat(filepath.Dir(s.Data)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("run directory of %s afterwards: %v, want it gone", s.Name, err)
		}
	}
}

func TestLabUpEtcd(t *testing.T) {
	labtest.RequireEtcd(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out, end := startLab(t, ctx, "up", "--engine", "etcd", "--json")
	var r labReport
	if err := json.NewDecoder(out).Decode(&r); err != nil {
		t.Fatal(err, <-end)
	}
	members := strings.Split(r.Servers[0].DSN, ",")
	if len(r.Servers) != 1 || r.Servers[0].Name != "etcd" || len(members) != 3 {
		t.Fatalf("report: %+v", r)
	}
	for _, url := range members {
		answer, err := http.Get(url + "/health")
		if err != nil {
			t.Fatal(err)
		}
		if answer.Body.Close(); answer.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", url, answer.Status)
		}
	}
	cancel()
	if err := <-end; err != nil {
		t.Errorf("ended with %v, want success", err)
	}
	if _, err := os.Stat(r.Servers[0].Data); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("data directory afterwards: %v, want it gone", err)
	}
}

func TestLabUpBrokerWithPassword(t *testing.T) {
	labtest.RequireRedis(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out, end := startLab(t, ctx, "up", "--engine", "redis", "--auth", "password", "--set", "maxmemory=3145728", "--json")
	var r labReport
	if err := json.NewDecoder(out).Decode(&r); err != nil {
		t.Fatal(err, <-end)
	}
	o, err := redis.ParseURL(r.Servers[0].DSN)
	if err != nil || o.Password == "" {
		t.Fatalf("URL without a password (%v)", err)
	}
	c := redis.NewClient(o)
	defer c.Close()
	if got, err := c.ConfigGet(ctx, "maxmemory").Result(); err != nil || got["maxmemory"] != "3145728" {
		t.Errorf("maxmemory %v, %v", got, err)
	}
	cancel()
	if err := <-end; err != nil {
		t.Errorf("ended with %v, want success", err)
	}
}

func TestLabUpWithPgBouncer(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out, end := startLab(t, ctx, "up", "--durability", "fast", "--tls", "--auth", "md5", "--pgbouncer", "--json")
	var r labReport
	if err := json.NewDecoder(out).Decode(&r); err != nil {
		if err := <-end; lab.NotInstalled(err) && os.Getenv("CI") != "true" {
			t.Skip(err)
		} else {
			t.Fatal(err)
		}
	}
	if len(r.Servers) != 2 || r.Servers[1].Name != "pgbouncer" {
		t.Fatalf("report: %+v", r)
	}
	conn, err := pgx.Connect(t.Context(), r.Servers[1].DSN+"&default_query_exec_mode=simple_protocol")
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(t.Context()); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-end; err != nil {
		t.Errorf("ended with %v, want success", err)
	}
}
