package mysql_test

import (
	"testing"
	"time"

	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/proxy/proxytest"
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
	ended := proxytest.StallLogins(t, w.Addr().String(), []proxytest.StalledLogin{
		{Name: "says nothing"},
		{Name: "says a byte", Said: response[:1]},
		{Name: "says half an answer", Said: response[:len(response)/2]},
		{Name: "says its answer byte by byte", Then: response},
		{Name: "says nothing of its password", Said: response},
		{Name: "says a part of its password", Said: append(response, 20, 0, 0, 3, 'x')},
		{Name: "says its password byte by byte", Said: append(response, 200, 0, 0, 3), Then: make([]byte, 199)},
	})
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
	ended()
	login()
	eventually(t, "nothing of them is left", func() bool { return w.Sessions.Load() <= 3 })
}
