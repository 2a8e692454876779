package mysql

import (
	"context"
	"database/sql/driver"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// monitor is a parsed report of InnoDB's monitor. MySQL 9 cannot show INNODB_TRX while any
// session executes a statement whose text has a character that utf8mb3 lacks, or invalid
// bytes (errConvert); the report is read instead. It is current, not a copy.
//
// The report contains texts of statements, which may look like its own lines. So the parser
// may find more transactions than there are: waiting for too many is safe.
type monitor struct {
	ages map[uint64]int64 // read-write transactions by number: for how many seconds they have been open
	own  uint64           // number of the asking session's transaction; 0 if it has none
}

// transactionLine matches the first line of a transaction.
var transactionLine = regexp.MustCompile(`(?m)^---TRANSACTION (\d+),(?:[^\d\n]* (\d+) sec)?`)

// readMonitor parses a report. never is in the text of the statement that asked for it. ok is
// false if the server truncated the report.
func readMonitor(report, never string) (m monitor, ok bool) {
	const title, end, cut = "LIST OF TRANSACTIONS FOR EACH SESSION:", "END OF INNODB MONITOR OUTPUT", "... truncated..."
	_, list, found := strings.Cut(report, title)
	asked := strings.Index(list, never)
	if !found || !strings.HasSuffix(strings.TrimRight(report, "=\n"), end) || strings.Contains(report, cut) {
		return monitor{}, false
	}
	m.ages = map[uint64]int64{}
	for _, at := range transactionLine.FindAllStringSubmatchIndex(list, -1) {
		id, err := strconv.ParseUint(list[at[2]:at[3]], 10, 64)
		if err != nil || id >= maxTrx {
			continue
		}
		m.ages[id] = 0
		if at[4] >= 0 {
			m.ages[id], _ = strconv.ParseInt(list[at[4]:at[5]], 10, 64) // digits
		}
		if at[0] < asked {
			m.own = id
		}
	}
	return m, true
}

// monitor requests and parses a report. ok is false with innodb_status_output_locks, with which
// the server may skip transactions.
func (c *session) monitor(ctx context.Context, never string) (m monitor, ok bool, err error) {
	var locks bool
	if err := c.QueryRowContext(ctx, "SELECT @@GLOBAL.innodb_status_output_locks").Scan(&locks); err != nil {
		return monitor{}, false, fmt.Errorf("look at InnoDB's monitor: %w", err)
	}
	if locks {
		return monitor{}, false, nil
	}
	err = c.scan(ctx, "SHOW /* "+never+" */ ENGINE INNODB STATUS", func(values []driver.Value) (bool, error) {
		report, err := text(values[2])
		m, ok = readMonitor(string(report), never)
		return true, err
	})
	if err != nil {
		return monitor{}, false, fmt.Errorf("look at InnoDB's monitor: %w", err)
	}
	return m, ok, nil
}
