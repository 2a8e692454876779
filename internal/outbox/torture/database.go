package torture

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	driver "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx" of producers
	_ "modernc.org/sqlite"             // and "sqlite"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/outbox/outboxctl"
	"github.com/weirdb/weir/internal/wire/mywire"
	"github.com/weirdb/weir/outbox"
)

// Engines are the databases that a run can start.
var Engines = []string{"postgres", "mariadb", "mysql", "sqlite"}

// killableServer is a server that can be killed and restarted.
type killableServer interface {
	Kill()
	Restart(ctx context.Context) error
	Stop(ctx context.Context) error
}

// database is the database of a run.
type database struct {
	outboxctl.Database
	version string
	server  killableServer // nil if the run did not start it
	pool    *sql.DB
	table   string
	stop    []func(context.Context) error
}

// record returns the application's table, which shows what was committed.
func (d *database) record() string { return d.table + "_record" }

// tx wraps a producer's transaction.
func (d *database) tx(e outbox.Execer) outbox.Tx {
	var t outbox.Tx
	switch d.Engine {
	case outboxctl.Postgres:
		t = outbox.Postgres(e)
	case outboxctl.MySQL:
		t = outbox.MySQL(e)
	default:
		t = outbox.SQLite(e)
	}
	return t.Table(d.table)
}

// startDatabase starts a server that survives its own crash: it writes what it acknowledges to the
// kernel. With lab.Prod it survives a crash of the machine as well, which costs a flush per
// commit.
func startDatabase(ctx context.Context, engine string, durability lab.Durability) (d *database, err error) {
	d = &database{}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Close(context.WithoutCancel(ctx)))
		}
	}()
	switch engine {
	case "postgres":
		pg, err := lab.StartPostgres(ctx, lab.PostgresConfig{Durability: durability, Settings: map[string]string{
			"wal_level": "logical", "max_replication_slots": "20", "max_wal_senders": "20", "synchronous_commit": "on",
		}})
		if err != nil {
			return d, err
		}
		d.server, d.stop = pg, append(d.stop, pg.Stop)
		return d, d.connect(ctx, pg.DSN("postgres"))
	case "mariadb", "mysql":
		start, cfg := lab.StartMariaDB, lab.MySQLConfig{Durability: durability}
		if engine == "mysql" {
			start = lab.StartMySQL
		}
		if durability != lab.Prod {
			cfg.Settings = map[string]string{"innodb_flush_log_at_trx_commit": "2"}
		}
		my, err := start(ctx, cfg)
		if err != nil {
			return d, err
		}
		d.server, d.stop = my, append(d.stop, my.Stop)
		if err := my.Exec(ctx, "CREATE DATABASE weir"); err != nil {
			return d, err
		}
		return d, d.connect(ctx, my.DSN("weir"))
	case "sqlite":
		dir, err := os.MkdirTemp("", "weir-torture-")
		if err != nil {
			return d, fmt.Errorf("make a directory for the database: %w", err)
		}
		d.stop = append(d.stop, func(context.Context) error { return os.RemoveAll(dir) })
		return d, d.connect(ctx, "sqlite:"+filepath.Join(dir, "torture.db"))
	}
	return d, fmt.Errorf("engine %q: want one of %s", engine, strings.Join(Engines, ", "))
}

// openDatabase opens an existing database. The run uses tables of its own.
func openDatabase(ctx context.Context, dsn string) (*database, error) {
	d := &database{}
	if err := d.connect(ctx, dsn); err != nil {
		return nil, errors.Join(err, d.Close(context.WithoutCancel(ctx)))
	}
	return d, nil
}

// connect opens the producers' pool.
func (d *database) connect(ctx context.Context, dsn string) (err error) {
	if d.Database, err = outboxctl.ParseDatabase(dsn, os.Getenv); err != nil {
		return err
	}
	suffix := make([]byte, 4)
	if _, err := rand.Read(suffix); err != nil {
		return fmt.Errorf("name the table: %w", err)
	}
	d.table = "weir_torture_" + hex.EncodeToString(suffix)
	switch d.Engine {
	case outboxctl.Postgres:
		d.pool, err = sql.Open("pgx", d.Text)
	case outboxctl.MySQL:
		d.pool, err = openMySQL(d.Text)
	default:
		d.pool, err = sql.Open("sqlite", "file:"+d.Text+"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_txlock=immediate")
	}
	if err != nil {
		return fmt.Errorf("open %s: %w", d.Address, err)
	}
	if err := d.pool.PingContext(ctx); err != nil {
		return fmt.Errorf("connect to %s: %w", d.Address, err)
	}
	return nil
}

func openMySQL(dsn string) (*sql.DB, error) {
	wire, err := mywire.ParseDSN(dsn)
	if err != nil {
		return nil, err
	}
	if wire.TLSMode != mywire.TLSDisabled && wire.TLSMode != mywire.TLSPreferred {
		return nil, errors.New("producers of weir outbox torture do not support TLS: want ssl-mode=DISABLED")
	}
	cfg := driver.NewConfig()
	cfg.User, cfg.Passwd, cfg.Net, cfg.Addr, cfg.DBName = wire.User, wire.Password, wire.Network, wire.Address, wire.Database
	cfg.InterpolateParams, cfg.Logger = true, &driver.NopLogger{}
	connector, err := driver.NewConnector(cfg)
	if err != nil {
		return nil, fmt.Errorf("configure client: %w", err)
	}
	return sql.OpenDB(connector), nil
}

// migrate creates the tables.
func (d *database) migrate(ctx context.Context, plan outbox.Plan) error {
	store, err := d.open(ctx)
	if err != nil {
		return err
	}
	defer store.Close()
	if _, err := store.Migrate(ctx, plan); err != nil {
		return err
	}
	desc, err := store.Describe(ctx)
	if err != nil {
		return err
	}
	d.version = desc.Server
	_, err = d.pool.ExecContext(ctx, "CREATE TABLE "+d.record()+
		" (chain VARCHAR(64) NOT NULL, n BIGINT NOT NULL, attempt BIGINT NOT NULL, poison INT NOT NULL, PRIMARY KEY (chain, n))")
	if err != nil {
		return fmt.Errorf("make the application's table: %w", err)
	}
	return nil
}

// open opens another store, as another process would.
func (d *database) open(ctx context.Context) (outbox.Store, error) {
	return d.Open(ctx, outboxctl.StoreOptions{Table: d.table, Create: true})
}

// drop removes the tables.
func (d *database) drop(ctx context.Context) error {
	for _, suffix := range []string{"", outbox.ScheduledSuffix, "_parked", "_dead", "_lease", "_meta", "_record"} {
		if _, err := d.pool.ExecContext(ctx, "DROP TABLE IF EXISTS "+d.table+suffix); err != nil {
			return fmt.Errorf("drop %s: %w", d.table+suffix, err)
		}
	}
	if d.Engine != outboxctl.Postgres {
		return nil
	}
	var schema string
	if err := d.pool.QueryRowContext(ctx, "SELECT current_schema()").Scan(&schema); err != nil {
		return fmt.Errorf("drop the publication: %w", err)
	}
	if _, err := d.pool.ExecContext(ctx, `DROP PUBLICATION IF EXISTS "`+schema+"."+d.table+`_tail"`); err != nil {
		return fmt.Errorf("drop the publication: %w", err)
	}
	for _, suffix := range []string{"_bucket", "_wake"} {
		if _, err := d.pool.ExecContext(ctx, "DROP FUNCTION IF EXISTS "+d.table+suffix+"()"); err != nil {
			return fmt.Errorf("drop %s: %w", d.table+suffix, err)
		}
	}
	return nil
}

// committed reads the application's table.
func (d *database) committed(ctx context.Context, each func(Entry)) error {
	rows, err := d.pool.QueryContext(ctx, "SELECT chain, n, attempt, poison FROM "+d.record())
	if err != nil {
		return fmt.Errorf("read what was committed: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var e Entry
		var poison int
		if err := rows.Scan(&e.Chain, &e.N, &e.Attempt, &poison); err != nil {
			return fmt.Errorf("read what was committed: %w", err)
		}
		e.Poison = poison != 0
		each(e)
	}
	return rows.Err()
}

// visible returns which of the entries a separate session can see.
func (d *database) visible(ctx context.Context, of []Entry) (map[Entry]bool, error) {
	if len(of) == 0 {
		return nil, nil
	}
	text := "SELECT chain, n, attempt, poison FROM " + d.record() + " WHERE "
	for i, e := range of {
		if i > 0 {
			text += " OR "
		}
		text += fmt.Sprintf("chain = '%s' AND n = %d", e.Chain, e.N)
	}
	rows, err := d.pool.QueryContext(ctx, text)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	seen := make(map[Entry]bool, len(of))
	for rows.Next() {
		var e Entry
		var poison int
		if err := rows.Scan(&e.Chain, &e.N, &e.Attempt, &poison); err != nil {
			return nil, err
		}
		e.Poison = poison != 0
		seen[e] = true
	}
	return seen, rows.Err()
}

// listLimit is the most messages of a state that are read.
const listLimit = 1_000_000

// list reads the messages in one of the states.
func (d *database) list(ctx context.Context, store outbox.Store, states ...outbox.State) ([]Entry, error) {
	var entries []Entry
	for _, state := range states {
		listed, err := store.List(ctx, outbox.Query{State: state, Limit: listLimit})
		if err != nil {
			return nil, err
		}
		for _, m := range listed {
			e, err := DecodeEntry(m.Payload)
			if err != nil {
				return nil, err
			}
			entries = append(entries, e)
		}
	}
	return entries, nil
}

// stopPatience bounds stopping a server.
const stopPatience = 20 * time.Second

// Close ends what was started.
func (d *database) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stopPatience)
	defer cancel()
	var errs []error
	if d.pool != nil {
		errs = append(errs, d.pool.Close())
	}
	for _, stop := range d.stop {
		errs = append(errs, stop(ctx))
	}
	return errors.Join(errs...)
}
