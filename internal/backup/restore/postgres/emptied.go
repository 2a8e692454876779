package postgres

import (
	"context"
	"errors"
	"slices"
	"strings"

	pg "github.com/weirdb/weir/internal/backup/bulk/postgres"
	"github.com/weirdb/weir/internal/backup/restore"
)

// errEmptied is why rows of a table with triggers are not loaded again.
var errEmptied = errors.New("a crash of the server has emptied this unlogged table since they were loaded, and its triggers or rules are in place, which rows that are loaded now would set off")

// A resumer looks what has become of what the books of a resumed restore note.
type resumer struct{ *database }

// emptied has rows loaded again that are gone although the books note them: a server that
// has crashed empties its unlogged tables, and keeps the books.
func (d resumer) emptied(ctx context.Context) error {
	unlogged := map[[2]string]bool{}
	err := d.main.Query(ctx, `SELECT n.nspname, c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND c.relpersistence = 'u'`, func(row []string) error {
		unlogged[[2]string{row[0], row[1]}] = true
		return nil
	})
	if err != nil {
		return err
	}
	for _, t := range d.tables {
		if t.second = unlogged[[2]string{t.Schema, t.Name}]; t.second {
			if err := d.again(ctx, t); err != nil {
				return err
			}
		}
	}
	return nil
}

// again has the rows of a table loaded again if it is empty.
func (d resumer) again(ctx context.Context, t *target) error {
	var lost []string
	for _, c := range t.chunks {
		if c.Rows > 0 && d.books.Has(c.Path) {
			lost = append(lost, c.Path)
		}
	}
	if len(lost) == 0 {
		return nil
	}
	row, err := d.main.Row(ctx, "SELECT EXISTS (SELECT FROM ONLY "+t.sql()+")")
	if err != nil || row[0] == "t" {
		return err
	}
	if d.watched(t) {
		for _, c := range t.chunks {
			if slices.Contains(lost, c.Path) {
				if err := d.failed(d.rowsError(t, c, errEmptied)); err != nil {
					return err
				}
			}
		}
		return nil
	}
	d.Warn("table %s is unlogged, and a crash of the server has emptied it: its rows are loaded again", t.name())
	steps := make([]string, 0, len(lost)+2)
	for _, step := range append(lost, stateOf(d.database, sequences), restore.StepRestored) { // its sequences are unlogged, too
		d.books.Forget(step)
		steps = append(steps, pg.Literal(step))
	}
	return d.main.Exec(ctx, "DELETE FROM "+ledgerSchema+".done WHERE step IN ("+strings.Join(steps, ", ")+")")
}

// watched reports whether triggers or rules of a table have been made.
func (d resumer) watched(t *target) bool {
	id := 0
	for i := range d.toc.Entries {
		if e := &d.toc.Entries[i]; e.Desc == "TABLE" && e.Namespace == t.Schema && e.Tag == t.Name {
			id = e.ID
		}
	}
	return slices.ContainsFunc(d.entries, func(e *pg.Entry) bool {
		return (e.Desc == "TRIGGER" || e.Desc == "RULE") && slices.Contains(e.Depends, id) && d.books.Has(entryStep(e))
	})
}
