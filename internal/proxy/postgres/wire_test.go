package postgres_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

// A wire is a client that speaks the protocol message by message.
type wire struct {
	tb     testing.TB
	conn   net.Conn
	r      *bufio.Reader
	pid    uint32
	secret []byte
	params map[string]string
}

// A message is one protocol message of the server.
type message struct {
	typ  byte
	body []byte
}

// dialWire logs in at addr as the superuser.
func dialWire(tb testing.TB, addr, db string, params ...pgwire.Param) *wire {
	tb.Helper()
	return dialWireAs(tb, addr, db, "postgres", params...)
}

func dialWireAs(tb testing.TB, addr, db, user string, params ...pgwire.Param) *wire {
	tb.Helper()
	w, err := tryWireAs(tb, addr, db, user, params...)
	if err != nil {
		tb.Fatalf("connect: %v", err)
	}
	return w
}

func tryWireAs(tb testing.TB, addr, db, user string, params ...pgwire.Param) (*wire, error) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	be, err := pgwire.Connect(ctx, pgwire.ConnectConfig{Address: addr, User: user, Database: db, TLSMode: pgwire.TLSDisable, Params: params})
	if err != nil {
		return nil, err
	}
	return newWire(tb, be), nil
}

func newWire(tb testing.TB, be *pgwire.Backend) *wire {
	w := &wire{tb: tb, conn: be.Conn, r: bufio.NewReader(be.Conn), pid: be.PID, secret: be.Secret, params: make(map[string]string)}
	for _, p := range be.Params {
		w.params[p.Name] = p.Value
	}
	tb.Cleanup(w.close)
	return w
}

// wire connects through the proxy.
func (w *weir) wire(params ...pgwire.Param) *wire {
	w.tb.Helper()
	return dialWire(w.tb, w.Addr().String(), w.db, params...)
}

// firstWire is the first connection of a pool whose queue timeout is short. On a
// busy machine the login, and the statement behind it, may take longer than that
// until the pool knows its server: they are repeated then.
func (w *weir) firstWire() (c *wire) {
	w.tb.Helper()
	late := func(code string) bool { return code == pgwire.CodeTooManyConnections }
	eventually(w.tb, "a login within the queue timeout", func() bool {
		var err error
		if c, err = tryWireAs(w.tb, w.Addr().String(), w.db, "postgres"); err != nil && !late(pgwire.CodeOf(err)) {
			w.tb.Fatalf("connect: %v", err)
		}
		return err == nil
	})
	eventually(w.tb, "a statement within the queue timeout", func() bool {
		c.send(query("SELECT 1"))
		e := errorIn(c.ready())
		if e != nil && !late(e.Code) {
			w.tb.Fatalf("the first statement: %v", e)
		}
		return e == nil
	})
	return c
}

func (w *wire) close() { _ = w.conn.Close() }

// send writes messages. What the other side makes of them shows in the answer.
func (w *wire) send(parts ...[]byte) {
	var all []byte
	for _, p := range parts {
		all = append(all, p...)
	}
	_ = w.conn.SetWriteDeadline(time.Now().Add(patience))
	_, _ = w.conn.Write(all)
}

// next reads one message.
func (w *wire) next() (message, error) {
	if err := w.conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return message{}, err
	}
	var head [pgwire.HeaderLen]byte
	if _, err := io.ReadFull(w.r, head[:]); err != nil {
		return message{}, err
	}
	n := int(binary.BigEndian.Uint32(head[1:])) - 4
	if n < 0 || n > 1<<28 {
		return message{}, pgwire.ErrMalformed
	}
	body := make([]byte, n)
	_, err := io.ReadFull(w.r, body)
	return message{head[0], body}, err
}

// until reads messages up to and including the first of type typ. An error is
// the end of the connection.
func (w *wire) until(typ byte) ([]message, error) {
	var got []message
	for {
		m, err := w.next()
		if err != nil {
			return got, err
		}
		got = append(got, m)
		if m.typ == typ {
			return got, nil
		}
	}
}

// ready reads up to ReadyForQuery and fails the test without one.
func (w *wire) ready() []message {
	w.tb.Helper()
	got, err := w.until(pgwire.ServerReady)
	if err != nil {
		w.tb.Fatalf("no ReadyForQuery: %v, after %s", err, render(got))
	}
	return got
}

// ask runs a simple query and returns its answer as text, without the
// parameters that it reports: those go to w.params.
func (w *wire) ask(sql string) string {
	w.tb.Helper()
	w.send(query(sql))
	got := w.ready()
	return render(slices.DeleteFunc(got, func(m message) bool {
		if m.typ != pgwire.ServerParameterStatus {
			return false
		}
		if name, value, err := pgwire.ParseParameterStatus(m.body); err == nil {
			w.params[string(name)] = string(value)
		}
		return true
	}))
}

// asNew resets a session of the server's own, which costs the server less than another one.
func (w *wire) asNew() {
	w.tb.Helper()
	w.send(query("ROLLBACK"), query("DISCARD ALL"), closing('S', ""), sync()) // all but the unnamed statement
	for range 2 {
		w.ready()
	}
	if got := render(w.ready()); got != "closed I" {
		w.tb.Fatalf("the session is left as it is: %s", got)
	}
}

// want runs a simple query and compares its answer, given in the form of render.
func (w *wire) want(sql, answer string) {
	w.tb.Helper()
	if got := w.ask(sql); got != answer {
		w.tb.Errorf("%s\n got %s\nwant %s", sql, got, answer)
	}
}

// end reads until the server closes the connection.
func (w *wire) end() []message {
	w.tb.Helper()
	var got []message
	for {
		m, err := w.next()
		if err != nil {
			if ne, ok := err.(net.Error); ok && ne.Timeout() {
				w.tb.Fatalf("the connection stays open, after %s", render(got))
			}
			return got
		}
		got = append(got, m)
	}
}

func query(sql string) []byte { return pgwire.AppendQuery(nil, sql) }
func sync() []byte            { return pgwire.AppendSync(nil) }
func flush() []byte           { return pgwire.AppendFlush(nil) }

func parse(name, sql string, oids ...uint32) []byte {
	return pgwire.AppendParse(nil, name, sql, oids)
}

// bind binds text parameters to a statement on a portal.
func bind(portal, stmt string, values ...string) []byte {
	var args pgwire.BindArgs
	for _, v := range values {
		args.Values = append(args.Values, []byte(v))
	}
	return pgwire.AppendBind(nil, portal, stmt, &args)
}

func execute(portal string, limit uint32) []byte { return pgwire.AppendExecute(nil, portal, limit) }
func describe(kind byte, name string) []byte     { return pgwire.AppendDescribe(nil, kind, name) }
func closing(kind byte, name string) []byte      { return pgwire.AppendClose(nil, kind, name) }

// run is Parse, Bind, Describe, Execute, Sync of one text: what drivers send.
func run(sql string, values ...string) []byte {
	var out []byte
	for _, p := range [][]byte{parse("", sql), bind("", "", values...), describe('P', ""), execute("", 0), sync()} {
		out = append(out, p...)
	}
	return out
}

// render shows an answer in one line: rows in parentheses, tags and SQLSTATEs,
// and the transaction status at the end.
func render(ms []message) string {
	var b strings.Builder
	for i, m := range ms {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(m.String())
	}
	return b.String()
}

func (m message) String() string {
	switch m.typ {
	case pgwire.ServerParseComplete:
		return "parsed"
	case pgwire.ServerBindComplete:
		return "bound"
	case pgwire.ServerCloseComplete:
		return "closed"
	case pgwire.ServerNoData:
		return "nodata"
	case pgwire.ServerEmptyQuery:
		return "empty"
	case pgwire.ServerPortalSuspended:
		return "suspended"
	case pgwire.ServerReady:
		return string(m.body)
	case pgwire.ServerRowDescription:
		fields, err := pgwire.ParseRowDescription(m.body, nil)
		if err != nil {
			return "T?"
		}
		var names []string
		for _, f := range fields {
			names = append(names, f.Name)
		}
		return "[" + strings.Join(names, ",") + "]"
	case pgwire.ServerDataRow:
		values, err := pgwire.ParseDataRow(m.body, nil)
		if err != nil {
			return "D?"
		}
		var cells []string
		for _, v := range values {
			if v == nil {
				cells = append(cells, "null")
			} else {
				cells = append(cells, string(v))
			}
		}
		return "(" + strings.Join(cells, ",") + ")"
	case pgwire.ServerCommandComplete:
		return strings.ReplaceAll(strings.TrimRight(string(m.body), "\x00"), " ", "_")
	case pgwire.ServerError, pgwire.ServerNotice:
		e, err := pgwire.ParseError(m.body)
		if err != nil {
			return "E?"
		}
		return e.SeverityRaw + ":" + e.Code
	case pgwire.ServerParameterStatus:
		name, value, _ := pgwire.ParseParameterStatus(m.body)
		return fmt.Sprintf("%s=%s", name, value)
	case pgwire.ServerNotification:
		_, channel, payload, _ := pgwire.ParseNotification(m.body)
		return fmt.Sprintf("notify:%s:%s", channel, payload)
	}
	return fmt.Sprintf("%c:%d", m.typ, len(m.body))
}

// errorIn returns the first ErrorResponse of an answer.
func errorIn(ms []message) *pgwire.Error { return sayingIn(ms, pgwire.ServerError) }

// noticeIn returns the first NoticeResponse of an answer.
func noticeIn(ms []message) *pgwire.Error { return sayingIn(ms, pgwire.ServerNotice) }

func sayingIn(ms []message, typ byte) *pgwire.Error {
	for _, m := range ms {
		if m.typ == typ {
			if e, err := pgwire.ParseError(m.body); err == nil {
				return e
			}
		}
	}
	return nil
}
