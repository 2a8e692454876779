package mysql_test

import (
	"sync"
	"testing"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// Pools whose clients have left hold connections that others need.
func TestIdleBackendsMakeRoom(t *testing.T) {
	cfg := serverConfig()
	cfg.MaxConnections = 10
	server := labtest.MariaDB(t, cfg)
	w := startFor(t, server, "", func(c *mysql.Config) { c.PoolSize = 8 })
	// Each class of clients has a pool of its own, and each login leaves a backend.
	for _, caps := range []mywire.Caps{0, mywire.CapFoundRows, mywire.CapIgnoreSpace, mywire.CapInteractive, mywire.CapNoSchema} {
		for range 4 {
			c := w.dial(func(cfg *mywire.ConnectConfig) { cfg.Caps |= caps })
			if got := c.one("SELECT 1"); got != "1" {
				t.Fatalf("SELECT 1: %s", got)
			}
		}
	}
}

// More clients log in at once than the server has connections.
func TestLoginsAtOnceMakeRoom(t *testing.T) {
	cfg := serverConfig()
	cfg.MaxConnections = 10
	server := labtest.MariaDB(t, cfg)
	w := startFor(t, server, "", func(c *mysql.Config) { c.PoolSize = 3 })
	var all sync.WaitGroup
	for range 12 {
		all.Go(func() {
			c, err := w.tryDial(nil)
			if err != nil {
				t.Errorf("login: %v", err)
				return
			}
			if _, err := c.Exec(ctxFor(t), "DO 1"); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// A server that is full of others' connections refuses, in its own words.
func TestNoRoomToMake(t *testing.T) {
	cfg := serverConfig()
	cfg.MaxConnections = 10
	server := labtest.MariaDB(t, cfg)
	w := startFor(t, server, "", nil)
	for range cfg.MaxConnections + 1 { // root is let in once more than others
		eventually(t, "those that set the server up have gone", func() bool {
			conn, err := mywire.Connect(ctxFor(t), aroundWeir(server))
			if err == nil {
				t.Cleanup(func() { _ = conn.Close() })
			} else if mywire.CodeOf(err) != mywire.ErrTooManyConnections {
				t.Fatal(err)
			}
			return err == nil
		})
	}
	if _, err := w.tryDial(nil); mywire.CodeOf(err) != mywire.ErrTooManyConnections {
		t.Errorf("login: %v, want %d", err, mywire.ErrTooManyConnections)
	}
}

func aroundWeir(server *lab.MySQL) mywire.ConnectConfig {
	return mywire.ConnectConfig{Address: server.Addr(), User: "root", TLSMode: mywire.TLSDisabled, Timeout: patience}
}

// An account's own limit counts the connections of all classes, too.
func TestUserLimitMakesRoom(t *testing.T) {
	server := labtest.MariaDB(t, serverConfig())
	sqlOn(t, server, "CREATE USER few@'%' IDENTIFIED BY 'few' WITH MAX_USER_CONNECTIONS 3")
	secret, err := mywire.ParseSecret("few")
	if err != nil {
		t.Fatal(err)
	}
	w := startFor(t, server, "", func(c *mysql.Config) {
		c.PoolSize = 2
		c.Users = []mysql.User{{Name: "few", Secret: secret}}
	})
	for _, caps := range []mywire.Caps{0, mywire.CapFoundRows, mywire.CapIgnoreSpace, mywire.CapInteractive, mywire.CapNoSchema} {
		c := w.dial(func(cfg *mywire.ConnectConfig) {
			cfg.User, cfg.Password, cfg.Caps = "few", "few", cfg.Caps|caps
		})
		if got := c.one("SELECT 1"); got != "1" {
			t.Fatalf("SELECT 1: %s", got)
		}
	}
}
