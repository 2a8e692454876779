package mysql

import (
	"context"
	"errors"
	"fmt"

	"github.com/weirdb/weir/internal/bulk"
	my "github.com/weirdb/weir/internal/bulk/mysql"
)

// onTables runs f on all tables with rows, the largest first.
func (d *database) onTables(ctx context.Context, workers []worker, phase string, f func(context.Context, *my.Session, *table) error) error {
	end := d.phase(phase)
	defer end()
	var jobs []bulk.Job
	for _, t := range d.tables {
		if t.data == nil {
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
	return bulk.Run(ctx, len(workers), jobs)
}

// analyze gathers statistics, so that the first queries have good plans.
func (d *database) analyze(ctx context.Context, workers []worker) error {
	return d.onTables(ctx, workers, "analyze", func(ctx context.Context, s *my.Session, t *table) error {
		return s.Exec(ctx, "ANALYZE NO_WRITE_TO_BINLOG TABLE "+my.Ident(t.name()))
	})
}

// ErrDiffers says that a restored table is not what the manifest says.
var ErrDiffers = errors.New("the table differs from the backup")

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

// finish makes all of it durable and closes the books, in this order.
func (d *database) finish(ctx context.Context) error {
	end := d.phase("finish")
	defer end()
	if d.flushMode != "1" {
		// Commits have not waited for the disk. The log has an order: when its end
		// is there, all of it is.
		err := d.main.Exec(ctx, "FLUSH ENGINE LOGS")
		if my.Denied(err) {
			d.warn("what was restored is on the server's disk within about a second: innodb_flush_log_at_trx_commit is %s, and the account may not FLUSH", d.flushMode)
		} else if err != nil {
			return fmt.Errorf("flush the log: %w", err)
		}
	}
	if err := d.main.Exec(ctx, "DROP TABLE "+booksTable); err != nil {
		return fmt.Errorf("close the books: %w", err)
	}
	return nil
}
