package postgres_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// A client is told at login the values in force, though they have changed without weir and the
// pool is warm.
func TestTheGreetingFollowsTheServer(t *testing.T) {
	t.Parallel()
	own := trusting(t)
	for _, pool := range []int{1, 8} {
		w := startFor(t, own, "postgres", func(c *postgres.Config) { c.PoolSize, c.LoginCheckInterval = pool, -1 })
		greeted := func(name string) string {
			c := dialWireAs(t, w.Addr().String(), "postgres", "bob")
			defer c.close()
			return c.params[name]
		}
		old := dialWireAs(t, w.Addr().String(), "postgres", "bob")
		mine := dialWireAs(t, w.Addr().String(), "postgres", "bob")
		mine.ask("SET TimeZone TO 'Asia/Tokyo'")
		for _, zone := range []string{"Europe/Berlin", "America/Lima"} {
			old.ask("SELECT 1")
			sqlOn(t, own.DSN("postgres"), "ALTER ROLE bob SET TimeZone TO '"+zone+"'")
			if got := greeted("TimeZone"); got != zone {
				t.Errorf("pool of %d: greeted with time zone %s, want %s", pool, got, zone)
			}
			c := dialWireAs(t, w.Addr().String(), "postgres", "bob")
			if c.params["TimeZone"] != zone {
				t.Errorf("pool of %d: the next one is greeted with %s", pool, c.params["TimeZone"])
			}
			c.close()
			mine.want("SHOW TimeZone", "[TimeZone] (Asia/Tokyo) SHOW I")
		}
		old.ask("SELECT 1")
		if old.params["TimeZone"] == "" {
			t.Error("no time zone was ever reported")
		}
		sqlOn(t, own.DSN("postgres"), "ALTER ROLE bob RESET TimeZone")
		old.close()
		mine.close()
		if err := w.stop(); err != nil {
			t.Fatal(err)
		}
	}
}

// A standby that is promoted is greeted as what it is.
func TestTheGreetingFollowsAPromotion(t *testing.T) {
	t.Parallel()
	own := trusting(t)
	if err := os.WriteFile(filepath.Join(own.DataDir(), "standby.signal"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := own.Restart(ctxFor(t)); err != nil {
		t.Fatal(err)
	}
	w := startFor(t, own, "postgres", func(c *postgres.Config) { c.LoginCheckInterval = -1 })
	before := dialWire(t, w.Addr().String(), "postgres")
	before.ask("SELECT 1")
	zone := dialWire(t, w.Addr().String(), "postgres", pgwire.Param{Name: "TimeZone", Value: "Asia/Tokyo"})
	for _, c := range []*wire{before, zone} {
		if c.params["in_hot_standby"] != "on" {
			t.Skipf("the server reports no in_hot_standby: %v", c.params)
		}
	}
	sqlOn(t, own.DSN("postgres"), "SELECT pg_promote()")
	for range 2 {
		for _, params := range [][]pgwire.Param{nil, {{Name: "TimeZone", Value: "Asia/Tokyo"}}, {{Name: "DateStyle", Value: "ISO, DMY"}}} {
			c := dialWire(t, w.Addr().String(), "postgres", params...)
			if got := c.params["in_hot_standby"]; got != "off" {
				t.Errorf("after the promotion, a client with parameters %v is greeted with in_hot_standby %q", params, got)
			}
			c.close()
		}
	}
	before.ask("SELECT 1")
	if got := before.params["in_hot_standby"]; got != "off" {
		t.Errorf("a client from before the promotion was last told in_hot_standby %q", got)
	}
}
