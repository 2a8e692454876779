package process_test

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// mysqlConn is one session through weir.
func (s *succession) mysqlConn() *sql.Conn {
	s.t.Helper()
	cfg := mysql.NewConfig()
	cfg.User, cfg.Net, cfg.Addr, cfg.DBName = "root", "tcp", s.address, "heirs"
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	db := sql.OpenDB(connector)
	s.t.Cleanup(func() { _ = db.Close() })
	conn, err := db.Conn(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	return conn
}

// The work of clients of MariaDB. Each writes a row with the number.
var mysqlHeirsWork = map[string]func(ctx context.Context, conn *sql.Conn, n int64) error{
	"text": func(ctx context.Context, conn *sql.Conn, n int64) error {
		_, err := conn.ExecContext(ctx, fmt.Sprintf("INSERT INTO heirs (n) VALUES (%d)", n))
		return err
	},
	"batch": func(ctx context.Context, conn *sql.Conn, n int64) error {
		_, err := conn.ExecContext(ctx, fmt.Sprintf("/* batch */ INSERT INTO heirs (n) VALUES (%d)", n))
		return err
	},
	"transaction": func(ctx context.Context, conn *sql.Conn, n int64) error {
		tx, err := conn.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "DO SLEEP(0.01)"); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO heirs (n) VALUES (?)", n); err != nil {
			return err
		}
		return tx.Commit()
	},
	"last id": func(ctx context.Context, conn *sql.Conn, n int64) error {
		res, err := conn.ExecContext(ctx, "INSERT INTO heirs (n) VALUES (?)", n)
		if err != nil {
			return err
		}
		want, err := res.LastInsertId()
		if err != nil {
			return err
		}
		var have int64
		if err := conn.QueryRowContext(ctx, "SELECT LAST_INSERT_ID()").Scan(&have); err != nil || have != want {
			return fmt.Errorf("LAST_INSERT_ID() is %d, want %d: %w", have, want, err)
		}
		return nil
	},
	"settings": func(ctx context.Context, conn *sql.Conn, n int64) error {
		want := 1000 + n
		if _, err := conn.ExecContext(ctx, fmt.Sprintf("SET SESSION max_join_size = %d", want)); err != nil {
			return err
		}
		if _, err := conn.ExecContext(ctx, "INSERT INTO heirs (n) VALUES (?)", n); err != nil {
			return err
		}
		var have int64
		if err := conn.QueryRowContext(ctx, "SELECT @@max_join_size").Scan(&have); err != nil || have != want {
			return fmt.Errorf("max_join_size is %d, want %d: %w", have, want, err)
		}
		return nil
	},
}

// TestTakeoverOfMySQL: clients of MariaDB go through three hand-overs and notice nothing.
func TestTakeoverOfMySQL(t *testing.T) {
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
	s := newSuccession(t, "WEIR_MYSQL="+m.DSN("heirs"), "--listen-mysql", "--pool-size", "40")

	type idler struct {
		conn *sql.Conn
		stmt *sql.Stmt
	}
	var idle []idler
	for i := range 10 {
		conn := s.mysqlConn()
		if _, err := conn.ExecContext(ctx, fmt.Sprintf("SET SESSION max_join_size = %d, sql_mode = 'ANSI_QUOTES'", 500+i)); err != nil {
			t.Fatal(err)
		}
		stmt, err := conn.PrepareContext(ctx, fmt.Sprintf("SELECT ? + %d AS \"sum\"", i))
		if err != nil {
			t.Fatal(err)
		}
		idle = append(idle, idler{conn, stmt})
	}
	warned := s.mysqlConn()
	var numbers atomic.Int64
	var done sync.Map
	var running sync.WaitGroup
	stop, failed := make(chan struct{}), make(chan error, 100)
	var progressed []*atomic.Int64
	begin := func() {
		for name, work := range mysqlHeirsWork {
			for range 3 {
				conn, did := s.mysqlConn(), new(atomic.Int64)
				progressed = append(progressed, did)
				running.Go(func() {
					for {
						select {
						case <-stop:
							return
						default:
						}
						n := numbers.Add(1)
						if err := work(ctx, conn, n); err != nil {
							failed <- fmt.Errorf("%s: %w", name, err)
							return
						}
						done.Store(n, true)
						did.Add(1)
					}
				})
			}
		}
	}
	progress := func() {
		t.Helper()
		for _, did := range progressed {
			goal := did.Load() + 2
			testkit.Eventually(t, "work of every client", func() bool { return did.Load() >= goal || len(failed) > 0 })
		}
	}
	// The first time no client waits for a connection, so the warnings are kept.
	if _, err := warned.ExecContext(ctx, "DROP TABLE IF EXISTS nothing"); err != nil {
		t.Fatal(err)
	}
	s.over(s.next())
	var level, text string
	var code int
	if err := warned.QueryRowContext(ctx, "SHOW WARNINGS").Scan(&level, &code, &text); err != nil || code != 1051 {
		t.Errorf("the warning of before the hand-over is %d %q, %v", code, text, err)
	}
	begin()
	for n := range 2 {
		progress()
		s.over(s.next())
		progress()
		for i, c := range idle {
			var size, sum int
			var mode string
			if err := c.conn.QueryRowContext(ctx, "SELECT @@max_join_size, @@sql_mode").Scan(&size, &mode); err != nil || size != 500+i || mode != "ANSI_QUOTES" {
				t.Errorf("hand-over %d, client %d: max_join_size is %d, sql_mode %q, %v", n, i, size, mode, err)
			}
			if err := c.stmt.QueryRowContext(ctx, 1000).Scan(&sum); err != nil || sum != 1000+i {
				t.Errorf("hand-over %d, client %d: its statement returns %d, %v", n, i, sum, err)
			}
		}
		if err := s.mysqlConn().PingContext(ctx); err != nil {
			t.Errorf("hand-over %d: a new client: %v", n, err)
		}
	}
	close(stop)
	running.Wait()
	close(failed)
	for err := range failed {
		t.Error(err)
	}
	rows, err := direct.QueryContext(ctx, "SELECT n, COUNT(*) FROM heirs.heirs GROUP BY n")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	found := make(map[int64]int)
	for rows.Next() {
		var n int64
		var count int
		if err := rows.Scan(&n, &count); err != nil {
			t.Fatal(err)
		}
		found[n] = count
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	done.Range(func(n, _ any) bool {
		if found[n.(int64)] != 1 {
			t.Errorf("write %d was acknowledged and is there %d times", n, found[n.(int64)])
		}
		return true
	})
}

// TestTakeoverKills: a KILL reaches a client that the process before has kept.
func TestTakeoverKills(t *testing.T) {
	m := sharedMariaDB.Get(t)
	ctx, cancel := context.WithTimeout(t.Context(), labtest.Patience)
	defer cancel()
	s := newSuccession(t, "WEIR_MYSQL="+m.DSN("mysql"), "--listen-mysql")
	connect := func() *mywire.Server {
		t.Helper()
		conn, err := mywire.Connect(ctx, mywire.ConnectConfig{Address: s.address, User: "root", Database: "mysql"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	must := func(conn *mywire.Server, text string) {
		t.Helper()
		if _, err := conn.Exec(ctx, text); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
	stays, moves := connect(), connect()
	must(stays, "BEGIN")
	before := s.next()
	s.taken("mysql", 1)
	ended := make(chan error, 1)
	go func() {
		_, err := stays.Exec(ctx, "SELECT SLEEP(600)")
		ended <- err
	}()
	direct, err := sql.Open("mysql", "root@tcp("+m.Addr()+")/")
	if err != nil {
		t.Fatal(err)
	}
	defer direct.Close()
	testkit.Eventually(t, "a statement under way", func() bool {
		var n int
		return direct.QueryRowContext(ctx, "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE INFO = 'SELECT SLEEP(600)'").Scan(&n) == nil && n == 1
	})
	must(moves, fmt.Sprintf("KILL QUERY %d", stays.Greeting.ConnectionID))
	if err := <-ended; mywire.CodeOf(err) != mywire.ErrQueryInterrupted {
		t.Errorf("a statement that was killed ended with %v", err)
	}
	must(stays, "ROLLBACK")
	s.over(before)
	must(stays, "DO 1")
	if _, err := moves.Exec(ctx, "KILL QUERY 2000000000"); mywire.CodeOf(err) != mywire.ErrNoSuchThread {
		t.Errorf("KILL of nobody: %v", err)
	}
}

// TestTakeoverKeepsTheTrackingList: of which variables a client of MariaDB is told, as
// Connector/J chooses in its first statement, goes with it into the next process; so does
// that another has chosen nothing.
func TestTakeoverKeepsTheTrackingList(t *testing.T) {
	m := sharedMariaDB.Get(t)
	ctx, cancel := context.WithTimeout(t.Context(), labtest.Patience)
	defer cancel()
	s := newSuccession(t, "WEIR_MYSQL="+m.DSN("mysql"), "--listen-mysql")
	connect := func(address string) *mywire.Server {
		t.Helper()
		conn, err := mywire.Connect(ctx, mywire.ConnectConfig{
			Address: address, User: "root", Database: "mysql", Caps: mywire.WantedCaps | mywire.CapSessionTrack, TLSMode: mywire.TLSDisabled,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	// told runs statements, and tells what the client was told in their answers, and
	// which list it is shown in the end.
	told := func(conn *mywire.Server, texts ...string) (out []string) {
		t.Helper()
		for _, text := range texts {
			ok, err := conn.Exec(ctx, text)
			if err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			var changes []string // servers tell of several in any order
			for rest := ok.State; len(rest) > 0; {
				var c mywire.Change
				if c, rest, err = mywire.ParseChange(rest); err != nil {
					t.Fatal(err)
				}
				changes = append(changes, fmt.Sprintf("%d %s=%s", c.Kind, c.Name, c.Value))
			}
			slices.Sort(changes)
			out = append(out, fmt.Sprintf("%s: %q", text, changes))
		}
		rows, err := conn.Query(ctx, "SELECT @@session_track_system_variables")
		if err != nil {
			t.Fatal(err)
		}
		return append(out, rows[0][0].String)
	}
	before := []string{
		"SET sql_mode=CONCAT(@@sql_mode,',STRICT_TRANS_TABLES'),session_track_system_variables = CONCAT(@@global.session_track_system_variables,',lc_time_names'),NAMES utf8mb4",
		"SET lc_time_names = 'de_DE'", "SET max_join_size = 1000",
	}
	after := []string{"SET lc_time_names = 'fr_FR'", "SET max_join_size = 2000", "SET NAMES latin1", "SET time_zone = '+01:00'"}
	chosen, directly := connect(s.address), connect(m.Addr())
	other, otherDirectly := connect(s.address), connect(m.Addr())
	if got, want := fmt.Sprint(told(chosen, before...)), fmt.Sprint(told(directly, before...)); got != want {
		t.Errorf("before the hand-over a client is told\n%s, directly\n%s", got, want)
	}
	told(other, before[1:]...)
	told(otherDirectly, before[1:]...)
	for range 2 {
		s.over(s.next())
		for who, pair := range map[string][2]*mywire.Server{"chosen": {chosen, directly}, "nothing": {other, otherDirectly}} {
			if got, want := fmt.Sprint(told(pair[0], after...)), fmt.Sprint(told(pair[1], after...)); got != want {
				t.Errorf("a client that has %s is told\n%s, directly\n%s", who, got, want)
			}
		}
		after = append(after, before[1:]...)
	}
}

// TestTakeoverCountsRefusedChanges: a session that has guessed passwords goes on with what
// is left of its guesses, and a change that is refused meanwhile does not end it.
func TestTakeoverCountsRefusedChanges(t *testing.T) {
	m := labtest.MariaDB(t, lab.MySQLConfig{Durability: lab.Fast})
	ctx, cancel := context.WithTimeout(t.Context(), labtest.Patience)
	defer cancel()
	s := newSuccession(t, "WEIR_MYSQL="+m.DSN("mysql"), "--listen-mysql")
	conn, err := mywire.Connect(ctx, mywire.ConnectConfig{Address: s.address, User: "root", Database: "mysql", TLSMode: mywire.TLSDisabled})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	packet := func() (seq byte, payload []byte) {
		t.Helper()
		head := make([]byte, mywire.HeaderLen)
		if _, err := io.ReadFull(conn.Conn, head); err != nil {
			t.Fatal(err)
		}
		n, seq, _ := mywire.Peek(head)
		payload = make([]byte, n)
		if _, err := io.ReadFull(conn.Conn, payload); err != nil {
			t.Fatal(err)
		}
		return seq, payload
	}
	send := func(p []byte) {
		t.Helper()
		if _, err := conn.Conn.Write(p); err != nil {
			t.Fatal(err)
		}
	}
	guess := func() uint16 { // returns the number of the error
		t.Helper()
		send(mywire.AppendChangeUser(nil, conn.Caps, &mywire.ChangeUser{User: "nobody", Charset: mywire.CharsetUTF8MB4, Plugin: mywire.PluginNative}))
		for {
			seq, payload := packet()
			if e, err := mywire.ParseError(payload); err == nil {
				return e.Code
			}
			send(mywire.AppendPacket(nil, seq+1, make([]byte, 20)))
		}
	}
	const allowed = 3
	for i := range allowed {
		if _, err := conn.Exec(ctx, "DO 1"); err != nil { // weir knows then how sessions begin
			t.Fatal(err)
		}
		if code := guess(); code != mywire.ErrAccessDenied {
			t.Errorf("guess %d is answered with %d", i, code)
		}
		s.over(s.next())
		if _, err := conn.Exec(ctx, "DO 1"); err != nil {
			t.Fatalf("a session whose change of the user was refused: %v", err)
		}
	}
	if code := guess(); code != mywire.ErrUnknownCommand {
		t.Errorf("guess %d is answered with %d: what was refused before is forgotten", allowed, code)
	}
}
