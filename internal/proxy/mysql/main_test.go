package mysql_test

import (
	"context"
	"crypto/tls"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	driver "github.com/go-sql-driver/mysql"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/proxy/proxytest"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/internal/wire/mywire"
)

const patience = proxytest.Patience

// shared is the server of most tests; each has a database of its own in it. It is MariaDB,
// or MySQL with WEIR_TEST_FLAVOR=mysql.
var shared struct {
	server *lab.MySQL
	err    error // why there is none
	serial atomic.Int64
}

// TestMain runs the tests against one real server and then checks that they
// left neither goroutines nor file descriptors behind.
func TestMain(m *testing.M) {
	os.Exit(proxytest.RunAll(tests{m}, func(ctx context.Context) func(context.Context) error {
		start := lab.StartMariaDB
		if os.Getenv("WEIR_TEST_FLAVOR") == "mysql" {
			start = lab.StartMySQL
		}
		shared.server, shared.err = start(ctx, serverConfig())
		if shared.err == nil {
			shared.err = makeUsers(ctx, shared.server)
		}
		if shared.server == nil {
			return nil
		}
		return shared.server.Discard
	}))
}

// serverConfig is a server that does not flush, because the machine does not
// crash in these tests.
func serverConfig() lab.MySQLConfig {
	return lab.MySQLConfig{Durability: lab.Fast, Light: true, BufferPool: "32M", TLS: lab.TLSOptional}
}

// The accounts that tests log in as beside root, who has no password.
const (
	bob         = "bob"
	bobPassword = "bob's secret"
	eve         = "eve" // may read tables of "open" databases only, of which there are none
	evePassword = "eve's secret"
)

func makeUsers(ctx context.Context, server *lab.MySQL) error {
	if err := server.CreateUser(ctx, lab.MySQLUser{Name: bob, Password: bobPassword}); err != nil {
		return err
	}
	return server.Exec(ctx, "CREATE USER eve@'%' IDENTIFIED BY '"+strings.ReplaceAll(evePassword, "'", "''")+"'",
		"GRANT SELECT ON `open%`.* TO eve@'%'",
		// Each proxy reads the catalogue. The servers of single tests keep the schema.
		"DROP DATABASE IF EXISTS sys")
}

// account makes an account for tb alone on the shared server, for those who do
// something to all that an account has there. It can log in and no more.
func account(tb testing.TB) (name, password string) {
	tb.Helper()
	return accountOn(tb, server(tb))
}

// accountOn makes one that has all rights on the databases, and no others.
func accountOn(tb testing.TB, server *lab.MySQL, databases ...string) (name, password string) {
	tb.Helper()
	name, password = fmt.Sprintf("u%d", shared.serial.Add(1)), "secret"
	sqlOn(tb, server, "CREATE USER "+name+"@'%' IDENTIFIED BY '"+password+"'")
	for _, db := range databases {
		sqlOn(tb, server, "GRANT ALL ON "+db+".* TO "+name+"@'%'")
	}
	tb.Cleanup(func() { sqlOn(tb, server, "DROP USER "+name+"@'%'") })
	return name, password
}

// server returns the shared server.
func server(tb testing.TB) *lab.MySQL {
	tb.Helper()
	proxytest.Need(tb, shared.err)
	return shared.server
}

// database makes a database for tb and returns its name. setup is run in it.
func database(tb testing.TB, setup ...string) string {
	tb.Helper()
	return databaseOn(tb, server(tb), setup...)
}

func databaseOn(tb testing.TB, server *lab.MySQL, setup ...string) string {
	tb.Helper()
	name := fmt.Sprintf("t%d", shared.serial.Add(1))
	sqlOn(tb, server, "CREATE DATABASE "+name)
	tb.Cleanup(func() { dropDatabase(tb, server, name) })
	if len(setup) > 0 {
		sqlOn(tb, server, append([]string{"USE " + name}, setup...)...)
	}
	return name
}

// dropDatabase drops a database, if the server still runs. Beside other such statements the
// server may end it as the victim of a deadlock in its tables of statistics.
func dropDatabase(tb testing.TB, server *lab.MySQL, name string) {
	tb.Helper()
	for try := 1; ; try++ {
		select {
		case <-server.Done():
			return
		default:
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		err := server.Exec(ctx, "DROP DATABASE IF EXISTS "+name)
		cancel()
		if err == nil {
			return
		} else if try == 10 || !strings.Contains(err.Error(), "Error 1213") {
			tb.Fatal(err)
		}
	}
}

// sqlOn runs texts as root on a connection of their own, past weir.
func sqlOn(tb testing.TB, server *lab.MySQL, texts ...string) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := server.Exec(ctx, texts...); err != nil {
		tb.Fatal(err)
	}
}

// serverTLS is a certificate with which weir can receive clients: the shared
// server's own.
func serverTLS(tb testing.TB) *tls.Config {
	tb.Helper()
	files := server(tb).ServerCert()
	pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		tb.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
}

// A weir is a running proxy.
type weir struct {
	*mysql.Server
	tb   testing.TB
	db   string
	stop func() error // ends it and waits; idempotent
	// ended is closed when Run has returned.
	ended chan struct{}
}

// proxies are those that tests have started, by their addresses.
var proxies sync.Map

// start runs a proxy in front of the shared server for the length of tb. Its
// clients use database db.
func start(tb testing.TB, db string, change func(*mysql.Config)) *weir {
	tb.Helper()
	return startFor(tb, server(tb), db, change)
}

func startFor(tb testing.TB, server *lab.MySQL, db string, change func(*mysql.Config)) *weir {
	tb.Helper()
	cfg := mysql.Config{
		MySQL:  mywire.ConnectConfig{Address: server.Addr(), User: server.User(), Password: server.Password(), TLSMode: mywire.TLSDisabled},
		Listen: "127.0.0.1:0",
		Options: session.Options{
			Limits: session.Limits{
				PoolSize:     8,
				QueueTimeout: patience / 2, // says what it was that a client waited for
			},
			Loops:         1,
			DrainTimeout:  time.Second,
			TrustLoopback: true, // the lab's root has no password
			Log:           proxytest.Log(tb),
		},
	}
	if change != nil {
		change(&cfg)
	}
	s, err := mysql.New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	w := &weir{Server: s, tb: tb, db: db}
	w.stop, w.ended = proxytest.Run(tb, s)
	proxies.Store(s.Addr().String(), s)
	tb.Cleanup(func() { proxies.Delete(s.Addr().String()) })
	return w
}

// within is w for a subtest.
func (w *weir) within(tb testing.TB) *weir {
	sub := *w
	sub.tb = tb
	return &sub
}

// open returns a handle of go-sql-driver on an address, as root unless change
// says otherwise; it is closed with tb.
func open(tb testing.TB, addr, db string, change func(*driver.Config)) *sql.DB {
	tb.Helper()
	cfg := driver.NewConfig()
	cfg.User, cfg.Net, cfg.Addr, cfg.DBName = "root", "tcp", addr, db
	cfg.Logger = &driver.NopLogger{} // every error is returned as well
	if change != nil {
		change(cfg)
	}
	connector, err := driver.NewConnector(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	handle := sql.OpenDB(connector)
	tb.Cleanup(func() { _ = handle.Close() })
	return handle
}

// connect opens one session of go-sql-driver through w, as root, that is closed
// with tb.
func (w *weir) connect(change func(*driver.Config)) *sql.Conn {
	w.tb.Helper()
	conn, err := open(w.tb, w.Addr().String(), w.db, change).Conn(ctxFor(w.tb))
	if err != nil {
		w.tb.Fatalf("connect: %v", err)
	}
	w.tb.Cleanup(func() { _ = conn.Close() })
	return conn
}

// A wire is a client that speaks the protocol itself.
type wire struct {
	*mywire.Server
	tb testing.TB
}

// dial logs in through w, as root unless change says otherwise. The connection
// is closed with tb.
func (w *weir) dial(change func(*mywire.ConnectConfig)) *wire {
	w.tb.Helper()
	conn, err := w.tryDial(change)
	if err != nil {
		w.tb.Fatalf("dial: %v", err)
	}
	return conn
}

func (w *weir) tryDial(change func(*mywire.ConnectConfig)) (*wire, error) {
	w.tb.Helper()
	cfg := mywire.ConnectConfig{Address: w.Addr().String(), User: "root", Database: w.db, TLSMode: mywire.TLSDisabled, Timeout: patience}
	if change != nil {
		change(&cfg)
	}
	conn, err := mywire.Connect(ctxFor(w.tb), cfg)
	if err != nil {
		return nil, err
	}
	w.tb.Cleanup(func() { _ = conn.Close() })
	c := &wire{Server: conn, tb: w.tb}
	c.patient()
	return c, nil
}

// patient gives what follows on the connection its time. Tests that go on for longer
// than that call it again.
func (c *wire) patient() {
	c.tb.Helper()
	if err := c.Conn.SetDeadline(time.Now().Add(patience)); err != nil {
		c.tb.Errorf("set deadline: %v", err)
	}
}

// one runs a query and returns its single value, "NULL" for that.
func (c *wire) one(query string) string {
	c.tb.Helper()
	rows, err := c.Query(ctxFor(c.tb), query)
	if err != nil {
		c.tb.Fatalf("%s: %v", query, err)
	}
	if len(rows) != 1 || len(rows[0]) != 1 {
		c.tb.Fatalf("%s: %v, want one value", query, rows)
	}
	if v := rows[0][0]; v.Valid {
		return v.String
	}
	return "NULL"
}

// must runs a statement that has to succeed.
func (c *wire) must(statement string) mywire.OK {
	c.tb.Helper()
	ok, err := c.Exec(ctxFor(c.tb), statement)
	if err != nil {
		c.tb.Fatalf("%s: %v", statement, err)
	}
	return ok
}

// send writes packets as they are.
func (c *wire) send(p []byte) {
	c.tb.Helper()
	if _, err := c.Conn.Write(p); err != nil {
		c.tb.Fatalf("send: %v", err)
	}
}

// packet reads the next packet.
func (c *wire) packet() (seq byte, payload []byte) {
	c.tb.Helper()
	seq, payload, err := c.tryPacket()
	if err != nil {
		c.tb.Fatalf("read packet: %v", err)
	}
	return seq, payload
}

func (c *wire) tryPacket() (seq byte, payload []byte, err error) {
	var head [mywire.HeaderLen]byte
	if _, err := io.ReadFull(c.Conn, head[:]); err != nil {
		return 0, nil, err
	}
	n, seq, _ := mywire.Peek(head[:])
	payload = make([]byte, n)
	_, err = io.ReadFull(c.Conn, payload)
	return seq, payload, err
}

// snapshot is the proxy's state now.
func (w *weir) snapshot() sight.Snapshot {
	w.tb.Helper()
	return proxytest.Snapshot(w.tb, w)
}

// pool is the state of the pools of w's database and root.
func (w *weir) pool() sight.PoolStatus {
	w.tb.Helper()
	return w.poolOf("root")
}

// poolOf is that of another user.
func (w *weir) poolOf(user string) sight.PoolStatus {
	w.tb.Helper()
	return proxytest.Pool(w.tb, w, w.db, user)
}

func eventually(tb testing.TB, what string, holds func() bool) {
	tb.Helper()
	testkit.Eventually(tb, what, holds)
}

// ctxFor bounds everything that a test does with its connections.
func ctxFor(tb testing.TB) context.Context {
	tb.Helper()
	return proxytest.Context(tb)
}

// code is the number of the server's error that err is, 0 for none.
func code(err error) uint16 {
	if e := (*driver.MySQLError)(nil); errors.As(err, &e) {
		return e.Number
	}
	return mywire.CodeOf(err)
}
