package postgres

import (
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/outbox"
)

// Partition maintenance beside a transaction that stays open leaves it alone, and
// says so: producers do not queue up behind a lock that is waited for.
func TestMaintenanceDoesNotQueueBehindAnOpenTransaction(t *testing.T) {
	r := newRig(t, server(t))
	day := 24 * time.Hour
	spec := outbox.PartitionSpec{Period: outbox.Daily, Lookback: 5 * day, Ahead: day}
	s := r.migrated(outbox.Plan{Layout: outbox.History, Partition: spec})
	open := r.conn()
	r.on(open, "BEGIN")
	r.on(open, "INSERT INTO weir_outbox (topic) VALUES ('open')")
	r.on(open, "SELECT pg_sleep(0.5)") // until it is an old one
	maintained := make(chan error, 1)
	go func() {
		_, err := s.MaintainPartitions(r.ctx(), outbox.PartitionSpec{Period: outbox.Daily, Ahead: 2 * day, Keep: day})
		maintained <- err
	}()
	// A session that waits for the lock of the whole table makes all others wait: there is none.
	var err error
	for done := false; !done; {
		select {
		case err = <-maintained:
			done = true
		default:
			var queued int
			r.check(r.db.QueryRowContext(r.ctx(), `SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'
				AND relation = 'weir_outbox'::regclass`).Scan(&queued))
			if queued > 0 {
				t.Fatal("maintenance waits for the lock of the whole table behind an open transaction")
			}
			r.exec("INSERT INTO weir_outbox (topic) VALUES ('t')")
			time.Sleep(lockPatience / 3) // who waits for a lock does so for longer
		}
	}
	if err == nil || !strings.Contains(err.Error(), "pg_stat_activity") {
		t.Errorf("maintenance: %v, want an error that names the transaction", err)
	}
	r.on(open, "COMMIT")
	report, err := s.MaintainPartitions(r.ctx(), outbox.PartitionSpec{Period: outbox.Daily, Ahead: 2 * day, Keep: day})
	r.check(err)
	if len(report.Dropped) == 0 {
		t.Errorf("afterwards nothing was dropped: %+v", report)
	}
}
