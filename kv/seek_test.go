package kv_test

import (
	"testing"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/kv"
)

// A client that is told one replica finds the one that leads.
func testOneEndpointIsEnough(t *testing.T, cluster *lab.KV) {
	for _, addr := range cluster.PeerAddrs() {
		c, err := kv.Open(within(t), []string{addr}, kv.Options{})
		check(t, err, nil)
		_, err = c.Increment(within(t), "n", 1)
		check(t, err, nil)
		check(t, c.Close(), nil)
	}
	c := open(t, cluster, kv.Options{})
	item, err := c.Get(within(t), "n")
	check(t, err, nil)
	if string(item.Value) != "3" {
		t.Fatalf("n = %s after an increment through each replica", item.Value)
	}
}

// Two addresses may lead to one replica, as a name and what the cluster calls it do. One
// that leads nowhere any more does not keep the client from it.
func testASecondAddressIsEnough(t *testing.T, cluster *lab.KV) {
	addr := cluster.PeerAddrs()[0]
	relay := labtest.Relay(t, addr)
	c, err := kv.Open(within(t), []string{relay.Addr(), addr}, kv.Options{})
	check(t, err, nil)
	defer func() { check(t, c.Close(), nil) }()
	testkit.Eventually(t, "both addresses are connected", func() bool {
		_, down := c.Replicas()
		return len(down) == 0
	})
	check(t, relay.Refuse(true), nil)
	relay.Cut()
	testkit.Eventually(t, "one address leads nowhere", func() bool {
		_, down := c.Replicas()
		return down[relay.Addr()] != nil
	})
	_, err = c.Increment(within(t), "n", 1)
	check(t, err, nil)
}
