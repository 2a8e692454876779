package mysql

import (
	"bytes"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/wire/binlog"
	"github.com/weirdb/weir/outbox"
)

// canTail returns nil or a TailError.
func (s *Store) canTail(ctx context.Context) error {
	if s.wire == nil {
		return &outbox.TailError{Reason: "the store was made from a pool: open it by its DSN"}
	}
	report, err := binlog.Probe(ctx, *s.wire)
	if err == nil {
		err = report.Err()
	}
	if err != nil {
		return &outbox.TailError{Reason: err.Error()}
	}
	return nil
}

// tail follows the log of the server for one shard.
type tail struct {
	l          *lease
	stream     *binlog.Stream
	reader     *binlog.Reader
	columns    int     // of the table
	at         [9]int  // the index of each of rowColumns
	status     int     // index of column status; -1 if there is none
	decoder    decoder // of rows
	held       []outbox.Row
	bytes      int // payload of those held
	ready      []outbox.Row
	markerSeen bool // the change of syncStart was read
}

const (
	// maxTransaction is the most payload bytes of one transaction that are held
	// until its commit is read.
	maxTransaction = 64 << 20
	// maxReady is the most rows that Next returns.
	maxReady = 4096
	// defaultSyncTimeout is Store.syncTimeout, shorter in tests.
	defaultSyncTimeout = 15 * time.Second
)

// Tail implements [outbox.Lease].
func (l *lease) Tail(ctx context.Context) (outbox.Tail, error) {
	if err := l.deposed(); err != nil {
		return nil, l.fail("follow the log of", err)
	}
	if err := l.s.canTail(ctx); err != nil {
		return nil, err
	}
	// Sessions log their changes according to the server's settings of the time when they
	// began, which may be as statements or as parts of rows.
	l.s.expire()
	t := &tail{l: l, status: -1, decoder: decoder{first: l.first, last: l.last, all: l.all}}
	if err := l.with(ctx, func(c *session) error { return t.prepare(ctx, c) }); err != nil {
		return nil, l.fail("follow the log of", err)
	}
	stream, err := binlog.Open(ctx, binlog.StreamConfig{Server: *l.s.wire})
	if err != nil {
		return nil, &outbox.TailError{Reason: err.Error()}
	}
	t.stream = stream
	t.reader = binlog.NewReader(stream, binlog.ReaderConfig{Want: func(schema, table string) bool {
		return (strings.EqualFold(table, l.s.base) || t.isLease(table)) && strings.EqualFold(schema, l.v.database)
	}})
	if err := t.syncStart(ctx); err != nil {
		return nil, errors.Join(l.fail("follow the log of", err), t.Close())
	}
	return t, nil
}

// prepare maps the columns of rows in the log, and checks that the log can be used.
func (t *tail) prepare(ctx context.Context, c *session) error {
	found, err := migration{t.l.s}.inspect(ctx, c, t.l.v)
	if err != nil {
		return err
	}
	t.columns = len(found.columns)
	names := slices.Concat([]string{"seq"}, strings.Split(messageColumns, ", "), []string{"created_at"})
	for i, name := range names {
		if t.at[i] = slices.Index(found.columns, name); t.at[i] < 0 {
			return fmt.Errorf("the table has no column %s", name)
		}
	}
	t.status = slices.Index(found.columns, "status")
	vars := map[string]string{}
	err = c.scan(ctx, "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('read_only', 'binlog_order_commits')", func(values []driver.Value) (bool, error) {
		name, err := text(values[0])
		if err != nil {
			return false, err
		}
		value, err := text(values[1])
		vars[strings.ToLower(string(name))] = string(value)
		return true, err
	})
	if err == nil {
		err = checkVariables(vars)
	}
	if err != nil {
		return err
	}
	return t.filters(ctx, c)
}

// readOnly is the reason for not following the log of a read-only server.
const readOnly = "the server is read-only, as replicas are: its log need not show what others write"

// checkVariables returns an error for a server whose log does not show all commits, or not in
// the order in which they become visible: see syncStart.
func checkVariables(vars map[string]string) error {
	if isOn(vars["read_only"]) {
		return &outbox.TailError{Reason: readOnly}
	}
	if order, ok := vars["binlog_order_commits"]; ok && !isOn(order) {
		return &outbox.TailError{Reason: "binlog_order_commits is OFF, so commits become visible in another order than that of the log: SET GLOBAL binlog_order_commits = ON"}
	}
	return nil
}

// isLease reports whether a table is the lease table.
func (t *tail) isLease(table string) bool { return strings.EqualFold(table, t.l.s.base+"_lease") }

// Probe returns an error if the server is read-only now. The log of a replica need not contain
// what it replicates.
func (t *tail) Probe() error {
	if t.l.readOnly.Load() {
		return errors.New(readOnly)
	}
	return nil
}

// filters returns an error if the server excludes databases from its log.
func (t *tail) filters(ctx context.Context, c *session) error {
	query := "SHOW BINARY LOG STATUS"
	if t.l.v.mariadb {
		query = "SHOW MASTER STATUS"
	}
	look := func() error {
		return c.scan(ctx, query, func(values []driver.Value) (bool, error) {
			for _, v := range values[2:4] {
				if filter, err := text(v); err != nil {
					return false, err
				} else if len(filter) > 0 {
					return false, &outbox.TailError{Reason: fmt.Sprintf("the server leaves databases out of its log (binlog_do_db or binlog_ignore_db is %s)", filter)}
				}
			}
			return true, nil
		})
	}
	err := look()
	if isError(err, errSyntax) { // before MySQL 8.2
		query = "SHOW MASTER STATUS"
		err = look()
	}
	if isError(err, errAccessDenied) {
		return &outbox.TailError{Reason: err.Error()}
	}
	return err
}

// syncStart ensures that everything in the log before the start of the tail is visible in the
// table. A transaction is in the log shortly before it is visible, but in the same order: when
// one that commits after the start is visible, so are all before. So syncStart commits a change
// of the lease and waits until the log shows it, which also proves that the log is that of the
// lease's server: an address may lead to another server by now.
func (t *tail) syncStart(ctx context.Context) error {
	err := t.l.with(ctx, func(c *session) error {
		return retry(ctx, func() error {
			return c.exec(ctx, t.l.s.sql(fmt.Sprintf("UPDATE {lease} SET taken_at = UTC_TIMESTAMP(6) WHERE shard = %d AND epoch = %d", t.l.shard, t.l.epoch)))
		})
	})
	patience, cancel := context.WithTimeout(ctx, t.l.s.syncTimeout)
	defer cancel()
	for err == nil && !t.markerSeen {
		var record *binlog.Record
		if record, err = t.reader.Next(patience); err == nil {
			err = t.take(record)
		}
	}
	if err != nil && ctx.Err() == nil && patience.Err() != nil {
		return &outbox.TailError{Reason: fmt.Sprintf("the log did not show a write of this relay within %v: it belongs to another server, or excludes the tables", t.l.s.syncTimeout)}
	}
	return err
}

// findMarker looks for the change of syncStart among changes of leases.
func (t *tail) findMarker(rows *binlog.Rows) error {
	for rows.Next() {
		// The row before the change is complete even if binlog_row_image is FULL_NODUP.
		old := rows.Before
		if rows.Action == binlog.Update && len(old) > 2 && old[0].Int64() == int64(t.l.shard) && old[2].Int64() == t.l.epoch {
			t.markerSeen = true
		}
	}
	return rows.Err()
}

// endedContext is a canceled context, to read without waiting.
var endedContext = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// Next implements [outbox.Tail].
func (t *tail) Next(ctx context.Context) ([]outbox.Row, error) {
	for len(t.ready) < maxReady {
		if err := t.l.deposed(); err != nil {
			return nil, t.l.fail("follow the log of", err)
		}
		patience := ctx
		if len(t.ready) > 0 {
			patience = endedContext
		}
		record, err := t.reader.Next(patience)
		if err != nil && len(t.ready) > 0 && errors.Is(err, context.Canceled) {
			break
		}
		if err == nil {
			err = t.take(record)
		}
		if err != nil {
			return nil, t.l.fail("follow the log of", err)
		}
	}
	if err := t.awaitVisible(ctx, t.ready); err != nil {
		return nil, t.l.fail("follow the log of", err)
	}
	rows := t.ready
	t.ready = nil
	t.l.remember(rows)
	return rows, nil
}

// errNotInLog is the error for transactions whose rows the log does not show. The relay reads
// them from the table and opens another tail.
var errNotInLog = errors.New("the log does not show what a transaction inserted when it commits")

// take processes one record. Rows are held until their transaction commits.
func (t *tail) take(record *binlog.Record) error {
	switch record.Kind {
	case binlog.Begin, binlog.Rollback:
		t.drop()
	case binlog.Changes:
		return t.changes(record.Rows)
	case binlog.Commit:
		t.ready = append(t.ready, t.held...)
		t.drop()
	case binlog.Prepare:
		if len(t.held) > 0 {
			return fmt.Errorf("%w: it was prepared by XA", errNotInLog)
		}
	case binlog.Statement:
		text := strings.ToUpper(record.Query.SQL)
		if strings.HasPrefix(text, "XA COMMIT") {
			return fmt.Errorf("%w: XA COMMIT of one that was prepared", errNotInLog)
		}
		if resetsTable.MatchString(text) && strings.Contains(text, strings.ToUpper(t.l.s.base)) {
			return fmt.Errorf("%w: %.80s", outbox.ErrRecreated, record.Query.SQL)
		}
		if strings.Contains(text, strings.ToUpper(t.l.s.base)) {
			return fmt.Errorf("%w: a statement on the table, not its rows, was logged", errNotInLog)
		}
	}
	return nil
}

// resetsTable matches statements that may restart the numbers.
var resetsTable = regexp.MustCompile(`^\s*(/\*.*?\*/)?\s*(TRUNCATE|DROP\s+TABLE|RENAME\s+TABLE|CREATE\b)`)

func (t *tail) drop() { t.held, t.bytes = t.held[:0], 0 }

// changes processes the rows of one event.
func (t *tail) changes(rows *binlog.Rows) error {
	if t.isLease(rows.Table.Name) {
		return t.findMarker(rows)
	}
	if rows.Action != binlog.Insert {
		return nil
	}
	if len(rows.Table.Columns) != t.columns {
		return fmt.Errorf("the table had %d columns and has %d now", t.columns, len(rows.Table.Columns))
	}
	for rows.Next() {
		row, ours, err := t.row(rows.After)
		if err != nil {
			return err
		}
		if !ours {
			continue
		}
		if t.bytes += len(row.Payload); t.bytes > maxTransaction {
			return fmt.Errorf("%w: it has more than %d MiB", errNotInLog, maxTransaction>>20)
		}
		t.held = append(t.held, row)
	}
	return rows.Err()
}

// row decodes a row of the log.
func (t *tail) row(image binlog.Row) (outbox.Row, bool, error) {
	if t.status >= 0 && image[t.status].Int64() != 0 {
		return outbox.Row{}, false, nil
	}
	var values [rowWidth]driver.Value
	for i, at := range t.at {
		switch v := image[at]; v.Kind() {
		case binlog.KindNull:
		case binlog.KindBytes:
			values[i] = v.Bytes()
		case binlog.KindInt, binlog.KindUint:
			values[i] = v.Int64()
		case binlog.KindDatetime:
			made, ok := v.Time()
			if !ok {
				return outbox.Row{}, false, errors.New("created_at is no date")
			}
			values[i] = made.UnixMicro()
		case binlog.KindAbsent:
			return outbox.Row{}, false, fmt.Errorf("%w: its session logs only parts of rows: it began before binlog_row_image was FULL, or changed it; reconnect such sessions", errNotInLog)
		default:
			return outbox.Row{}, false, fmt.Errorf("column %d of the log has a value of kind %d", at+1, v.Kind())
		}
	}
	// The log strips trailing zero bytes of BINARY(16).
	if id, ok := values[2].([]byte); ok && len(id) < len(outbox.ID{}) {
		values[2] = append(bytes.Clone(id), make([]byte, len(outbox.ID{})-len(id))...)
	}
	return t.decoder.row(values[:])
}

// Close implements [outbox.Tail].
func (t *tail) Close() error {
	if err := t.stream.Close(); err != nil {
		return t.l.fail("end following the log of", err)
	}
	return nil
}
