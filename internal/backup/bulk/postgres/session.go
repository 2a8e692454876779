// Package postgres is what backup and restore of PostgreSQL have in common:
// sessions that move rows in bulk, names and literals in SQL, the server's own
// pg_dump and the table of contents that it writes, and checksums of rows.
//
// A Session speaks the simple protocol only. Its COPY path touches each byte as
// little as it can: what the server sends is stripped of its message headers in
// the buffer into which it was read, and handed on a quarter of a megabyte at a
// time.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

const (
	// bufferSize is the read and the write buffer of a session, in bytes. Smaller reads
	// cost a backup as much (docs/results/speed-backup.md).
	bufferSize = 256 << 10

	// maxMessage bounds a message of the server: PostgreSQL's own limit of
	// 1 GiB, and room for its header.
	maxMessage = 1<<30 + 64

	// cancelPatience bounds the attempt to tell a server that nobody waits for
	// its answer any more.
	cancelPatience = 5 * time.Second

	// startPatience is how long a server may say that it starts, or recovers from a crash,
	// before that is an error. It is asked again after pauses from firstPause to lastPause.
	startPatience = 2 * time.Minute
	firstPause    = 50 * time.Millisecond
	lastPause     = 2 * time.Second
)

// Session is a connection that is logged in. One goroutine uses it at a time. A
// statement whose context ends, and any failure of the connection, make it
// unusable: what remains is Close.
type Session struct {
	cfg     pgwire.ConnectConfig
	backend *pgwire.Backend
	conn    net.Conn
	version int

	buf    []byte // buf[r:w] has been read and not used
	r, w   int
	out    []byte // for COPY FROM STDIN; made at first use
	broken error

	planned string // the statement of Fingerprint that the server has planned

	interrupted atomic.Bool // the context of a statement has ended
	gathers     bool        // a read waits for gatherBytes

	// Waited is for how long bytes of the server were waited for.
	Waited time.Duration

	// Notices counts warnings of the server since the login, Notice holds the
	// last one.
	Notices int
	Notice  *pgwire.Error
}

// Settings are what every session of a backup or restore begins with, so that
// rows read the same whatever the server's configuration is, and nothing ends
// the session because it takes long. They are pg_dump's own and more: whatever a
// database or role is configured to, text means the same.
//
// The search path comes first: what stands in a schema there may be anybody's, and the rights
// are those of the backup.
const Settings = `SELECT pg_catalog.set_config('search_path', '', false); SET client_encoding = 'UTF8'; SET DateStyle = 'ISO, YMD'; SET IntervalStyle = 'postgres'; SET TimeZone = 'UTC'; ` +
	`SET extra_float_digits = 3; SET bytea_output = 'hex'; SET xmloption = 'content'; SET standard_conforming_strings = on; ` +
	`SET default_transaction_read_only = off; SET default_transaction_isolation = 'read committed'; SET default_transaction_deferrable = off; ` +
	`SET statement_timeout = 0; SET lock_timeout = 0; SET idle_in_transaction_session_timeout = 0; ` +
	`SET array_nulls = on; SET quote_all_identifiers = off; SET transform_null_equals = off; SET escape_string_warning = off; ` +
	`SET synchronize_seqscans = off; SET row_security = off; SET client_min_messages = warning; ` +
	`SELECT pg_catalog.set_config(name, '0', false) FROM (VALUES ('idle_session_timeout'), ('transaction_timeout')) AS v (name) WHERE pg_catalog.current_setting(name, true) IS NOT NULL`

// MoneySetting makes values of the type money read the same everywhere: their text
// depends on the locale. AttrMoney is the attribute of a manifest whose rows and
// definitions were written under it, and which are read under it again.
const (
	MoneySetting = "SET lc_monetary = 'C'"
	AttrMoney    = "lc_monetary"
)

// NoJIT is a setting for sessions that read catalogues. Their queries are long, and
// where there are many tables the server would take longer to compile than to run
// them: 7.8 of 15.3 s for the definitions of 2,000 tables.
const NoJIT = "SET jit = off"

// Connect logs in and makes the session's Settings. database replaces that of
// cfg unless it is empty.
func Connect(ctx context.Context, cfg pgwire.ConnectConfig, database string) (*Session, error) {
	if database != "" {
		cfg.Database = database
	}
	params := make([]pgwire.Param, 0, len(cfg.Params)+1)
	named := false
	for _, p := range cfg.Params {
		named = named || p.Name == "application_name"
		// A backup's rows are UTF-8 whatever the DSN says of other programs.
		if p.Name != "client_encoding" {
			params = append(params, p)
		}
	}
	if !named {
		params = append(params, pgwire.Param{Name: "application_name", Value: "weir"})
	}
	cfg.Params = params
	b, err := patient(ctx, cfg)
	if err != nil {
		return nil, err
	}
	s := &Session{cfg: cfg, backend: b, conn: b.Conn, buf: make([]byte, bufferSize)}
	settings := Settings
	if s.Encoding() != "UTF8" {
		settings += "; SET client_encoding = '" + s.Encoding() + "'"
	}
	if err := s.Exec(ctx, settings); err != nil {
		return nil, errors.Join(fmt.Errorf("prepare session on %s: %w", cfg, err), s.Close())
	}
	row, err := s.Row(ctx, "SHOW server_version_num")
	if err == nil {
		s.version, err = strconv.Atoi(row[0])
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("ask %s for its version: %w", cfg, err), s.Close())
	}
	return s, nil
}

// patient connects. It waits for a server that is not ready yet.
func patient(ctx context.Context, cfg pgwire.ConnectConfig) (*pgwire.Backend, error) {
	begun := time.Now()
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		b, err := pgwire.Connect(ctx, cfg)
		if ErrorCode(err) != pgwire.CodeCannotConnectNow {
			return b, err
		}
		if time.Since(begun)+pause > startPatience {
			return nil, fmt.Errorf("%w (weir has waited for it for %s)", err, time.Since(begun).Round(time.Second))
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), err)
		}
	}
}

// Version is the server's version as a number, such as 150018.
func (s *Session) Version() int { return s.version }

// VersionText is the server's version in its own words.
func (s *Session) VersionText() string { return s.backend.Param("server_version") }

// Encoding is that of the session: UTF8, whatever the database's own is, but for
// databases in SQL_ASCII, whose bytes the server cannot convert and would refuse
// as UTF-8: they are moved as they are.
func (s *Session) Encoding() string {
	if s.backend.Param("server_encoding") == "SQL_ASCII" {
		return "SQL_ASCII"
	}
	return "UTF8"
}

// PID is the server process behind the session.
func (s *Session) PID() uint32 { return s.backend.PID }

// Database is the database that the session is in.
func (s *Session) Database() string {
	if s.cfg.Database != "" {
		return s.cfg.Database
	}
	return s.cfg.User
}

// Broken is why the session is of no further use, nil while it is of use.
func (s *Session) Broken() error { return s.broken }

// Close ends the session. The server rolls back what is not committed.
func (s *Session) Close() error {
	if s.broken == nil {
		s.broken = net.ErrClosed
		_ = s.conn.SetWriteDeadline(time.Now().Add(time.Second))
		// The server notices the close of a connection just as well.
		_, _ = s.conn.Write(pgwire.AppendTerminate(nil))
	}
	err := s.conn.Close()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// Exec runs statements and discards their rows. An error of the server is a
// *pgwire.Error and leaves the session usable.
func (s *Session) Exec(ctx context.Context, sql string) error {
	_, err := s.run(ctx, sql, func([]string) error { return nil })
	return err
}

// Query runs a statement and hands each row to yield, values as text and NULL as
// "". The slice is the caller's to keep.
func (s *Session) Query(ctx context.Context, sql string, yield func(row []string) error) error {
	_, err := s.run(ctx, sql, yield)
	return err
}

// Row runs a statement that answers with exactly one row.
func (s *Session) Row(ctx context.Context, sql string) ([]string, error) {
	var rows [][]string
	if err := s.Query(ctx, sql, func(row []string) error {
		rows = append(rows, row)
		return nil
	}); err != nil {
		return nil, err
	}
	if len(rows) != 1 || len(rows[0]) == 0 {
		return nil, fmt.Errorf("expected one row, got %d", len(rows))
	}
	return rows[0], nil
}

// run sends a query and reads to ReadyForQuery. An error of yield breaks nothing:
// the rest of the answer is skipped.
func (s *Session) run(ctx context.Context, sql string, yield func([]string) error) (tag string, err error) {
	release, err := s.begin(ctx, sql)
	if err != nil {
		return "", err
	}
	defer func() { err = release(err) }()
	var values [][]byte
	var failed error
	for {
		typ, body, err := s.read()
		if err != nil {
			return "", err
		}
		switch typ {
		case pgwire.ServerDataRow:
			if failed != nil {
				continue
			}
			if values, err = pgwire.ParseDataRow(body, values[:0]); err != nil {
				return "", s.fail(err)
			}
			row := make([]string, len(values))
			for i, v := range values {
				row[i] = string(v)
			}
			failed = yield(row)
		case pgwire.ServerCommandComplete:
			t, err := pgwire.ParseCommandComplete(body)
			if err != nil {
				return "", s.fail(err)
			}
			tag = string(t)
		case pgwire.ServerError:
			e, err := pgwire.ParseError(body)
			if err != nil {
				return "", s.fail(err)
			}
			if failed = e; e.Fatal() {
				return "", s.fail(e)
			}
		case pgwire.ServerCopyInResponse:
			// The caller means another method; the server must not wait for data.
			if _, err := s.conn.Write(pgwire.AppendCopyFail(nil, "no data")); err != nil {
				return "", s.fail(err)
			}
		case pgwire.ServerReady:
			return tag, failed
		}
	}
}

// begin sends a query, with ctx bound to the connection until release.
func (s *Session) begin(ctx context.Context, sql string) (release func(error) error, err error) {
	if s.broken != nil {
		return nil, fmt.Errorf("session is closed: %w", s.broken)
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if strings.IndexByte(sql, 0) >= 0 {
		return nil, errors.New("statement holds a NUL byte")
	}
	stop := context.AfterFunc(ctx, func() {
		s.interrupted.Store(true)
		_ = s.conn.SetDeadline(past)
	})
	release = func(err error) error {
		if stop() {
			return err
		}
		// Interrupted, perhaps between two statements, when the deadline would
		// hit the next one: the session is lost either way.
		cause := context.Cause(ctx)
		if s.broken == nil {
			s.broken = cause
		}
		if err == nil {
			return nil
		}
		s.cancel()
		return cause
	}
	if _, err := s.conn.Write(pgwire.AppendQuery(nil, sql)); err != nil {
		return nil, release(s.fail(err))
	}
	return release, nil
}

// cancel tells the server that nobody waits for what it does: an index build
// would otherwise go on to its end and hold its locks.
func (s *Session) cancel() {
	if s.backend.PID == 0 {
		return
	}
	ctx, stop := context.WithTimeout(context.Background(), cancelPatience)
	defer stop()
	// The connection is closed either way; this only makes the server quick.
	_ = pgwire.Cancel(ctx, s.cfg, s.backend.PID, s.backend.Secret)
}

// fail makes the session unusable.
func (s *Session) fail(err error) error {
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("the server closed the connection: %w", io.ErrUnexpectedEOF)
	}
	if s.broken == nil {
		s.broken = err
	}
	return err
}

// read returns the next message but notices and parameters. The body is valid
// until the next read.
func (s *Session) read() (typ byte, body []byte, err error) {
	for {
		for s.w-s.r < pgwire.HeaderLen {
			if err := s.fill(pgwire.HeaderLen); err != nil {
				return 0, nil, err
			}
		}
		typ, n, _ := pgwire.Peek(s.buf[s.r:s.w])
		if n < pgwire.HeaderLen || n > maxMessage {
			return 0, nil, s.fail(pgwire.ErrMalformed)
		}
		for s.w-s.r < n {
			if err := s.fill(n); err != nil {
				return 0, nil, err
			}
		}
		body = s.buf[s.r+pgwire.HeaderLen : s.r+n]
		s.r += n
		switch typ {
		case pgwire.ServerNotice:
			s.Notices++
			if e, err := pgwire.ParseError(body); err == nil {
				s.Notice = e
			}
		case pgwire.ServerParameterStatus, pgwire.ServerNotification:
		default:
			return typ, body, nil
		}
	}
}

// fill reads more into the buffer, after making room for a message of n bytes.
func (s *Session) fill(n int) error {
	if s.r > 0 && (s.r == s.w || s.r+n > len(s.buf)) {
		s.w = copy(s.buf, s.buf[s.r:s.w])
		s.r = 0
	}
	if s.w == len(s.buf) {
		// Grown step by step as bytes come: a length alone takes no memory.
		grown := make([]byte, min(n, 2*len(s.buf)))
		copy(grown, s.buf[:s.w])
		s.buf = grown
	}
	began := time.Now()
	m, err := s.receive(s.buf[s.w:])
	s.Waited += time.Since(began)
	s.w += m
	if m == 0 && err != nil {
		return s.fail(err)
	}
	return nil
}

// ErrorCode returns the SQLSTATE of an error of the server, else "".
func ErrorCode(err error) string { return pgwire.CodeOf(err) }
