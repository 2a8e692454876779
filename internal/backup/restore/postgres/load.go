package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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

// chunk returns the job that loads a chunk.
func (l loader) chunk(t *target, c *archive.Chunk) bulk.Job {
	return bulk.Job{ID: c.Path, Rank: rankData, Size: c.PlainBytes, Do: func(ctx context.Context, n int) error {
		if l.books.has(c.Path) {
			return nil
		}
		end := l.opts.Progress.Begin(t.name())
		defer end()
		open := l.workers[n].session
		if !t.entry { // an extension's, which no function of the archive belongs to
			open = l.workers[n].admin
		}
		s, err := open(ctx)
		if err != nil {
			return err
		}
		if err := l.copyIn(ctx, s, t, c); err != nil {
			return l.failed(l.rowsError(t, c, err))
		}
		l.mu.Lock()
		l.result.Rows += c.Rows
		l.result.Bytes += c.PlainBytes
		if c.Part <= 1 {
			l.result.Tables++
		}
		l.mu.Unlock()
		return nil
	}}
}

// rowsError is an error about the rows of a chunk.
func (d *database) rowsError(t *target, c *archive.Chunk, err error) error {
	return &restore.ObjectError{
		Database: d.target, Object: "rows of table " + t.name() + " (" + c.Path + ")",
		Rest: "-- " + strings.Join(strings.Fields(t.copySQL(c)), " "), Chunk: c.Path, Err: err,
	}
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

// copyIn loads a chunk in one transaction, which also notes it: whatever happens,
// its rows are there once or not at all.
func (l loader) copyIn(ctx context.Context, s *pg.Session, t *target, c *archive.Chunk) error {
	in, err := l.archive.Chunk(ctx, c.Path)
	if err != nil {
		return err
	}
	rows, err := l.copyRows(ctx, s, t, c, in)
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

func (l loader) copyRows(ctx context.Context, s *pg.Session, t *target, c *archive.Chunk, in interface{ Read([]byte) (int, error) }) (int64, error) {
	begin := "BEGIN"
	var options []string
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
	rows, err := s.CopyIn(ctx, t.copySQL(c, options...), &counted{in, l.database})
	l.opts.Progress.Add(0, rows)
	return rows, err
}

// counted counts bytes that are read.
type counted struct {
	in interface{ Read([]byte) (int, error) }
	d  *database
}

// Read reads and counts.
func (c *counted) Read(p []byte) (int, error) {
	n, err := c.in.Read(p)
	c.d.opts.Progress.Add(int64(n), 0)
	c.d.moved.Add(int64(n))
	return n, err
}

// blobs returns the job that makes the large objects of a chunk, in one
// transaction.
func (l loader) blobs(c archive.Chunk) bulk.Job {
	return bulk.Job{ID: c.Path, Rank: rankData, Size: c.PlainBytes, Do: func(ctx context.Context, n int) error {
		if l.books.has(c.Path) {
			return nil
		}
		end := l.opts.Progress.Begin("large objects")
		defer end()
		s, err := l.workers[n].admin(ctx)
		if err != nil {
			return err
		}
		for {
			failed := l.makeBlobs(ctx, s, c)
			if failed == nil {
				l.opts.Progress.Add(c.PlainBytes, 0)
				return nil
			}
			if s.Broken() == nil {
				if err := s.Exec(ctx, "ROLLBACK"); err != nil {
					return err
				}
			}
			if !l.sandbox.provide(ctx, failed) {
				return l.failed(failed)
			}
		}
	}}
}

func (l loader) makeBlobs(ctx context.Context, s *pg.Session, c archive.Chunk) error {
	if err := s.Exec(ctx, "BEGIN"); err != nil {
		return err
	}
	err := l.statements(ctx, c.Path, func(sql string) error {
		owner := strings.HasPrefix(sql, "ALTER LARGE OBJECT")
		right := strings.HasPrefix(sql, "GRANT ") || strings.HasPrefix(sql, "REVOKE ") || strings.HasSuffix(sql, "SESSION AUTHORIZATION") ||
			strings.HasPrefix(sql, "SET SESSION AUTHORIZATION ")
		if owner && l.opts.NoOwner || right && l.opts.NoPrivileges {
			return nil
		}
		if err := s.Exec(ctx, sql); err != nil {
			return &restore.ObjectError{Database: l.target, Object: "large objects (" + c.Path + ")", Statement: first(sql, 120), Chunk: c.Path, Err: err}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return s.Exec(ctx, note(c.Path)+"; COMMIT")
}
