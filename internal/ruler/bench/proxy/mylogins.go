package proxybench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// This file is logins.go for MySQL's protocol, for which there is no pgbench: each client
// connects, runs one SELECT and leaves, over and over.

// myLoginMethods are the ways in which weir checks clients of MariaDB: by what the server
// stores of their accounts, by a file, not at all.
var myLoginMethods = []loginMethod{
	{name: "auto", user: "weir_login"},
	{name: "file", user: "weir_login", weir: []string{"--mysql-auth", "mysql_native_password"}, listed: true},
	{name: "trust", user: "weir_login", weir: []string{"--mysql-auth", "trust"}, listed: true},
}

// mysqlLogins compares one method with a login at the server itself.
func (r *run) mysqlLogins(ctx context.Context, m loginMethod, clients int) (err error) {
	e, err := engineOf(r.o.Engine)
	if err != nil {
		return err
	}
	s, err := e.start(ctx, needs{connections: clients + 100})
	if err != nil {
		return err
	}
	server := s.(*lab.MySQL)
	defer func() { err = errors.Join(err, server.Stop(context.WithoutCancel(ctx))) }()
	if err := server.Exec(ctx, "CREATE USER weir_login@'%' IDENTIFIED BY '"+loginPassword+"'", "CREATE USER weir_login@'localhost' IDENTIFIED BY '"+loginPassword+"'"); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "weir-logins-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	flags := m.weir
	if m.listed {
		users := filepath.Join(dir, "users")
		if err := os.WriteFile(users, fmt.Appendf(nil, "%q %q\n", m.user, loginPassword), 0o600); err != nil {
			return err
		}
		flags = append([]string{"--mysql-auth-file", users}, flags...)
	}
	w, err := startWeir(ctx, r.o.Binary, e, server.DSN(""), flags...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	through, err := mywire.ParseDSN(w.dsn)
	if err != nil {
		return err
	}
	x := r.o.experiment("logins-"+m.name, clients, fmt.Sprintf("A login for each SELECT, %s by %s", clientsName(clients), m.name))
	x.Factors["method"] = m.name
	for _, v := range []way{
		{name: "direct", dsn: server.Addr(), via: "direct"},
		{name: "weir", dsn: through.Address, via: "weir", proxy: w.usage},
	} {
		l := &myLogin{address: v.dsn, user: m.user, clients: clients, server: server, proxy: v.proxy}
		x.Sides = append(x.Sides, bench.Side{
			Name: v.name, Factors: map[string]string{"via": v.via, "window": bench.NotApplicable},
			Run: func(ctx context.Context, _ int) (bench.Sample, error) { return l.sample(ctx, r.o.Plan.Duration) },
		})
	}
	meter, err := e.meter(ctx, server.DSN(""))
	if err != nil {
		return err
	}
	info, err := meter.Server(ctx)
	if err = errors.Join(err, meter.Close(ctx)); err != nil {
		return err
	}
	env := measure.ReadEnvironment()
	env.Durability, env.Servers = "prod", []measure.Server{info}
	_, err = r.Measure(ctx, x, env, r.o.Out)
	return err
}

// A myLogin has clients log in at an address.
type myLogin struct {
	address, user string
	clients       int
	server        *lab.MySQL
	proxy         func() (measure.Usage, error)
}

// once is one login, one statement and the end of the session.
func (l *myLogin) once(ctx context.Context) error {
	conn, err := mywire.Connect(ctx, mywire.ConnectConfig{Address: l.address, User: l.user, Password: loginPassword, TLSMode: mywire.TLSDisabled})
	if err != nil {
		return fmt.Errorf("log in at %s: %w", l.address, err)
	}
	_, err = conn.Query(ctx, "SELECT 1")
	return errors.Join(err, conn.Close())
}

// sample has all clients log in for so long.
func (l *myLogin) sample(ctx context.Context, d time.Duration) (s bench.Sample, err error) {
	if err := l.once(ctx); err != nil { // the first login opens connections
		return s, err
	}
	watch := map[string]func() (measure.Usage, error){bench.RoleServer: func() (measure.Usage, error) { return measure.Tree(l.server.PID()) }}
	if l.proxy != nil {
		watch[bench.RoleProxy] = l.proxy
	}
	before, err := measure.ReadUsages(watch, bench.RoleClient)
	if err != nil {
		return s, err
	}
	s.Started, s.InFlight = time.Now(), l.clients
	var done atomic.Int64
	failed := make(chan error, l.clients)
	var all sync.WaitGroup
	for range l.clients {
		all.Go(func() {
			for time.Since(s.Started) < d {
				if err := l.once(ctx); err != nil {
					failed <- err
					return
				}
				done.Add(1)
			}
		})
	}
	all.Wait()
	s.Seconds, s.Ops = time.Since(s.Started).Seconds(), done.Load()
	after, err := measure.ReadUsages(watch, bench.RoleClient)
	if err != nil {
		return s, err
	}
	s.Processes = make(map[string]measure.Usage)
	for role, u := range after {
		s.Processes[role] = u.Since(before[role])
	}
	select {
	case err := <-failed:
		return s, err
	default:
		return s, nil
	}
}
