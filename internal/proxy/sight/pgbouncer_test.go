package sight_test

import (
	"slices"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/proxy/sight"
)

func pool(database, user string, statements uint64, took time.Duration) sight.PoolStatus {
	p := sight.PoolStatus{Database: database, User: user, Statements: statements, Transactions: statements / 2, Waited: time.Millisecond, Backends: 3, Free: 1, Clients: 2, Waiting: 1, Latency: new(measure.Hist)}
	for range statements {
		p.Latency.Record(int64(took))
	}
	return p
}

// cell is a value of the row whose first cell is name.
func cell(t *testing.T, table sight.Table, name, column string) string {
	t.Helper()
	i := slices.Index(table.Cols, column)
	for _, row := range table.Rows {
		if len(row) != len(table.Cols) {
			t.Fatalf("%d cells in a row of %d columns", len(row), len(table.Cols))
		}
		if row[0] == name && i >= 0 {
			return row[i]
		}
	}
	t.Fatalf("no %s of %s in %+v", column, name, table)
	return ""
}

// PgBouncer counts per database, users together, and averages over a period.
func TestStatsAddUpUsers(t *testing.T) {
	t.Parallel()
	s := sight.Snapshot{Pools: []sight.PoolStatus{pool("a", "x", 4, time.Millisecond), pool("a", "y", 6, time.Millisecond), pool("b", "x", 2, time.Millisecond)}}
	s.AddDatabase(sight.DatabaseStatus{Name: "b"})
	s.AddDatabase(sight.DatabaseStatus{Name: "a", Paused: true})
	s.AddDatabase(sight.DatabaseStatus{Name: "a"})
	now := s.Totals()
	before := map[string]sight.Totals{"a": {Queries: 4, Transactions: 3, WaitTime: 2000}}
	averages := map[string]sight.Totals{"a": now["a"].Average(before["a"], 2*time.Second), "b": now["b"].Average(before["b"], 2*time.Second)}
	stats := sight.StatsTable(sight.CountNames, sight.Counts(now), sight.Counts(averages))
	for _, want := range []struct{ database, column, value string }{
		{"a", "total_query_count", "10"},
		{"a", "total_xact_count", "5"},
		{"a", "total_wait_time", "2000"}, // microseconds
		{"a", "avg_query_count", "3"},    // (10 - 4) in 2 s
		{"a", "avg_xact_count", "1"},
		{"b", "total_query_count", "2"},
		{"b", "avg_query_count", "1"},
	} {
		if got := cell(t, stats, want.database, want.column); got != want.value {
			t.Errorf("%s of %s is %s, want %s", want.column, want.database, got, want.value)
		}
	}
	if got := cell(t, sight.CountsTable(sight.CountNames, sight.Counts(now)), "b", "query_count"); got != "2" {
		t.Errorf("query_count of b is %s, want 2", got)
	}
	if got := cell(t, sight.TotalsTable(sight.CountNames, sight.Counts(now), sight.Counts(averages)), "total_query_count", "value"); got != "12" {
		t.Errorf("all databases have %s queries, want 12", got)
	}
	databases := s.DatabasesTable("h", "1", "transaction", func(name string) sight.DatabaseLimits {
		return sight.DatabaseLimits{PoolSize: 20, MaxConnections: len(name)}
	})
	if len(databases.Rows) != 2 || cell(t, databases, "a", "paused") != "1" || cell(t, databases, "a", "current_connections") != "6" || cell(t, databases, "b", "paused") != "0" ||
		cell(t, databases, "b", "host") != "h" || cell(t, databases, "b", "pool_size") != "20" || cell(t, databases, "b", "max_connections") != "1" {
		t.Errorf("SHOW DATABASES: %+v", databases)
	}
	limits := func(user string) sight.UserLimits { return sight.UserLimits{PoolSize: "3", MaxClients: len(user)} }
	if users := s.UsersTable(limits); cell(t, users, "x", "current_connections") != "6" || cell(t, users, "x", "pool_size") != "3" || cell(t, users, "y", "max_user_client_connections") != "1" || cell(t, users, "y", "current_client_connections") != "2" {
		t.Errorf("SHOW USERS: %+v", users)
	}
	pools := s.PoolsTable("transaction")
	if cell(t, pools, "b", "cl_waiting") != "1" || cell(t, pools, "b", "cl_active") != "1" || cell(t, pools, "b", "sv_idle") != "1" || cell(t, pools, "b", "sv_active") != "2" {
		t.Errorf("SHOW POOLS: %+v", pools)
	}
	if lists := s.ListsTable(s.Lists(5)); cell(t, lists, "pools", "items") != "3" || cell(t, lists, "login_clients", "items") != "5" || cell(t, lists, "used_servers", "items") != "6" {
		t.Errorf("SHOW LISTS: %+v", lists)
	}
}
