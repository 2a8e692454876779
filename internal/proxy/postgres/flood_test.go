package postgres_test

import (
	"fmt"
	gosync "sync"
	"sync/atomic"
	"testing"

	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// TestFloodOfLogins lets many clients keep logging in with wrong passwords and unknown names,
// while the configuration is reloaded again and again. A client with the right password is
// accepted; the flood costs the server only the connections that weir may use to look up roles;
// and no wrong password is accepted, whatever a reload replaces in the middle of a login.
func TestFloodOfLogins(t *testing.T) {
	t.Parallel()
	own, err := pgwire.ParseSecret("own")
	if err != nil {
		t.Fatal(err)
	}
	var cfg postgres.Config
	w := start(t, database(t), func(c *postgres.Config) {
		c.Auth = "scram-sha-256"
		c.AuthQuery = "SELECT rolname, 'secret'::text FROM pg_catalog.pg_roles WHERE rolname = $1"
		c.Users = []postgres.User{{Name: "postgres", Secret: own}}
		cfg = *c
	})
	login := func(user, password string) error {
		be, err := pgwire.Connect(ctxFor(t), pgwire.ConnectConfig{
			Address: w.Addr().String(), User: user, Password: password, Database: w.db, TLSMode: pgwire.TLSDisable,
		})
		if err == nil {
			_ = be.Conn.Close()
		}
		return err
	}
	stop := make(chan struct{})
	var wrong, right atomic.Int64
	var flood gosync.WaitGroup
	for i := range 16 {
		flood.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				switch user := []string{"postgres", "weir_other", fmt.Sprintf("nobody%d", n)}[i%3]; {
				case login(user, "wrong") == nil:
					t.Errorf("%s was let in by a wrong password", user)
				default:
					wrong.Add(1)
				}
			}
		})
	}
	for _, who := range [][2]string{{"postgres", "own"}, {"weir_other", "secret"}} {
		flood.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := login(who[0], who[1]); err != nil {
					t.Errorf("%s, who knows the password: %v", who[0], err)
				}
				right.Add(1)
			}
		})
	}
	for round := 0; wrong.Load() < int64(testkit.Rounds(150, 600)) || right.Load() < 40 || round < 20; round++ {
		next := cfg
		next.Users = []postgres.User{{Name: "postgres", Secret: own}, {Name: fmt.Sprintf("user%d", round), Secret: own}}
		if err := w.Reload(next); err != nil {
			t.Fatal(err)
		}
		if n := w.sessions(); n > 4+2+8 { // lookups, one question for each of two users, the pools
			t.Errorf("the server has %d sessions of weir", n)
		}
	}
	close(stop)
	flood.Wait()
	if err := login("postgres", "own"); err != nil {
		t.Errorf("after the flood: %v", err)
	}
	eventually(t, "nothing of it is left", func() bool { return w.Sessions.Load() == 0 })
}
