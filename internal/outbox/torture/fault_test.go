package torture

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/outbox/outboxctl"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/outbox"
)

// One message in thousands is never taken. It is buried with the reason, at once
// or after its last attempt, and the others come, those of its key behind it.
func TestPoisonAmongThousands(t *testing.T) {
	t.Parallel()
	eachEngine(t, outbox.Plan{}, func(r *rig) {
		for k := range 50 {
			r.enqueue(fmt.Sprintf("k%d", k), 1, 100)
		}
		never := Entry{Chain: "k7", N: 50, Attempt: 1}
		rejected := Entry{Chain: "k9", N: 1, Attempt: 1}
		var attempts atomic.Int64
		sink := &scripted{ledger: r.ledger, decide: func(e Entry) error {
			switch e {
			case never:
				attempts.Add(1)
				return errors.New("no")
			case rejected:
				return outbox.Reject(errors.New("malformed"))
			}
			return nil
		}}
		r.relay(sink, outbox.Config{Retry: outbox.RetryPolicy{MaxAttempts: 4, Base: time.Millisecond, Max: time.Millisecond}})
		r.drained()
		if n := attempts.Load(); n != 4 {
			r.Errorf("%d attempts, want 4", n)
		}
		reasons := map[string]string{}
		for _, d := range r.dead() {
			reasons[d.Key] = d.Reason + ": " + d.Error
		}
		if len(reasons) != 2 || reasons["k7"] != "attempts: no" || reasons["k9"] != "rejected: malformed" {
			r.Errorf("dead letters %v", reasons)
		}
		if v := r.holds(never, rejected); v.Delivered != 4998 || v.Dead != 2 {
			r.Errorf("verdict %+v", v)
		}
	})
}

// A broker that is away, refuses, is slow, closes connections in the middle of a
// request and fails messages loses nothing and reorders nothing.
func TestBrokerInTrouble(t *testing.T) {
	t.Parallel()
	eachEngine(t, outbox.Plan{}, func(r *rig) {
		b, err := startLedgerBroker(r.ledger, Trouble{Slow: 20, Close: 8, Refuse: 8, Fail: 50}, 0)
		r.check(err)
		r.Cleanup(func() { r.check(b.Stop(context.Background())) })
		b.Kill() // not there at first
		sink := &ledgerSink{addr: b.addr}
		relay, _ := r.relay(sink, outbox.Config{Batch: 20})
		for k := range 10 {
			r.enqueue(fmt.Sprintf("k%d", k), 1, 100)
		}
		r.eventually("the outage is noticed", func() bool { return relay.Stats().BrokerDown })
		if s := relay.Stats(); s.Retries > 0 {
			r.Errorf("an outage has spent %d attempts", s.Retries)
		}
		r.check(b.Restart(r.ctx()))
		r.drained()
		s := relay.Stats()
		if s.BrokerDown || s.Retries == 0 || s.Outages < 3 {
			r.Errorf("down %v, %d retries, %d outages", s.BrokerDown, s.Retries, s.Outages)
		}
		if v := r.holds(); v.Delivered != 1000 || v.Duplicates == 0 {
			r.Errorf("verdict %+v; want duplicates from connections that closed", v)
		}
	})
}

// Headers that are no JSON object, as a producer in plain SQL may write them, end
// in the dead letters; the messages around them are delivered.
func TestUnreadableHeaders(t *testing.T) {
	t.Parallel()
	eachEngine(t, outbox.Plan{}, func(r *rig) {
		r.enqueue("k", 1, 5)
		e := Entry{Chain: "k", N: 6, Attempt: 1}
		r.exec("INSERT INTO %s (topic, msg_key, payload, headers) VALUES ('%s', 'k', '%s', '[not an object')", r.db.table, topic, e.encode())
		r.committed("k", 6, 1)
		r.enqueue("k", 7, 5)
		r.relay(&scripted{ledger: r.ledger}, outbox.Config{})
		r.drained()
		dead := r.dead()
		if len(dead) != 1 || dead[0].Reason != "unreadable" || !strings.Contains(dead[0].Error, "headers") {
			r.Errorf("dead letters %+v", dead)
		}
		if v := r.holds(e); v.Delivered != 10 {
			r.Errorf("verdict %+v", v)
		}
	})
}

// Rows for which there is no partition lie in the catch-all: they are delivered
// all the same, an alarm counts them, and maintenance gives them a partition.
func TestNoPartitionForNow(t *testing.T) {
	t.Parallel()
	plan := outbox.Plan{Layout: outbox.History, Partition: outbox.PartitionSpec{Period: outbox.Daily, Ahead: 48 * time.Hour, Lookback: 48 * time.Hour}}
	eachEngine(t, plan, func(r *rig) {
		p := r.store.(outbox.Partitioner)
		parts, err := p.Partitions(r.ctx())
		r.check(err)
		for _, part := range parts {
			switch {
			case part.CatchAll, part.To.Before(time.Now().UTC()):
			case r.db.Engine == outboxctl.Postgres:
				r.exec(`DROP TABLE "%s"`, part.Name)
			default:
				r.exec("ALTER TABLE %s DROP PARTITION %s", r.db.table, part.Name)
			}
		}
		r.relay(&scripted{ledger: r.ledger}, outbox.Config{})
		r.enqueue("k", 1, 300)
		r.drained()
		parts, err = p.Partitions(r.ctx())
		r.check(err)
		if rows, _ := outboxctl.Reach(parts); rows != 300 {
			r.Errorf("the alarm counts %d rows in the catch-all, want 300", rows)
		}
		report, err := p.MaintainPartitions(r.ctx(), plan.Partition)
		r.check(err)
		if len(report.Created) < 2 || report.CatchAllRows != 0 {
			r.Errorf("maintenance: %+v", report)
		}
		r.enqueue("k", 301, 10)
		r.drained()
		if v := r.holds(); v.Delivered != 310 {
			r.Errorf("verdict %+v", v)
		}
	})
}

// A newer weir has migrated the tables. Relays of this version stand aside and
// say why, touch nothing, and deliver when the tables are theirs again.
func TestNewerTables(t *testing.T) {
	t.Parallel()
	eachEngine(t, outbox.Plan{}, func(r *rig) {
		first, stop := r.relay(&scripted{ledger: r.ledger}, outbox.Config{})
		r.enqueue("k", 1, 10)
		r.drained()
		r.exec("UPDATE %s_meta SET version = version + 1", r.db.table)
		// The old leader ends, as at a rolling upgrade; an old process starts.
		stop()
		delivered := first.Stats().Delivered
		r.enqueue("k", 11, 10)
		old, err := r.db.open(r.ctx())
		r.check(err)
		defer old.Close()
		refused, err := outbox.NewRelay(old, &scripted{ledger: r.ledger}, outbox.Config{
			Claim: outbox.Poll, TakeOver: 20 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(r.log, nil)),
		})
		r.check(err)
		ctx, cancel := context.WithCancel(r.ctx())
		defer cancel()
		ended := make(chan error, 1)
		go func() { ended <- refused.Run(ctx) }()
		// It ends, or goes on asking: until the tables are its own again it delivers nothing.
		var last error
		r.eventually("the relay says that the tables are newer", func() bool {
			select {
			case last = <-ended:
				ended <- last
			default:
			}
			return r.log.contains("newer") || last != nil && strings.Contains(last.Error(), "newer")
		})
		cancel()
		<-ended
		if _, err := old.Migrate(r.ctx(), outbox.Plan{}); err == nil || !strings.Contains(err.Error(), "newer") {
			r.Errorf("migrate: %v, want a refusal", err)
		}
		if s := refused.Stats(); s.Delivered > 0 || s.Leading > 0 || delivered != 10 {
			r.Errorf("delivered %d, then leading %d, delivered %d", delivered, s.Leading, s.Delivered)
		}
		r.exec("UPDATE %s_meta SET version = version - 1", r.db.table)
		_, stop = r.relayOf(old, &scripted{ledger: r.ledger}, outbox.Config{})
		r.drained()
		stop()
		if v := r.holds(); v.Delivered != 20 {
			r.Errorf("verdict %+v", v)
		}
	})
}

// A transaction that stays open for the whole time holds its gap open. Beside it
// traffic goes on, with rollbacks whose gaps cannot be proven dead meanwhile,
// and memory stays bounded.
func TestLongTransactionBesideTraffic(t *testing.T) {
	const chains = 4
	each := testkit.Rounds(400, 1000)
	eachEngine(t, outbox.Plan{}, func(r *rig) {
		tx, err := r.db.pool.BeginTx(r.Context(), nil)
		r.check(err)
		r.check(outbox.Enqueue(r.ctx(), r.db.tx(tx), message(Entry{Chain: "late", N: 1, Attempt: 1})))
		before := heap()
		relay, _ := r.relay(&scripted{ledger: r.ledger}, outbox.Config{})
		var producers sync.WaitGroup
		for k := range chains {
			producers.Go(func() {
				for n := 1; n <= each; n += 5 {
					if err := r.rollBack(fmt.Sprintf("k%d", k)); err != nil {
						r.Error(err)
						return
					}
					r.enqueue(fmt.Sprintf("k%d", k), n, 5)
				}
			})
		}
		producers.Wait()
		r.eventually("all but the late one are through", func() bool { return r.ledger.Arrived() == chains*each })
		s := relay.Stats()
		if s.Gaps == 0 {
			r.Error("no gap is open: the transaction held none")
		}
		// 32 bytes a gap; the rest is pages that come and go.
		if grown := heap() - before; grown > 32<<20 {
			r.Errorf("the heap has grown by %d bytes with %d gaps", grown, s.Gaps)
		}
		r.check(tx.Commit())
		r.committed("late", 1, 1)
		r.drained()
		r.eventually("the gaps are proven dead", func() bool { return relay.Stats().Gaps == 0 })
		if v := r.holds(); v.Delivered != chains*each+1 {
			r.Errorf("verdict %+v", v)
		}
		if s := relay.Stats(); s.Stray != 0 {
			r.Errorf("%d strays", s.Stray)
		}
	})
}

// rollBack takes a number that will never come.
func (r *rig) rollBack(chain string) error {
	tx, err := r.db.pool.BeginTx(r.Context(), nil)
	if err != nil {
		return err
	}
	err = outbox.Enqueue(r.Context(), r.db.tx(tx), message(Entry{Chain: chain, N: maxN, Attempt: 9}))
	return errors.Join(err, tx.Rollback())
}

// heap is the bytes in use.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// In `make torture` a hundred thousand messages wait behind one that fails. They take no
// memory worth the name, others go past them, and when it heals all come in order.
// A tenth of them show the order, and that they are not held whole.
func TestBlockedKeyOfMany(t *testing.T) {
	eachEngine(t, outbox.Plan{}, func(r *rig) {
		many := testkit.Rounds(10_000, 100_000)
		for n := 1; n <= many; n += 5000 {
			r.enqueue("blocked", n, 5000)
		}
		sink := &scripted{ledger: r.ledger, decide: func(e Entry) error {
			if e.Chain == "blocked" {
				return errors.New("no")
			}
			return nil
		}}
		before := heap()
		relay, _ := r.relay(sink, outbox.Config{MaxInFlight: 2000})
		r.eventually("all wait behind the first", func() bool { return relay.Stats().Deferred == int64(many-1) })
		r.enqueue("other", 1, 100)
		r.eventually("others go past", func() bool { return r.ledger.Arrived() == 100 })
		s := relay.Stats()
		// A number in its blockade and one among those that are out: some 60 bytes.
		// Another attempt of the key may be on its way, over the bound, with a batch.
		if grown := heap() - before; grown > 24<<20 || s.InFlight > 2500 {
			r.Errorf("the heap has grown by %d bytes, %d in flight", grown, s.InFlight)
		}
		sink.set(nil)
		r.drained()
		if v := r.holds(); v.Delivered != many+100 || v.Duplicates != 0 {
			r.Errorf("verdict %+v", v)
		}
	})
}

// An application locks rows in the other order than the acknowledgement does.
// Whichever transaction the database fails, the deliveries are noted in the end.
func TestDeadlockInAck(t *testing.T) {
	t.Parallel()
	waiting := map[outboxctl.Engine]string{
		outboxctl.Postgres: "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()",
		outboxctl.MySQL: "SELECT count(*) FROM information_schema.INNODB_TRX JOIN information_schema.PROCESSLIST ON id = trx_mysql_thread_id" +
			" WHERE trx_state = 'LOCK WAIT' AND db = DATABASE()",
	}
	eachEngine(t, outbox.Plan{}, func(r *rig) {
		r.enqueue("k", 1, 2)
		var low, high int64
		r.check(r.db.pool.QueryRowContext(r.ctx(), "SELECT min(seq), max(seq) FROM "+r.db.table).Scan(&low, &high))
		tx, err := r.db.pool.BeginTx(r.Context(), nil)
		r.check(err)
		defer tx.Rollback() //nolint:errcheck // it has ended by then
		lock := func(seq int64) error {
			_, err := tx.ExecContext(r.ctx(), fmt.Sprintf("SELECT 1 FROM %s WHERE seq = %d FOR UPDATE", r.db.table, seq))
			return err
		}
		r.check(lock(high))
		relay, _ := r.relay(&scripted{ledger: r.ledger}, outbox.Config{})
		r.eventually("the acknowledgement waits", func() bool {
			// MariaDB shows an old copy to those who ask more often than this.
			pause(r.Context(), 150*time.Millisecond)
			var n int
			err := r.db.pool.QueryRowContext(r.ctx(), waiting[r.db.Engine]).Scan(&n)
			return err == nil && n > 0
		})
		if err := lock(low); err != nil {
			r.Logf("the application was chosen: %v", err)
		} else {
			r.Logf("the relay was chosen")
		}
		_ = tx.Rollback() // which the database may have done already
		r.drained()
		if v := r.holds(); v.Delivered != 2 {
			r.Errorf("verdict %+v, stats %+v", v, relay.Stats())
		}
	})
}

// Sessions that end under a relay, also while it is asleep, end its leadership
// and nothing else.
func TestSuspendedLeaderDoesNoHarm(t *testing.T) {
	t.Parallel()
	eachEngine(t, outbox.Plan{}, func(r *rig) {
		blocked, release := make(chan struct{}), make(chan struct{})
		once := sync.OnceFunc(func() { close(blocked); <-release })
		// The first leader hangs inside the broker's call, as a process does that
		// is stopped, while another takes over and delivers everything.
		slow := &scripted{ledger: r.ledger, decide: func(Entry) error { once(); return nil }}
		_, stopFirst := r.relay(slow, outbox.Config{DrainTimeout: time.Minute})
		r.enqueue("k", 1, 50)
		<-blocked
		r.endSessions()
		other, err := r.db.open(r.ctx())
		r.check(err)
		defer other.Close()
		_, stopSecond := r.relayOf(other, &scripted{ledger: r.ledger}, outbox.Config{})
		r.drained()
		r.enqueue("k", 51, 50)
		r.drained()
		close(release) // and now the first one goes on
		r.enqueue("k", 101, 50)
		r.drained()
		stopFirst()
		stopSecond()
		if v := r.holds(); v.Delivered != 150 {
			r.Errorf("verdict %+v", v)
		}
	})
}

// endSessions ends every session of the database but the one that asks.
func (r *rig) endSessions() {
	r.Helper()
	if r.db.Engine == outboxctl.Postgres {
		r.exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database()")
		return
	}
	conn, err := r.db.pool.Conn(r.ctx())
	r.check(err)
	defer conn.Close()
	rows, err := conn.QueryContext(r.ctx(), "SELECT id FROM information_schema.PROCESSLIST WHERE id <> CONNECTION_ID() AND db = DATABASE()")
	r.check(err)
	var ids []int64
	for rows.Next() {
		var id int64
		r.check(rows.Scan(&id))
		ids = append(ids, id)
	}
	r.check(rows.Err())
	for _, id := range ids {
		// Some end by themselves meanwhile.
		_, _ = conn.ExecContext(context.WithoutCancel(r.Context()), fmt.Sprintf("KILL %d", id))
	}
}

// The database dies at random moments of the migration. The next attempt
// completes it, and meanwhile no relay takes the tables for whole.
func TestMigrationUnderKills(t *testing.T) {
	for _, engine := range []string{"postgres", "mariadb"} {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			requireEngine(t, engine)
			plan := outbox.Plan{Layout: outbox.History}
			if engine == "postgres" { // MariaDB's CREATE TABLE is atomic only without partitions
				plan.Partition = outbox.PartitionSpec{Period: outbox.Daily, Ahead: 48 * time.Hour}
			}
			db, err := startDatabase(t.Context(), engine, lab.Fast)
			if err != nil {
				t.Fatal(err)
			}
			r := &rig{T: t, db: db, ledger: NewLedger(), log: &logBook{}}
			t.Cleanup(func() { r.check(db.Close(context.Background())) })
			base := db.table
			rounds := testkit.Rounds(2, 5)
			for i := range rounds {
				db.table = fmt.Sprintf("%s_%d", base, i)
				r.store, err = db.open(r.ctx())
				r.check(err)
				migrated := make(chan error, 1)
				go func() {
					_, err := r.store.Migrate(r.ctx(), plan)
					migrated <- err
				}()
				// PostgreSQL takes some 30 ms, MariaDB some 100.
				moment := time.Duration(28*i/(rounds-1)) * time.Millisecond
				pause(r.ctx(), moment)
				db.server.Kill()
				t.Logf("killed after %v: %v", moment, <-migrated)
				r.check(db.server.Restart(r.ctx()))
				r.eventually("the database answers", func() bool { return db.pool.PingContext(r.ctx()) == nil })
				var last string
				r.eventually("the migration is completed", func() bool {
					_, err := r.store.Migrate(r.ctx(), plan)
					if err != nil && err.Error() != last {
						last = err.Error()
						t.Log(last)
					}
					return err == nil
				})
				_, stop := r.relay(&scripted{ledger: r.ledger}, outbox.Config{})
				r.enqueue(fmt.Sprintf("k%d", i), 1, 20)
				r.drained()
				stop()
				r.check(r.store.Close())
			}
			if v := r.holds(); v.Delivered != 20*rounds {
				t.Errorf("verdict %+v", v)
			}
		})
	}
}
