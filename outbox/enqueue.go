package outbox

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// DefaultTable is the name of the outbox table when none is given.
const DefaultTable = "weir_outbox"

// Execer is what Enqueue needs of database/sql: a *sql.Tx, and also a *sql.Conn
// or *sql.DB where the message alone is the transaction. The handles of sqlx,
// bun and ent, and GORM's ConnPool, are Execers too.
type Execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// PgxExecer is what Enqueue needs of pgx: a pgx.Tx, and also a *pgx.Conn or
// *pgxpool.Pool. Tag is pgconn.CommandTag; it is a type parameter so that this
// package imports no driver.
type PgxExecer[Tag any] interface {
	Exec(ctx context.Context, query string, args ...any) (Tag, error)
}

// dialect is how one kind of database writes the insert.
type dialect int

const (
	dialectPostgres dialect = iota
	dialectMySQL
	dialectSQLite
)

// Tx is a transaction, or any handle, that Enqueue inserts through. Make one
// with [Postgres], [Pgx], [MySQL] or [SQLite].
type Tx struct {
	exec    func(ctx context.Context, query string, args ...any) error
	dialect dialect
	table   string
}

// Postgres is a database/sql handle of PostgreSQL, with any driver.
func Postgres(tx Execer) Tx { return overSQL(tx, dialectPostgres) }

// MySQL is a database/sql handle of MySQL or MariaDB.
func MySQL(tx Execer) Tx { return overSQL(tx, dialectMySQL) }

// SQLite is a database/sql handle of SQLite.
func SQLite(tx Execer) Tx { return overSQL(tx, dialectSQLite) }

// Pgx is a handle of pgx.
func Pgx[Tag any](tx PgxExecer[Tag]) Tx {
	return Tx{dialect: dialectPostgres, table: DefaultTable, exec: func(ctx context.Context, query string, args ...any) error {
		_, err := tx.Exec(ctx, query, args...)
		return err
	}}
}

func overSQL(tx Execer, d dialect) Tx {
	return Tx{dialect: d, table: DefaultTable, exec: func(ctx context.Context, query string, args ...any) error {
		_, err := tx.ExecContext(ctx, query, args...)
		return err
	}}
}

// Table returns the handle for another outbox table, "name" or "schema.name".
func (t Tx) Table(name string) Tx {
	t.table = name
	return t
}

// Enqueue inserts the messages through tx, in their order, in one round trip up
// to 256 messages. They are delivered if and when tx commits. Messages without
// an ID get one, which the caller sees if it passed a slice. If a message is
// invalid (see [ErrInvalid]) nothing is inserted. If the database refuses, the
// caller must roll tx back.
//
// Insert late in a transaction: until it ends, messages that others committed
// later are delivered, but the relay keeps looking for what this one holds.
func Enqueue(ctx context.Context, tx Tx, msgs ...Message) error {
	if err := prepare(msgs); err != nil {
		return err
	}
	var now, later []int
	for i := range msgs {
		if msgs[i].AvailableAt.IsZero() {
			now = append(now, i)
		} else {
			later = append(later, i)
		}
	}
	rows, err := encode(tx.dialect, msgs)
	if err != nil {
		return err
	}
	for _, part := range []struct {
		table     string
		scheduled bool
		index     []int
	}{{tx.table, false, now}, {tx.table + ScheduledSuffix, true, later}} {
		for rest := part.index; len(rest) > 0; {
			n, bytes := 0, 0
			for n < min(len(rest), maxInsert) && (n == 0 || bytes+msgs[rest[n]].size() <= maxInsertBytes) {
				bytes += msgs[rest[n]].size()
				n++
			}
			if err := insert(ctx, tx, part.table, part.scheduled, rows, rest[:n]); err != nil {
				return fmt.Errorf("outbox: insert %d messages into %s: %w", n, part.table, err)
			}
			rest = rest[n:]
		}
	}
	return nil
}

// prepare checks all messages, then gives ids to those that have none.
func prepare(msgs []Message) error {
	for i := range msgs {
		if err := msgs[i].validate(); err != nil {
			return fmt.Errorf("message %d of %d: %w", i+1, len(msgs), err)
		}
	}
	for i := range msgs {
		if msgs[i].ID.IsZero() {
			msgs[i].ID = NewID()
		}
	}
	return nil
}

// maxInsert is the most rows of one INSERT, and maxInsertBytes what they may take if
// there are several: servers refuse statements that are too large for them.
const (
	maxInsert      = 256
	maxInsertBytes = 1 << 20
)

// size is about what the message takes in an INSERT.
func (m *Message) size() int {
	size := len(m.Topic) + len(m.Key) + len(m.Payload) + len(m.DedupKey) + 100
	for name, value := range m.Headers {
		size += len(name) + len(value) + 10
	}
	return size
}

// ScheduledSuffix makes the name of the table of messages whose moment has not
// come from that of the outbox table.
const ScheduledSuffix = "_scheduled"

// columns of both tables, in the order of encode's values.
const columns = "bucket, id, topic, msg_key, payload, headers, dedup_key"

// encode makes the values of each message, available_at last.
func encode(d dialect, msgs []Message) ([][8]any, error) {
	rows := make([][8]any, len(msgs))
	for i := range msgs {
		m := &msgs[i]
		headers, err := EncodeHeaders(m.Headers)
		if err != nil {
			return nil, fmt.Errorf("message %d of %d: %w", i+1, len(msgs), err)
		}
		payload := m.Payload
		if payload == nil {
			payload = []byte{}
		}
		id := any(m.ID[:])
		if d == dialectPostgres {
			id = m.ID.String()
		}
		rows[i] = [8]any{Bucket(m.Key, m.ID), id, m.Topic, m.Key, payload, nullable(headers), nullable(m.DedupKey), nil}
		if !m.AvailableAt.IsZero() {
			rows[i][7] = availableAt(d, m.AvailableAt)
		}
	}
	return rows, nil
}

// nullable is nil for the empty string.
func nullable(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// availableAt writes a moment as the dialect's column takes it, whatever the
// driver's or session's time zone: PostgreSQL's timestamptz by its offset, a
// DATETIME in UTC, SQLite microseconds since 1970.
func availableAt(d dialect, t time.Time) any {
	switch d {
	case dialectPostgres:
		return t.UTC().Format("2006-01-02 15:04:05.999999-07:00")
	case dialectMySQL:
		return t.UTC().Format("2006-01-02 15:04:05.999999")
	default:
		return t.UnixMicro()
	}
}

// insert writes the rows named by index with one statement.
func insert(ctx context.Context, tx Tx, table string, scheduled bool, rows [][8]any, index []int) error {
	width, names := 7, columns
	if scheduled {
		width, names = 8, columns+", available_at"
	}
	args := make([]any, 0, width*len(index))
	for _, i := range index {
		args = append(args, rows[i][:width]...)
	}
	return tx.exec(ctx, insertText(tx.dialect, table, names, width, len(index)), args...)
}

func insertText(d dialect, table, names string, width, rows int) string {
	var b strings.Builder
	b.WriteString("INSERT INTO " + quoteTable(d, table) + " (" + names + ") VALUES ")
	for n := range width * rows {
		switch {
		case n == 0:
			b.WriteByte('(')
		case n%width == 0:
			b.WriteString("), (")
		default:
			b.WriteString(", ")
		}
		if d == dialectPostgres {
			b.WriteByte('$')
			b.WriteString(strconv.Itoa(n + 1))
		} else {
			b.WriteByte('?')
		}
	}
	b.WriteByte(')')
	return b.String()
}

// quoteTable quotes "name" or "schema.name".
func quoteTable(d dialect, name string) string {
	q := `"`
	if d == dialectMySQL {
		q = "`"
	}
	parts := strings.SplitN(name, ".", 2)
	for i, p := range parts {
		parts[i] = q + strings.ReplaceAll(p, q, q+q) + q
	}
	return strings.Join(parts, ".")
}
