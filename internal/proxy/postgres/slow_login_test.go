package postgres_test

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// TestSlowLoginsEndAndLeaveRoom has many clients that never finish their logins, each
// in another way: others log in meanwhile, and --login-timeout ends them all, those
// that say something again and again, too.
func TestSlowLoginsEndAndLeaveRoom(t *testing.T) {
	t.Parallel()
	db := database(t)
	password, err := pgwire.ParseSecret("secret")
	if err != nil {
		t.Fatal(err)
	}
	w := start(t, db, func(c *postgres.Config) {
		c.LoginTimeout = 2 * time.Second
		c.Auth, c.Users = "scram-sha-256", []postgres.User{{Name: "postgres", Secret: password}}
	})
	startup := pgwire.AppendStartup(nil, 3<<16, []pgwire.Param{{Name: "user", Value: "postgres"}, {Name: "database", Value: db}})
	startup = startup[:len(startup):len(startup)]
	sasl := append(startup, 'p', 0, 0, 1)
	kinds := []struct {
		name string
		said []byte // at once
		then []byte // a byte now and then
	}{
		{"says nothing", nil, nil},
		{"says a byte", startup[:1], nil},
		{"says half a startup", startup[:len(startup)/2], nil},
		{"says its startup byte by byte", nil, startup},
		{"says a long startup byte by byte", []byte{0, 0, 0x20, 0, 0, 3, 0, 0}, make([]byte, 8000)},
		{"says nothing of its password", startup, nil},
		{"says a part of its password", sasl, nil},
		{"says its password byte by byte", append(sasl, 0, 'S'), make([]byte, 200)},
	}
	const each = 20
	ended := make(chan string, each*len(kinds))
	for _, k := range kinds {
		for range each {
			conn, err := net.Dial("tcp", w.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Close() })
			_ = conn.SetDeadline(time.Now().Add(patience))
			if _, err := conn.Write(k.said); err != nil {
				t.Fatal(err)
			}
			go func() {
				for _, b := range k.then {
					if _, err := conn.Write([]byte{b}); err != nil {
						break
					}
					time.Sleep(50 * time.Millisecond) // the pace of who wants to be slow
				}
			}()
			go func() {
				_, err := io.Copy(io.Discard, conn)
				if e, ok := err.(net.Error); ok && e.Timeout() {
					ended <- k.name + " and stays"
					return
				}
				ended <- ""
			}()
		}
	}
	login := func() {
		eventually(t, "others log in", func() bool {
			be, err := pgwire.Connect(ctxFor(t), pgwire.ConnectConfig{
				Address: w.Addr().String(), User: "postgres", Password: "secret", Database: db, TLSMode: pgwire.TLSDisable,
			})
			if err != nil {
				return false
			}
			newWire(t, be).want("SELECT 1 AS x", "[x] (1) SELECT_1 I")
			return true
		})
	}
	login()
	for range each * len(kinds) {
		if what := <-ended; what != "" {
			t.Errorf("a client that %s", what)
		}
	}
	login()
	eventually(t, "nothing of them is left", func() bool { return w.Sessions.Load() <= 2 })
}
