package mysql

import (
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/outbox"
)

// report is of MySQL 9.7, shortened.
const report = `
=====================================
2026-11-29 16:25:11 140051375703744 INNODB MONITOR OUTPUT
=====================================
------------
TRANSACTIONS
------------
Trx id counter 1567
LIST OF TRANSACTIONS FOR EACH SESSION:
---TRANSACTION 375651724858136, not started
0 lock struct(s), heap size 1128, 0 row lock(s)
---TRANSACTION 1565, ACTIVE 0 sec
1 lock struct(s), heap size 1128, 0 row lock(s)
MySQL thread id 14, OS thread handle 139872838862528, query id 27 localhost root starting
SHOW /* weir-1 */ ENGINE INNODB STATUS
---TRANSACTION 1563, ACTIVE (PREPARED) 17 sec recovered trx
1 lock struct(s), heap size 1128, 0 row lock(s), undo log entries 1
---TRANSACTION 1562, ACTIVE 3 sec inserting
mysql tables in use 1, locked 1
MySQL thread id 13, OS thread handle 139872838862528, query id 26 localhost root User sleep
INSERT INTO t VALUES ('?(
LIST OF TRANSACTIONS FOR EACH SESSION:
---TRANSACTION 1561, ACTIVE 9 sec
')
---TRANSACTION 1560, COMMITTED IN MEMORY
--------
FILE I/O
--------
----------------------------
END OF INNODB MONITOR OUTPUT
============================
`

func TestReadMonitor(t *testing.T) {
	all := map[uint64]int64{1565: 0, 1563: 17, 1562: 3, 1561: 9, 1560: 0}
	for _, c := range []struct {
		name, report, never string
		own                 uint64
		ages                map[uint64]int64 // nil: it says nothing
	}{
		{"whole", report, "weir-1", 1565, all},
		{"asked outside of a transaction", report, "weir-2", 0, all},
		{"without the list", strings.ReplaceAll(report, "LIST OF", "FAIL TO OBTAIN"), "weir-1", 0, nil},
		{"cut in its middle", strings.Replace(report, "---TRANSACTION 1563", "... truncated...\n---TRANSACTION 1563", 1), "weir-1", 0, nil},
		{"cut at its end", report[:strings.Index(report, "---TRANSACTION 1560")], "weir-1", 0, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, ok := readMonitor(c.report, c.never)
			if ok != (c.ages != nil) || m.own != c.own || !maps.Equal(m.ages, c.ages) {
				t.Errorf("%v, %v, %v; want %v, %v", m.ages, m.own, ok, c.ages, c.own)
			}
		})
	}
}

// A statement whose text utf8mb3 does not have, which MySQL 9 cannot show, keeps a relay
// from nothing: not from its start, nor its leadership, nor its proofs.
func TestStatementThatTheServerCannotShow(t *testing.T) {
	servers(t, func(t *testing.T, m *lab.MySQL) {
		db := database(t, m)
		s := migrated(t, m, db, Options{}, outbox.Plan{})
		l := leadIt(t, s)
		pool := producers(t, m, db)
		const insert = "INSERT INTO weir_outbox (topic, payload) VALUES ('t', 'p')"
		for name, text := range map[string]string{"bytes": "_binary'\xa2(\x12\x19'", "a character of four bytes": "'😀'"} {
			t.Run(name, func(t *testing.T) {
				before, holder, writer := connect(t, pool), connect(t, pool), connect(t, pool)
				run(t, before, "START TRANSACTION", insert)
				run(t, holder, "DO GET_LOCK('shown', 0)")
				mark := markIt(t, l)
				looked(t, l, mark)
				run(t, writer, "START TRANSACTION", insert)
				done := make(chan error, 1)
				go func() {
					_, err := writer.ExecContext(t.Context(), "DO "+text+", GET_LOCK('shown', 100)")
					done <- err
				}()
				testkit.Eventually(t, "the statement is executed", func() bool {
					var n int
					err := pool.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE = 'User lock'").Scan(&n)
					if !isError(err, errConvert) {
						check(t, err)
					}
					return err != nil || n > 0
				})

				another := open(t, m, db, Options{})
				check(t, another.Check(t.Context()))
				if v, err := another.describeServer(t.Context()); err != nil || !v.process {
					t.Errorf("another store: %v; it sees all transactions: %v", err, v.process)
				}
				run(t, before, "COMMIT")
				testkit.Eventually(t, "the mark before the statement is settled", func() bool { return isSettled(t, l, mark) })
				mark = markIt(t, l)
				looked(t, l, mark)
				testkit.Eventually(t, "its transaction is old", func() bool {
					err := s.with(t.Context(), func(c *session) error { return c.checkOldTx(t.Context(), l.v) })
					if !errors.Is(err, errOldTx) {
						check(t, err)
					}
					return err != nil
				})

				run(t, holder, "DO RELEASE_LOCK('shown')")
				check(t, <-done)
				run(t, writer, "COMMIT", "DO RELEASE_LOCK('shown')")
				testkit.Eventually(t, "the mark is settled", func() bool { return isSettled(t, l, mark) })
			})
		}
	})
}
