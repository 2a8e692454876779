package postgres

import (
	"context"
	"fmt"
	"strings"
	"time"

	pg "github.com/weirdb/weir/internal/backup/bulk/postgres"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// restoreLock is an advisory lock that all sessions of a restore share, in the database that it
// restores. A server continues the statement of a session whose client was killed, and waits
// for hours for one whose client's machine is gone. A resumed restore finds such sessions by
// this lock, and terminates them.
const restoreLock = 7305116340286

// holdLock is the statement with which a session takes the lock.
var holdLock = fmt.Sprintf("SELECT pg_catalog.pg_advisory_lock_shared(%d)", restoreLock)

// takeOverPatience is how long the sessions of the interrupted restore may take to end.
const takeOverPatience = 5 * time.Minute

// takeOver terminates the sessions of the interrupted restore, and waits until they are gone:
// after that, the journal is complete. s holds the lock, too.
func takeOver(ctx context.Context, s *pg.Session) error {
	var pids []string
	err := s.Query(ctx, fmt.Sprintf(`SELECT pid::text FROM pg_catalog.pg_locks
		WHERE locktype = 'advisory' AND classid = %d AND objid = %d AND objsubid = 1 AND pid <> pg_catalog.pg_backend_pid()
		AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())`, restoreLock>>32, uint32(restoreLock&0xffffffff)),
		func(row []string) error {
			pids = append(pids, row[0])
			return nil
		})
	for _, pid := range pids {
		if err == nil {
			err = s.Exec(ctx, "SELECT pg_catalog.pg_terminate_backend("+pid+")")
		}
		if pg.ErrorCode(err) == "42501" { // insufficient_privilege: it belongs to another role, and ends by itself
			err = nil
		}
	}
	if err != nil {
		return fmt.Errorf("end the sessions of the interrupted restore: %w", err)
	}
	wait := fmt.Sprintf("SET lock_timeout = %d; SELECT pg_catalog.pg_advisory_lock(%d), pg_catalog.pg_advisory_unlock(%[2]d); SET lock_timeout = 0", takeOverPatience.Milliseconds(), restoreLock)
	if err := s.Exec(ctx, wait); pg.ErrorCode(err) == pgwire.CodeLockNotAvailable {
		return fmt.Errorf("sessions of the interrupted restore are still running after %s: at first those with process ids %s; end them, and resume again", takeOverPatience, strings.Join(pids, ", "))
	} else if err != nil {
		return fmt.Errorf("wait for the sessions of the interrupted restore: %w", err)
	}
	return nil
}
