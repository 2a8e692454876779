package postgres_test

import (
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/proxy/netloop"
	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/testkit"
)

// Connections of clients and to the server have the options for dead peers.
func TestBothSidesNoticeDeadPeers(t *testing.T) {
	t.Parallel()
	relay := labtest.Relay(t, server(t).Addr())
	w := start(t, database(t), func(c *postgres.Config) {
		c.Postgres.Address = relay.Addr() // which no other test connects to
		c.Keepalive = netloop.Keepalive{Idle: 40 * time.Second, Interval: 5 * time.Second, Count: 4, UserTimeout: 33 * time.Second}
	})
	w.wire().want("SELECT 1 AS x", "[x] (1) SELECT_1 I")
	here := w.Addr().String()
	testkit.KeepaliveIs(t, map[string]func(local, peer string) bool{
		"client": func(local, _ string) bool { return local == here },
		"server": func(_, peer string) bool { return peer == relay.Addr() },
	}, 40, 5, 4, 33000)
}
