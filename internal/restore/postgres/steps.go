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

	"github.com/weirdb/weir/internal/archive"
	"github.com/weirdb/weir/internal/bulk"
	pg "github.com/weirdb/weir/internal/bulk/postgres"
	"github.com/weirdb/weir/internal/restore"
)

// worker is a session of one of the jobs side by side.
type worker struct {
	d *database
	s *pg.Session
}

func (w *worker) session(ctx context.Context) (*pg.Session, error) {
	if w.s != nil && w.s.Broken() == nil {
		return w.s, nil
	}
	s, err := w.d.connect(ctx)
	if err != nil {
		return nil, err
	}
	w.s = s
	return s, nil
}

func (w *worker) close() error {
	if w.s == nil {
		return nil
	}
	return w.s.Close()
}

func entryStep(e *pg.Entry) string { return "entry " + strconv.Itoa(e.ID) }

// entrySQL returns the statements of an entry: what makes it, with the defaults
// that it needs, and what gives it to its owner. As one message they are one
// transaction.
func (d *database) entrySQL(e *pg.Entry) []string {
	var out []string
	if e.Tablespace != "" {
		out = append(out, "SET LOCAL default_tablespace = "+pg.Ident(e.Tablespace))
	}
	if e.AccessMethod != "" {
		out = append(out, "SET LOCAL default_table_access_method = "+pg.Ident(e.AccessMethod))
	}
	if create := strings.TrimRight(strings.TrimSpace(e.Create), ";"); create != "" && !strings.HasPrefix(create, "--") {
		if e.Desc == "SCHEMA" && d.opts.Filter.Selective() {
			create = strings.Replace(create, "CREATE SCHEMA ", "CREATE SCHEMA IF NOT EXISTS ", 1)
		}
		out = append(out, create)
	}
	if owner := e.OwnerSQL(); owner != "" && !d.opts.NoOwner {
		out = append(out, owner)
	}
	return out
}

// deadlockAttempts bounds how often an entry is made that the server has ended in
// favour of another one: it knows of locks that no table of contents shows, such
// as those of functions that an index calls.
const deadlockAttempts = 5

// entry makes one entry, in a transaction that notes it.
func (d *database) entry(ctx context.Context, s *pg.Session, e *pg.Entry) error {
	step := entryStep(e)
	if d.books.has(step) {
		return nil
	}
	end := d.opts.Progress.Begin(e.Name())
	defer end()
	sql := d.entrySQL(e)
	if len(sql) == 0 {
		return nil
	}
	err := s.Exec(ctx, strings.Join(append(sql, note(step)), ";\n"))
	for attempt := 1; pg.ErrorCode(err) == "40P01" && attempt < deadlockAttempts; attempt++ {
		err = s.Exec(ctx, strings.Join(append(sql, note(step)), ";\n"))
	}
	if err != nil {
		return &restore.ObjectError{Database: d.target, Object: e.Name(), Statement: first(strings.Join(sql, "; "), 300), Err: err}
	}
	return nil
}

// makeTables makes what must exist before rows. A table that could not be made,
// when the restore goes on after errors, gets no rows: what is there under its
// name is somebody else's.
func (d *database) makeTables(ctx context.Context) error {
	end := d.phase("definitions")
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
		if t != nil {
			t.chunks = nil
			d.warn("rows of table %s are left out, for the table could not be made", t.name())
		}
	}
	return nil
}

// serially makes entries one after the other.
func (d *database) serially(ctx context.Context, phase string, entries []*pg.Entry) error {
	end := d.phase(phase)
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

// Ranks of jobs: what is lower starts first where it can.
const (
	rankData = iota
	rankIndex
	rankOther
)

// graph returns the jobs of rows and of what is made after rows.
// before says which tables' rows come before those of a table.
func (d *database) graph(workers []worker, before map[*target][]*target) []bulk.Job {
	var jobs []bulk.Job
	sizes := map[int]int64{} // of tables, by their entries
	loaded := map[int]string{}
	locks := map[int]string{}
	for i := range d.toc.Entries {
		e := &d.toc.Entries[i]
		if e.Desc != "TABLE" && e.Desc != "MATERIALIZED VIEW" && e.Desc != "FOREIGN TABLE" {
			continue
		}
		locks[e.ID] = "table " + strconv.Itoa(e.ID)
		if t := d.byTable[[2]string{e.Namespace, e.Tag}]; t != nil {
			loaded[e.ID] = t.loaded()
			sizes[e.ID] = t.PlainBytes
		}
	}
	groups := map[string][]string{} // chunks of tables that are loaded by way of one root
	for _, t := range d.tables {
		for _, c := range t.chunks {
			j := d.load(workers, t, c)
			for _, b := range before[t] {
				j.After = append(j.After, b.loaded())
			}
			jobs = append(jobs, j)
			if t.root != "" {
				groups[t.root] = append(groups[t.root], c.Path)
			}
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
		jobs = append(jobs, d.loadBlobs(workers, c))
	}
	for _, e := range d.of(pg.PostData, pg.PassMain) {
		if d.books.has(entryStep(e)) {
			continue
		}
		j := bulk.Job{ID: entryStep(e), Rank: rankOther, Do: func(ctx context.Context, n int) error {
			s, err := workers[n].session(ctx)
			if err != nil {
				return err
			}
			if err := d.entry(ctx, s, e); err != nil {
				return d.failed(err)
			}
			return nil
		}}
		if e.Desc == "INDEX" || e.Desc == "CONSTRAINT" {
			j.Rank = rankIndex
		}
		for _, id := range e.Depends {
			j.After = append(j.After, "entry "+strconv.Itoa(id))
			if l, ok := loaded[id]; ok {
				j.After = append(j.After, l)
			}
			if l, ok := locks[id]; ok && e.Exclusive() {
				j.Locks = append(j.Locks, l)
			}
			j.Size = max(j.Size, sizes[id])
		}
		slices.Sort(j.After)
		j.After = slices.Compact(j.After)
		jobs = append(jobs, j)
	}
	return jobs
}

// single reports whether all rows of the table come in one chunk, and no others.
func (t *target) single() bool { return t.root == "" && len(t.chunks) == 1 }

// loaded is the job after which all rows of the table are there.
func (t *target) loaded() string {
	if t.single() {
		return t.chunks[0].Path
	}
	return "loaded " + t.name()
}

// freezeBytes is from which size on a table that is one chunk is truncated and
// loaded frozen. Truncating makes a new file, which costs more than it brings
// for a small table.
const freezeBytes = 1 << 20

// load returns the job that loads a chunk.
func (d *database) load(workers []worker, t *target, c *archive.Chunk) bulk.Job {
	return bulk.Job{ID: c.Path, Rank: rankData, Size: c.PlainBytes, Do: func(ctx context.Context, n int) error {
		if d.books.has(c.Path) {
			return nil
		}
		end := d.opts.Progress.Begin(t.name())
		defer end()
		s, err := workers[n].session(ctx)
		if err != nil {
			return err
		}
		if err := d.copyIn(ctx, s, t, c); err != nil {
			return d.failed(&restore.ObjectError{Database: d.target, Object: "rows of table " + t.name() + " (" + c.Path + ")", Err: err})
		}
		d.mu.Lock()
		d.result.Rows += c.Rows
		d.result.Bytes += c.PlainBytes
		if c.Part <= 1 {
			d.result.Tables++
		}
		d.mu.Unlock()
		return nil
	}}
}

// copyIn loads a chunk in one transaction, which also notes it: whatever happens,
// its rows are there once or not at all.
func (d *database) copyIn(ctx context.Context, s *pg.Session, t *target, c *archive.Chunk) error {
	in, err := d.archive.Chunk(ctx, c.Path)
	if err != nil {
		return err
	}
	rows, err := d.copyRows(ctx, s, t, c, in)
	if err == nil && rows != c.Rows {
		err = fmt.Errorf("the server took %d rows of %d", rows, c.Rows)
	}
	if err == nil {
		err = s.Exec(ctx, note(c.Path)+"; COMMIT")
	}
	if err != nil && s.Broken() == nil {
		err = errors.Join(err, s.Exec(ctx, "ROLLBACK"))
	}
	return errors.Join(err, in.Close())
}

func (d *database) copyRows(ctx context.Context, s *pg.Session, t *target, c *archive.Chunk, in interface{ Read([]byte) (int, error) }) (int64, error) {
	begin := "BEGIN"
	var options []string
	if c.Content == "copy-binary" {
		options = append(options, "FORMAT binary")
	}
	// Frozen rows are visible to everybody at once, which is right only if nobody
	// can have seen the table before: it is one that this restore has made, and
	// nothing refers to it yet. All its rows come in this transaction.
	if t.ours && t.root == "" && t.Parts == 1 && c.PlainBytes >= freezeBytes {
		begin += "; TRUNCATE ONLY " + t.sql()
		options = append(options, "FREEZE")
	}
	if err := s.Exec(ctx, begin); err != nil {
		return 0, err
	}
	sql := "COPY " + cmp.Or(t.root, t.sql())
	if len(t.Columns) > 0 {
		sql += " (" + pg.Idents(t.Columns) + ")"
	}
	sql += " FROM STDIN"
	if len(options) > 0 {
		sql += " (" + strings.Join(options, ", ") + ")"
	}
	rows, err := s.CopyIn(ctx, sql, &counted{in, d.opts.Progress})
	d.opts.Progress.Add(0, rows)
	return rows, err
}

// counted counts bytes that are read.
type counted struct {
	in       interface{ Read([]byte) (int, error) }
	progress *bulk.Progress
}

// Read reads and counts.
func (c *counted) Read(p []byte) (int, error) {
	n, err := c.in.Read(p)
	c.progress.Add(int64(n), 0)
	return n, err
}

// loadBlobs returns the job that makes the large objects of a chunk, in one
// transaction.
func (d *database) loadBlobs(workers []worker, c archive.Chunk) bulk.Job {
	return bulk.Job{ID: c.Path, Rank: rankData, Size: c.PlainBytes, Do: func(ctx context.Context, n int) error {
		if d.books.has(c.Path) {
			return nil
		}
		end := d.opts.Progress.Begin("large objects")
		defer end()
		s, err := workers[n].session(ctx)
		if err != nil {
			return err
		}
		failed := d.makeBlobs(ctx, s, c)
		if failed == nil {
			d.opts.Progress.Add(c.PlainBytes, 0)
			return nil
		}
		if s.Broken() == nil {
			if err := s.Exec(ctx, "ROLLBACK"); err != nil {
				return err
			}
		}
		return d.failed(failed)
	}}
}

func (d *database) makeBlobs(ctx context.Context, s *pg.Session, c archive.Chunk) error {
	if err := s.Exec(ctx, "BEGIN"); err != nil {
		return err
	}
	err := d.statements(ctx, c.Path, func(sql string) error {
		owner := strings.HasPrefix(sql, "ALTER LARGE OBJECT")
		right := strings.HasPrefix(sql, "GRANT ") || strings.HasPrefix(sql, "REVOKE ") || strings.HasSuffix(sql, "SESSION AUTHORIZATION") ||
			strings.HasPrefix(sql, "SET SESSION AUTHORIZATION ")
		if owner && d.opts.NoOwner || right && d.opts.NoPrivileges {
			return nil
		}
		if err := s.Exec(ctx, sql); err != nil {
			return &restore.ObjectError{Database: d.target, Object: "large objects (" + c.Path + ")", Statement: first(sql, 120), Err: err}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return s.Exec(ctx, note(c.Path)+"; COMMIT")
}

// script runs the statements of a chunk of the database, if there is one. They
// can be run again without harm, and are noted at their end.
func (d *database) script(ctx context.Context, phase, name string) error {
	chunk := path.Dir(path.Dir(archive.SchemaPath(d.source, "x"))) + name
	has := slices.ContainsFunc(d.manifest.Chunks, func(c archive.Chunk) bool { return c.Path == chunk })
	if !has || d.books.has(chunk) {
		return nil
	}
	end := d.phase(phase)
	defer end()
	wanted, err := d.wanted()
	if err != nil {
		return err
	}
	err = d.statements(ctx, chunk, func(sql string) error {
		if !wanted(sql) {
			return nil
		}
		step := d.opts.Progress.Begin(phase)
		defer step()
		if err := d.main.Exec(ctx, sql); err != nil {
			return d.failed(&restore.ObjectError{Database: d.target, Object: phase, Statement: first(sql, 200), Err: err})
		}
		return nil
	})
	if err != nil {
		return err
	}
	return d.main.Exec(ctx, note(chunk))
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
		if names[sql] {
			return true
		}
		// A value stands behind the last comma but one of a setval.
		i := strings.LastIndex(sql, ",")
		if i > 0 {
			i = strings.LastIndex(sql[:i], ",")
		}
		return i > 0 && names[sql[:i+1]]
	}, nil
}
