package wal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/wire/pgrepl"
)

// Check returns an error if the archived log does not lead from a base backup to the target; a
// server would notice only at the end of its recovery. For a target time it reads the log, the
// newest segment first, until it finds a transaction that ended after that time.
func (t Target) Check(ctx context.Context, storage archive.Storage, m *archive.Manifest, keys archive.ReadOptions) error {
	if t.LSN == 0 && t.Time.IsZero() && t.Name == "" {
		return nil
	}
	b, err := readBase(m)
	if err != nil {
		return err
	}
	s, err := openStore(ctx, storage, m.Server.SystemID)
	if errors.Is(err, errNoLog) {
		return nil // RestoreDir reports that
	}
	if err != nil {
		return err
	}
	if keys, err = s.keys(ctx, keys); err != nil {
		return err
	}
	segments, files, err := s.list(ctx)
	if err != nil {
		return err
	}
	known, err := s.ancestors(ctx, files, keys)
	if err != nil {
		return err
	}
	if why, err := t.on(m.Summary, known); err != nil || why != "" {
		return errors.Join(err, fmt.Errorf("the target cannot be reached: %s", why))
	}
	timeline, err := t.timeline(m.Summary, known)
	if err != nil {
		return err
	}
	c := s.chainTo(b, timeline, segments, known)
	first, reached, err := c.reach(ctx)
	if err != nil {
		return err
	}
	end := fmt.Sprintf("the log that is archived after backup %s ends at %s on timeline %d", m.ID, reached, timeline)
	switch {
	case t.LSN >= reached: // a server stops at the first record that begins at the target or later
		return fmt.Errorf("the target cannot be reached: %s, and nothing at or after %s is in it; without a target all of it is replayed", end, t.LSN)
	case t.LSN != 0:
		return nil
	case t.Name != "":
		return c.named(ctx, first, t.Name, end, keys)
	}
	return c.timed(ctx, first, reached, t, end, keys)
}

// first returns the number of the first segment that a server reads from the archive.
func (c *chain) first() uint64 {
	size := uint64(c.store.cluster.SegmentBytes)
	first := uint64(c.base.Start) / size
	if c.base.withLog && c.object(first) == "" { // the backup holds this log itself
		first = uint64(c.base.Stop-1)/size + 1
	}
	return first
}

// reach returns the number of the first segment of a chain, and the position up to which its
// log can be replayed without a gap.
func (c *chain) reach(ctx context.Context) (first uint64, reached pgrepl.LSN, err error) {
	size := c.store.cluster.SegmentBytes
	first = c.first()
	reached = pgrepl.LSN(first * uint64(size))
	for number := first; number <= c.last; number++ {
		object := c.object(number)
		if object == "" {
			break
		}
		n, err := c.held(ctx, object)
		if err != nil {
			return 0, 0, err
		}
		g, err := pgrepl.ParseSegment(strings.TrimSuffix(object, partialMark), size)
		if err != nil {
			return 0, 0, err
		}
		if reached = c.end(g, n); reached < g.End() {
			break
		}
	}
	return first, max(reached, c.base.Stop), nil
}

// held returns how many bytes of log an object holds, by its name and its manifest.
func (c *chain) held(ctx context.Context, object string) (int64, error) {
	f, ok := c.store.parse(object + suffix)
	if ok && !f.partial {
		return c.store.cluster.SegmentBytes, nil
	}
	return c.store.length(ctx, object)
}

// named looks for a restore point after a base backup.
func (c *chain) named(ctx context.Context, first uint64, name, end string, keys archive.ReadOptions) error {
	w := window{first: first, end: ^uint64(0)}
	err := w.read(ctx, c, name, keys)
	found := w.from(c.base.Start)
	switch {
	case err != nil && (len(found) == 0 || ctx.Err() != nil):
		return err // a server asks for nothing after the point
	case len(found) == 0:
		return fmt.Errorf("the target cannot be reached: %s, and restore point %q is not in it", end, name)
	case found[0].at < c.base.Stop:
		return fmt.Errorf("the target cannot be reached: restore point %q, at %s, was made while the backup was taken, which is consistent from %s on only", name, found[0], c.base.Stop)
	}
	return nil
}

// timed looks for a transaction that ended after t.Time. A segment that cannot be read is no
// error if an older one has such a transaction: a server does not ask for the later one.
func (c *chain) timed(ctx context.Context, first uint64, reached pgrepl.LSN, t Target, end string, keys archive.ReadOptions) error {
	size := uint64(c.store.cluster.SegmentBytes)
	past := func(r *pointReader) bool {
		return r.newest.After(t.Time) || t.Exclusive && r.newest.Equal(t.Time)
	}
	read := func(r *pointReader, number uint64) error {
		if _, _, err := c.scan(ctx, number, r, keys); err != nil { // a missing segment is one that the backup holds itself
			return fmt.Errorf("look for %s in the log: %w", t.Time.Format(time.RFC3339), err)
		}
		return nil
	}
	last := (uint64(reached) - 1) / size
	var damaged error
	for number := last; number >= first && number <= last; number-- {
		r := &pointReader{}
		if err := read(r, number); err != nil {
			if ctx.Err() != nil {
				return err
			}
			damaged = cmp.Or(damaged, err)
			continue
		}
		if past(r) {
			return nil
		}
	}
	if damaged != nil {
		return damaged
	}
	// The record may cross the end of a segment: read all segments in order.
	r := &pointReader{}
	for number := first; number <= last; number++ {
		if err := read(r, number); err != nil {
			return err
		}
	}
	if past(r) {
		return nil
	}
	newest := "no transaction ends in it"
	if !r.newest.IsZero() {
		newest = "its last transaction ended at " + r.newest.UTC().Format("2006-01-02 15:04:05.999999Z07")
	}
	return fmt.Errorf("the target cannot be reached: %s, and %s; without a target all of it is replayed", end, newest)
}
