package mysql

import (
	"context"
	"fmt"

	my "github.com/weirdb/weir/internal/backup/bulk/mysql"
	"github.com/weirdb/weir/internal/backup/restore"
)

// journalTable records the completed steps of a restore while it runs, a row for each.
const journalTable = "weir_restore"

// stepCleaning is noted until what --clean drops is dropped.
const stepCleaning = "cleaning"

// note returns the statement that records a step.
func note(step string) string {
	return "INSERT INTO " + journalTable + " (step) VALUES (" + my.Literal(step) + ")"
}

// openJournal reads the journal, if there is one.
func openJournal(ctx context.Context, d *database) (*restore.Journal, error) {
	b := &restore.Journal{}
	err := d.main.Query(ctx, "SELECT step FROM "+journalTable, func(row []string) error {
		b.Add(row[0])
		return nil
	})
	if my.Missing(err) {
		return b, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the journal of an earlier restore: %w", err)
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
	for _, sql := range []string{
		"CREATE TABLE IF NOT EXISTS " + journalTable + " (step VARBINARY(3000) NOT NULL PRIMARY KEY) ENGINE=InnoDB ROW_FORMAT=DYNAMIC",
		begin,
	} {
		if err := d.main.Exec(ctx, sql); err != nil {
			return fmt.Errorf("create the journal of the restore: %w", unlogged(err))
		}
	}
	return nil
}
