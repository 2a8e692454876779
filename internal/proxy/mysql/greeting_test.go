package mysql_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// TestPreferredTLSIsTLS: a client that takes TLS where it is offered gets it from a
// weir that has a certificate, whatever the server behind does.
func TestPreferredTLSIsTLS(t *testing.T) {
	t.Parallel()
	for name, address := range map[string]string{
		"a server":  server(t).Addr(),
		"no server": fmt.Sprintf("127.0.0.1:%d", reservedPort(t)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := start(t, "", func(c *mysql.Config) {
				c.ClientTLS, c.MySQL.Address, c.MySQL.TLSMode = serverTLS(t), address, mywire.TLSDisabled
			})
			database := "" // the console's, where there is no server
			if name == "no server" {
				database = "weir"
			}
			for range 3 {
				c := w.dial(func(c *mywire.ConnectConfig) { c.TLSMode, c.Database = mywire.TLSPreferred, database })
				if _, encrypted := c.Conn.(*tls.Conn); !encrypted || !c.Greeting.Caps.Has(mywire.CapSSL) {
					t.Errorf("the connection is a %T; TLS is offered: %v", c.Conn, c.Greeting.Caps.Has(mywire.CapSSL))
				}
				if name == "a server" {
					if err := c.changeUser(bob, bobPassword, ""); err != nil {
						t.Errorf("change of the user within TLS: %v", err)
					}
				}
			}
		})
	}
}

// A handshake that fails is the end: what comes behind it in plain text is no login.
func TestNoPlainTextBehindARequestForTLS(t *testing.T) {
	t.Parallel()
	w := start(t, "", func(c *mysql.Config) { c.ClientTLS = serverTLS(t) })
	conn, err := net.Dial("tcp", w.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	caps := mywire.CapsRequired | mywire.CapPluginAuth | mywire.CapSSL
	c := &wire{Server: &mywire.Server{Conn: conn, Caps: caps}, tb: t}
	_, payload := c.packet()
	greeting, err := mywire.ParseGreeting(payload)
	if err != nil {
		t.Fatal(err)
	}
	login := &mywire.Response{Caps: caps, User: bob, Auth: nativeProof(bobPassword, greeting.Salt), Plugin: mywire.PluginNative}
	c.send(mywire.AppendSSLRequest(nil, 1, login))
	c.send(mywire.AppendResponse(nil, 2, login))
	answer, err := io.ReadAll(conn)
	if len(answer) > 0 && answer[0] != 0x15 { // an alert of TLS
		t.Errorf("a login in plain text behind a request for TLS is answered with %q, %v", answer, err)
	}
	if n := w.snapshot().Logins; n != 0 {
		t.Errorf("%d logins", n)
	}
}

// TestGreetingFollowsTheServer: another server may take the place of the one before, and
// a server's defaults may change. Who logs in then is greeted and welcomed as directly.
func TestGreetingFollowsTheServer(t *testing.T) {
	t.Parallel()
	server(t) // skips without one
	other := serverConfig()
	other.Settings = map[string]string{"autocommit": "0", "character_set_server": "latin1", "version": "10.11.99-MariaDB-other"}
	first, second := labtest.MariaDB(t, serverConfig()), labtest.MariaDB(t, other)
	var address atomic.Value
	address.Store(first.Addr())
	w := startFor(t, first, "", func(c *mysql.Config) { c.MySQL.Address = switched(t, &address) })
	same := func(t *testing.T) {
		t.Helper()
		const settings = "SELECT CONCAT_WS(' ', @@autocommit, @@character_set_client, @@character_set_server, VERSION(), @@sql_mode)"
		var through, direct *wire
		var last string
		defer func() {
			if t.Failed() {
				t.Log(last)
			}
		}()
		eventually(t, "clients are greeted as by the server", func() bool {
			var err error
			if through, err = w.tryDial(nil); err != nil {
				return false
			}
			direct = dialAt(t, address.Load().(string), "", nil)
			g, d := through.Greeting, direct.Greeting
			if g.Version == d.Version && g.Charset == d.Charset && g.Status == d.Status && g.Plugin == d.Plugin && through.OK.Status == direct.OK.Status && through.one(settings) == direct.one(settings) {
				return true
			}
			last = fmt.Sprintf("%+v %#x %s, directly %+v %#x %s", g, through.OK.Status, through.one(settings), d, direct.OK.Status, direct.one(settings))
			_ = through.Close()
			_ = direct.Close()
			return false
		})
		for _, sql := range []string{"DO 1", "CREATE TABLE IF NOT EXISTS test.greeted (x INT)", "INSERT INTO test.greeted VALUES (1)"} {
			if got, want := through.must(sql).Status, direct.must(sql).Status; got&^mywire.StatusSessionState != want&^mywire.StatusSessionState {
				t.Errorf("%s: status %#x, directly %#x", sql, got, want)
			}
		}
		through.must("ROLLBACK")
		direct.must("ROLLBACK")
	}
	for _, s := range []string{first.Addr(), second.Addr()} {
		root := dialAt(t, s, "", nil)
		root.must("CREATE DATABASE IF NOT EXISTS test")
	}
	same(t)
	address.Store(second.Addr())
	first.Kill()
	same(t)
	dialAt(t, second.Addr(), "", nil).must("SET GLOBAL autocommit = 1, GLOBAL sql_mode = 'ANSI_QUOTES'")
	same(t)
}

// switched relays each connection to the server that is named when it is made.
func switched(t *testing.T, to *atomic.Value) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", to.Load().(string))
			if err != nil {
				_ = conn.Close()
				continue
			}
			for from, to := range map[net.Conn]net.Conn{conn: server, server: conn} {
				go func() {
					_, _ = io.Copy(to, from) // either end may go at any time
					_ = to.Close()
				}()
			}
		}
	}()
	return ln.Addr().String()
}
