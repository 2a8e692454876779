package sight

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/version"
)

// Version is the program's version, as SHOW VERSION prints it.
const Version = version.Number

// A Table is what a command of the console shows, as text.
type Table struct {
	Cols []string
	Rows [][]string
	// Ints tells the columns that hold whole numbers. Default: none, all are text.
	Ints []bool
}

// Whole reports whether a column holds whole numbers.
func (t *Table) Whole(col int) bool { return col < len(t.Ints) && t.Ints[col] }

// Add appends a row: durations as milliseconds, which is what the columns' names
// promise, fractions with two digits, all else as fmt prints it.
func (t *Table) Add(cells ...any) {
	row := make([]string, len(cells))
	for i, c := range cells {
		switch c := c.(type) {
		case time.Duration:
			row[i] = millis(c)
		case float64:
			row[i] = strconv.FormatFloat(c, 'f', 2, 64)
		default:
			row[i] = fmt.Sprint(c)
		}
	}
	t.Rows = append(t.Rows, row)
}

func millis(d time.Duration) string {
	return strconv.FormatFloat(float64(d)/1e6, 'f', 3, 64)
}

// PoolStatsTable answers SHOW POOL_STATS.
func (s *Snapshot) PoolStatsTable() Table {
	t := Table{Cols: []string{"database", "user", "statements", "shared_reads", "grouped_writes", "errors", "bytes", "waits", "wait_ms", "timeouts", "p50_ms", "p99_ms", "max_ms", "reruns", "replays", "connections_opened", "connection_errors"}}
	for _, p := range s.Pools {
		q := func(f float64) time.Duration { return time.Duration(p.Latency.Quantile(f)) }
		t.Add(p.Database, p.User, p.Statements, p.Reads, p.Grouped, p.Errors, p.Bytes, p.Waits, p.Waited, p.Timeouts, q(0.5), q(0.99), time.Duration(p.Latency.Max()), p.Reruns, p.Replays, p.Opened, p.DialErrors)
	}
	return t
}

// BatchesTable answers SHOW BATCHES.
func (s *Snapshot) BatchesTable() Table {
	t := Table{Cols: []string{"database", "user", "kind", "window_ms", "groups", "statements", "mean_size", "waiting", "in_flight", "lanes", "limit", "fallbacks", "retried", "wait_p50_ms", "flush_p50_ms", "statement"}}
	for _, l := range s.Lanes {
		mean := 0.0
		if l.Groups > 0 {
			mean = float64(l.Members) / float64(l.Groups)
		}
		window := "auto"
		if l.Window > 0 {
			window = millis(l.Window)
		}
		t.Add(l.Database, l.User, l.Kind, window, l.Groups, l.Members, mean, l.Waiting, l.InFlight, l.Lanes, l.Limit, l.Fallbacks, l.Retried,
			time.Duration(l.Batch.Wait.Quantile(0.5)), time.Duration(l.Batch.Flush.Quantile(0.5)), l.Text)
	}
	return t
}

// StatementsTable answers SHOW STATEMENTS: what took most time comes first.
func (s *Snapshot) StatementsTable() Table {
	t := Table{Cols: []string{
		"fingerprint", "verb", "runs", "shared", "grouped", "pinned", "errors", "rows", "total_ms", "mean_ms", "max_ms", "wait_ms",
		"cost_ms", "mean_bytes", "site", "statement",
	}}
	shapes := slices.Clone(s.Shapes)
	slices.SortStableFunc(shapes, func(a, b ShapeStatus) int { return cmp.Compare(b.Total, a.Total) })
	for i := range shapes {
		sh := &shapes[i]
		t.Add(FingerprintText(sh.Fingerprint), sh.Verb, sh.Runs, sh.Shared, sh.Grouped, sh.Pinned, sh.Errors, sh.Rows,
			sh.Total, sh.Mean(), sh.Max, sh.Waited(), sh.Cost, sh.MeanBytes, sh.Site, sh.Text)
	}
	return t
}

// CacheTable answers SHOW CACHE.
func (s *Snapshot) CacheTable() Table {
	t := Table{Cols: []string{"database", "entries", "bytes", "hits", "stale", "misses", "shared", "evictions", "skipped", "skipped_by_reason"}}
	for i := range s.Caches {
		c := &s.Caches[i]
		var reasons []string
		all := uint64(0)
		for _, r := range slices.Sorted(maps.Keys(c.Skipped)) {
			reasons = append(reasons, fmt.Sprintf("%s=%d", r, c.Skipped[r]))
			all += c.Skipped[r]
		}
		t.Add(c.Database, c.Entries, c.Bytes, c.Hits, c.Stale, c.Misses, c.Shared, c.Evicted, all, strings.Join(reasons, " "))
	}
	return t
}

// FingerprintText is how a fingerprint is written.
func FingerprintText(fp uint64) string { return fmt.Sprintf("%016x", fp) }

// PinsTable answers SHOW PINS.
func (s *Snapshot) PinsTable() Table {
	t := Table{Cols: []string{"database", "user", "cause", "pins"}}
	for _, p := range s.Pools {
		for _, cause := range slices.Sorted(maps.Keys(p.Pins)) {
			t.Add(p.Database, p.User, cause, p.Pins[cause])
		}
	}
	return t
}
