package mysql

import (
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
		const (
			dead = 1200 // more than two batches
			die  = "INSERT INTO weir_outbox_dead (seq, topic, payload, attempts, reason, error) SELECT s, 't', 'p', 1, 'rejected', 'no' FROM "
		)
		run(t, producers(t, m, db), die+numbersTable(make([]int64, dead)))
		n, err := s.inBatches(t.Context(), "requeue messages of", outbox.Query{State: outbox.Dead, Limit: 5 * dead},
			func(c *session, table, number string, seqs []int64) error {
				if err := s.drop(t.Context(), c, table, number, seqs); err != nil {
					return err
				}
				return c.exec(t.Context(), die+numbersTable(seqs))
			})
		if err != nil || n != dead {
			t.Errorf("requeued %d messages of %d, error %v", n, dead, err)
		}
	})
}
