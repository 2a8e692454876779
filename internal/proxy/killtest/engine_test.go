package killtest_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/wire/mywire"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// mortal is a server of the lab.
type mortal interface {
	Kill()
	Restart(context.Context) error
	Pause()
	Resume()
	Addr() string
	LogTail(int) string
}

// A session is one client's connection. Its statements have ? for parameters.
type session interface {
	// exec runs a statement and returns how many rows it changed.
	exec(ctx context.Context, text string, args ...any) (int64, error)
	// rows runs a query and calls each with its rows.
	rows(ctx context.Context, each func(scan func(...any) error) error, text string, args ...any) error
	// alive reports whether it can take another statement.
	alive() bool
	close()
}

// An engine is one kind of server and its clients.
type engine struct {
	name  string
	lanes []string // kinds of lanes, as the metrics name them
	start func(testing.TB) mortal
	// flags point weir at the server behind address and have it listen.
	flags func(m mortal, address, listen string) []string
	// dial opens a session at address; texts has values put into statements,
	// otherwise they are prepared.
	dial   func(ctx context.Context, address string, texts bool) (session, error)
	concat string // an expression: entries, with ? behind it
	text   string // the type of long texts
}

const database = "kills"

var engines = []engine{
	{
		name: "postgres", lanes: []string{"rows", "solo"}, concat: "entries || ?", text: "text",
		start: func(tb testing.TB) mortal { return labtest.Postgres(tb, lab.PostgresConfig{}) },
		flags: func(_ mortal, address, listen string) []string {
			return []string{"--postgres", "postgres://postgres@" + address + "/postgres?sslmode=disable", "--listen-postgres", listen}
		},
		dial: dialPostgres,
	},
	{
		name: "mariadb", lanes: []string{"rows", "transaction"}, concat: "CONCAT(entries, ?)", text: "mediumtext",
		start: startMariaDB, dial: dialMariaDB,
		flags: func(m mortal, address, listen string) []string {
			dsn, err := url.Parse(m.(*lab.MySQL).DSN(database))
			if err != nil {
				panic(err)
			}
			dsn.Host = address
			return []string{"--mysql", dsn.String(), "--listen-mysql", listen}
		},
	},
}

type pgSession struct {
	*pgx.Conn
	texts bool
}

func dialPostgres(ctx context.Context, address string, texts bool) (session, error) {
	cfg, err := pgx.ParseConfig("postgres://postgres@" + address + "/postgres?sslmode=disable")
	if err != nil {
		return nil, err
	}
	if texts {
		cfg.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return &pgSession{conn, texts}, nil
}

// numbered has the parameters of a statement in PostgreSQL's way.
func numbered(text string) string {
	var b strings.Builder
	n := 0
	for _, c := range []byte(text) {
		if c == '?' {
			n++
			fmt.Fprintf(&b, "$%d", n)
			continue
		}
		b.WriteByte(c)
	}
	return b.String()
}

func (s *pgSession) exec(ctx context.Context, text string, args ...any) (int64, error) {
	tag, err := s.Exec(ctx, numbered(text), args...)
	if err == nil && text == "COMMIT" && tag.String() != "COMMIT" {
		err = &pgconn.PgError{Code: pgwire.CodeInFailedTransaction, Message: "COMMIT was answered with " + tag.String()}
	}
	return tag.RowsAffected(), err
}

func (s *pgSession) rows(ctx context.Context, each func(func(...any) error) error, text string, args ...any) error {
	rows, err := s.Query(ctx, numbered(text), args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := each(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

func (s *pgSession) alive() bool { return !s.IsClosed() }

// close hangs up without a word of the protocol, as a process that dies does.
func (s *pgSession) close() { _ = s.PgConn().Conn().Close() }

type mySession struct {
	*sql.Conn
	pool *sql.DB
	lost bool
}

func startMariaDB(tb testing.TB) mortal {
	tb.Helper()
	begin := labtest.MariaDB
	if os.Getenv("WEIR_TEST_FLAVOR") == "mysql" {
		begin = labtest.MySQL
	}
	m := begin(tb, lab.MySQLConfig{Light: true})
	db, err := sql.Open("mysql", "root@tcp("+m.Addr()+")/")
	if err != nil {
		tb.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(tb.Context(), "CREATE DATABASE "+database); err != nil {
		tb.Fatal(err)
	}
	return m
}

func dialMariaDB(ctx context.Context, address string, texts bool) (session, error) {
	return dialMariaDBAs(ctx, "root", address, texts)
}

func dialMariaDBAs(ctx context.Context, user, address string, texts bool) (session, error) {
	cfg := mysql.NewConfig()
	cfg.User, cfg.Net, cfg.Addr, cfg.DBName, cfg.InterpolateParams = user, "tcp", address, database, texts
	cfg.Logger = &mysql.NopLogger{} // every error is returned as well
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, err
	}
	pool := sql.OpenDB(connector)
	conn, err := pool.Conn(ctx)
	if err != nil {
		return nil, errors.Join(err, pool.Close())
	}
	return &mySession{Conn: conn, pool: pool}, nil
}

// note remembers whether the connection can be used after err.
func (s *mySession) note(err error) error {
	var e *mysql.MySQLError
	s.lost = s.lost || err != nil && !errors.As(err, &e)
	return err
}

func (s *mySession) exec(ctx context.Context, text string, args ...any) (int64, error) {
	res, err := s.ExecContext(ctx, text, args...)
	if err != nil {
		return 0, s.note(err)
	}
	n, err := res.RowsAffected()
	return n, s.note(err)
}

func (s *mySession) rows(ctx context.Context, each func(func(...any) error) error, text string, args ...any) error {
	rows, err := s.QueryContext(ctx, text, args...)
	if err != nil {
		return s.note(err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := each(rows.Scan); err != nil {
			return s.note(err)
		}
	}
	return s.note(rows.Err())
}

func (s *mySession) alive() bool { return !s.lost }

func (s *mySession) close() {
	_ = s.Conn.Close()
	_ = s.pool.Close()
}

// judge says what an error leaves open. What the server or weir answers is taken at
// its word: that weir cannot reach the server, or that too many wait, means that the
// statement was not run.
func judge(err error) outcome {
	var pg *pgconn.PgError
	var my *mysql.MySQLError
	switch {
	case err == nil:
		return acked
	case errors.As(err, &pg):
		switch pg.Code {
		case pgwire.CodeConnectionUnable, pgwire.CodeTooManyConnections, pgwire.CodeQueryCanceled:
			return refused
		case pgwire.CodeCompletionUnknown:
			return unknown
		}
		switch pg.Code[:2] {
		case "22", "23", "25", "40", "42", "55":
			return refused
		}
	case errors.As(err, &my):
		switch my.Number {
		case mywire.ErrNetRead, mywire.ErrUnknown, mywire.ErrServerShutdown, mywire.ErrMariaConnectionKilled:
			return unknown
		}
		if strings.Contains(my.Message, "whether the") {
			return unknown
		}
		return refused
	}
	return unknown
}

func TestJudge(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want outcome
	}{
		{nil, acked},
		{errors.New("unexpected EOF"), unknown},
		{&pgconn.PgError{Code: "23505"}, refused},
		{&pgconn.PgError{Code: "40P01"}, refused},
		{&pgconn.PgError{Code: "40003"}, unknown},
		{&pgconn.PgError{Code: "08006"}, unknown},
		{&pgconn.PgError{Code: "08001"}, refused},
		{&pgconn.PgError{Code: "57P02"}, unknown},
		{&mysql.MySQLError{Number: 1062}, refused},
		{&mysql.MySQLError{Number: 1158}, unknown},
		{&mysql.MySQLError{Number: 1213, Message: "Deadlock (COMMIT of a group of weir; whether the statement took effect is unknown)"}, unknown},
		{mysql.ErrInvalidConn, unknown},
	} {
		if got := judge(fmt.Errorf("exec: %w", tt.err)); tt.err != nil && got != tt.want {
			t.Errorf("%v: %d, want %d", tt.err, got, tt.want)
		}
	}
	if got := numbered("UPDATE t SET a = ? WHERE b = ?"); got != "UPDATE t SET a = $1 WHERE b = $2" {
		t.Errorf("numbered: %s", got)
	}
}
