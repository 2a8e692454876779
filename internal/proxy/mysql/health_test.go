package mysql_test

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// A server that hangs keeps its connections, and takes new ones: the kernel does.
// That is not health.
func TestHangingServerIsNotHealthy(t *testing.T) {
	t.Parallel()
	server := ownServer(t)
	for name, user := range map[string]string{"with an account": "root", "without": ""} {
		t.Run(name, func(t *testing.T) {
			db := databaseOn(t, server)
			w := startFor(t, server, db, func(c *mysql.Config) { c.MySQL.User = user })
			c := w.dial(nil)
			c.must("DO 0")
			if err := w.Healthy(ctxFor(t)); err != nil {
				t.Fatalf("healthy server: %v", err)
			}
			server.Pause()
			defer server.Resume()
			eventually(t, "the proxy is not healthy", func() bool {
				err := w.Healthy(ctxFor(t))
				if err == nil {
					return false
				}
				if !strings.Contains(err.Error(), server.Addr()) || !strings.Contains(err.Error(), "no answer within") {
					t.Fatalf("%v: does not say what does not answer", err)
				}
				return true
			})
			server.Resume()
			eventually(t, "the proxy is healthy again", func() bool { return w.Healthy(ctxFor(t)) == nil })
			if got := c.one("SELECT 7"); got != "7" {
				t.Errorf("afterwards: %s", got)
			}
		})
	}
}

// A login at a server that hangs ends with an error that says so, before clients
// give up by themselves.
func TestLoginAtAHangingServer(t *testing.T) {
	t.Parallel()
	server := ownServer(t)
	for name, change := range map[string]func(*mysql.Config){
		"relayed": func(c *mysql.Config) { c.MySQL.User = "" },
		"vouched": func(c *mysql.Config) { c.Auth, c.Users = mysql.AuthTrust, []mysql.User{{Name: "root"}} },
	} {
		t.Run(name, func(t *testing.T) {
			w := startFor(t, server, databaseOn(t, server), func(c *mysql.Config) {
				change(c)
				c.ConnectTimeout = time.Second
			})
			c := w.dial(nil)
			c.must("DO 0")
			server.Pause()
			defer server.Resume()
			eventually(t, "a login is refused", func() bool {
				conn, err := w.tryDial(nil) // the server's yes to the one before counts for a moment
				if err == nil {
					_ = conn.Close()
					return false
				}
				if !strings.Contains(err.Error(), "has not answered the login within 1s (--connect-timeout") || !strings.Contains(err.Error(), server.Addr()) {
					t.Fatalf("%v: does not say what does not answer", err)
				}
				return true
			})
			server.Resume()
			w.dial(nil).must("DO 0")
		})
	}
}

// Clients that leave in the middle of their logins must not have the server block
// weir's host.
func TestHalfLoginsDoNotBlockTheHost(t *testing.T) {
	t.Parallel()
	const limit = 5
	cfg := serverConfig()
	// Hosts are counted only where names are looked up, and 127.0.0.1 never is.
	cfg.Settings = map[string]string{"max_connect_errors": "5", "skip_name_resolve": "0"}
	server := labtest.MariaDB(t, cfg)
	from := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	sqlOn(t, server, "CREATE USER any@'%' IDENTIFIED BY 'secret'", "CREATE USER open@'%'")
	db := databaseOn(t, server)
	w := startFor(t, server, db, func(c *mysql.Config) {
		c.MySQL.Dial = from.DialContext
		c.MySQL.User = ""
	})
	login := func(c *mywire.ConnectConfig) { c.User, c.Password, c.Database = "any", "secret", "" }
	w.dial(login)
	for _, user := range []string{"any", "open", "nobody"} {
		for range 2 * limit {
			conn, err := net.Dial("tcp", w.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			greet := make([]byte, 512)
			if _, err := conn.Read(greet); err != nil {
				t.Fatal(err)
			}
			r := &mywire.Response{
				Caps: mywire.CapsRequired | mywire.CapPluginAuth, MaxPacket: 1 << 24, Charset: mywire.CharsetUTF8MB4,
				User: user, Plugin: mywire.PluginNative, Auth: []byte("xxxxxxxxxxxxxxxxxxxx"),
			}
			if _, err := conn.Write(mywire.AppendResponse(nil, 1, r)); err != nil {
				t.Fatal(err)
			}
			_, _ = conn.Read(greet) // the server's question, which stays unanswered
			_ = conn.Close()
		}
	}
	eventually(t, "all half logins have ended", func() bool {
		return w.snapshot().LoginsFailed+w.snapshot().Logins >= 1+3*2*limit
	})
	w.dial(login)

	// The same without weir's care does block the host; then weir says so, and does
	// not keep trying.
	block(t, server.Addr(), from, limit)
	_, err := w.tryDial(login)
	if code(err) != mywire.ErrHostBlocked || !strings.Contains(err.Error(), "FLUSH HOSTS") || !strings.Contains(err.Error(), "weir") {
		t.Fatalf("blocked host: %v", err)
	}
	sqlOn(t, server, "FLUSH HOSTS")
	eventually(t, "logins work again", func() bool {
		conn, err := w.tryDial(login)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
}

// block has the server block the host that the dialer connects from.
func block(t *testing.T, addr string, from *net.Dialer, limit int) {
	t.Helper()
	eventually(t, "the server blocks who leaves in the middle of logins", func() bool {
		for range limit + 1 {
			conn, err := from.DialContext(ctxFor(t), "tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = conn.Read(make([]byte, 512))
			_, _ = conn.Write([]byte{0, 0, 0, 1})
			_ = conn.Close()
		}
		ctx, cancel := context.WithTimeout(ctxFor(t), time.Minute)
		defer cancel()
		_, err := mywire.Dial(ctx, mywire.ConnectConfig{Address: addr, Dial: from.DialContext, TLSMode: mywire.TLSDisabled})
		return mywire.CodeOf(err) == mywire.ErrHostBlocked
	})
}
