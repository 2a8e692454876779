package process_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/weirdb/weir/internal/admin/live/livetest"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit/browser"
)

// A page that is opened after a load shows it in the charts, and also that a standby does not
// apply the log.
func TestPageShowsLoadThatNobodyWatched(t *testing.T) {
	b := browser.Start(t)
	pg := labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast})
	standby, err := lab.StartStandby(t.Context(), pg, lab.PostgresConfig{Durability: lab.Fast})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = standby.Stop(context.Background()) })
	log, stop := startProxy(t, "--postgres", fmt.Sprintf("postgres://%s@%s,%s/postgres", pg.User(), pg.Addr(), standby.Addr()), "--slow-log", "1ms")
	listens := log.Await("weir proxy listens")
	address, admin := listens["address"].(string), listens["admin"].(string)
	conn, err := dial(t, address, pg.User(), "", "postgres")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "CREATE TABLE orders (id int)"); err != nil {
		t.Fatal(err)
	}
	replica, err := dial(t, standby.Addr(), pg.User(), "", "postgres")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := replica.Exec(t.Context(), "SELECT pg_wal_replay_pause()"); err != nil {
		t.Fatal(err)
	}
	livetest.Load(t, admin, "replica_lag", func(i int) {
		for _, sql := range []string{fmt.Sprintf("/* batch */ INSERT INTO orders VALUES (%d)", i), "SELECT count(*) FROM orders", "SELECT pg_sleep(0.003)"} {
			if _, err := conn.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
	})
	p := livetest.Open(t, b, admin, "proxy")
	p.HasPoints("Statements", "Latency", "Where time goes", "Clients", "Server connections", "Group size", "Why groups went", "Replicas", "CPU", "Memory")
	p.HasRows("Statements", "insert into orders")
	p.HasRows("Pools", "postgres")
	p.HasRows("Hosts", "standby")
	p.HasRows("Slow statements", "pg_sleep")
	p.Await("the lane's decisions", `document.body.innerText.includes("a lane was free")`)
	p.Works()
	if code := stop(); code != 0 {
		t.Errorf("exit %d", code)
	}
}
