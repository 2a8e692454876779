package pgrepl

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

// Result is the result of one statement. The caller owns it.
type Result struct {
	Fields []pgwire.Field
	// Rows hold values in text format; nil is NULL.
	Rows [][][]byte
	// Tag is the command tag, such as "SELECT 3".
	Tag string
}

// Query runs a replication command, or SQL if the mode allows it, and returns the result of
// each statement. After an error from the server, which is a *pgwire.Error, the connection
// remains usable.
func (c *Conn) Query(ctx context.Context, sql string) ([]Result, error) {
	if err := checkText(sql); err != nil {
		return nil, err
	}
	if err := c.write(ctx, pgwire.AppendQuery(nil, sql)); err != nil {
		return nil, err
	}
	var results []Result
	err := c.answer(ctx, func(r Result) error {
		results = append(results, r)
		return nil
	})
	return results, err
}

// queryOne runs a command that returns exactly one row of at least the given number of columns.
func (c *Conn) queryOne(ctx context.Context, sql string, columns int) ([][]byte, error) {
	results, err := c.Query(ctx, sql)
	if err != nil {
		return nil, err
	}
	if len(results) != 1 || len(results[0].Rows) != 1 {
		return nil, fmt.Errorf("the server does not answer with one row: %w", pgwire.ErrMalformed)
	}
	row := results[0].Rows[0]
	if len(row) < columns {
		return nil, fmt.Errorf("the server answers with %d columns instead of %d: %w", len(row), columns, pgwire.ErrMalformed)
	}
	return row, nil
}

// answer reads up to ReadyForQuery and passes on each result. An interruption breaks the
// connection, because the rest of the response could not be told from the next one.
func (c *Conn) answer(ctx context.Context, yield func(Result) error) error {
	var refused error
	for {
		r, done, err := c.result(ctx)
		var e *pgwire.Error
		switch {
		case errors.As(err, &e) && c.failed() == nil:
			refused = err // and ReadyForQuery follows
		case err != nil:
			return c.fail(err)
		case done:
			return refused
		default:
			if err := yield(r); err != nil {
				return c.fail(err)
			}
		}
	}
}

// result reads one statement's result. done means that ReadyForQuery was read instead.
func (c *Conn) result(ctx context.Context) (r Result, done bool, err error) {
	for {
		typ, body, err := c.next(ctx)
		if err != nil {
			return r, false, err
		}
		switch typ {
		case pgwire.ServerRowDescription:
			r.Fields, err = pgwire.ParseRowDescription(body, nil)
		case pgwire.ServerDataRow:
			var row [][]byte
			row, err = pgwire.ParseDataRow(append([]byte(nil), body...), make([][]byte, 0, len(r.Fields)))
			r.Rows = append(r.Rows, row)
		case pgwire.ServerCommandComplete:
			var tag []byte
			tag, err = pgwire.ParseCommandComplete(body)
			r.Tag = string(tag)
			return r, false, err
		case pgwire.ServerEmptyQuery:
			return r, false, nil
		case pgwire.ServerReady:
			_, err = pgwire.ParseReadyForQuery(body)
			return r, true, err
		default:
			err = c.aside(typ, body)
		}
		if err != nil {
			return r, false, err
		}
	}
}

// aside handles messages that may arrive at any time. Any other message is an error, as is an
// ErrorResponse.
func (c *Conn) aside(typ byte, body []byte) error {
	switch typ {
	case pgwire.ServerNotice, pgwire.ServerNotification, pgwire.ServerParameterStatus:
		return nil
	case pgwire.ServerError:
		return c.serverError(body)
	}
	return c.fail(fmt.Errorf("unexpected message %q: %w", typ, pgwire.ErrMalformed))
}

// serverError parses an ErrorResponse. After a fatal error the server closes the connection.
func (c *Conn) serverError(body []byte) error {
	e, err := pgwire.ParseError(body)
	if err != nil {
		return c.fail(err)
	}
	if e.Fatal() {
		return c.fail(e)
	}
	return e
}

// ident quotes an identifier for SQL and for replication commands.
func ident(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// literal quotes a string for replication commands, which know no escape but a doubled quote,
// and for SQL, for which Connect sets standard_conforming_strings.
func literal(s string) string {
	return "'" + strings.ReplaceAll(s, "'", "''") + "'"
}

// checkText rejects text that would end a message early.
func checkText(s string) error {
	if strings.ContainsRune(s, 0) {
		return errors.New("the text holds a NUL byte")
	}
	return nil
}
