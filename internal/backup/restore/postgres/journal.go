package postgres

import (
	"context"
	"fmt"
	"time"

	pg "github.com/weirdb/weir/internal/backup/bulk/postgres"
	"github.com/weirdb/weir/internal/backup/restore"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// journalSchema is the schema with the journal of a restore while it runs: table done has one row
// for each step, written in that step's own transaction.
const journalSchema = "weir_restore"

// stepGlobals says that roles and tablespaces are restored, which happens before the journal is
// created.
const stepGlobals = "globals"

// note returns the statement that records a step.
func note(step string) string {
	return "INSERT INTO " + journalSchema + ".done (step) VALUES (" + pg.Literal(step) + ")"
}

// ofJournal reports whether an entry belongs to the journal of a restore that created the source:
// it is not restored.
func ofJournal(e *pg.Entry) bool {
	return e.Namespace == journalSchema || e.Namespace == "" && (e.Tag == journalSchema && e.Desc == "SCHEMA" || e.Tag == "SCHEMA "+journalSchema)
}

// openJournal reads the journal, if it exists.
func openJournal(ctx context.Context, s *pg.Session, d *database) (*restore.Journal, error) {
	row, err := s.Row(ctx, "SELECT pg_catalog.to_regclass('"+journalSchema+".done') IS NOT NULL")
	if err != nil {
		return nil, fmt.Errorf("look for an earlier restore: %w", err)
	}
	b := &restore.Journal{}
	if row[0] != "t" {
		return b, nil
	}
	read := fmt.Sprintf("SET LOCAL lock_timeout = %d; SELECT step FROM %s.done", journalPatience.Milliseconds(), journalSchema)
	err = s.Query(ctx, read, func(row []string) error {
		b.Add(row[0])
		return nil
	})
	switch pg.ErrorCode(err) {
	case pgwire.CodeUndefinedTable: // the restore has ended while this one waited for it
		return &restore.Journal{}, nil
	case pgwire.CodeLockNotAvailable:
		return nil, journalLocked(ctx, s)
	}
	if err != nil {
		return nil, fmt.Errorf("read the journal of an earlier restore: %w", err)
	}
	if err := b.Check("schema "+journalSchema, d.manifest.ID, d.source, &d.opts); err != nil {
		return nil, err
	}
	return b, nil
}

// journalPatience is how long the drop of a journal, which is the end of a restore, may take: it
// waits for the standbys of synchronous replication, for example.
var journalPatience = time.Minute

// journalLocked returns the error that the journal cannot be read, with the sessions that lock it.
func journalLocked(ctx context.Context, s *pg.Session) error {
	row, err := s.Row(ctx, `SELECT pg_catalog.concat_ws(', ', VARIADIC ARRAY(SELECT DISTINCT pid FROM pg_catalog.pg_locks
		WHERE relation = pg_catalog.to_regclass('`+journalSchema+`.done') AND granted AND pid <> pg_catalog.pg_backend_pid()
		AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())))`)
	if err != nil {
		return fmt.Errorf("look for the sessions that lock the journal of an earlier restore: %w", err)
	}
	return fmt.Errorf("the journal of an earlier restore (schema %s) has been locked for %s: another restore may be ending, or the server is still ending one that was killed; "+
		"wait, or end the sessions that lock it (process ids: %s), and resume again", journalSchema, journalPatience, row[0])
}

// createJournal creates the journal. The same session has checked that the target is empty.
func createJournal(ctx context.Context, d *database) error {
	sql := "CREATE SCHEMA " + journalSchema + "; CREATE TABLE " + journalSchema + ".done (step text PRIMARY KEY); " +
		note(d.opts.Identity(d.manifest.ID, d.source))
	if d.globalsDone {
		sql += "; " + note(stepGlobals)
	}
	err := d.main.Exec(ctx, sql)
	if err != nil {
		return fmt.Errorf("create the journal of the restore: %w", err)
	}
	return nil
}

// dropJournal drops the journal durably, and makes everything that was committed before durable,
// too: the log is flushed in order.
const dropJournal = "SET LOCAL synchronous_commit = on; SET LOCAL client_min_messages = error; DROP SCHEMA " + journalSchema + " CASCADE"
