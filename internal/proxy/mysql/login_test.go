package mysql_test

import (
	"bytes"
	"compress/zlib"
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	driver "github.com/go-sql-driver/mysql"
	"golang.org/x/sys/unix"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/wire/mywire"
)

func TestClientSeesTheServersOwnGreeting(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), nil)
	direct, err := mywire.Connect(ctxFor(t), mywire.ConnectConfig{Address: server(t).Addr(), User: "root", TLSMode: mywire.TLSDisabled})
	if err != nil {
		t.Fatal(err)
	}
	defer direct.Close()
	through := w.dial(nil)
	if through.Greeting.Version != direct.Greeting.Version || through.Greeting.Charset != direct.Greeting.Charset ||
		through.Greeting.Status != direct.Greeting.Status || through.Greeting.Plugin != direct.Greeting.Plugin {
		t.Errorf("greeting\n%+v\nof the server\n%+v", through.Greeting, direct.Greeting)
	}
	never := mywire.CapCompress | mywire.CapZstd | mywire.CapLocalFiles | mywire.CapCacheMetadata | mywire.CapProgress | mywire.CapSSL
	if extra := through.Greeting.Caps &^ direct.Greeting.Caps; extra != 0 || through.Greeting.Caps&never != 0 {
		t.Errorf("capabilities %#x; the server has %#x", through.Greeting.Caps, direct.Greeting.Caps)
	}
	if through.Greeting.ConnectionID < 1<<30 || through.Greeting.ConnectionID >= 1<<31 {
		t.Errorf("connection id %d could be one of the server's own", through.Greeting.ConnectionID)
	}
	if got := through.one("SELECT DATABASE()"); got != w.db {
		t.Errorf("database %s, want %s", got, w.db)
	}
}

// Clients with different capabilities get backends with the same ones.
func TestBackendsHaveTheClientsCapabilities(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE t (a int PRIMARY KEY, b int)", "INSERT INTO t VALUES (1, 1)"), nil)
	for _, found := range []bool{false, true} {
		conn := w.connect(func(c *driver.Config) { c.ClientFoundRows = found })
		res, err := conn.ExecContext(ctxFor(t), "UPDATE t SET b = 1 WHERE a = 1")
		if err != nil {
			t.Fatal(err)
		}
		if n, _ := res.RowsAffected(); n != map[bool]int64{false: 0, true: 1}[found] {
			t.Errorf("found rows %v: %d affected", found, n)
		}
	}
	for _, caps := range []mywire.Caps{
		mywire.CapTransactions | mywire.CapPluginAuth | mywire.CapMultiResults,
		mywire.WantedCaps &^ mywire.CapDeprecateEOF,
		mywire.WantedCaps &^ mywire.CapSessionTrack,
		mywire.WantedCaps | mywire.CapFoundRows | mywire.CapExtendedMetadata,
	} {
		conn := w.dial(func(c *mywire.ConnectConfig) { c.Caps = caps })
		if got := conn.one("SELECT b FROM t WHERE a = 1"); got != "1" {
			t.Errorf("caps %#x: %s", caps, got)
		}
		_, err := conn.Query(ctxFor(t), "SELECT 1; SELECT 2")
		if multi := caps.Has(mywire.CapMultiStatements); (err == nil) != multi {
			t.Errorf("caps %#x: two statements: %v", caps, err)
		}
	}
}

func TestErrorsOfLoginAreTheServersOwn(t *testing.T) {
	t.Parallel()
	listed := func(c *mysql.Config) {
		for name, password := range map[string]string{bob: bobPassword, eve: evePassword} {
			secret, err := mywire.ParseSecret(password)
			if err != nil {
				t.Error(err)
			}
			c.Users = append(c.Users, mysql.User{Name: name, Secret: secret})
		}
	}
	db := database(t)
	for name, change := range map[string]func(*mysql.Config){"relay": nil, "listed": listed} {
		t.Run(name, func(t *testing.T) {
			w := start(t, db, change)
			direct := &weir{Server: w.Server, tb: t, db: db}
			for _, c := range []struct{ user, password, database string }{
				{bob, bobPassword, db},
				{bob, bobPassword, ""},
				{bob, "wrong", db},
				{bob, "", db},
				{"nobody", "x", db},
				{bob, bobPassword, "no_such_database"},
				{eve, evePassword, db},
				{eve, evePassword, ""},
			} {
				as := func(addr string) func(*mywire.ConnectConfig) {
					return func(cfg *mywire.ConnectConfig) {
						cfg.Address, cfg.User, cfg.Password, cfg.Database = addr, c.user, c.password, c.database
					}
				}
				_, want := direct.tryDial(as(server(t).Addr()))
				_, got := w.within(t).tryDial(as(w.Addr().String()))
				if serverError(got) != serverError(want) {
					t.Errorf("%s, password %q, database %q: %q, direct %q", c.user, c.password, c.database, serverError(got), serverError(want))
				}
			}
		})
	}
}

// serverError is the server's part of an error.
func serverError(err error) string {
	if err == nil {
		return ""
	}
	if i := strings.Index(err.Error(), "ERROR "); i >= 0 {
		return err.Error()[i:]
	}
	return err.Error()
}

func TestLoginLimits(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), func(c *mysql.Config) { c.MaxClients = 2 })
	first, second := w.dial(nil), w.dial(nil)
	if _, err := w.tryDial(nil); code(err) != mywire.ErrTooManyConnections {
		t.Errorf("third client: %v, want 1040", err)
	}
	_ = first.Close()
	eventually(t, "a place becomes free", func() bool {
		conn, err := w.tryDial(nil)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
	if got := second.one("SELECT 1"); got != "1" {
		t.Errorf("second client: %s", got)
	}
	if snap := w.snapshot(); snap.LoginsRefused == 0 {
		t.Error("refused logins are not counted")
	}
}

// Connections that send nothing do not count as clients.
func TestSilentConnectionsTakeNoPlace(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), func(c *mysql.Config) { c.MaxClients = 2 })
	for range 20 {
		conn, err := net.Dial("tcp", w.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Read(make([]byte, 1)); err != nil {
			t.Fatalf("no greeting: %v", err)
		}
	}
	first, second := w.dial(nil), w.dial(nil)
	if got := first.one("SELECT 1") + second.one("SELECT 2"); got != "12" {
		t.Error(got)
	}
	if _, err := w.tryDial(nil); code(err) != mywire.ErrTooManyConnections {
		t.Errorf("third client: %v, want 1040", err)
	}
}

// A client that connects and leaves without sending anything, as health checks do, must not
// reach the server, which would block weir's host after max_connect_errors of them.
func TestProbesDoNotReachTheServer(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), nil)
	conn := w.dial(nil)
	aborted := func() string {
		rows, err := conn.Query(ctxFor(t), "SHOW GLOBAL STATUS LIKE 'Connections'")
		if err != nil {
			t.Fatal(err)
		}
		return rows[0][1].String
	}
	eventually(t, "other tests leave the server in peace", func() bool {
		before := aborted()
		for range 20 {
			probe, err := net.Dial("tcp", w.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			var b [1]byte
			if _, err := probe.Read(b[:]); err != nil {
				t.Fatalf("no greeting: %v", err)
			}
			_ = probe.Close()
		}
		return aborted() == before
	})
	if snap := w.snapshot(); snap.LoginsFailed != 0 {
		t.Errorf("%d logins failed", snap.LoginsFailed)
	}
}

// reservedPort returns a port that no process listens on, and that the kernel gives to no other
// process until a server of the test uses it.
func reservedPort(t *testing.T) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	// With this option, which all servers set, a server may listen on the same port.
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		t.Fatal(err)
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return name.(*unix.SockaddrInet4).Port
}

// A proxy that starts before its server refuses clients with the reason, and accepts them when
// the server is there.
func TestServerComesLate(t *testing.T) {
	t.Parallel()
	server(t) // skips without one
	port := reservedPort(t)
	listed, err := mywire.ParseSecret(bobPassword)
	if err != nil {
		t.Fatal(err)
	}
	cfg := serverConfig()
	cfg.Port = port
	w := start(t, "", func(c *mysql.Config) {
		c.MySQL.Address = fmt.Sprintf("127.0.0.1:%d", port)
		c.Users = []mysql.User{{Name: bob, Secret: listed}}
	})
	if _, err := w.tryDial(nil); err == nil || !strings.Contains(err.Error(), "weir cannot reach the server") {
		t.Errorf("login to a server that is not there: %v", err)
	}
	console := w.dial(func(c *mywire.ConnectConfig) { c.Database = "weir" })
	if rows, err := console.Query(ctxFor(t), "SHOW POOLS"); err != nil || len(rows) != 0 {
		t.Errorf("console: %v, %v", rows, err)
	}
	asBob := func(c *mywire.ConnectConfig) { c.User, c.Password = bob, bobPassword }
	early := w.dial(asBob) // weir knows bob; his statements wait for the server

	late := labtest.MariaDB(t, cfg)
	if err := makeUsers(ctxFor(t), late); err != nil {
		t.Fatal(err)
	}
	if got := early.one("SELECT 1"); got != "1" {
		t.Errorf("client from before the server: %s", got)
	}
	if got := w.dial(asBob).Greeting.Version; !strings.Contains(got, "MariaDB") {
		t.Errorf("version %s after the server was reached", got)
	}
}

// The mariadb client works, over TCP and a Unix socket.
func TestCommandLineClient(t *testing.T) {
	t.Parallel()
	program := server(t).Client()
	if program == "" {
		t.Skip("the server's command line client is not installed")
	}
	db := database(t, "CREATE TABLE t (a int)", "INSERT INTO t VALUES (42)")
	socket := filepath.Join(t.TempDir(), "weir.sock")
	for _, listen := range []string{"127.0.0.1:0", socket} {
		w := start(t, db, func(c *mysql.Config) { c.Listen = listen })
		args := []string{"--no-defaults", "--user=bob", "--password=" + bobPassword, "--batch", "--skip-column-names"}
		args = append(args, withoutTLS(t)...)
		if host, port, err := net.SplitHostPort(w.Addr().String()); err == nil {
			args = append(args, "--protocol=tcp", "--host="+host, "--port="+port)
		} else {
			args = append(args, "--socket="+socket)
		}
		out, err := exec.CommandContext(ctxFor(t), program, append(args, db, "-e", "SELECT a FROM t; SHOW TABLES; SELECT CONNECTION_ID() > 0")...).Output()
		if err != nil || string(out) != "42\nt\n1\n" {
			t.Errorf("%s: %v\n%s", listen, err, out)
		}
	}
}

// withoutTLS returns the options by which the server's command line client does not use TLS, and
// sends its password all the same.
func withoutTLS(t *testing.T) []string {
	t.Helper()
	if isMariaDB(server(t)) {
		return []string{"--skip-ssl"}
	}
	return []string{"--ssl-mode=DISABLED", "--get-server-public-key"}
}

// loginRaw logs in as bob with exactly the given capabilities.
func loginRaw(t *testing.T, conn net.Conn, caps mywire.Caps) *wire {
	t.Helper()
	c := &wire{Server: &mywire.Server{Conn: conn, Caps: caps}, tb: t}
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	_, payload := c.packet()
	greeting, err := mywire.ParseGreeting(payload)
	if err != nil {
		t.Fatal(err)
	}
	if greeting.Caps&mywire.CapsUnspoken != 0 {
		t.Errorf("the greeting offers %b, which weir does not speak", greeting.Caps&mywire.CapsUnspoken)
	}
	c.send(mywire.AppendResponse(nil, 1, &mywire.Response{Caps: caps, User: bob, Auth: nativeProof(bobPassword, greeting.Salt)}))
	if err := c.answerLogin(bobPassword); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestClientThatCompresses checks clients that compress although weir did not offer it, or
// announce compression and do not use it.
func TestClientThatCompresses(t *testing.T) {
	t.Parallel()
	w := start(t, "", nil)
	text := "SELECT 1 /* " + strings.Repeat("x", 100) + " */"
	command := mywire.AppendCommand(nil, mywire.ComQuery, text)
	var zipped bytes.Buffer
	z := zlib.NewWriter(&zipped)
	if _, err := z.Write(command); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	for name, send := range map[string][]byte{
		"plain":        command,
		"ping":         mywire.AppendPing(nil),
		"framed":       append(append(mywire.AppendHeader(nil, len(command), 0), 0, 0, 0), command...),
		"framed ping":  append(append(mywire.AppendHeader(nil, len(mywire.AppendPing(nil)), 0), 0, 0, 0), mywire.AppendPing(nil)...),
		"zipped":       append(append(mywire.AppendHeader(nil, zipped.Len(), 0), byte(len(command)), 0, 0), zipped.Bytes()...),
		"zipped, long": append(append(mywire.AppendHeader(nil, zipped.Len(), 0), 3, 'S', 'E'), zipped.Bytes()...),
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("tcp", w.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			c := loginRaw(t, conn, mywire.CapsRequired|mywire.CapTransactions|mywire.CapPluginAuth|mywire.CapCompress)
			c.send(send)
			if name == "plain" || name == "ping" {
				if _, payload := c.packet(); mywire.IsError(payload) {
					t.Errorf("a client that does not compress is told %q", payload)
				}
				return
			}
			head := make([]byte, 7) // of a compressed packet
			if _, err := io.ReadFull(conn, head); err != nil {
				t.Fatal(err)
			}
			if head[3] != 1 || head[4]|head[5]|head[6] != 0 {
				t.Errorf("the header of the answer is %x", head)
			}
			if seq, payload := c.packet(); seq != 1 || mywire.ErrorCode(payload) != mywire.ErrNotSupportedYet || !bytes.Contains(payload, []byte("compress")) {
				t.Errorf("packet %d: %q", seq, payload)
			}
			if rest, err := io.ReadAll(conn); err != nil || len(rest) > 0 {
				t.Errorf("behind the error: %q, %v", rest, err)
			}
		})
	}
}

// weir also switches the authentication plugin of drivers that do not announce support for that,
// because they can answer.
func TestClientWithoutPlugins(t *testing.T) {
	t.Parallel()
	w := start(t, "", nil)
	conn, err := net.Dial("tcp", w.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c := loginRaw(t, conn, mywire.CapsRequired|mywire.CapTransactions|mywire.CapLongPassword)
	if got := c.one("SELECT SUBSTRING_INDEX(USER(), '@', 1)"); got != bob {
		t.Errorf("user %s", got)
	}
}

// changeUser sends a COM_CHANGE_USER and answers what the server asks then.
func (c *wire) changeUser(user, password, database string) error {
	c.tb.Helper()
	c.send(mywire.AppendChangeUser(nil, c.Caps, &mywire.ChangeUser{
		User: user, Database: database, Charset: mywire.CharsetUTF8MB4, Plugin: mywire.PluginNative,
	}))
	return c.answerLogin(password)
}

// TestChangeUserByTheChallengeOfBefore checks MariaDB's own library, which answers a
// COM_CHANGE_USER with the challenge of the previous login, whatever the new one is.
func TestChangeUserByTheChallengeOfBefore(t *testing.T) {
	t.Parallel()
	needsMariaDB(t, "mysql_native_password, which the library answers with")
	name, password := account(t)
	secret, err := mywire.ParseSecret(password)
	if err != nil {
		t.Fatal(err)
	}
	asked := func(c *wire, user, password string) string {
		proof := nativeProof(password, c.Greeting.Salt)
		c.send(mywire.AppendChangeUser(nil, c.Caps, &mywire.ChangeUser{User: user, Auth: proof, Charset: mywire.CharsetUTF8MB4, Plugin: mywire.PluginNative}))
		seq, payload := c.packet()
		if _, _, err := mywire.ParseAuthSwitch(payload); err == nil {
			c.send(mywire.AppendPacket(nil, seq+1, proof))
			_, payload = c.packet()
		}
		if e, err := mywire.ParseError(payload); err == nil {
			return e.Message
		}
		return ""
	}
	greeted := func(c *mywire.ConnectConfig) { c.User, c.Password = name, password }
	t.Run("weir knows the passwords", func(t *testing.T) {
		bobs, err := mywire.ParseSecret(bobPassword)
		if err != nil {
			t.Fatal(err)
		}
		w := start(t, "", func(c *mysql.Config) {
			c.Auth, c.Users = mywire.PluginNative, []mysql.User{{Name: name, Secret: secret}, {Name: bob, Secret: bobs}}
		})
		c := w.dial(greeted)
		c.must("SET @a = 5, time_zone = '+05:00'")
		for range 2 {
			if said := asked(c, bob, bobPassword); said != "" {
				t.Fatal(said)
			}
			if got := c.one("SELECT CONCAT(SUBSTRING_INDEX(USER(), '@', 1), ' ', @@time_zone <> '+05:00', ' ', @a IS NULL)"); got != bob+" 1 1" {
				t.Errorf("after the change of the user: %s", got)
			}
		}
		if said := asked(c, bob, "wrong"); !strings.Contains(said, "Access denied") {
			t.Errorf("a wrong password: %q", said)
		}
	})
	t.Run("the server is to say", func(t *testing.T) {
		w := start(t, "", nil)
		c := w.dial(greeted)
		if said := asked(c, bob, bobPassword); !strings.Contains(said, "the challenge of the login before") {
			t.Errorf("the client is told %q", said)
		}
		if err := w.dial(greeted).changeUser(bob, bobPassword, ""); err != nil {
			t.Errorf("a client that answers what it is asked: %v", err)
		}
	})
}

func TestChangeUser(t *testing.T) {
	t.Parallel()
	listed, err := mywire.ParseSecret(bobPassword)
	if err != nil {
		t.Fatal(err)
	}
	db, other := database(t), database(t)
	for name, change := range map[string]func(*mysql.Config){
		"relay":  nil,
		"listed": func(c *mysql.Config) { c.Users = []mysql.User{{Name: bob, Secret: listed}} },
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t, db, change)
			c := w.dial(nil)
			c.must("SET @kept = 1")
			c.must("SET SESSION sql_mode = 'ANSI_QUOTES'")
			c.must("BEGIN")
			if err := c.changeUser(bob, bobPassword, other); err != nil {
				t.Fatal(err)
			}
			for query, want := range map[string]string{
				"SELECT CONCAT(SUBSTRING_INDEX(USER(), '@', 1), ' ', DATABASE())": bob + " " + other,
				"SELECT @kept": "NULL",
				"SELECT @@SESSION.sql_mode = @@GLOBAL.sql_mode": "1",
			} {
				if got := c.one(query); got != want {
					t.Errorf("%s: %s, want %s", query, got, want)
				}
			}
			if c.must("DO 0").Status&mywire.StatusInTrans != 0 {
				t.Error("the transaction of before goes on")
			}
			for range 3 { // back and forth
				if err := c.changeUser("root", "", db); err != nil {
					t.Fatal(err)
				}
				if err := c.changeUser(bob, bobPassword, ""); err != nil {
					t.Fatal(err)
				}
			}
			if got := c.one("SELECT DATABASE()"); got != "NULL" {
				t.Errorf("database %s, want none", got)
			}
			if n := w.snapshot().Clients; n != 1 {
				t.Errorf("%d clients, want 1", n)
			}
		})
	}
}

// TestRefusedChangeOfTheUser checks that a refused COM_CHANGE_USER ends the session with MySQL
// and resets it with MariaDB.
func TestRefusedChangeOfTheUser(t *testing.T) {
	t.Parallel()
	onFlavors(t, func(t *testing.T, server *lab.MySQL) {
		const ask = "SELECT CONCAT_WS(' ', SUBSTRING_INDEX(CURRENT_USER(), '@', 1), @a IS NULL, @@time_zone, @@sql_mode, @@character_set_client, @@character_set_results, @@collation_connection, (SELECT COUNT(*) FROM t))"
		for user, tries := range map[string]int{"": 1, "nobody": 4} { // a user that exists, and one that does not
			db, other := databaseOn(t, server, "CREATE TABLE t (a INT)"), databaseOn(t, server, "CREATE TABLE t (a INT)", "INSERT INTO t VALUES (1)")
			mine, password := accountOn(t, server, db, other)
			if user == "" {
				user, _ = accountOn(t, server, db)
			}
			w := startFor(t, server, db, func(c *mysql.Config) { c.PoolSize = 2 })
			session := func(addr string) (heard []string) {
				began, refused := time.Now(), 0
				defer func() { // guessing a password must not be faster than at the server
					if took := time.Since(began); user == "nobody" && refused > 1 && took < time.Duration(refused)*time.Second {
						t.Errorf("%s: %d changes were refused within %v", addr, refused, took)
					}
				}()
				c := dialAt(t, addr, db, func(c *mywire.ConnectConfig) { c.User, c.Password = mine, password })
				c.must("USE " + other)
				for i := range tries {
					c.must("SET @a = 1, time_zone = '+07:00', sql_mode = 'ANSI_QUOTES', NAMES latin1")
					c.must("BEGIN")
					c.must("INSERT INTO t VALUES (2)")
					heard = append(heard, fmt.Sprint(code(c.tryUser(user, "wrong", db))))
					if r := c.try(c.query("DO 0")); r.lost != nil {
						return append(heard, "END")
					}
					refused++
					heard = append(heard, c.one(ask))
					if i == 3 { // further attempts do not reach the server, not even with the right password
						heard = append(heard, fmt.Sprint(code(c.tryUser(mine, password, db))), c.one(ask))
					}
				}
				return heard
			}
			want, got := session(server.Addr()), session(w.Addr().String())
			if !slices.Equal(got, want) {
				t.Errorf("  weir %q\ndirect %q", got, want)
			}
			eventually(t, "the client's backends are free", func() bool { p := w.poolOf(mine); return p.Owned == 0 && p.Waiting == 0 })
		}
	})
}

// TestRefusedChangeOfTheUserBeforeAnyStatement refuses a change before the client's pool has
// connected to the server.
func TestRefusedChangeOfTheUserBeforeAnyStatement(t *testing.T) {
	t.Parallel()
	onFlavors(t, func(t *testing.T, server *lab.MySQL) {
		db := databaseOn(t, server)
		mine, password := accountOn(t, server, db)
		w := startFor(t, server, db, nil)
		session := func(addr string) (heard []string) {
			c := dialAt(t, addr, db, func(c *mywire.ConnectConfig) { c.User, c.Password = mine, password })
			heard = append(heard, fmt.Sprint(code(c.tryUser(mine, "wrong", db))))
			if r := c.try(c.query("DO 0")); r.lost != nil {
				return append(heard, "END")
			}
			const ask = "SELECT CONCAT_WS(' ', SUBSTRING_INDEX(CURRENT_USER(), '@', 1), DATABASE(), @@sql_mode, @@character_set_client, @@character_set_results, @@collation_connection)"
			c.must("SET time_zone = '+07:00'")
			return append(heard, c.one(ask), c.one("SELECT @@time_zone"))
		}
		if want, got := session(server.Addr()), session(w.Addr().String()); !slices.Equal(got, want) {
			t.Errorf("  weir %q\ndirect %q", got, want)
		}
	})
}

// tryUser sends a COM_CHANGE_USER of a client that knows mysql_native_password and
// caching_sha2_password, over a connection without TLS.
func (c *wire) tryUser(user, password, database string) error {
	c.tb.Helper()
	c.send(mywire.AppendChangeUser(nil, c.Caps, &mywire.ChangeUser{User: user, Database: database, Charset: mywire.CharsetUTF8MB4, Plugin: mywire.PluginNative}))
	for {
		seq, payload := c.packet()
		if mywire.IsOK(payload) {
			return nil
		}
		if e, err := mywire.ParseError(payload); err == nil {
			return e
		}
		plugin, salt, err := mywire.ParseAuthSwitch(payload)
		switch {
		case err != nil: // asked for the password itself: sends none
			c.send(mywire.AppendPacket(nil, seq+1, make([]byte, 256)))
		case plugin == mywire.PluginNative:
			c.send(mywire.AppendPacket(nil, seq+1, nativeProof(password, salt)))
		default:
			c.send(mywire.AppendPacket(nil, seq+1, bytes.Repeat([]byte{1}, 32)))
		}
	}
}

// A client with TLS stays with it.
func TestChangeUserOverTLS(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), func(c *mysql.Config) { c.ClientTLS = serverTLS(t) })
	c := w.dial(func(c *mywire.ConnectConfig) { c.TLSMode = mywire.TLSRequired })
	for range 3 {
		if err := c.changeUser(bob, bobPassword, w.db); err != nil {
			t.Fatal(err)
		}
		if got := c.one("SELECT SUBSTRING_INDEX(USER(), '@', 1)"); got != bob {
			t.Errorf("user %s", got)
		}
	}
}
