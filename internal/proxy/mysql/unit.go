package mysql

import (
	"bytes"
	"time"

	"github.com/weirdb/weir/internal/proxy/cache"
	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/proxy/sqlscan/myscan"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// A unit is one command and its answer. It is the smallest thing that can change
// backends. Units stand in a backend's queue in the order in which their bytes
// were sent; the head's client gets the bytes that arrive.
type unit struct {
	kind unitKind
	cmd  byte    // mywire.Com*
	seq  byte    // of the answer's first packet; 0 is 1
	c    *client // who asked; nil for weir's own, and when the client is gone

	// raw is the client's message, packet headers included, of a unit that is
	// kept whole (shared reads, members of lanes). Others are not kept.
	raw   []byte
	row   span        // where raw has the row of an INSERT, in a rows lane
	cs    *clientStmt // of COM_STMT_EXECUTE
	types []byte      // ... of its parameters
	st    *stmt       // of COM_STMT_EXECUTE and COM_STMT_PREPARE
	verb  myscan.Verb
	shape *sight.Shape
	trace *sight.Trace // of a statement that is traced
	sql   string       // where it is to be told

	// What the text says that it does.
	effects myscan.Effect
	change  change
	// collation is that of SET NAMES ... COLLATE.
	collation string
	asks      []string // settings that it sets untold
	retrack   bool     // it sets variables that the server confuses

	at       uint64        // what was sent on its connection before it, in bytes
	queuedAt time.Duration // when the client's message was complete
	early    time.Duration // before that: its client waited for a backend
	lanedAt  time.Duration // of a member of a lane: when it came there
	began    time.Duration // of a member of a group: when that was sent
	took     time.Duration // from when the server began with it to its answer
	bytes    int           // of the answer so far
	wrote    bool          // part of the answer is in the client's output
	park     bool          // the answer is gathered in resp
	resp     []byte        // whole packets, or what has come behind those that have left
	end      int           // where in resp the packet begins that ended the last result
	ok       mywire.OK     // of the last result; its slices are gone
	rows     uint64        // in all results together
	results  int           // ended so far, while the next counts
	chooses  int           // the result with which the client's choice of variables is in force; 0: none
	failed   bool          // the answer ended with an ERR
	code     uint16        // ... with this number
	err      *mywire.Error
	unjudged int  // one more than the number among its client's
	told     told // weir's own: of what the answer told
	toldOf   int  // ... and of how many variables
	overdue  bool // weir ends it, for it has run for too long
	dead     bool // killed or disconnected while it waited
	retry    bool // the answer is withheld: run again
	retries  uint8
	// generated: if an id comes, the server has generated it. murky: an id that
	// comes is perhaps not that of LAST_INSERT_ID(), which perhaps changes
	// without one; unless generated.
	generated, murky bool

	// Running alone: see apart.go.
	core.Turn
	read      bool          // a shared read: has no effects, may run twice
	bounded   bool          // weir bounds its lock waits in this turn
	owned     time.Duration // ... and an end before this is of the client's own bound
	pollAt    time.Duration // when it may be tried in a group
	pollWait  time.Duration
	preempted bool // weir has killed it, to run it again
	movable   bool // on its client's own backend, and could run apart; see locked.go
	hold      bool // the answer is kept in resp until it is whole

	flight   *cache.Flight // the answer is for the cache, too, and held
	refresh  bool          // ... : for nobody else
	stateful bool          // the answer tells of the session, too

	grp  *group        // of a multi-row statement
	done func(u *unit) // weir's own: called when answered, or with u.err set
	// probe: weir's own question after an error, whose answer tells what the error
	// could not.
	probe bool
}

// A span is a part of a unit's raw.
type span struct{ at, end int }

// Left reports whether the client that waited for the answer has left.
func (u *unit) Left() bool { return u.c == nil || u.c.s.Closed || u.dead }

// Queued is when the client's message was complete.
func (u *unit) Queued() time.Duration { return u.queuedAt }

type unitKind uint8

const (
	unitClient unitKind = iota
	unitHidden          // weir's own command
	unitRows            // a multi-row statement for many clients
)

func (l *loop) newUnit(kind unitKind, cmd byte) *unit {
	if n := len(l.units); n > 0 {
		u := l.units[n-1]
		l.units = l.units[:n-1]
		u.kind, u.cmd = kind, cmd
		return u
	}
	return &unit{kind: kind, cmd: cmd}
}

// recycle returns a unit to the free list. Nothing may refer to it any more.
func (l *loop) recycle(u *unit) {
	if len(l.units) >= 4096 {
		return
	}
	raw, resp := u.raw[:0], u.resp[:0]
	if cap(raw) > 16<<10 {
		raw = nil
	}
	if cap(resp) > 16<<10 {
		resp = nil
	}
	*u = unit{raw: raw, resp: resp}
	l.units = append(l.units, u)
}

// again forgets the answer, for a unit that is to be run once more.
func (u *unit) again() {
	u.resp, u.end, u.ok, u.failed, u.code, u.err, u.bytes, u.rows = u.resp[:0], 0, mywire.OK{}, false, 0, nil, 0, 0
	u.park, u.hold, u.preempted = false, false, false
	u.retries++
	u.c.p.Stats.Reruns++
}

// tellsStatus reports whether the answer, if it is no error, has the status flags
// in it.
func (u *unit) tellsStatus() bool {
	return u.cmd != mywire.ComStmtPrepare && u.cmd != mywire.ComStatistics
}

// size is that of the unit's message at most, with types added to it.
func (u *unit) size() int {
	return len(u.raw) + len(u.types)
}

// result reads the rows of a parked answer to COM_QUERY, as text; nil is NULL.
// Only the first result counts.
func (u *unit) result(caps mywire.Caps) [][][]byte {
	p := u.resp
	next := func() []byte {
		n, _, ok := mywire.Peek(p)
		if !ok || len(p) < mywire.HeaderLen+n {
			return nil
		}
		body := p[mywire.HeaderLen : mywire.HeaderLen+n]
		p = p[mywire.HeaderLen+n:]
		return body
	}
	columns, _, ok := mywire.ParseLenenc(next())
	if !ok || columns == 0 || u.failed {
		return nil
	}
	for range columns {
		next()
	}
	if !caps.Has(mywire.CapDeprecateEOF) {
		next()
	}
	var rows [][][]byte
	for {
		body := next()
		if body == nil || mywire.IsEnd(body, caps) {
			return rows
		}
		row, err := mywire.ParseTextRow(bytes.Clone(body), int(columns), nil) // the unit is used again
		if err != nil {
			return nil // the walk has found it whole
		}
		rows = append(rows, row)
	}
}

// firstSeq is the sequence number of the first packet of the unit's answer.
func (u *unit) firstSeq() byte { return max(1, u.seq) }
