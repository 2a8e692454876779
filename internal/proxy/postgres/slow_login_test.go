package postgres_test

import (
	"testing"
	"time"

	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/proxy/proxytest"
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
	ended := proxytest.StallLogins(t, w.Addr().String(), []proxytest.StalledLogin{
		{Name: "says nothing"},
		{Name: "says a byte", Said: startup[:1]},
		{Name: "says half a startup", Said: startup[:len(startup)/2]},
		{Name: "says its startup byte by byte", Then: startup},
		{Name: "says a long startup byte by byte", Said: []byte{0, 0, 0x20, 0, 0, 3, 0, 0}, Then: make([]byte, 8000)},
		{Name: "says nothing of its password", Said: startup},
		{Name: "says a part of its password", Said: sasl},
		{Name: "says its password byte by byte", Said: append(sasl, 0, 'S'), Then: make([]byte, 200)},
	})
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
	ended()
	login()
	eventually(t, "nothing of them is left", func() bool { return w.Sessions.Load() <= 2 })
}
