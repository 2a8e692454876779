package killtest_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weirdb/weir/internal/lab/labtest"
)

// Faults of a Patroni cluster.
const (
	switchover = "switchover"
	crash      = "kill -9 of the primary"
	death      = "kill -9 of the primary and its Patroni"
)

// Operations of a client.
const (
	hinted       = "hinted writes"
	transactions = "transactions"
	reads        = "reads"
)

const (
	clientsOfClass = 2
	patroniPause   = 10 * time.Millisecond // between two operations of a client
	patroniCalm    = 100                   // operations of each class before and after what happens
)

// A road is one way from clients to the primary.
type road struct {
	name, dsn string
	number    int
	ledger    *ledger
	classes   map[string]*tally

	mu   sync.Mutex
	last int64 // guarded by mu: an acknowledged row
}

// A tally is what the clients of one class met during one event.
type tally struct {
	mu      sync.Mutex
	done    int           // operations that succeeded
	at      time.Time     // of the last
	gap     time.Duration // the longest time without one
	errs    map[string]int
	refused int // attempts to connect that failed
}

func (y *tally) reset() {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.done, y.at, y.gap, y.errs, y.refused = 0, time.Now(), 0, map[string]int{}, 0
}

func (y *tally) count() int { y.mu.Lock(); defer y.mu.Unlock(); return y.done }

func (y *tally) succeeded() {
	y.mu.Lock()
	defer y.mu.Unlock()
	now := time.Now()
	y.done, y.gap, y.at = y.done+1, max(y.gap, now.Sub(y.at)), now
}

func (y *tally) failed(err error) { y.failedAs(errorCode(err)) }

func (y *tally) failedAs(code string) { y.mu.Lock(); defer y.mu.Unlock(); y.errs[code]++ }

func (y *tally) noConnection() { y.mu.Lock(); defer y.mu.Unlock(); y.refused++ }

// An affair is what one road's clients of one class met in all events of a kind.
type affair struct {
	gaps    []time.Duration
	errs    map[string]int
	refused int
}

// TestPatroni switches a cluster of Patroni's over and kills its primary while clients of
// three kinds work, directly, through PgBouncer behind HAProxy, and through weir. What
// was acknowledged is there once, whichever way it came, and through weir no client has
// to connect again in vain. WEIR_PATRONI_ROUNDS is how often each thing happens;
// WEIR_PATRONI_TABLE names a file for the table of gaps and errors.
func TestPatroni(t *testing.T) {
	p := startPatroni(t)
	rounds, events := 1, []string{switchover, crash}
	if text := os.Getenv("WEIR_PATRONI_ROUNDS"); text != "" {
		if _, err := fmt.Sscan(text, &rounds); err != nil {
			t.Fatalf("WEIR_PATRONI_ROUNDS=%s: %v", text, err)
		}
		events = append(events, death)
	}
	addrs := labtest.Addrs(t, 6)
	startPrimaryBalancer(t, p, addrs[0])
	startPgBouncer(t, addrs[0], addrs[1])
	for i, more := range [][]string{nil, {"--patroni", "http://" + p.nodes[0].rest + ",http://" + p.nodes[1].rest}} {
		w := &weir{path: program.Path(t), admin: addrs[2+2*i], lanes: map[string]int{}}
		w.args = append([]string{
			"proxy", "--trust-loopback", "--pool-size", "8", "--admin", w.admin, "--failover-timeout", "2m",
			"--postgres", "postgres://postgres@" + p.hosts() + "/postgres?sslmode=disable", "--listen-postgres", addrs[3+2*i],
		}, more...)
		if err := w.launch(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			w.kill()
			if how := w.ended(); how != "" {
				t.Errorf("weir ended by itself: %s", how)
			}
			if t.Failed() {
				t.Logf("weir:\n%s", w.log.String())
			}
		})
	}
	end := "/postgres?sslmode=disable&connect_timeout=2"
	roads := []*road{
		{name: "direct", dsn: "postgres://postgres@" + p.hosts() + end + "&target_session_attrs=read-write"},
		{name: "PgBouncer, HAProxy", dsn: "postgres://postgres@" + addrs[1] + end},
		{name: "weir", dsn: "postgres://postgres@" + addrs[3] + "/postgres?sslmode=disable"},
		{name: "weir, --patroni", dsn: "postgres://postgres@" + addrs[5] + "/postgres?sslmode=disable"},
	}
	met := map[string]map[*road]map[string]*affair{}
	for _, event := range events {
		met[event] = map[*road]map[string]*affair{}
	}
	for i, r := range roads {
		r.number, r.ledger, r.classes = i, &ledger{}, map[string]*tally{}
		for _, class := range []string{hinted, transactions, reads} {
			r.classes[class] = &tally{}
			for _, event := range events {
				if met[event][r] == nil {
					met[event][r] = map[string]*affair{}
				}
				met[event][r][class] = &affair{errs: map[string]int{}}
			}
		}
	}
	patroniTables(t, p, roads)
	for round := range rounds {
		for _, event := range events {
			happen(t, p, roads, event)
			for _, r := range roads {
				for class, y := range r.classes {
					a := met[event][r][class]
					a.gaps = append(a.gaps, y.gap)
					a.refused += y.refused
					for code, n := range y.errs {
						a.errs[code] += n
					}
					t.Logf("round %d, %s, %s, %s: gap %v, errors %v, refused %d", round, event, r.name, class, y.gap.Round(time.Millisecond), y.errs, y.refused)
					if strings.HasPrefix(r.name, "weir") && y.refused > 0 {
						t.Errorf("%s, %s, %s: %d attempts to connect failed", event, r.name, class, y.refused)
					}
				}
			}
		}
	}
	verdicts := patroniVerdicts(t, p, roads)
	if path := os.Getenv("WEIR_PATRONI_TABLE"); path != "" {
		if err := os.WriteFile(path, []byte(patroniTable(rounds, events, roads, met, verdicts)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// onLeader runs something on the leader, past everything.
func onLeader(t *testing.T, p *patroni, do func(conn *pgx.Conn) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), labtest.Patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, "postgres://postgres@"+p.whole().sql+"/postgres?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	if err := do(conn); err != nil {
		t.Fatal(err)
	}
}

// patroniTables makes a table for each road. It has no key that would hide a double.
func patroniTables(t *testing.T, p *patroni, roads []*road) {
	t.Helper()
	onLeader(t, p, func(conn *pgx.Conn) error {
		for _, r := range roads {
			if _, err := conn.Exec(t.Context(), fmt.Sprintf("CREATE TABLE p%d (id bigint NOT NULL, part int NOT NULL, body text NOT NULL); CREATE INDEX ON p%d (id)", r.number, r.number)); err != nil {
				return err
			}
		}
		return nil
	})
}

// happen lets clients of all roads work while an event happens, until all do again.
func happen(t *testing.T, p *patroni, roads []*road, event string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), labtest.Patience)
	defer cancel()
	leader := p.whole()
	stop := make(chan struct{})
	var working sync.WaitGroup
	calm := func(when string) {
		t.Helper()
		before := map[*tally]int{}
		for _, r := range roads {
			for _, y := range r.classes {
				before[y] = y.count()
			}
		}
		for _, r := range roads {
			for class, y := range r.classes {
				p.await(fmt.Sprintf("%s: %s of %s %s", event, class, r.name, when), func() bool { return y.count() >= before[y]+patroniCalm })
			}
		}
	}
	for _, r := range roads {
		for class, y := range r.classes {
			y.reset()
			for range clientsOfClass {
				working.Go(func() { r.work(ctx, class, y, stop) })
			}
		}
	}
	func() {
		defer working.Wait()
		defer close(stop)
		calm("before it")
		for _, r := range roads {
			for _, y := range r.classes {
				y.reset()
			}
		}
		switch event {
		case switchover:
			p.switchover(ctx, leader)
		case crash:
			leader.killServer()
		case death:
			leader.kill()
		}
		p.await(event+": another leader", func() bool { l := p.leader(); return l != nil && l != leader })
		calm("after it")
	}()
	if event == death {
		leader.launch()
	}
	p.whole()
}

// work is one client: it works until stop is closed, and connects again when its
// connection is lost.
func (r *road) work(ctx context.Context, class string, y *tally, stop <-chan struct{}) {
	var conn *pgx.Conn
	defer func() {
		if conn != nil {
			_ = conn.Close(context.Background())
		}
	}()
	for {
		select {
		case <-stop:
			return
		case <-time.After(patroniPause):
		}
		if conn == nil || conn.IsClosed() {
			cfg, err := pgx.ParseConfig(r.dsn)
			if err == nil {
				cfg.DefaultQueryExecMode = pgx.QueryExecModeExec // PgBouncer keeps prepared statements from 1.21 only
				conn, err = pgx.ConnectConfig(ctx, cfg)
			}
			if err != nil {
				y.noConnection()
				continue
			}
		}
		if err := r.step(ctx, conn, class); err != nil {
			y.failed(err)
		} else {
			y.succeeded()
		}
	}
}

func (r *road) insert(ctx context.Context, on interface {
	Exec(context.Context, string, ...any) (pgconn.CommandTag, error)
}, hint string, id, part int64,
) error {
	_, err := on.Exec(ctx, fmt.Sprintf("%sINSERT INTO p%d VALUES ($1, $2, $3)", hint, r.number), id, part, content(id, part))
	return err
}

// step is one operation.
func (r *road) step(ctx context.Context, conn *pgx.Conn, class string) error {
	switch class {
	case hinted:
		id := r.ledger.begin(partRow)
		err := r.insert(ctx, conn, "/* batch */ ", id, partRow)
		r.ledger.end(id, judge(err))
		if err == nil {
			r.mu.Lock()
			r.last = id
			r.mu.Unlock()
		}
		return err
	case transactions:
		id := r.ledger.begin(partRow | partTwin)
		tx, err := conn.Begin(ctx)
		if err == nil {
			err = r.insert(ctx, tx, "", id, partRow)
		}
		if err == nil {
			err = r.insert(ctx, tx, "", id, partTwin)
		}
		if err != nil {
			r.ledger.end(id, refused)
			if tx != nil {
				_ = tx.Rollback(ctx) // what failed is told
			}
			return err
		}
		err = tx.Commit(ctx)
		r.ledger.end(id, judge(err))
		return err
	default:
		r.mu.Lock()
		id := r.last
		r.mu.Unlock()
		n := 0
		if err := conn.QueryRow(ctx, fmt.Sprintf("SELECT count(*) FROM p%d WHERE id = $1", r.number), id).Scan(&n); err != nil {
			return err
		}
		if n == 0 && id != 0 {
			r.ledger.complain("write %d was acknowledged, and %s does not find it", id, r.name)
		}
		return nil
	}
}

// patroniVerdicts compares what clients were told with what is there.
func patroniVerdicts(t *testing.T, p *patroni, roads []*road) map[*road]verdict {
	t.Helper()
	verdicts := map[*road]verdict{}
	onLeader(t, p, func(conn *pgx.Conn) error {
		for _, r := range roads {
			rows, err := conn.Query(t.Context(), fmt.Sprintf("SELECT id, part, body FROM p%d", r.number))
			if err != nil {
				return err
			}
			found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (f record, err error) {
				return f, row.Scan(&f.id, &f.part, &f.body)
			})
			if err != nil {
				return err
			}
			v := r.ledger.verdict(found)
			verdicts[r] = v
			t.Logf("%s: %s", r.name, &v)
			if v.breaches() > 0 && strings.HasPrefix(r.name, "weir") {
				t.Errorf("%s: %s\n%s", r.name, &v, strings.Join(v.examples, "\n"))
			}
		}
		return nil
	})
	return verdicts
}

// patroniTable is what is published.
func patroniTable(rounds int, events []string, roads []*road, met map[string]map[*road]map[string]*affair, verdicts map[*road]verdict) string {
	var b strings.Builder
	seconds := func(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }
	for _, event := range events {
		fmt.Fprintf(&b, "## By a %s: %d rounds\n\n| way | clients | longest gap: median | worst | errors that clients got | attempts to connect that failed |\n|---|---|---:|---:|---|---:|\n", event, rounds)
		for _, r := range roads {
			for _, class := range []string{hinted, transactions, reads} {
				a := met[event][r][class]
				slices.Sort(a.gaps)
				var errs []string
				for _, code := range slices.Sorted(maps.Keys(a.errs)) {
					errs = append(errs, fmt.Sprintf("%d × %s", a.errs[code], code))
				}
				if errs == nil {
					errs = []string{"none"}
				}
				fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %d |\n", r.name, class, seconds(a.gaps[len(a.gaps)/2]), seconds(a.gaps[len(a.gaps)-1]), strings.Join(errs, ", "), a.refused)
			}
		}
		b.WriteString("\n")
	}
	b.WriteString("## What was acknowledged\n\n| way | acknowledged | of them lost | twice | in halves | refused, and there | outcome unknown (and there) |\n|---|---:|---:|---:|---:|---:|---:|\n")
	for _, r := range roads {
		v := verdicts[r]
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d | %d | %d (%d) |\n", r.name, v.acked, v.lost, v.doubled, v.halves, v.ghosts, v.unknown, v.happened)
	}
	return b.String()
}
