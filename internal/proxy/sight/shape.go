package sight

import (
	"strconv"
	"strings"
	"time"
)

// A Shape is what all statements of one fingerprint have in common: what weir
// learned of their cost, and the counters that are reported for them.
type Shape struct {
	Text string // normalised, cut for display
	Verb string

	Fingerprint uint64
	// File and Line are where in a program the statement came from last, by its hints;
	// "" and 0 if it has none.
	File string
	Line int

	Runs    uint64 // answered, by any path
	Grouped uint64 // of Runs: those answered as members of a group
	Errors  uint64
	ShapeCounts

	stalled time.Duration // until then: see Stall
	alone   bool          // a read that leaves what its client may ask for: not beside those of others
	apart   bool          // a write of which that is not known by row: not as a row among others
	seen    uint64        // answers that cost and bytes were learned from
	cost    time.Duration
	bytes   float64 // of one result
}

// ShapeCounts are what a Shape counts beside the statements.
type ShapeCounts struct {
	Shared uint64 // of the statements: those that ran beside those of others
	Pinned uint64 // ... : those of sessions that kept their connection
	Rows   uint64 // returned, or changed
	Total  time.Duration
	Max    time.Duration
	Server time.Duration // of Total: from when the server began; the rest is waits
}

// add adds the counts of other loops.
func (c *ShapeCounts) add(o ShapeCounts) {
	c.Shared += o.Shared
	c.Pinned += o.Pinned
	c.Rows += o.Rows
	c.Total += o.Total
	c.Max = max(c.Max, o.Max)
	c.Server += o.Server
}

// A Path is how a statement got to the server.
type Path uint8

// The paths.
const (
	Alone   Path = iota // on a connection of its own for the time
	Shared              // beside those of other clients
	Grouped             // as a member of a group
	Cached              // not at all: the cache had the answer
)

func (p Path) String() string { return [...]string{"alone", "shared", "grouped", "cached"}[p] }

// A Run is one statement that was answered.
type Run struct {
	Took   time.Duration // from the complete message to the answer
	Server time.Duration // of it: from when the server began
	Rows   uint64        // returned, or changed
	Path   Path
	Pinned bool // its session keeps its connection
	Failed bool
}

// maxFile bounds the name of a file that is kept of a statement, in bytes.
const maxFile = 200

// From notes where in a program a statement of the shape came from, if its hints tell.
func (s *Shape) From(file string, line int) {
	if s == nil || file == "" && line == 0 || s.Text == "other" {
		return
	}
	if file = file[:min(len(file), maxFile)]; s.File != file || s.Line != line {
		s.File, s.Line = strings.Clone(file), line
	}
}

// Site is where a statement of the shape came from last, as file:line; "" if no hint tells.
func (s *Shape) Site() string {
	if s.Line == 0 {
		return s.File
	}
	return s.File + ":" + strconv.Itoa(s.Line)
}

// Wait is how long the server had not begun with it.
func (r *Run) Wait() time.Duration { return max(0, r.Took-r.Server) }

// Ran counts a statement of the shape.
func (s *Shape) Ran(r *Run) {
	s.Runs++
	if r.Path == Shared {
		s.Shared++
	}
	if r.Pinned {
		s.Pinned++
	}
	s.Rows += r.Rows
	s.Total += r.Took
	s.Max = max(s.Max, r.Took)
	s.Server += min(r.Server, r.Took)
}

// unproven stands for the texts of statements that never succeeded.
const unproven = "statement that never succeeded"

// Shown is the text for reports. Literals are masked in it, names are not, and what
// is written where a name belongs may be anything: a password without quotes, or in
// those of names. Names are shown when the server has found what they name.
func (s *Shape) Shown() string {
	if s.Runs > s.Errors {
		return s.Text
	}
	return unproven
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

// Observe learns from one answer.
func (s *Shape) Observe(took time.Duration, bytes int) {
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

// Cost is what one of the shape takes the server, as learned so far.
func (s *Shape) Cost() time.Duration { return s.cost }

// Sharable reports whether a read of this shape may be pipelined with those of
// other clients: it is known, cheap and short.
func (s *Shape) Sharable() bool {
	return !s.alone && s.seen > 0 && s.cost < slowCost && s.bytes < bigResult
}

// Long reports whether answers of the shape are so long that they are not kept until
// those of a group are given.
func (s *Shape) Long() bool { return s.seen > 0 && s.bytes >= bigResult }

// Stall keeps the shape out of shared pipelines until the given moment, because
// one of it holds up those behind it.
func (s *Shape) Stall(until time.Duration) { s.stalled = max(s.stalled, until) }

// Flow ends what Stall began: one of the shape was answered as fast as ever.
func (s *Shape) Flow() { s.stalled = 0 }

// Stalled reports whether Stall holds.
func (s *Shape) Stalled(now time.Duration) bool { return now < s.stalled }

// KeepAlone has reads of this shape run on a connection of their client's own, so that
// what they leave there can be asked for.
func (s *Shape) KeepAlone() { s.alone = true }

// KeptAlone reports whether KeepAlone was called.
func (s *Shape) KeptAlone() bool { return s.alone }

// KeepApart has writes of this shape no longer made rows of one statement.
func (s *Shape) KeepApart() { s.apart = true }

// Groupable reports whether writes of this shape may become rows of one statement.
func (s *Shape) Groupable() bool { return !s.apart }

// Shapes is a loop's table of shapes, bounded: past MaxShapes new fingerprints
// share one overflow entry, which is never sharable and is reported as "other".
type Shapes struct {
	byFP  map[uint64]*Shape
	other *Shape
}

const (
	// MaxShapes bounds what is remembered by statement.
	MaxShapes     = 10000
	shapeTextSize = 160 // bytes of normalised text that reports show
)

// NewShapes returns an empty table.
func NewShapes() *Shapes {
	return &Shapes{byFP: make(map[uint64]*Shape), other: &Shape{Text: "other"}}
}

// Other is the overflow entry.
func (t *Shapes) Other() *Shape { return t.other }

// Of returns the shape with the given fingerprint. A new one is described by
// verb and normalize, which cuts its text to the given number of bytes.
func (t *Shapes) Of(fp uint64, verb string, normalize func(limit int) string) *Shape {
	if s := t.byFP[fp]; s != nil {
		return s
	}
	if len(t.byFP) >= MaxShapes {
		return t.other
	}
	s := &Shape{Text: normalize(shapeTextSize), Verb: verb, Fingerprint: fp}
	t.byFP[fp] = s
	return s
}
