package mysql

import (
	"testing"
	"time"

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
		n, err := admin{s}.inBatches(t.Context(), "requeue messages of", outbox.Query{State: outbox.Dead, Limit: 5 * dead},
			func(c *session, table, number string, seqs []int64) error {
				if err := (admin{s}).drop(t.Context(), c, table, number, seqs); err != nil {
					return err
				}
				return c.exec(t.Context(), die+numbersTable(seqs))
			})
		if err != nil || n != dead {
			t.Errorf("requeued %d messages of %d, error %v", n, dead, err)
		}
	})
}

// TestMaintenanceMakesNoTableAnew: partitions come and go, and the relay that leads
// goes on; a table that is emptied is noticed.
func TestMaintenanceMakesNoTableAnew(t *testing.T) {
	servers(t, func(t *testing.T, m *lab.MySQL) {
		if m.Flavor() != lab.FlavorMariaDB {
			return // MySQL does not tell the two apart; the relay begins anew, which loses nothing
		}
		db := database(t, m)
		spec := outbox.PartitionSpec{Period: outbox.Daily, Lookback: 10 * 24 * time.Hour}
		s := migrated(t, m, db, Options{}, outbox.Plan{Layout: outbox.History, Partition: spec})
		pool := producers(t, m, db)
		lease, err := s.Lead(t.Context(), 0)
		check(t, err)
		defer func() { check(t, lease.Close()) }()
		anew := func() bool {
			t.Helper()
			anew, err := lease.(outbox.Renewer).Renewed(t.Context())
			check(t, err)
			return anew
		}
		check(t, outbox.Enqueue(t.Context(), outbox.MySQL(pool), outbox.Message{Topic: "a"}, outbox.Message{Topic: "b"}))
		if anew() {
			t.Fatal("nothing was done, and the table counts as made anew")
		}
		ps, err := s.Partitions(t.Context())
		check(t, err)
		time.Sleep(1100 * time.Millisecond) // the time that the server shows is in seconds
		run(t, pool, "ALTER TABLE weir_outbox DROP PARTITION "+ps[1].Name)
		if anew() {
			t.Error("a partition was dropped, and the table counts as made anew")
		}
		run(t, pool, "TRUNCATE TABLE weir_outbox")
		if !anew() {
			t.Error("the table was emptied, and nothing noticed")
		}
	})
}

// TestOnlyCatchAllsLeft: a table whose last partition was dropped is served all
// the same, and gets partitions again.
func TestOnlyCatchAllsLeft(t *testing.T) {
	servers(t, func(t *testing.T, m *lab.MySQL) {
		db := database(t, m)
		spec := outbox.PartitionSpec{Period: outbox.Monthly, Ahead: 40 * 24 * time.Hour}
		s := migrated(t, m, db, Options{}, outbox.Plan{Layout: outbox.History, Partition: spec})
		ps, err := s.Partitions(t.Context())
		check(t, err)
		for _, p := range ps {
			if !p.CatchAll {
				run(t, producers(t, m, db), "ALTER TABLE weir_outbox DROP PARTITION "+p.Name)
			}
		}
		d, err := s.Describe(t.Context())
		check(t, err)
		if d.Period == outbox.Unpartitioned {
			t.Error("described as not partitioned")
		}
		report, err := s.MaintainPartitions(t.Context(), spec)
		check(t, err)
		if len(report.Created) < 2 {
			t.Errorf("created %v, want this month and the next", report.Created)
		}
	})
}
