package mysql

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/bulk"
	my "github.com/weirdb/weir/internal/backup/bulk/mysql"
)

// Ranks of jobs: tables that block writers come first.
const (
	rankLocked = iota
	rankRows
)

// rows reads all rows: locked tables first, then the largest ones.
func (r *runner) rows(ctx context.Context) error {
	r.opts.Progress.Phase("data")
	var jobs []bulk.Job
	var locked []string
	var total int64
	for _, d := range r.databases {
		for _, t := range d.tables {
			if t.withRows {
				total += t.bytes
			}
		}
	}
	chunk := r.opts.ChunkFor(total)
	for _, d := range r.databases {
		for _, t := range d.tables {
			if !t.withRows {
				continue
			}
			if err := (divider{r, chunk}).divide(ctx, t); err != nil {
				return err
			}
			for _, p := range t.parts {
				j := r.job(t, p)
				if !t.versioned() {
					j.Rank = rankLocked
					locked = append(locked, j.ID)
				}
				jobs = append(jobs, j)
				r.opts.Progress.Expect(t.bytes/int64(len(t.parts)), 1)
			}
		}
	}
	if len(locked) > 0 {
		jobs = append(jobs, bulk.Job{ID: "release tables", After: locked, Do: func(context.Context, int) error { return r.releaseTables() }})
	}
	var stats bulk.WorkerPoolStats
	pool := r.opts.Adapt.WorkerPool(r.opts.Jobs, 1)
	pool.Moved, pool.Stats = r.moved.Load, &stats
	err := pool.Run(ctx, jobs)
	r.result.Workers = append(r.result.Workers, stats)
	return err
}

// releaseTables lets writers into tables without transactions again, and records for how long
// they were blocked.
func (r *runner) releaseTables() error {
	var plain []*table
	for _, d := range r.databases {
		plain = append(plain, unsafeTables(d.tables)...)
	}
	if r.tables == nil {
		r.warn("tables without transactions were copied unlocked, and their rows may be of several moments: %s", names(plain))
		return nil
	}
	r.warn("non-transactional tables were locked for %v while they were copied, and could not be written to: %s",
		time.Since(r.tables.since).Round(time.Millisecond), names(plain))
	return r.tables.release()
}

func (r *runner) job(t *table, p part) bulk.Job {
	return bulk.Job{ID: p.id(t), Rank: rankRows, Size: t.bytes / int64(len(t.parts)), Do: func(ctx context.Context, n int) error {
		end := r.opts.Progress.Begin(t.fullName())
		defer end()
		if err := r.readPart(ctx, r.workers[n], t, p); err != nil {
			return fmt.Errorf("read table %s: %w", t.fullName(), err)
		}
		return nil
	}}
}

// selectPart returns the statement that reads a part.
func selectPart(t *table, p part) string { return t.layout.Select(t.sql(), p.where) }

// readPart writes one chunk, unless an earlier run left it and it is still valid.
func (r *runner) readPart(ctx context.Context, s *my.Session, t *table, p part) error {
	started := time.Now()
	path := r.dataPath(t, p)
	r.claim(path)
	piece := r.opts.Progress.Piece(t.bytes / int64(len(t.parts))) // progress counts bytes on disk
	if c, ok := r.w.Done(path); ok {
		var sum my.RowSum
		holds, err := r.holds(ctx, s, t, p, c, &sum)
		if err != nil {
			return err
		}
		if holds {
			t.finish(c.Rows, c.PlainBytes, sum, started, true)
			piece.Done(c.Rows)
			return nil
		}
		if err := r.w.Discard(ctx, path); err != nil {
			return fmt.Errorf("write it again: %w", err)
		}
	}
	info := archive.ChunkInfo{
		Path: path, Kind: archive.KindData, Database: t.db, Table: t.name, Part: p.number, Content: r.content(t),
	}
	if p.where != "" {
		info.Attributes = p.attributes(t.key)
	}
	chunk, err := r.w.Chunk(ctx, info)
	if err != nil {
		return err
	}
	var sum my.RowSum
	var plain int64
	before := s.Waited
	rows, err := r.read(ctx, s, t, p, &sum, func(b []byte) error {
		plain += int64(len(b))
		r.moved.Add(int64(len(b)))
		piece.Add(int64(len(b)))
		_, err := chunk.Write(b)
		return err
	})
	chunk.AddWait(s.Waited - before)
	if err != nil {
		return errors.Join(err, chunk.Abort())
	}
	chunk.AddRows(rows)
	if err := chunk.CloseAsync(); err != nil {
		return err
	}
	t.finish(rows, plain, sum, started, false)
	piece.Done(rows)
	return nil
}

// read reads a part and passes the bytes of its chunk to sink.
func (r *runner) read(ctx context.Context, s *my.Session, t *table, p part, sum *my.RowSum, sink func([]byte) error) (int64, error) {
	if !t.sums {
		sum = nil
	}
	if r.content(t) == "tsv" {
		return s.ReadRows(ctx, selectPart(t, p), sum, sink)
	}
	ins := my.NewInserter(t.layout, my.Ident(t.name), insertBytes)
	emit := func(sql []byte) error { return sink(append(sql, ";\n"...)) }
	rows, err := s.ReadRows(ctx, selectPart(t, p), sum, func(lines []byte) error {
		return my.Lines(bytes.NewReader(lines), func(line []byte) error {
			sql, n, err := ins.Line(line)
			if err != nil || n == 0 {
				return err
			}
			return emit(sql)
		})
	})
	if err != nil {
		return 0, err
	}
	if sql, n := ins.Rest(); n > 0 {
		return rows, emit(sql)
	}
	return rows, nil
}

// insertBytes bounds a statement in the archive: every server's max_allowed_packet is larger.
const insertBytes = 512 << 10

// holds reports whether a chunk of an earlier run still has the rows that this run's views
// show, by reading the rows again: the server does its work again, but nothing needs to be
// compressed, encrypted or sent. An unchanged position in the binary log would prove less: not
// everything is logged.
func (r *runner) holds(ctx context.Context, s *my.Session, t *table, p part, c archive.Chunk, sum *my.RowSum) (bool, error) {
	same := c.PlainSum()
	if same == nil || c.Content != r.content(t) {
		return false, nil
	}
	rows, err := r.read(ctx, s, t, p, sum, func(b []byte) error {
		_, err := same.Write(b)
		return err
	})
	if err != nil {
		return false, err
	}
	return rows == c.Rows && same.Same(), nil
}

// finish counts a completed part.
func (t *table) finish(rows, bytes int64, sum my.RowSum, started time.Time, kept bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.count += rows
	t.bytesRead += bytes
	t.sum.Add(sum)
	t.busy += time.Since(started)
	if kept {
		t.kept++
	}
}
