package mysql

import (
	"context"
	"errors"
	"fmt"
	"strings"

	my "github.com/weirdb/weir/internal/backup/bulk/mysql"
	"github.com/weirdb/weir/internal/wire/binlog"
)

// errUnlogged is returned if a server's log lacks the changes that it replicates: a replay of
// that log on a backup would end with old rows, without an error.
var errUnlogged = errors.New("the server is a replica and does not write what it replicates into its own binary log (log_slave_updates, in MySQL log_replica_updates, is off)")

// unlogged reports whether a server currently replicates changes that its own log lacks, and
// otherwise whether it may do so at other times: while its replication is stopped, or, if the
// account cannot see whether it is a replica, judging by its GTIDs.
func unlogged(ctx context.Context, s *my.Session) (does, may bool, err error) {
	updates := ""
	err = s.Query(ctx, "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('log_slave_updates', 'log_replica_updates')", func(row []string) error {
		updates = row[1]
		return nil
	})
	if err != nil || updates != "OFF" {
		return false, false, err
	}
	status := "SHOW REPLICA STATUS"
	switch {
	case s.IsMariaDB():
		status = "SHOW ALL SLAVES STATUS"
	case s.Version() < 80022:
		status = "SHOW SLAVE STATUS"
	}
	err = s.QueryNamed(ctx, status, func(row map[string]string) error {
		may = true
		does = does || row["slave_sql_running"] == "Yes" || row["replica_sql_running"] == "Yes"
		return nil
	})
	if !my.Denied(err) || !s.IsMariaDB() {
		return does, may, err
	}
	row, err := s.Row(ctx, "SELECT @@GLOBAL.gtid_slave_pos, @@GLOBAL.gtid_binlog_pos")
	if err != nil {
		return false, false, err
	}
	logged, err := binlog.ParseGTIDSet(row[1])
	if err != nil {
		return false, false, fmt.Errorf("read gtid_binlog_pos: %w", err)
	}
	for part := range strings.SplitSeq(row[0], ",") {
		var g binlog.GTID
		if _, err := fmt.Sscanf(part, "%d-%d-%d", &g.Domain, &g.Server, &g.Seq); err == nil && !logged.Contains(g) {
			may = true
		}
	}
	return false, may, nil
}

// judge removes the position from the backup if the server's log lacks its replicated changes.
func judge(ctx context.Context, r *runner, s *my.Session) error {
	does, may, err := unlogged(ctx, s)
	switch {
	case err != nil && !my.Denied(err):
		return fmt.Errorf("ask whether the server is a replica: %w", err)
	case does:
		r.position.Binlog, r.position.Offset = "", 0
		r.warn("no log can be replayed on this backup: %v", errUnlogged)
	case may:
		r.warn("replay no log on this backup if the server replicates: it does not write what it replicates into its own binary log (log_slave_updates is off)")
	}
	return nil
}
