package postgres_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	gosync "sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/proxy/proxytest"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// A serverLog holds what a server has logged.
type serverLog struct {
	mu   gosync.Mutex
	text bytes.Buffer // guarded by mu
}

func (l *serverLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *serverLog) count(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), what)
}

// forget drops what was logged until now, up to a mark that it makes the server log.
func (l *serverLog) forget(ctx context.Context, log func(mark string) error) error {
	mark := fmt.Sprintf("mark %p %s", l, time.Now())
	if err := log(mark); err != nil {
		return err
	}
	for l.count(mark) == 0 {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Reset()
	return nil
}

// loggedServer is an authServer that logs every connection.
func loggedServer(t *testing.T, auth lab.Auth, tlsMode lab.TLSMode) (*lab.Postgres, *serverLog) {
	t.Helper()
	return ownServer(t, serverKind{auth: auth, tls: tlsMode})
}

// loggedServers starts one server for each kind of authentication, which sequential cases share.
func loggedServers(t *testing.T) func(auth lab.Auth) (*lab.Postgres, *serverLog) {
	type logged struct {
		own *lab.Postgres
		log *serverLog
	}
	made := make(map[lab.Auth]logged)
	return func(auth lab.Auth) (*lab.Postgres, *serverLog) {
		s, ok := made[auth]
		if !ok {
			s.own, s.log = loggedServer(t, auth, lab.TLSOff)
			made[auth] = s
		}
		return s.own, s.log
	}
}

// checked returns how logins were decided.
func (w *weir) checked() map[string]uint64 {
	counts := make(map[string]uint64)
	for _, c := range w.snapshot().Checks {
		counts[c.Method+" "+c.Way] += c.Count
	}
	return counts
}

// A login costs the server a connection only where weir cannot know how the server would decide.
func TestLoginsArePooled(t *testing.T) {
	t.Parallel()
	plain, err := pgwire.ParseSecret("secret")
	if err != nil {
		t.Fatal(err)
	}
	const byQuery = "SELECT usename, passwd FROM pg_catalog.pg_shadow WHERE usename = $1"
	const logins = 12
	servers := loggedServers(t)
	for _, c := range []struct {
		name   string
		auth   lab.Auth
		change func(*postgres.Config)
		pooled string // how all logins but the first few are decided
	}{
		{"scram", lab.SCRAM, nil, "scram-sha-256 pooled"},
		{"md5", lab.MD5, nil, "md5 pooled"},
		{"trust", lab.Trust, nil, "trust pooled"},
		{"listed", lab.SCRAM, func(c *postgres.Config) { c.Users = []postgres.User{{Name: "bob", Secret: plain}} }, "scram-sha-256 pooled"},
		{"listed, cleartext", lab.SCRAM, func(c *postgres.Config) {
			c.Auth, c.Users = "password", []postgres.User{{Name: "bob", Secret: plain}}
		}, "password pooled"},
		{"auth query", lab.SCRAM, func(c *postgres.Config) { c.AuthQuery = byQuery }, "scram-sha-256 pooled"},
		{"auth query as another", lab.SCRAM, func(c *postgres.Config) {
			c.AuthQuery, c.AuthUser, c.AuthDatabase = "SELECT * FROM lookup.secret($1)", "looker", "template1"
			c.Postgres.User, c.Postgres.Password = "bob", ""
			secret, err := pgwire.ParseSecret("look")
			if err != nil {
				t.Error(err)
			}
			c.Users = []postgres.User{{Name: "looker", Secret: secret}}
		}, "scram-sha-256 pooled"},
		{"cleartext to the server", lab.Password, nil, "password relayed"}, // it may ask LDAP
		{"relay", lab.SCRAM, func(c *postgres.Config) { c.Auth = "relay" }, "scram-sha-256 relayed"},
		{"no user to ask as", lab.SCRAM, func(c *postgres.Config) { c.Postgres.Password = "" }, "scram-sha-256 relayed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			own, log := servers(c.auth)
			if strings.Contains(c.name, "as another") {
				sqlOn(t, own.DSN("postgres"), "CREATE ROLE looker LOGIN PASSWORD 'look'")
				sqlOn(t, own.DSN("template1"), "CREATE SCHEMA lookup", "GRANT USAGE ON SCHEMA lookup TO looker",
					"CREATE FUNCTION lookup.secret(who name) RETURNS TABLE (a name, b text) LANGUAGE sql SECURITY DEFINER AS 'SELECT usename, passwd FROM pg_catalog.pg_shadow WHERE usename = who'")
			}
			w := startFor(t, own, "postgres", c.change)
			const authorized = "connection authorized: user=bob"
			before := log.count(authorized)
			for range logins {
				if err := login(w.Addr().String(), "bob", "secret", ""); err != nil {
					t.Fatal(err)
				}
			}
			if got := sqlState(login(w.Addr().String(), "bob", "wrong", "")); got != pgwire.CodeInvalidPassword && c.auth != lab.Trust {
				t.Errorf("a wrong password: SQLSTATE %q", got)
			}
			opened := log.count(authorized) - before
			counts := w.checked()
			// If the machine pauses for long, weir asks again, so the number is not exact.
			if n := counts[c.pooled]; n < logins-5 {
				t.Errorf("logins were decided %v, want them %s", counts, c.pooled)
			}
			if pooled := strings.HasSuffix(c.pooled, "pooled"); pooled && opened > logins/2 {
				t.Errorf("%d logins cost %d connections", logins, opened)
			} else if !pooled && opened < logins {
				t.Errorf("%d logins were relayed over %d connections", logins, opened)
			}
		})
	}
}

// A pooled login has the same result as one at the server: dropped users are refused, and
// sessions begin with the current settings.
func TestPooledLoginsSeeWhatHasChanged(t *testing.T) {
	t.Parallel()
	own, log := loggedServer(t, lab.SCRAM, lab.TLSOff)
	admin := sqlOver(t, own.DSN("postgres"))
	admin("CREATE ROLE trusted LOGIN", "CREATE ROLE staff", "GRANT staff TO bob", "CREATE DATABASE shop")
	w := startFor(t, own, "shop", nil)
	addr := w.Addr().String()
	try := func(password string) (*pgconn.PgConn, string) {
		t.Helper()
		conn, err := pgconn.Connect(ctxFor(t), fmt.Sprintf("postgres://bob:%s@%s/shop?sslmode=disable", password, addr))
		if err != nil {
			return nil, sqlState(err)
		}
		t.Cleanup(func() { _ = conn.Close(ctxFor(t)) })
		return conn, ""
	}
	want := func(what, password, state string) *pgconn.PgConn {
		t.Helper()
		conn, got := try(password)
		if got != state {
			t.Errorf("%s: SQLSTATE %q, want %q", what, got, state)
		}
		return conn
	}
	one := func(conn *pgconn.PgConn, sql string) string {
		t.Helper()
		if conn == nil {
			return "no connection"
		}
		results, err := conn.Exec(ctxFor(t), sql).ReadAll()
		if err != nil {
			return err.Error()
		}
		return string(results[0].Rows[0][0])
	}
	hba := filepath.Join(own.DataDir(), "pg_hba.conf")
	rules, err := os.ReadFile(hba)
	if err != nil {
		t.Fatal(err)
	}
	rewrite := func(text string) {
		t.Helper()
		if err := os.WriteFile(hba, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		admin("SELECT pg_reload_conf()")
		eventually(t, "the server has read its files", func() bool { return log.count("received SIGHUP") > 0 })
	}
	want("a role in good standing", "secret", "")
	want("a role in good standing, again", "secret", "")
	for _, c := range []struct{ does, state string }{
		{"ALTER ROLE bob PASSWORD 'other'", "28P01"},
		{"ALTER ROLE bob PASSWORD 'secret'", ""},
		{"ALTER ROLE bob VALID UNTIL '2001-01-01'", "28P01"},
		{"ALTER ROLE bob VALID UNTIL 'infinity'", ""},
		{"ALTER ROLE bob NOLOGIN", "28000"},
		{"ALTER ROLE bob LOGIN", ""},
		{"REVOKE CONNECT ON DATABASE shop FROM public", "42501"},
		{"GRANT CONNECT ON DATABASE shop TO bob", ""},
		{"ALTER DATABASE shop ALLOW_CONNECTIONS false", "55000"},
		{"ALTER DATABASE shop ALLOW_CONNECTIONS true", ""},
		{"ALTER ROLE bob RENAME TO rob", "28P01"},
		{"ALTER ROLE rob RENAME TO bob", ""},
		{"ALTER ROLE bob PASSWORD NULL", "28P01"},
		{"ALTER ROLE bob PASSWORD 'secret'", ""},
	} {
		admin(c.does)
		want(c.does, "secret", c.state)
		want(c.does+", again", "secret", c.state)
		want(c.does+", with a wrong password", "wrong", "28P01")
	}
	for _, setting := range []struct{ does, name, value string }{
		{"ALTER ROLE bob SET TimeZone = 'Asia/Tokyo'", "TimeZone", "Asia/Tokyo"},
		{"ALTER DATABASE shop SET DateStyle = 'German'", "DateStyle", "German, DMY"},
		{"ALTER ROLE bob IN DATABASE shop SET IntervalStyle = 'iso_8601'", "IntervalStyle", "iso_8601"},
		{"ALTER ROLE bob SET work_mem = '7MB'", "work_mem", "7MB"},
	} {
		admin(setting.does)
		for range 2 {
			conn := want(setting.does, "secret", "")
			if conn == nil {
				continue
			}
			if got := conn.ParameterStatus(setting.name); got != setting.value && setting.name != "work_mem" {
				t.Errorf("%s: the client is told %q", setting.does, got)
			}
			if got := one(conn, "SHOW "+setting.name); got != setting.value {
				t.Errorf("%s: the first statement sees %q", setting.does, got)
			}
		}
	}
	// Membership, to which pg_hba.conf may refer.
	rewrite("host all +staff 127.0.0.1/32 scram-sha-256\nhost all postgres 127.0.0.1/32 scram-sha-256\n")
	eventually(t, "bob gets in as staff", func() bool { _, state := try("secret"); return state == "" })
	admin("REVOKE staff FROM bob")
	want("bob is staff no more, whom pg_hba.conf wants", "secret", "28000")
	rewrite(string(rules))
	eventually(t, "bob gets in as anybody", func() bool { _, state := try("secret"); return state == "" })
	rewrite("host all bob 127.0.0.1/32 reject\n" + string(rules))
	eventually(t, "pg_hba.conf rejects bob", func() bool { _, state := try("secret"); return state == "28000" })
	rewrite(string(rules))
	eventually(t, "pg_hba.conf does not", func() bool { _, state := try("secret"); return state == "" })
	admin("REVOKE CONNECT ON DATABASE shop FROM bob", "DROP ROLE bob")
	want("a role that was dropped", "secret", "28P01")
	want("a role that was dropped, again", "secret", "28P01")
	// A new role with the same name is another role.
	admin("CREATE ROLE bob LOGIN PASSWORD 'fresh'", "GRANT CONNECT ON DATABASE shop TO bob")
	want("the old one's password", "secret", "28P01")
	if got := one(want("a new one", "fresh", ""), "SHOW work_mem"); got == "7MB" {
		t.Error("a role that was made anew has the settings of the one before")
	}
}

// A restart of the server between two logins causes no error, and while it is down logins wait.
func TestPooledLoginsOutliveTheServer(t *testing.T) {
	t.Parallel()
	for _, auth := range []lab.Auth{lab.SCRAM, lab.MD5} {
		t.Run(string(auth), func(t *testing.T) {
			t.Parallel()
			own, _ := loggedServer(t, auth, lab.TLSOff)
			w := startFor(t, own, "postgres", nil)
			addr := w.Addr().String()
			for range 3 {
				if err := login(addr, "bob", "secret", ""); err != nil {
					t.Fatal(err)
				}
			}
			stays, err := pgconn.Connect(ctxFor(t), fmt.Sprintf("postgres://bob:secret@%s/postgres?sslmode=disable", addr))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = stays.Close(ctxFor(t)) }()
			if err := own.Restart(ctxFor(t)); err != nil {
				t.Fatal(err)
			}
			// weir can log in as bob, so no client has to log in again.
			eventually(t, "who was there goes on", func() bool {
				_, err := stays.Exec(ctxFor(t), "SELECT 1").ReadAll()
				return err == nil
			})
			for range 3 {
				if err := login(addr, "bob", "secret", ""); err != nil {
					t.Errorf("after a restart: %v", err)
				}
			}
			if err := own.Stop(ctxFor(t)); err != nil {
				t.Fatal(err)
			}
			if got := sqlState(login(addr, "bob", "secret", "")); got != pgwire.CodeConnectionUnable {
				t.Errorf("a login while the server is down: SQLSTATE %q", got)
			}
		})
	}
}

// A user that does not exist, or has no password or one in another form, sees the same messages
// as others, at the first attempt and later.
func TestPooledLoginsDoNotTellWhoExists(t *testing.T) {
	t.Parallel()
	own, _ := loggedServer(t, lab.SCRAM, lab.TLSOff)
	sqlOn(t, own.DSN("postgres"), "CREATE ROLE bare LOGIN", "CREATE ROLE late LOGIN PASSWORD 'secret' VALID UNTIL '2001-01-01'",
		"SET password_encryption = 'md5'", "CREATE ROLE old LOGIN PASSWORD 'secret'")
	w := startFor(t, own, "postgres", nil)
	salts := make(map[string]string)
	var known string
	for try := range 3 {
		for _, user := range []string{"bob", "nobody_here", "bare", "late", "old"} {
			shape, salt := failedLogin(t, w.Addr().String(), user)
			if known == "" {
				known = shape
			}
			if shape != known {
				t.Errorf("try %d: %s sees\n%s\nothers see\n%s", try, user, shape, known)
			}
			if before, seen := salts[user]; seen && before != salt {
				t.Errorf("try %d: the salt of %s has changed", try, user)
			}
			salts[user] = salt
		}
	}
	if !strings.Contains(known, pgwire.CodeInvalidPassword) {
		t.Errorf("all see\n%s", known)
	}
}

// failedLogin logs in with a wrong password, and returns what the server sends, with
// all that is random or the user's own removed, and the salt.
func failedLogin(t *testing.T, addr, user string) (shape, salt string) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	send := func(msg []byte) {
		t.Helper()
		if _, err := conn.Write(msg); err != nil {
			t.Fatal(err)
		}
	}
	send(pgwire.AppendStartup(nil, pgwire.Version30, []pgwire.Param{{Name: "user", Value: user}, {Name: "database", Value: "postgres"}}))
	const bare = "n=,r=abcdefghijklmnopqrstuvwx"
	for {
		var head [5]byte
		if _, err := io.ReadFull(conn, head[:]); err != nil {
			return shape, salt
		}
		_, n, _ := pgwire.Peek(head[:])
		body := make([]byte, n-5)
		if _, err := io.ReadFull(conn, body); err != nil {
			t.Fatal(err)
		}
		shape += fmt.Sprintf("%c %d", head[0], n-5)
		switch {
		case head[0] == pgwire.ServerError:
			shape = strings.TrimSuffix(shape, fmt.Sprint(n-5)) + strings.ReplaceAll(string(body), user, "USER")
		case body[3] == 10:
			shape += string(body[4:])
			send(pgwire.AppendSASLInitial(nil, "SCRAM-SHA-256", []byte("n,,"+bare)))
		case body[3] == 11:
			parts := strings.Split(string(body[4:]), ",")
			salt = parts[1]
			shape += fmt.Sprint(len(parts[0]), len(salt), parts[2])
			send(pgwire.AppendSASLResponse(nil, []byte("c=biws,"+parts[0]+",p="+strings.Repeat("A", 43)+"=")))
		}
		shape += "\n"
	}
}

// With TLS on both sides a client that insists on channel binding logs in: weir knows
// what the server stores, binds to its own certificate, and to the server's.
func TestPooledLoginsBindToTheChannel(t *testing.T) {
	t.Parallel()
	own, _ := loggedServer(t, lab.SCRAM, lab.TLSRequired)
	other, err := own.ClientCert("weir") // not the server's
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(other.Cert, other.Key)
	if err != nil {
		t.Fatal(err)
	}
	w := startFor(t, own, "postgres", func(c *postgres.Config) {
		c.Postgres.TLSMode = pgwire.TLSRequire
		c.ClientTLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	})
	for range 3 {
		for _, binding := range []string{"require", "prefer", "disable"} {
			for _, password := range []string{"secret", "wrong"} {
				be, err := pgwire.Connect(t.Context(), pgwire.ConnectConfig{
					Address: w.Addr().String(), User: "bob", Database: "postgres", Password: password,
					TLSMode: pgwire.TLSRequire, ChannelBinding: binding,
				})
				if (err == nil) != (password == "secret") {
					t.Errorf("channel binding %s, password %q: %v", binding, password, err)
				}
				if err == nil {
					_ = be.Conn.Close()
				}
			}
		}
	}
	counts := w.checked()
	if counts["scram-sha-256 pooled"] < 3 || counts["scram-sha-256 relayed"] < 1 {
		t.Errorf("logins were decided %v", counts)
	}
}

// A storm of logins of one user, right and wrong ones, and of users who do not exist.
func TestAStormOfPooledLogins(t *testing.T) {
	t.Parallel()
	own, log := loggedServer(t, lab.SCRAM, lab.TLSOff)
	w := startFor(t, own, "postgres", nil)
	if err := login(w.Addr().String(), "bob", "secret", ""); err != nil {
		t.Fatal(err)
	}
	before := log.count("connection received")
	const each = 40
	var wg gosync.WaitGroup
	for range each {
		wg.Go(func() {
			if err := login(w.Addr().String(), "bob", "secret", ""); err != nil {
				t.Errorf("right password: %v", err)
			}
		})
		wg.Go(func() {
			if got := sqlState(login(w.Addr().String(), "bob", "wrong", "")); got != pgwire.CodeInvalidPassword {
				t.Errorf("wrong password: SQLSTATE %q", got)
			}
		})
		wg.Go(func() {
			if got := sqlState(login(w.Addr().String(), "nobody_here", "secret", "")); got != pgwire.CodeInvalidPassword {
				t.Errorf("unknown user: SQLSTATE %q", got)
			}
		})
	}
	wg.Wait()
	// Logins of a user that was not looked up before may come at the same time, and are looked
	// up together.
	if n := log.count("connection received") - before; n > 2*each {
		t.Errorf("%d logins cost %d connections", 3*each, n)
	}
}

// A slowConn delays its writes from the third on, which prove the password.
type slowConn struct {
	net.Conn
	writes  int
	proving chan<- struct{}
	release <-chan struct{}
}

func (c *slowConn) Write(p []byte) (int, error) {
	if c.writes++; c.writes == 3 {
		close(c.proving)
		<-c.release
	}
	return c.Conn.Write(p)
}

// A client that proves its password slowly is judged by what the server says at the end, not
// when the client began.
func TestASlowProofSeesWhatHasChanged(t *testing.T) {
	t.Parallel()
	own, _ := loggedServer(t, lab.SCRAM, lab.TLSOff)
	w := startFor(t, own, "postgres", nil)
	for range 3 { // the server has let bob in, so the next login costs no connection
		if err := login(w.Addr().String(), "bob", "secret", ""); err != nil {
			t.Fatal(err)
		}
	}
	for _, revoke := range []string{"", "ALTER ROLE bob NOLOGIN"} {
		proving, release := make(chan struct{}), make(chan struct{})
		cfg, err := pgconn.ParseConfig("postgres://bob:secret@" + w.Addr().String() + "/postgres?sslmode=disable")
		if err != nil {
			t.Fatal(err)
		}
		dial := cfg.DialFunc
		cfg.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			return &slowConn{Conn: conn, proving: proving, release: release}, err
		}
		done := make(chan error, 1)
		go func() {
			conn, err := pgconn.ConnectConfig(t.Context(), cfg)
			if err == nil {
				err = conn.Close(t.Context())
			}
			done <- err
		}()
		<-proving
		if revoke != "" {
			sqlOn(t, own.DSN("postgres"), revoke)
		}
		time.Sleep(1100 * time.Millisecond) // longer than weir uses the server's answer
		close(release)
		if err := <-done; (err == nil) != (revoke == "") || (revoke != "" && sqlState(err) != pgwire.CodeInvalidAuthorization) {
			t.Errorf("after %q: %v", revoke, err)
		}
	}
}

// After a reload each session of the server reads its files by itself, which must not make weir
// ask again and again.
func TestPooledLoginsAfterAReload(t *testing.T) {
	t.Parallel()
	own, _ := loggedServer(t, lab.SCRAM, lab.TLSOff)
	w := startFor(t, own, "postgres", nil)
	storm := func() {
		var all gosync.WaitGroup
		for range 8 {
			all.Go(func() {
				for range 10 {
					if err := login(w.Addr().String(), "bob", "secret", ""); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		all.Wait()
	}
	storm()
	sqlOn(t, own.DSN("postgres"), "SELECT pg_reload_conf()")
	storm() // weir asks the server once more, on each of its sessions for that
	before := w.checked()["scram-sha-256 pooled"]
	storm()
	if n := w.checked()["scram-sha-256 pooled"] - before; n < 70 {
		t.Errorf("of 80 logins after a reload %d were pooled: %v", n, w.checked())
	}
}

// If the server refuses weir's own password, the log has a warning; clients with the right
// password can log in nevertheless.
func TestWarnsOfARefusedLoginOfItsOwn(t *testing.T) {
	t.Parallel()
	own, _ := loggedServer(t, lab.SCRAM, lab.TLSOff)
	log := new(proxytest.Lines)
	w := startFor(t, own, "postgres", func(c *postgres.Config) {
		c.Postgres.Password = "wrong"
		c.Log = slog.New(slog.NewTextHandler(log, nil))
	})
	if err := login(w.Addr().String(), "bob", "secret", ""); err != nil {
		t.Errorf("a client's login: %v", err)
	}
	eventually(t, "a warning", func() bool { return len(log.With(`level=WARN msg="the server refuses weir's own login`)) == 1 })
}
