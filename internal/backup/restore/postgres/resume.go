package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/backup/archive"
	pg "github.com/weirdb/weir/internal/backup/bulk/postgres"
	"github.com/weirdb/weir/internal/backup/restore"
)

// errEmptied says why rows of a table with triggers are not loaded again.
var errEmptied = errors.New("a crash of the server has emptied this unlogged table, and it has triggers or rules, which loading rows again would fire")

// A resumer checks what has happened since to what the journal of a resumed restore records.
type resumer struct{ *database }

// reloadEmptied arranges for rows to be loaded, and sequences to be set, again: a server that has
// crashed empties its unlogged tables and resets its unlogged sequences, but keeps the journal.
func (d resumer) reloadEmptied(ctx context.Context) error {
	unlogged := map[[2]string]string{} // size in bytes of tables, or "" if it does not tell
	reset := map[string]bool{}         // beginnings of the statements that set sequences that are at their start
	// Row security may hide rows, but not sizes. After a crash, a table of the default access
	// method (2 is its OID) has no bytes.
	err := d.main.Query(ctx, `SELECT n.nspname, c.relname, c.relkind, CASE WHEN c.relam = 2 THEN pg_catalog.pg_relation_size(c.oid)::text ELSE '' END
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'S') AND c.relpersistence = 'u'
AND (c.relkind = 'r' OR NOT EXISTS (SELECT FROM pg_catalog.pg_sequences s WHERE s.schemaname = n.nspname AND s.sequencename = c.relname AND s.last_value IS NOT NULL))`,
		func(row []string) error {
			if row[2] == "S" {
				reset["SELECT pg_catalog.setval("+pg.Literal(pg.Qualified(row[0], row[1]))] = true
			} else {
				unlogged[[2]string{row[0], row[1]}] = row[3]
			}
			return nil
		})
	if err != nil {
		return err
	}
	// Rows may be in other partitions of a root than their chunk says; a crash empties all of
	// them.
	filled := map[string]bool{}
	for _, t := range d.tables {
		if size := unlogged[[2]string{t.Schema, t.Name}]; t.root != "" && size != "" && size != "0" {
			filled[t.root] = true
		}
	}
	for _, t := range d.tables {
		size, is := unlogged[[2]string{t.Schema, t.Name}]
		if t.second = is; is && (size == "" || size == "0") && !filled[t.root] {
			if err := d.reload(ctx, t, size == "0"); err != nil {
				return err
			}
		}
	}
	if len(reset) == 0 || !d.journal.Has(stateOf(d.database, sequences)) {
		return nil
	}
	return d.setSequences(ctx, reset)
}

// setSequences sets sequences again. A sequence that was at its start at the source, too, is not
// harmed by that; others may have been used since, so they are not set.
func (d resumer) setSequences(ctx context.Context, reset map[string]bool) error {
	wanted, err := d.wanted()
	if err != nil {
		return err
	}
	subject := subjects(d.database)
	return d.statements(ctx, stateOf(d.database, sequences), func(sql string) error {
		set, _, _ := cutPosition(sql)
		e := subject(sql)
		if !reset[set] || !wanted(sql) || e != nil && !d.journal.Has(entryStep(e)) {
			return nil
		}
		if err := d.main.Exec(ctx, sql); err != nil {
			return d.failed(&restore.ObjectError{Database: d.target, Object: "sequences", Statement: restore.First(sql, 200), Rest: sql + ";", Err: err})
		}
		return nil
	})
}

// forget removes steps from the journal.
func (d resumer) forget(ctx context.Context, steps ...string) error {
	literals := make([]string, len(steps))
	for i, step := range steps {
		d.journal.Forget(step)
		literals[i] = pg.Literal(step)
	}
	return d.main.Exec(ctx, "DELETE FROM "+journalSchema+".done WHERE step IN ("+strings.Join(literals, ", ")+")")
}

// reload arranges for the rows of a table to be loaded again if it is empty.
func (d resumer) reload(ctx context.Context, t *target, empty bool) error {
	var lost []string
	for _, c := range t.chunks {
		if c.Rows > 0 && d.journal.Has(c.Path) {
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
	return d.forget(ctx, append(lost, restore.StepRestored)...)
}

// checkTables returns an error for tables whose rows are still to be loaded and that have triggers
// (including those of the root through which the rows are loaded), or that have rows already.
// An interrupted run has created the triggers of a table if some of its chunks had failed: if
// these were dropped since, they are created again.
func (d resumer) checkTables(ctx context.Context) error {
	// Triggers other than those of constraints, by table and by name. Up to PostgreSQL 14,
	// those of partitions are internal.
	triggers, there := map[string]bool{}, map[[2]string]bool{}
	err := d.main.Query(ctx, `SELECT n.nspname, c.relname, t.tgname FROM pg_catalog.pg_trigger t
JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_constraint k WHERE k.oid = t.tgconstraint AND k.contype <> 't')`, func(row []string) error {
		triggers[pg.Qualified(row[0], row[1])], there[[2]string{row[0], row[1] + " " + row[2]}] = true, true
		return nil
	})
	if err != nil {
		return fmt.Errorf("look for triggers: %w", err)
	}
	watched := map[string]bool{} // by the table through which the rows are loaded
	for _, t := range d.tables {
		root := cmp.Or(t.root, t.sql())
		watched[root] = watched[root] || triggers[t.sql()] || triggers[root]
	}
	filled := false // a table of ours gets rows
	for _, t := range d.tables {
		left := slices.IndexFunc(t.chunks, func(c *archive.Chunk) bool { return !d.journal.Has(c.Path) })
		if left < 0 {
			continue
		}
		root := cmp.Or(t.root, t.sql())
		why := d.checkEmpty(ctx, t)
		if t.ours && watched[root] {
			why = fmt.Errorf("%w (those of a partition at the table that it belongs to)", restore.ErrTriggered)
		}
		if why != nil {
			return d.rowsError(t, t.chunks[left], why)
		}
		if t.ours {
			filled = true
		}
	}
	if steps := d.missingTriggers(there); filled && len(steps) > 0 {
		return d.forget(ctx, steps...)
	}
	return nil
}

// missingTriggers returns the steps of triggers that the journal records but that do not exist, and of their
// comments and the like. there has the existing triggers, by schema and name.
func (d resumer) missingTriggers(there map[[2]string]bool) []string {
	tables := map[int]string{}
	for i := range d.toc.Entries {
		if e := &d.toc.Entries[i]; e.Desc == "TABLE" {
			tables[e.ID] = e.Tag
		}
	}
	ids, names := map[int]bool{}, map[string]bool{}
	for _, e := range d.entries {
		if e.Desc == "TRIGGER" && !disables(e) && !there[[2]string{e.Namespace, e.Tag}] && d.journal.Has(entryStep(e)) {
			ids[e.ID], names[triggerName(e, tables)] = true, true
		}
	}
	var steps []string
	for _, e := range d.entries {
		said := e.Desc == "COMMENT" && slices.ContainsFunc(e.Depends, func(id int) bool { return ids[id] }) || disables(e) && names[triggerName(e, tables)]
		if (ids[e.ID] || said) && d.journal.Has(entryStep(e)) {
			steps = append(steps, entryStep(e))
		}
	}
	return steps
}

// checkEmpty returns an error if a table has rows although none were loaded. Rows of an aborted
// transaction are invisible.
func (d resumer) checkEmpty(ctx context.Context, t *target) error {
	begun := slices.ContainsFunc(t.chunks, func(c *archive.Chunk) bool { return d.journal.Has(c.Path) })
	if begun || len(t.chunks) == 0 || !t.ours && !d.opts.DataOnly || t.root != "" || t.Attributes["condition"] != "" {
		return nil
	}
	row, err := d.main.Row(ctx, "SELECT EXISTS (SELECT FROM ONLY "+t.sql()+")")
	switch {
	case err != nil && pg.ErrorCode(err) != "":
		return nil // loading will report the problem
	case err == nil && row[0] == "t":
		return restore.ErrBeside
	}
	return err
}

// watched reports whether triggers or rules of a table were created.
func (d resumer) watched(t *target) bool {
	id := 0
	for i := range d.toc.Entries {
		if e := &d.toc.Entries[i]; e.Desc == "TABLE" && e.Namespace == t.Schema && e.Tag == t.Name {
			id = e.ID
		}
	}
	return slices.ContainsFunc(d.entries, func(e *pg.Entry) bool {
		return (e.Desc == "TRIGGER" || e.Desc == "RULE") && slices.Contains(e.Depends, id) && d.journal.Has(entryStep(e))
	})
}
