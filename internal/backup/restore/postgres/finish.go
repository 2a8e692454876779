package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/weirdb/weir/internal/backup/bulk"
	pg "github.com/weirdb/weir/internal/backup/bulk/postgres"
	"github.com/weirdb/weir/internal/backup/restore"
)

// statistics returns the job that gathers the statistics of a table or a materialized view, so
// that the first queries have good plans.
func (d *database) statistics(workers []worker, name, sql string, size int64) bulk.Job {
	return bulk.Job{ID: "statistics of " + name, Size: size, Do: func(ctx context.Context, n int) error {
		s, err := workers[n].session(ctx)
		if err != nil {
			return err
		}
		step := d.opts.Progress.Begin("statistics of " + name)
		defer step()
		if err := s.Exec(ctx, "ANALYZE "+sql); err != nil {
			return d.failed(&restore.ObjectError{Database: d.target, Object: "statistics of " + name, Statement: "ANALYZE " + sql, Err: err})
		}
		return nil
	}}
}

// analyzes reports whether the statistics of a table are gathered.
func (d *database) analyzes(t *target) bool {
	return !d.opts.NoAnalyze && t.Rows > 0 && len(t.chunks) > 0
}

// analyzeViews gathers the statistics of materialized views. Those of tables were gathered when
// their indexes existed.
func (d *database) analyzeViews(ctx context.Context, workers []worker) error {
	var jobs []bulk.Job
	for _, e := range d.entries {
		if e.Desc == "MATERIALIZED VIEW" {
			jobs = append(jobs, d.statistics(workers, e.Namespace+"."+e.Tag, pg.Qualified(e.Namespace, e.Tag), 0))
		}
	}
	if len(jobs) == 0 {
		return nil
	}
	defer d.Phase("analyze")()
	return bulk.Run(ctx, d.opts.Jobs, jobs)
}

// compareRestored compares what is restored with the backup, with --verify.
func compareRestored(ctx context.Context, d *database, workers []worker) error {
	if d.opts.Verify != restore.VerifyRows || d.opts.SchemaOnly {
		return nil
	}
	if err := d.verify(ctx, workers); err != nil {
		return err
	}
	return d.verifyDefinitions(ctx)
}

// verify reads the restored tables and compares them with the manifest.
func (d *database) verify(ctx context.Context, workers []worker) error {
	end := d.Phase("verify")
	defer end()
	var jobs []bulk.Job
	groups := map[string][]*target{}
	for _, t := range d.tables {
		if len(t.chunks) < t.Parts {
			continue // it could not be created, which is reported already
		}
		if t.root != "" {
			groups[t.root] = append(groups[t.root], t)
			continue
		}
		jobs = append(jobs, bulk.Job{ID: t.name(), Size: t.PlainBytes, Do: func(ctx context.Context, n int) error {
			s, err := workers[n].admin(ctx)
			if err != nil {
				return err
			}
			step := d.opts.Progress.Begin("verify " + t.name())
			defer step()
			if err := t.compare(ctx, s); err != nil {
				return d.failed(&restore.ObjectError{Database: d.target, Object: "table " + t.name(), Err: err})
			}
			return nil
		}})
	}
	for root, group := range groups {
		jobs = append(jobs, bulk.Job{ID: "rows of " + root, Do: func(ctx context.Context, n int) error {
			s, err := workers[n].admin(ctx)
			if err != nil {
				return err
			}
			if err := compareCounts(ctx, s, group); err != nil {
				return d.failed(&restore.ObjectError{Database: d.target, Object: "partitions of " + root, Err: err})
			}
			return nil
		}})
	}
	return bulk.Run(ctx, d.opts.Jobs, jobs)
}

// maxDifferences limits the number of different definitions that are listed for a database.
const maxDifferences = 50

// verifyDefinitions compares all definitions with those of the source, if all of them were to
// be restored and none has failed: failures were reported already.
func (d *database) verifyDefinitions(ctx context.Context) error {
	chunk := stateOf(d, "/state/catalogue.jsonl")
	if !d.Has(chunk) || d.FailedIn(d.target) || d.opts.DataOnly || !d.opts.Filter.Empty() {
		return nil
	}
	if d.version/10000 != d.manifest.Server.Number/10000 {
		d.Warn("database %s: definitions are not compared, for servers of different major versions word them differently", d.target)
		return nil
	}
	if err := d.main.Exec(ctx, pg.NoJIT); err != nil {
		return err
	}
	in, err := d.archive.Chunk(ctx, chunk)
	if err != nil {
		return err
	}
	of := attributes(d)
	skip := func(a pg.Aspect) bool {
		return a.Name == journalSchema || strings.HasPrefix(a.Name, journalSchema+".") || // journal of a restore that created the source
			a.Later() && of[pg.AttrCatalogue] == "" || a.OfOwner() && d.opts.NoOwner || a.OfRights() && (d.opts.NoPrivileges || d.opts.NoOwner)
	}
	n := 0
	err = d.main.CompareAspects(ctx, in, of[pg.AttrCatalogue], journalSchema, skip, func(diff pg.Difference) error {
		if d.sandbox != nil && standsIn(diff) {
			return nil
		}
		if diff.Want == nil && !d.create && of[pg.AttrNoPublic] != "" && diff.OfPublic() {
			return nil // it existed before
		}
		if n++; n > maxDifferences {
			return nil
		}
		return d.failed(&restore.ObjectError{Database: d.target, Object: diff.Object(), Err: fmt.Errorf("%w: %s", ErrDiffers, diff)})
	})
	return errors.Join(err, in.Close())
}

// compareCounts compares tables between which rows may have moved.
func compareCounts(ctx context.Context, s *pg.Session, group []*target) error {
	var counts []string
	var want int64
	for _, t := range group {
		counts = append(counts, "(SELECT count(*) FROM ONLY "+t.sql()+")")
		want += t.Rows
	}
	row, err := s.Row(ctx, "SELECT "+strings.Join(counts, " + "))
	if err != nil {
		return err
	}
	if got := pg.Number(row[0]); got != want {
		return fmt.Errorf("%w: they have %d rows instead of %d", ErrDiffers, got, want)
	}
	return nil
}

// ErrDiffers says that a restored table differs from the manifest.
var ErrDiffers = restore.ErrDiffers

// compare compares one table with the manifest.
func (t *target) compare(ctx context.Context, s *pg.Session) error {
	from := t.sql()
	if len(t.Columns) > 0 {
		from += " (" + pg.Idents(t.Columns) + ")"
	}
	if condition := t.Attributes["condition"]; condition != "" {
		from = "(SELECT " + pg.Idents(t.Columns) + " FROM ONLY " + t.sql() + " " + condition + ")"
	}
	sql := "COPY " + from + " TO STDOUT"
	sum := pg.RowSum{Binary: strings.HasPrefix(t.Checksum, "xxh64-binary:")}
	sink := func([]byte) error { return nil }
	if t.Checksum != "" {
		sink = sum.Write
	}
	if sum.Binary {
		sql += " (FORMAT binary)"
	}
	rows, err := s.CopyOut(ctx, sql, sink)
	if err != nil {
		return err
	}
	if rows != t.Rows {
		return fmt.Errorf("%w: it has %d rows instead of %d", ErrDiffers, rows, t.Rows)
	}
	if t.Checksum == "" {
		return nil
	}
	if err := sum.End(); err != nil {
		return err
	}
	if got := sum.String(); got != t.Checksum {
		return fmt.Errorf("%w: its checksum is %s instead of %s", ErrDiffers, got, t.Checksum)
	}
	return nil
}

// finish creates event triggers and the like, which would observe the restore, drops the journal,
// and makes everything durable, in one transaction.
func (d *database) finish(ctx context.Context) (err error) {
	end := d.Phase("finish")
	defer end()
	if d.main, err = d.connect(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.main.Close()) }()
	last := d.of("", pg.PassLast)
	sql := []string{dropJournal}
	for _, e := range last {
		create, owner := d.entrySQL(e)
		sql = append(append(sql, create...), owner...)
	}
	err = d.exec(ctx, d.main, strings.Join(sql, ";\n"))
	if err == nil || len(last) == 0 || d.main.Broken() != nil || d.opts.Stop {
		return err
	}
	if err := d.main.Exec(ctx, dropJournal); err != nil {
		return err
	}
	for _, e := range last {
		create, owner := d.entrySQL(e)
		sql := strings.Join(append(create, owner...), ";\n")
		if err := d.exec(ctx, d.main, sql); err != nil {
			if err := d.failed(d.object(e.Name(), sql, err)); err != nil {
				return err
			}
		}
	}
	return nil
}
