package profile

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// poolConfig is how a pool is opened.
type poolConfig struct {
	max    int
	dial   *dialer
	driver string
}

// pool is an open pool of connections. It opens connections as they are needed, so a new pool
// is cold.
type pool interface {
	// client returns a user of the pool, for one goroutine.
	client() client
	// fill opens connections until there are n, which is at most the size of the pool.
	fill(ctx context.Context, n int) error
	// opened is how many connections have been opened so far.
	opened() int64
	// close waits until all connections are returned, and closes them.
	close()
}

// client runs operations, one at a time: acquire, any number of run, release. The context
// carries the operation's timeline if it is traced; the client attaches it to the connection
// and detaches it again.
type client interface {
	acquire(ctx context.Context, t *timeline) error
	run(ctx context.Context, s *statement, args []any) error
	release(ctx context.Context)
}

// statement is one statement of an operation.
type statement struct {
	text   string
	params []*param // in the order of the placeholders
	query  bool     // returns rows, which are read to the end
}

// Drivers lists the drivers of an engine, the default first.
func Drivers(engine string) []string {
	switch engine {
	case EnginePostgres:
		return []string{DriverPgx, DriverPgxSimple, DriverPgxSQL, DriverPq}
	case EngineMariaDB, EngineMySQL:
		return []string{DriverMySQL, DriverMySQLText}
	case EngineOracle:
		return []string{DriverOracle}
	case EngineSleep:
		return []string{DriverSleep}
	default:
		return nil
	}
}

// The engines.
const (
	EnginePostgres = "postgres"
	EngineMariaDB  = "mariadb"
	EngineMySQL    = "mysql"
	EngineOracle   = "oracle"
	EngineSleep    = "sleep"
)

// The drivers. They prepare each statement once per connection, unless noted otherwise.
const (
	DriverPgx       = "pgx"        // pgxpool
	DriverPgxSimple = "pgx-simple" // pgxpool, parameters inlined in the text (simple protocol)
	DriverPgxSQL    = "pgx-sql"    // database/sql over pgx
	DriverPq        = "pq"         // database/sql over lib/pq
	DriverMySQL     = "mysql"      // database/sql over go-sql-driver/mysql
	DriverMySQLText = "mysql-text" // the same, parameters inlined in the text
	DriverOracle    = "go-ora"     // database/sql over go-ora
	DriverSleep     = "sleep"      // no database
)

// Verification says whether an engine's figures were verified against a real server in this
// project's tests.
func Verification(engine string) string {
	if engine == EngineOracle {
		return "not run against a live server: only the error paths are tested"
	}
	return ""
}

// openPool opens a pool of the target's engine.
func (t *Target) openPool(ctx context.Context, c poolConfig) (pool, error) {
	switch c.driver {
	case DriverPgx, DriverPgxSimple:
		return openPgxPool(ctx, t.dsn, c)
	case DriverPgxSQL:
		return openSQLPool(pgxConnector(t.dsn, c))
	case DriverPq:
		return openSQLPool(pqConnector(t.dsn, c))
	case DriverMySQL, DriverMySQLText:
		return openSQLPool(mysqlConnector(t.dsn, c))
	case DriverOracle:
		return openSQLPool(oracleConnector(t.dsn, c))
	case DriverSleep:
		return openSleepPool(t.dsn, c)
	default:
		return nil, fmt.Errorf("no driver %q", c.driver)
	}
}

// checkDriver returns why a driver cannot be used for an engine.
func checkDriver(engine, driver string) error {
	known := Drivers(engine)
	if slices.Contains(known, driver) {
		return nil
	}
	return fmt.Errorf("driver %q: %s has %s", driver, engine, strings.Join(known, ", "))
}
