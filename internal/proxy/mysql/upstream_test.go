package mysql_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/proxy/upstream"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// A primary is made read-only and another host takes writes: connections to the first
// end at once, clients without state go on at the second, transactions are told.
func TestHostThatTakesWritesIsFollowed(t *testing.T) {
	t.Parallel()
	server(t) // skips or fails where there is no server
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var hosts []*lab.MySQL
	for range 2 {
		s, err := lab.StartMariaDB(ctx, serverConfig())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Discard(context.Background()) })
		sqlOn(t, s, "CREATE DATABASE shop", "CREATE TABLE shop.t (a INT PRIMARY KEY)")
		hosts = append(hosts, s)
	}
	old, next := hosts[0], hosts[1]
	sqlOn(t, next, "SET GLOBAL read_only = 1")
	w := startFor(t, old, "shop", func(c *mysql.Config) {
		for _, s := range []*lab.MySQL{next, old} { // not in the order of their roles
			c.Hosts = append(c.Hosts, mywire.ConnectConfig{Address: s.Addr(), User: s.User(), Password: s.Password(), TLSMode: mywire.TLSDisabled})
		}
		c.Target, c.FailoverTimeout = upstream.TargetReadWrite, patience
	})
	idle, inTx := w.dial(nil), w.dial(nil)
	idle.must("INSERT INTO t VALUES (1)")
	idle.must("/* batch */ INSERT INTO t VALUES (2)")
	inTx.must("BEGIN")
	inTx.must("INSERT INTO t VALUES (3)")

	sqlOn(t, old, "SET GLOBAL read_only = 1")
	eventually(t, "no host takes writes", func() bool { return w.Healthy(t.Context()) != nil })
	_, err := inTx.Exec(ctx, "INSERT INTO t VALUES (4)")
	if err == nil {
		t.Error("a transaction went on at a server that takes no writes")
	}
	answered := make(chan error, 1)
	go func() {
		_, err := idle.Exec(ctx, "INSERT INTO t VALUES (5)")
		answered <- err
	}()
	sqlOn(t, next, "SET GLOBAL read_only = 0")
	if err := <-answered; err != nil {
		t.Errorf("a write that waited for the new primary: %v", err)
	}
	idle.must("/* batch */ INSERT INTO t VALUES (6)")
	if got := idle.one("SELECT GROUP_CONCAT(a ORDER BY a) FROM t"); got != "5,6" {
		t.Errorf("the new primary has rows %s, want 5,6", got)
	}
	direct, err := mywire.Connect(ctx, mywire.ConnectConfig{Address: old.Addr(), User: old.User(), Password: old.Password(), Database: "shop", TLSMode: mywire.TLSDisabled})
	if err != nil {
		t.Fatal(err)
	}
	rows, err := direct.Query(ctx, "SELECT GROUP_CONCAT(a ORDER BY a) FROM t")
	if err = errors.Join(err, direct.Close()); err != nil || rows[0][0].String != "1,2" {
		t.Errorf("the old primary has rows %v: %v; want 1,2", rows, err)
	}
}

// Whether weir can serve is asked of the host that connections go to: a former primary
// still answers.
func TestHealthIsThatOfThePresentHost(t *testing.T) {
	t.Parallel()
	server(t) // skips or fails where there is no server
	var hosts []*lab.MySQL
	for range 2 {
		s, err := lab.StartMariaDB(ctxFor(t), serverConfig())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Discard(context.Background()) })
		hosts = append(hosts, s)
	}
	old, next := hosts[0], hosts[1]
	sqlOn(t, next, "SET GLOBAL read_only = 1")
	w := startFor(t, old, "", func(c *mysql.Config) {
		for _, s := range hosts {
			c.Hosts = append(c.Hosts, mywire.ConnectConfig{Address: s.Addr(), User: s.User(), Password: s.Password(), TLSMode: mywire.TLSDisabled})
		}
		c.Target = upstream.TargetReadWrite
	})
	if err := w.Healthy(ctxFor(t)); err != nil { // asks: no client has been answered
		t.Fatal(err)
	}
	sqlOn(t, old, "SET GLOBAL read_only = 1")
	eventually(t, "no host takes writes", func() bool { return w.Healthy(ctxFor(t)) != nil })
	sqlOn(t, next, "SET GLOBAL read_only = 0")
	eventually(t, "another host takes writes", func() bool { return w.Healthy(ctxFor(t)) == nil })
	next.Kill()
	eventually(t, "that host is dead", func() bool { return w.Healthy(ctxFor(t)) != nil })
}

// Readers that want a host that takes no writes get it, and weir is not healthy where there
// is none.
func TestStandbyIsChosenWhereItIsWanted(t *testing.T) {
	t.Parallel()
	server(t) // skips or fails where there is no server
	var hosts []*lab.MySQL
	for range 2 {
		s, err := lab.StartMariaDB(ctxFor(t), serverConfig())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Discard(context.Background()) })
		hosts = append(hosts, s)
	}
	sqlOn(t, hosts[1], "SET GLOBAL read_only = 1")
	w := startFor(t, hosts[0], "", func(c *mysql.Config) {
		for _, s := range hosts {
			c.Hosts = append(c.Hosts, mywire.ConnectConfig{Address: s.Addr(), User: s.User(), Password: s.Password(), TLSMode: mywire.TLSDisabled})
		}
		c.Target, c.FailoverTimeout = upstream.TargetStandby, patience
	})
	port := func(s *lab.MySQL) string { _, p, _ := net.SplitHostPort(s.Addr()); return p }
	reader := w.dial(nil)
	if got, want := reader.one("SELECT @@port"), port(hosts[1]); got != want {
		t.Errorf("reads go to port %s, want %s", got, want)
	}
	sqlOn(t, hosts[1], "SET GLOBAL read_only = 0")
	eventually(t, "no standby is left", func() bool { return w.Healthy(t.Context()) != nil })
	sqlOn(t, hosts[0], "SET GLOBAL read_only = 1")
	if got, want := reader.one("SELECT @@port"), port(hosts[0]); got != want {
		t.Errorf("reads go to port %s when the hosts have changed places, want %s", got, want)
	}
}

// Logins that the server has to decide wait for the next primary, as statements do, whether
// the one before has died or takes no writes any more.
func TestLoginsWaitForAPrimary(t *testing.T) {
	t.Parallel()
	server(t) // skips or fails where there is no server
	for name, leave := range map[string]func(t *testing.T, old *lab.MySQL){
		"dead":      func(_ *testing.T, old *lab.MySQL) { old.Kill() },
		"read-only": func(t *testing.T, old *lab.MySQL) { sqlOn(t, old, "SET GLOBAL read_only = 1") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			var hosts []*lab.MySQL
			for range 2 {
				s, err := lab.StartMariaDB(ctx, serverConfig())
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = s.Discard(context.Background()) })
				if err := makeUsers(ctx, s); err != nil {
					t.Fatal(err)
				}
				hosts = append(hosts, s)
			}
			old, next := hosts[0], hosts[1]
			sqlOn(t, next, "SET GLOBAL read_only = 1")
			w := startFor(t, old, "", func(c *mysql.Config) {
				for _, s := range hosts {
					c.Hosts = append(c.Hosts, mywire.ConnectConfig{Address: s.Addr(), User: s.User(), Password: s.Password(), TLSMode: mywire.TLSDisabled})
				}
				c.Target, c.FailoverTimeout = upstream.TargetReadWrite, patience
			})
			asBob := func(c *mywire.ConnectConfig) { c.User, c.Password = bob, bobPassword }
			w.dial(asBob)
			leave(t, old)
			eventually(t, "weir knows", func() bool { return w.Healthy(t.Context()) != nil })
			const logins = 8 // more than try at a time
			errs := make(chan error, logins)
			for range logins {
				go func() {
					_, err := w.tryDial(asBob)
					errs <- err
				}()
			}
			eventually(t, "the logins wait", func() bool { return w.snapshot().LoginsFailed > 0 || w.Arriving.Load() >= logins })
			sqlOn(t, next, "SET GLOBAL read_only = 0")
			for range logins {
				if err := <-errs; err != nil {
					t.Errorf("a login while no host takes writes: %v", err)
				}
			}
		})
	}
}

// A client that waited for --queue-timeout while the server was away gets an error that says so.
func TestQueueTimeoutWhileTheServerIsAway(t *testing.T) {
	t.Parallel()
	server(t) // skips or fails where there is no server
	s, err := lab.StartMariaDB(ctxFor(t), serverConfig())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Discard(context.Background()) })
	w := startFor(t, s, "", func(c *mysql.Config) { c.QueueTimeout, c.ConnectPatience = 100*time.Millisecond, patience })
	c := w.dial(nil)
	eventually(t, "the server answers", func() bool { // on a busy machine not within 100 ms
		_, err = c.Exec(ctxFor(t), "DO 1")
		return err == nil
	})
	s.Kill()
	eventually(t, "the wait ends with the reason", func() bool {
		_, err = c.Exec(ctxFor(t), "DO 1")
		return code(err) == mywire.ErrTooManyConnections && strings.Contains(err.Error(), "weir cannot reach the server")
	})
}

// A replica that takes writes, as they do by default, is not taken for the primary when
// weir starts, whichever of the two is named first. While both say so, the log does.
func TestReplicaThatTakesWritesIsNotThePrimary(t *testing.T) {
	t.Parallel()
	server(t) // skips or fails where there is no server
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var hosts []*lab.MySQL
	for i := range 2 {
		cfg := serverConfig()
		cfg.Settings = map[string]string{"server_id": strconv.Itoa(100 + i)}
		s, err := lab.StartMariaDB(ctx, cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Discard(context.Background()) })
		hosts = append(hosts, s)
	}
	primary, replica := hosts[0], hosts[1]
	host, port, err := net.SplitHostPort(primary.Addr())
	if err != nil {
		t.Fatal(err)
	}
	sqlOn(t, primary, "CREATE USER follower@'%' IDENTIFIED BY 'secret'", "GRANT REPLICATION SLAVE ON *.* TO follower@'%'")
	sqlOn(t, replica, "CHANGE MASTER TO MASTER_HOST = '"+host+"', MASTER_PORT = "+port+", MASTER_USER = 'follower', MASTER_PASSWORD = 'secret', MASTER_USE_GTID = slave_pos",
		"START SLAVE")
	sqlOn(t, primary, "CREATE DATABASE shop", "CREATE TABLE shop.t (a INT PRIMARY KEY)")
	count := func(s *lab.MySQL) string {
		c, err := mywire.Connect(ctx, mywire.ConnectConfig{Address: s.Addr(), User: s.User(), Password: s.Password(), TLSMode: mywire.TLSDisabled})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		rows, err := c.Query(ctx, "SELECT COUNT(*) FROM shop.t")
		if err != nil {
			return err.Error()
		}
		return rows[0][0].String
	}
	eventually(t, "the replica follows", func() bool { return count(replica) == "0" })
	var log strings.Builder
	var mu sync.Mutex
	w := startFor(t, primary, "shop", func(c *mysql.Config) {
		c.Log = slog.New(slog.NewTextHandler(writer(func(p []byte) (int, error) {
			mu.Lock()
			defer mu.Unlock()
			return log.Write(p)
		}), nil))
		for _, s := range []*lab.MySQL{replica, primary} {
			c.Hosts = append(c.Hosts, mywire.ConnectConfig{Address: s.Addr(), User: s.User(), Password: s.Password(), TLSMode: mywire.TLSDisabled})
		}
		c.Target = upstream.TargetReadWrite
	})
	client := w.dial(nil)
	client.must("INSERT INTO t VALUES (1)")
	if got := count(primary); got != "1" {
		t.Errorf("the primary has %s rows of one: it went to the replica", got)
	}
	eventually(t, "the log tells of two", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return strings.Contains(log.String(), upstream.ErrTwoPrimaries.Error())
	})

	// How far it is behind is seen once it is read-only.
	eventually(t, "the replica has the row", func() bool { return count(replica) == "1" })
	sqlOn(t, replica, "SET GLOBAL read_only = 1", "STOP SLAVE SQL_THREAD")
	client.must("INSERT INTO t VALUES (2)")
	client.must("INSERT INTO t VALUES (3)")
	lag := func() (h sight.HostStatus) {
		for _, h = range w.snapshot().Hosts {
			if h.Address == replica.Addr() {
				break
			}
		}
		return h
	}
	eventually(t, "the replica is behind", func() bool { h := lag(); return h.LagKnown && h.Behind == 2 && h.Lag > 0 })
	sqlOn(t, replica, "START SLAVE SQL_THREAD")
	eventually(t, "the replica has caught up", func() bool { h := lag(); return h.LagKnown && h.Behind == 0 && h.Lag == 0 })
}

func TestTransactionsOfGTIDs(t *testing.T) {
	t.Parallel()
	for set, want := range map[string]uint64{
		"": 0, "0-1-77": 77, "0-1-77,1-2-5": 82,
		"3E11FA47-71CA-11E1-9E33-C80AA9429562:1-77":                                                  77,
		"3E11FA47-71CA-11E1-9E33-C80AA9429562:1-3:11:47-49,\n2174B383-5441-11E8-B90A-C80AA9429562:1": 8,
		"3E11FA47-71CA-11E1-9E33-C80AA9429562:1-3:aix-tag_1:1-5":                                     8,
		"what it is": 0, "9-9": 9, "u:5-3": 0,
	} {
		if got := mysql.Transactions(set); got != want {
			t.Errorf("%q: %d, want %d", set, got, want)
		}
	}
}

type writer func(p []byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }
