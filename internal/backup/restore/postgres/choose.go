package postgres

import (
	"fmt"
	"slices"

	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/bulk"
	pg "github.com/weirdb/weir/internal/backup/bulk/postgres"
	"github.com/weirdb/weir/internal/backup/restore"
)

// choose selects the entries and the tables to restore.
func (d *database) choose() error {
	m, err := d.opts.Filter.Compile()
	if err != nil {
		return err
	}
	if !d.opts.DataOnly {
		for _, e := range chosen(d.toc, m, d.opts.Filter.Empty()) {
			if e.Setting() || e.OfDatabase() || ofJournal(e) || d.opts.NoPrivileges && e.Pass() == pg.PassACL {
				continue
			}
			d.entries = append(d.entries, e)
		}
	}
	if !d.opts.SchemaOnly {
		if err := d.chooseTables(m); err != nil {
			return err
		}
	}
	if d.opts.Filter.Selective() && len(d.entries) == 0 && len(d.tables) == 0 {
		return fmt.Errorf("nothing in the backup of database %s matches --schema or --table", d.source)
	}
	return nil
}

// chooseTables finds the chunks of the selected tables.
func (d *database) chooseTables(m *bulk.Matcher) error {
	d.byTable = map[[2]string]*target{}
	for _, db := range d.manifest.Databases {
		if db.Name != d.source {
			continue
		}
		for _, t := range db.Tables {
			if t.Schema != journalSchema && m.Table(t.Schema, t.Name) && m.Data(t.Schema, t.Name) {
				n := &target{Table: t}
				// A partial backup may have the partition without its root.
				if schema, name := t.Attributes["root_schema"], t.Attributes["root_table"]; name != "" && m.Table(schema, name) {
					n.root = pg.Qualified(schema, name)
				}
				d.tables = append(d.tables, n)
				d.byTable[[2]string{t.Schema, t.Name}] = n
			}
		}
	}
	for i := range d.manifest.Chunks {
		c := &d.manifest.Chunks[i]
		if c.Kind != archive.KindData || c.Database != d.source {
			continue
		}
		if t := d.byTable[[2]string{c.Schema, c.Table}]; t != nil {
			t.chunks = append(t.chunks, c)
		}
	}
	for _, t := range d.tables {
		if len(t.chunks) != t.Parts {
			return fmt.Errorf("the manifest lists %d chunks of table %s and says that there are %d", len(t.chunks), t.name(), t.Parts)
		}
	}
	return nil
}

// independent are the kinds of entries that are selected by their own name and schema. All
// others belong to one of them: indexes, constraints, defaults, comments, grants.
var independent = []string{"TABLE", "VIEW", "MATERIALIZED VIEW", "FOREIGN TABLE", "SEQUENCE"}

// chosen returns the selected entries. A schema is selected with everything in it; a table with
// its indexes, constraints, triggers, comments and grants, the sequences that it owns, and its
// schema, but without the types and functions that it uses. What depends on a table that is not
// selected, such as a foreign key to it, is not selected either.
func chosen(toc *pg.TOC, m *bulk.Matcher, all bool) []*pg.Entry {
	var out []*pg.Entry
	if all {
		for i := range toc.Entries {
			out = append(out, &toc.Entries[i])
		}
		return out
	}
	byID := make(map[int]*pg.Entry, len(toc.Entries))
	for i := range toc.Entries {
		byID[toc.Entries[i].ID] = &toc.Entries[i]
	}
	selective := len(m.Schemas) > 0 || len(m.Tables) > 0
	in := map[int]bool{}
	schemas := map[string]bool{}
	for i := range toc.Entries {
		e := &toc.Entries[i]
		switch {
		case slices.Contains(independent, e.Desc):
			in[e.ID] = m.Table(e.Namespace, e.Tag)
		case len(m.Tables) > 0: // decided below, by what it belongs to
		case e.Desc == "SCHEMA":
			in[e.ID] = m.Schema(e.Tag)
		case e.Namespace != "":
			in[e.ID] = m.Schema(e.Namespace)
		default: // in no schema
			in[e.ID] = !selective
		}
		if in[e.ID] && e.Namespace != "" {
			schemas[e.Namespace] = true
		}
	}
	for i := range toc.Entries { // entries follow those that they depend on
		e := &toc.Entries[i]
		switch {
		case e.Desc == "SEQUENCE" && owned(e, byID):
			in[e.ID] = ofChosen(e, byID, in)
		case slices.Contains(independent, e.Desc):
		case len(m.Tables) > 0 && e.Desc == "SCHEMA":
			in[e.ID] = schemas[e.Tag]
		case len(m.Tables) > 0 && len(e.Depends) > 0:
			in[e.ID] = ofChosen(e, byID, in)
		}
		if in[e.ID] && !needsMet(e, byID, in) {
			in[e.ID] = false
		}
		if in[e.ID] {
			out = append(out, e)
		}
	}
	return out
}

// owned reports whether a sequence belongs to a column of a table.
func owned(e *pg.Entry, byID map[int]*pg.Entry) bool {
	return slices.ContainsFunc(e.Depends, func(id int) bool { return byID[id] != nil && byID[id].Desc == "TABLE" })
}

// ofChosen reports whether an entry belongs to a selected one.
func ofChosen(e *pg.Entry, byID map[int]*pg.Entry, in map[int]bool) bool {
	if e.Desc == "TYPE" || e.Desc == "FUNCTION" || e.Desc == "PROCEDURE" || e.Desc == "AGGREGATE" || e.Desc == "DOMAIN" {
		return false
	}
	return slices.ContainsFunc(e.Depends, func(id int) bool {
		on := byID[id]
		return on != nil && on.Desc != "SCHEMA" && in[id]
	})
}

// needsMet reports whether all tables and the like that an entry depends on are selected.
func needsMet(e *pg.Entry, byID map[int]*pg.Entry, in map[int]bool) bool {
	if slices.Contains(independent, e.Desc) {
		return true
	}
	for _, id := range e.Depends {
		on := byID[id]
		if on == nil || in[id] {
			continue
		}
		if slices.Contains(independent, on.Desc) || on.Desc == "INDEX" || on.Desc == "CONSTRAINT" || on.Desc == "PUBLICATION" {
			return false
		}
	}
	return true
}

// of returns the selected entries of a section ("": all) and a pass.
func (d *database) of(section pg.Section, pass pg.Pass) []*pg.Entry {
	var out []*pg.Entry
	for _, e := range d.entries {
		if e.Pass() == pass && (section == "" || e.Section == section) {
			out = append(out, e)
		}
	}
	return out
}

// describe writes the plan.
func (d *database) describe() {
	add := func(phase, object, step string, c *archive.Chunk) {
		d.Expect(restore.Step{Database: d.target, Phase: phase, Object: object, Done: d.journal.Has(step)}, c)
	}
	d.PlanTarget(d.target, d.create, d.opts.Clean)
	for _, e := range d.of(pg.PreData, pg.PassMain) {
		add("definitions", e.Name(), entryStep(e), nil)
	}
	for _, t := range d.tables {
		for i := range t.chunks {
			add("data", t.name(), t.chunks[i].Path, t.chunks[i])
		}
	}
	for _, c := range d.blobs() {
		add("data", "large objects", c.Path, &c)
	}
	for _, e := range d.of(pg.PostData, pg.PassMain) {
		add("indexes and constraints", e.Name(), entryStep(e), nil)
	}
	for _, e := range d.of("", pg.PassACL) {
		add("grants", e.Name(), entryStep(e), nil)
	}
	for _, e := range d.of("", pg.PassLast) {
		add("event triggers", e.Name(), entryStep(e), nil)
	}
}

// blobs returns the chunks of large objects, if they are selected.
func (d *database) blobs() []archive.Chunk {
	var out []archive.Chunk
	if d.opts.SchemaOnly || d.opts.Filter.Selective() {
		return nil
	}
	for _, c := range d.manifest.Chunks {
		if c.Kind == archive.KindBlobs && c.Database == d.source {
			out = append(out, c)
		}
	}
	return out
}
