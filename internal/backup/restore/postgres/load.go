package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/bulk"
	pg "github.com/weirdb/weir/internal/backup/bulk/postgres"
	"github.com/weirdb/weir/internal/backup/restore"
)

// freezeBytes is the least size of a table in one chunk that is truncated and loaded frozen.
// Truncating creates a new file, which is not worth it for a small table.
const freezeBytes = 1 << 20

// A loader loads the rows and large objects of chunks into a database, with the sessions of its
// workers.
type loader struct {
	*database
	workers []worker
}

// wholeBytes is the maximum size, in bytes of text, of a table of several chunks that is loaded
// in one transaction: a minute or two of work, which a resumed restore repeats.
const wholeBytes = 8 << 30

// chooseWhole decides which tables of several chunks are each loaded in one transaction, so
// that their rows are frozen and written once. Chunks that are loaded concurrently are not
// frozen, and wait for each other when the table grows. A table that exceeds its worker's share
// of all rows is still loaded concurrently, or the others would wait for it; so is one of more
// than wholeBytes.
func (d *database) chooseWhole(workers int) {
	var all int64
	for _, t := range d.tables {
		all += t.PlainBytes
	}
	for _, t := range d.tables {
		begun := slices.ContainsFunc(t.chunks, func(c *archive.Chunk) bool { return d.journal.Has(c.Path) })
		t.whole = t.ours && t.root == "" && len(t.chunks) > 1 && len(t.chunks) == t.Parts && !begun && t.PlainBytes <= min(all/int64(workers), wholeBytes)
	}
}

// chunk returns the job that loads a chunk.
func (l loader) chunk(t *target, c *archive.Chunk) bulk.Job {
	return bulk.Job{ID: c.Path, Size: c.PlainBytes, Do: func(ctx context.Context, n int) error {
		return l.load(ctx, n, t, c)
	}}
}

// table returns the job that loads all chunks of a table. If that fails, each chunk is loaded
// in a transaction of its own, so that only the failing ones are lost.
func (l loader) table(t *target) bulk.Job {
	return bulk.Job{ID: t.loaded(), Size: t.PlainBytes, Do: func(ctx context.Context, n int) error {
		err := l.load(ctx, n, t, t.chunks...)
		if err == nil || ctx.Err() != nil || !restore.Independent(err) {
			return err
		}
		for _, c := range t.chunks {
			if err := l.load(ctx, n, t, c); err != nil {
				return err
			}
		}
		return nil
	}}
}

// load loads chunks of a table in one transaction. It records an error if there is one chunk,
// and returns it if there are several.
func (l loader) load(ctx context.Context, n int, t *target, chunks ...*archive.Chunk) error {
	chunks = slices.DeleteFunc(slices.Clone(chunks), func(c *archive.Chunk) bool { return l.journal.Has(c.Path) })
	if len(chunks) == 0 {
		return nil
	}
	open := l.workers[n].session
	if !t.entry { // a table of an extension, to which no function of the archive is attached
		open = l.workers[n].admin
	}
	s, err := open(ctx)
	if err != nil {
		return err
	}
	if at, err := l.copyIn(ctx, s, t, chunks); err != nil {
		if err = l.rowsError(t, at, err); len(chunks) > 1 && !l.opts.Stop {
			return err
		}
		return l.failed(err)
	}
	for _, c := range chunks {
		l.Loaded(c)
	}
	return nil
}

// rowsError returns an error about the rows of a chunk.
func (d *database) rowsError(t *target, c *archive.Chunk, err error) error {
	return restore.RowsError(d.target, t.name(), c, t.copySQL(c), err)
}

// copySQL returns the statement that loads a chunk.
func (t *target) copySQL(c *archive.Chunk, options ...string) string {
	sql := "COPY " + cmp.Or(t.root, t.sql())
	if len(t.Columns) > 0 {
		sql += " (" + pg.Idents(t.Columns) + ")"
	}
	if c.Content == "copy-binary" {
		options = append(options, "FORMAT binary")
	}
	sql += " FROM STDIN"
	if len(options) > 0 {
		sql += " (" + strings.Join(options, ", ") + ")"
	}
	return sql
}

// copyIn loads chunks in one transaction, which also records them: whatever happens, their rows
// are loaded exactly once or not at all. If it fails, it returns the chunk that failed.
func (l loader) copyIn(ctx context.Context, s *pg.Session, t *target, chunks []*archive.Chunk) (at *archive.Chunk, err error) {
	var options []string
	err = s.Exec(ctx, "BEGIN")
	// Frozen rows are visible to all transactions at once, which is right only if none can have
	// seen the table before: this restore has created it, nothing refers to it yet, and all its
	// rows are loaded in this transaction.
	if t.ours && !t.second && t.root == "" && t.Parts == len(chunks) && t.PlainBytes >= freezeBytes {
		options = append(options, "FREEZE")
		if err == nil {
			err = l.truncate(ctx, s, t)
		}
	}
	at = chunks[0]
	end := ""
	var sent, rows int64
	for _, c := range chunks {
		if err == nil {
			var n int64
			at = c
			n, err = l.copyRows(ctx, s, t, c, options, &sent)
			rows += n
			end += note(c.Path) + "; "
		}
	}
	if err == nil {
		err = s.Exec(ctx, end+"COMMIT")
	}
	if err != nil {
		l.opts.Progress.Add(-sent, -rows)
		if s.Broken() == nil {
			err = errors.Join(err, s.Exec(ctx, "ROLLBACK"))
		}
	}
	return at, err
}

// truncate truncates a table into which no other session has inserted rows since the restore has created it.
func (l loader) truncate(ctx context.Context, s *pg.Session, t *target) error {
	row, err := s.Row(ctx, "LOCK TABLE ONLY "+t.sql()+"; SELECT EXISTS (SELECT FROM ONLY "+t.sql()+")")
	if err == nil && row[0] == "t" {
		err = restore.ErrBeside
	}
	if err != nil {
		return err
	}
	return s.Exec(ctx, "TRUNCATE ONLY "+t.sql())
}

func (l loader) copyRows(ctx context.Context, s *pg.Session, t *target, c *archive.Chunk, options []string, sent *int64) (int64, error) {
	end := l.opts.Progress.Begin(t.name())
	defer end()
	in, err := l.archive.Chunk(ctx, c.Path)
	if err != nil {
		return 0, err
	}
	rows, err := s.CopyIn(ctx, t.copySQL(c, options...), &counted{in, l.database, sent})
	l.opts.Progress.Add(0, rows)
	if err == nil && rows != c.Rows {
		err = fmt.Errorf("the server took %d rows of %d", rows, c.Rows)
	}
	return rows, errors.Join(err, in.Close())
}

// counted counts the bytes that are read.
type counted struct {
	in   io.Reader
	d    *database
	sent *int64 // of this transaction
}

// Read implements io.Reader.
func (c *counted) Read(p []byte) (int, error) {
	n, err := c.in.Read(p)
	*c.sent += int64(n)
	c.d.opts.Progress.Add(int64(n), 0)
	c.d.moved.Add(int64(n))
	return n, err
}
