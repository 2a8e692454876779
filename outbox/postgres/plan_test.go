package postgres

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirdb/weir/outbox"
)

// planNode is what EXPLAIN (FORMAT JSON) says of a node, as far as it matters.
type planNode struct {
	Type     string     `json:"Node Type"`
	Relation string     `json:"Relation Name"`
	Index    string     `json:"Index Name"`
	Filter   string     `json:"Filter"`
	Removed  int        `json:"Subplans Removed"`
	Plans    []planNode `json:"Plans"`
}

func (p planNode) walk(f func(planNode)) {
	f(p)
	for _, sub := range p.Plans {
		sub.walk(f)
	}
}

// explainer returns what explains statements on one session such as that of a lease.
func (r *rig) explainer(s *Store) func(text string, args ...any) planNode {
	r.Helper()
	c, err := s.connect(r.ctx())
	r.check(err)
	r.Cleanup(func() { closeConn(c) })
	return func(text string, args ...any) planNode {
		r.Helper()
		return r.explainOn(c, text, args...)
	}
}

func (r *rig) explainOn(c *pgx.Conn, text string, args ...any) planNode {
	r.Helper()
	types := make([]string, len(args))
	for i, arg := range args {
		types[i] = "bigint"
		if _, list := arg.([]int64); list {
			types[i] = "bigint[]"
		}
		if _, list := arg.([]outbox.ID); list {
			types[i] = "uuid[]"
		}
		if _, moment := arg.(time.Time); moment {
			types[i] = "timestamptz"
		}
	}
	with := ""
	if len(types) > 0 {
		with = "(" + strings.Join(types, ", ") + ")"
	}
	_, err := c.Exec(r.ctx(), "PREPARE explained "+with+" AS "+text)
	r.check(err)
	defer func() {
		_, err := c.Exec(r.ctx(), "DEALLOCATE explained")
		r.check(err)
	}()
	values := make([]string, len(args))
	for i, arg := range args {
		switch v := arg.(type) {
		case time.Time:
			values[i] = "'" + v.UTC().Format(time.RFC3339Nano) + "'"
		case []outbox.ID:
			values[i] = "'{" + strings.Trim(strings.Join(strings.Fields(fmt.Sprint(v)), ","), "[]") + "}'"
		case []int64:
			values[i] = "'{" + strings.Trim(strings.Join(strings.Fields(fmt.Sprint(v)), ","), "[]") + "}'"
		default:
			values[i] = fmt.Sprint(v)
		}
	}
	call := "EXPLAIN (FORMAT JSON) EXECUTE explained"
	if len(values) > 0 {
		call += "(" + strings.Join(values, ", ") + ")"
	}
	var out []byte
	r.check(c.QueryRow(r.ctx(), call).Scan(&out))
	var plans []struct{ Plan planNode }
	r.check(json.Unmarshal(out, &plans))
	return plans[0].Plan
}

// byIndex checks that no table of an outbox is read whole.
func byIndex(t *testing.T, what string, history bool, p planNode) {
	t.Helper()
	found := false
	p.walk(func(n planNode) {
		if strings.HasPrefix(n.Relation, outbox.DefaultTable) && !strings.HasSuffix(n.Relation, "_parked") && !strings.HasSuffix(n.Relation, "_lease") {
			if strings.Contains(n.Type, "Seq Scan") || strings.Contains(n.Type, "Bitmap") {
				t.Errorf("%s: %s on %s", what, n.Type, n.Relation)
			}
			found = found || n.Index != ""
			// The other index, the primary key's, leads through all that was delivered.
			if history && strings.Contains(n.Type, "Scan") && !strings.Contains(n.Index, "seq_idx") {
				t.Errorf("%s: index %s instead of the one of pending rows", what, n.Index)
			}
		}
		if n.Type == "Sort" && what == "head" {
			t.Errorf("%s sorts", what)
		}
	})
	if !found {
		t.Errorf("%s uses no index: %+v", what, p)
	}
}

// fill inserts rows that were created over so many days.
func (r *rig) fill(rows, days int, delivered string) {
	r.Helper()
	status, done := "", ""
	if delivered != "" {
		status, done = ", status", ", "+delivered
	}
	r.exec(fmt.Sprintf(`INSERT INTO weir_outbox (bucket, topic, msg_key, payload, created_at%s)
		SELECT i %% 32768, 'orders', 'k' || i, convert_to(repeat('x', 200), 'UTF8'), now() - i %% %d * interval '1 day'%s
		FROM generate_series(1, %d) AS i`, status, days, done, rows))
}

var ids = []outbox.ID{{1}, {2}, {3}}

// Plans are made for an empty table and kept while it grows, and made for a
// large one: both find rows by the index.
func TestStatementsUseTheIndex(t *testing.T) {
	pg := server(t)
	for _, plan := range []outbox.Plan{{}, {Shards: 4}, {Layout: outbox.History}, {
		Layout: outbox.History, Partition: outbox.PartitionSpec{Period: outbox.Daily, Lookback: 20 * 24 * time.Hour},
	}} {
		t.Run(fmt.Sprintf("%v, %d shards, by %v", plan.Layout, plan.Shards, plan.Partition.Period), func(t *testing.T) {
			r := newRig(t, pg)
			s := r.migrated(plan)
			for _, state := range []string{"empty", "large", "emptied"} {
				switch state {
				case "large":
					delivered := ""
					if plan.Layout == outbox.History {
						delivered = "CASE WHEN i > 4750 THEN 0 ELSE 1 END"
					}
					r.fill(5000, 20, delivered)
					r.exec("ANALYZE weir_outbox")
				case "emptied":
					r.exec("DELETE FROM weir_outbox")
					r.exec("VACUUM ANALYZE weir_outbox")
				}
				m, err := s.refresh(r.ctx(), s.pool)
				r.check(err)
				sql := newStatements(names{"public", outbox.DefaultTable}, m, 0)
				explain := r.explainer(s)
				for what, p := range map[string]planNode{
					"head":    explain(sql.head, 100, 500),
					"gaps":    explain(sql.gaps, 100, 500, []int64{1, 7}, []int64{2, 8}),
					"bounded": explain(sql.headBounded, 100, 500, 1000),
					"ack":     explain(sql.ack, []int64{1, 2, 3}, ids),
					"between": explain(sql.ackBetween, []int64{1, 2, 3}, ids, time.Now().Add(-time.Hour), time.Now()),
					"fetch":   explain(sql.fetch, []int64{1, 2, 3}),
					"pending": explain(sql.pending, 1, 1000, 10),
				} {
					byIndex(t, state+" table: "+what, plan.Layout == outbox.History, p)
				}
				tx, err := s.connect(r.ctx())
				r.check(err)
				_, err = tx.Exec(r.ctx(), "RESET ALL; BEGIN")
				r.check(err)
				_, err = tx.Exec(r.ctx(), claimSettings)
				r.check(err)
				byIndex(t, state+" table: claim", plan.Layout == outbox.History, r.explainOn(tx, claimText(names{"public", outbox.DefaultTable}, m, outbox.ClaimRequest{MaxBytes: 1 << 20}), 100, 1<<20))
				closeConn(tx)
			}
		})
	}
}

func TestWindowsAndAcksPrune(t *testing.T) {
	pg := server(t)
	r := newRig(t, pg)
	spec := outbox.PartitionSpec{Period: outbox.Daily, Lookback: 20 * 24 * time.Hour, Ahead: 24 * time.Hour}
	s := r.migrated(outbox.Plan{Layout: outbox.History, Partition: spec})
	r.fill(2000, 20, "0")
	m, err := s.refresh(r.ctx(), s.pool)
	r.check(err)
	explain := r.explainer(s)
	n := names{"public", outbox.DefaultTable}
	opened := func(p planNode) (tables []string, removed int) {
		p.walk(func(node planNode) {
			if strings.HasPrefix(node.Relation, outbox.DefaultTable+"_p2") || strings.HasPrefix(node.Relation, outbox.DefaultTable+"_rest") {
				tables = append(tables, node.Relation)
			}
			removed += node.Removed
		})
		slices.Sort(tables)
		return slices.Compact(tables), removed
	}
	all, _ := opened(explain(claimText(n, m, outbox.ClaimRequest{MaxBytes: 1 << 20}), 100, 1<<20))
	if len(all) < 22 {
		t.Fatalf("without a window %d partitions are opened: %v", len(all), all)
	}
	// Today, tomorrow, maybe yesterday, and the catch-all.
	if some, removed := opened(explain(claimText(n, m, outbox.ClaimRequest{Window: time.Hour, MaxBytes: 1 << 20}), 100, time.Hour.Microseconds(), 1<<20)); len(some) > 4 || removed < 18 {
		t.Errorf("a window of an hour opens %v, and %d are pruned", some, removed)
	}
	sql := newStatements(n, m, 0)
	some, removed := opened(explain(sql.ackBetween, []int64{1, 2}, ids[:2], time.Now().Add(-time.Minute), time.Now()))
	if removed < 18 {
		t.Errorf("an ack of the last minute opens %v, and %d are pruned", some, removed)
	}

	// And it does ack, by window or, when somebody has moved rows, without.
	l := r.lead(s)
	rows := r.read(l)
	if len(rows) != 2000 {
		t.Fatalf("%d rows, want 2000", len(rows))
	}
	r.exec("UPDATE weir_outbox SET created_at = created_at - interval '3 days' WHERE seq = $1", rows[7].Seq)
	r.check(l.Ack(r.ctx(), outbox.Refs(rows[:10])))
	r.check(l.Ack(r.ctx(), outbox.Refs(rows[5:])))
	if left := r.read(l); len(left) != 0 {
		t.Errorf("%d rows are left", len(left))
	}
	if len(l.created) != 0 {
		t.Errorf("the lease remembers %d rows that are gone", len(l.created))
	}
}
