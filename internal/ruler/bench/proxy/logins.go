package proxybench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
)

// This file compares how fast clients log in: pgbench opens a new connection for each
// transaction (-C), which is one SELECT. pgbench connects one client after another, so it
// measures the rate of single logins, not of many at once.

// A loginMethod is a way in which clients prove who they are, the same for PgBouncer and weir.
type loginMethod struct {
	name string
	// user logs in; encryption is how the server stores the password.
	user, encryption string
	weir             []string          // flags
	pgbouncer        map[string]string // settings
	// listed reports whether the proxies get the users' passwords in a file; PgBouncer needs
	// one for the superuser in any case.
	listed bool
}

const loginPassword = "weir bench"

const shadowQuery = "SELECT usename, passwd FROM pg_catalog.pg_shadow WHERE usename = $1"

var loginMethods = []loginMethod{
	{"trust", "weir_md5", "md5", []string{"--auth", "trust"}, map[string]string{"auth_type": "trust"}, true},
	{"md5", "weir_md5", "md5", []string{"--auth", "md5"}, map[string]string{"auth_type": "md5"}, true},
	{
		"auth-query", "weir_md5", "md5",
		[]string{"--auth", "md5", "--auth-query", shadowQuery},
		map[string]string{"auth_type": "md5", "auth_user": "postgres", "auth_query": strings.ReplaceAll(shadowQuery, "pg_catalog.", "")},
		false,
	},
	{"scram", "weir_scram", "scram-sha-256", nil, map[string]string{"auth_type": "scram-sha-256"}, true},
	{"dsn-user", "postgres", "", nil, map[string]string{"auth_type": "scram-sha-256"}, false},
}

// logins compares one method. It uses its own server, which asks for passwords.
func (r *run) logins(ctx context.Context, m loginMethod, clients int) (err error) {
	server, err := lab.StartPostgres(ctx, lab.PostgresConfig{Durability: lab.Prod, Auth: lab.MD5, MaxConnections: clients + 100})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop(context.WithoutCancel(ctx))) }()
	pgbench := filepath.Join(server.BinDir(), "pgbench")
	if _, err := os.Stat(pgbench); err != nil {
		r.Leave("logins: %v", err)
		return nil
	}
	dir, err := os.MkdirTemp("", "weir-logins-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	l := &loginLoad{r: r, m: m, clients: clients, pgbench: pgbench, script: filepath.Join(dir, "select.sql"), server: server}
	users := filepath.Join(dir, "users")
	err = errors.Join(os.WriteFile(l.script, []byte("SELECT 1;\n"), 0o600),
		os.WriteFile(users, fmt.Appendf(nil, "%q %q\n", m.user, l.password()), 0o600), l.makeUser(ctx))
	if err != nil {
		return err
	}
	flags := m.weir
	if m.listed && m.encryption == "md5" { // weir knows what the server stores for the others
		flags = append([]string{"--auth-file", users}, flags...)
	}
	w, err := startWeir(ctx, r.o.Binary, postgres(), server.DSN("postgres"), flags...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	ways := []way{{name: "direct", dsn: server.DSN("postgres"), via: "direct"}}
	var beside []measure.Server
	cfg := lab.PgBouncerConfig{Binary: r.o.PgBouncer, Settings: m.pgbouncer}
	if m.listed {
		if cfg.Users, err = l.stored(ctx); err != nil {
			return err
		}
	}
	b, err := lab.StartPgBouncer(ctx, server, cfg)
	switch {
	case err == nil:
		defer func() { err = errors.Join(err, b.Stop(context.WithoutCancel(ctx))) }()
		r.o.Say("PgBouncer %s", b.Version())
		beside = append(beside, bouncerInfo(b))
		ways = append(ways, way{name: "pgbouncer", dsn: b.DSN("postgres"), via: "pgbouncer", proxy: func() (measure.Usage, error) { return measure.Process(b.PID()) }})
	case !lab.NotInstalled(err):
		return err
	}
	ways = append(ways, weirWay(w, "weir", "", bench.NotApplicable))
	x := r.o.experiment("logins-"+m.name, clients, fmt.Sprintf("A login for each SELECT by %s, %s of pgbench -C", m.name, clientsName(clients)))
	return r.compareLogins(ctx, x, m, postgres(), server.DSN("postgres"), ways, beside, l.sample)
}

// compareLogins measures logins by each way on a private server. beside are the other programs
// that the report names.
func (r *run) compareLogins(ctx context.Context, x bench.Experiment, m loginMethod, e *engine, dsn string, ways []way, beside []measure.Server, sample func(context.Context, way) (bench.Sample, error)) error {
	x.Factors["method"] = m.name
	for _, w := range ways {
		x.Sides = append(x.Sides, bench.Side{
			Name: w.name, Factors: map[string]string{"via": w.via, "window": bench.NotApplicable},
			Run: func(ctx context.Context, _ int) (bench.Sample, error) { return sample(ctx, w) },
		})
	}
	meter, err := e.meter(dsn)
	if err != nil {
		return err
	}
	info, err := meter.Server(ctx)
	if err = errors.Join(err, meter.Close(ctx)); err != nil {
		return err
	}
	env := measure.ReadEnvironment()
	env.Durability, env.Servers = "prod", append([]measure.Server{info}, beside...)
	_, err = r.Measure(ctx, x, env, r.o.Out)
	return err
}

// A loginLoad makes pgbench log in by one method.
type loginLoad struct {
	r               *run
	m               loginMethod
	clients         int
	pgbench, script string
	server          *lab.Postgres
}

func (l *loginLoad) password() string {
	if l.m.encryption == "" {
		return l.server.Password()
	}
	return loginPassword
}

// makeUser creates the user who logs in, unless it exists.
func (l *loginLoad) makeUser(ctx context.Context) error {
	if l.m.encryption == "" {
		return nil
	}
	_, err := l.query(ctx, fmt.Sprintf("SET password_encryption = '%s'; CREATE ROLE %s LOGIN PASSWORD '%s'", l.m.encryption, l.m.user, loginPassword))
	return err
}

// query runs a query as the superuser, and returns its first value, if it has one.
func (l *loginLoad) query(ctx context.Context, sql string) (string, error) {
	conn, err := pgconn.Connect(ctx, l.server.DSN("postgres"))
	if err != nil {
		return "", fmt.Errorf("prepare logins: %w", err)
	}
	defer func() { _ = conn.Close(ctx) }()
	results, err := conn.Exec(ctx, sql).ReadAll()
	if err != nil {
		return "", fmt.Errorf("prepare logins: %w", err)
	}
	if last := results[len(results)-1]; len(last.Rows) > 0 {
		return string(last.Rows[0][0]), nil
	}
	return "", nil
}

// stored is the user's secret for PgBouncer: what the server stores, if that suits the method.
func (l *loginLoad) stored(ctx context.Context) (map[string]string, error) {
	if l.m.encryption == "md5" {
		return map[string]string{l.m.user: loginPassword}, nil
	}
	secret, err := l.query(ctx, "SELECT rolpassword FROM pg_catalog.pg_authid WHERE rolname = '"+l.m.user+"'")
	return map[string]string{l.m.user: secret}, err
}

// sample makes pgbench log in by one way for the duration of the plan.
func (l *loginLoad) sample(ctx context.Context, w way) (bench.Sample, error) {
	if _, err := l.bench(ctx, w, "--transactions", "20"); err != nil { // the first logins open connections
		return bench.Sample{}, err
	}
	seconds := max(1, int(l.r.o.Plan.Duration.Round(time.Second)/time.Second)) // pgbench takes whole seconds
	return l.bench(ctx, w, "--time", strconv.Itoa(seconds))
}

func (l *loginLoad) bench(ctx context.Context, w way, until ...string) (s bench.Sample, err error) {
	u, err := url.Parse(w.dsn)
	if err != nil {
		return s, fmt.Errorf("read DSN: %w", err)
	}
	args := append([]string{
		"--no-vacuum", "--connect", "--client", strconv.Itoa(l.clients), "--file", l.script,
		"--host", u.Hostname(), "--port", u.Port(), "--username", l.m.user,
	}, until...)
	cmd := exec.CommandContext(ctx, l.pgbench, append(args, "postgres")...)
	cmd.Env = append(os.Environ(), "PGPASSWORD="+l.password(), "PGSSLMODE=disable")
	var out, failed bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &failed
	used, err := measure.Usages(w.watch(l.server.PID()))
	if err != nil {
		return s, err
	}
	s.Started, s.InFlight = time.Now(), l.clients
	if err := cmd.Run(); err != nil {
		return s, fmt.Errorf("pgbench through %s: %w: %s", w.name, err, strings.TrimSpace(failed.String()))
	}
	s.Seconds = time.Since(s.Started).Seconds()
	if s.Processes, err = used(); err != nil {
		return s, err
	}
	found := pgbenchDone.FindSubmatch(out.Bytes())
	if found == nil {
		return s, fmt.Errorf("pgbench through %s reports no number of transactions: %s", w.name, out.String())
	}
	s.Ops, err = strconv.ParseInt(string(found[1]), 10, 64)
	return s, err
}
