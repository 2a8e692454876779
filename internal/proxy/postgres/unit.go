package postgres

import (
	"time"

	"github.com/weirdb/weir/internal/proxy/cache"
	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/proxy/sqlscan"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// A unit is the messages that one ReadyForQuery answers: a simple query, or extended
// messages up to their Sync. It is the smallest thing that can move to another backend. Units
// stand in a backend's queue in the order in which their bytes were sent; the bytes that
// arrive belong to the client of the head.
type unit struct {
	kind unitKind
	c    *client // nil for weir's own queries, and when the client has left
	open bool    // of a linked client: more messages may follow before its Sync

	// For the unit of a linked client, where it ends: see unit_end.go.
	byQuery    bool // with a Query, or a function call
	dataWithin bool // a CopyDone or CopyFail was sent before its end
	dataBehind bool // ... right behind its end
	ignored    bool // the server was sent a Sync that it ignores while it receives CopyData

	// The client's messages, if the unit is kept whole (shared reads, members of
	// lanes). A linked client's messages are not kept.
	raw    []byte
	ops    []op
	simple bool // one Query message
	// limited: an Execute has a row limit. Drivers set one even where they want no rows:
	// pgJDBC's executeUpdate sets 1.
	limited bool
	ttl     time.Duration // that one of its statements asks for
	row     span          // ... in a lane of text rows: the row within raw
	shape   *sight.Shape
	trace   *sight.Trace // if a statement is traced
	sql     string       // the last statement's text, if it may be reported

	// Answers that are still to come, in order. Empty for simple queries.
	exp   []expect
	expAt int
	// Its number on its backend, that of the last unit that joined it, and how much
	// of exp an error was applied to: see kept.
	num, lastNum uint64
	unlearned    int

	// Progress.
	at       uint64        // bytes sent on its connection before it
	queuedAt time.Duration // when the client's messages were complete
	wrote    bool          // part of the answer is in the client's output
	mark     int           // length of the client's output before this answer
	early    time.Duration // how long, before that, its client waited for a backend
	lanedAt  time.Duration // of a member of a lane: when it entered the lane
	began    time.Duration // of a member of a group: when the group was sent
	took     time.Duration // from when the server began with it to its answer
	bytes    int           // of the answer so far
	tuples   uint64        // rows that its statements returned or changed
	tagged   bool          // a CommandComplete came
	failed   bool          // an ErrorResponse came; only ReadyForQuery follows
	retry    bool          // the answer is withheld: run again
	retries  uint8
	err      *pgwire.Error // the ErrorResponse, if weir must look at it
	instead  *pgwire.Error // replaces the rest of the answer
	overdue  bool          // weir ends it, since it has run for too long
	insist   bool          // its client cancelled it before it was sent: see cancelUnread
	dead     bool          // cancelled or disconnected while it waited

	// Running alone: see apart.go.
	core.Turn
	read      bool          // a shared read: has no effects, may run twice
	bound     time.Duration // the lock_timeout that weir has set for this turn; 0: the client's own
	waited    time.Duration // for locks, in earlier turns
	cut       bool          // part of its answer was passed on under weir's lock_timeout
	preempted bool          // weir has cancelled it, to run it again
	hold      bool          // the answer is kept in resp until it is complete
	flight    *cache.Flight // the answer also goes to the cache, and is held
	refresh   bool          // ... only to the cache

	// Effects that count once the unit has succeeded.
	sets    []sqlscan.SetClause
	effects sqlscan.Effect
	commits bool   // a COMMIT was answered, and no ROLLBACK after it
	undoes  bool   // a ROLLBACK was answered
	ends    bool   // it may end a transaction, also one in which another one begins (AND CHAIN)
	resets  bool   // it has a RESET: the settings of the startup packet must be set again
	frees   string // the statement that a DEALLOCATE names
	freed   bool   // ... which was answered
	numbers bool   // it has a DISCARD SEQUENCES or DISCARD ALL
	hides   bool   // it has a DO or a CALL, which may change roles unseen
	// statements counts those of a linked client's unit that were sent.
	statements int
	// barrier: what the client sends after these statements waits for their answers.
	barrier bool
	// flushedTo is the part of exp for which weir has sent a Flush.
	flushedTo int
	anew      bool    // it compares what it parses with what other clients were told
	asking    bool    // its messages are sent when the server has described their results: see goOn
	unlike    []*stmt // statements whose columns differ from what the client was told
	// unsettles: it may change how the server parses the texts after it.
	unsettles bool
	probe     bool // session state must be checked before the backend is shared
	parsed    []parsedName
	lends     []lending
	named     uint64         // its number among the units that rename statements; 0 if it does not
	reached   []*changeScope // what its statements reach beyond the session, once executed

	// parked answers of lanes, and weir's own queries.
	park   bool
	resp   []byte
	serial *serialFacts // of its table, if it may be in a series
	grp    txnGroup
	done   func(u *unit) // for weir's own query: called when it is answered, or with u.err set
	// rows are the result of weir's own query; none are kept of a query without columns.
	rows    [][][]byte
	columns int
	notice  func(msg []byte) // for weir's own query: called with each NoticeResponse
	tell    bool             // for weir's own query: the owner learns of settings that it changes
}

// parses reports whether a unit that is kept whole begins with a Parse.
func (u *unit) parses() bool { return len(u.ops) > 0 && u.ops[0].kind == pgwire.ClientParse }

// parsing reports whether the next answer is that to a Parse of weir's.
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
	rest     int32 // for Bind: where the part after the names begins
	name     int32 // for Parse, Bind, Describe, Close: where the statement's name begins
	st       *stmt
}

// A span is a part of a text or a message.
type span struct{ at, end int }

// An expect is one answer that must come before ReadyForQuery, or one that
// weir gives itself instead of the server.
type expect struct {
	code  expectCode
	own   bool   // for Bind or Describe: of the statement as the client itself has parsed it
	named uint32 // for Bind or Describe: numberOf the client's name for it
	st    *stmt
}

type expectCode uint8

const (
	expBind           expectCode = iota
	expDescribe                  // RowDescription or NoData ends it
	expExecute                   // CommandComplete, EmptyQuery or PortalSuspended ends it
	expClose                     // CloseComplete of a portal
	expParse                     // the client's Parse: the backend then has the statement
	expHiddenParse               // weir's own Parse: the answer is dropped
	expHiddenDescribe            // weir's own Describe, likewise: see stmt_description.go
	expHiddenClose               // weir's own Close, to bound the backend's statements
	expOwnParse                  // no Parse was sent, since the backend has the statement: weir answers
	expOwnClose                  // no Close was sent, since the statement is shared: weir answers
)

// own reports whether weir gives the answer itself.
func (e expectCode) own() bool { return e == expOwnParse || e == expOwnClose }

// ownNext reports whether the next answer is one that weir gives.
func (u *unit) ownNext() bool {
	return u.expAt < len(u.exp) && u.exp[u.expAt].code.own() && !u.failed
}

// A parsedName records what a Parse or Close did to the client's names, to undo it if the
// server refuses the text.
type parsedName struct {
	name  string
	given string // as the client wrote it, if an error will name it
	st    *stmt  // nil after Close
	prev  *stmt  // what the name referred to before
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
