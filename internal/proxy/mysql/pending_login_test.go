package mysql_test

import (
	"testing"
	"time"

	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// Clients who prove themselves by what weir knows come in on the loop, others elsewhere;
// all of them get in who know the password, and nobody else. What a client sends behind
// its login without waiting is not lost, whichever way it comes in.
func TestLoginsOnTheLoop(t *testing.T) {
	t.Parallel()
	secret, err := mywire.ParseSecret("own")
	if err != nil {
		t.Fatal(err)
	}
	db := database(t)
	for name, c := range map[string]struct {
		change   func(*mysql.Config)
		password string
		met      bool
	}{
		"auto":  {nil, "", false},
		"trust": {func(c *mysql.Config) { c.Auth = mysql.AuthTrust }, "", true},
		"file": {func(c *mysql.Config) {
			c.Auth = mywire.PluginNative
			c.Users = []mysql.User{{Name: "weir_guest", Secret: secret}}
		}, "own", true},
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t, db, c.change)
			user := "root"
			if c.password != "" {
				user = "weir_guest"
				dialAt(t, server(t).Addr(), "", nil).must("CREATE USER IF NOT EXISTS weir_guest IDENTIFIED BY 'own'")
				dialAt(t, server(t).Addr(), "", nil).must("GRANT ALL ON *.* TO weir_guest")
			}
			login := func(password string) (*mywire.Server, error) {
				return mywire.Connect(ctxFor(t), mywire.ConnectConfig{
					Address: w.Addr().String(), User: user, Password: password, Database: db, TLSMode: mywire.TLSDisabled,
				})
			}
			before := w.MetOnLoops(ctxFor(t))
			eventually(t, "logins on the loop, or elsewhere", func() bool {
				for range 3 {
					conn, err := login(c.password)
					if err != nil {
						t.Fatal(err)
					}
					rows, err := conn.Query(ctxFor(t), "SELECT 1 + 1")
					if err != nil || rows[0][0].String != "2" {
						t.Fatalf("%v, %v", rows, err)
					}
					_ = conn.Close()
				}
				return !c.met || w.MetOnLoops(ctxFor(t)) > before
			})
			if c.password == "" {
				return
			}
			for range 3 {
				if _, err := login("wrong"); mywire.CodeOf(err) != mywire.ErrAccessDenied {
					t.Errorf("a wrong password: %v", err)
				}
			}
		})
	}
}

// A login that began on the loop, and has to wait elsewhere, has as much time as others:
// not only what a client is given to answer the greeting.
func TestLoginsThatLeaveTheLoopKeepTheirTime(t *testing.T) {
	t.Parallel()
	const first = 2 * time.Second
	w := start(t, database(t), func(c *mysql.Config) { mysql.AnswerWithin(c, first) })
	w.dial(nil) // so that the server's greeting is known
	w.command("PAUSE " + w.db)
	began, done := time.Now(), make(chan error, 1)
	go func() {
		_, err := w.tryDial(nil)
		done <- err
	}()
	eventually(t, "the login waits", func() bool { return w.Arriving.Load() > 0 })
	eventually(t, "the time for the first answer is over", func() bool { return time.Since(began) > first+first/4 })
	w.command("RESUME " + w.db)
	if err := <-done; err != nil {
		t.Errorf("a login that waited while its database was paused: %v", err)
	}
}
