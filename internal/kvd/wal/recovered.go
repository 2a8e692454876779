package wal

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
)

// logReader follows a log through its segments: it checks that they belong together, and
// collects the entries and the end of the log.
type logReader struct {
	track   track
	cuts    []cut
	ordinal uint64 // entries and resets so far
	prev    *segment
	clean   bool
	sealed  bool   // prev ends with a seal
	end     int64  // end of prev's rounds without the seal
	chain   uint32 // chain of the last of those rounds
	torn    *Torn
}

// read reads a segment. Only the last one may end anywhere.
func (r *logReader) read(s *segment, f io.ReaderAt, number uint64, id LogID, last bool) error {
	if err := r.join(s, number, id); err != nil {
		return err
	}
	r.prev, r.sealed = s, false
	var d damage
	for round := range s.scan(f, 0, &d) {
		if err := r.follow(s, &round); err != nil {
			return err
		}
		if !r.sealed {
			r.end, r.chain = s.end, s.chain
		}
	}
	if d.read != nil {
		return fmt.Errorf("read %s at %d: %w", s.file, d.offset, d.read)
	}
	what := d.what
	if what == "" {
		what = "the file ends here"
	}
	if s.rounds == 0 {
		return corrupt(s.file, s.end, "%s", what)
	}
	h, at, err := s.later(f)
	if err != nil {
		return err
	}
	if at > 0 {
		return corrupt(s.file, s.end, "%s, but round %d follows at offset %d", what, h.number, at)
	}
	if last && r.sealed {
		return corrupt(segmentName(number+1), 0, "the segment is missing, %s says that it was there", s.file)
	}
	if last {
		return r.finish(s, f, what)
	}
	// The next segment says where this one ends; join compares.
	return nil
}

// join checks that a segment matches its name and follows the previous one.
func (r *logReader) join(s *segment, number uint64, id LogID) error {
	if s.log != id {
		return corrupt(s.file, 0, "it belongs to another log, %s", s.log)
	}
	if s.number != number {
		return corrupt(s.file, 0, "it is segment %d", s.number)
	}
	if r.prev == nil {
		r.track = newTrack(s.lastIndex, s.lastTerm)
		return nil
	}
	if r.end != s.prevEnd || r.chain != s.prevChain {
		return corrupt(r.prev.file, r.end, "its rounds end here, %s says that they end at %d", s.file, s.prevEnd)
	}
	term, _ := r.track.term(r.track.last)
	if r.track.last != s.lastIndex || term != s.lastTerm {
		return corrupt(s.file, 0, "it follows entry %d of term %d, but the last one before it is %d of term %d", s.lastIndex, s.lastTerm, r.track.last, term)
	}
	return nil
}

// follow processes the records of a round.
func (r *logReader) follow(s *segment, round *round) error {
	r.clean = false
	for i := range round.records {
		rec := &round.records[i]
		switch rec.Kind {
		case Entry:
			if err := r.track.check(rec.Index, rec.Term); err != nil {
				return corrupt(s.file, round.offset, "%v", err)
			}
			if rec.Index <= r.track.last {
				r.cuts = append(r.cuts, cut{r.ordinal, rec.Index})
			}
			r.track.add(rec.Index, rec.Term)
			r.ordinal++
		case Reset:
			r.cuts = append(r.cuts, cut{r.ordinal, 0})
			r.track = newTrack(rec.Index, rec.Term)
			r.ordinal++
		case kindClose:
			r.clean = true
		case kindSeal:
			r.sealed = true
		}
	}
	return nil
}

// finish checks whether anything but zeros follows the last round of the last segment, as after
// a torn write. The zeros must be there, since every write of a round includes them: a file that
// has grown beyond its size, and was cut at the end of a round, does not pass for whole.
func (r *logReader) finish(s *segment, f io.ReaderAt, what string) error {
	b := make([]byte, max(0, min(roundHead, s.length-s.end)))
	if err := readFull(f, b, s.end); err != nil {
		return fmt.Errorf("read %s at %d: %w", s.file, s.end, err)
	}
	if len(b) < roundHead || slices.ContainsFunc(b, func(c byte) bool { return c != 0 }) {
		r.torn = &Torn{File: s.file, Offset: s.end, What: what}
	}
	return nil
}

// Records yields all valid records in the order of writing: entries after the snapshot, the
// newest carry and other records since. It reads the disk each time, and may be used until the
// first Release. The caller owns Data, which shares memory with the other records of its round.
// It ends after an error.
func (r *Recovered) Records() iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		alive := newEntryFilter(r)
		for i := range r.segments {
			if !r.stream(&r.segments[i], i == len(r.segments)-1, alive, yield) {
				return
			}
		}
	}
}

// stream yields the valid records of a segment, and reports whether to continue.
func (r *Recovered) stream(known *segment, newest bool, alive *entryFilter, yield func(Record, error) bool) bool {
	s, f, err := readSegment(r.disk, known.file)
	if err != nil {
		yield(Record{}, err)
		return false
	}
	var d damage
	on := true
	for round := range s.scan(f, known.end, &d) {
		for i := range round.records {
			rec := &round.records[i]
			isEntry := rec.Kind == Entry || rec.Kind == Reset
			if isEntry && !alive.entry(rec) || !isEntry && (!newest || rec.Kind > MaxKind) {
				continue
			}
			if on = yield(*rec, nil); !on {
				break
			}
		}
		if !on {
			break
		}
	}
	err = d.read
	if err == nil && on && s.end != known.end {
		err = corrupt(s.file, s.end, "it changed after it was verified: %s", d.what)
	}
	if err := errors.Join(err, f.Close()); err != nil && on {
		yield(Record{}, fmt.Errorf("read %s: %w", s.file, err))
		return false
	}
	return on
}

// entryFilter selects the valid entries.
type entryFilter struct {
	base    uint64 // entries up to this one are in the snapshot
	void    bool   // all other entries are void
	ordinal uint64
	cuts    []cut // the cuts that follow; index is the least index of the cut and all later ones
}

func newEntryFilter(r *Recovered) *entryFilter {
	s := &entryFilter{base: r.Snapshot.Index, void: r.void, cuts: make([]cut, len(r.cuts))}
	copy(s.cuts, r.cuts)
	for i := len(s.cuts) - 2; i >= 0; i-- {
		s.cuts[i].index = min(s.cuts[i].index, s.cuts[i+1].index)
	}
	return s
}

// entry reports whether r, the next Entry or Reset, is a valid entry.
func (s *entryFilter) entry(r *Record) bool {
	n := s.ordinal
	s.ordinal++
	for len(s.cuts) > 0 && s.cuts[0].ordinal <= n {
		s.cuts = s.cuts[1:]
	}
	if r.Kind == Reset || s.void || r.Index <= s.base {
		return false
	}
	return len(s.cuts) == 0 || s.cuts[0].index > r.Index
}
