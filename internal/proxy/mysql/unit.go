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

// A unit is one command and its answer, the smallest amount of work that can change backends. A
// backend's queue holds units in the order in which their bytes were sent; the client of the
// head gets the bytes that arrive.
type unit struct {
	kind unitKind
	cmd  byte    // mywire.Com*
	seq  byte    // sequence number of the answer's first packet; 0 means 1
	c    *client // whose command it is; nil for weir's own, and when the client has left

	// raw is the client's message with its packet headers, for units that are kept whole
	// (shared reads, members of lanes). It is empty for others.
	raw   []byte
	row   span        // where raw has the row of an INSERT, in a rows lane
	cs    *clientStmt // of COM_STMT_EXECUTE
	types []byte      // ... of its parameters
	st    *stmt       // of COM_STMT_EXECUTE and COM_STMT_PREPARE
	verb  myscan.Verb
	shape *sight.Shape
	trace *sight.Trace // of a traced statement
	sql   string       // the text of its slow-log entry or trace

	// The effects that the text shows.
	effects myscan.Effect
	change  change
	// collation is that of SET NAMES ... COLLATE.
	collation string
	asks      []string // variables that it sets and whose changes the server does not report
	retrack   bool     // it sets variables that the server confuses

	at           uint64        // bytes sent on its connection before it
	queuedAt     time.Duration // when the client's message was complete
	early        time.Duration // time before that in which its client waited for a backend
	lanedAt      time.Duration // for a member of a lane: when it was queued there
	began        time.Duration // for a member of a group: when the group was sent
	took         time.Duration // time from the server's start on it to its answer
	bytes        int           // of the answer so far
	wrote        bool          // part of the answer is in the client's output
	park         bool          // the answer is collected in resp
	resp         []byte        // whole packets, or those after the ones already sent
	end          int           // offset in resp of the packet that ended the last result
	ok           mywire.OK     // of the last result; its slices are nil
	rows         uint64        // in all results
	results      int           // results ended so far, counted while chooses is set
	chooses      int           // the result after which the client's choice of tracked variables applies; 0: none
	failed       bool          // the answer ended with an ERR
	code         uint16        // ... with this number
	err          *mywire.Error
	unjudged     int            // one more than its position among its client's unjudged statements; 0: none
	reported     trackedChanges // weir's own: changes that the answer reports
	reportedVars int            // ... and the number of variables in them
	warned       bool           // one of its results had warnings
	readsTable   bool           // it certainly reads a table; looked at if there were diagnostics before
	overdue      bool           // weir kills it because it has run for too long
	dead         bool           // killed or disconnected while it waited
	retry        bool           // the answer is withheld, and the unit runs again
	retries      uint8
	losses       core.Losses // of connections before any of its bytes were sent
	// generated: the server certainly generated the id in the answer. hidesID: unless
	// generated, the id in the answer may differ from LAST_INSERT_ID(), which may also change
	// if the answer has no id.
	generated, hidesID bool

	// Running apart: see apart.go.
	core.Turn
	read      bool          // a shared read: has no effects, may run twice
	bounded   bool          // weir limits its lock waits in this turn
	owned     time.Duration // ... and a lock timeout before this is due to the client's own limit
	pollAt    time.Duration // when it may next be tried in a group
	pollWait  time.Duration
	preempted bool // weir has killed it in order to run it again
	movable   bool // it runs on its client's own backend and could run apart; see locked.go
	hold      bool // the answer is kept in resp until it is complete

	flight   *cache.Flight // the answer also goes to the cache, and is held for it
	refresh  bool          // ... : for no client
	caps     mywire.Caps   // ... : of its client
	stateful bool          // the answer also reports session state

	grp  *group        // of a multi-row statement
	done func(u *unit) // weir's own: called when answered, or with u.err set
	most int           // weir's own: the length above which the answer is not kept; 0: none
	// probe: weir's own query after an error, whose answer reports what the ERR packet could
	// not.
	probe bool
}

// A span is a part of a unit's raw.
type span struct{ at, end int }

// Left reports whether the client that waited for the answer has left.
func (u *unit) Left() bool { return u.c == nil || u.c.s.Closed || u.dead }

// Queued returns when the client's message was complete.
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

// recycle returns a unit to the free list. No references to it may remain.
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

// again clears the answer of a unit that will run once more.
func (u *unit) again() {
	u.resp, u.end, u.ok, u.warned, u.failed, u.code, u.err, u.bytes, u.rows = u.resp[:0], 0, mywire.OK{}, false, false, 0, nil, 0, 0
	u.park, u.hold, u.preempted = false, false, false
	u.retries++
	u.c.p.Stats.Reruns++
}

// hasStatus reports whether the answer, unless it is an error, carries status flags.
func (u *unit) hasStatus() bool {
	return u.cmd != mywire.ComStmtPrepare && u.cmd != mywire.ComStatistics
}

// size is an upper bound of the size of the unit's message with types added.
func (u *unit) size() int {
	return len(u.raw) + len(u.types)
}

// result returns the rows of a parked text answer to COM_QUERY; nil is NULL. It reads the first
// result only.
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
		row, err := mywire.ParseTextRow(bytes.Clone(body), int(columns), nil) // the unit is reused
		if err != nil {
			return nil // cannot happen: the parser has checked the packet
		}
		rows = append(rows, row)
	}
}

// firstSeq is the sequence number of the first packet of the answer.
func (u *unit) firstSeq() byte { return max(1, u.seq) }
