package mysql

import (
	"context"
	"fmt"

	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/bulk"
	my "github.com/weirdb/weir/internal/backup/bulk/mysql"
	"github.com/weirdb/weir/internal/backup/restore"
)

// onTables runs f on all tables with rows, the largest first.
func (d *database) onTables(ctx context.Context, workers []worker, phase string, f func(context.Context, *my.Session, *table) error) error {
	end := d.Phase(phase)
	defer end()
	var jobs []bulk.Job
	for _, t := range d.tables {
		if t.data == nil || t.lost.Load() {
			continue
		}
		jobs = append(jobs, bulk.Job{ID: t.name(), Size: t.size(), Do: func(ctx context.Context, n int) error {
			s, err := workers[n].session(ctx)
			if err != nil {
				return err
			}
			step := d.opts.Progress.Begin(phase + " " + t.name())
			defer step()
			return d.failed(d.object(phase+" table "+t.name(), "", f(ctx, s, t)))
		}})
	}
	return bulk.Run(ctx, d.opts.Jobs, jobs)
}

// analyze collects statistics, so that the first queries have good plans.
func (d *database) analyze(ctx context.Context, workers []worker) error {
	return d.onTables(ctx, workers, "analyze", func(ctx context.Context, s *my.Session, t *table) error {
		return s.Exec(ctx, "ANALYZE NO_WRITE_TO_BINLOG TABLE "+my.Ident(t.name()))
	})
}

// ErrDiffers is returned if a restored table differs from the manifest.
var ErrDiffers = restore.ErrDiffers

// verify reads the restored tables and compares them with the manifest.
func (d *database) verify(ctx context.Context, workers []worker) error {
	return d.onTables(ctx, workers, "verify", func(ctx context.Context, s *my.Session, t *table) error {
		var sum my.RowSum
		rows, err := s.ReadRows(ctx, t.layout.Select(my.Ident(t.name()), ""), &sum, func([]byte) error { return nil })
		if err != nil {
			return err
		}
		if rows != t.data.Rows {
			return fmt.Errorf("%w: it has %d rows instead of %d", ErrDiffers, rows, t.data.Rows)
		}
		if want := t.data.Checksum; want != "" && sum.String() != want {
			return fmt.Errorf("%w: its checksum is %s instead of %s", ErrDiffers, sum.String(), want)
		}
		return nil
	})
}

// verifyDefinitions compares definitions with those of the backup. It does not if one has
// failed, which is reported already, or if the server has another version, which may print them
// differently.
func (d *database) verifyDefinitions(ctx context.Context, entries []*my.Entry) error {
	if d.FailedIn(d.target) || d.opts.DataOnly || !(loader{d}).comparable() {
		return nil
	}
	for _, e := range entries {
		if e.Broken {
			continue
		}
		got, same, err := loader{d}.shown(ctx, e)
		switch {
		case d.main.Broken() != nil:
			return err
		case err != nil:
			err = fmt.Errorf("%w: %w", ErrDiffers, err)
		case !same:
			err = fmt.Errorf("%w: the backup has %q, the copy %q", ErrDiffers, restore.First(loader{d}.wanted(e), 300), restore.First(got, 300))
		}
		if err := d.failed(d.object(e.String(), "", err)); err != nil {
			return err
		}
	}
	return nil
}

// comparable reports whether the server prints definitions as that of the backup did.
func (l loader) comparable() bool {
	return l.maria == (l.manifest.Engine == archive.MariaDB) && l.main.Version()/100 == l.manifest.Server.Number/100
}

// wanted returns the definition that an object shall have.
func (l loader) wanted(e *my.Entry) string {
	create := e.In(l.source, l.target)
	if l.opts.NoOwner {
		create, _ = my.Definer(create)
	}
	return create
}

// shown returns the definition of an existing object, and whether it is the backup's.
func (l loader) shown(ctx context.Context, e *my.Entry) (create string, same bool, err error) {
	want := *e
	want.Create = l.wanted(e)
	if e.Kind == my.KindDatabase {
		want.Name = l.target
	}
	got, err := l.main.Show(ctx, e.Kind, want.Name)
	if l.opts.NoOwner {
		got.Create, _ = my.Definer(got.Create)
	}
	return got.Create, err == nil && want.Same(&got), err
}

// finish makes everything durable and then drops the journal.
func (d *database) finish(ctx context.Context) error {
	end := d.Phase("finish")
	defer end()
	if d.flushMode != "1" {
		// Commits have not waited for the disk. The log is sequential: once its end is durable,
		// all of it is.
		err := d.main.Exec(ctx, "FLUSH ENGINE LOGS")
		if my.Denied(err) {
			d.Warn("what was restored is on the server's disk within about a second: innodb_flush_log_at_trx_commit is %s, and the account may not FLUSH", d.flushMode)
		} else if err != nil {
			return fmt.Errorf("flush the log: %w", err)
		}
	}
	if err := d.main.Exec(ctx, "DROP TABLE IF EXISTS "+journalTable); err != nil {
		return fmt.Errorf("drop the journal: %w", err)
	}
	return nil
}
