package bouncer

import (
	"maps"
	"slices"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/sight"
)

// countNames are the counts of SHOW STATS_TOTALS, in its order.
var countNames = append(slices.Clone(sight.CountNames), "client_login_count")

// counts are those of each database.
func (b *Bouncer) counts(totals map[string]sight.Totals, logins map[string]uint64) map[string][]uint64 {
	out := sight.Counts(totals)
	for name := range out {
		out[name] = append(out[name], 0)
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
	switch what {
	case "STATS":
		return typed(sight.StatsTable(countNames, totals, averages))
	case "STATS_TOTALS":
		return typed(sight.CountsTable(countNames, totals))
	case "STATS_AVERAGES":
		return typed(sight.CountsTable(countNames, averages))
	}
	t := sight.TotalsTable(countNames, totals, averages)
	t.Ints = []bool{false, true}
	return t
}
