package wal

import "fmt"

// track knows which entries the log has and their terms. It decides what may be appended: the
// log has no gaps, and terms never decrease.
type track struct {
	first uint64 // earlier entries are unknown: a snapshot has them
	last  uint64 // first-1 if there is none
	runs  []run  // by index; the first one begins at first-1 or first
}

// run says that the entries from index up to the next run have this term.
type run struct{ index, term uint64 }

// newTrack returns the track of a log without entries that follows the entry index of term: the
// end of a snapshot, or
func newTrack(index, term uint64) track {
	return track{first: index + 1, last: index, runs: []run{{index, term}}}
}

// term returns the term of entry index, which is known from first-1 up to last.
func (t *track) term(index uint64) (uint64, bool) {
	if index > t.last {
		return 0, false
	}
	for i := len(t.runs) - 1; i >= 0; i-- {
		if t.runs[i].index <= index {
			return t.runs[i].term, true
		}
	}
	return 0, false
}

// check returns an error if an entry cannot follow.
func (t *track) check(index, term uint64) error {
	if index == 0 {
		return fmt.Errorf("entries count from 1")
	}
	if index > t.last+1 {
		return fmt.Errorf("entry %d follows entry %d: those between are missing", index, t.last)
	}
	if before, known := t.term(index - 1); known && term < before {
		return fmt.Errorf("entry %d of term %d follows one of term %d", index, term, before)
	}
	return nil
}

// add adds an entry that check permits; existing ones from index on are dropped.
func (t *track) add(index, term uint64) {
	for len(t.runs) > 0 && t.runs[len(t.runs)-1].index >= index {
		t.runs = t.runs[:len(t.runs)-1]
	}
	if len(t.runs) == 0 || t.runs[len(t.runs)-1].term != term {
		t.runs = append(t.runs, run{index, term})
	}
	t.first = min(t.first, index)
	t.last = index
}

// forget drops the entries below index, except for index-1.
func (t *track) forget(index uint64) {
	if index <= t.first || index > t.last+1 {
		return
	}
	keep := 0
	for keep+1 < len(t.runs) && t.runs[keep+1].index <= index-1 {
		keep++
	}
	t.runs = t.runs[keep:]
	t.runs[0].index = max(t.runs[0].index, index-1)
	t.first = index
}

// reaches reports whether the log continues from a snapshot at index without a gap. It does if
// it ends before: then the snapshot replaces it.
func (t *track) reaches(index uint64) bool {
	return t.last <= index || t.first <= index+1
}

// , 0.
