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

// emptied has rows loaded, and sequences set, again that are not what the books note: a
// server that has crashed empties its unlogged tables, begins its unlogged sequences anew,
// and keeps the books.
func (d resumer) emptied(ctx context.Context) error {
	unlogged := map[[2]string]string{} // of tables, the size in bytes where that tells, else ""
	reset := false                     // a sequence stands at its beginning
	// Row security may keep rows from who asks for them, and sizes from nobody. The server
	// leaves a table of the usual kind (2 is its access method) without a byte.
	err := d.main.Query(ctx, `SELECT n.nspname, c.relname, c.relkind, CASE WHEN c.relam = 2 THEN pg_catalog.pg_relation_size(c.oid)::text ELSE '' END
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'S') AND c.relpersistence = 'u'
AND (c.relkind = 'r' OR NOT EXISTS (SELECT FROM pg_catalog.pg_sequences s WHERE s.schemaname = n.nspname AND s.sequencename = c.relname AND s.last_value IS NOT NULL))`,
		func(row []string) error {
			if row[2] == "S" {
				reset = true
			} else {
				unlogged[[2]string{row[0], row[1]}] = row[3]
			}
			return nil
		})
	if err != nil {
		return err
	}
	// Rows may be in other partitions of a root than their chunk says; a crash empties all.
	filled := map[string]bool{}
	for _, t := range d.tables {
		if size := unlogged[[2]string{t.Schema, t.Name}]; t.root != "" && size != "" && size != "0" {
			filled[t.root] = true
		}
	}
	for _, t := range d.tables {
		size, is := unlogged[[2]string{t.Schema, t.Name}]
		if t.second = is; is && (size == "" || size == "0") && !filled[t.root] {
			if err := d.again(ctx, t, size == "0"); err != nil {
				return err
			}
		}
	}
	if !reset || !d.books.Has(stateOf(d.database, sequences)) {
		return nil
	}
	// It may have stood there at the source: to set it again does no harm.
	return d.forget(ctx, stateOf(d.database, sequences), restore.StepRestored)
}

// forget takes steps out of the books.
func (d resumer) forget(ctx context.Context, steps ...string) error {
	literals := make([]string, len(steps))
	for i, step := range steps {
		d.books.Forget(step)
		literals[i] = pg.Literal(step)
	}
	return d.main.Exec(ctx, "DELETE FROM "+ledgerSchema+".done WHERE step IN ("+strings.Join(literals, ", ")+")")
}

// again has the rows of a table loaded again if it is empty.
func (d resumer) again(ctx context.Context, t *target, empty bool) error {
	var lost []string
	for _, c := range t.chunks {
		if c.Rows > 0 && d.books.Has(c.Path) {
			lost = append(lost, c.Path)
		}
	}
	if len(lost) == 0 {
		return nil
	}
	if !empty {
		row, err := d.main.Row(ctx, "SELECT EXISTS (SELECT FROM ONLY "+t.sql()+")")
		if err != nil || row[0] == "t" {
			return err
		}
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
	return d.forget(ctx, append(lost, stateOf(d.database, sequences), restore.StepRestored)...) // its sequences are unlogged, too
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
