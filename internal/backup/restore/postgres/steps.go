package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/bulk"
	pg "github.com/weirdb/weir/internal/backup/bulk/postgres"
	"github.com/weirdb/weir/internal/backup/restore"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// worker has the sessions of one of the concurrent jobs.
type worker struct {
	d *database
	s *pg.Session // whose rights functions of the archive may use
	a *pg.Session // in a sandbox, one with all rights
}

// session returns a session in which functions of the archive may be called.
func (w *worker) session(ctx context.Context) (*pg.Session, error) {
	cfg := w.d.cfg
	if b := w.d.sandbox; b != nil {
		cfg.User, cfg.Password = b.user, b.password
	}
	return w.open(ctx, &w.s, cfg)
}

// admin returns a session with all rights of the restore's login, in which functions of the
// archive must not be called.
func (w *worker) admin(ctx context.Context) (*pg.Session, error) {
	if w.d.sandbox == nil {
		return w.session(ctx)
	}
	return w.open(ctx, &w.a, w.d.cfg)
}

func (w *worker) open(ctx context.Context, s **pg.Session, cfg pgwire.ConnectConfig) (_ *pg.Session, err error) {
	if *s != nil && (*s).Broken() == nil {
		return *s, nil
	}
	*s, err = w.d.connectAs(ctx, cfg)
	return *s, err
}

func (w *worker) close() (err error) {
	for _, s := range []*pg.Session{w.s, w.a} {
		if s != nil {
			err = errors.Join(err, s.Close())
		}
	}
	w.s, w.a = nil, nil
	return err
}

func entryStep(e *pg.Entry) string { return "entry " + strconv.Itoa(e.ID) }

// entrySQL returns the statements of an entry: those that create it, with the defaults that it
// needs, and those that set its owner. Sent as one message they are one transaction.
func (d *database) entrySQL(e *pg.Entry) (create, owner []string) {
	if e.Tablespace != "" && d.sandbox == nil {
		create = append(create, "SET LOCAL default_tablespace = "+pg.Ident(e.Tablespace))
	}
	if e.AccessMethod != "" {
		create = append(create, "SET LOCAL default_table_access_method = "+pg.Ident(e.AccessMethod))
	}
	if sql := strings.TrimRight(strings.TrimSpace(e.Create), ";"); sql != "" && !strings.HasPrefix(sql, "--") {
		if e.Desc == "SCHEMA" && d.opts.Filter.Selective() {
			sql = strings.Replace(sql, "CREATE SCHEMA ", "CREATE SCHEMA IF NOT EXISTS ", 1)
		}
		create = append(create, sql)
	}
	if sql := e.OwnerSQL(); sql != "" && !d.opts.NoOwner {
		owner = append(owner, sql)
		if d.sandbox != nil && supreme[e.Desc] {
			owner = giveSupreme(e.Owner, sql)
		}
	}
	return create, owner
}

// object returns an error about an object, with what is left to do for it.
func (d *database) object(name, sql string, err error) error {
	return &restore.ObjectError{Database: d.target, Object: name, Statement: restore.First(sql, 300), Rest: strings.TrimRight(sql, ";\n ") + ";", Err: err}
}

// deadlockAttempts is how often the creation of an entry is attempted after deadlocks: the
// server has locks that no table of contents shows, such as those of functions that an index
// calls.
const deadlockAttempts = 5

// entry creates one entry, in a transaction that records it. It leaves the entry out if
// something that it depends on is missing. settings apply only to its transaction, and do not
// appear in what is left to do for an entry that fails.
func (d *database) entry(ctx context.Context, s *pg.Session, e *pg.Entry, settings ...string) error {
	step := entryStep(e)
	if d.journal.Has(step) {
		return nil
	}
	end := d.opts.Progress.Begin(e.Name())
	defer end()
	create, owner := d.entrySQL(e)
	all := slices.Concat(create, owner)
	if len(all) == 0 {
		return nil
	}
	if needs := d.needs(e); needs != "" {
		d.miss(e)
		return d.object(e.Name(), strings.Join(all, ";\n"), fmt.Errorf("%w %s", restore.ErrNeeds, needs))
	}
	err := d.once(ctx, s, slices.Concat(settings, all, []string{note(step)}))
	if err == nil {
		return nil
	}
	switch pg.ErrorCode(err) {
	case "42704", "42501": // a role that does not exist, or of which we are not a member
		if len(create) == 0 || len(owner) == 0 || d.opts.Stop || d.once(ctx, s, append(create, note(step))) != nil {
			break
		}
		if d.sandbox != nil && d.give(ctx, owner) == nil {
			return nil
		}
		return d.object("owner of "+e.Name(), owner[0], err)
	}
	d.miss(e)
	return d.object(e.Name(), strings.Join(all, ";\n"), err)
}

// once runs statements as one transaction, and repeats it after a deadlock.
func (d *database) once(ctx context.Context, s *pg.Session, sql []string) error {
	err := d.exec(ctx, s, strings.Join(sql, ";\n"))
	for attempt := 1; pg.ErrorCode(err) == "40P01" && attempt < deadlockAttempts; attempt++ {
		err = d.exec(ctx, s, strings.Join(sql, ";\n"))
	}
	return err
}

// needs returns something that an entry depends on and that could not be created, or "".
func (d *database) needs(e *pg.Entry) string {
	d.failedMu.Lock()
	defer d.failedMu.Unlock()
	if len(d.missing) == 0 {
		return ""
	}
	for _, id := range e.Depends {
		if d.missing[id] {
			for i := range d.toc.Entries {
				if d.toc.Entries[i].ID == id {
					return d.toc.Entries[i].Name()
				}
			}
		}
	}
	return ""
}

// miss records that an entry could not be created.
func (d *database) miss(e *pg.Entry) {
	d.failedMu.Lock()
	defer d.failedMu.Unlock()
	if d.missing == nil {
		d.missing = map[int]bool{}
	}
	d.missing[e.ID] = true
}

// made reports whether an entry was created.
func (d *database) made(e *pg.Entry) bool {
	d.failedMu.Lock()
	defer d.failedMu.Unlock()
	return !d.missing[e.ID]
}

// makeTables creates what must exist before rows. A table that could not be created, in a
// restore that continues after errors, gets no rows: a table with its name does not belong to
// the restore.
func (d *database) makeTables(ctx context.Context) error {
	end := d.Phase("definitions")
	defer end()
	for _, e := range d.of(pg.PreData, pg.PassMain) {
		t := d.byTable[[2]string{e.Namespace, e.Tag}]
		if e.Desc != "TABLE" {
			t = nil
		}
		err := d.entry(ctx, d.main, e)
		if err == nil {
			if t != nil {
				t.ours = true
			}
			continue
		}
		if err := d.failed(err); err != nil {
			return err
		}
		switch {
		case t != nil && d.made(e): // all but its owner
			t.ours = true
		case t != nil:
			for _, c := range t.chunks {
				err := d.rowsError(t, c, fmt.Errorf("%w %s", restore.ErrNeeds, e.Name()))
				if err := d.failed(err); err != nil {
					return err
				}
			}
			t.chunks = nil
		}
	}
	return nil
}

// serially creates entries one after the other.
func (d *database) serially(ctx context.Context, phase string, entries []*pg.Entry) error {
	end := d.Phase(phase)
	defer end()
	for _, e := range entries {
		if err := d.entry(ctx, d.main, e); err != nil {
			if err := d.failed(err); err != nil {
				return err
			}
		}
	}
	return nil
}

// Cost of jobs relative to loading rows: building an index, and checking a foreign key, takes
// about a third of the time of loading its table. It only decides which job goes first.
const (
	indexPart   = 3
	foreignPart = 3
)

// graph returns the jobs of rows and of what is created after rows. before says which tables'
// rows are loaded before those of a table, and parts which tables with rows are partitions of a
// table.
func (d *database) graph(workers []worker, before map[*target][]*target, parts map[[2]string][]*target) []bulk.Job {
	var jobs []bulk.Job
	d.chooseWhole(len(workers))
	sizes := map[int]int64{} // of tables, by their entries
	loaded := map[int]string{}
	locks := map[int]string{}
	tags := map[int]string{}        // names of tables
	entries := map[int]*target{}    // tables with rows
	after := map[*target][]string{} // jobs after which the rows are complete
	lock := map[*target]string{}
	for i := range d.toc.Entries {
		e := &d.toc.Entries[i]
		if e.Desc != "TABLE" && e.Desc != "MATERIALIZED VIEW" && e.Desc != "FOREIGN TABLE" {
			continue
		}
		locks[e.ID] = "table " + strconv.Itoa(e.ID)
		tags[e.ID] = e.Tag
		if t := d.byTable[[2]string{e.Namespace, e.Tag}]; t != nil {
			t.entry = true
			entries[e.ID], lock[t] = t, locks[e.ID]
			loaded[e.ID] = t.loaded()
			sizes[e.ID] = t.PlainBytes
		} else if p := parts[[2]string{e.Namespace, e.Tag}]; len(p) > 0 {
			all := bulk.Job{ID: "loaded partitions of " + e.Namespace + "." + e.Tag, Do: func(context.Context, int) error { return nil }}
			for _, t := range p {
				all.After = append(all.After, t.loaded())
			}
			loaded[e.ID] = all.ID
			jobs = append(jobs, all)
		}
	}
	groups := map[string][]string{} // chunks of tables that are loaded through one root
	for _, t := range d.tables {
		var own []bulk.Job
		if t.whole {
			own = append(own, loader{d, workers}.table(t))
		} else {
			for _, c := range t.chunks {
				own = append(own, loader{d, workers}.chunk(t, c))
				if t.root != "" {
					groups[t.root] = append(groups[t.root], c.Path)
				}
			}
		}
		for _, j := range own {
			for _, b := range before[t] {
				j.After = append(j.After, b.loaded())
			}
			jobs = append(jobs, j)
		}
	}
	for _, t := range d.tables {
		if t.single() {
			continue
		}
		done := bulk.Job{ID: t.loaded(), Do: func(context.Context, int) error { return nil }}
		done.After = append(done.After, groups[t.root]...)
		for _, c := range t.chunks {
			done.After = append(done.After, c.Path)
		}
		jobs = append(jobs, done)
	}
	for _, c := range d.blobs() {
		jobs = append(jobs, loader{d, workers}.blobs(c))
	}
	inherited := map[string][]string{} // triggers that tables have, by name
	for _, e := range d.of(pg.PostData, pg.PassMain) {
		if e.Desc == "TRIGGER" && !disables(e) {
			name := triggerName(e, tags)
			inherited[name] = append(inherited[name], entryStep(e))
		}
	}
	building := newBuilds(d.cfg, len(workers))
	for _, e := range d.of(pg.PostData, pg.PassMain) {
		if d.journal.Has(entryStep(e)) {
			continue
		}
		var size int64
		for _, id := range e.Depends {
			size = max(size, sizes[id])
		}
		j := bulk.Job{ID: entryStep(e), Do: func(ctx context.Context, n int) error {
			settings := buildSettings(&d.opts, d.version, e, buildsIndex(e) && building.start(size))
			open := workers[n].session
			if harmless[e.Desc] {
				open = workers[n].admin
			}
			s, err := open(ctx)
			if err != nil {
				return err
			}
			if err := d.entry(ctx, s, e, settings...); err != nil {
				return d.failed(err)
			}
			return nil
		}}
		if d.opts.Adapt.Max > 0 { // only the throughput of rows controls the number of jobs, so these go first
			j.Rank = 1
		}
		switch {
		case buildsIndex(e):
			j.Size = size / indexPart
			building.expect(size)
		case e.Desc == "FK CONSTRAINT":
			j.Size = size / foreignPart
		}
		if disables(e) {
			j.After = append(j.After, inherited[triggerName(e, tags)]...)
		}
		for _, id := range e.Depends {
			j.After = append(j.After, "entry "+strconv.Itoa(id))
			if l, ok := loaded[id]; ok {
				j.After = append(j.After, l)
				if t := entries[id]; t != nil {
					after[t] = append(after[t], j.ID)
				}
			}
			if l, ok := locks[id]; ok && e.Exclusive() {
				j.Locks = append(j.Locks, l)
			} else if ok { // indexes of a table can be built concurrently, but not with keys
				j.Shared = append(j.Shared, l)
			}
		}
		slices.Sort(j.After)
		j.After = slices.Compact(j.After)
		jobs = append(jobs, j)
	}
	for _, t := range d.tables {
		if d.analyzes(t) {
			j := d.statistics(workers, t.name(), t.sql(), 0)
			j.After = append(after[t], t.loaded())
			if lock[t] != "" {
				j.Locks = []string{lock[t]}
			}
			jobs = append(jobs, j)
		}
	}
	return jobs
}

// buildSettings returns the settings of the transaction that creates an entry. beside says that
// other jobs build indexes concurrently, so that each build should use one process.
func buildSettings(o *restore.Options, version int, e *pg.Entry, beside bool) (out []string) {
	if !buildsIndex(e) {
		return nil
	}
	if n := o.IndexWorkers; version >= parallelBuilds && (n != nil || beside) {
		workers := 0
		if n != nil {
			workers = *n
		}
		out = append(out, "SET LOCAL max_parallel_maintenance_workers = "+strconv.Itoa(workers))
	}
	if t := o.IndexTimeout; t > 0 {
		out = append(out, "SET LOCAL statement_timeout = "+strconv.FormatInt(max(1, t.Milliseconds()), 10))
	}
	return out
}

// buildsIndex reports whether an entry builds an index; rare constraints do not.
func buildsIndex(e *pg.Entry) bool { return e.Desc == "INDEX" || e.Desc == "CONSTRAINT" }

// parallelBuilds is the version since which servers build indexes with parallel workers.
const parallelBuilds = 110000

// disables reports whether an entry does not create a trigger, but enables or disables one that
// a partition inherits. No dependency refers to that trigger.
func disables(e *pg.Entry) bool {
	return e.Desc == "TRIGGER" && strings.HasPrefix(strings.TrimSpace(e.Create), "ALTER TABLE ")
}

// triggerName returns the name of a trigger, which a partition's trigger inherits from its
// parent's. tags are the names of the tables.
func triggerName(e *pg.Entry, tags map[int]string) string {
	for _, id := range e.Depends {
		if name, ok := strings.CutPrefix(e.Tag, tags[id]+" "); ok && tags[id] != "" {
			return name
		}
	}
	return e.Tag
}

// single reports whether all rows of the table, and no others, are loaded by one job.
func (t *target) single() bool { return t.whole || t.root == "" && len(t.chunks) == 1 }

// loaded returns the job after which all rows of the table are there.
func (t *target) loaded() string {
	if t.single() && !t.whole {
		return t.chunks[0].Path
	}
	return "loaded " + t.name()
}

// sequences is the path of the chunk with the values of sequences.
const sequences = "/state/sequences.sql"

// stateOf returns the path of one of the database's chunks with state.
func stateOf(d *database, name string) string {
	return path.Dir(path.Dir(archive.SchemaPath(d.source, "x"))) + name
}

// script runs the statements of a chunk of the database, if there is one. They can be repeated,
// and are recorded at their end.
func (d *database) script(ctx context.Context, phase, name string, run func(context.Context, string) error) error {
	chunk := stateOf(d, name)
	if !d.Has(chunk) || d.journal.Has(chunk) {
		return nil
	}
	end := d.Phase(phase)
	defer end()
	wanted, err := d.wanted()
	if err != nil {
		return err
	}
	subject := subjects(d)
	err = d.statements(ctx, chunk, func(sql string) error {
		if !wanted(sql) {
			return nil
		}
		step := d.opts.Progress.Begin(phase)
		defer step()
		var err error
		if e := subject(sql); e != nil && !d.made(e) { // what has its name does not belong to the restore
			err = fmt.Errorf("%w %s", restore.ErrNeeds, e.Name())
		} else {
			err = run(ctx, sql)
		}
		if err != nil {
			return d.failed(&restore.ObjectError{Database: d.target, Object: phase, Statement: restore.First(sql, 200), Rest: sql + ";", Err: err})
		}
		return nil
	})
	if err != nil {
		return err
	}
	return d.main.Exec(ctx, note(chunk))
}

// subjects returns a function that finds the entry of the sequence or materialized view that a
// statement is about; nil if it is not restored.
func subjects(d *database) func(sql string) *pg.Entry {
	of := map[string]*pg.Entry{}
	for _, e := range d.entries {
		switch name := pg.Qualified(e.Namespace, e.Tag); e.Desc {
		case "SEQUENCE":
			of["SELECT pg_catalog.setval("+pg.Literal(name)] = e
		case "MATERIALIZED VIEW":
			of["REFRESH MATERIALIZED VIEW "+name] = e
		}
	}
	return func(sql string) *pg.Entry {
		set, _, _ := cutPosition(sql)
		return cmp.Or(of[sql], of[set])
	}
}

// cutPosition separates the value from a setval statement: it follows the last comma but one.
func cutPosition(sql string) (set, position string, ok bool) {
	i := strings.LastIndex(sql, ",")
	if i > 0 {
		i = strings.LastIndex(sql[:i], ",")
	}
	if i <= 0 {
		return "", "", false
	}
	return sql[:i], sql[i+1:], true
}

// wanted returns which statements about sequences and materialized views are selected in a
// partial restore: those about selected entries or, without definitions, about selected
// schemas.
func (d *database) wanted() (func(sql string) bool, error) {
	if d.opts.Filter.Empty() {
		return func(string) bool { return true }, nil
	}
	m, err := d.opts.Filter.Compile()
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	entries := d.entries
	if d.opts.DataOnly {
		entries = chosen(d.toc, m, false)
	}
	for _, e := range entries {
		switch e.Desc {
		case "SEQUENCE":
			names["SELECT pg_catalog.setval("+pg.Literal(pg.Qualified(e.Namespace, e.Tag))+","] = true
		case "MATERIALIZED VIEW":
			names["REFRESH MATERIALIZED VIEW "+pg.Qualified(e.Namespace, e.Tag)] = true
		}
	}
	return func(sql string) bool {
		set, _, ok := cutPosition(sql)
		return names[sql] || ok && names[set+","]
	}, nil
}
