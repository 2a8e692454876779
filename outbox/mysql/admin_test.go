package mysql

import (
	"context"
	"sync"
	"testing"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/outbox"
)

// A message that is requeued while a relay buries it again at once is requeued
// once: the call ends, and counts no message twice.
func TestRequeueOfWhatDiesAgainEnds(t *testing.T) {
	servers(t, func(t *testing.T, m *lab.MySQL) {
		db := database(t, m)
		s := migrated(t, m, db, Options{}, outbox.Plan{})
		pool := producers(t, m, db)
		const dead = 1200 // more than two batches
		run(t, pool, "INSERT INTO weir_outbox_dead (seq, topic, payload, attempts, reason, error) "+
			"SELECT s, 't', 'p', 1, 'rejected', 'no' FROM JSON_TABLE(CONCAT('[0', REPEAT(',0', 1199), ']'), '$[*]' COLUMNS (s FOR ORDINALITY)) d")
		burying, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			for burying.Err() == nil {
				tx, err := pool.BeginTx(burying, nil)
				if err != nil {
					continue // the end has come
				}
				for _, text := range []string{
					"INSERT INTO weir_outbox_dead (seq, topic, payload, attempts, reason, error) SELECT seq, topic, payload, 1, 'rejected', 'no' FROM weir_outbox FOR UPDATE",
					"DELETE FROM weir_outbox",
				} {
					if err == nil {
						_, err = tx.ExecContext(burying, text)
					}
				}
				if err == nil {
					_ = tx.Commit() // else it is done again
				} else {
					_ = tx.Rollback()
				}
			}
		})
		n, err := s.Requeue(t.Context(), outbox.Query{State: outbox.Dead, Limit: 100 * dead})
		stop()
		wg.Wait()
		if err != nil || n != dead {
			t.Errorf("requeued %d messages of %d, error %v", n, dead, err)
		}
	})
}
