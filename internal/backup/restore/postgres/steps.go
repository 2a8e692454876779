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

// worker is a session of one of the jobs side by side.
type worker struct {
	d *database
	s *pg.Session // whose rights the archive's functions may have
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

// admin returns a session in which none are, and which may do everything that the
// restore's login may.
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

// entrySQL returns the statements of an entry: what makes it, with the defaults
// that it needs, and what gives it to its owner. As one message they are one
// transaction.
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

// object is an error about an object, with what is left to do for it.
func (d *database) object(name, sql string, err error) error {
	return &restore.ObjectError{Database: d.target, Object: name, Statement: restore.First(sql, 300), Rest: strings.TrimRight(sql, ";\n ") + ";", Err: err}
}

// deadlockAttempts bounds how often an entry is made that the server has ended in
// favour of another one: it knows of locks that no table of contents shows, such
// as those of functions that an index calls.
const deadlockAttempts = 5

// entry makes one entry, in a transaction that notes it. What it needs and is
// missing is a reason to leave it out. Settings are of its transaction alone, and
// no part of what is said of an entry that fails.
func (d *database) entry(ctx context.Context, s *pg.Session, e *pg.Entry, settings ...string) error {
	step := entryStep(e)
	if d.books.Has(step) {
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
	case "42704", "42501": // a role that does not exist, or that is none of ours
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

// once runs statements as one transaction, again if the server has ended it in
// favour of another one.
func (d *database) once(ctx context.Context, s *pg.Session, sql []string) error {
	err := d.exec(ctx, s, strings.Join(sql, ";\n"))
	for attempt := 1; pg.ErrorCode(err) == "40P01" && attempt < deadlockAttempts; attempt++ {
		err = d.exec(ctx, s, strings.Join(sql, ";\n"))
	}
	return err
}

// needs returns what an entry needs and could not be made, "" for nothing.
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

// miss notes that an entry could not be made.
func (d *database) miss(e *pg.Entry) {
	d.failedMu.Lock()
	defer d.failedMu.Unlock()
	if d.missing == nil {
		d.missing = map[int]bool{}
	}
	d.missing[e.ID] = true
}

// made reports whether an entry is there.
func (d *database) made(e *pg.Entry) bool {
	d.failedMu.Lock()
	defer d.failedMu.Unlock()
	return !d.missing[e.ID]
}

// makeTables makes what must exist before rows. A table that could not be made,
// when the restore goes on after errors, gets no rows: what is there under its
// name is somebody else's.
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

// serially makes entries one after the other.
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

// Work of jobs beside that of loading rows, as parts of it: an index is built, and a
// foreign key checked, in about a third of the time that loading its table takes. They
// decide which job goes first, and no more.
const (
	indexPart   = 3
	foreignPart = 3
)

// graph returns the jobs of rows and of what is made after rows.
// before says which tables' rows come before those of a table, and parts which tables with
// rows are partitions of one.
func (d *database) graph(workers []worker, before map[*target][]*target, parts map[[2]string][]*target) []bulk.Job {
	var jobs []bulk.Job
	d.chooseWhole(len(workers))
	sizes := map[int]int64{} // of tables, by their entries
	loaded := map[int]string{}
	locks := map[int]string{}
	tags := map[int]string{}        // names of tables
	entries := map[int]*target{}    // tables with rows
	after := map[*target][]string{} // what is made of them
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
	groups := map[string][]string{} // chunks of tables that are loaded by way of one root
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
		if d.books.Has(entryStep(e)) {
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
		if d.opts.Adapt.Max > 0 { // the number of jobs follows rows, and wants them by themselves
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
			} else if ok { // an index is built beside others, and not while a key is made
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

// buildSettings are those of the transaction that makes an entry. beside says that
// others build indexes, too, and each of them shall be content with one process.
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

// buildsIndex reports whether an entry makes an index, but for rare constraints.
func buildsIndex(e *pg.Entry) bool { return e.Desc == "INDEX" || e.Desc == "CONSTRAINT" }

// parallelBuilds is the version from which on servers build indexes with parallel
// workers.
const parallelBuilds = 110000

// disables reports whether an entry makes no trigger, but says when the one fires
// that a partition has from its parent. No dependency leads to that one.
func disables(e *pg.Entry) bool {
	return e.Desc == "TRIGGER" && strings.HasPrefix(strings.TrimSpace(e.Create), "ALTER TABLE ")
}

// triggerName is the name of a trigger, which a partition's has from its parent's.
// tags are the names of the tables.
func triggerName(e *pg.Entry, tags map[int]string) string {
	for _, id := range e.Depends {
		if name, ok := strings.CutPrefix(e.Tag, tags[id]+" "); ok && tags[id] != "" {
			return name
		}
	}
	return e.Tag
}

// single reports whether all rows of the table come in one chunk, and no others.
func (t *target) single() bool { return t.whole || t.root == "" && len(t.chunks) == 1 }

// loaded is the job after which all rows of the table are there.
func (t *target) loaded() string {
	if t.single() && !t.whole {
		return t.chunks[0].Path
	}
	return "loaded " + t.name()
}

// sequences is the chunk of what they stood at.
const sequences = "/state/sequences.sql"

// stateOf is the path of a chunk of the database that says in what state things were.
func stateOf(d *database, name string) string {
	return path.Dir(path.Dir(archive.SchemaPath(d.source, "x"))) + name
}

// script runs the statements of a chunk of the database, if there is one. They
// can be run again without harm, and are noted at their end.
func (d *database) script(ctx context.Context, phase, name string, run func(context.Context, string) error) error {
	chunk := stateOf(d, name)
	if !d.Has(chunk) || d.books.Has(chunk) {
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
		if e := subject(sql); e != nil && !d.made(e) { // what is there under its name is somebody else's
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

// subjects returns the entries of the sequences and materialized views that statements are
// about; nil for what is not restored.
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

// cutPosition cuts what is set off from a setval: it stands behind the last comma but one.
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

// wanted returns which statements about sequences and materialized views are
// meant when only a part of the backup is: those about entries that are, or,
// when no definitions are restored, about schemas that are.
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
