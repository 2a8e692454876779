package postgres

import (
	"context"
	"fmt"

	pg "github.com/weirdb/weir/internal/backup/bulk/postgres"
	"github.com/weirdb/weir/internal/backup/restore"
)

// ledgerSchema is the schema with the books of a restore while it runs: table done has one row
// for each step, written in that step's own transaction.
const ledgerSchema = "weir_restore"

// stepGlobals is the step for roles and tablespaces, whose books come first.
const stepGlobals = "globals"

// note returns the statement that records a step.
func note(step string) string {
	return "INSERT INTO " + ledgerSchema + ".done (step) VALUES (" + pg.Literal(step) + ")"
}

// ofLedger reports whether an entry belongs to the books of a restore that created the source:
// they are not restored.
func ofLedger(e *pg.Entry) bool {
	return e.Namespace == ledgerSchema || e.Namespace == "" && (e.Tag == ledgerSchema && e.Desc == "SCHEMA" || e.Tag == "SCHEMA "+ledgerSchema)
}

// openLedger reads the books, if they exist.
func openLedger(ctx context.Context, s *pg.Session, d *database) (*restore.Books, error) {
	row, err := s.Row(ctx, "SELECT pg_catalog.to_regclass('"+ledgerSchema+".done') IS NOT NULL")
	if err != nil {
		return nil, fmt.Errorf("look for an earlier restore: %w", err)
	}
	b := &restore.Books{}
	if row[0] != "t" {
		return b, nil
	}
	err = s.Query(ctx, "SELECT step FROM "+ledgerSchema+".done", func(row []string) error {
		b.Add(row[0])
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the books of an earlier restore: %w", err)
	}
	if err := b.Check("schema "+ledgerSchema, d.manifest.ID, d.source, &d.opts); err != nil {
		return nil, err
	}
	return b, nil
}

// beginLedger creates the books. The same session has checked that the target is empty.
func beginLedger(ctx context.Context, d *database) error {
	sql := "CREATE SCHEMA " + ledgerSchema + "; CREATE TABLE " + ledgerSchema + ".done (step text PRIMARY KEY); " +
		note(d.opts.Identity(d.manifest.ID, d.source))
	if d.globalsDone {
		sql += "; " + note(stepGlobals)
	}
	err := d.main.Exec(ctx, sql)
	if err != nil {
		return fmt.Errorf("begin the books of the restore: %w", err)
	}
	return nil
}

// endLedger drops the books durably, and makes everything that was committed before durable,
// too: the log is flushed in order.
const endLedger = "SET LOCAL synchronous_commit = on; SET LOCAL client_min_messages = error; DROP SCHEMA " + ledgerSchema + " CASCADE"
