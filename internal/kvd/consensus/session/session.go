package session

import (
	"errors"
	"iter"
	"time"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// Errors of outcomes.
var (
	// ErrExpired says that the cluster has removed the session because it was idle for too
	// long. Open a new one.
	ErrExpired = errors.New("the session has expired")
	// ErrInvalid says that the cluster cannot execute the command.
	ErrInvalid = errors.New("invalid command")
	// ErrUnkept says that a write was executed, but the answer was lost and too large for the
	// cluster to keep.
	ErrUnkept = errors.New("executed, but the answer is lost")
	// ErrFull says that too many operations of the session are in flight; wait for an outcome.
	// The operation was not sent.
	ErrFull = errors.New("too many operations in flight")
)

// Policy says when strong writes try the fast path.
type Policy uint8

// Policies.
const (
	Auto Policy = iota // when it has been faster than the commit
	Always
	Never
)

// Config configures a session. The zero value is right for most.
type Config struct {
	Fast Policy
	// Retry is the time without an answer after which an operation is sent again. Default: 250
	// ms.
	Retry time.Duration
	// MaxOpen is the largest number of operations in flight. Default: 1000, just below what a
	// leader keeps in order for a session.
	MaxOpen int
	// MaxUnstable limits the bytes of weak writes that wait for their commit. Default: 1 MiB.
	MaxUnstable int
	// Requests is added to the numbers of requests, so that sessions can share connections:
	// give each session its own range (steps of 1 << 32).
	Requests uint64
	// ID is the id of a session that is registered already. Default: the session registers
	// itself.
	ID uint64
}

// Send is a message for a connected replica.
type Send struct {
	To      uint64
	Message wire.Message
}

// Outcome is the outcome of an operation.
type Outcome struct {
	Tag     uint64 // as given by the caller
	Err     error  // ErrExpired, ErrUnkept, or wraps ErrInvalid
	Unknown bool   // with Err: the write may have happened
	Result  []byte // an encoded wire.Result; empty for weak writes
	Command []byte // of a read
	// Revision is the revision of a write, if known: 0 for weak writes and for those that
	// completed by votes.
	Revision uint64
	// Token is the position of the state on which a read was evaluated.
	Token Token
	Fast  bool // completed in one round trip, by votes
}

// Session is a client session. Its methods must be called by one goroutine at a time. All times
// are nanoseconds of a clock that does not go backwards.
type Session struct {
	cfg Config
	now int64

	id      uint64
	expired bool   // the cluster has removed it, or its owner has ended it
	stable  uint64 // all writes up to here are committed

	view      uint64
	leader    uint64 // 0: unknown
	switches  switches
	token     Token
	peers     []peer // by order of connection
	rotation  int
	bound     uint64 // the replica that serves weak operations
	ops       opList // in flight, in order of issue
	writes    window // the writes of ops, by number
	asks      window // the other operations of ops, by request
	gathering []*op  // the strong writes of ops that gather votes, ascending
	waiting   []*op  // the strong writes that wait for their commit, ascending
	unstable  []*weak
	bytes     int    // of unstable
	acked     uint64 // the last acknowledged weak write
	path      path
	sends     []Send
	outcomes  []Outcome
	nextCheck int64

	// The keys of strong writes and reads in flight, and of weak writes that are not known to
	// be committed.
	byStrong, byReads, byWeak keyIndex
}

// Token is a position in the order of all operations. A read with a token is answered from a
// state that is not older.
type Token struct{ View, Index uint64 }

type peer struct {
	id  uint64
	rtt int64
}

type kind uint8

const (
	register kind = iota
	strongWrite
	weakWrite
	strongRead
	weakRead
	wait
)

// op is an operation in flight.
type op struct {
	tag     uint64
	kind    kind
	seq     uint64 // of a write; of the last write before a read or wait
	request uint64
	after   uint64 // of a read: the last write issued before it
	command []byte
	foot    wire.Footprint
	issued  int64
	sent    int64 // 0: not yet
	tries   int
	done    bool

	fast     bool // votes are counted
	voting   bool // and all replicas asked for a vote have the write, or may still get it
	spec     *wire.Message
	speaker  uint64 // the leader that sent spec
	votes    []vote
	to       uint64 // where a weak operation was sent
	atLeader bool   // a weak operation that its replica has forwarded

	silent bool // no caller waits for the outcome: it takes the place of a refused write
	final  bool // it ends the session

	prev, next *op // in Session.ops
}

type vote struct{ replica, view, members uint64 }

// weak is a weak write that is not known to be committed.
type weak struct {
	seq     uint64
	command []byte
	foot    wire.Footprint
	sent    int64
}

// New returns a session that is not connected yet.
func New(cfg Config) *Session {
	if cfg.Retry == 0 {
		cfg.Retry = 250 * time.Millisecond
	}
	if cfg.MaxOpen == 0 {
		cfg.MaxOpen = 1000
	}
	if cfg.MaxUnstable == 0 {
		cfg.MaxUnstable = 1 << 20
	}
	s := &Session{cfg: cfg, id: cfg.ID, writes: window{from: 1}, asks: window{from: cfg.Requests + 1}}
	s.byStrong = keyIndex{keys: map[string]keyUse{}, each: func(do func(*wire.Footprint, uint64)) {
		for _, list := range [][]*op{s.waiting, s.gathering} {
			for _, o := range list {
				do(&o.foot, o.seq)
			}
		}
	}}
	s.byReads = keyIndex{keys: map[string]keyUse{}, each: func(do func(*wire.Footprint, uint64)) {
		for o := range s.reads() {
			do(&o.foot, 1)
		}
	}}
	s.byWeak = keyIndex{keys: map[string]keyUse{}, each: func(do func(*wire.Footprint, uint64)) {
		for _, w := range s.unstable {
			do(&w.foot, w.seq)
		}
	}}
	if s.id == 0 {
		s.begin(&op{kind: register})
	}
	return s
}

// begin adds an operation to those in flight. A write gets the next number.
func (s *Session) begin(o *op) {
	s.ops.push(o)
	switch o.kind {
	case strongWrite:
		s.writes.push(o)
		s.waiting = inserted(s.waiting, o)
		s.byStrong.add(&o.foot, o.seq)
	case weakWrite:
		s.writes.push(o)
	case strongRead, weakRead:
		o.request = s.asks.next()
		s.asks.push(o)
		s.byReads.add(&o.foot, 1)
	case register, wait:
		o.request = s.asks.next()
		s.asks.push(o)
	}
}

// reads yields the reads in flight.
func (s *Session) reads() iter.Seq[*op] {
	return func(yield func(*op) bool) {
		for _, o := range s.asks.ops {
			if o != nil && (o.kind == strongRead || o.kind == weakRead) && !yield(o) {
				return
			}
		}
	}
}

// gathers sets whether a strong write gathers votes or waits for its commit.
func (s *Session) gathers(o *op, votes bool) {
	switch {
	case votes && !o.voting:
		s.waiting, s.gathering = removed(s.waiting, o), inserted(s.gathering, o)
	case !votes && o.voting:
		s.gathering, s.waiting = removed(s.gathering, o), inserted(s.waiting, o)
	}
	o.voting = votes
}

// ID returns the id of the session, 0 until it is registered.
func (s *Session) ID() uint64 { return s.id }

// Leader returns the leader and its view, as far as the session knows, or 0.
func (s *Session) Leader() (leader, view uint64) { return s.leader, s.view }

// Open returns the number of operations in flight.
func (s *Session) Open() int { return s.ops.count }

// Reads returns the number of reads in flight.
func (s *Session) Reads() int { return s.byReads.count }

// Unstable returns the number of weak writes that are not known to be committed.
func (s *Session) Unstable() int { return len(s.unstable) }

// Stable returns the number of the last write up to which all are known to be committed.
func (s *Session) Stable() uint64 { return s.stable }

// Token returns what the session has seen. A session that receives it by Join sees at least as
// much.
func (s *Session) Token() Token { return s.token }

// Join makes the session's weak reads see at least what t has seen. A replica that does not
// know the newest view may still be ahead in the log, so neither part of the session's token
// goes back.
func (s *Session) Join(t Token) {
	s.token = Token{max(s.token.View, t.View), max(s.token.Index, t.Index)}
}

// Write issues a write. A weak write must be blind (see wire.Footprint). If the cluster has no
// weak writes, it is as durable as a strong one.
func (s *Session) Write(now int64, tag uint64, c wire.Command, weakly bool) error {
	s.now = now
	if s.expired {
		return ErrExpired
	}
	o := &op{tag: tag, kind: strongWrite, seq: s.writes.next(), issued: now}
	if err := s.encode(o, c); err != nil {
		return err
	}
	if !o.foot.Write {
		return errors.Join(ErrInvalid, errors.New("a query is not a write"))
	}
	if weakly {
		if !o.foot.Blind {
			return errors.Join(ErrInvalid, errors.New("only a write without an answer may be weak"))
		}
		if s.bytes+len(o.command) > s.cfg.MaxUnstable && len(s.unstable) > 0 {
			return ErrFull
		}
		o.kind = weakWrite
	}
	if o.kind == weakWrite {
		s.unstable = append(s.unstable, &weak{seq: o.seq, command: o.command, foot: o.foot, sent: now})
		s.bytes += len(o.command)
		s.byWeak.add(&o.foot, o.seq)
	}
	s.begin(o)
	s.transmit(o)
	return nil
}

// Read issues a query.
func (s *Session) Read(now int64, tag uint64, c wire.Command, weakly bool) error {
	s.now = now
	if s.expired {
		return ErrExpired
	}
	o := &op{tag: tag, kind: strongRead, after: s.writes.next() - 1, issued: now}
	if err := s.encode(o, c); err != nil {
		return err
	}
	if o.foot.Write {
		return errors.Join(ErrInvalid, errors.New("a write is not a query"))
	}
	o.seq = s.conflicting(o)
	if weakly && s.switches.weakReads == nearest && o.seq == 0 {
		o.kind = weakRead
	} else {
		o.seq = max(o.seq, s.before(o))
	}
	s.begin(o)
	s.transmit(o)
	return nil
}

// Wait issues a request that completes when all writes issued so far are committed.
func (s *Session) Wait(now int64, tag uint64) error {
	s.now = now
	if s.expired {
		return ErrExpired
	}
	if s.ops.count >= s.cfg.MaxOpen {
		return ErrFull
	}
	if s.stable >= s.writes.next()-1 {
		s.outcomes = append(s.outcomes, Outcome{Tag: tag})
		return nil
	}
	o := &op{tag: tag, kind: wait, seq: s.writes.next() - 1, issued: now}
	s.begin(o)
	s.transmit(o)
	return nil
}

// End asks the cluster to remove the session and all that is kept for it. It fails with ErrFull
// if an operation is in flight or waits for its commit. The outcome is no error even if the
// session has expired meanwhile. After it, operations fail with ErrExpired.
func (s *Session) End(now int64, tag uint64) error {
	s.now = now
	switch {
	case s.expired:
		return ErrExpired
	case s.id == 0 && s.ops.count == 1: // only its registration
		s.expired = true
		s.end(s.ops.first, Outcome{})
		s.outcomes = append(s.outcomes, Outcome{Tag: tag})
		return nil
	case s.ops.count > 0 || len(s.unstable) > 0:
		return ErrFull
	}
	o := &op{tag: tag, kind: strongWrite, final: true, seq: s.writes.next(), issued: now}
	s.begin(o)
	s.transmit(o)
	return nil
}

// Cancel drops a query whose answer is no longer wanted. It has no outcome.
func (s *Session) Cancel(tag uint64) {
	for o := range s.ops.all() {
		if o.tag == tag && (o.kind == strongRead || o.kind == weakRead) {
			o.silent = true
			s.end(o, Outcome{})
			return
		}
	}
}

// encode validates a command and sets its bytes and its footprint.
func (s *Session) encode(o *op, c wire.Command) error {
	if s.ops.count >= s.cfg.MaxOpen {
		return ErrFull
	}
	if err := c.Validate(); err != nil {
		return errors.Join(ErrInvalid, err)
	}
	o.command = c.Append(make([]byte, 0, c.Size()))
	var own wire.Command // the footprint is kept, but c's memory belongs to the caller
	if err := own.Borrow(o.command); err != nil {
		return errors.Join(ErrInvalid, err)
	}
	own.Footprint(&o.foot)
	return nil
}

// priorOf returns the session's last strong write before seq that gathers votes: a witness
// votes for seq only if it has voted for that one. Writes that wait for their commit are sent
// in the bundle instead, so that one conflict does not keep the whole session off the fast
// path.
func (s *Session) priorOf(seq uint64) uint64 {
	if n := upTo(s.gathering, seq); n > 0 {
		return s.gathering[n-1].seq
	}
	return 0
}

// before returns the last weak write that must be committed when o, a strong read, is answered:
// the acknowledged ones (C2), since o was issued after the acknowledgement, and those in flight
// that touch what it reads (C1).
func (s *Session) before(o *op) uint64 {
	last := uint64(0)
	if s.acked > s.stable {
		last = s.acked
	}
	touching, known := s.byWeak.by(&o.foot)
	for i := len(s.unstable) - 1; !known && i >= 0 && s.unstable[i].seq > last; i-- {
		if w := s.unstable[i]; w.foot.Overlaps(&o.foot) {
			return w.seq
		}
	}
	return max(last, touching)
}

// conflicting returns the last strong write in flight that touches what o reads, or a later
// one: o was issued after it and must see it.
func (s *Session) conflicting(o *op) uint64 {
	last, known := s.byStrong.by(&o.foot)
	if known {
		return last
	}
	for _, list := range [][]*op{s.waiting, s.gathering} {
		for i := len(list) - 1; i >= 0 && list[i].seq > last; i-- {
			if list[i].foot.Overlaps(&o.foot) {
				last = list[i].seq
			}
		}
	}
	return last
}

// Take returns the messages to send and the outcomes since the last Take. The caller owns both.
func (s *Session) Take() ([]Send, []Outcome) {
	sends, outcomes := s.sends, s.outcomes
	s.sends, s.outcomes = nil, nil
	return sends, outcomes
}

// end removes an operation and reports its outcome.
func (s *Session) end(o *op, out Outcome) {
	if o.done {
		return
	}
	o.done = true
	s.ops.remove(o)
	switch o.kind {
	case strongWrite:
		s.gathers(o, false)
		s.waiting = removed(s.waiting, o)
		s.byStrong.remove(&o.foot)
		s.writes.drop(o.seq)
	case weakWrite:
		s.writes.drop(o.seq)
	case strongRead, weakRead:
		s.asks.drop(o.request)
		s.byReads.remove(&o.foot)
	case register, wait:
		s.asks.drop(o.request)
	}
	if o.kind == register || o.silent {
		return
	}
	out.Tag = o.tag
	s.outcomes = append(s.outcomes, out)
}

// fail ends the session. Writes with numbers from never on have not happened and will not.
func (s *Session) fail(err error, never uint64) {
	s.expired = true
	for s.ops.first != nil {
		if o := s.ops.first; o.final {
			s.end(o, Outcome{}) // it is removed, as requested
		} else {
			s.end(o, Outcome{Err: err, Unknown: o.sent != 0 && (o.kind == strongWrite || o.kind == weakWrite) && o.seq < never})
		}
	}
	s.unstable, s.bytes = nil, 0
}
