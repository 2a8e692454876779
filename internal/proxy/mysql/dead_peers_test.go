package mysql_test

import (
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/proxy/netloop"
	"github.com/weirdb/weir/internal/testkit"
)

// Connections of clients and to the server have the options for dead peers.
func TestBothSidesNoticeDeadPeers(t *testing.T) {
	t.Parallel()
	relay := labtest.Relay(t, server(t).Addr())
	w := start(t, database(t), func(c *mysql.Config) {
		c.MySQL.Address = relay.Addr() // which no other test connects to
		c.Keepalive = netloop.Keepalive{Idle: 40 * time.Second, Interval: 5 * time.Second, Count: 4, UserTimeout: 33 * time.Second}
	})
	w.dial(nil).must("DO 1")
	again := w.dial(nil)
	if err := again.changeUser("root", "", w.db); err != nil {
		t.Fatal(err)
	}
	again.must("DO 1")
	here := w.Addr().String()
	testkit.KeepaliveIs(t, map[string]func(local, peer string) bool{
		"client": func(local, _ string) bool { return local == here },
		"server": func(_, peer string) bool { return peer == relay.Addr() },
	}, 40, 5, 4, 33000)
}
