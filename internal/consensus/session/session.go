package session

import (
	"errors"
	"time"

	"github.com/weirdb/weir/internal/kvwire"
)

// Errors of outcomes.
var (
	// ErrExpired says that the cluster has forgotten the session because it
	// was idle for too long. Open a new one.
	ErrExpired = errors.New("the session has expired")
	// ErrInvalid says that the cluster cannot execute the command.
	ErrInvalid = errors.New("invalid command")
	// ErrFull says that too many operations of the session are under way; wait
	// for an outcome. Nothing was sent.
	ErrFull = errors.New("too many operations under way")
)

// Policy says when strong writes try the fast path.
type Policy uint8

// Policies.
const (
	Auto Policy = iota // where it has proved quicker than the commit
	Always
	Never
)

// Config of a session. The zero value is right for most.
type Config struct {
	Fast Policy
	// Retry is after how long without an answer an operation is sent again.
	// Default: 250 ms.
	Retry time.Duration
	// MaxOpen is how many operations may be under way. Default: 1000, which
	// is just below what a leader keeps in order for a session.
	MaxOpen int
	// MaxUnstable is how many bytes of weak writes may wait for their commit.
	// Default: 1 MiB.
	MaxUnstable int
	// Requests is added to the numbers of requests, so that several sessions
	// can share connections: give each a range of its own (steps of 1 << 32).
	Requests uint64
	// ID is that of a session that was registered by other means. Default: the
	// session registers itself.
	ID uint64
}

// Send is a message for a replica that is connected.
type Send struct {
	To      uint64
	Message kvwire.Message
}

// Outcome is the end of an operation.
type Outcome struct {
	Tag     uint64 // as given by the caller
	Err     error  // ErrExpired, or wraps ErrInvalid
	Unknown bool   // with Err: a write that may have happened
	Result  []byte // an encoded kvwire.Result; empty for weak writes
	// Revision is the write's own, when it is known: 0 for weak writes and for
	// those that completed on votes.
	Revision uint64
	// Token is the position of a read's answer: that of the state it was
	// evaluated on.
	Token Token
	Fast  bool // completed in one round trip, by votes
}

// Session is one client session. Its methods are for one goroutine at a time.
// All times are nanoseconds of any clock that does not go backwards.
type Session struct {
	cfg Config
	now int64

	id      uint64
	expired bool
	next    uint64 // number of the next write
	stable  uint64 // all writes up to here are committed

	view      uint64
	leader    uint64 // 0: unknown
	switches  switches
	token     Token
	peers     []peer // by order of connection
	rotation  int
	bound     uint64 // the replica that serves weak operations
	ops       []*op  // under way, in order of issue
	unstable  []*weak
	bytes     int // of unstable
	request   uint64
	path      path
	sends     []Send
	outcomes  []Outcome
	answered  uint64 // all writes up to here have been answered
	answers   map[uint64]bool
	nextCheck int64
}

// Token is a position in the order of all operations. A read that carries it
// is answered from a state that is not older.
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

// op is an operation under way.
type op struct {
	tag     uint64
	kind    kind
	seq     uint64 // of a write; of the last write that a read or wait comes after
	request uint64
	after   uint64 // of a read: the last write that was issued before it
	command []byte
	foot    kvwire.Footprint
	issued  int64
	sent    int64 // 0: not yet
	tries   int
	done    bool

	fast     bool // votes are being gathered
	declined bool // somebody has said no
	spec     *kvwire.Message
	speaker  uint64 // the leader that sent spec
	votes    []vote
	to       uint64 // where a weak operation went
	atLeader bool   // a weak operation that its replica sent on
}

// voting reports that all who were asked for the write have it, or may yet.
func (o *op) voting() bool { return o.fast && !o.declined && !o.done }

type vote struct{ replica, view, members uint64 }

// weak is a weak write that is not known to be committed.
type weak struct {
	seq     uint64
	command []byte
	foot    kvwire.Footprint
	sent    int64
	acked   bool
}

// New returns a session that is not connected to anybody yet.
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
	s := &Session{cfg: cfg, id: cfg.ID, next: 1, request: cfg.Requests, answers: map[uint64]bool{}}
	if s.id == 0 {
		s.request++
		s.ops = append(s.ops, &op{kind: register, request: s.request})
	}
	return s
}

// ID is the session's number, 0 until it is registered.
func (s *Session) ID() uint64 { return s.id }

// Leader is the replica that leads as far as the session knows, 0 if it does
// not; View is its view.
func (s *Session) Leader() (leader, view uint64) { return s.leader, s.view }

// Open is how many operations are under way.
func (s *Session) Open() int { return len(s.ops) }

// Unstable is how many weak writes are not known to be committed.
func (s *Session) Unstable() int { return len(s.unstable) }

// Stable is the last write up to which all are known to be committed.
func (s *Session) Stable() uint64 { return s.stable }

// Token is what the session has seen. Another session that is given it by Join
// sees at least as much.
func (s *Session) Token() Token { return s.token }

// Join makes the session's weak reads see at least what t has seen.
func (s *Session) Join(t Token) { s.saw(t) }

// saw moves the token on. A replica that has not heard of the newest view may be
// ahead in the log nevertheless, so neither part of a token goes back.
func (s *Session) saw(t Token) {
	s.token = Token{max(s.token.View, t.View), max(s.token.Index, t.Index)}
}

// Write issues a write. A weak one must be blind (see kvwire.Footprint); where
// the cluster knows no weak writes it is as durable as a strong one.
func (s *Session) Write(now int64, tag uint64, c kvwire.Command, weakly bool) error {
	s.now = now
	if s.expired {
		return ErrExpired
	}
	o := &op{tag: tag, kind: strongWrite, seq: s.next, issued: now}
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
	s.next++
	if o.kind == weakWrite {
		s.unstable = append(s.unstable, &weak{seq: o.seq, command: o.command, foot: o.foot, sent: now})
		s.bytes += len(o.command)
	}
	s.ops = append(s.ops, o)
	s.transmit(o)
	return nil
}

// Read issues a query.
func (s *Session) Read(now int64, tag uint64, c kvwire.Command, weakly bool) error {
	s.now = now
	if s.expired {
		return ErrExpired
	}
	s.request++
	o := &op{tag: tag, kind: strongRead, request: s.request, after: s.next - 1, issued: now}
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
	s.ops = append(s.ops, o)
	s.transmit(o)
	return nil
}

// Wait issues a request that ends when all writes issued so far are committed.
func (s *Session) Wait(now int64, tag uint64) error {
	s.now = now
	if s.expired {
		return ErrExpired
	}
	if len(s.ops) >= s.cfg.MaxOpen {
		return ErrFull
	}
	if s.stable >= s.next-1 {
		s.outcomes = append(s.outcomes, Outcome{Tag: tag})
		return nil
	}
	s.request++
	o := &op{tag: tag, kind: wait, request: s.request, seq: s.next - 1, issued: now}
	s.ops = append(s.ops, o)
	s.transmit(o)
	return nil
}

// encode checks a command and fills in its bytes and what it touches.
func (s *Session) encode(o *op, c kvwire.Command) error {
	if len(s.ops) >= s.cfg.MaxOpen {
		return ErrFull
	}
	if err := c.Validate(); err != nil {
		return errors.Join(ErrInvalid, err)
	}
	o.command = c.Append(nil)
	var own kvwire.Command // the footprint is kept, and c's memory is the caller's
	if err := own.Borrow(o.command); err != nil {
		return errors.Join(ErrInvalid, err)
	}
	own.Footprint(&o.foot)
	return nil
}

// priorOf is the session's last strong write before seq whose votes are being
// gathered: a witness votes for seq only if it has voted for that one. Writes
// that wait for their commit travel in the bundle instead, so that one conflict
// does not keep the whole session off the fast path.
func (s *Session) priorOf(seq uint64) uint64 {
	for i := len(s.ops) - 1; i >= 0; i-- {
		if o := s.ops[i]; o.kind == strongWrite && o.seq < seq && o.voting() {
			return o.seq
		}
	}
	return 0
}

// before is the last weak write that must be committed when o, a strong read, is
// answered: those that have been acknowledged (C2), since o was issued after
// that, and those under way that touch what it reads (C1).
func (s *Session) before(o *op) uint64 {
	for i := len(s.unstable) - 1; i >= 0; i-- {
		if w := s.unstable[i]; w.acked || w.foot.Overlaps(&o.foot) {
			return w.seq
		}
	}
	return 0
}

// conflicting is the last strong write under way that touches what o reads: o
// was issued after it and must see it.
func (s *Session) conflicting(o *op) uint64 {
	for i := len(s.ops) - 1; i >= 0; i-- {
		if w := s.ops[i]; w.kind == strongWrite && !w.done && w.foot.Overlaps(&o.foot) {
			return w.seq
		}
	}
	return 0
}

// Take hands out what is to be sent and what has ended since the last Take.
// The caller owns both.
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
	for i := range s.ops {
		if s.ops[i] == o {
			s.ops = append(s.ops[:i], s.ops[i+1:]...)
			break
		}
	}
	if o.kind == strongWrite || o.kind == weakWrite {
		s.answers[o.seq] = true
		for s.answers[s.answered+1] {
			s.answered++
			delete(s.answers, s.answered)
		}
	}
	if o.kind == register {
		return
	}
	out.Tag = o.tag
	s.outcomes = append(s.outcomes, out)
}

// fail ends the whole session.
func (s *Session) fail(err error) {
	s.expired = true
	for len(s.ops) > 0 {
		o := s.ops[0]
		s.end(o, Outcome{Err: err, Unknown: o.sent != 0 && (o.kind == strongWrite || o.kind == weakWrite)})
	}
	s.unstable, s.bytes = nil, 0
}
