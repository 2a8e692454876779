package proxy

import (
	"time"

	"github.com/weirdb/weir/internal/sqlscan"
)

// A shape is what all statements of one fingerprint have in common: what weir
// learned of their cost, and the counters that are reported for them.
type shape struct {
	fp   uint64
	text string // normalised, cut for display
	verb sqlscan.Verb

	runs  uint64 // answered, by any path
	seen  uint64 // answers that cost and bytes were learned from
	cost  time.Duration
	bytes float64 // of one result

	// Write grouping.
	grouped uint64 // of runs: those answered as members of a group
	errors  uint64
}

// Learning constants. A statement's cost falls fast and rises slowly, so that
// a burst of load on the machine, which makes everything slow, does not brand
// a cheap statement; a statement that is slow by itself stays above.
const (
	costFall = 0.25
	costRise = 0.05
	// slowCost is the cost from which a statement gets a backend of its
	// own: at it, one statement would delay those behind it by a
	// noticeable part of a network round trip.
	slowCost = 2 * time.Millisecond
	// bigResult is the result size from which a statement gets a backend of
	// its own: about what one read() of a socket carries.
	bigResult = 64 << 10
)

// observe learns from one answer.
func (s *shape) observe(took time.Duration, bytes int) {
	s.seen++
	if s.seen == 1 {
		s.cost, s.bytes = took, float64(bytes)
		return
	}
	k := costRise
	if took < s.cost {
		k = costFall
	}
	s.cost += time.Duration(k * float64(took-s.cost))
	s.bytes += 0.1 * (float64(bytes) - s.bytes)
}

// sharable tells whether a read of this shape may be pipelined with those of
// other clients: it is known, cheap and short.
func (s *shape) sharable() bool {
	return s.seen > 0 && s.cost < slowCost && s.bytes < bigResult
}

// shapes is a loop's table of shapes, bounded: past maxShapes new fingerprints
// share one overflow entry, which is never sharable and is reported as "other".
type shapes struct {
	byFP  map[uint64]*shape
	other *shape
}

const (
	maxShapes     = 10000
	shapeTextSize = 160 // bytes of normalised text that reports show
)

func newShapes() *shapes {
	return &shapes{byFP: make(map[uint64]*shape), other: &shape{text: "other"}}
}

func (t *shapes) of(sql string, verb sqlscan.Verb) *shape {
	fp := sqlscan.Fingerprint(sql)
	if s := t.byFP[fp]; s != nil {
		return s
	}
	if len(t.byFP) >= maxShapes {
		return t.other
	}
	s := &shape{fp: fp, text: sqlscan.Normalize(sql, shapeTextSize), verb: verb}
	t.byFP[fp] = s
	return s
}
