package mysql

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weirdb/weir/outbox"
)

// A partition is named after its period, p20060102 or p200601, and bounded by the start of the
// next. Two more hold what is before the first and after the last; Partitions reports them
// as one catch-all.
const (
	catchPast   = "pmin"
	catchFuture = "pmax"
)

// maxPartitions is the most partitions that a conversion creates; older rows go to the
// catch-all. Servers allow 8192.
const maxPartitions = 4000

var partitionNames = map[outbox.Period]string{outbox.Daily: "p20060102", outbox.Monthly: "p200601"}

// partitionName returns the name of the partition that ends at bound.
func partitionName(p outbox.Period, bound time.Time) string {
	return p.Start(bound.Add(-time.Microsecond)).Format(partitionNames[p])
}

// onlyCatchAll reports whether there are only catch-all partitions.
func onlyCatchAll(ps []outbox.Partition) bool {
	return !slices.ContainsFunc(ps, func(p outbox.Partition) bool {
		return !p.CatchAll && p.Name != catchPast && p.Name != catchFuture
	})
}

// periodOf returns the period of partitions, according to their names. If only the catch-alls
// are left, either period would be valid; it returns Daily.
func periodOf(ps []outbox.Partition) (outbox.Period, error) {
	if len(ps) == 0 {
		return outbox.Unpartitioned, nil
	}
	if onlyCatchAll(ps) {
		return outbox.Daily, nil
	}
	for _, period := range []outbox.Period{outbox.Daily, outbox.Monthly} {
		if slices.ContainsFunc(ps, func(p outbox.Partition) bool { return !p.CatchAll && p.Name == partitionName(period, p.To) }) {
			return period, nil
		}
	}
	return outbox.Unpartitioned, fmt.Errorf("its partitions (%s, ...) are neither by day nor by month", ps[0].Name)
}

// bounds returns the ends of the periods from the one that contains from to the one that
// contains to.
func bounds(p outbox.Period, from, to time.Time) []time.Time {
	var out []time.Time
	for at := p.Next(from); ; at = p.Next(at) {
		out = append(out, at)
		if at.After(to) {
			return out
		}
	}
}

// partitionClause returns the PARTITION BY clause, "" without partitions.
func (t *tables) partitionClause(spec outbox.PartitionSpec) string {
	if spec.Period == outbox.Unpartitioned {
		return ""
	}
	from, to := t.now.Add(-spec.Lookback), t.now.Add(spec.Ahead)
	if !t.oldest.IsZero() && t.oldest.Before(from) {
		from = t.oldest
	}
	ends := bounds(spec.Period, from, to)
	ends = ends[max(0, len(ends)-maxPartitions):]
	defs := slices.Concat(
		[]string{boundary(catchPast, spec.Period.Start(ends[0].Add(-time.Microsecond)))},
		definitions(spec.Period, ends),
		[]string{"PARTITION " + catchFuture + " VALUES LESS THAN (MAXVALUE)"})
	return "\nPARTITION BY RANGE COLUMNS (created_at) (\n  " + strings.Join(defs, ",\n  ") + ")"
}

// boundary returns the definition of a partition.
func boundary(name string, end time.Time) string {
	return fmt.Sprintf("PARTITION %s VALUES LESS THAN ('%s')", name, end.Format(time.DateOnly))
}

func definitions(p outbox.Period, bounds []time.Time) []string {
	out := make([]string, len(bounds))
	for i, b := range bounds {
		out[i] = boundary(partitionName(p, b), b)
	}
	return out
}

// partitioning reads and changes partitions in a session.
type partitioning struct {
	*Store
	c *session
	v *server
}

// list reads the partitions of the outbox table in order: pmin first, pmax last. Only
// the latter has CatchAll set.
func (s partitioning) list(ctx context.Context) ([]outbox.Partition, error) {
	rows, err := s.c.QueryContext(ctx, `SELECT PARTITION_NAME, PARTITION_DESCRIPTION, TABLE_ROWS FROM information_schema.PARTITIONS
		WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ? AND PARTITION_NAME IS NOT NULL ORDER BY PARTITION_ORDINAL_POSITION`, s.v.database, s.base)
	if err != nil {
		return nil, fmt.Errorf("read partitions: %w", err)
	}
	defer rows.Close()
	var out []outbox.Partition
	for rows.Next() {
		var p outbox.Partition
		var bound string
		if err := rows.Scan(&p.Name, &bound, &p.Rows); err != nil {
			return nil, fmt.Errorf("read partitions: %w", err)
		}
		if bound == "MAXVALUE" {
			p.CatchAll = true
		} else if p.To, err = parseBound(bound); err != nil {
			return nil, fmt.Errorf("read partition %s: %w", p.Name, err)
		}
		if n := len(out); n > 0 && !p.CatchAll {
			p.From = out[n-1].To
		}
		out = append(out, p)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read partitions: %w", err)
	}
	return out, nil
}

// parseBound parses a bound as the server writes it: a quoted date or datetime.
func parseBound(text string) (time.Time, error) {
	text = strings.Trim(text, "'")
	if len(text) == len(time.DateOnly) {
		return time.Parse(time.DateOnly, text)
	}
	return time.Parse("2006-01-02 15:04:05.999999", text)
}

// Partitions implements [outbox.Partitioner].
func (s *Store) Partitions(ctx context.Context) ([]outbox.Partition, error) {
	var out []outbox.Partition
	err := s.with(ctx, func(c *session) error {
		v, err := s.serverOf(ctx, c)
		if err != nil {
			return err
		}
		s := partitioning{s, c, v}
		ps, err := s.list(ctx)
		if err != nil || len(ps) == 0 {
			return err
		}
		rest := outbox.Partition{Name: catchAllName(ps), CatchAll: true}
		if rest.Rows, err = s.countUpTo(ctx, rest.Name, catchAllCount); err != nil {
			return err
		}
		if rest.HasPending, err = s.hasPending(ctx, rest.Name); err != nil {
			return err
		}
		for _, p := range ps {
			if p.CatchAll || p.Name == catchPast {
				continue
			}
			if p.HasPending, err = s.hasPending(ctx, p.Name); err != nil {
				return err
			}
			out = append(out, p)
		}
		out = append(out, rest)
		return nil
	})
	if err != nil {
		return nil, s.fail("look at the partitions of", err)
	}
	return out, nil
}

// catchAllCount is the most rows of the catch-all that are counted.
const catchAllCount = 1000

// catchAllName returns the names of the catch-all partitions for PARTITION (...).
func catchAllName(ps []outbox.Partition) string {
	if ps[0].Name == catchPast {
		return catchPast + ", " + catchFuture
	}
	return catchFuture
}

func (s partitioning) countUpTo(ctx context.Context, partition string, most int) (n int64, err error) {
	text := s.sql(fmt.Sprintf("SELECT COUNT(*) FROM (SELECT 1 FROM {outbox} PARTITION (%s) LIMIT %d) x", partition, most))
	if err := s.c.QueryRowContext(ctx, text).Scan(&n); err != nil {
		return 0, fmt.Errorf("count rows of partition %s: %w", partition, err)
	}
	return n, nil
}

func (s partitioning) hasPending(ctx context.Context, partition string) (found bool, err error) {
	text := s.sql(fmt.Sprintf("SELECT EXISTS (SELECT 1 FROM {outbox} PARTITION (%s) FORCE INDEX (pending) WHERE status = 0)", partition))
	if err := s.c.QueryRowContext(ctx, text).Scan(&found); err != nil {
		return false, fmt.Errorf("look for pending rows in partition %s: %w", partition, err)
	}
	return found, nil
}

// MaintainPartitions implements [outbox.Partitioner]. It creates partitions by REORGANIZE of
// the partition that covers their period, which moves the rows. It drops a partition under a
// lock that blocks all other sessions and is granted only after all transactions that used
// the table have ended, so that no pending row can still appear in it.
func (s *Store) MaintainPartitions(ctx context.Context, spec outbox.PartitionSpec) (outbox.PartitionReport, error) {
	var report outbox.PartitionReport
	err := s.with(ctx, func(c *session) (err error) {
		v, err := s.serverOf(ctx, c)
		if err != nil {
			return err
		}
		name := v.lockName(s, "migrate")
		got, err := c.lock(ctx, name, 5)
		if err != nil {
			return err
		} else if !got {
			return errors.New("a migration or maintenance is running")
		}
		defer func() { err = errors.Join(err, c.unlock(ctx, name)) }()
		return partitioning{s, c, v}.maintain(ctx, spec, &report)
	})
	if err != nil {
		return report, s.fail("maintain the partitions of", err)
	}
	return report, nil
}

func (s partitioning) maintain(ctx context.Context, spec outbox.PartitionSpec, report *outbox.PartitionReport) error {
	ps, err := s.list(ctx)
	if err != nil {
		return err
	}
	period, err := periodOf(ps)
	switch {
	case err != nil:
		return err
	case period == outbox.Unpartitioned:
		return errors.New("the table is not partitioned: migrate it with layout history and a period")
	case spec.Period != period && !onlyCatchAll(ps):
		return fmt.Errorf("the table is partitioned by %s, not by %s: migrate it with Plan.Convert", period, spec.Period)
	case !ps[len(ps)-1].CatchAll || ps[len(ps)-1].Name != catchFuture:
		return fmt.Errorf("the table's last partition is not %s, the catch-all", catchFuture)
	}
	now, err := s.c.now(ctx)
	if err != nil {
		return err
	}
	for _, r := range reorganisations(ps, spec, now) {
		if err := s.c.execLocking(ctx, s.v, s.sql(r.text)); err != nil {
			return fmt.Errorf("reorganize partition %s: %w", r.source, err)
		}
		report.Created = append(report.Created, r.created...)
	}
	if spec.Keep > 0 {
		for _, p := range ps {
			if p.CatchAll || p.Name == catchPast || p.To.After(now.Add(-spec.Keep)) {
				continue
			}
			dropped, err := s.drop(ctx, p.Name)
			if err != nil {
				return fmt.Errorf("drop partition %s: %w", p.Name, err)
			}
			if dropped {
				report.Dropped = append(report.Dropped, p.Name)
			} else {
				report.Kept = append(report.Kept, p.Name)
			}
		}
	}
	report.CatchAllRows, err = s.countUpTo(ctx, catchAllName(ps), catchAllCount)
	return err
}

// reorganisation is an ALTER TABLE that splits new partitions off another.
type reorganisation struct {
	source, text string
	created      []string
}

// reorganisations returns what creates the missing partitions from now-Lookback to now+Ahead,
// and back to the end of the last partition: otherwise one partition would span that time.
func reorganisations(ps []outbox.Partition, spec outbox.PartitionSpec, now time.Time) []reorganisation {
	from := now.Add(-spec.Lookback)
	if spec.Keep > 0 && now.Add(-spec.Keep).After(from) {
		from = now.Add(-spec.Keep) // older ones would be dropped at once
	}
	if n := len(ps); n > 1 && ps[n-2].To.Before(from) {
		from = ps[n-2].To
	}
	missing := make([][]time.Time, len(ps)) // by the partition that covers them
	for _, b := range bounds(spec.Period, from, now.Add(spec.Ahead)) {
		i := slices.IndexFunc(ps, func(p outbox.Partition) bool { return p.CatchAll || !p.To.Before(b) })
		if ps[i].CatchAll || ps[i].Name == catchPast || !ps[i].To.Equal(b) {
			missing[i] = append(missing[i], b)
		}
	}
	var out []reorganisation
	for i, bs := range missing {
		if len(bs) == 0 {
			continue
		}
		r := reorganisation{source: ps[i].Name}
		for _, b := range bs {
			r.created = append(r.created, partitionName(spec.Period, b))
		}
		defs := definitions(spec.Period, bs)
		switch {
		case ps[i].CatchAll:
			defs = append(defs, "PARTITION "+catchFuture+" VALUES LESS THAN (MAXVALUE)")
		case ps[i].Name == catchPast:
			defs = slices.Insert(defs, 0, boundary(catchPast, spec.Period.Start(bs[0].Add(-time.Microsecond))))
		default:
			defs = append(defs, boundary(ps[i].Name, ps[i].To))
		}
		r.text = fmt.Sprintf("ALTER TABLE {outbox} REORGANIZE PARTITION %s INTO (\n  %s)", quote(ps[i].Name), strings.Join(defs, ",\n  "))
		out = append(out, r)
	}
	return out
}

// drop drops a partition unless it has pending rows.
func (s partitioning) drop(ctx context.Context, name string) (dropped bool, err error) {
	// First without the lock: that decides most cases, and no session has to wait.
	if pending, err := s.hasPending(ctx, name); err != nil || pending {
		return false, err
	}
	if err := s.c.execLocking(ctx, s.v, s.sql("LOCK TABLES {outbox} WRITE")); err != nil {
		return false, err
	}
	defer func() {
		if e := s.c.exec(ctx, "UNLOCK TABLES"); e != nil {
			s.c.discard()
			err = errors.Join(err, e)
		}
	}()
	if pending, err := s.hasPending(ctx, name); err != nil || pending {
		return false, err
	}
	if err := s.c.exec(ctx, s.sql("ALTER TABLE {outbox} DROP PARTITION "+quote(name))); err != nil {
		return false, err
	}
	return true, nil
}
