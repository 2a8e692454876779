package mysql_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	driver "github.com/go-sql-driver/mysql"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// Servers that others replicate from write a binary log, and tell sessions of the
// GTID of each transaction.

// logging starts a MariaDB that writes a binary log.
func logging(t *testing.T) *lab.MySQL {
	t.Helper()
	server(t) // skips where there is none
	cfg := serverConfig()
	logged, err := lab.StartMariaDB(ctxFor(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := logged.Discard(ctx); err != nil {
			t.Errorf("stop server: %v", err)
		}
	})
	return logged
}

// TestBinaryLog: a server that tells of each transaction's GTID is used like any
// other: a handful of connections, whatever is written, and no errors.
func TestBinaryLog(t *testing.T) {
	t.Parallel()
	logged := logging(t)
	db := databaseOn(t, logged, "CREATE TABLE t (id BIGINT AUTO_INCREMENT PRIMARY KEY, v INT)")
	w := startFor(t, logged, db, nil)
	const each = 100
	var clients sync.WaitGroup
	for i, statement := range []string{
		"INSERT INTO t (v) VALUES (%d)",
		"/* batch */ INSERT INTO t (v) VALUES (%d)",
		"/* batch */ UPDATE t SET v = v + 1 WHERE id = %d",
		"/* batch */ INSERT INTO t (v) VALUES (%d)",
		"SELECT v FROM t WHERE id = %d",
		"INSERT INTO t (v) VALUES (%d)",
	} {
		c := w.dial(nil)
		clients.Go(func() {
			for n := range each {
				var err error
				if sql := fmt.Sprintf(statement, n); strings.HasPrefix(sql, "SELECT") {
					_, err = c.Query(ctxFor(t), sql)
				} else {
					_, err = c.Exec(ctxFor(t), sql)
				}
				if err != nil {
					t.Errorf("client %d, statement %d: %v", i, n, err)
					return
				}
			}
		})
	}
	clients.Wait()
	if n := w.dial(nil).one("SELECT COUNT(*) FROM t"); n != fmt.Sprint(4*each) {
		t.Errorf("%s rows, want %d", n, 4*each)
	}
	if st := w.pool(); st.Opened > uint64(st.Size) {
		t.Errorf("the proxy opened %d connections for a pool of %d", st.Opened, st.Size)
	}
}

// TestLastGTID: a session that asks for the GTID of its last transaction gets that,
// as directly, or an error, and never another session's.
func TestLastGTID(t *testing.T) {
	t.Parallel()
	logged := logging(t)
	db := databaseOn(t, logged, "CREATE TABLE t (id BIGINT AUTO_INCREMENT PRIMARY KEY, v INT)")
	w := startFor(t, logged, db, twoBackends)
	before := directTo(t, logged, db)
	before.must("INSERT INTO t (v) VALUES (0)")
	last := func() (gtid string) { return before.one("SELECT @@gtid_binlog_pos") }
	c, other := w.dial(nil), w.dial(nil)
	refused := false
	for n := range 10 {
		c.must("INSERT INTO t (v) VALUES (1)")
		want := last()
		if n%2 == 1 {
			other.must("INSERT INTO t (v) VALUES (2)")
		}
		rows, err := c.Query(ctxFor(t), "SELECT @@last_gtid")
		switch {
		case err != nil && code(err) == mywire.ErrNotSupportedYet && !refused:
			refused = true
		case err != nil:
			t.Fatal(err)
		case rows[0][0].String != want:
			t.Fatalf("last_gtid is %q, the session's last transaction was %q", rows[0][0].String, want)
		}
	}
	tracking := w.dial(func(cfg *mywire.ConnectConfig) { cfg.Caps = mywire.CapSessionTrack })
	tracking.must("SET SESSION session_track_system_variables='last_gtid'")
	for range 5 {
		ok := tracking.must("/* batch */ INSERT INTO t (v) VALUES (3)")
		if want := last(); !strings.Contains(string(ok.State), want) {
			t.Fatalf("a session that wants to be told GTIDs is told %q, not %q", ok.State, want)
		}
		other.must("/* batch */ INSERT INTO t (v) VALUES (4)")
	}
}

// TestGTIDsToldByDefault: where the server's own settings have it tell clients their
// GTIDs, they are told through weir.
func TestGTIDsToldByDefault(t *testing.T) {
	t.Parallel()
	logged := logging(t)
	sqlOn(t, logged, "SET GLOBAL session_track_system_variables='last_gtid,time_zone'")
	db := databaseOn(t, logged, "CREATE TABLE t (id BIGINT AUTO_INCREMENT PRIMARY KEY, v INT)")
	w := startFor(t, logged, db, nil)
	reader, c := directTo(t, logged, db), w.dial(func(cfg *mywire.ConnectConfig) { cfg.Caps = mywire.CapSessionTrack })
	for _, hint := range []string{"", "/* batch */ "} {
		ok := c.must(hint + "INSERT INTO t (v) VALUES (3)")
		if want := reader.one("SELECT @@gtid_binlog_pos"); !strings.Contains(string(ok.State), want) {
			t.Errorf("%q: told %q, want %q", hint, ok.State, want)
		}
	}
}

// directTo logs in to the server itself.
func directTo(t *testing.T, server *lab.MySQL, db string) *wire {
	t.Helper()
	conn, err := mywire.Connect(ctxFor(t), mywire.ConnectConfig{Address: server.Addr(), User: "root", Database: db, TLSMode: mywire.TLSDisabled, Timeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &wire{Server: conn, tb: t}
}

// TestRefusedReplayIsAnErrorOnce: settings that no other connection takes are an
// error for those who have them, and no reason to try without end.
func TestRefusedReplayIsAnErrorOnce(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1)")
	// Anyone who may set this loses the right to, and keeps the value.
	name, password := account(t)
	right := "BINLOG ADMIN"
	if !isMariaDB(server(t)) {
		right = "SESSION_VARIABLES_ADMIN"
	}
	sqlOn(t, server(t), fmt.Sprintf("GRANT ALL ON %s.* TO %s@'%%'", db, name))
	as := func(cfg *mywire.ConnectConfig) { cfg.User, cfg.Password = name, password }
	w := start(t, db, func(cfg *mysql.Config) {
		twoBackends(cfg)
		cfg.MySQL.User, cfg.MySQL.Password = name, password
	})
	for _, statement := range []string{"UPDATE t SET v = 1", "SELECT v FROM t", "/* batch */ UPDATE t SET v = 2 WHERE id = 1"} {
		sqlOn(t, server(t), fmt.Sprintf("GRANT %s ON *.* TO %s@'%%'", right, name))
		c, plain := w.dial(as), w.dial(as)
		c.must("SET SESSION binlog_format='STATEMENT'")
		c.must("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ") // InnoDB writes no statements below it
		plain.must("BEGIN")
		plain.must("ROLLBACK")
		sqlOn(t, server(t), fmt.Sprintf("REVOKE %s ON *.* FROM %s@'%%'", right, name))
		eventually(t, "no connection of the account may set it", func() bool {
			d, err := mywire.Connect(ctxFor(t), mywire.ConnectConfig{Address: server(t).Addr(), User: name, Password: password, TLSMode: mywire.TLSDisabled, Timeout: patience})
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			_, err = d.Exec(ctxFor(t), "SET SESSION binlog_format='STATEMENT'")
			return err != nil
		})
		// The connection that has it already is held by others meanwhile.
		first := w.dial(as)
		first.must("BEGIN")
		second := w.dial(as)
		second.must("BEGIN")
		second.must("ROLLBACK")
		before := w.poolOf(name).Opened
		_, err := c.Query(ctxFor(t), statement)
		if err != nil && !strings.Contains(err.Error(), "could not restore the session settings") {
			t.Errorf("%s: %v", statement, err)
		}
		if opened := w.poolOf(name).Opened - before; opened > 3 {
			t.Errorf("%s: %d connections were opened for settings that the server refuses", statement, opened)
		}
		first.must("ROLLBACK")
	}
}

// TestConnectionsThatEndAtOnce: a server that takes logins and then hangs up is not
// asked again and again.
func TestConnectionsThatEndAtOnce(t *testing.T) {
	t.Parallel()
	db := database(t)
	behind, dropping, logins := server(t).Addr(), atomic.Bool{}, atomic.Int64{}
	front, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = front.Close() })
	go func() {
		for {
			conn, err := front.Accept()
			if err != nil {
				return
			}
			go relayLogin(conn, behind, &dropping, &logins)
		}
	}()
	w := start(t, db, func(cfg *mysql.Config) { cfg.MySQL.Address = front.Addr().String() })
	c := w.connect(func(cfg *driver.Config) { cfg.User = "root" })
	if _, err := c.ExecContext(ctxFor(t), "DO 1"); err != nil {
		t.Fatal(err)
	}
	var clients []*wire
	for range 4 {
		clients = append(clients, w.dial(nil))
	}
	dropping.Store(true)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	before := logins.Load()
	var waiting sync.WaitGroup
	for _, d := range clients {
		waiting.Go(func() {
			for ctx.Err() == nil {
				if _, err := d.Exec(ctx, "BEGIN"); err != nil && mywire.CodeOf(err) == 0 {
					return
				}
			}
		})
	}
	waiting.Wait()
	if n := logins.Load() - before; n > 8*8 {
		t.Errorf("%d logins within two seconds at a server that hangs up", n)
	}
}

// relayLogin passes a login on, and what comes after it unless dropping says so.
func relayLogin(conn net.Conn, to string, dropping *atomic.Bool, logins *atomic.Int64) {
	defer conn.Close()
	logins.Add(1)
	up, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer up.Close()
	go func() {
		buf := make([]byte, 4096)
		for n := 0; ; n++ {
			k, err := conn.Read(buf)
			if err != nil || n > 0 && dropping.Load() { // the first is the login
				_ = conn.Close()
				_ = up.Close()
				return
			}
			if _, err := up.Write(buf[:k]); err != nil {
				return
			}
		}
	}()
	_, _ = io.Copy(conn, up)
}
