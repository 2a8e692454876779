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

// pool is a pool of connections that is open. It opens them as they are needed,
// so a new one is cold.
type pool interface {
	// client returns a user of the pool, for one goroutine.
	client() client
	// fill opens connections until there are n, which is no more than the pool may
	// have.
	fill(ctx context.Context, n int) error
	// opened is how many connections have been opened so far.
	opened() int64
	// close waits until all connections are back and closes them.
	close()
}

// client runs operations, one at a time: acquire, any number of run, release.
// The context carries the operation's timeline if it is traced. The client
// attaches that to the connection, and takes it off again.
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

// Drivers lists the drivers of an engine, the one that is used by default first.
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

// The drivers. All prepare each statement once for each connection, but for those
// that say otherwise.
const (
	DriverPgx       = "pgx"        // pgxpool
	DriverPgxSimple = "pgx-simple" // pgxpool, parameters inside the text (simple protocol)
	DriverPgxSQL    = "pgx-sql"    // database/sql over pgx
	DriverPq        = "pq"         // database/sql over lib/pq
	DriverMySQL     = "mysql"      // database/sql over go-sql-driver/mysql
	DriverMySQLText = "mysql-text" // the same, parameters inside the text
	DriverOracle    = "go-ora"     // database/sql over go-ora
	DriverSleep     = "sleep"      // no database
)

// Verification reports whether an engine's figures rest on runs against a real
// server in this project's own tests.
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
