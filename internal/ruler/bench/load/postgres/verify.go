package pgload

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weirdb/weir/internal/ruler/bench/load"
)

// Verify reads the whole table over its own connection, which must bypass what is being tested,
// and compares it with the clients of the run. It takes about 0.2 s for a million rows.
func Verify(ctx context.Context, dsn string, w load.Insert, o *load.Outcome) (*load.Audit, error) {
	conn, err := pgconn.Connect(ctx, dsn)
	if err != nil {
		return nil, fmt.Errorf("connect to verify: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	t := &tableReader{checker: load.NewChecker(w, o.Ledger)}
	if _, err := conn.CopyTo(ctx, t, "COPY (SELECT value, created_at FROM "+w.TableName()+") TO STDOUT"); err != nil {
		return nil, fmt.Errorf("read %s to verify: %w", w.TableName(), err)
	}
	return t.finish()
}

// Count returns how many updates the table of a workload has, over its own connection.
func Count(ctx context.Context, dsn string, w load.Update) (int64, error) {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return 0, fmt.Errorf("connect to verify: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var sum int64
	if err := conn.QueryRow(ctx, "SELECT sum(value) FROM "+w.TableName()).Scan(&sum); err != nil {
		return 0, fmt.Errorf("read %s to verify: %w", w.TableName(), err)
	}
	return sum, nil
}

// tableReader adds rows, written to it as COPY text, to a checker.
type tableReader struct {
	checker *load.Checker
	rest    []byte // an incomplete line
}

// Write parses a piece of COPY output. Lines may be split anywhere.
func (t *tableReader) Write(b []byte) (int, error) {
	n := len(b)
	for {
		line, after, ok := bytes.Cut(b, []byte{'\n'})
		if !ok {
			t.rest = append(t.rest, b...)
			return n, nil
		}
		if len(t.rest) > 0 {
			t.rest = append(t.rest, line...)
			line = t.rest
		}
		if err := t.row(line); err != nil {
			return 0, err
		}
		t.rest = t.rest[:0]
		b = after
	}
}

func (t *tableReader) row(line []byte) error {
	first, second, ok := bytes.Cut(line, []byte{'\t'})
	client, err1 := strconv.ParseInt(string(first), 10, 64)
	n, err2 := strconv.ParseInt(string(second), 10, 64)
	if !ok || err1 != nil || err2 != nil {
		return fmt.Errorf("row %q is not a client and a number", line)
	}
	t.checker.Row(client, n)
	return nil
}

func (t *tableReader) finish() (*load.Audit, error) {
	if len(t.rest) > 0 {
		return nil, errors.New("table ended inside a row")
	}
	return t.checker.Finish(), nil
}
