// Package mysql has what backup and restore of MySQL and MariaDB share: sessions that move rows
// in bulk, the text format of rows, names and literals in SQL, parsed definitions, and
// checksums of rows.
//
// Rows are stored in the default format of LOAD DATA: a line for each row, tabs between values,
// \N for NULL, a backslash before characters that have a meaning. Strings are bytes in the
// column's own character set. They are neither converted nor validated in either direction, so
// every value is restored exactly.
package mysql

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/wire/mywire"
)

const (
	// bufferSize is the initial size of a session's read buffer, in bytes. It grows to the size
	// of the longest row.
	bufferSize = 256 << 10

	// maxMessage limits the size of a message from the server: the largest possible
	// max_allowed_packet, and some room.
	maxMessage = 1<<30 + 1<<20

	// sessionCaps are the capabilities that a session requests: those that keep responses short
	// and allow it to send files.
	sessionCaps = mywire.CapLongFlag | mywire.CapIgnoreSigpipe | mywire.CapTransactions | mywire.CapReserved | mywire.CapMultiResults |
		mywire.CapPluginAuthLenenc | mywire.CapConnectAttrs | mywire.CapLongPassword | mywire.CapDeprecateEOF | mywire.CapLocalFiles
)

// Session is a connection that is logged in. It is used by one goroutine at a time. After the
// context of a statement has ended, or the connection has failed, it can only be closed.
type Session struct {
	server  *mywire.Server
	conn    net.Conn
	version int

	buf    []byte // buf[r:w] was read and is not used yet
	r, w   int
	seq    byte // of the next packet from the server
	broken error

	// Waited is the total time spent waiting for bytes from the server.
	Waited time.Duration
}

// settings are the settings of every session of a backup or restore, so that rows read the same
// regardless of the server's configuration. Results contain the bytes that columns hold.
const settings = "SET NAMES utf8mb4, character_set_results = binary, time_zone = '+00:00', sql_quote_show_create = 1, " +
	"sql_mode = '" + Mode + "', autocommit = 1, completion_type = NO_CHAIN"

// optionalSettings are settings that prevent timeouts, truncated responses, and definitions that are
// rejected or changed. Not every server has all of them, or lets every account set them.
const optionalSettings = "wait_timeout = 2147483, net_write_timeout = 86400, net_read_timeout = 86400, innodb_lock_wait_timeout = 86400, " +
	"sql_safe_updates = 0, sql_notes = 0, max_error_count = 65535, lc_time_names = 'en_US', group_concat_max_len = 67108864, " +
	"sql_select_limit = 18446744073709551615, sql_big_selects = ON, innodb_strict_mode = OFF, explicit_defaults_for_timestamp = ON, "

// optionalMariaDB and optionalMySQL are those of one server family.
const (
	optionalMariaDB = "max_statement_time = 0, query_cache_type = OFF, idle_transaction_timeout = 0, " +
		"idle_readonly_transaction_timeout = 0, idle_write_transaction_timeout = 0, alter_algorithm = 'DEFAULT'"
	optionalMySQL = "max_execution_time = 0, information_schema_stats_expiry = 0, sql_require_primary_key = OFF, " +
		"sql_generate_invisible_primary_key = OFF, show_gipk_in_create_table_and_information_schema = ON"
)

// Mode is the sql_mode of sessions: a zero in an AUTO_INCREMENT column stays zero, and invalid
// dates are accepted.
const Mode = "NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES"

// Connect logs in and applies the session's settings. database replaces that of cfg; "" selects
// none.
func Connect(ctx context.Context, cfg mywire.ConnectConfig, database string) (*Session, error) {
	// The database is selected by a statement, because the server may interpret the name in the
	// login in another character set.
	cfg.Database, cfg.Charset, cfg.Caps = "", mywire.CharsetUTF8MB4, sessionCaps
	server, err := mywire.Connect(ctx, cfg)
	if err != nil {
		return nil, err
	}
	s := &Session{server: server, conn: server.Conn, buf: make([]byte, bufferSize)}
	s.version = versionNumber(server.Greeting.Version)
	if err := s.settle(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("prepare session on %s: %w", cfg.Address, err), s.Close())
	}
	if database != "" {
		if err := s.Exec(ctx, "USE "+Ident(database)); err != nil {
			return nil, errors.Join(fmt.Errorf("use database %s: %w", database, err), s.Close())
		}
	}
	return s, nil
}

// settle applies the session's settings, and as many optionalSettings as the server accepts.
func (s *Session) settle(ctx context.Context) error {
	// The server families have different names for the variable in the second statement.
	for _, sql := range []string{settings, "SET SESSION TRANSACTION READ WRITE"} {
		if err := s.Exec(ctx, sql); err != nil {
			return err
		}
	}
	all := optionalSettings + optionalMySQL
	if s.IsMariaDB() {
		all = optionalSettings + optionalMariaDB
	}
	err := s.Exec(ctx, "SET "+all)
	if err == nil || s.broken != nil {
		return err
	}
	for one := range strings.SplitSeq(all, ", ") {
		// Variables that this server does not have, or that a session cannot set.
		const unknown, global, readOnly = 1193, 1229, 1238
		if err := s.Exec(ctx, "SET "+one); err != nil && !Denied(err) && !slices.Contains([]uint16{unknown, global, readOnly}, ErrorCode(err)) {
			return err
		}
	}
	return nil
}

// versionNumber converts "5.5.5-10.11.19-MariaDB" to 101119; 0 if v is not a version.
func versionNumber(v string) int {
	v = strings.TrimPrefix(v, "5.5.5-") // the prefix of MariaDB 10
	n, parts := 0, strings.SplitN(v, ".", 3)
	for i := range 3 {
		digits := ""
		if i < len(parts) {
			digits = parts[i][:len(parts[i])-len(strings.TrimLeft(parts[i], "0123456789"))]
		}
		part, err := strconv.Atoi(digits)
		if err != nil && digits != "" {
			return 0
		}
		n = n*100 + part
	}
	return n
}

// IsMariaDB reports whether the server is a MariaDB.
func (s *Session) IsMariaDB() bool { return s.server.IsMariaDB() }

// Version returns the server's version as a number, such as 101119.
func (s *Session) Version() int { return s.version }

// VersionText returns the server's version as a string.
func (s *Session) VersionText() string {
	return strings.TrimPrefix(s.server.Greeting.Version, "5.5.5-")
}

// Broken returns why the session cannot be used any more, or nil.
func (s *Session) Broken() error { return s.broken }

// Close ends the session. The server rolls back an open transaction.
func (s *Session) Close() error {
	if s.broken == nil {
		s.broken = net.ErrClosed
		_ = s.conn.SetWriteDeadline(time.Now().Add(time.Second))
		// The server also notices that the connection is closed.
		_, _ = s.conn.Write(mywire.AppendQuit(nil))
	}
	if err := s.conn.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// ErrorCode returns the server's error number in err, or 0 if there is none.
func ErrorCode(err error) uint16 { return mywire.CodeOf(err) }

// Outcome is the server's response to a statement without rows.
type Outcome struct {
	Affected uint64
	Warnings int
	Info     string // such as "Records: 3  Deleted: 0  Skipped: 0  Warnings: 0"
}

// Exec runs a statement and discards its rows. After an error from the server, which is a
// *mywire.Error, the session remains usable.
func (s *Session) Exec(ctx context.Context, sql string) error {
	_, err := s.Run(ctx, sql, nil, nil)
	return err
}

// Query runs a statement and passes each row to yield, values as text and NULL as "". yield may
// keep the slice.
func (s *Session) Query(ctx context.Context, sql string, yield func(row []string) error) error {
	_, err := s.Run(ctx, sql, func(values [][]byte) error {
		row := make([]string, len(values))
		for i, v := range values {
			row[i] = string(v)
		}
		return yield(row)
	}, nil)
	return err
}

// QueryNamed is Query with the values by the lower-case names of their columns.
func (s *Session) QueryNamed(ctx context.Context, sql string, yield func(row map[string]string) error) error {
	var names []string
	_, err := s.run(ctx, sql, func(name string) { names = append(names, strings.ToLower(name)) }, func(values [][]byte) error {
		row := make(map[string]string, len(values))
		for i, v := range values {
			row[names[i]] = string(v)
		}
		return yield(row)
	}, nil)
	return err
}

// Row runs a statement that returns exactly one row.
func (s *Session) Row(ctx context.Context, sql string) ([]string, error) {
	var rows [][]string
	err := s.Query(ctx, sql, func(row []string) error {
		rows = append(rows, row)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(rows) != 1 || len(rows[0]) == 0 {
		return nil, fmt.Errorf("expected one row, got %d", len(rows))
	}
	return rows[0], nil
}

// Run runs a statement. rows, if not nil, gets the values of each row, NULL as nil, valid until
// it returns; after an error of rows, the rest of the response is skipped and the session
// remains usable. file is what the server may request with LOAD DATA LOCAL; if it is nil, the
// server gets an empty file and Run returns an error.
func (s *Session) Run(ctx context.Context, sql string, rows func(values [][]byte) error, file io.Reader) (Outcome, error) {
	return s.run(ctx, sql, nil, rows, file)
}

func (s *Session) run(ctx context.Context, sql string, names func(string), rows func([][]byte) error, file io.Reader) (out Outcome, err error) {
	if s.broken != nil {
		return out, fmt.Errorf("the session cannot be used any more: %w", s.broken)
	}
	if err := context.Cause(ctx); err != nil {
		return out, err
	}
	stop := context.AfterFunc(ctx, func() { _ = s.conn.SetDeadline(time.Unix(1, 0)) })
	defer func() {
		if !stop() && errors.Is(err, os.ErrDeadlineExceeded) {
			err = context.Cause(ctx)
		}
	}()
	packet := mywire.AppendQuery(nil, s.server.Caps, sql)
	if _, err := s.conn.Write(packet); err != nil {
		return out, s.fail(err)
	}
	s.seq = mywire.NextSeq(packet)
	a := answer{s: s, names: names, rows: rows, file: file}
	for {
		more, err := a.result()
		if err != nil || !more {
			return a.out, err
		}
	}
}

// fail marks the session as broken, and closes its connection: while it is open, the server
// keeps the locks of the transaction.
func (s *Session) fail(err error) error {
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("the server closed the connection: %w", io.ErrUnexpectedEOF)
	}
	if s.broken == nil {
		s.broken = err
		_ = s.conn.Close() // err says more
	}
	return err
}

// read returns the payload of the next message, valid until the next read.
func (s *Session) read() ([]byte, error) {
	for {
		n, whole := mywire.Message(s.buf[s.r:s.w])
		if n > maxMessage {
			return nil, s.fail(fmt.Errorf("message of %d bytes: %w", n, mywire.ErrMalformed))
		}
		if whole && s.w-s.r >= n {
			packet := s.buf[s.r : s.r+n]
			_, seq, _ := mywire.Peek(packet)
			payload, next, err := mywire.Payload(packet)
			// A server that is being shut down reports that out of sequence.
			if err == nil && seq != s.seq && !mywire.IsError(payload) {
				err = fmt.Errorf("packet %d where %d is expected: %w", seq, s.seq, mywire.ErrMalformed)
			}
			if err != nil {
				return nil, s.fail(err)
			}
			s.r += n
			s.seq = next
			return payload, nil
		}
		if err := s.fill(n); err != nil {
			return nil, err
		}
	}
}

// fill reads more, into a buffer with room for need bytes from s.r on.
func (s *Session) fill(need int) error {
	if s.r > 0 && (s.r == s.w || len(s.buf)-s.r < need) {
		s.w = copy(s.buf, s.buf[s.r:s.w])
		s.r = 0
	}
	if len(s.buf) < need {
		grown := make([]byte, max(need, 2*len(s.buf)))
		s.w = copy(grown, s.buf[s.r:s.w])
		s.r, s.buf = 0, grown
	}
	if s.w == len(s.buf) {
		s.w = copy(s.buf, s.buf[s.r:s.w])
		s.r = 0
	}
	began := time.Now()
	n, err := s.conn.Read(s.buf[s.w:])
	s.Waited += time.Since(began)
	s.w += n
	if err != nil && n == 0 {
		return s.fail(err)
	}
	return nil
}
