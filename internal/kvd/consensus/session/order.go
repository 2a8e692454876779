package session

import "github.com/weirdb/weir/internal/kvd/wire"

// Overtakes reports whether a read in flight could see the write c, which is issued after it,
// because both touch a key. Callers whose reads must not see later writes hold the write back
// until the read is answered.
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

// recycleMost is the capacity of the largest slice that is reused.
const recycleMost = 128

// Recycle lets the session reuse the slices of an earlier Take. The caller keeps none of them,
// but may keep what their elements refer to.
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
