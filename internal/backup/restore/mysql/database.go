package mysql

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/bulk"
	my "github.com/weirdb/weir/internal/backup/bulk/mysql"
	"github.com/weirdb/weir/internal/backup/restore"
)

// database is the restore of one database.
type database struct {
	*runner
	source string // its name in the backup
	target string // its name on the server
	create bool

	toc     *my.TOC
	tables  []*table // to restore
	others  []*my.Entry
	missed  []*my.Entry // of others, those that could not be made
	main    *my.Session
	journal *restore.Journal
	begun   bool // there was a journal before takeOver

	moved atomic.Int64 // bytes of rows, to adapt the number of workers
}

// table is a table that is restored.
type table struct {
	entry *my.Entry

	plain   my.Definition // the definition that rows need
	indexes []string
	foreign []string
	safe    bool // it is transactional

	data   *archive.Table // nil without rows
	layout my.Layout
	chunks []archive.Chunk
	lost   atomic.Bool // it could not be created
}

func (t *table) name() string { return t.entry.Name }

func (t *table) size() int64 {
	if t.data == nil {
		return 0
	}
	return t.data.PlainBytes
}

// begin reads what is to be restored, and creates the database or checks that it is fit.
func (d *database) begin(ctx context.Context, exists bool) (err error) {
	d.journal, err = d.prepare(ctx, exists)
	if d.main != nil {
		err = errors.Join(err, d.main.Close())
		d.main = nil
	}
	if err != nil {
		return err
	}
	d.describe()
	return nil
}

// with runs a step on a session in the database.
func (d *database) with(ctx context.Context, step func(*database, context.Context) error) (err error) {
	if d.main, err = d.connect(ctx, d.target); err != nil {
		return err
	}
	err = step(d, ctx)
	err = errors.Join(err, d.main.Close())
	d.main = nil
	return err
}

// choose selects the objects to restore.
func (d *database) choose() error {
	m, err := d.opts.Filter.Compile()
	if err != nil {
		return err
	}
	meant := map[string]bool{}
	rows := d.rows()
	for i := range d.toc.Entries {
		e := &d.toc.Entries[i]
		switch e.Kind {
		case my.KindDatabase:
		case my.KindTable:
			if e.Name == journalTable || !m.Table(d.source, e.Name) { // the journal of a restore that created the source
				continue
			}
			meant[e.Name] = true
			t, err := d.table(e, m, rows[e.Name])
			if err != nil {
				return err
			}
			d.tables = append(d.tables, t)
		case my.KindTrigger:
			if meant[e.Table] {
				d.others = append(d.others, e)
			}
		case my.KindView, my.KindSequence:
			if m.Table(d.source, e.Name) {
				d.others = append(d.others, e)
			}
		default:
			if !d.opts.Filter.Selective() {
				d.others = append(d.others, e)
			}
		}
	}
	if d.opts.DataOnly {
		d.others = nil
	}
	if d.opts.Filter.Selective() && len(d.tables) == 0 && len(d.others) == 0 {
		return fmt.Errorf("nothing in the backup of database %s matches --schema or --table", d.source)
	}
	return nil
}

// tableRows is what the manifest has for a table.
type tableRows struct {
	data   *archive.Table // nil without rows
	chunks []archive.Chunk
}

// rows returns what the manifest has for the tables of the database, by their names.
func (d *database) rows() map[string]tableRows {
	out := map[string]tableRows{}
	for i := range d.manifest.Databases {
		db := &d.manifest.Databases[i]
		for j := range db.Tables {
			if db.Name == d.source {
				out[db.Tables[j].Name] = tableRows{data: &db.Tables[j]}
			}
		}
	}
	for i := range d.manifest.Chunks {
		c := &d.manifest.Chunks[i]
		if t, ok := out[c.Table]; ok && c.Kind == archive.KindData && c.Database == d.source {
			t.chunks = append(t.chunks, *c)
			out[c.Table] = t
		}
	}
	return out
}

// table splits a table's definition.
func (d *database) table(e *my.Entry, m *bulk.Matcher, rows tableRows) (*table, error) {
	t := &table{entry: e}
	def, err := my.ParseDefinition(e.In(d.source, d.target))
	if err != nil {
		return nil, fmt.Errorf("table %s: %w", e.Name, err)
	}
	t.plain, t.indexes, t.foreign = def.Split()
	if d.opts.SchemaOnly || !m.Data(d.source, e.Name) {
		return t, nil
	}
	t.data, t.chunks = rows.data, rows.chunks
	if t.data == nil {
		return t, nil
	}
	t.safe = strings.EqualFold(t.data.Attributes["engine"], "InnoDB")
	if t.layout, err = my.NewLayout(t.data.Columns, t.data.Attributes["forms"]); err != nil {
		return nil, fmt.Errorf("table %s in the manifest: %w", e.Name, err)
	}
	t.layout.Auto = def.Auto()
	if t.layout.History() && d.noHistory != "" {
		return nil, fmt.Errorf("the backup holds what the rows of table %s were before (SYSTEM VERSIONING), and %s", e.Name, d.noHistory)
	}
	slices.SortFunc(t.chunks, func(a, b archive.Chunk) int { return a.Part - b.Part })
	if len(t.chunks) != t.data.Parts {
		return nil, fmt.Errorf("the manifest lists %d chunks of table %s and says that there are %d", len(t.chunks), e.Name, t.data.Parts)
	}
	return t, nil
}

// kind returns the selected objects of some kinds.
func (d *database) kind(kinds ...my.Kind) []*my.Entry {
	var out []*my.Entry
	for _, k := range kinds {
		for _, e := range d.others {
			if e.Kind == k {
				out = append(out, e)
			}
		}
	}
	return out
}

// prepare creates the database, opens it and checks that it is fit: empty, cleaned, or one
// whose restore was interrupted.
func (d *database) prepare(ctx context.Context, exists bool) (*restore.Journal, error) {
	end := d.Phase("prepare")
	defer end()
	fresh := !exists || d.create && d.opts.Clean
	switch {
	case !d.create && !exists:
		return nil, restore.Refuse("the database does not exist (--create makes it)")
	case fresh && d.opts.DryRun:
		return nil, nil //nolint:nilnil // there are none
	case fresh:
		if err := d.make(ctx, exists); err != nil {
			return nil, err
		}
	}
	var err error
	if d.main, err = d.connect(ctx, d.target); err != nil {
		return nil, err
	}
	b, err := openJournal(ctx, d)
	d.journal = b
	if err == nil && b.Has(stepCleaning) && !d.opts.DryRun {
		return b, d.clean(ctx, true)
	}
	if err != nil || b.Begun() {
		return b, err
	}
	if d.begun {
		return nil, restore.ErrEnded
	}
	if err := d.fit(ctx); err != nil || d.opts.DryRun {
		return b, err
	}
	if err := createJournal(ctx, d); err != nil {
		return nil, err
	}
	if d.opts.Clean && !d.create {
		return b, d.clean(ctx, d.opts.IfExists)
	}
	return b, nil
}

// make creates the database with its original character set and comment.
func (d *database) make(ctx context.Context, exists bool) error {
	s, err := d.connect(ctx, "")
	if err != nil {
		return err
	}
	defer s.Close()
	if exists {
		if err := s.Exec(ctx, "DROP DATABASE "+my.Ident(d.target)); err != nil {
			return fmt.Errorf("drop it: %w", err)
		}
	}
	sql := "CREATE DATABASE " + my.Ident(d.target)
	for _, db := range d.manifest.Databases {
		if db.Name == d.source && db.Attributes["charset"] != "" {
			sql += " CHARACTER SET " + db.Attributes["charset"] + " COLLATE " + db.Attributes["collation"]
		}
	}
	for _, e := range d.toc.Of(my.KindDatabase) {
		sql += e.Options()
	}
	err = s.Exec(ctx, sql)
	if there := uint16(1007); my.ErrorCode(err) == there && d.opts.Resume {
		return nil // the server went on making it for a restore that was killed
	}
	if err != nil {
		return fmt.Errorf("make it: %w", err)
	}
	return nil
}

// fit refuses a target that is not empty.
func (d *database) fit(ctx context.Context) error {
	if d.opts.DataOnly {
		return d.fitRows(ctx)
	}
	if d.opts.Clean && !d.create {
		return nil
	}
	if d.opts.Filter.Selective() {
		return d.fitPart(ctx)
	}
	row, err := d.main.Row(ctx, `SELECT COUNT(*), MIN(n) FROM (
		SELECT table_name AS n FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name <> '`+journalTable+`'
		UNION ALL SELECT routine_name FROM information_schema.routines WHERE routine_schema = DATABASE()
		UNION ALL SELECT event_name FROM information_schema.events WHERE event_schema = DATABASE()) AS things`)
	if err != nil {
		return fmt.Errorf("see whether the target is empty: %w", err)
	}
	return d.opts.Empty(row[0], row[1])
}

// fitPart refuses a part of a backup if objects of the same names exist. It does so before
// there is a journal: a resumed restore takes objects that the journal does not list for its own
// interrupted work, and drops them.
func (d *database) fitPart(ctx context.Context) error {
	there, err := folded(ctx, d, "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()")
	if err != nil {
		return err
	}
	entries := d.kind(my.KindSequence, my.KindView)
	for _, t := range d.tables {
		entries = append(entries, t.entry)
	}
	for _, e := range entries {
		if there[d.fold(e.Name)] {
			return restore.Refuse("%s exists already (--clean drops what the backup contains)", e)
		}
	}
	return nil
}

// fitRows refuses to load rows into tables that have some.
func (d *database) fitRows(ctx context.Context) error {
	for _, t := range d.tables {
		if t.data == nil {
			continue
		}
		row, err := d.main.Row(ctx, "SELECT EXISTS (SELECT 1 FROM "+my.Ident(t.name())+" LIMIT 1)")
		switch {
		case my.Missing(err):
			return restore.Refuse("--data-only needs the tables, and %s does not exist", t.name())
		case err != nil:
			return fmt.Errorf("see whether table %s is empty: %w", t.name(), err)
		case row[0] != "0":
			return restore.Refuse("table %s is not empty, and its rows would be there twice (truncate it first)", t.name())
		}
	}
	return nil
}

// clean drops the objects of the backup, the last first.
func (d *database) clean(ctx context.Context, ifExists bool) error {
	end := d.Phase("clean")
	defer end()
	entries := d.kind(my.KindSequence)
	for _, t := range d.tables {
		entries = append(entries, t.entry)
	}
	entries = append(entries, d.kind(my.KindLibrary, my.KindFunction, my.KindProcedure, my.KindPackage, my.KindView, my.KindEvent)...)
	for _, e := range slices.Backward(entries) { // triggers go with their tables, bodies with their packages
		sql := e.Drop(ifExists)
		var err error
		if e.Kind == my.KindPackage { // only one sql_mode supports it
			err = d.main.Exec(ctx, e.Setting())
		}
		if err == nil {
			err = d.main.Exec(ctx, sql)
		}
		if e.Kind == my.KindPackage {
			err = errors.Join(err, d.main.Exec(ctx, my.Unset))
		}
		if err != nil {
			if err := d.failed(&restore.ObjectError{Database: d.target, Object: e.String(), Statement: sql, Err: err}); err != nil {
				return err
			}
		}
	}
	return loader{d}.forget(ctx, stepCleaning)
}

// describe writes the plan.
func (d *database) describe() {
	add := func(phase, object, step string, c *archive.Chunk) {
		d.Expect(restore.Step{Database: d.target, Phase: phase, Object: object, Done: d.journal.Has(step)}, c)
	}
	d.PlanTarget(d.target, d.create, d.opts.Clean)
	for _, t := range d.tables {
		if !d.opts.DataOnly {
			add("definitions", t.entry.String(), t.entry.String(), nil)
		}
	}
	for _, t := range d.tables {
		for i := range t.chunks {
			add("data", t.name(), t.chunks[i].Path, &t.chunks[i])
		}
	}
	for _, t := range d.tables {
		if len(t.indexes) > 0 && !d.opts.DataOnly {
			add("indexes", "indexes of "+t.name(), t.indexStep(), nil)
		}
		if len(t.foreign) > 0 && !d.opts.DataOnly {
			add("foreign keys", "foreign keys of "+t.name(), t.foreignStep(), nil)
		}
	}
	for _, e := range d.others {
		add("objects", e.String(), e.String(), nil)
	}
}

func (t *table) rowsStep() string    { return "rows of " + t.name() }
func (t *table) begunStep() string   { return "begun rows of " + t.name() } // of one without transactions
func (t *table) indexStep() string   { return "indexes of " + t.name() }
func (t *table) foreignStep() string { return "foreign keys of " + t.name() }
