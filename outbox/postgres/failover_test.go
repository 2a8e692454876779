package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/outbox"
)

// A synchronous standby is promoted when its primary has died. No slot of the
// primary is on it. What had been committed arrives, in order, nothing else does, and
// a relay that follows the log follows that of the new primary.
func TestRelayAfterAPromotion(t *testing.T) {
	primary := labtest.Postgres(t, config)
	r := newOwnRig(t, primary)
	var name string
	r.check(r.db.QueryRowContext(r.ctx(), "SELECT current_database()").Scan(&name))
	r.exec("CREATE TABLE kept (key text, n int, PRIMARY KEY (key, n))")
	standby := labtest.Standby(t, primary, config)
	r.exec("ALTER SYSTEM SET synchronous_standby_names = '*'")
	r.exec("ALTER SYSTEM SET synchronous_commit = 'on'")
	r.exec("SELECT pg_reload_conf()")
	r.eventually("the standby is synchronous", func() bool {
		var n int
		r.check(r.db.QueryRowContext(r.ctx(), "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'").Scan(&n))
		return n == 1
	})
	var hosts, ports [2]string
	for i, addr := range []string{primary.Addr(), standby.Addr()} {
		var err error
		hosts[i], ports[i], err = net.SplitHostPort(addr)
		r.check(err)
	}
	both := fmt.Sprintf("host=%s,%s port=%s,%s user=%s password='%s' dbname=%s sslmode=disable target_session_attrs=read-write connect_timeout=5",
		hosts[0], hosts[1], ports[0], ports[1], primary.User(), primary.Password(), name)
	pool, err := pgxpool.New(t.Context(), both)
	r.check(err)
	t.Cleanup(pool.Close)
	store, err := New(pool, Options{})
	r.check(err)
	_, err = store.Migrate(r.ctx(), outbox.Plan{})
	r.check(err)

	db, err := sql.Open("pgx", both)
	r.check(err)
	t.Cleanup(func() { _ = db.Close() })
	db.SetMaxIdleConns(4) // one for each producer
	sink := &ledger{seen: map[outbox.ID]bool{}, next: map[string]int{}}
	relay, err := outbox.NewRelay(store, sink, outbox.Config{Claim: outbox.Log})
	r.check(err)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()
	r.eventually("the log is followed", func() bool { return relay.Stats().Tailing == 1 })

	const producers, each = 4, 150
	var all sync.WaitGroup
	for p := range producers {
		key := fmt.Sprint(p)
		all.Go(func() {
			for n := range each {
				for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
					err := produce(t.Context(), db, key, n)
					if err == nil {
						break
					}
					if time.Now().After(deadline) {
						t.Errorf("produce: %v", err)
						return
					}
				}
			}
		})
	}
	r.eventually("some are delivered", func() bool { return sink.count() > producers*each/4 })
	primary.Kill()
	alone, err := sql.Open("pgx", standby.DSN(name))
	r.check(err)
	t.Cleanup(func() { _ = alone.Close() })
	_, err = alone.ExecContext(r.ctx(), "SELECT pg_promote()")
	r.check(err)
	all.Wait()
	r.eventually("all are delivered", func() bool { return sink.count() >= producers*each })
	r.eventually("the log of the new primary is followed", func() bool { return relay.Stats().Tailing == 1 })
	stop()
	r.check(<-ended)
	if len(sink.wrong) > 0 || sink.count() != producers*each {
		t.Errorf("%d of %d delivered; %v", sink.count(), producers*each, sink.wrong)
	}
}

// produce commits a message and a row that tells so, unless the row is there: what
// became of a COMMIT whose answer is missing is asked of the server.
func produce(ctx context.Context, db *sql.DB, key string, n int) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, tx.Rollback())
		}
	}()
	put, err := tx.ExecContext(ctx, "INSERT INTO kept VALUES ($1, $2) ON CONFLICT DO NOTHING", key, n)
	if err != nil {
		return err
	}
	if rows, err := put.RowsAffected(); err != nil {
		return err
	} else if rows == 1 {
		m := outbox.Message{Topic: "t", Key: key, Payload: fmt.Append(nil, n)}
		if err := outbox.Enqueue(ctx, outbox.Postgres(tx), m); err != nil {
			return err
		}
	}
	return tx.Commit()
}
