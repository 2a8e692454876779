package sight

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// This file has the tables of PgBouncer's console, with its columns: its exporters and
// dashboards read them by their names.

// The columns of SHOW POOLS, SHOW DATABASES and SHOW USERS.
var (
	PoolColumns = []string{
		"database", "user", "cl_active", "cl_waiting", "cl_active_cancel_req", "cl_waiting_cancel_req",
		"sv_active", "sv_active_cancel", "sv_being_canceled", "sv_idle", "sv_used", "sv_tested", "sv_login",
		"maxwait", "maxwait_us", "pool_mode", "load_balance_hosts",
	}
	DatabaseColumns = []string{
		"name", "host", "port", "database", "force_user", "pool_size", "min_pool_size", "reserve_pool_size", "server_lifetime", "pool_mode",
		"load_balance_hosts", "max_connections", "current_connections", "max_client_connections", "current_client_connections", "paused", "disabled",
	}
	UserColumns = []string{
		"name", "pool_size", "reserve_pool_size", "pool_mode", "max_user_connections", "current_connections",
		"max_user_client_connections", "current_client_connections",
	}
)

// PoolsTable answers SHOW POOLS. Columns from clients on are weir's own.
func (s *Snapshot) PoolsTable(mode string) Table {
	t := Table{Cols: slices.Concat(PoolColumns, []string{
		"clients", "active", "waiting", "max_wait_ms", "servers", "size", "free", "shared", "owned", "laned", "connecting", "pinned",
	})}
	for _, p := range s.Pools {
		waiting := min(max(p.Waiting, p.WaitingClients), p.Clients)
		t.Add(p.Database, p.User, p.Clients-waiting, waiting, 0, 0,
			p.Backends-p.Free, 0, 0, p.Free, 0, 0, p.Dialing,
			int(p.OldestWait.Seconds()), p.OldestWait.Microseconds()%1e6, mode, "",
			p.Clients, p.Active, p.Waiting, p.OldestWait, p.Backends, p.Size, p.Free, p.Shared, p.Owned, p.Laned, p.Dialing, p.Pinned)
	}
	return t
}

// Totals are the counts of one database since the start, in PgBouncer's terms. Times
// are in microseconds.
type Totals struct {
	Assignments, Transactions, Queries uint64
	Received, Sent                     uint64
	// QueryTime is that of all statements. Time in transactions counts as much: the
	// pauses of their clients are left out.
	TransactionTime, QueryTime, WaitTime uint64
	// Of prepared statements: what clients prepared, and the server for them, and how
	// often they were bound.
	Parses, ServerParses, Binds uint64
}

// Totals returns the counts of each database.
func (s *Snapshot) Totals() map[string]Totals {
	out := make(map[string]Totals)
	for i := range s.Pools {
		p := &s.Pools[i]
		t := out[p.Database]
		t.Parses += p.Parses
		t.ServerParses += p.ServerParses
		t.Binds += p.Binds
		t.Assignments += cmp.Or(p.Assignments, p.Statements)
		t.Transactions += p.Transactions
		t.Queries += p.Statements
		t.Received += p.Received
		t.Sent += p.Sent
		t.WaitTime += uint64(p.Waited.Microseconds())
		if all := time.Duration(p.Latency.Sum()); all > p.Waited {
			t.QueryTime += uint64((all - p.Waited).Microseconds())
			t.TransactionTime = t.QueryTime
		}
		out[p.Database] = t
	}
	return out
}

// Average is what the totals grew by in a period: counts per second, times per
// transaction and per query.
func (t Totals) Average(before Totals, period time.Duration) Totals {
	sec := max(period.Seconds(), 1e-3)
	rate := func(now, was uint64) uint64 { return uint64(float64(now-min(now, was)) / sec) }
	mean := func(now, was, n, nWas uint64) uint64 { return (now - min(now, was)) / max(1, n-min(n, nWas)) }
	return Totals{
		Assignments: rate(t.Assignments, before.Assignments), Transactions: rate(t.Transactions, before.Transactions),
		Queries: rate(t.Queries, before.Queries), Received: rate(t.Received, before.Received), Sent: rate(t.Sent, before.Sent),
		TransactionTime: mean(t.TransactionTime, before.TransactionTime, t.Transactions, before.Transactions),
		QueryTime:       mean(t.QueryTime, before.QueryTime, t.Queries, before.Queries),
		WaitTime:        mean(t.WaitTime, before.WaitTime, t.Queries, before.Queries),
		Parses:          rate(t.Parses, before.Parses), ServerParses: rate(t.ServerParses, before.ServerParses), Binds: rate(t.Binds, before.Binds),
	}
}

// Counts are totals as numbers, in the order of CountNames.
func Counts(of map[string]Totals) map[string][]uint64 {
	out := make(map[string][]uint64, len(of))
	for name, t := range of {
		out[name] = []uint64{t.Assignments, t.Transactions, t.Queries, t.Received, t.Sent, t.TransactionTime, t.QueryTime, t.WaitTime, t.Parses, t.ServerParses, t.Binds}
	}
	return out
}

// CountNames are those of STATS_TOTALS and STATS_AVERAGES. STATS has others for bytes.
var CountNames = []string{
	"server_assignment_count", "xact_count", "query_count", "bytes_received", "bytes_sent", "xact_time", "query_time", "wait_time",
	"client_parse_count", "server_parse_count", "bind_count",
}

// StatsTable answers SHOW STATS, with the counts of each database by names.
func StatsTable(names []string, totals, averages map[string][]uint64) Table {
	t := Table{Cols: []string{"database"}}
	for _, side := range []struct{ prefix, received, sent string }{{"total_", "received", "sent"}, {"avg_", "recv", "sent"}} {
		for _, n := range names {
			switch n {
			case "bytes_received":
				n = side.received
			case "bytes_sent":
				n = side.sent
			}
			t.Cols = append(t.Cols, side.prefix+n)
		}
	}
	for _, db := range slices.Sorted(maps.Keys(totals)) {
		t.addCounts(db, totals[db], averages[db])
	}
	return t
}

// CountsTable answers SHOW STATS_TOTALS and SHOW STATS_AVERAGES.
func CountsTable(names []string, counts map[string][]uint64) Table {
	t := Table{Cols: append([]string{"database"}, names...)}
	for _, db := range slices.Sorted(maps.Keys(counts)) {
		t.addCounts(db, counts[db])
	}
	return t
}

func (t *Table) addCounts(db string, counts ...[]uint64) {
	row := []any{db}
	for _, n := range slices.Concat(counts...) {
		row = append(row, n)
	}
	t.Add(row...)
}

// TotalsTable answers SHOW TOTALS: all databases added up, a count in each row.
func TotalsTable(names []string, totals, averages map[string][]uint64) Table {
	t := Table{Cols: []string{"name", "value"}}
	for _, part := range []struct {
		prefix string
		of     map[string][]uint64
	}{{"total_", totals}, {"avg_", averages}} {
		for i, n := range names {
			sum := uint64(0)
			for _, counts := range part.of {
				sum += counts[i]
			}
			t.Add(part.prefix+n, sum)
		}
	}
	return t
}

// DatabaseLimits are those of a database in SHOW DATABASES.
type DatabaseLimits struct {
	PoolSize, MinPoolSize, ReservePoolSize int
	MaxConnections, MaxClients             int
	Lifetime                               time.Duration
}

// DatabasesTable answers SHOW DATABASES. Connections go to host and port; of tells the
// limits of a database.
func (s *Snapshot) DatabasesTable(host, port, mode string, of func(database string) DatabaseLimits) Table {
	t := Table{Cols: DatabaseColumns}
	for _, d := range s.Databases {
		backends, clients := 0, 0
		for i := range s.Pools {
			if p := &s.Pools[i]; p.Database == d.Name {
				backends += p.Backends
				clients += p.Clients
			}
		}
		l := of(d.Name)
		t.Add(d.Name, host, port, d.Name, "", l.PoolSize, l.MinPoolSize, l.ReservePoolSize, int(l.Lifetime.Seconds()), mode,
			"", l.MaxConnections, backends, l.MaxClients, clients, bit(d.Paused), bit(d.Disabled))
	}
	return t
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

// AddDatabase adds a database, unless it is there.
func (s *Snapshot) AddDatabase(d DatabaseStatus) {
	at, found := slices.BinarySearchFunc(s.Databases, d.Name, func(x DatabaseStatus, name string) int { return cmp.Compare(x.Name, name) })
	if !found {
		s.Databases = slices.Insert(s.Databases, at, d)
	}
}

// UserLimits are those of a user in SHOW USERS. The sizes are empty where they are as
// for everybody.
type UserLimits struct {
	PoolSize, ReservePoolSize  string
	MaxConnections, MaxClients int
}

// UsersTable answers SHOW USERS. of tells the limits of a user.
func (s *Snapshot) UsersTable(of func(user string) UserLimits) Table {
	t := Table{Cols: UserColumns}
	type counts struct{ backends, clients int }
	users := make(map[string]counts)
	for i := range s.Pools {
		p := &s.Pools[i]
		c := users[p.User]
		users[p.User] = counts{c.backends + p.Backends, c.clients + p.Clients}
	}
	for _, name := range slices.Sorted(maps.Keys(users)) {
		l := of(name)
		t.Add(name, l.PoolSize, l.ReservePoolSize, "", l.MaxConnections, users[name].backends, l.MaxClients, users[name].clients)
	}
	return t
}

// Lists are the numbers in SHOW LISTS that no pool tells.
type Lists struct{ Databases, Users, Peers, Pools, Clients, Login int }

// Lists are those of the snapshot. login is how many clients are logging in.
func (s *Snapshot) Lists(login int) Lists {
	users := make(map[string]bool)
	for i := range s.Pools {
		users[s.Pools[i].User] = true
	}
	return Lists{Databases: len(s.Databases), Users: len(users), Pools: len(s.Pools), Clients: s.Clients, Login: login}
}

// ListsTable answers SHOW LISTS.
func (s *Snapshot) ListsTable(l Lists) Table {
	free, used := 0, 0
	for i := range s.Pools {
		p := &s.Pools[i]
		free += p.Free
		used += p.Backends - p.Free
	}
	t := Table{Cols: []string{"list", "items"}}
	for _, kv := range []struct {
		list  string
		items int
	}{
		{"databases", l.Databases},
		{"users", l.Users},
		{"peers", l.Peers},
		{"pools", l.Pools},
		{"peer_pools", l.Peers},
		{"free_clients", 0},
		{"used_clients", l.Clients},
		{"login_clients", l.Login},
		{"free_servers", free},
		{"used_servers", used},
		{"dns_names", 0},
		{"dns_zones", 0},
		{"dns_queries", 0},
		{"dns_pending", 0},
	} {
		t.Add(kv.list, kv.items)
	}
	return t
}
