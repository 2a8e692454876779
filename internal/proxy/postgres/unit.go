package postgres

import (
	"time"

	"github.com/weirdb/weir/internal/proxy/cache"
	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/proxy/sqlscan"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// A unit is what one ReadyForQuery answers: a simple query, or extended
// messages up to their Sync. It is the smallest thing that can change
// backends. Units stand in a backend's queue in the order in which their bytes
// were sent; the head's client gets the bytes that arrive.
type unit struct {
	kind unitKind
	c    *client // who asked; nil for weir's own and when the client is gone
	open bool    // of a linked client: more messages may follow before its Sync

	// Of a linked client, and where it ends: see extent.go.
	byQuery    bool // with a Query, or a function call
	dataWithin bool // a CopyDone or CopyFail was sent before its end
	dataBehind bool // ... right behind its end
	ignored    bool // the server has been sent a Sync that it ignores while it takes CopyData

	// The client's messages, for units that are built whole (shared reads,
	// members of lanes). A linked client's messages are not kept.
	raw    []byte
	ops    []op
	simple bool // one Query message
	// limited: an Execute asks for so many rows. Drivers do so where they want none:
	// pgJDBC's executeUpdate asks for one.
	limited bool
	ttl     time.Duration // that a statement of it asks for
	row     span          // ... of a text rows lane: the row within raw
	shape   *sight.Shape
	trace   *sight.Trace // of a statement that is traced
	sql     string       // the last statement's text, where it is to be told

	// Answers that are still to come, in order. Empty for simple queries.
	exp   []expect
	expAt int
	// Its number on its backend, up to that of the last unit that joined it, and how much
	// of exp an error has been applied to: see kept.
	num, lastNum uint64
	unlearned    int

	// Progress.
	at       uint64        // what was sent on its connection before it, in bytes
	queuedAt time.Duration // when the client's messages were complete
	wrote    bool          // part of the answer is in the client's output
	mark     int           // length of the client's output before that part
	early    time.Duration // before that: its client waited for a backend
	lanedAt  time.Duration // of a member of a lane: when it came there
	began    time.Duration // of a member of a group: when that was sent
	took     time.Duration // from when the server began with it to its answer
	bytes    int           // of the answer so far
	tuples   uint64        // that its statements have returned, or changed
	tagged   bool          // a CommandComplete came
	failed   bool          // an ErrorResponse came; only ReadyForQuery follows
	retry    bool          // the answer is withheld: run again
	retries  uint8
	err      *pgwire.Error // the ErrorResponse, where weir must look at it
	instead  *pgwire.Error // takes the place of what is still to come of the answer
	overdue  bool          // weir ends it, for it has run for too long
	insist   bool          // its client has cancelled it before it was sent: see cancelUnread
	dead     bool          // cancelled or disconnected while it waited

	// Running alone: see apart.go.
	core.Turn
	read      bool          // a shared read: has no effects, may run twice
	bound     time.Duration // the lock_timeout that weir has set for this turn; 0 if the client's own holds
	waited    time.Duration // for locks, in earlier turns
	cut       bool          // a part of its answer has left under a lock_timeout of weir's
	preempted bool          // weir has cancelled it, to run it again
	hold      bool          // the answer is kept in resp until it is whole
	flight    *cache.Flight // the answer is for the cache, too, and held
	refresh   bool          // ... : for nobody else

	// Effects that hold from the moment when the unit has succeeded.
	sets    []sqlscan.SetClause
	effects sqlscan.Effect
	commits bool   // a COMMIT was answered, and no ROLLBACK behind it
	undoes  bool   // a ROLLBACK was answered
	ends    bool   // it may end a transaction; in one after it, too: AND CHAIN
	resets  bool   // it has a RESET: what the client asked for at startup must be set again
	frees   string // the statement that a DEALLOCATE names
	freed   bool   // ... which was answered
	numbers bool   // it has a DISCARD SEQUENCES or DISCARD ALL
	hides   bool   // it has a DO or a CALL, which may change roles out of sight
	// statements counts those of a linked client's unit that were sent.
	statements int
	// barrier: what the client sends behind its statements waits for their answers.
	barrier bool
	// flushedTo is how much of exp the server was asked for by a Flush of weir's.
	flushedTo int
	anew      bool    // it compares what it parses with what others were told
	asking    bool    // its messages are sent when the server has said what they return: see goOn
	unlike    []*stmt // whose columns are others than its client was told
	// unsettles: it may change how the server reads the texts behind it.
	unsettles bool
	probe     bool // session state must be looked at before the backend is shared
	parsed    []parsedName
	lends     []lending
	named     uint64   // its number among those that rename statements; 0 if it does not
	reached   []*reach // what its statements reach beyond the session, once carried out

	// parked answers of lanes, and weir's own queries.
	park   bool
	resp   []byte
	serial *serialFacts // may be in a series: of its table
	grp    together
	done   func(u *unit) // weir's own: called when answered, or with u.err set
	// rows are weir's own question's, each of so many columns; of a question without
	// columns none are kept.
	rows    [][][]byte
	columns int
	notice  func(msg []byte) // weir's own: called with each NoticeResponse
	tell    bool             // weir's own: the owner learns of settings that it changes
}

// parses reports whether a unit that is kept whole begins with a Parse.
func (u *unit) parses() bool { return len(u.ops) > 0 && u.ops[0].kind == pgwire.ClientParse }

// parsing reports whether the answer that comes next is that to a Parse of weir's.
func (u *unit) parsing() bool { return u.expAt < len(u.exp) && u.exp[u.expAt].code == expHiddenParse }

// Left reports whether the client that waited for the answer has left.
func (u *unit) Left() bool { return u.c == nil || u.c.s.Closed || u.dead }

// Queued is when the client's messages were complete.
func (u *unit) Queued() time.Duration { return u.queuedAt }

type unitKind uint8

const (
	unitClient unitKind = iota
	unitHidden          // weir's own query
	unitRows            // a multi-row statement for many clients
)

// An op is one message of a unit that is kept whole.
type op struct {
	kind     byte  // pgwire.Client*
	off, end int32 // of the whole message within raw
	rest     int32 // where the part after the names begins, for Bind
	name     int32 // where the name of a statement begins, for Parse, Bind, Describe, Close
	st       *stmt
}

// A span is a part of a text or a message.
type span struct{ at, end int }

// An expect is one answer that must come before ReadyForQuery, or one that
// weir gives itself in its place.
type expect struct {
	code  expectCode
	own   bool   // of a Bind or Describe: of the statement as the client itself has parsed it
	named uint32 // of a Bind or Describe: a number of the client's name for it, as numberOf has it
	st    *stmt
}

type expectCode uint8

const (
	expBind           expectCode = iota
	expDescribe                  // RowDescription or NoData ends it
	expExecute                   // CommandComplete, EmptyQuery or PortalSuspended ends it
	expClose                     // CloseComplete of a portal
	expParse                     // the client's Parse: the statement becomes known on the backend
	expHiddenParse               // our Parse: the answer is swallowed
	expHiddenDescribe            // our Describe, the same: see told.go
	expHiddenClose               // our Close, to keep the backend's statements bounded
	expOwnParse                  // no Parse was sent, the statement is there: we answer
	expOwnClose                  // no Close was sent, the statement is shared: we answer
)

// own tells that weir gives the answer itself.
func (e expectCode) own() bool { return e == expOwnParse || e == expOwnClose }

// ownNext reports whether the answer that comes next is one that weir gives.
func (u *unit) ownNext() bool {
	return u.expAt < len(u.exp) && u.exp[u.expAt].code.own() && !u.failed
}

// A parsedName remembers what a Parse or Close did to the client's names,
// to undo it if the server refuses the text.
type parsedName struct {
	name  string
	given string // as the client wrote it, where an error will name it
	st    *stmt  // nil after Close
	prev  *stmt  // what the name meant before
}

func (l *loop) newUnit(kind unitKind) *unit {
	if n := len(l.units); n > 0 {
		u := l.units[n-1]
		l.units = l.units[:n-1]
		u.kind = kind
		return u
	}
	return &unit{kind: kind}
}

// recycle returns a unit to the free list. Nothing may refer to it any more.
func (l *loop) recycle(u *unit) {
	if len(l.units) >= 4096 {
		return
	}
	raw, ops, exp, resp := u.raw[:0], u.ops[:0], u.exp[:0], u.resp[:0]
	if cap(raw) > 16<<10 {
		raw = nil
	}
	if cap(resp) > 16<<10 {
		resp = nil
	}
	clear(ops[:cap(ops)])
	clear(exp[:cap(exp)])
	*u = unit{raw: raw, ops: ops, exp: exp, resp: resp}
	l.units = append(l.units, u)
}

// cstr returns the NUL-terminated text at p[i:] and the index after the NUL;
// ok is false if there is none.
func cstr(p []byte, i int) (s []byte, next int, ok bool) {
	for j := i; j < len(p); j++ {
		if p[j] == 0 {
			return p[i:j], j + 1, true
		}
	}
	return nil, 0, false
}
