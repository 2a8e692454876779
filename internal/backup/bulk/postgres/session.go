// Package postgres has what backup and restore of PostgreSQL share: sessions that move rows in
// bulk, names and literals in SQL, PostgreSQL's own pg_dump and the table of contents that it
// writes, and checksums of rows.
//
// A Session uses only the simple query protocol. Its COPY path touches each byte as little as
// possible: message headers are removed in the read buffer, and the content is passed on up to
// a quarter of a megabyte at a time.
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
	// bufferSize is the size of a session's read buffer and of its write buffer, in bytes.
	// Smaller buffers cost a backup as much (docs/results/speed-backup.md).
	bufferSize = 256 << 10

	// maxMessage limits the size of a message from the server: PostgreSQL's own limit of 1 GiB,
	// and room for the header.
	maxMessage = 1<<30 + 64

	// cancelPatience limits the attempt to cancel a statement on the server.
	cancelPatience = 5 * time.Second

	// startPatience is how long weir waits for a server that is starting or recovering from a
	// crash. It tries again after pauses from firstPause to lastPause.
	startPatience = 2 * time.Minute
	firstPause    = 50 * time.Millisecond
	lastPause     = 2 * time.Second
)

// Session is a connection that is logged in. It is used by one goroutine at a time. After the
// context of a statement has ended, or the connection has failed, it can only be closed.
type Session struct {
	cfg     pgwire.ConnectConfig
	backend *pgwire.Backend
	conn    net.Conn
	version int

	buf    []byte // buf[r:w] was read and is not used yet
	r, w   int
	out    []byte // for COPY FROM STDIN; allocated at first use
	broken error

	planned string // the statement of Fingerprint that is prepared

	interrupted atomic.Bool // the context of a statement has ended
	gathers     bool        // a read waits for gatherBytes

	// Waited is the total time spent waiting for bytes from the server.
	Waited time.Duration

	// Notices counts warnings of the server since the login; Notice is the last one.
	Notices int
	Notice  *pgwire.Error
}

// Settings are the settings of every session of a backup or restore, so that rows read the same
// regardless of the configuration of server, database and role, and no timeout ends the
// session. They are those of pg_dump and more.
//
// The search path comes first: others may have created functions in a schema there, and the
// session has the rights of the backup.
const Settings = `SELECT pg_catalog.set_config('search_path', '', false); SET client_encoding = 'UTF8'; SET DateStyle = 'ISO, YMD'; SET IntervalStyle = 'postgres'; SET TimeZone = 'UTC'; ` +
	`SET extra_float_digits = 3; SET bytea_output = 'hex'; SET xmloption = 'content'; SET standard_conforming_strings = on; ` +
	`SET default_transaction_read_only = off; SET default_transaction_isolation = 'read committed'; SET default_transaction_deferrable = off; ` +
	`SET statement_timeout = 0; SET lock_timeout = 0; SET idle_in_transaction_session_timeout = 0; ` +
	`SET array_nulls = on; SET quote_all_identifiers = off; SET transform_null_equals = off; SET escape_string_warning = off; ` +
	`SET synchronize_seqscans = off; SET row_security = off; SET client_min_messages = warning; ` +
	`SELECT pg_catalog.set_config(name, '0', false) FROM (VALUES ('idle_session_timeout'), ('transaction_timeout')) AS v (name) WHERE pg_catalog.current_setting(name, true) IS NOT NULL`

// MoneySetting makes values of type money read the same everywhere: their text depends on the
// locale. AttrMoney is the attribute of a manifest whose rows and definitions were written with
// this setting, and are read with it.
const (
	MoneySetting = "SET lc_monetary = 'C'"
	AttrMoney    = "lc_monetary"
)

// NoJIT is for sessions that read catalogs. Their queries are long, and with many tables the
// server would spend more time on compiling than on running them: 7.8 of 15.3 s for the
// definitions of 2,000 tables.
const NoJIT = "SET jit = off"

// Connect logs in and applies Settings. database replaces that of cfg unless it is empty.
func Connect(ctx context.Context, cfg pgwire.ConnectConfig, database string) (*Session, error) {
	if database != "" {
		cfg.Database = database
	}
	params := make([]pgwire.Param, 0, len(cfg.Params)+1)
	named := false
	for _, p := range cfg.Params {
		named = named || p.Name == "application_name"
		// A backup's rows are UTF-8, whatever the DSN sets for other programs.
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

// Version returns the server's version as a number, such as 150018.
func (s *Session) Version() int { return s.version }

// VersionText returns the server's version as a string.
func (s *Session) VersionText() string { return s.backend.Param("server_version") }

// Encoding returns the session's client encoding: UTF8, whatever the database's own is, except
// for databases in SQL_ASCII: the server cannot convert their bytes and would reject them as
// UTF-8, so they are moved unchanged.
func (s *Session) Encoding() string {
	if s.backend.Param("server_encoding") == "SQL_ASCII" {
		return "SQL_ASCII"
	}
	return "UTF8"
}

// PID returns the process id of the server's backend.
func (s *Session) PID() uint32 { return s.backend.PID }

// Database returns the session's database.
func (s *Session) Database() string {
	if s.cfg.Database != "" {
		return s.cfg.Database
	}
	return s.cfg.User
}

// Broken returns why the session cannot be used any more, or nil.
func (s *Session) Broken() error { return s.broken }

// Close ends the session. The server rolls back an open transaction.
func (s *Session) Close() error {
	if s.broken == nil {
		s.broken = net.ErrClosed
		_ = s.conn.SetWriteDeadline(time.Now().Add(time.Second))
		// The server also notices that the connection is closed.
		_, _ = s.conn.Write(pgwire.AppendTerminate(nil))
	}
	err := s.conn.Close()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// Exec runs statements and discards their rows. After an error from the server, which is a
// *pgwire.Error, the session remains usable.
func (s *Session) Exec(ctx context.Context, sql string) error {
	_, err := s.run(ctx, sql, func([]string) error { return nil })
	return err
}

// Query runs a statement and passes each row to yield, values as text and NULL as "". yield may
// keep the slice.
func (s *Session) Query(ctx context.Context, sql string, yield func(row []string) error) error {
	_, err := s.run(ctx, sql, yield)
	return err
}

// Row runs a statement that returns exactly one row.
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

// run sends a query and reads up to ReadyForQuery. After an error of yield, the rest of the
// response is skipped and the session remains usable.
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
			// A COPY belongs in another method; the server must not wait for data.
			if _, err := s.conn.Write(pgwire.AppendCopyFail(nil, "no data")); err != nil {
				return "", s.fail(err)
			}
		case pgwire.ServerReady:
			return tag, failed
		}
	}
}

// begin sends a query, with the connection bound to ctx until release.
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
		// Interrupted, perhaps between two statements, in which case the deadline would affect
		// the next one: the session is broken either way.
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

// cancel cancels the statement on the server: an index build would otherwise continue to its
// end and hold its locks.
func (s *Session) cancel() {
	if s.backend.PID == 0 {
		return
	}
	ctx, stop := context.WithTimeout(context.Background(), cancelPatience)
	defer stop()
	// The connection is closed anyway; this only makes the server stop sooner.
	_ = pgwire.Cancel(ctx, s.cfg, s.backend.PID, s.backend.Secret)
}

// fail marks the session as broken.
func (s *Session) fail(err error) error {
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("the server closed the connection: %w", io.ErrUnexpectedEOF)
	}
	if s.broken == nil {
		s.broken = err
	}
	return err
}

// read returns the next message other than notices and parameters. The body is valid until the
// next read.
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
		// Grow step by step as bytes arrive: an announced length alone takes no memory.
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

// ErrorCode returns the SQLSTATE of an error from the server, or "".
func ErrorCode(err error) string { return pgwire.CodeOf(err) }
