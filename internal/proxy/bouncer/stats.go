package bouncer

import (
	"maps"
	"slices"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/sight"
)

// countNames are the counts of SHOW STATS_TOTALS, in its order.
var countNames = []string{
	"server_assignment_count", "xact_count", "query_count", "bytes_received", "bytes_sent", "xact_time", "query_time", "wait_time",
	"client_parse_count", "server_parse_count", "bind_count", "client_login_count",
}

// counts are those of each database.
func (b *Bouncer) counts(totals map[string]sight.Totals, logins map[string]uint64) map[string][]uint64 {
	out := make(map[string][]uint64)
	for name, t := range totals {
		out[name] = append(t.Columns(), 0)
	}
	for name, n := range logins {
		if out[name] == nil {
			out[name] = make([]uint64, len(countNames))
		}
		out[name][len(countNames)-1] = n
	}
	return out
}

// stats answers SHOW STATS, STATS_TOTALS, STATS_AVERAGES and TOTALS.
func (b *Bouncer) stats(what string, snap *sight.Snapshot) sight.Table {
	b.seenMu.Lock()
	logins := maps.Clone(b.seenList)
	b.seenMu.Unlock()
	totals := b.counts(snap.Totals(), logins)
	console := make([]uint64, len(countNames))
	queries := b.consoleQueries.Load()
	console[1], console[2], console[len(console)-1] = queries, queries, b.consoleLogins.Load()
	totals[consoleName] = console
	averages := b.counts(core.Averages(&b.srv.Server, snap), nil)
	averages[consoleName] = make([]uint64, len(countNames))
	for name := range totals {
		if averages[name] == nil {
			averages[name] = make([]uint64, len(countNames))
		}
	}
	var t sight.Table
	switch what {
	case "STATS":
		t.Cols = []string{"database"}
		for _, prefix := range []string{"total_", "avg_"} {
			for _, n := range countNames {
				switch {
				case n == "bytes_received" && prefix == "avg_":
					n = "recv"
				case n == "bytes_received":
					n = "received"
				case n == "bytes_sent":
					n = "sent"
				}
				t.Cols = append(t.Cols, prefix+n)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(totals)) {
			t.Add(row(name, totals[name], averages[name])...)
		}
	case "TOTALS":
		t.Cols = []string{"name", "value"}
		for _, x := range []struct {
			prefix string
			of     map[string][]uint64
		}{{"total_", totals}, {"avg_", averages}} {
			for i, n := range countNames {
				sum := uint64(0)
				for _, c := range x.of {
					sum += c[i]
				}
				t.Add(x.prefix+n, sum)
			}
		}
		t.Ints = []bool{false, true}
		return t
	default:
		of := totals
		if what == "STATS_AVERAGES" {
			of = averages
		}
		t.Cols = append([]string{"database"}, countNames...)
		for _, name := range slices.Sorted(maps.Keys(of)) {
			t.Add(row(name, of[name])...)
		}
	}
	return typed(t)
}

func row(name string, counts ...[]uint64) []any {
	r := []any{name}
	for _, list := range counts {
		for _, n := range list {
			r = append(r, n)
		}
	}
	return r
}
