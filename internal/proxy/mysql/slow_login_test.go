package mysql_test

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// TestSlowLoginsEndAndLeaveRoom has many clients that never finish their logins, each
// in another way: others log in meanwhile, and --login-timeout ends them all, those
// that say something again and again, too.
func TestSlowLoginsEndAndLeaveRoom(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), func(c *mysql.Config) { c.LoginTimeout = 2 * time.Second })
	w.dial(nil) // weir knows its server
	response := mywire.AppendResponse(nil, 1, &mywire.Response{
		Caps: mywire.CapsRequired | mywire.CapPluginAuth, MaxPacket: 1 << 24, Charset: mywire.CharsetUTF8MB4,
		User: bob, Plugin: "nobody_has_this", Auth: []byte("xxxxxxxxxxxxxxxxxxxx"),
	})
	response = response[:len(response):len(response)]
	kinds := []struct {
		name string
		said []byte // at once
		then []byte // a byte now and then
	}{
		{"says nothing", nil, nil},
		{"says a byte", response[:1], nil},
		{"says half an answer", response[:len(response)/2], nil},
		{"says its answer byte by byte", nil, response},
		{"says nothing of its password", response, nil},
		{"says a part of its password", append(response, 20, 0, 0, 3, 'x'), nil},
		{"says its password byte by byte", append(response, 200, 0, 0, 3), make([]byte, 199)},
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
			c, err := w.tryDial(func(c *mywire.ConnectConfig) { c.User, c.Password = bob, bobPassword })
			if err != nil {
				return false
			}
			_, err = c.Exec(ctxFor(t), "DO 1")
			return err == nil
		})
	}
	login()
	for range each * len(kinds) {
		if what := <-ended; what != "" {
			t.Errorf("a client that %s", what)
		}
	}
	login()
	eventually(t, "nothing of them is left", func() bool { return w.Sessions.Load() <= 3 })
}
