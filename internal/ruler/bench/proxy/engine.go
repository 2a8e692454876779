package proxybench

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/ruler/bench/load"
	myload "github.com/weirdb/weir/internal/ruler/bench/load/mysql"
	pgload "github.com/weirdb/weir/internal/ruler/bench/load/postgres"
	"github.com/weirdb/weir/internal/ruler/bench/load/sqlload"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
)

// Engines lists those that the benchmark can be run on.
func Engines() []suite.Engine {
	return []suite.Engine{suite.PostgreSQL, suite.MariaDB, suite.MySQL}
}

// engine is what differs between database systems. What its functions return
// is nothing when there is an error.
type engine struct {
	start    func(ctx context.Context, n needs) (suite.Server, error)
	database string // that the load runs in, on a server of our own
	// serverEnv is the variable in which weir proxy finds the server's DSN,
	// listenFlag says where it listens for clients.
	serverEnv, listenFlag string
	// joins is the protocol in which a floor joins writes.
	joins string
	// ungrouped is what a side is called whose weir joins no rows.
	ungrouped string
	// drivers are those of database/sql that applications use.
	drivers []sqlload.Driver

	setup  func(ctx context.Context, dsn string, w load.Workload) error
	run    func(ctx context.Context, c load.Config) (*load.Outcome, error)
	verify func(ctx context.Context, dsn string, w load.Insert, o *load.Outcome) (*load.Audit, error)
	count  func(ctx context.Context, dsn string, w load.Update) (int64, error)
	meter  func(ctx context.Context, dsn string) (suite.Meter, error)
	idle   func(ctx context.Context, dsn string) (session, error)
}

// needs is what the scenario asks of a server.
type needs struct {
	connections int
	latency     time.Duration // of its flushes, added
}

// session is one that can be ended.
type session interface {
	Close(ctx context.Context) error
}

func engineOf(e suite.Engine) (*engine, error) {
	switch e {
	case suite.PostgreSQL, "":
		return postgres(), nil
	case suite.MariaDB:
		return mysql(lab.StartMariaDB), nil
	case suite.MySQL:
		return mysql(lab.StartMySQL), nil
	default:
		return nil, fmt.Errorf("no engine %q", e)
	}
}

// through is how clients get to what a DSN names by way of an address. What the
// DSN says of TLS is the server's affair: the load does not speak it.
func through(dsn, addr string) (string, error) {
	u, err := url.Parse(dsn)
	if err != nil || u.Host == "" {
		return "", errors.New("read DSN: want a URL with a host, such as mysql://user@host:3306/database")
	}
	u.Host = addr
	return u.String(), nil
}

func postgres() *engine {
	return &engine{
		start: func(ctx context.Context, n needs) (suite.Server, error) {
			return lab.StartPostgres(ctx, lab.PostgresConfig{
				Durability: lab.Prod, FsyncLatency: n.latency, CountFlushes: lab.WatchesDisks(), MaxConnections: n.connections, SharedBuffers: "512MB",
				Settings: map[string]string{"max_wal_size": "8GB"},
			})
		},
		database:   "postgres",
		serverEnv:  "WEIR_POSTGRES",
		listenFlag: "--listen-postgres",
		joins:      joinsPostgres,
		ungrouped:  "weir isolated",
		drivers:    []sqlload.Driver{sqlload.PQ, sqlload.PGX},
		setup:      pgload.Setup,
		run:        pgload.Run,
		verify:     pgload.Verify,
		count:      pgload.Count,
		meter:      func(ctx context.Context, dsn string) (suite.Meter, error) { return pgload.OpenMeter(ctx, dsn) },
		idle:       func(ctx context.Context, dsn string) (session, error) { return pgload.OpenIdle(ctx, dsn) },
	}
}

// mysql is the engine of both families that speak MySQL's protocol.
func mysql(start func(context.Context, lab.MySQLConfig) (*lab.MySQL, error)) *engine {
	const database = "bench"
	return &engine{
		start: func(ctx context.Context, n needs) (suite.Server, error) {
			db, err := start(ctx, lab.MySQLConfig{
				Durability: lab.Prod, FsyncLatency: n.latency, CountFlushes: lab.WatchesDisks(), MaxConnections: n.connections, BufferPool: "512M",
			})
			if err != nil {
				return nil, err
			}
			if err := myload.CreateDatabase(ctx, db.DSN(""), database); err != nil {
				return nil, errors.Join(err, db.Stop(context.WithoutCancel(ctx)))
			}
			return db, nil
		},
		database:   database,
		serverEnv:  "WEIR_MYSQL",
		listenFlag: "--listen-mysql",
		joins:      joinsMySQL,
		ungrouped:  "weir one by one",
		drivers:    []sqlload.Driver{sqlload.MySQL},
		setup:      myload.Setup,
		run:        myload.Run,
		verify:     myload.Verify,
		count:      myload.Count,
		meter:      func(ctx context.Context, dsn string) (suite.Meter, error) { return myload.OpenMeter(ctx, dsn) },
		idle:       func(ctx context.Context, dsn string) (session, error) { return myload.OpenIdle(ctx, dsn) },
	}
}
