package bouncer

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/pgbouncer"
	"github.com/weirdb/weir/internal/proxy/sight"
)

// This file has the answers to SHOW, with exactly PgBouncer's columns, in its order.

// socketColumns are those of SHOW CLIENTS and SHOW SERVERS; debugColumns follow in SHOW
// SOCKETS.
var (
	socketColumns = []string{
		"type", "user", "database", "replication", "state", "addr", "port", "local_addr", "local_port", "connect_time", "request_time",
		"wait", "wait_us", "close_needed", "ptr", "link", "remote_pid", "tls", "application_name", "prepared_statements", "id",
	}
	debugColumns = []string{"recv_pos", "pkt_pos", "pkt_remain", "send_pos", "send_remain", "pkt_avail", "send_avail"}
)

// show answers SHOW.
func (c *console) show(ctx context.Context, arg string) (t sight.Table, err error) {
	what := strings.ToUpper(arg)
	st := c.d.state.Load()
	switch what {
	case "CLIENTS":
		t, err = c.clients(ctx)
		return typed(t), err
	case "SERVERS":
		t, err = c.sockets(ctx, "SERVERS")
		return typed(t), err
	case "SOCKETS", "ACTIVE_SOCKETS":
		t, err = c.allSockets(ctx, what == "ACTIVE_SOCKETS")
		return typed(t), err
	case "CONFIG":
		t.Cols = []string{"key", "value", "default", "changeable"}
		st.Show(func(name, value, def string, changeable bool) {
			if name == "auth_ldap_options" && strings.Contains(value, "ldapbindpasswd") {
				value = "(it has a password)"
			}
			t.Add(name, value, def, map[bool]string{true: "yes", false: "no"}[changeable])
		})
		return t, nil
	case "VERSION":
		t.Cols = []string{"version"}
		t.Add(Version())
		return t, nil
	case "STATE":
		t.Cols = []string{"key", "value"}
		paused, suspended := core.AllPaused(&c.d.b.srv.Server), c.d.b.srv.Suspended()
		for _, x := range []struct {
			key string
			on  bool
		}{{"active", !paused}, {"paused", paused && !suspended}, {"suspended", suspended}} {
			t.Add(x.key, map[bool]string{true: "yes", false: "no"}[x.on])
		}
		return t, nil
	case "PEERS":
		t.Cols = []string{"peer_id", "host", "port", "pool_size"}
		for _, id := range slices.Sorted(maps.Keys(st.Peers)) {
			p := st.Peers[id]
			t.Add(p.ID, p.Host, p.Port, st.Number("default_pool_size"))
		}
		return typed(t), nil
	case "PEER_POOLS":
		t.Cols = []string{"peer_id", "cl_active_cancel_req", "cl_waiting_cancel_req", "sv_active_cancel", "sv_login"}
		for _, id := range slices.Sorted(maps.Keys(st.Peers)) {
			t.Add(id, 0, 0, 0, 0)
		}
		return typed(t), nil
	case "MEM":
		return typed(sight.Table{Cols: []string{"name", "size", "used", "free", "memtotal"}}), nil
	case "DNS_HOSTS":
		return typed(sight.Table{Cols: []string{"hostname", "ttl", "addrs"}}), nil
	case "DNS_ZONES":
		return typed(sight.Table{Cols: []string{"zonename", "serial", "count"}}), nil
	case "FDS":
		return t, no("weir hands over no sockets: start the new process with -R")
	case "", "HELP":
		t.Cols = []string{"command"}
		for _, line := range helpLines {
			t.Add(line)
		}
		return t, nil
	}
	for _, f := range fakes {
		if strings.EqualFold(f[0], arg) {
			t.Cols = []string{f[0]}
			t.Add(f[1])
			return t, nil
		}
	}
	snap, err := c.d.b.srv.Snapshot(ctx)
	if err != nil {
		return t, fmt.Errorf("collect state: %w", err)
	}
	switch what {
	case "POOLS":
		return c.pools(st, &snap), nil
	case "DATABASES":
		return c.databases(st, &snap), nil
	case "USERS":
		return c.users(st, &snap), nil
	case "LISTS":
		return c.lists(st, &snap), nil
	case "STATS", "STATS_TOTALS", "STATS_AVERAGES", "TOTALS":
		return c.d.b.stats(what, &snap), nil
	}
	return t, no("invalid command 'SHOW " + arg + "', use SHOW HELP;")
}

var helpLines = []string{
	"SHOW HELP|CONFIG|DATABASES|POOLS|CLIENTS|SERVERS|USERS|VERSION", "SHOW PEERS|PEER_POOLS",
	"SHOW FDS|SOCKETS|ACTIVE_SOCKETS|LISTS|MEM|STATE", "SHOW DNS_HOSTS|DNS_ZONES", "SHOW STATS|STATS_TOTALS|STATS_AVERAGES|TOTALS",
	"SET key = arg", "RELOAD", "PAUSE [<db>]", "RESUME [<db>]", "DISABLE <db>", "ENABLE <db>", "RECONNECT [<db>]", "KILL [<db>]",
	"KILL_CLIENT <client_id>", "SUSPEND", "SHUTDOWN", "SHUTDOWN WAIT_FOR_SERVERS|WAIT_FOR_CLIENTS", "WAIT_CLOSE [<db>]",
}

// sockets returns a table of weir's console, reduced to PgBouncer's columns.
func (c *console) sockets(ctx context.Context, what string) (sight.Table, error) {
	a, err := c.d.b.srv.Command(ctx, "SHOW "+what)
	if err != nil {
		return sight.Table{}, err
	}
	t := sight.Table{Cols: socketColumns}
	for _, r := range a.Table.Rows {
		t.Rows = append(t.Rows, slices.Clone(r[:len(socketColumns)]))
	}
	return t, nil
}

// clients answers SHOW CLIENTS, including clients of the console.
func (c *console) clients(ctx context.Context) (sight.Table, error) {
	t, err := c.sockets(ctx, "CLIENTS")
	if err != nil {
		return t, err
	}
	host, port := hostPort(c.d.b.srv.Addr().String())
	var consoles sight.Table
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	for x := range c.d.consoles {
		if x != c && x.hungUp() {
			continue
		}
		from, at := hostPort(x.addr)
		since := x.since.UTC().Format("2006-01-02 15:04:05 UTC")
		consoles.Add("C", x.user, consoleName, "none", "active", from, at, host, port, since, since, 0, 0, 0, x.id, "", 0, "", x.app, 0, x.id)
	}
	t.Rows = append(consoles.Rows, t.Rows...)
	return t, nil
}

func hostPort(address string) (host, port string) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "unix", "0"
	}
	return host, port
}

// allSockets answers SHOW SOCKETS and SHOW ACTIVE_SOCKETS.
func (c *console) allSockets(ctx context.Context, active bool) (sight.Table, error) {
	t := sight.Table{Cols: append(slices.Clone(socketColumns), debugColumns...)}
	clients, err := c.clients(ctx)
	if err != nil {
		return t, err
	}
	servers, err := c.sockets(ctx, "SERVERS")
	if err != nil {
		return t, err
	}
	zeros := slices.Repeat([]string{"0"}, len(debugColumns))
	for i, side := range []sight.Table{clients, servers} {
		for _, r := range side.Rows {
			if active && r[4] != "active" {
				continue
			}
			r[4] = []string{"cl_", "sv_"}[i] + r[4]
			t.Rows = append(t.Rows, append(r, zeros...))
		}
	}
	return t, nil
}

// balance returns load_balance_hosts of a database, "" if it has one host.
func balance(db *pgbouncer.Database) string {
	switch {
	case db == nil || len(db.Hosts) < 2:
		return ""
	case db.RoundRobin:
		return "round-robin"
	}
	return "disable"
}

// pools answers SHOW POOLS.
func (c *console) pools(st *state, snap *sight.Snapshot) sight.Table {
	t := sight.Table{Cols: sight.PoolColumns}
	t.Add(consoleName, consoleName, c.d.consoleCount(), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, "statement", "")
	for i := range snap.Pools {
		p := &snap.Pools[i]
		db, _ := st.Database(p.Database)
		waiting := min(max(p.Waiting, p.WaitingClients), p.Clients)
		t.Add(p.Database, p.User, p.Clients-waiting, waiting, 0, 0, p.Backends-p.Free, 0, 0, p.Free, 0, 0, p.Dialing,
			int(p.OldestWait.Seconds()), p.OldestWait.Microseconds()%1e6, st.poolMode(db, p.User), balance(db))
	}
	return typed(t)
}

func (d *authenticator) consoleCount() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.consoles)
}

// databases answers SHOW DATABASES.
func (c *console) databases(st *state, snap *sight.Snapshot) sight.Table {
	t := sight.Table{Cols: sight.DatabaseColumns}
	names := c.d.names(st)
	names[consoleName] = true
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(names)) {
		db, _ := st.Database(name)
		if name == consoleName {
			t.Add(name, "", st.Number("listen_port"), consoleName, consoleName, 2, 0, 0, int(st.Time("server_lifetime").Seconds()), "statement",
				"", 0, 0, st.maxClients(nil), c.d.clients[name], 0, 0)
			continue
		}
		backends := 0
		for i := range snap.Pools {
			if p := &snap.Pools[i]; p.Database == name {
				backends += p.Backends
			}
		}
		lifetime := cmp.Or(db.ServerLifetime, st.Time("server_lifetime"))
		g := c.d.b.srv.GateOf(name)
		t.Add(name, strings.Join(db.Hosts, ","), db.Port, cmp.Or(db.DBName, name), db.User,
			given(db.PoolSize, st.Number("default_pool_size")), given(db.MinPoolSize, st.Number("min_pool_size")),
			given(db.ReservePoolSize, st.Number("reserve_pool_size")), int(lifetime.Seconds()), db.Mode, balance(db),
			given(db.MaxConnections, st.Number("max_db_connections")), backends, st.maxClients(db), c.d.clients[name], bit(g.Paused), bit(g.Disabled))
	}
	return typed(t)
}

func given(n, def int) int {
	if n >= 0 {
		return n
	}
	return def
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

// users answers SHOW USERS: users that are configured, or were found by auth_query.
func (c *console) users(st *state, snap *sight.Snapshot) sight.Table {
	t := sight.Table{Cols: sight.UserColumns}
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	names := maps.Clone(c.d.looked)
	for name := range st.users {
		names[name] = true
	}
	for name := range st.Users {
		names[name] = true
	}
	if as := st.Text("auth_user"); as != "" {
		names[as] = true
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		size, reserve, mode, most := "", "", "", st.Number("max_user_connections")
		if u := st.Users[name]; u != nil {
			mode, most = u.Mode, given(u.MaxConnections, most)
			if u.PoolSize >= 0 {
				size = fmt.Sprintf("%9d", u.PoolSize)
			}
			if u.ReservePoolSize >= 0 {
				reserve = fmt.Sprintf("%9d", u.ReservePoolSize)
			}
		}
		backends := 0
		for i := range snap.Pools {
			if p := &snap.Pools[i]; p.User == name {
				backends += p.Backends
			}
		}
		t.Add(name, size, reserve, mode, most, backends, st.maxUserClients(name), c.d.ofUser[name])
	}
	return typed(t, "pool_size", "reserve_pool_size")
}

// lists answers SHOW LISTS.
func (c *console) lists(st *state, snap *sight.Snapshot) sight.Table {
	consoles := c.d.consoleCount()
	return typed(snap.ListsTable(sight.Lists{
		Databases: len(c.d.names(st)) + 1, Users: len(c.users(st, snap).Rows), Peers: len(st.Peers), Pools: len(snap.Pools) + 1,
		Clients: snap.Clients + consoles, Login: max(0, int(c.d.b.srv.Sessions.Load())-snap.Clients-consoles),
	}))
}
