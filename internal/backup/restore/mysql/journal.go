package mysql

import (
	"context"
	"fmt"
	"time"

	my "github.com/weirdb/weir/internal/backup/bulk/mysql"
	"github.com/weirdb/weir/internal/backup/restore"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// journalTable records the completed steps of a restore while it runs, a row for each.
const journalTable = "weir_restore"

// stepCleaning is noted until what --clean drops is dropped.
const stepCleaning = "cleaning"

// note returns the statement that records a step.
func note(step string) string {
	return "INSERT INTO " + journalTable + " (step) VALUES (" + my.Literal(step) + ")"
}

// journalPatience is how long the drop of a journal, which is the end of a restore, may take.
var journalPatience = time.Minute

// waitForLocks is the statement after which a session waits for locks as long as they last.
const waitForLocks = "SET lock_wait_timeout = 86400"

// openJournal reads the journal, if there is one.
func openJournal(ctx context.Context, d *database) (*restore.Journal, error) {
	b := &restore.Journal{}
	err := d.main.Exec(ctx, fmt.Sprintf("SET lock_wait_timeout = %d", int(journalPatience.Seconds())))
	if err == nil {
		err = d.main.Query(ctx, "SELECT step FROM "+journalTable, func(row []string) error {
			b.Add(row[0])
			return nil
		})
	}
	missing := my.Missing(err)
	switch {
	case my.ErrorCode(err) == mywire.ErrLockWaitTimeout:
		return nil, fmt.Errorf("the journal of an earlier restore (table %s) has been locked for %s: another restore may be ending, or the server is still ending one that was killed, "+
			"or a transaction has read the table; wait, or end the sessions that lock it (SHOW PROCESSLIST), and resume again", journalTable, journalPatience)
	case err != nil && !missing:
		return nil, fmt.Errorf("read the journal of an earlier restore: %w", err)
	}
	if err := d.main.Exec(ctx, waitForLocks); err != nil {
		return nil, fmt.Errorf("prepare session: %w", err)
	}
	if missing {
		return b, nil
	}
	if err := b.Check("table "+journalTable, d.manifest.ID, d.source, &d.opts); err != nil {
		return nil, err
	}
	return b, nil
}

// createJournal creates the journal.
func createJournal(ctx context.Context, d *database) error {
	begin := note(d.opts.Identity(d.manifest.ID, d.source))
	if d.opts.Clean && !d.create {
		begin += ", (" + my.Literal(stepCleaning) + ")"
	}
	err := d.main.Exec(ctx, "CREATE TABLE "+journalTable+" (step VARBINARY(3000) NOT NULL PRIMARY KEY) ENGINE=InnoDB ROW_FORMAT=DYNAMIC")
	if exists := uint16(1050); my.ErrorCode(err) == exists {
		if !d.opts.Resume {
			return restore.Refuse("another restore into the database has begun at the same time: it has created table %s", journalTable)
		}
		err = nil // an interrupted run has created it, and nothing else
	}
	if err == nil {
		err = d.main.Exec(ctx, begin)
	}
	if err != nil {
		return fmt.Errorf("create the journal of the restore: %w", unlogged(err))
	}
	return nil
}
