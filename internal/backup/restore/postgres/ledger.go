package postgres

import (
	"context"
	"fmt"

	pg "github.com/weirdb/weir/internal/backup/bulk/postgres"
)

// ledgerSchema holds the books of a restore while it runs: table done has one row
// for each step, written in that step's own transaction.
const ledgerSchema = "weir_restore"

// ledger is what an earlier run has finished. Its map is written before the
// workers start and only read afterwards.
type ledger struct {
	done map[string]bool
}

// has reports whether a step is finished.
func (l *ledger) has(step string) bool { return l.done[step] }

// stepRestored is the last step: what is left is to close the books.
const stepRestored = "restored"

// note is the statement that finishes a step.
func note(step string) string {
	return "INSERT INTO " + ledgerSchema + ".done (step) VALUES (" + pg.Literal(step) + ")"
}

// identity is the step that says whose books these are.
func identity(backup, database string) string { return "backup " + backup + " database " + database }

// openLedger reads the books, or begins them.
func openLedger(ctx context.Context, s *pg.Session, backup, database string, resume bool) (*ledger, error) {
	row, err := s.Row(ctx, "SELECT pg_catalog.to_regclass('"+ledgerSchema+".done') IS NOT NULL")
	if err != nil {
		return nil, fmt.Errorf("look for an earlier restore: %w", err)
	}
	l := &ledger{done: map[string]bool{}}
	if row[0] == "t" {
		if !resume {
			return nil, fmt.Errorf("an interrupted restore is in the database (schema %s): --resume continues it; or drop the database and begin anew", ledgerSchema)
		}
		err := s.Query(ctx, "SELECT step FROM "+ledgerSchema+".done", func(row []string) error {
			l.done[row[0]] = true
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("read the books of an earlier restore: %w", err)
		}
		if !l.has(identity(backup, database)) {
			return nil, fmt.Errorf("the interrupted restore in the database is not one of database %s of backup %s", database, backup)
		}
		return l, nil
	}
	return l, nil
}

// begin makes the books. The empty target that this follows is looked at in the
// same session.
func (l *ledger) begin(ctx context.Context, s *pg.Session, backup, database string) error {
	err := s.Exec(ctx, "CREATE SCHEMA "+ledgerSchema+"; CREATE TABLE "+ledgerSchema+".done (step text PRIMARY KEY); "+
		note(identity(backup, database)))
	if err != nil {
		return fmt.Errorf("begin the books of the restore: %w", err)
	}
	return nil
}

// endLedger drops the books, durably, and with them everything that was committed
// before: the log is flushed in its order.
const endLedger = "SET LOCAL synchronous_commit = on; SET LOCAL client_min_messages = error; DROP SCHEMA " + ledgerSchema + " CASCADE"
