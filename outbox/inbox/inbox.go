// Package inbox makes the effects of messages happen once at a consumer. Brokers
// deliver at least once: after a crash of the relay, of the broker or of the
// consumer the same message comes again. The consumer records in its
// own transaction that it has received the message:
//
//	tx, err := db.BeginTx(ctx, nil)
//	// ...
//	first, err := inbox.Once(ctx, inbox.Postgres(tx), "orders", identity)
//	if err != nil { return err }   // roll back; the broker delivers again
//	if first { /* the effects, through tx */ }
//	err = tx.Commit()              // then acknowledge to the broker
//
// identity is the one that the sink sent: Nats-Msg-Id, AMQP's message-id, the header weir-id in
// Kafka, the field id in Redis, ce-id over HTTP. source distinguishes streams whose identities
// could collide.
//
// If two consumers have the same message at once, the second waits for the transaction of the
// first. [Once] then returns false to it if the first committed, and true if it rolled back.
package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// DefaultTable is the default name of the table.
const DefaultTable = "weir_inbox"

// MaxLen is the most bytes of a source and of an identity.
const MaxLen = 255

// Execer is implemented by *sql.Tx, and for Migrate and Purge by *sql.Conn and *sql.DB.
type Execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// Tag is implemented by pgx's pgconn.CommandTag.
type Tag interface{ RowsAffected() int64 }

// PgxExecer is implemented by pgx.Tx, and for Migrate and Purge by *pgx.Conn and *pgxpool.Pool.
type PgxExecer[T Tag] interface {
	Exec(ctx context.Context, query string, args ...any) (T, error)
}

// Tx is the consumer's transaction. Make one by [Postgres], [Pgx], [MySQL] or
// [SQLite].
type Tx struct {
	exec    func(ctx context.Context, query string, args ...any) (rows int64, err error)
	dialect dialect
	table   string
}

// Postgres returns a handle for database/sql and PostgreSQL, with any driver.
func Postgres(tx Execer) Tx { return overSQL(tx, postgres) }

// MySQL returns a handle for database/sql and MySQL or MariaDB.
func MySQL(tx Execer) Tx { return overSQL(tx, mysql) }

// SQLite returns a handle for database/sql and SQLite.
func SQLite(tx Execer) Tx { return overSQL(tx, sqlite) }

// Pgx returns a handle for pgx.
func Pgx[T Tag](tx PgxExecer[T]) Tx {
	return Tx{dialect: postgres, table: DefaultTable, exec: func(ctx context.Context, query string, args ...any) (int64, error) {
		tag, err := tx.Exec(ctx, query, args...)
		if err != nil {
			return 0, err
		}
		return tag.RowsAffected(), nil
	}}
}

func overSQL(tx Execer, d dialect) Tx {
	return Tx{dialect: d, table: DefaultTable, exec: func(ctx context.Context, query string, args ...any) (int64, error) {
		result, err := tx.ExecContext(ctx, query, args...)
		if err != nil {
			return 0, err
		}
		return result.RowsAffected()
	}}
}

// Table returns a handle for another table, "name" or "schema.name".
func (t Tx) Table(name string) Tx {
	t.table = name
	return t
}

// Once records that the message was received and reports whether this is the first time. It takes
// effect when tx commits. It may wait for another consumer's transaction with the same message. If
// it fails, roll tx back; a deadlock or a serialization failure passes when the message is
// delivered again.
//
// Source and identity are compared byte by byte.
func Once(ctx context.Context, tx Tx, source, identity string) (first bool, err error) {
	for _, f := range []struct{ name, value string }{{"source", source}, {"identity", identity}} {
		switch {
		case f.value == "" && f.name == "identity":
			return false, errors.New("inbox: a message without an identity")
		case len(f.value) > MaxLen:
			return false, fmt.Errorf("inbox: the %s has %d bytes, at most %d are allowed", f.name, len(f.value), MaxLen)
		case !utf8.ValidString(f.value) || strings.ContainsRune(f.value, 0):
			return false, fmt.Errorf("inbox: the %s %q is not UTF-8 without NUL", f.name, f.value)
		}
	}
	rows, err := tx.exec(ctx, tx.dialect.note(tx.table), tx.dialect.text(source), tx.dialect.text(identity))
	if err != nil {
		return false, fmt.Errorf("inbox: note %q of %q in %s: %w", identity, source, tx.table, err)
	}
	return rows > 0, nil
}

// Statements returns the SQL that creates the table, for use with other
// migration tools.
func Statements(tx Tx) []string { return tx.dialect.create(tx.table) }

// Migrate creates the table if it does not exist.
func Migrate(ctx context.Context, db Tx) error {
	for _, query := range Statements(db) {
		if _, err := db.exec(ctx, query); err != nil {
			return fmt.Errorf("inbox: create %s: %w", db.table, err)
		}
	}
	return nil
}

// purgeBatch is the most rows that one statement deletes, so that no lock is held for long.
const purgeBatch = 5000

// Purge deletes messages that were recorded before a time, by the database's clock, and returns how
// many. A message that is delivered again after that has its effects again: keep messages longer
// than the broker does. db should not be a transaction, so that each batch is one.
func Purge(ctx context.Context, db Tx, before time.Time) (int64, error) {
	var total int64
	for {
		rows, err := db.exec(ctx, db.dialect.purge(db.table), db.dialect.moment(before))
		if err != nil {
			return total, fmt.Errorf("inbox: purge %s: %w", db.table, err)
		}
		total += rows
		if rows < purgeBatch {
			return total, nil
		}
	}
}
