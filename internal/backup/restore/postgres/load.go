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

// freezeBytes is from which size on a table that is one chunk is truncated and
// loaded frozen. Truncating makes a new file, which costs more than it brings
// for a small table.
const freezeBytes = 1 << 20

// A loader brings the rows and large objects of chunks into a database, with sessions
// of its workers.
type loader struct {
	*database
	workers []worker
}

// wholeBytes is up to which size, in bytes of text, a table of several chunks is loaded
// by one transaction: a minute or two of work, which a restore that is interrupted does
// again.
const wholeBytes = 8 << 30

// chooseWhole decides which tables of several chunks are loaded by one transaction each,
// so that their rows are frozen and are written once. Chunks side by side would not be,
// and wait for each other where their table grows. A table that is more than its worker's
// share of all rows is still loaded side by side, or the others would wait for it; so is one
// of more than wholeBytes.
func (d *database) chooseWhole(workers int) {
	var all int64
	for _, t := range d.tables {
		all += t.PlainBytes
	}
	for _, t := range d.tables {
		begun := slices.ContainsFunc(t.chunks, func(c *archive.Chunk) bool { return d.books.Has(c.Path) })
		t.whole = t.ours && t.root == "" && len(t.chunks) > 1 && len(t.chunks) == t.Parts && !begun && t.PlainBytes <= min(all/int64(workers), wholeBytes)
	}
}

// chunk returns the job that loads a chunk.
func (l loader) chunk(t *target, c *archive.Chunk) bulk.Job {
	return bulk.Job{ID: c.Path, Size: c.PlainBytes, Do: func(ctx context.Context, n int) error {
		return l.load(ctx, n, t, c)
	}}
}

// table returns the job that loads all chunks of a table. Where that fails, each chunk is
// loaded by a transaction of its own, so that no more is lost than has to be.
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

// load loads chunks of a table by one transaction. An error about one chunk alone is
// noted, and about several returned.
func (l loader) load(ctx context.Context, n int, t *target, chunks ...*archive.Chunk) error {
	chunks = slices.DeleteFunc(slices.Clone(chunks), func(c *archive.Chunk) bool { return l.books.Has(c.Path) })
	if len(chunks) == 0 {
		return nil
	}
	open := l.workers[n].session
	if !t.entry { // an extension's, which no function of the archive belongs to
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

// rowsError is an error about the rows of a chunk.
func (d *database) rowsError(t *target, c *archive.Chunk, err error) error {
	return restore.RowsError(d.target, t.name(), c, t.copySQL(c), err)
}

// copySQL is the statement that loads a chunk.
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

// copyIn loads chunks in one transaction, which also notes them: whatever happens,
// their rows are there once or not at all. With an error it returns the chunk at which
// that came.
func (l loader) copyIn(ctx context.Context, s *pg.Session, t *target, chunks []*archive.Chunk) (at *archive.Chunk, err error) {
	begin := "BEGIN"
	var options []string
	// Frozen rows are visible to everybody at once, which is right only if nobody
	// can have seen the table before: it is one that this restore has made, and
	// nothing refers to it yet. All its rows come in this transaction.
	if t.ours && !t.second && t.root == "" && t.Parts == len(chunks) && t.PlainBytes >= freezeBytes {
		begin += "; TRUNCATE ONLY " + t.sql()
		options = append(options, "FREEZE")
	}
	at = chunks[0]
	err = s.Exec(ctx, begin)
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

// counted counts bytes that are read.
type counted struct {
	in   io.Reader
	d    *database
	sent *int64 // of this transaction
}

// Read reads and counts.
func (c *counted) Read(p []byte) (int, error) {
	n, err := c.in.Read(p)
	*c.sent += int64(n)
	c.d.opts.Progress.Add(int64(n), 0)
	c.d.moved.Add(int64(n))
	return n, err
}
