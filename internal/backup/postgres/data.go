package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/bulk"
	pg "github.com/weirdb/weir/internal/backup/bulk/postgres"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// Attributes of chunks of rows.
const (
	attrPages    = "pages"    // pages in each part of the table
	attrSnapshot = "snapshot" // the transactions that are visible in it
)

func (d *database) dataPath(t *tableData, part int) string {
	content := "copy"
	if t.binary {
		content = "copybin"
	}
	return archive.DataPath(d.name, t.schema, t.relname, part, content)
}

// dataJobs returns the jobs that read all rows, the largest first.
func (d *database) dataJobs() []bulk.Job {
	var jobs []bulk.Job
	for _, t := range d.content {
		for part := 1; part <= t.parts; part++ {
			jobs = append(jobs, bulk.Job{
				ID:   d.dataPath(t, part),
				Size: t.bytes / int64(t.parts),
				Do: func(ctx context.Context, n int) error {
					end := d.opts.Progress.Begin(t.name())
					defer end()
					err := d.readPart(ctx, &d.workers[n], t, part)
					err = d.workers[n].again(err, func() error { return d.readPart(ctx, &d.workers[n], t, part) })
					if err != nil {
						return fmt.Errorf("read table %s: %w", t.name(), err)
					}
					return nil
				},
			})
		}
	}
	return jobs
}

// copySQL returns the statement that reads a part. COPY of a table does not include children,
// like ONLY, and costs less than a SELECT.
func (d *database) copySQL(t *tableData, part int) string {
	from := t.sql()
	if len(t.columns) > 0 {
		from += " (" + pg.Idents(t.columns) + ")"
	}
	if t.condition != "" || t.parts > 1 {
		where := t.condition
		if t.parts > 1 {
			where = fmt.Sprintf("WHERE ctid >= '(%d,0)'", int64(part-1)*t.perPart)
			if part < t.parts { // the last part includes pages that were added after the count
				where += fmt.Sprintf(" AND ctid < '(%d,0)'", int64(part)*t.perPart)
			}
		}
		from = "(SELECT " + pg.Idents(t.columns) + " FROM ONLY " + t.sql() + " " + where + ")"
	}
	sql := "COPY " + from + " TO STDOUT"
	if t.binary {
		sql += " (FORMAT binary)"
	}
	return sql
}

// readPart writes one chunk, unless an earlier run left it and it is still valid.
func (d *database) readPart(ctx context.Context, w *worker, t *tableData, part int) error {
	started := time.Now()
	path := d.dataPath(t, part)
	d.claim(d.name, path)
	piece := d.opts.Progress.Piece(t.bytes / int64(t.parts)) // progress counts bytes on disk
	if c, ok := d.w.Done(path); ok {
		holds, sum, err := d.holds(ctx, w, t, part, c)
		if err != nil {
			return err
		}
		if holds {
			t.finish(c.Rows, c.PlainBytes, sum, started, true)
			piece.Done(c.Rows)
			return nil
		}
		if err := d.w.Discard(ctx, path); err != nil {
			return fmt.Errorf("write it again: %w", err)
		}
	}
	info := archive.ChunkInfo{
		Path: path, Kind: archive.KindData, Database: d.name, Schema: t.schema, Table: t.relname, Part: part, Content: t.format(),
		Attributes: d.same,
	}
	if t.parts > 1 {
		info.Attributes = map[string]string{attrSnapshot: d.shows(), attrPages: strconv.FormatInt(t.perPart, 10)}
	}
	if err := w.open(ctx); err != nil { // before the time of the chunk begins
		return err
	}
	chunk, err := d.w.Chunk(ctx, info)
	if err != nil {
		return err
	}
	sum := pg.RowSum{Binary: t.binary}
	var bytes int64
	rows, waited, err := d.copy(ctx, w, t, part, func(p []byte) error {
		bytes += int64(len(p))
		d.read.Add(int64(len(p)))
		piece.Add(int64(len(p)))
		if d.opts.Checksums {
			if err := sum.Write(p); err != nil {
				return err
			}
		}
		_, err := chunk.Write(p)
		return err
	})
	chunk.AddWait(waited)
	if err == nil && d.opts.Checksums {
		err = ended(&sum, rows)
	}
	if err != nil {
		return errors.Join(err, chunk.Abort())
	}
	chunk.AddRows(rows)
	if err := chunk.CloseAsync(); err != nil {
		return err
	}
	t.finish(rows, bytes, &sum, started, false)
	piece.Done(rows)
	return nil
}

// copy reads a part and passes its bytes to sink. It returns how long it waited for the server.
func (d *database) copy(ctx context.Context, w *worker, t *tableData, part int, sink func([]byte) error) (rows int64, waited time.Duration, err error) {
	err = w.read(ctx, func(s *pg.Session) (err error) {
		before, begun := s.Waited, false
		rows, err = s.CopyOut(ctx, d.copySQL(t, part), func(p []byte) error {
			begun = true
			return sink(p)
		})
		waited += s.Waited - before
		if begun && pg.ErrorCode(err) == pgwire.CodeLockNotAvailable {
			return begunError{err}
		}
		return err
	})
	return rows, waited, err
}

// ended compares the number of rows with the server's own count.
func ended(sum *pg.RowSum, rows int64) error {
	if err := sum.End(); err != nil {
		return err
	}
	if sum.Rows() != rows {
		return fmt.Errorf("the server says that it sent %d rows, and %d came", rows, sum.Rows())
	}
	return nil
}

// holds reports whether a chunk of an earlier run is the same in this run's snapshot. It is if
// no transaction has changed the database in between, or if the rows, read again, have the same
// bytes: then the server has to send them again, but they need not be compressed, encrypted or
// stored.
func (d *database) holds(ctx context.Context, w *worker, t *tableData, part int, c archive.Chunk) (bool, *pg.RowSum, error) {
	sum := pg.RowSum{Binary: t.binary}
	pages := ""
	if t.parts > 1 {
		pages = strconv.FormatInt(t.perPart, 10)
	}
	if c.Attributes[attrPages] != pages || c.Content != t.format() {
		return false, nil, nil
	}
	if !d.opts.Checksums && d.server.SystemID != "" && c.Attributes[attrSnapshot] == d.shows() {
		return true, &sum, nil
	}
	same := c.PlainSum()
	if same == nil {
		return false, nil, nil
	}
	rows, _, err := d.copy(ctx, w, t, part, func(p []byte) error {
		if d.opts.Checksums {
			if err := sum.Write(p); err != nil {
				return err
			}
		}
		_, err := same.Write(p)
		return err
	})
	if err == nil && d.opts.Checksums {
		err = ended(&sum, rows)
	}
	if err != nil {
		return false, nil, err
	}
	return rows == c.Rows && same.Same(), &sum, nil
}

// finish records a part that is done.
func (t *tableData) finish(rows, bytes int64, sum *pg.RowSum, started time.Time, kept bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rows += rows
	t.bytesRead += bytes
	t.sum.Add(sum)
	t.busy += time.Since(started)
	if kept {
		t.kept++
	}
}

// format returns the format of the rows.
func (t *tableData) format() string {
	if t.binary {
		return "copy-binary"
	}
	return "copy-text"
}
