package process_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weirdb/weir/internal/cli/clitest"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
)

// waiting awaits that so many clients of the present process wait for an answer.
func (s *succession) waiting(n int) {
	s.t.Helper()
	testkit.Eventually(s.t, "clients that wait", func() bool {
		_, body := clitest.Get(s.t, s.now.admin+"metrics")
		for line := range strings.Lines(body) {
			if strings.HasPrefix(line, "weir_proxy_clients{") && strings.Contains(line, `state="active"`) {
				return strings.HasSuffix(strings.TrimSpace(line), fmt.Sprintf("} %d", n))
			}
		}
		return false
	})
}

// TestTakeoverUnderPause: statements that PAUSE holds back are handed over with their
// sessions, and run once when the next process resumes.
func TestTakeoverUnderPause(t *testing.T) {
	pg := sharedPostgres.Get(t)
	s := newPostgresSuccession(t, pg)
	ctx, cancel := context.WithTimeout(t.Context(), labtest.Patience)
	defer cancel()
	for _, text := range []string{"DROP TABLE IF EXISTS heirs", "CREATE TABLE heirs (id bigint)"} {
		if _, err := s.connect().Exec(ctx, text); err != nil {
			t.Fatal(err)
		}
	}
	insert := func(text string) func(conn *pgx.Conn) error {
		return func(conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, text, 1)
			return err
		}
	}
	const prepared = "PREPARED"
	work := map[string]func(conn *pgx.Conn) error{
		"a read":          func(conn *pgx.Conn) error { return conn.QueryRow(ctx, "SELECT count(*) FROM heirs").Scan(new(int)) },
		"a write":         insert("INSERT INTO heirs VALUES ($1)"),
		"a grouped write": insert("/* batch */ INSERT INTO heirs VALUES ($1)"),
		"a transaction": func(conn *pgx.Conn) error {
			return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "INSERT INTO heirs VALUES ($1)", 1)
				return err
			})
		},
		prepared: func(conn *pgx.Conn) error {
			_, err := conn.Prepare(ctx, "mine", "SELECT $1::int + 1 AS more")
			return err
		},
	}
	conns := make(map[string]*pgx.Conn)
	for name, do := range work {
		conns[name] = s.connect()
		if name == prepared {
			continue
		}
		for range 3 { // known, so that it takes the way that it takes later
			if err := do(conns[name]); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
	console := func(command string) {
		t.Helper()
		conn, err := pgx.Connect(ctx, fmt.Sprintf("postgres://postgres@%s/weir?sslmode=disable", s.address))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close(ctx) }()
		if _, err := conn.Exec(ctx, command, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
	}
	console("PAUSE")
	type outcome struct {
		name string
		err  error
	}
	ended := make(chan outcome, len(work))
	for name, do := range work {
		go func() { ended <- outcome{name, do(conns[name])} }()
	}
	s.waiting(len(work))
	before := s.next()
	s.over(before)
	if text := before.log.Seen.String(); !strings.Contains(text, `"ended":0`) {
		t.Errorf("the process before: %s", text)
	}
	s.waiting(len(work))
	console("RESUME")
	for range work {
		if o := <-ended; o.err != nil {
			t.Errorf("%s: %v", o.name, o.err)
		}
	}
	var sum int
	if err := conns[prepared].QueryRow(ctx, "mine", 1).Scan(&sum); err != nil || sum != 2 {
		t.Errorf("what was prepared says %d, %v", sum, err)
	}
	var rows int
	if err := s.connect().QueryRow(ctx, "SELECT count(*) FROM heirs").Scan(&rows); err != nil || rows != 3*4 {
		t.Errorf("%d rows, %v; want 12", rows, err)
	}
}

// TestTakeoverUnderPauseOfMySQL is that for MariaDB.
func TestTakeoverUnderPauseOfMySQL(t *testing.T) {
	m := sharedMariaDB.Get(t)
	ctx, cancel := context.WithTimeout(t.Context(), labtest.Patience)
	defer cancel()
	direct, err := sql.Open("mysql", "root@tcp("+m.Addr()+")/")
	if err != nil {
		t.Fatal(err)
	}
	defer direct.Close()
	for _, text := range []string{"DROP DATABASE IF EXISTS heirs", "CREATE DATABASE heirs", "CREATE TABLE heirs.heirs (id bigint AUTO_INCREMENT PRIMARY KEY, n bigint)"} {
		if _, err := direct.ExecContext(ctx, text); err != nil {
			t.Fatal(err)
		}
	}
	s := newSuccession(t, "WEIR_MYSQL="+m.DSN("heirs"), "--listen-mysql")
	work := map[string]string{
		"a read": "SELECT COUNT(*) FROM heirs", "a write": "INSERT INTO heirs (n) VALUES (1)",
		"a grouped write": "/* batch */ INSERT INTO heirs (n) VALUES (2)", "a transaction": "BEGIN",
	}
	conns := make(map[string]*sql.Conn)
	for name, text := range work {
		conns[name] = s.mysqlConn()
		for range 3 {
			if _, err := conns[name].ExecContext(ctx, text); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		if name == "a transaction" {
			if _, err := conns[name].ExecContext(ctx, "ROLLBACK"); err != nil {
				t.Fatal(err)
			}
		}
	}
	console := func(command string) {
		t.Helper()
		db, err := sql.Open("mysql", "root@tcp("+s.address+")/weir?interpolateParams=true")
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		if _, err := db.ExecContext(ctx, command); err != nil {
			t.Fatal(err)
		}
	}
	console("PAUSE")
	type outcome struct {
		name string
		err  error
	}
	ended := make(chan outcome, len(work))
	for name, text := range work {
		go func() {
			_, err := conns[name].ExecContext(ctx, text)
			ended <- outcome{name, err}
		}()
	}
	s.waiting(len(work))
	before := s.next()
	s.over(before)
	if text := before.log.Seen.String(); !strings.Contains(text, `"ended":0`) {
		t.Errorf("the process before: %s", text)
	}
	s.waiting(len(work))
	console("RESUME")
	for range work {
		if o := <-ended; o.err != nil {
			t.Errorf("%s: %v", o.name, o.err)
		}
	}
	if _, err := conns["a transaction"].ExecContext(ctx, "INSERT INTO heirs (n) VALUES (3)"); err != nil {
		t.Error(err)
	}
	if _, err := conns["a transaction"].ExecContext(ctx, "ROLLBACK"); err != nil {
		t.Error(err)
	}
	var rows int
	if err := direct.QueryRowContext(ctx, "SELECT COUNT(*) FROM heirs.heirs").Scan(&rows); err != nil || rows != 4*2 {
		t.Errorf("%d rows, %v; want 8", rows, err)
	}
}
