package mysql

import (
	"context"
	"fmt"

	my "github.com/weirdb/weir/internal/backup/bulk/mysql"
)

// booksTable holds the books of a restore while it runs: a row for each step.
const booksTable = "weir_restore"

// books are what an earlier run has finished. The map is written before the workers
// start and only read afterwards.
type books struct {
	done map[string]bool
}

// has reports whether a step is finished.
func (b *books) has(step string) bool { return b.done[step] }

// stepRestored is the last step: what is left is to close the books.
const stepRestored = "restored"

// note is the statement that finishes a step.
func note(step string) string {
	return "INSERT INTO " + booksTable + " (step) VALUES (" + my.Literal(step) + ")"
}

// identity is the step that says whose books these are.
func identity(backup, database string) string { return "backup " + backup + " database " + database }

// openBooks reads the books, if there are any.
func openBooks(ctx context.Context, s *my.Session, backup, database string, resume bool) (*books, error) {
	b := &books{done: map[string]bool{}}
	err := s.Query(ctx, "SELECT step FROM "+booksTable, func(row []string) error {
		b.done[row[0]] = true
		return nil
	})
	if my.Missing(err) {
		return b, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the books of an earlier restore: %w", err)
	}
	if !resume {
		return nil, fmt.Errorf("an interrupted restore is in the database (table %s): --resume continues it; or drop the database and begin anew", booksTable)
	}
	if len(b.done) > 0 && !b.has(identity(backup, database)) {
		return nil, fmt.Errorf("the interrupted restore in the database is not one of database %s of backup %s", database, backup)
	}
	return b, nil
}

// beginBooks makes the books.
func beginBooks(ctx context.Context, s *my.Session, backup, database string) error {
	for _, sql := range []string{
		"CREATE TABLE IF NOT EXISTS " + booksTable + " (step VARBINARY(3000) NOT NULL PRIMARY KEY) ENGINE=InnoDB ROW_FORMAT=DYNAMIC",
		note(identity(backup, database)),
	} {
		if err := s.Exec(ctx, sql); err != nil {
			return fmt.Errorf("begin the books of the restore: %w", err)
		}
	}
	return nil
}
