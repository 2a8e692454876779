package postgres

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file is how the admin console speaks. What it says is core's.

// serveConsole answers commands until the client leaves.
func (s *Server) serveConsole(conn net.Conn, who core.Operator) error {
	return serveAnswers(s, conn, "15.0 (weir)", func(ctx context.Context, sql string) (core.Answer, error) {
		a, err := s.Command(ctx, sql)
		who.Audited(s.cfg().Audit, Engine, sql, a, err)
		return a, err
	})
}

// serveAnswers has answer carry out a client's commands until it leaves.
func serveAnswers(s *Server, conn net.Conn, version string, answer func(ctx context.Context, sql string) (core.Answer, error)) error {
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	stop := context.AfterFunc(s.DialCtx, func() { _ = conn.Close() })
	defer stop()
	s.Consoles.Add(1)
	defer s.Consoles.Add(-1)
	out := pgwire.AppendParameterStatus(nil, "server_version", version)
	out = pgwire.AppendParameterStatus(out, "client_encoding", "UTF8")
	out = pgwire.AppendParameterStatus(out, "standard_conforming_strings", "on")
	out = pgwire.AppendParameterStatus(out, "DateStyle", "ISO") // psycopg2 would send SET datestyle
	out = pgwire.AppendBackendKeyData(out, 1, make([]byte, 4))
	out = pgwire.AppendReadyForQuery(out, pgwire.StatusIdle)
	r := bufio.NewReader(conn)
	then := func() {}
	for {
		if _, err := conn.Write(out); err != nil {
			return nil // the client has gone
		}
		then()
		then = func() {}
		typ, body, err := readMessage(r, 1<<16)
		if err != nil || typ == pgwire.ClientTerminate {
			return nil
		}
		switch typ {
		case pgwire.ClientQuery:
			sql, err := pgwire.ParseQuery(body)
			if err != nil {
				return err
			}
			if err := core.UntilHangup(s.DialCtx, conn, r, func(ctx context.Context) {
				var a core.Answer
				if a, out = appendAnswer(ctx, out[:0], string(sql), answer); a.Then != nil {
					then = a.Then
				}
			}); err != nil {
				return err
			}
		case pgwire.ClientSync:
			out = pgwire.AppendReadyForQuery(out[:0], pgwire.StatusIdle)
		default:
			out = pgwire.AppendError(out[:0], pgwire.NewError(pgwire.CodeFeatureNotSupported,
				"the admin console takes simple queries only"))
			if typ == pgwire.ClientParse {
				continue
			}
			out = out[:0]
		}
	}
}

// appendAnswer carries out one command and appends what is said to it.
func appendAnswer(ctx context.Context, out []byte, sql string, answer func(ctx context.Context, sql string) (core.Answer, error)) (core.Answer, []byte) {
	a, err := answer(ctx, sql)
	var no *core.Refusal
	switch {
	case errors.As(err, &no):
		code := pgwire.CodeObjectState
		if no.Unknown {
			code = pgwire.CodeSyntaxError
		}
		code = cmp.Or(no.Code, code)
		e := pgwire.NewError(code, "%s", no.Message)
		e.Hint = no.Hint
		out = pgwire.AppendError(out, e)
	case err != nil:
		out = pgwire.AppendError(out, pgwire.NewError(pgwire.CodeInternalError, "%v", err))
	case a.Tag == "":
		out = pgwire.AppendEmptyQuery(out)
	case a.Table != nil:
		out = appendTable(out, a.Table)
	default:
		if a.Notice != "" {
			out = pgwire.AppendNotice(out, &pgwire.Error{Severity: "NOTICE", SeverityRaw: "NOTICE", Code: "00000", Message: a.Notice})
		}
		out = pgwire.AppendCommandComplete(out, a.Tag)
	}
	return a, pgwire.AppendReadyForQuery(out, pgwire.StatusIdle)
}

// Types of the console's columns.
const (
	oidInt8 = 20
	oidText = 25
)

// appendTable appends a table as the result of SHOW.
func appendTable(out []byte, t *sight.Table) []byte {
	fields := make([]pgwire.Field, len(t.Cols))
	for i, c := range t.Cols {
		fields[i] = pgwire.Field{Name: c, TypeOID: oidText, TypeSize: -1, TypeMod: -1}
		if t.Whole(i) {
			fields[i].TypeOID, fields[i].TypeSize = oidInt8, 8
		}
	}
	out = pgwire.AppendRowDescription(out, fields)
	vals := make([][]byte, len(t.Cols))
	for _, r := range t.Rows {
		for i := range vals {
			vals[i] = []byte(r[i])
		}
		out = pgwire.AppendDataRow(out, vals)
	}
	return pgwire.AppendCommandComplete(out, "SHOW")
}

// readMessage reads one message of at most limit bytes.
func readMessage(r io.Reader, limit int) (byte, []byte, error) {
	var head [pgwire.HeaderLen]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := int(int32(binary.BigEndian.Uint32(head[1:]))) - 4
	if n < 0 || n > limit {
		return 0, nil, pgwire.ErrMalformed
	}
	body := make([]byte, n)
	_, err := io.ReadFull(r, body)
	return head[0], body, err
}

// queryOne runs a query with text parameters on a blocking connection and
// returns its first row, nil if there is none.
func queryOne(ctx context.Context, conn net.Conn, sql string, params ...string) ([][]byte, error) {
	if d, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(d); err != nil {
			return nil, err
		}
	}
	out := pgwire.AppendParse(nil, "", sql, nil)
	var args pgwire.BindArgs
	for _, p := range params {
		args.Values = append(args.Values, []byte(p))
	}
	out = pgwire.AppendBind(out, "", "", &args)
	out = pgwire.AppendExecute(out, "", 1)
	if _, err := conn.Write(pgwire.AppendSync(out)); err != nil {
		return nil, fmt.Errorf("send query: %w", err)
	}
	return readRow(conn)
}

// runSetup runs a query whose results are not needed on a blocking connection.
func runSetup(ctx context.Context, conn net.Conn, sql string) error {
	if d, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(d); err != nil {
			return err
		}
	}
	if _, err := conn.Write(pgwire.AppendQuery(nil, sql)); err != nil {
		return fmt.Errorf("send query: %w", err)
	}
	var failure error
	for {
		typ, body, err := readMessage(conn, 1<<20)
		if err != nil {
			return fmt.Errorf("read answer: %w", err)
		}
		switch typ {
		case pgwire.ServerError:
			if failure, err = pgwire.ParseError(body); err != nil {
				return err
			}
		case pgwire.ServerReady:
			return failure
		}
	}
}
