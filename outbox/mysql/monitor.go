package mysql

import (
	"context"
	"database/sql/driver"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// monitor is the report of InnoDB's monitor. MySQL 9 cannot show INNODB_TRX while any
// session executes a statement with a character that utf8mb3 does not have, or bytes
// that are no character, in its text (errConvert): the report is read instead then. It
// is of this moment, not a copy.
//
// It shows texts of statements between its own lines, and those may look like them. So
// it is read in a way that finds what is there and perhaps more: more is waited for.
type monitor struct {
	ages map[uint64]int64 // read-write transactions by number: for how many seconds they have been open
	own  uint64           // that of the session that asked; 0: it has none
}

// listed is the line that a transaction begins with.
var transactionLine = regexp.MustCompile(`(?m)^---TRANSACTION (\d+),(?:[^\d\n]* (\d+) sec)?`)

// readMonitor reads a report that was asked for by a statement with never in its text.
// It knows nothing of one that the server has cut.
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

// monitor asks for a report. With innodb_status_output_locks the server lists
// transactions one by one, and may pass over some.
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
