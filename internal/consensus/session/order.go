package session

import "github.com/weirdb/weir/internal/kvwire"

// Overtakes reports whether the write c could be seen by a read that was issued
// before it and is still under way, because both touch a key. Who needs reads to
// see nothing that was issued after them waits with such a write until the read
// has its answer.
func (s *Session) Overtakes(c *kvwire.Command) bool {
	var foot kvwire.Footprint
	known := false
	for _, o := range s.ops {
		if o.kind != strongRead && o.kind != weakRead {
			continue
		}
		if !known {
			c.Footprint(&foot)
			known = true
		}
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
