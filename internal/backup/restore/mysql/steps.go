package mysql

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/bulk"
	my "github.com/weirdb/weir/internal/backup/bulk/mysql"
	"github.com/weirdb/weir/internal/backup/restore"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// worker is a session of one of the concurrent jobs.
type worker struct {
	d *database
	s *my.Session
}

func (w *worker) session(ctx context.Context) (*my.Session, error) {
	if w.s != nil && w.s.Broken() == nil {
		return w.s, nil
	}
	s, err := w.d.connect(ctx, w.d.target)
	if err != nil {
		return nil, err
	}
	w.s = s
	return s, nil
}

func (d *database) makeSequences(ctx context.Context) error {
	return d.define(ctx, "sequences", my.KindSequence)
}

func (d *database) routines(ctx context.Context) error {
	return d.define(ctx, "routines", my.KindLibrary, my.KindFunction, my.KindProcedure, my.KindPackage, my.KindBody)
}

func (d *database) triggers(ctx context.Context) error {
	return d.define(ctx, "triggers", my.KindTrigger)
}

// events creates the events, and compares them with the backup.
func (d *database) events(ctx context.Context) error {
	if err := d.define(ctx, "events", my.KindEvent); err != nil {
		return err
	}
	return compareEvents(ctx, d)
}

// compareEvents compares the events with the backup.
func compareEvents(ctx context.Context, d *database) error {
	if d.opts.SchemaOnly || d.opts.Verify != restore.VerifyRows {
		return nil
	}
	return d.verifyDefinitions(ctx, d.kind(my.KindEvent))
}

// load creates tables, loads their rows and creates their indexes.
func (d *database) load(ctx context.Context) error {
	if err := (loader{d}).judge(ctx); err != nil {
		return err
	}
	if d.opts.Resume {
		if err := (loader{d}).remake(ctx); err != nil {
			return fmt.Errorf("look for tables that are gone: %w", err)
		}
		if err := (loader{d}).besides(ctx); err != nil {
			return err
		}
		if err := (loader{d}).refill(ctx); err != nil {
			return fmt.Errorf("look for tables that have lost their rows: %w", err)
		}
	}
	return d.withWorkers(ctx, func(workers []worker) error {
		return d.Load(ctx, d.target, d.moved.Load, func(n int) error { return workers[n].close() }, d.graph(workers))
	})
}

// compare collects statistics, and compares what was restored with the backup.
func (d *database) compare(ctx context.Context) error {
	if err := (loader{d}).engines(ctx); err != nil {
		return err
	}
	if d.opts.SchemaOnly {
		return nil
	}
	return d.withWorkers(ctx, func(workers []worker) error {
		if !d.opts.NoAnalyze {
			if err := d.analyze(ctx, workers); err != nil {
				return err
			}
		}
		if d.opts.Verify != restore.VerifyRows {
			return nil
		}
		if err := d.verify(ctx, workers); err != nil {
			return err
		}
		entries := slices.DeleteFunc(slices.Clone(d.others), func(e *my.Entry) bool { return e.Kind == my.KindEvent })
		if d.create {
			entries = append(entries, d.toc.Of(my.KindDatabase)...)
		}
		for _, t := range d.tables {
			entries = append(entries, t.entry)
		}
		return d.verifyDefinitions(ctx, entries)
	})
}

// made returns the storage engines of the existing tables, by their folded names.
func (l loader) made(ctx context.Context) (map[string]string, error) {
	made := map[string]string{}
	err := l.main.Query(ctx, "SELECT table_name, engine FROM information_schema.tables WHERE table_schema = DATABASE() AND engine IS NOT NULL", func(row []string) error {
		made[l.fold(row[0])] = row[1]
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("ask for storage engines: %w", err)
	}
	return made, nil
}

// judge determines the tables that were transactional at the source and are not here: those
// that exist with another storage engine, and all if a MariaDB server enforces another one.
func (l loader) judge(ctx context.Context) error {
	made, err := l.made(ctx)
	if err != nil {
		return err
	}
	enforced := ""
	if l.maria {
		row, err := l.main.Row(ctx, "SELECT COALESCE(@@enforce_storage_engine, '')")
		if err != nil {
			return fmt.Errorf("ask for settings: %w", err)
		}
		enforced = row[0]
	}
	for _, t := range l.tables {
		begun := slices.ContainsFunc(t.chunks, func(c archive.Chunk) bool { return l.journal.Has(c.Path) })
		if is := cmp.Or(made[l.fold(t.name())], enforced); !begun && is != "" && !strings.EqualFold(is, "InnoDB") {
			t.safe = false
		}
	}
	return nil
}

// engines warns of tables that the server has created with another storage engine than they
// had, as it does if it lacks that one, or is configured to allow only one.
func (l loader) engines(ctx context.Context) error {
	made, err := l.made(ctx)
	if err != nil {
		return err
	}
	for _, t := range l.tables {
		was, is := t.plain.Engine(), made[l.fold(t.name())]
		if was != "" && is != "" && !strings.EqualFold(was, is) {
			l.Warn("table %s: the server has made it with the storage engine %s instead of %s, which it does not have or does not allow", t.name(), is, was)
		}
	}
	return nil
}

// withWorkers runs f with the workers, and ends their sessions.
func (d *database) withWorkers(_ context.Context, f func([]worker) error) error {
	workers := make([]worker, d.Workers())
	for i := range workers {
		workers[i].d = d
	}
	err := f(workers)
	for i := range workers {
		err = errors.Join(err, workers[i].close())
	}
	return err
}

func (w *worker) close() error {
	if w.s == nil {
		return nil
	}
	s := w.s
	w.s = nil
	return s.Close()
}

// Ranks of jobs: lower ones start first if possible.
const (
	rankTable = iota
	rankData
	rankIndex
)

// graph returns the jobs of tables, rows and indexes.
func (d *database) graph(workers []worker) []bulk.Job {
	var jobs []bulk.Job
	add := func(t *table, id string, rank int, size int64, after []string, do func(context.Context, *my.Session) error) {
		if d.journal.Has(id) {
			return
		}
		jobs = append(jobs, bulk.Job{ID: id, Rank: rank, Size: size, After: after, Do: func(ctx context.Context, n int) error {
			s, err := workers[n].session(ctx)
			if err != nil {
				return err
			}
			end := d.opts.Progress.Begin(t.name())
			defer end()
			if t.lost.Load() {
				return nil // reported already
			}
			return d.failed(do(ctx, s))
		}})
	}
	for _, t := range d.tables {
		made := []string{t.entry.String()}
		if !d.opts.DataOnly {
			add(t, made[0], rankTable, t.size(), nil, func(ctx context.Context, s *my.Session) error { return d.makeTable(ctx, s, t) })
		}
		after := made
		if t.safe {
			for _, c := range t.chunks {
				after = append(after, c.Path)
				add(t, c.Path, rankData, c.PlainBytes, made, func(ctx context.Context, s *my.Session) error { return loader{d}.chunk(ctx, s, t, c) })
			}
		} else if len(t.chunks) > 0 {
			rows := t.rowsStep()
			after = append(after, rows)
			add(t, rows, rankData, t.size(), made, func(ctx context.Context, s *my.Session) error { return loader{d}.plain(ctx, s, t, rows) })
		}
		if len(t.indexes) > 0 && !d.opts.DataOnly {
			add(t, t.indexStep(), rankIndex, t.size(), after, func(ctx context.Context, s *my.Session) error { return d.index(ctx, s, t) })
		}
	}
	return jobs
}

// object wraps an error of the server about an object.
func (d *database) object(name, statement string, err error) error {
	if err == nil {
		return nil
	}
	rest := ""
	if statement != "" {
		rest = "DELIMITER ;;\n" + statement + "\n;;\nDELIMITER ;"
	}
	return &restore.ObjectError{Database: d.target, Object: name, Statement: restore.First(statement, 300), Rest: rest, Err: unlogged(err)}
}

// refused returns the step of an object that the server has refused to create: the existing
// object of that name is not the restore's, and a resumed restore does not drop it.
func refused(e *my.Entry) string { return "refused " + e.String() }

// refuse records that step if err is the server's.
func (l loader) refuse(ctx context.Context, s *my.Session, e *my.Entry, err error) error {
	if my.ErrorCode(err) == 0 || s.Broken() != nil || l.journal.Has(refused(e)) {
		return nil
	}
	return s.Exec(ctx, strings.Replace(note(refused(e)), "INSERT", "INSERT IGNORE", 1))
}

// created returns the statement that records an object which the server has created: by now it
// is none that it has refused.
func (l loader) created(e *my.Entry) string {
	if l.journal.Has(refused(e)) {
		return "UPDATE " + journalTable + " SET step = " + my.Literal(e.String()) + " WHERE step = " + my.Literal(refused(e))
	}
	return note(e.String())
}

// mayBeOurs reports whether an existing object that the journal does not list may have been created
// by an interrupted run, where definitions cannot be compared.
func (l loader) mayBeOurs(ctx context.Context, e *my.Entry) (bool, error) {
	if !l.journal.Begun() || l.journal.Has(refused(e)) || l.comparable() {
		return false, nil
	}
	if e.Kind != my.KindTrigger {
		return true, nil
	}
	others, err := l.names(ctx, l.main, "SELECT trigger_name FROM information_schema.triggers WHERE trigger_schema = DATABASE() AND trigger_name = "+
		my.Literal(e.Name)+" AND LOWER(event_object_table) <> LOWER("+my.Literal(e.Table)+")")
	return len(others) == 0, err
}

// leftover reports whether a table may have been created by an interrupted run that has not
// recorded it. Such a table has no rows yet: one that has some was created by others. It locks
// the table, so that no other session inserts rows before it is dropped.
func (l loader) leftover(ctx context.Context, s *my.Session, t *table) (bool, error) {
	if !l.journal.Begun() || l.journal.Has(refused(t.entry)) {
		return false, nil
	}
	kind, engine := "", ""
	err := s.Query(ctx, "SELECT table_name, table_type, COALESCE(engine, '') FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = "+
		my.Literal(t.name()), func(row []string) error {
		if l.fold(row[0]) == l.fold(t.name()) {
			kind, engine = row[1], row[2]
		}
		return nil
	})
	switch {
	case err != nil, kind == "":
		return false, err
	case kind == "VIEW", kind == "SEQUENCE": // the server will refuse the table
		return false, nil
	case !my.Elsewhere(engine):
		err = s.Exec(ctx, "LOCK TABLES "+my.Ident(t.name())+" WRITE")
		if err == nil || my.Denied(err) { // without the privilege, a moment is left in which rows may come
			err = l.empty(ctx, s, t)
		}
	}
	return err == nil, err
}

// makeTable creates a table.
func (d *database) makeTable(ctx context.Context, s *my.Session, t *table) error {
	create := t.plain.String()
	statements := []string{create, loader{d}.created(t.entry)}
	left, err := loader{d}.leftover(ctx, s, t)
	if left {
		err = s.Exec(ctx, t.entry.Drop(true))
	}
	if d.journal.Begun() && s.Broken() == nil {
		err = errors.Join(err, s.Exec(ctx, "UNLOCK TABLES"))
	}
	if err != nil {
		return d.lose(t, d.object(t.entry.String(), t.entry.Create, err))
	}
	for _, sql := range statements {
		err := s.Exec(ctx, sql)
		if noTablespace := uint16(3510); my.ErrorCode(err) == noTablespace {
			if err = d.makeTablespace(ctx, s, t); err == nil {
				err = s.Exec(ctx, sql)
			}
		}
		if err != nil && sql == create {
			err = errors.Join(err, loader{d}.refuse(ctx, s, t.entry, err))
		}
		if err != nil {
			return d.lose(t, d.object(t.entry.String(), t.entry.Create, err))
		}
	}
	return nil
}

// makeTablespace creates the general tablespace of a MySQL table: no backup of a database
// includes it.
func (d *database) makeTablespace(ctx context.Context, s *my.Session, t *table) error {
	name := t.plain.Tablespace()
	err := s.Exec(ctx, tablespace(name))
	if exists := uint16(1813); my.ErrorCode(err) == exists { // another table has created it meanwhile
		return nil
	}
	if err != nil {
		return fmt.Errorf("make tablespace %s: %w", name, err)
	}
	d.Warn("tablespace %s did not exist, and is made, with a file of that name in the data directory", name)
	return nil
}

// tablespace returns the statement that creates a general tablespace. It names the engine,
// since other engines, which may be the server's default, have none.
func tablespace(name string) string {
	return "CREATE TABLESPACE " + my.Ident(name) + " ADD DATAFILE " + my.Literal(name+".ibd") + " ENGINE = InnoDB"
}

// lose records that a table could not be created: its rows, and what belongs to it, are
// omitted.
func (d *database) lose(t *table, err error) error {
	if d.opts.Stop || !restore.Independent(err) {
		return err
	}
	t.lost.Store(true)
	if err := d.failed(err); err != nil {
		return err
	}
	for _, c := range t.chunks {
		err := d.rowsError(t, c, fmt.Errorf("%w %s", restore.ErrNeeds, t.entry))
		if err := d.failed(err); err != nil {
			return err
		}
	}
	return nil
}

// rowsError returns an error about the rows of a chunk.
func (d *database) rowsError(t *table, c archive.Chunk, err error) error {
	return restore.RowsError(d.target, t.name(), &c, t.data.Attributes["load"], unlogged(err))
}

// index creates all indexes of a table with as few statements as the server allows: it accepts
// one FULLTEXT index at a time.
func (d *database) index(ctx context.Context, s *my.Session, t *table) error {
	there, err := d.names(ctx, s, "SELECT DISTINCT index_name FROM information_schema.statistics WHERE table_schema = DATABASE() AND table_name = "+my.Literal(t.name()))
	if err != nil {
		return err
	}
	var together []string
	var alone [][]string
	full := 0
	for _, it := range t.indexes {
		switch {
		case there[my.ItemName(it)]:
		case strings.HasPrefix(it, "VECTOR KEY "):
			alone = append(alone, []string{it})
		case strings.HasPrefix(it, "FULLTEXT KEY "):
			if full++; full > 1 {
				alone = append(alone, []string{it})
				continue
			}
			fallthrough
		default:
			together = append(together, it)
		}
	}
	for _, items := range append([][]string{together}, alone...) {
		if err := d.alter(ctx, s, t, "indexes", items); err != nil {
			return err
		}
	}
	return s.Exec(ctx, note(t.indexStep()))
}

func (d *database) alter(ctx context.Context, s *my.Session, t *table, what string, items []string) error {
	if len(items) == 0 {
		return nil
	}
	sql := "ALTER TABLE " + my.Ident(t.name()) + " ADD " + strings.Join(items, ", ADD ")
	return d.object(what+" of table "+t.name(), sql, s.Exec(ctx, sql))
}

// names returns the set of names that a query returns.
func (d *database) names(ctx context.Context, s *my.Session, sql string) (map[string]bool, error) {
	there := map[string]bool{}
	err := s.Query(ctx, sql, func(row []string) error {
		there[row[0]] = true
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("see what is there already: %w", err)
	}
	return there, nil
}

// folded returns the names of tables that a query yields, as keys.
func folded(ctx context.Context, d *database, sql string) (map[string]bool, error) {
	names, err := d.names(ctx, d.main, sql)
	for name := range maps.Clone(names) {
		names[d.fold(name)] = true
	}
	return names, err
}

// foreignKeys creates them one table after the other: with checks off, servers only store them
// and read no rows. The rows are from one moment, at which the source's own keys held.
func (d *database) foreignKeys(ctx context.Context) error {
	if d.opts.DataOnly {
		return nil
	}
	end := d.Phase("foreign keys")
	defer end()
	for _, t := range d.tables {
		if len(t.foreign) == 0 || t.lost.Load() || d.journal.Has(t.foreignStep()) {
			continue
		}
		step := d.opts.Progress.Begin(t.foreignStep())
		err := d.foreignKeysOf(ctx, t)
		step()
		if err := d.failed(err); err != nil {
			return err
		}
	}
	return nil
}

func (d *database) foreignKeysOf(ctx context.Context, t *table) error {
	there, err := d.names(ctx, d.main, "SELECT constraint_name FROM information_schema.table_constraints WHERE constraint_type = 'FOREIGN KEY' AND table_schema = DATABASE() AND table_name = "+my.Literal(t.name()))
	if err != nil {
		return err
	}
	items := slices.DeleteFunc(slices.Clone(t.foreign), func(it string) bool { return there[my.ItemName(it)] })
	if err := d.alter(ctx, d.main, t, "foreign keys", items); err != nil {
		return err
	}
	return d.main.Exec(ctx, note(t.foreignStep()))
}

// define creates objects one after the other.
func (d *database) define(ctx context.Context, phase string, kinds ...my.Kind) error {
	end := d.Phase(phase)
	defer end()
	for _, e := range d.kind(kinds...) {
		err := d.entry(ctx, e)
		if err != nil {
			d.missed = append(d.missed, e)
		}
		if err := d.failed(err); err != nil {
			return err
		}
	}
	return nil
}

// entry creates one object with the settings of its creator's session.
func (d *database) entry(ctx context.Context, e *my.Entry) error {
	if d.journal.Has(e.String()) {
		return nil
	}
	end := d.opts.Progress.Begin(e.String())
	defer end()
	create := loader{d}.wanted(e)
	if d.journal.Begun() && (loader{d}).comparable() {
		_, same, err := loader{d}.shown(ctx, e)
		if d.main.Broken() != nil {
			return err
		}
		if same {
			return d.object(e.String(), "", d.main.Exec(ctx, loader{d}.created(e)))
		}
	}
	var err error
	if set := e.Setting(); set != "" {
		err = d.main.Exec(ctx, set)
	}
	var ours bool
	if err == nil {
		ours, err = loader{d}.mayBeOurs(ctx, e)
	}
	if err == nil && ours {
		err = d.main.Exec(ctx, e.Drop(true)) // packages: in their own sql_mode
	}
	if err == nil {
		if err = d.main.Exec(ctx, create); !my.Missing(err) && !unfit(err) { // such a view may come later in this run
			err = errors.Join(err, loader{d}.refuse(ctx, d.main, e, err))
		}
	}
	if set := e.Setting(); set != "" && d.main.Broken() == nil {
		err = errors.Join(err, d.main.Exec(ctx, my.Unset))
	}
	if err == nil {
		err = d.main.Exec(ctx, loader{d}.created(e))
	}
	if my.Denied(err) && strings.Contains(create, "DEFINER=") {
		err = fmt.Errorf("%w (another account's objects need SUPER or SET USER; --no-owner makes them the restoring account's)", err)
	}
	return d.object(e.String(), create, err)
}

// views creates the views of all databases. One that fails because it reads another that does
// not exist yet is tried again, as long as any view is created.
func (r *runner) views(ctx context.Context, all []*database) error {
	end := r.Phase("views")
	defer end()
	left := make(map[*database][]*my.Entry, len(all))
	for _, d := range all {
		left[d] = d.kind(my.KindView)
	}
	for made := true; made; {
		made = false
		last := map[*database][]error{}
		err := r.each(ctx, all, func(d *database, ctx context.Context) error {
			var again []*my.Entry
			for _, e := range left[d] {
				err := d.entry(ctx, e)
				switch {
				case err == nil:
					made = true
				case my.Missing(err), unfit(err):
					again, last[d] = append(again, e), append(last[d], err)
				default:
					if err := d.failed(err); err != nil {
						return err
					}
				}
			}
			left[d] = again
			return nil
		})
		if err != nil {
			return err
		}
		if made {
			continue
		}
		for _, d := range all {
			for i, err := range last[d] {
				if err := d.unmade(left[d][i], err); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// unfit reports whether an error says that a view reads a missing object: a column, a routine
// or another view.
func unfit(err error) bool {
	switch my.ErrorCode(err) {
	case 1356, 1054, 1305, 1630: // invalid view, unknown column, routine, function
		return true
	}
	return false
}

// unmade records a view that could not be created. One that could not be read at the source
// either is no failure.
func (d *database) unmade(e *my.Entry, err error) error {
	var object *restore.ObjectError
	if !e.Broken || !errors.As(err, &object) {
		return d.failed(err)
	}
	d.Warn("database %s: %s could not be read at the source, and is not made: %v", d.target, e, object.Err)
	d.Broken(object)
	return nil
}

// sequences sets sequences to their positions. It can be repeated. The position of one that could
// not be created is only recorded: an existing sequence of its name is not the restore's.
func (d *database) sequences(ctx context.Context) error {
	chunk := my.SequencesPath(d.source)
	wanted := d.kind(my.KindSequence)
	if d.opts.SchemaOnly || !d.Has(chunk) || len(wanted) == 0 {
		return nil
	}
	text, err := d.Text(ctx, chunk)
	if err != nil {
		return err
	}
	for sql := range strings.SplitSeq(text, ";\n") {
		for _, e := range wanted {
			if !strings.HasPrefix(sql, "SELECT SETVAL("+my.Ident(e.Name)+",") {
				continue
			}
			err := fmt.Errorf("%w %s", restore.ErrNeeds, e)
			if !slices.Contains(d.missed, e) {
				err = d.main.Exec(ctx, sql)
			}
			if err := d.failed(d.object("position of "+e.String(), sql, err)); err != nil {
				return err
			}
		}
	}
	return nil
}

// deadlock reports whether an error says that the server has rolled the transaction back in
// favour of another one.
func deadlock(err error) bool {
	code := my.ErrorCode(err)
	return code == mywire.ErrDeadlock || code == mywire.ErrLockWaitTimeout
}
