package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	driver "github.com/go-sql-driver/mysql"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/outbox"
)

const insertOne = "INSERT INTO weir_outbox (topic, payload) VALUES ('t', 'p')"

// explain is EXPLAIN of a statement: of MariaDB a table, of MySQL a tree, as one text.
func explain(t *testing.T, db *sql.DB, text string) string {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), "EXPLAIN "+text)
	check(t, err)
	defer rows.Close()
	columns, err := rows.Columns()
	check(t, err)
	var b strings.Builder
	for rows.Next() {
		cells := make([]sql.NullString, len(columns))
		dest := make([]any, len(columns))
		for i := range cells {
			dest[i] = &cells[i]
		}
		check(t, rows.Scan(dest...))
		for _, c := range cells {
			b.WriteString(c.String + " ")
		}
		b.WriteByte('\n')
	}
	check(t, rows.Err())
	return b.String()
}

// TestAckLooksUp: on a table that is nearly empty, where statistics invite to
// scan it, an acknowledgement looks its rows up one by one, and so does not wait
// for rows of producers.
func TestAckLooksUp(t *testing.T) {
	servers(t, func(t *testing.T, m *lab.MySQL) {
		for _, plan := range []outbox.Plan{{}, {Layout: outbox.History}, {Layout: outbox.History, Partition: outbox.PartitionSpec{Period: outbox.Daily}}} {
			t.Run(fmt.Sprint(plan.Layout, plan.Partition.Period), func(t *testing.T) {
				db := database(t, m)
				s := migrated(t, m, db, Options{}, plan)
				pool := producers(t, m, db)
				l := leadIt(t, s)
				run(t, pool, insertOne, insertOne, "ANALYZE TABLE weir_outbox")
				rows := pageOf(t, l, 0)
				from, fenced := l.fence()
				texts := l.ackTexts(from, fenced, outbox.Refs(rows[:2]))
				if len(texts) != 1 {
					t.Fatalf("%d statements, want one", len(texts))
				}
				shown := explain(t, pool, texts[0])
				byKey := containsAny(shown, "eq_ref", "Single-row index lookup on o using PRIMARY") ||
					plan.Layout == outbox.History && plan.Partition.Period == outbox.Unpartitioned && containsAny(shown, " ref ", "Index lookup on o using PRIMARY")
				if !byKey {
					t.Errorf("no look-up by the primary key:\n%s", shown)
				}
				producer := connect(t, pool)
				run(t, producer, "START TRANSACTION", insertOne, insertOne)
				check(t, l.Ack(t.Context(), outbox.Refs([]outbox.Row{rows[0], rows[1]})))
				run(t, producer, "COMMIT")
				if left := pageOf(t, l, 0); len(left) != 2 {
					t.Errorf("%d rows left, want 2", len(left))
				}
			})
		}
	})
}

// TestDatabasesOfOtherCharacterSets: the character set that a database gives to text
// without one of its own changes nothing.
func TestDatabasesOfOtherCharacterSets(t *testing.T) {
	servers(t, func(t *testing.T, m *lab.MySQL) {
		for _, charset := range []string{"latin1", "utf16"} {
			t.Run(charset, func(t *testing.T) {
				db := database(t, m)
				check(t, m.Exec(t.Context(), "ALTER DATABASE "+db+" CHARACTER SET "+charset))
				s := migrated(t, m, db, Options{}, outbox.Plan{})
				l := leadIt(t, s)
				run(t, producers(t, m, db), insertOne, insertOne, insertOne)
				rows := pageOf(t, l, 0)
				check(t, l.Park(t.Context(), []outbox.Parking{{Seq: rows[0].Seq, ID: rows[0].ID, Attempts: 1, Error: "表"}}))
				parked, err := l.Parked(t.Context())
				check(t, err)
				if len(parked) != 1 || parked[0].Error != "表" {
					t.Errorf("the notes of failed rows are %+v", parked)
				}
				check(t, l.Bury(t.Context(), []outbox.Burial{{Seq: rows[1].Seq, ID: rows[1].ID, Reason: "attempts", Error: "表"}}))
				check(t, l.Ack(t.Context(), outbox.Refs(rows[:1])))
				if left := pageOf(t, l, 0); len(left) != 1 || left[0].Seq != rows[2].Seq {
					t.Errorf("the rows left are %+v", left)
				}
			})
		}
	})
}

// TestAckOfRuns: a long run of numbers is deleted by a range, which does not wait for
// a producer that has not committed: the run ends before that row, and the range one
// row earlier, since it locks the one after its end. Rows that have only the number of
// one that was delivered stay.
func TestAckOfRuns(t *testing.T) {
	servers(t, func(t *testing.T, m *lab.MySQL) {
		db := database(t, m)
		s := migrated(t, m, db, Options{}, outbox.Plan{})
		pool := producers(t, m, db)
		l := leadIt(t, s)
		run(t, pool, "ANALYZE TABLE weir_outbox")
		run(t, pool, insertOne+strings.Repeat(", ('t', 'p')", 299))
		producer := connect(t, pool)
		run(t, producer, "START TRANSACTION", insertOne)
		run(t, pool, insertOne+strings.Repeat(", ('t', 'p')", 199))
		refs := outbox.Refs(pageOf(t, l, 0))
		if len(refs) != 500 {
			t.Fatalf("%d rows, want 500", len(refs))
		}
		from, fenced := l.fence()
		shown := explain(t, pool, l.ackTexts(from, fenced, slices.Clone(refs))[0])
		if !containsAny(shown, "eq_ref", "Single-row index lookup on o using PRIMARY") {
			t.Errorf("no look-up by the primary key:\n%s", shown)
		}
		slices.Reverse(refs)
		ranges, rest := l.ranges(slices.Clone(refs))
		if len(ranges) != 1 || len(ranges[0]) != 299 || len(rest) != 201 {
			t.Fatalf("%d ranges, %d look-ups: want one of 299 and 201", len(ranges), len(rest))
		}
		shown = explain(t, pool, l.rangeText(from, fenced, ranges[0]))
		if !containsAny(shown, " range ", "Index range scan on o using PRIMARY") {
			t.Errorf("no range of the primary key:\n%s", shown)
		}
		// One that was not delivered, and has the id of nothing.
		run(t, pool, "UPDATE weir_outbox SET id = REPEAT(X'00', 16) WHERE seq = 50")
		refs = slices.DeleteFunc(refs, func(r outbox.Ref) bool { return r.Seq == 50 })
		run(t, pool, "DELETE FROM weir_outbox WHERE seq IN (7, 400)",
			"INSERT INTO weir_outbox (seq, topic, payload) VALUES (7, 'other', 'p'), (400, 'other', 'p')")
		var waited, before int
		waits := func(n *int) {
			var name string
			check(t, pool.QueryRowContext(t.Context(), "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_waits'").Scan(&name, n))
		}
		waits(&before)
		check(t, l.Ack(t.Context(), refs))
		if waits(&waited); waited > before {
			t.Errorf("it waited for a row %d times", waited-before)
		}
		run(t, producer, "COMMIT")
		var left []int64
		for _, row := range pageOf(t, l, 0) {
			left = append(left, row.Seq)
		}
		if !slices.Equal(left, []int64{7, 50, 301, 400}) {
			t.Errorf("rows %d are left, want those that are others' and the producer's", left)
		}
	})
}

// TestAckOfRunsThatIsHeldUp checks that rows are acknowledged one by one if a range would have
// to wait because another session has locked an undelivered row in it.
func TestAckOfRunsThatIsHeldUp(t *testing.T) {
	servers(t, func(t *testing.T, m *lab.MySQL) {
		db := database(t, m)
		s := migrated(t, m, db, Options{}, outbox.Plan{})
		pool := producers(t, m, db)
		l := leadIt(t, s)
		run(t, pool, insertOne+strings.Repeat(", ('t', 'p')", 399))
		refs := outbox.Refs(pageOf(t, l, 0))
		other := connect(t, pool)
		run(t, other, "START TRANSACTION", "UPDATE weir_outbox SET payload = 'q' WHERE seq = 9")
		delivered := slices.Delete(slices.Clone(refs), 8, 9)
		if ranges, _ := l.ranges(slices.Clone(delivered)); len(ranges) != 1 {
			t.Fatalf("%d ranges, want one that meets the locked row", len(ranges))
		}
		check(t, l.Ack(t.Context(), delivered))
		if l.rangeBackoff.over() {
			t.Error("the range did not wait for the locked row, or is tried again at once")
		}
		run(t, other, "COMMIT")
		if left := pageOf(t, l, 0); len(left) != 1 || left[0].Seq != 9 {
			t.Errorf("%d rows left, want the one that was not delivered", len(left))
		}
	})
}

// TestNumbers holds the set of numbers to a map.
func TestNumbers(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var n numbers
		want := map[int64]bool{}
		for range rng.IntN(200) {
			seq := rng.Int64N(150)
			n.add(seq)
			want[seq] = true
		}
		for i, r := range n {
			if r.First > r.Last || i > 0 && r.First <= n[i-1].Last+1 {
				t.Fatalf("ranges %v", n)
			}
		}
		for seq := range int64(152) {
			r, ok := n.rangeOf(seq)
			if ok != want[seq] || ok && (seq < r.First || seq > r.Last) {
				t.Fatalf("%d: in %v: %v, want %v", seq, r, ok, want[seq])
			}
		}
	}
	var n numbers
	for seq := range int64(10 * maxSeen) {
		n.add(3 * seq)
	}
	if _, ok := n.rangeOf(3 * (10*maxSeen - 1)); !ok || len(n) > maxSeen {
		t.Errorf("%d ranges are kept, the latest among them: %v", len(n), ok)
	}
}

// TestWindowPrunes: a claim with a window looks into no partition before it.
func TestWindowPrunes(t *testing.T) {
	servers(t, func(t *testing.T, m *lab.MySQL) {
		db := database(t, m)
		spec := outbox.PartitionSpec{Period: outbox.Daily, Lookback: 10 * 24 * time.Hour}
		s := migrated(t, m, db, Options{}, outbox.Plan{Layout: outbox.History, Partition: spec})
		form := "FORMAT=TRADITIONAL "
		if m.Flavor() == lab.FlavorMariaDB {
			form = "PARTITIONS "
		}
		k := &claim{s: s, history: true, parts: true}
		old := outbox.Daily.Start(time.Now().AddDate(0, 0, -3)).Format("p20060102")
		for window, pruned := range map[time.Duration]bool{time.Hour: true, 200 * time.Hour: false} {
			shown := explain(t, producers(t, m, db), form+k.text(outbox.ClaimRequest{Limit: 10, Window: window}))
			if strings.Contains(shown, old) == pruned || strings.Contains(shown, catchPast) {
				t.Errorf("window %v: want partition %s left out: %v; the plan is\n%s", window, old, pruned, shown)
			}
		}
	})
}

func containsAny(text string, parts ...string) bool {
	return slices.ContainsFunc(parts, func(p string) bool { return strings.Contains(text, p) })
}

// waitsForRow waits until some session waits for a row. INNODB_TRX would say who,
// but shows nothing new while it is asked all the time.
func waitsForRow(t *testing.T, pool *sql.DB) {
	t.Helper()
	testkit.Eventually(t, "a session that waits for a row", func() bool {
		var name string
		var n int
		check(t, pool.QueryRowContext(t.Context(), "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'").Scan(&name, &n))
		return n > 0
	})
}

// TestAckAfterDeadlock: whichever the server chooses, the acknowledgement is made.
func TestAckAfterDeadlock(t *testing.T) {
	servers(t, func(t *testing.T, m *lab.MySQL) {
		db := database(t, m)
		s := migrated(t, m, db, Options{}, outbox.Plan{})
		pool := producers(t, m, db)
		l := leadIt(t, s)
		run(t, pool, insertOne, insertOne, insertOne)
		refs := outbox.Refs(pageOf(t, l, 0))
		other := connect(t, pool)
		run(t, other, "START TRANSACTION", "UPDATE weir_outbox SET payload = 'q' WHERE seq IN (2, 3)")
		done := make(chan error, 1)
		go func() { done <- l.Ack(t.Context(), refs) }()
		waitsForRow(t, pool) // it has row 1 and wants row 2
		_, err := other.ExecContext(t.Context(), "UPDATE weir_outbox SET payload = 'q' WHERE seq = 1")
		if err != nil && !isError(err, errDeadlock) {
			t.Fatal(err)
		}
		run(t, other, "ROLLBACK")
		check(t, <-done)
		if left := pageOf(t, l, 0); len(left) != 0 {
			t.Errorf("%d rows left", len(left))
		}
	})
}

// TestMaintenanceWaitsForTransactions checks that partitions change only when no transaction
// uses the table, and that what a transaction commits meanwhile is not dropped.
func TestMaintenanceWaitsForTransactions(t *testing.T) {
	servers(t, func(t *testing.T, m *lab.MySQL) {
		db := database(t, m)
		spec := outbox.PartitionSpec{Period: outbox.Daily, Ahead: 24 * time.Hour, Lookback: 72 * time.Hour}
		s := migrated(t, m, db, Options{}, outbox.Plan{Layout: outbox.History, Partition: spec})
		pool := producers(t, m, db)
		producer := connect(t, pool)
		run(t, producer, "START TRANSACTION",
			"INSERT INTO weir_outbox (topic, payload, created_at) VALUES ('t', 'p', UTC_TIMESTAMP(6) - INTERVAL 2 DAY)")
		old := outbox.Daily.Start(time.Now().AddDate(0, 0, -2)).Format("p20060102")
		type result struct {
			report outbox.PartitionReport
			err    error
		}
		done := make(chan result, 1)
		maintain := func() {
			report, err := s.MaintainPartitions(t.Context(), outbox.PartitionSpec{Period: outbox.Daily, Ahead: 24 * time.Hour, Keep: time.Hour})
			done <- result{report, err}
		}
		run(t, producer, "DO SLEEP(2)") // until the transaction is an old one
		go maintain()
		// No other session has to wait behind it, and in the end it reports the reason.
		var first result
		for waiting := true; waiting; {
			select {
			case first = <-done:
				waiting = false
			case <-time.After(100 * time.Millisecond): // who waits for the table does so for a second at least
				var queued int
				check(t, pool.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE LIKE 'Waiting for table%'").Scan(&queued))
				if queued > 0 {
					t.Fatal("maintenance waits for the table behind an open transaction")
				}
			}
		}
		busy := func(err error) bool { return isError(err, errLockWait) || errors.Is(err, errOldTx) }
		if !busy(first.err) || !strings.Contains(first.err.Error(), "the table was in use each time") {
			t.Fatalf("maintenance beside an open transaction: %+v, %v", first.report, first.err)
		}
		go maintain()
		run(t, producer, "COMMIT")
		second := <-done
		for busy(second.err) { // it has given up before the busy machine came to commit
			maintain()
			second = <-done
		}
		check(t, second.err)
		if !slices.Equal(second.report.Kept, []string{old}) || slices.Contains(second.report.Dropped, old) {
			t.Errorf("report %+v: want %s kept", second.report, old)
		}
		if rows := pageOf(t, leadIt(t, s), 0); len(rows) != 1 {
			t.Errorf("%d rows, want the one that was committed meanwhile", len(rows))
		}
	})
}

// TestReadStopsLongAnswers: what a page cannot hold is not read away, and the
// session that leads goes on.
func TestReadStopsLongAnswers(t *testing.T) {
	servers(t, func(t *testing.T, m *lab.MySQL) {
		db := database(t, m)
		s := migrated(t, m, db, Options{}, outbox.Plan{})
		l := leadIt(t, s)
		pool := producers(t, m, db)
		for range 12 {
			run(t, pool, "INSERT INTO weir_outbox (topic, payload) VALUES ('t', REPEAT('x', 3000000))")
		}
		var after int64
		for n := range 12 {
			page, err := l.Read(t.Context(), outbox.ReadRequest{After: after, Limit: 100, MaxBytes: 1 << 20})
			check(t, err)
			if len(page.Rows) != 1 || len(page.Rows[0].Payload) != 3_000_000 || page.More != (n < 11) {
				t.Fatalf("read %d: %d rows, more: %v", n, len(page.Rows), page.More)
			}
			after = page.Rows[0].Seq
		}
		check(t, l.deposed())
	})
}

// TestServerCrash: the leadership is lost with the server, and can be taken again
// through the same store when it is back.
func TestServerCrash(t *testing.T) {
	servers(t, func(t *testing.T, m *lab.MySQL) { // no test uses it at the same time
		db := database(t, m)
		s := migrated(t, m, db, Options{}, outbox.Plan{})
		l := leadIt(t, s)
		run(t, producers(t, m, db), insertOne)
		if n := len(pageOf(t, l, 0)); n != 1 {
			t.Fatalf("%d rows, want 1", n)
		}
		m.Kill()
		select {
		case <-l.Lost():
		case <-time.After(testPatience):
			t.Fatal("the lease never learns that the server is dead")
		}
		if err := l.Ack(t.Context(), []outbox.Ref{{Seq: 1}}); !errors.Is(err, outbox.ErrDeposed) {
			t.Errorf("acknowledge: %v, want %v", err, outbox.ErrDeposed)
		}
		ctx, cancel := context.WithTimeout(t.Context(), testPatience)
		defer cancel()
		check(t, m.Restart(ctx))
		var next outbox.Lease
		testkit.Eventually(t, "the next leader", func() (ok bool) {
			var err error
			next, err = s.Lead(t.Context(), 0)
			return err == nil
		})
		page, err := next.Read(t.Context(), outbox.ReadRequest{Limit: 10, MaxBytes: 1000})
		check(t, err)
		if len(page.Rows) != 1 {
			t.Errorf("%d rows after the crash, want 1", len(page.Rows))
		}
		check(t, next.Ack(t.Context(), outbox.Refs([]outbox.Row{page.Rows[0]})))
		check(t, next.Close())
	})
}

// TestForeignPool: the settings of the application's own pool make no difference.
func TestForeignPool(t *testing.T) {
	servers(t, func(t *testing.T, m *lab.MySQL) {
		cfg := driver.NewConfig()
		cfg.User, cfg.Net, cfg.Addr, cfg.DBName = m.User(), "unix", m.Socket(), database(t, m)
		cfg.ParseTime, cfg.ClientFoundRows = true, true
		cfg.Params = map[string]string{"sql_mode": "'ANSI_QUOTES,NO_BACKSLASH_ESCAPES'", "time_zone": "'-09:30'", "innodb_lock_wait_timeout": "1"}
		connector, err := driver.NewConnector(cfg)
		check(t, err)
		pool := sql.OpenDB(connector)
		t.Cleanup(func() { _ = pool.Close() })
		s, err := New(pool, Options{})
		check(t, err)
		t.Cleanup(func() { check(t, s.Close()) })
		_, err = s.Migrate(t.Context(), outbox.Plan{Layout: outbox.History, Partition: outbox.PartitionSpec{Period: outbox.Daily}})
		check(t, err)
		check(t, outbox.Enqueue(t.Context(), outbox.MySQL(pool), outbox.Message{Topic: `a"b'c\`, Key: "k", Headers: map[string]string{`"`: `\`}}, outbox.Message{Topic: "u"}))
		l := leadIt(t, s)
		rows := slices.Clone(pageOf(t, l, 0))
		if len(rows) != 2 || rows[0].Topic != `a"b'c\` || time.Since(rows[0].CreatedAt).Abs() > time.Hour {
			t.Fatalf("rows %+v", rows)
		}
		check(t, l.Bury(t.Context(), []outbox.Burial{{Seq: rows[0].Seq, ID: rows[0].ID, Attempts: 1, Reason: "rejected", Error: `it's "no" \`}}))
		check(t, l.Ack(t.Context(), outbox.Refs([]outbox.Row{rows[1]})))
		dead, err := s.List(t.Context(), outbox.Query{State: outbox.Dead, Topic: `a"b'c\`})
		check(t, err)
		if len(dead) != 1 || dead[0].Error != `it's "no" \` || time.Since(dead[0].EndedAt).Abs() > time.Hour {
			t.Errorf("dead %+v", dead)
		}
		mark := markIt(t, l)
		testkit.Eventually(t, "the mark is settled", func() bool { return isSettled(t, l, mark) })
		var refusal *outbox.TailError
		if _, err := l.Tail(t.Context()); !errors.As(err, &refusal) {
			t.Errorf("tail: %v, want a TailError", err)
		}
	})
}
