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
	"github.com/weirdb/weir/internal/ruler/bench/sqldb"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
)

// Engines lists the engines that the benchmark supports.
func Engines() []suite.Engine {
	return []suite.Engine{suite.PostgreSQL, suite.MariaDB, suite.MySQL}
}

// engine is what differs between database systems. With an error, its functions return nothing
// else.
type engine struct {
	start    func(ctx context.Context, n needs) (suite.Server, error)
	database string // of the load, on a private server
	// serverEnv is the variable with the server's DSN for weir proxy, listenFlag the flag with
	// its address for clients.
	serverEnv, listenFlag string
	// joins is the protocol in which a floor groups writes.
	joins string
	// ungrouped is the name of a side whose weir groups no rows.
	ungrouped string
	// drivers are the drivers of database/sql that applications use.
	drivers []sqlload.Driver

	// Protocol is that of the load.
	*load.Protocol
	// idle opens an idle session, and returns how to close it.
	idle func(ctx context.Context, dsn string) (func(context.Context) error, error)
}

// needs is what the benchmark requires of a server.
type needs struct {
	connections int
	latency     time.Duration // added to its flushes
}

// meter reads the server's own counters.
func (e *engine) meter(dsn string) (suite.Meter, error) {
	db, err := e.Open(dsn, 1)
	if err != nil {
		return nil, err
	}
	return sqldb.NewMeter(db), nil
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

// through returns a DSN for the same server through an address. It drops the DSN's TLS
// settings: the load does not use TLS.
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
		Protocol:   pgload.Protocol,
		idle:       pgload.OpenIdle,
	}
}

// mysql is the engine of MySQL and MariaDB.
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
			if err := db.Exec(ctx, "CREATE DATABASE "+database); err != nil {
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
		Protocol:   myload.Protocol,
		idle:       myload.OpenIdle,
	}
}
