package outboxbench

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	driver "github.com/go-sql-driver/mysql"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/ruler/bench/sqldb"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
	"github.com/weirdb/weir/outbox"
	mystore "github.com/weirdb/weir/outbox/mysql"
	pgstore "github.com/weirdb/weir/outbox/postgres"
	litestore "github.com/weirdb/weir/outbox/sqlite"
)

// Engines lists the engines that the benchmark supports.
func Engines() []suite.Engine {
	return []suite.Engine{suite.PostgreSQL, suite.MariaDB, suite.MySQL, suite.SQLite}
}

// engine is a database system.
type engine suite.Engine

// claims lists the claim modes of the engine.
func (e engine) claims() []outbox.ClaimMode {
	if suite.Engine(e) == suite.SQLite {
		return []outbox.ClaimMode{outbox.Poll}
	}
	return []outbox.ClaimMode{outbox.SkipLocked, outbox.Poll, outbox.Log}
}

// sqliteFile is a SQLite database in a directory that is removed with it.
type sqliteFile struct{ dir string }

func (f *sqliteFile) DSN(string) string          { return filepath.Join(f.dir, "outbox.db") }
func (*sqliteFile) PID() int                     { return 0 }
func (*sqliteFile) Flushes() (uint64, error)     { return 0, errors.ErrUnsupported }
func (f *sqliteFile) Stop(context.Context) error { return os.RemoveAll(f.dir) }

const database = "bench" // on a private server of the MySQL family

// start starts a server configured as in production: with a log that can be followed.
func (e engine) start(ctx context.Context, d lab.Durability, latency time.Duration) (suite.Server, error) {
	count := d == lab.Prod
	switch suite.Engine(e) {
	case suite.PostgreSQL:
		return lab.StartPostgres(ctx, lab.PostgresConfig{
			Durability: d, FsyncLatency: latency, CountFlushes: count && lab.WatchesDisks(), SharedBuffers: "512MB",
			Settings: map[string]string{"wal_level": "logical", "max_replication_slots": "10", "max_wal_senders": "10", "max_wal_size": "8GB"},
		})
	case suite.SQLite:
		dir, err := os.MkdirTemp("", "weir-outbox-*")
		if err != nil {
			return nil, fmt.Errorf("make a directory: %w", err)
		}
		return &sqliteFile{dir}, nil
	}
	start := lab.StartMariaDB
	if suite.Engine(e) == suite.MySQL {
		start = lab.StartMySQL
	}
	db, err := start(ctx, lab.MySQLConfig{
		Durability: d, FsyncLatency: latency, CountFlushes: count && lab.WatchesDisks(), BufferPool: "1G",
		Settings: map[string]string{"innodb_io_capacity": "5000"},
	})
	if err != nil {
		return nil, err
	}
	if err := db.Exec(ctx, "CREATE DATABASE "+database); err != nil {
		return nil, errors.Join(err, db.Stop(context.WithoutCancel(ctx)))
	}
	return db, nil
}

// database is the database on a private server.
func (e engine) database() string {
	if suite.Engine(e) == suite.PostgreSQL {
		return "postgres"
	}
	return database
}

// openMeter returns nil for an engine without counters.
func (e engine) openMeter(dsn string) (suite.Meter, error) {
	open := sqldb.OpenMySQL
	switch suite.Engine(e) {
	case suite.PostgreSQL:
		open = sqldb.OpenPostgres
	case suite.SQLite:
		return nil, nil
	}
	db, err := open(dsn, 1)
	if err != nil {
		return nil, err
	}
	return sqldb.NewMeter(db), nil
}

// openStore opens weir's store.
func (e engine) openStore(ctx context.Context, dsn, table string) (outbox.Store, error) {
	switch suite.Engine(e) {
	case suite.PostgreSQL:
		return pgstore.Open(ctx, dsn, pgstore.Options{Table: table})
	case suite.SQLite:
		return litestore.Open(ctx, dsn, litestore.Options{Table: table})
	}
	return mystore.Open(ctx, dsn, mystore.Options{Table: table})
}

// openProducers opens the pool that messages are enqueued through.
func (e engine) openProducers(dsn string, connections int, d lab.Durability) (*sql.DB, error) {
	switch suite.Engine(e) {
	case suite.PostgreSQL:
		return sqldb.OpenPostgres(dsn, connections)
	case suite.SQLite:
		mode := "FULL"
		if d == lab.Fast {
			mode = "OFF"
		}
		u := &url.URL{Scheme: "file", OmitHost: true, Path: dsn}
		db, err := sql.Open("sqlite", u.String()+"?_pragma=busy_timeout(30000)&_pragma=synchronous("+mode+")&_txlock=immediate")
		return pooled(db, 1), err // only one transaction writes at a time
	}
	cfg, err := sqldb.MySQLConfig(dsn)
	if err != nil {
		return nil, err
	}
	cfg.InterpolateParams, cfg.MaxAllowedPacket = true, 1<<30
	connector, err := driver.NewConnector(cfg)
	if err != nil {
		return nil, err
	}
	return pooled(sql.OpenDB(connector), connections), nil
}

func pooled(db *sql.DB, connections int) *sql.DB {
	if db != nil {
		db.SetMaxOpenConns(connections)
		db.SetMaxIdleConns(connections)
	}
	return db
}

// tx wraps a handle for Enqueue.
func (e engine) tx(h outbox.Execer, table string) outbox.Tx {
	switch suite.Engine(e) {
	case suite.PostgreSQL:
		return outbox.Postgres(h).Table(table)
	case suite.SQLite:
		return outbox.SQLite(h).Table(table)
	}
	return outbox.MySQL(h).Table(table)
}

// emptied are the statements that empty the tables of an outbox.
func (e engine) emptied(table string) []string {
	var out []string
	for _, t := range []string{table, table + outbox.ScheduledSuffix, table + "_parked", table + "_dead"} {
		switch suite.Engine(e) {
		case suite.PostgreSQL:
			out = append(out, "TRUNCATE "+t+" RESTART IDENTITY")
		case suite.SQLite:
			out = append(out, "DELETE FROM "+t)
		default:
			out = append(out, "TRUNCATE TABLE "+t)
		}
	}
	return out
}

// dropped are the statements that drop them on a server that is not private.
func (e engine) dropped(table string) []string {
	var out []string
	for _, suffix := range []string{"", outbox.ScheduledSuffix, "_parked", "_dead", "_lease", "_meta"} {
		out = append(out, "DROP TABLE IF EXISTS "+table+suffix)
	}
	if suite.Engine(e) == suite.PostgreSQL {
		out = append(out, "DROP FUNCTION IF EXISTS "+table+"_bucket()")
	}
	return out
}
