package wal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/wire/pgrepl"
)

// A Range is a sequence of segments of one timeline without a gap.
type Range struct {
	SystemID string `json:"system_id"` // identifier of the cluster
	Timeline uint32 `json:"timeline"`  // of all its files
	First    string `json:"first"`     // name of the first file
	Last     string `json:"last"`      // name of the last file
	// Start is the position at which the range begins. If Partial is true, the log ends before
	// End.
	Start   string `json:"start"`
	End     string `json:"end"`               // position of its end
	Partial bool   `json:"partial,omitempty"` // the last file is not complete
	Files   int    `json:"files"`             // number of files
	Bytes   int64  `json:"bytes"`             // as stored
}

// String describes the range in one line of a list.
func (r Range) String() string {
	partial := ""
	if r.Partial {
		partial = ", the last one not complete"
	}
	return fmt.Sprintf("of cluster %s, timeline %d, %s to %s: %d files%s", r.SystemID, r.Timeline, r.Start, r.End, r.Files, partial)
}

// Ranges returns the ranges of archived log of all clusters in a storage.
func Ranges(ctx context.Context, storage archive.Storage) ([]Range, error) {
	var all []Range
	for o, err := range storage.List(ctx, root, false) {
		if err != nil {
			return nil, fmt.Errorf("list logs: %w", err)
		}
		system, isDir := strings.CutSuffix(strings.TrimPrefix(o.Name, root), "/")
		if !isDir || !validSystem(system) {
			continue
		}
		s, err := openStore(ctx, storage, system)
		if errors.Is(err, errNoLog) {
			continue // a receiver is just creating it
		}
		if err != nil {
			return nil, err
		}
		segments, _, err := s.list(ctx)
		if err != nil {
			return nil, err
		}
		all = append(all, s.ranges(segments)...)
	}
	return all, nil
}

// ranges joins segments, which are sorted by name, into ranges.
func (s *store) ranges(segments []file) []Range {
	var all []Range
	var last *file
	for i, f := range segments {
		next := last == nil || f.segment.Timeline != last.segment.Timeline || f.segment.Number > last.segment.Number+1
		if !next && f.segment == last.segment {
			continue // the partial copy of a segment that is also there as a whole
		}
		last = &segments[i]
		if next {
			all = append(all, Range{
				SystemID: s.cluster.SystemID, Timeline: f.segment.Timeline,
				First: f.segment.Name(), Start: f.segment.Start().String(),
			})
		}
		r := &all[len(all)-1]
		r.Last, r.End, r.Partial = f.segment.Name(), f.segment.End().String(), f.partial
		r.Files++
		r.Bytes += f.bytes
	}
	return all
}

// Fetch writes the file of the log that a server asks for to w. It fills up the newest,
// incomplete segment with zeros, at which a server finds the end of the log. If the file does
// not exist, the error matches archive.ErrNotExist; after any other error the caller must
// discard what was written.
func Fetch(ctx context.Context, storage archive.Storage, system, name string, keys archive.ReadOptions, w io.Writer) error {
	s, err := openStore(ctx, storage, system)
	if err != nil {
		return err
	}
	f, ok := s.parse(name + suffix)
	if !ok || f.partial {
		return fmt.Errorf("fetch %s: %w", name, archive.ErrNotExist)
	}
	if keys, err = s.keys(ctx, keys); err != nil {
		return err
	}
	n, err := s.get(ctx, name, keys, w)
	if f.history {
		return err
	}
	if errors.Is(err, archive.ErrNotExist) {
		n, err = s.get(ctx, name+partialMark, keys, w)
		if errors.Is(err, archive.ErrNotExist) { // it may just have been completed
			n, err = s.get(ctx, name, keys, w)
		}
	}
	if err != nil {
		return err
	}
	if n > s.cluster.SegmentBytes {
		return fmt.Errorf("fetch %s: it has %d bytes, more than a segment", name, n)
	}
	if _, err = io.CopyN(w, zeros{}, s.cluster.SegmentBytes-n); err != nil {
		return fmt.Errorf("fill up %s: %w", name, err)
	}
	return nil
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// A Verification is what Verify found.
type Verification struct {
	Files int   `json:"files"` // number of log files that were checked
	Bytes int64 `json:"bytes"` // bytes of log that were read
	// End is the position up to which the base backup can be replayed.
	End      string   `json:"end"`
	Timeline uint32   `json:"timeline"`           // of End
	Problems []string `json:"problems,omitempty"` // what is missing or damaged
}

// OK reports whether nothing is wrong.
func (v *Verification) OK() bool { return len(v.Problems) == 0 }

// Verify reads the log that follows a base backup, along the newest timeline that descends from
// the backup's, and reports what is damaged or missing up to the end of the archived log.
func Verify(ctx context.Context, storage archive.Storage, base *archive.Manifest, keys archive.ReadOptions) (*Verification, error) {
	b, err := readBase(base)
	if err != nil {
		return nil, err
	}
	v := &Verification{End: b.Stop.String(), Timeline: b.StopTimeline}
	s, err := openStore(ctx, storage, base.Server.SystemID)
	if errors.Is(err, errNoLog) {
		if !b.withLog {
			v.Problems = append(v.Problems, "no log is archived, and the base backup holds none: it cannot be started")
		}
		return v, nil
	}
	if err != nil {
		return nil, err
	}
	if keys, err = s.keys(ctx, keys); err != nil {
		return nil, err
	}
	// Read these before the segments are listed: a receiver first archives a segment, and then
	// writes the note.
	ends, problems, err := s.ends(ctx)
	if err != nil {
		return nil, err
	}
	v.Problems = append(v.Problems, problems...)
	c, err := s.chain(ctx, b, keys)
	if err != nil {
		return nil, err
	}
	c.ends = ends
	return v, c.verify(ctx, v, keys)
}

// A chain is the sequence of files that a server would ask for.
type chain struct {
	store   *store
	base    baseInfo
	line    []pgrepl.Ancestor // timelines, and the position at which each ends; 0 for the last
	present map[string]bool
	known   map[uint32]bool // timelines whose history file is archived
	last    uint64          // the highest segment number on these timelines
	newest  uint32          // the newest timeline that has a segment, whether on line or not

	ends map[uint32]pgrepl.LSN // for Verify: how far each timeline was archived, by the notes
}

// chain returns the chain to the newest timeline that descends from the base backup's.
func (s *store) chain(ctx context.Context, b baseInfo, keys archive.ReadOptions) (*chain, error) {
	segments, histories, err := s.list(ctx)
	if err != nil {
		return nil, err
	}
	known, err := s.ancestors(ctx, histories, keys)
	if err != nil {
		return nil, err
	}
	wanted := b.StopTimeline
	for _, h := range known { // in ascending order, so the newest wins
		if leaves(h.line, b.StopTimeline, b.Stop) >= 0 {
			wanted = h.timeline
		}
	}
	return s.chainTo(b, wanted, segments, known), nil
}

// chainTo returns the chain to the timeline wanted, which descends from the base backup's.
func (s *store) chainTo(b baseInfo, wanted uint32, segments []file, known []history) *chain {
	c := &chain{store: s, base: b, line: []pgrepl.Ancestor{{Timeline: b.StopTimeline}}, present: map[string]bool{}, known: map[uint32]bool{}}
	for _, h := range known {
		c.known[h.timeline] = true
		if from := leaves(h.line, b.StopTimeline, b.Stop); from >= 0 && h.timeline == wanted {
			c.line = append(slices.Clone(h.line[from:]), pgrepl.Ancestor{Timeline: h.timeline})
		}
	}
	for _, f := range segments {
		c.present[f.name] = true
		c.newest = max(c.newest, f.segment.Timeline)
		// Log that an old primary wrote after the next timeline had branched off belongs to no
		// timeline of the chain.
		if slices.ContainsFunc(c.line, func(a pgrepl.Ancestor) bool {
			return a.Timeline == f.segment.Timeline && (a.End == 0 || a.End > f.segment.Start())
		}) {
			c.last = max(c.last, f.segment.Number)
		}
	}
	return c
}

// A history is the list of timelines from which a timeline descends.
type history struct {
	timeline uint32
	line     []pgrepl.Ancestor
}

// ancestors reads the history files, in their order.
func (s *store) ancestors(ctx context.Context, histories []file, keys archive.ReadOptions) ([]history, error) {
	var all []history
	for _, f := range histories {
		var text bytes.Buffer
		if _, err := s.get(ctx, f.name, keys, &text); err != nil {
			return nil, err
		}
		id, err := pgrepl.ParseSegment(strings.TrimSuffix(f.name, historyMark)+strings.Repeat("0", 16), s.cluster.SegmentBytes)
		if err != nil {
			return nil, err
		}
		line, err := pgrepl.History{Timeline: id.Timeline, Name: f.name, Content: text.Bytes()}.Ancestors()
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", f.name, err)
		}
		all = append(all, history{id.Timeline, line})
	}
	return all, nil
}

// leaves returns the index of a backup's timeline in line, or -1 if the backup is not on it: a
// timeline that ends before the backup does leads elsewhere.
func leaves(line []pgrepl.Ancestor, timeline uint32, stop pgrepl.LSN) int {
	return slices.IndexFunc(line, func(a pgrepl.Ancestor) bool { return a.Timeline == timeline && a.End >= stop })
}

// candidates returns the names of the files that can hold a segment, the best first: the file
// of a newer timeline has a copy of what the older one had of the segment.
func (c *chain) candidates(number uint64) []string {
	var names []string
	begin := pgrepl.LSN(0)
	for _, a := range c.line {
		g := pgrepl.Segment{Timeline: a.Timeline, Number: number, Size: c.store.cluster.SegmentBytes}
		if begin < g.End() && (a.End == 0 || a.End > g.Start()) {
			names = append([]string{g.Name(), g.Name() + partialMark}, names...)
		}
		begin = a.End
	}
	return names
}

// object returns the best file that holds a segment, or "".
func (c *chain) object(number uint64) string {
	for _, n := range c.candidates(number) {
		if c.present[n] {
			return n
		}
	}
	return ""
}

// end returns the position at which the chain's part of a segment file of n bytes ends: what an
// old primary wrote after the next timeline had branched off is not part of the chain.
func (c *chain) end(g pgrepl.Segment, n int64) pgrepl.LSN {
	return min(g.Start()+pgrepl.LSN(n), c.left(g.Timeline))
}

// left returns the position at which the chain leaves a timeline; the maximum for the last one.
func (c *chain) left(timeline uint32) pgrepl.LSN {
	for _, a := range c.line {
		if a.Timeline == timeline && a.End != 0 {
			return a.End
		}
	}
	return ^pgrepl.LSN(0)
}

// scan writes a segment to r and returns where its log ends. there is false if no file holds
// the segment.
func (c *chain) scan(ctx context.Context, number uint64, r *pointReader, keys archive.ReadOptions) (end pgrepl.LSN, there bool, err error) {
	object := c.object(number)
	if object == "" {
		return 0, false, nil
	}
	g, err := pgrepl.ParseSegment(strings.TrimSuffix(object, partialMark), c.store.cluster.SegmentBytes)
	if err != nil {
		return 0, false, err
	}
	r.begin(g.Start(), c.left(g.Timeline))
	n, err := c.store.get(ctx, object, keys, r)
	return c.end(g, n), err == nil, err
}

// verify reads the whole chain.
func (c *chain) verify(ctx context.Context, v *Verification, keys archive.ReadOptions) error {
	size := c.store.cluster.SegmentBytes
	number := uint64(c.base.Start) / uint64(size)
	if c.base.withLog { // the backup has the log up to the end of the segment in which it ended
		number = uint64(c.base.Stop-1)/uint64(size) + 1
	}
	reached := pgrepl.LSN(number * uint64(size))
	missing := uint64(0)
	for ; number <= c.last; number++ {
		name := c.object(number)
		if name == "" {
			missing++
			continue
		}
		if missing > 0 {
			c.gap(v, pgrepl.LSN((number-missing)*uint64(size)), pgrepl.LSN(number*uint64(size)))
			missing = 0
		}
		n, err := c.store.get(ctx, name, keys, io.Discard)
		if ctx.Err() != nil || errors.Is(err, archive.ErrNoKey) || errors.Is(err, archive.ErrWrongKey) {
			return err
		}
		v.Files++
		v.Bytes += n
		if err != nil {
			v.Problems = append(v.Problems, err.Error())
			continue
		}
		if len(v.Problems) == 0 {
			bare := strings.TrimSuffix(name, partialMark)
			g, err := pgrepl.ParseSegment(bare, size)
			if err != nil {
				return err
			}
			reached = c.end(g, n)
			v.End, v.Timeline = reached.String(), g.Timeline
			switch {
			case bare == name && n != size:
				v.Problems = append(v.Problems, fmt.Sprintf("%s has %d bytes instead of %d", name, n, size))
			case reached < g.End() && number < c.last: // its end was never received, but the segments that follow were
				c.gap(v, reached, g.End())
			}
		}
	}
	switch {
	case len(v.Problems) > 0: // the replay ends before that anyway
	case !c.base.withLog && reached < c.base.Stop:
		v.End = reached.String()
		c.gap(v, reached, c.base.Stop)
	default:
		c.whole(v, reached)
		return nil
	}
	return nil
}

// gap reports that log is missing. A backup without its own log that cannot be replayed up to
// its end is useless.
func (c *chain) gap(v *Verification, from, to pgrepl.LSN) {
	what := fmt.Sprintf("the backup can be replayed up to %s only", from)
	if !c.base.withLog && from < c.base.Stop {
		what = fmt.Sprintf("the backup cannot be started, which needs the log up to %s", c.base.Stop)
	}
	size := pgrepl.LSN(c.store.cluster.SegmentBytes)
	v.Problems = append(v.Problems, fmt.Sprintf("log is missing from %s to %s, %d segments: %s", from, to, (to-1)/size-from/size+1, what))
}

// Prune removes segments that are older than the oldest of bases, the base backups that are
// kept, and returns their number; with dry it only counts them. It removes nothing of a cluster
// that has no base backup, and keeps history files, which are small.
func Prune(ctx context.Context, repo *archive.Repository, bases []archive.Entry, dry bool) (int, error) {
	oldest := map[string]pgrepl.LSN{}
	for _, e := range bases {
		b, err := baseOf(ctx, repo, e.ID, archive.ReadOptions{})
		if err != nil {
			return 0, fmt.Errorf("prune log: %w", err)
		}
		if at, ok := oldest[e.Summary.Server.SystemID]; !ok || b.Start < at {
			oldest[e.Summary.Server.SystemID] = b.Start
		}
	}
	count := 0
	for system, start := range oldest {
		s, err := openStore(ctx, repo.Storage(), system)
		if errors.Is(err, errNoLog) {
			continue
		}
		if err != nil {
			return count, err
		}
		segments, _, err := s.list(ctx)
		if err != nil {
			return count, err
		}
		var gone []string
		for _, f := range segments {
			if f.segment.End() <= start {
				gone = append(gone, s.dir()+f.name+suffix)
			}
		}
		if !dry && len(gone) > 0 {
			if err := s.storage.Delete(ctx, gone...); err != nil {
				return count, fmt.Errorf("prune log: %w", err)
			}
		}
		count += len(gone)
	}
	return count, nil
}

// baseOf reads the manifest of a base backup.
func baseOf(ctx context.Context, repo *archive.Repository, id string, keys archive.ReadOptions) (_ baseInfo, err error) {
	r, err := archive.Open(ctx, repo, id, keys)
	if err != nil {
		return baseInfo{}, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	return readBase(r.Manifest())
}
