package scenario

import (
	"context"
	"fmt"
	"time"

	"github.com/weirdb/weir/internal/bench"
	"github.com/weirdb/weir/internal/bench/load"
	"github.com/weirdb/weir/internal/bench/pgload"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/measure"
)

// Engine names a database system that the proxy scenario can be run on.
type Engine string

// The engines, by the names that the command line has for them.
const (
	PostgreSQL Engine = "postgres"
	MariaDB    Engine = "mariadb"
	MySQL      Engine = "mysql"
)

// Title is the engine's own name.
func (e Engine) Title() string {
	switch e {
	case MariaDB:
		return "MariaDB"
	case MySQL:
		return "MySQL"
	default:
		return "PostgreSQL"
	}
}

// engine is what differs between database systems. What its functions return
// is nothing when there is an error.
type engine struct {
	start    func(ctx context.Context, n needs) (server, error)
	database string // that the load runs in
	// listenFlags are those of weir proxy for a server and an address to listen
	// on; dsn is how clients then get to a database through that address.
	listenFlags func(dsn, listen string) []string
	dsn         func(listen, db string) string
	// ungrouped is what a side is called whose weir joins no rows.
	ungrouped string
	// text is what the protocol without prepared statements is called.
	text string

	setup  func(ctx context.Context, dsn string, w load.Workload) error
	run    func(ctx context.Context, c load.Config) (*load.Outcome, error)
	verify func(ctx context.Context, dsn string, w load.Insert, o *load.Outcome) (*load.Audit, error)
	meter  func(ctx context.Context, dsn string) (meter, error)
	idle   func(ctx context.Context, dsn string) (session, error)
}

// needs is what the scenario asks of a server.
type needs struct {
	connections int
	latency     time.Duration // of its flushes, added
}

// server is one that the scenario has started.
type server interface {
	DSN(db string) string
	Version() string
	PID() int
	// Flushes counts what the disk was asked to flush since the start.
	Flushes() (uint64, error)
	Stop(ctx context.Context) error
}

// meter reads what a server says of itself.
type meter interface {
	session
	Server(ctx context.Context) (measure.Server, error)
	Counters(ctx context.Context) (bench.ServerCounters, error)
}

// session is one that can be ended.
type session interface {
	Close(ctx context.Context) error
}

func engineOf(e Engine) (*engine, error) {
	switch e {
	case PostgreSQL, "":
		return postgres(), nil
	default:
		return nil, fmt.Errorf("no engine %q", e)
	}
}

func postgres() *engine {
	return &engine{
		start: func(ctx context.Context, n needs) (server, error) {
			return lab.StartPostgres(ctx, lab.PostgresConfig{
				Durability: lab.Prod, FsyncLatency: n.latency, CountFlushes: true, MaxConnections: n.connections, SharedBuffers: "512MB",
				Settings: map[string]string{"max_wal_size": "8GB"},
			})
		},
		database: "postgres",
		listenFlags: func(dsn, listen string) []string {
			return []string{"--postgres", dsn, "--listen-postgres", listen}
		},
		dsn: func(listen, db string) string {
			return fmt.Sprintf("postgres://postgres@%s/%s?sslmode=disable", listen, db)
		},
		ungrouped: "weir isolated",
		text:      "simple",
		setup:     pgload.Setup,
		run:       pgload.Run,
		verify:    pgload.Verify,
		meter:     func(ctx context.Context, dsn string) (meter, error) { return pgload.OpenMeter(ctx, dsn) },
		idle:      func(ctx context.Context, dsn string) (session, error) { return pgload.OpenIdle(ctx, dsn) },
	}
}
