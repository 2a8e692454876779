package proxybench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/measure/loop"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// This file is logins.go for MySQL's protocol, for which there is no pgbench: each client
// repeatedly connects, runs one SELECT and disconnects.

// myLoginMethods are the ways in which weir checks clients of MariaDB: by the server's stored
// accounts, by a file, not at all.
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
	ways := []way{
		{name: "direct", dsn: server.Addr(), via: "direct"},
		{name: "weir", dsn: through.Address, via: "weir", proxy: w.usage},
	}
	return r.compareLogins(ctx, x, m, e, server.DSN(""), ways, nil, func(ctx context.Context, w way) (bench.Sample, error) {
		return r.mysqlLogin(ctx, w, m.user, clients, server.PID())
	})
}

// mysqlLogin makes clients log in by one way for the duration of the plan.
func (r *run) mysqlLogin(ctx context.Context, w way, user string, clients, server int) (bench.Sample, error) {
	once := func(ctx context.Context, _ int) error {
		conn, err := mywire.Connect(ctx, mywire.ConnectConfig{Address: w.dsn, User: user, Password: loginPassword, TLSMode: mywire.TLSDisabled})
		if err != nil {
			return fmt.Errorf("log in at %s: %w", w.dsn, err)
		}
		_, err = conn.Query(ctx, "SELECT 1")
		return errors.Join(err, conn.Close())
	}
	if err := once(ctx, 0); err != nil { // the first login opens connections
		return bench.Sample{}, err
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	o, err := loop.Run(ctx, loop.Config{Workers: clients, Duration: r.o.Plan.Duration, Watch: w.watch(server)}, func(ctx context.Context, client int) error {
		err := once(ctx, client)
		if err != nil {
			fail(err) // a failure ends the round
		}
		return err
	})
	if err != nil {
		return bench.Sample{}, err
	}
	return bench.Sample{Started: o.Started, Seconds: o.Seconds, Ops: o.Ops, InFlight: clients, Processes: o.Processes}, nil
}
