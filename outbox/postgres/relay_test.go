package postgres

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"

	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/outbox"
)

// ledger is a sink that notes first deliveries.
type ledger struct {
	mu    sync.Mutex
	seen  map[outbox.ID]bool
	next  map[string]int // by key: the number of the next message
	wrong []string
}

func (l *ledger) Publish(_ context.Context, msgs []outbox.Message) []error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range msgs {
		m := &msgs[i]
		if l.seen[m.ID] {
			continue
		}
		l.seen[m.ID] = true
		n, err := strconv.Atoi(string(m.Payload))
		if err != nil || n != l.next[m.Key] {
			l.wrong = append(l.wrong, fmt.Sprintf("key %s: number %q, want %d (%v)", m.Key, m.Payload, l.next[m.Key], err))
		}
		l.next[m.Key] = n + 1
	}
	return nil
}

func (l *ledger) Close() error { return nil }

func (l *ledger) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.seen)
}

// A relay over this store delivers all, in the order of keys, while
// transactions commit late or roll back and the leader's session is cut.
func TestRelay(t *testing.T) {
	pg := server(t)
	parted := outbox.Plan{Layout: outbox.History, Partition: outbox.PartitionSpec{Period: outbox.Daily}}
	for _, c := range []struct {
		claim outbox.ClaimMode
		plan  outbox.Plan
	}{
		{outbox.Poll, outbox.Plan{}}, {outbox.Log, outbox.Plan{}}, {outbox.Poll, parted}, {outbox.Log, parted}, {outbox.SkipLocked, parted},
	} {
		t.Run(fmt.Sprintf("%v, %v", c.claim, c.plan.Layout), func(t *testing.T) {
			r := newRig(t, pg)
			s := r.migrated(c.plan)
			sink := &ledger{seen: map[outbox.ID]bool{}, next: map[string]int{}}
			// One worker keeps the order even with SkipLocked, if nothing fails.
			cfg := outbox.Config{Claim: c.claim}
			if c.claim == outbox.SkipLocked {
				cfg.Publishers = 1
			}
			relay, err := outbox.NewRelay(s, sink, cfg)
			r.check(err)
			ctx, stop := context.WithCancel(t.Context()) // patience is for each wait, not for the whole
			defer stop()
			ended := make(chan error, 1)
			go func() { ended <- relay.Run(ctx) }()

			const producers = 6
			each := testkit.Rounds(15, 60)
			var wg sync.WaitGroup
			for p := range producers {
				wg.Go(func() {
					for n := range each {
						tx, err := r.db.BeginTx(r.ctx(), nil)
						if err != nil {
							t.Error(err)
							return
						}
						lost := (n+p)%7 == 3
						m := outbox.Message{Topic: "t", Key: fmt.Sprint(p), Payload: fmt.Append(nil, n)}
						if err := outbox.Enqueue(r.ctx(), outbox.Postgres(tx), m); err != nil {
							t.Error(err)
							return
						}
						// Others commit before this one does.
						if _, err := tx.ExecContext(r.ctx(), "SELECT pg_sleep($1)", float64((n+p)%5)/1000); err != nil {
							t.Error(err)
							return
						}
						if lost {
							if err := tx.Rollback(); err != nil {
								t.Error(err)
								return
							}
							tx, err = r.db.BeginTx(r.ctx(), nil)
							if err != nil {
								t.Error(err)
								return
							}
							if err := outbox.Enqueue(r.ctx(), outbox.Postgres(tx), m); err != nil {
								t.Error(err)
								return
							}
						}
						if err := tx.Commit(); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			if c.claim != outbox.SkipLocked {
				for range 3 {
					before := sink.count()
					r.eventually("deliveries go on", func() bool { return sink.count() >= min(before+20, producers*each) })
					r.exec(`SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted
						AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
				}
			}
			wg.Wait()
			r.eventually("everything is delivered", func() bool { return sink.count() == producers*each })
			r.eventually("everything is acknowledged", func() bool {
				st, err := s.Status(r.ctx())
				return err == nil && st.Pending == 0
			})
			stop()
			r.check(<-ended)
			for _, w := range sink.wrong {
				t.Error("out of order:", w)
			}
		})
	}
}
