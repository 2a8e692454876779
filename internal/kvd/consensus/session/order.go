package session

import "github.com/weirdb/weir/internal/kvd/wire"

// Overtakes reports whether the write c could be seen by a read that was issued
// before it and is still under way, because both touch a key. Who needs reads to
// see nothing that was issued after them waits with such a write until the read
// has its answer.
func (s *Session) Overtakes(c *wire.Command) bool {
	if s.byReads.count == 0 {
		return false
	}
	var foot wire.Footprint
	c.Footprint(&foot)
	if touched, known := s.byReads.by(&foot); known {
		return touched > 0
	}
	for o := range s.reads() {
		if o.foot.Overlaps(&foot) {
			return true
		}
	}
	return false
}

// recycleMost is how many elements a slice that is used again may hold.
const recycleMost = 128

// Recycle lets the session use the memory of an earlier Take's slices again. The
// caller keeps nothing of them, except for what their elements refer to.
func (s *Session) Recycle(sends []Send, outcomes []Outcome) {
	if s.sends == nil && cap(sends) <= recycleMost {
		clear(sends)
		s.sends = sends[:0]
	}
	if s.outcomes == nil && cap(outcomes) <= recycleMost {
		clear(outcomes)
		s.outcomes = outcomes[:0]
	}
}
