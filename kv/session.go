package kv

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirdb/weir/internal/kvd/consensus/session"
	"github.com/weirdb/weir/internal/kvd/peer"
	"github.com/weirdb/weir/internal/kvd/wire"
)

// Session is a sequence of operations: a weak read sees what the session has written
// and read before, and a strong operation makes its earlier weak writes durable
// at a majority. It is safe for concurrent use; concurrent operations have no
// order among themselves, except that those on the same keys take effect in the
// order in which they were issued.
type Session struct {
	c      *Client
	number uint64        // of this session in the client, from 1
	id     atomic.Uint64 // given by the cluster

	mu    sync.Mutex
	pure  *session.Session
	tag   uint64
	calls map[uint64]call
	room  chan struct{} // closed and replaced when there may be room and a caller waits for it
	wants int
	dead  error // why nothing more is issued

	used int64             // when the last write was issued
	kept []session.Outcome // of earlier states of this session, to be reported

	stable uint64 // what pure had when room was last made

	corked bool           // one goroutine sends and reports, including what is added meanwhile
	ended  []ended        // its scratch
	batch  []wire.Message // its scratch, too
}

type call struct {
	op   string
	key  string
	done func(Result, error)
}

// askRange is the range of request numbers of the client itself.
const askRange = 1<<31 - 1

// NewSession opens another session over the same connections.
func (c *Client) NewSession() *Session { return c.newSession() }

func (c *Client) newSession() *Session {
	c.mu.Lock()
	c.opened++
	s := &Session{c: c, number: c.opened, calls: map[uint64]call{}, room: make(chan struct{})}
	s.pure = s.fresh()
	if c.closed {
		s.dead = ErrClosed
	}
	c.sessions[s.number] = s
	c.mu.Unlock()
	s.event(func(p *session.Session, now int64) { s.greet(p, now) })
	return s
}

// fresh is the initial state of a session.
func (s *Session) fresh() *session.Session {
	return session.New(session.Config{Fast: s.c.opts.Path, Retry: s.c.opts.Retry, Requests: s.number << 32})
}

// greet tells a session which replicas are connected, and which one leads.
func (s *Session) greet(p *session.Session, now int64) {
	for _, l := range s.c.linked() {
		l.mu.Lock()
		conn, id := l.conn, l.id
		l.mu.Unlock()
		if conn != nil {
			p.Connected(now, id)
			p.Distance(id, int64(conn.RTT().Last))
		}
	}
	s.c.mu.Lock()
	view := s.c.view
	s.c.mu.Unlock()
	if view != nil {
		m := *view
		p.Receive(now, m.Leader, &m)
	}
}

// event runs do on the session's state, then sends and reports the results.
func (s *Session) event(do func(p *session.Session, now int64)) {
	s.mu.Lock()
	do(s.pure, s.c.now())
	s.after()
}

// tend is event for callers that visit all sessions, or hold a lock: it does not report
// itself, since the functions that it would call may block.
func (s *Session) tend(do func(p *session.Session, now int64)) {
	s.mu.Lock()
	do(s.pure, s.c.now())
	s.carryOn(true)
}

// after is called with mu locked, and unlocks it. It sends the session's messages and
// reports the operations that have ended. Operations that are issued while it reports,
// mostly by those functions, are gathered and sent together afterwards.
func (s *Session) after() { s.carryOn(false) }

// carryOn is after; if apart is set, another goroutine reports, and then continues.
func (s *Session) carryOn(apart bool) {
	if id := s.pure.ID(); id != s.id.Load() {
		s.c.named(s, s.id.Swap(id), id)
	}
	if s.corked {
		s.mu.Unlock()
		return
	}
	for {
		if stable := s.pure.Stable(); stable != s.stable {
			s.stable = stable // answered weak writes count against the limits until they are committed
			s.makeRoom()
		}
		sends, outcomes := s.pure.Take()
		if len(s.kept) > 0 {
			outcomes, s.kept = append(s.kept, outcomes...), nil
		}
		if len(sends) == 0 && len(outcomes) == 0 {
			s.pure.Recycle(sends, outcomes) // their memory is reused for the next event
			break
		}
		ended := s.ended[:0]
		for _, o := range outcomes {
			if c, ok := s.calls[o.Tag]; ok {
				delete(s.calls, o.Tag)
				ended = append(ended, finish(c, o))
			}
		}
		if len(ended) > 0 {
			s.makeRoom()
		}
		s.corked = true
		s.mu.Unlock()
		if len(sends) > 0 {
			s.batch = s.c.send(sends, s.batch)
		}
		if apart && len(ended) > 0 {
			s.reportApart(ended, sends, outcomes)
			return
		}
		s.report(ended, sends, outcomes)
	}
	s.mu.Unlock()
}

// reportApart reports on a goroutine that Client.Close waits for.
func (s *Session) reportApart(ended []ended, sends []session.Send, outcomes []session.Outcome) {
	s.c.wait.Go(func() {
		s.report(ended, sends, outcomes)
		s.after()
	})
}

// report calls the functions of ended operations, and locks mu. The slices are reused for
// the next event.
func (s *Session) report(ended []ended, sends []session.Send, outcomes []session.Outcome) {
	for i := range ended {
		ended[i].call.done(ended[i].result, ended[i].err)
	}
	clear(ended)
	s.mu.Lock()
	s.pure.Recycle(sends, outcomes)
	s.corked, s.ended = false, ended
}

// makeRoom wakes callers that wait for room. The caller has locked mu.
func (s *Session) makeRoom() {
	if s.wants > 0 {
		s.wants = 0
		close(s.room)
		s.room = make(chan struct{})
	}
}

type ended struct {
	call   call
	result Result
	err    error
}

// finish turns an outcome into what the caller gets.
func finish(c call, o session.Outcome) ended {
	e := ended{call: c}
	switch {
	case o.Err != nil && o.Unknown:
		e.err = &UnknownError{Op: c.op, Key: c.key, Err: o.Err}
	case errors.Is(o.Err, session.ErrExpired):
		e.err = fmt.Errorf("%s %q: %w", c.op, c.key, ErrExpired)
	case o.Err != nil:
		e.err = fmt.Errorf("kv: %s %q: %w", c.op, c.key, o.Err)
	case len(o.Result) > 0:
		r, err := wire.ParseResult(o.Result)
		if err != nil {
			e.err = fmt.Errorf("kv: %s %q: answer: %w", c.op, c.key, err)
			break
		}
		if o.Revision != 0 {
			r.Revision = o.Revision
		}
		e.result = Result{wire: r, Fast: o.Fast}
		e.err = codeError(c.op, c.key, r.Code)
	default:
		e.result = Result{Fast: o.Fast}
	}
	return e
}

// Close ends the session: it waits for the operations in flight and until the
// session's weak writes are committed, and then makes the cluster forget the session and
// the answers that it keeps for it. Once Close is called, operations fail with
// ErrClosed. If ctx ends first, Close returns its error, and continues in the background
// until the client is closed; the cluster then forgets the session when it has been
// idle for long. Closing a session again, or after its client, has no effect.
func (s *Session) Close(ctx context.Context) error {
	s.mu.Lock()
	if s.dead != nil {
		s.mu.Unlock()
		return nil
	}
	s.dead = ErrClosed
	s.mu.Unlock()
	if err := s.finish(ctx); err != nil {
		s.finishBehind()
		return fmt.Errorf("kv: close a session: %w", err)
	}
	return nil
}

// finish ends a session; it may be called repeatedly.
func (s *Session) finish(ctx context.Context) error {
	err := s.quiet(ctx)
	if err == nil {
		err = s.last(ctx, func(p *session.Session) error { return p.Wait(s.c.now(), s.tag) })
	}
	if err == nil {
		err = s.last(ctx, func(p *session.Session) error { return p.End(s.c.now(), s.tag) })
	}
	if err == nil {
		s.c.forget(s)
	}
	return err
}

// finishBehind calls finish in the background, until the client is closed.
func (s *Session) finishBehind() {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if !s.c.closed {
		s.c.wait.Go(func() { _ = s.finish(s.c.life) }) // Close has returned the reason
	}
}

// connected tells the session that a replica can be reached.
func (s *Session) connected(id uint64, conn *peer.Conn) {
	s.tend(func(p *session.Session, now int64) {
		p.Connected(now, id)
		p.Distance(id, int64(conn.RTT().Last))
	})
}

// quiet waits until no operation is in flight.
func (s *Session) quiet(ctx context.Context) error {
	for {
		s.mu.Lock()
		room, under := s.room, len(s.calls)
		s.wants++
		s.mu.Unlock()
		if under == 0 {
			return nil
		}
		select {
		case <-room:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// last performs an operation of a session that is being closed.
func (s *Session) last(ctx context.Context, begin func(*session.Session) error) error {
	ch := make(chan error, 1)
	s.mu.Lock()
	s.tag++
	if err := begin(s.pure); err != nil {
		s.mu.Unlock()
		if errors.Is(err, session.ErrExpired) {
			return nil // the cluster has forgotten it already
		}
		return err
	}
	s.calls[s.tag] = call{op: "close", done: func(_ Result, err error) { ch <- err }}
	s.after()
	select {
	case err := <-ch:
		return err
	case <-s.c.life.Done(): // and no other goroutine can abandon it any more
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// abandon fails all calls: the client is closed.
func (s *Session) abandon() {
	s.mu.Lock()
	calls := s.calls
	s.calls = map[uint64]call{}
	s.dead = ErrClosed
	close(s.room)
	s.room = make(chan struct{})
	s.mu.Unlock()
	for _, c := range calls {
		c.done(Result{}, &UnknownError{Op: c.op, Key: c.key, Err: ErrClosed})
	}
}

// Issue starts an operation and returns; done is called once with its outcome, on a
// goroutine that delivers answers, which may be that of any caller of Issue. So done must be
// quick; it may issue further operations. If Issue returns an error, done is not called;
// after ErrFull, wait until other operations have ended.
func (s *Session) Issue(o Op, done func(Result, error)) error {
	if err := o.tooLarge(); err != nil {
		return err
	}
	s.mu.Lock()
	if s.dead != nil {
		s.mu.Unlock()
		return s.dead
	}
	now := s.c.now()
	if write := o.command.Verb.IsWrite(); write {
		if s.used != 0 && now-s.used > int64(idleForLong) && s.pure.Open() == 0 && s.pure.Unstable() == 0 {
			s.renew(now) // the cluster may have forgotten the old one
		}
		s.used = now
	}
	err := s.issue(o, done)
	if errors.Is(err, session.ErrExpired) && s.pure.Open() == 0 {
		s.renew(now)
		err = s.issue(o, done)
	}
	s.after()
	switch {
	case errors.Is(err, session.ErrFull):
		return ErrFull
	case err != nil:
		return fmt.Errorf("kv: %s %q: %w", o.name(), o.key(), err)
	}
	return nil
}

// idleForLong is the time without a write after which a session is replaced before the next
// one: by default, a cluster forgets a session after an hour.
const idleForLong = 30 * time.Minute

// renew continues with a new session, which sees at least as much as the old one; the old one
// has no operation in flight. Its outcomes that were not reported yet will be.
func (s *Session) renew(now int64) {
	_, ended := s.pure.Take()
	s.kept = append(s.kept, ended...)
	token := s.pure.Token()
	s.pure = s.fresh()
	s.pure.Join(token)
	s.greet(s.pure, now)
}

func (s *Session) issue(o Op, done func(Result, error)) error {
	s.tag++
	var err error
	switch {
	case o.command.Verb == 0:
		err = s.pure.Wait(s.c.now(), s.tag)
	case o.command.Verb.IsWrite():
		err = s.pure.Write(s.c.now(), s.tag, o.command, o.weak)
	default:
		err = s.pure.Read(s.c.now(), s.tag, o.command, o.weak)
	}
	if err == nil {
		s.calls[s.tag] = call{o.name(), o.key(), done}
	}
	return err
}

// Do performs an operation and waits for its outcome, and before that for room if
// necessary. If ctx ends first, the outcome of a write is unknown.
func (s *Session) Do(ctx context.Context, o Op) (Result, error) {
	type answer struct {
		r   Result
		err error
	}
	ch := make(chan answer, 1)
	if err := s.begin(ctx, o, func(r Result, err error) { ch <- answer{r, err} }); err != nil {
		return Result{}, err
	}
	select {
	case a := <-ch:
		return a.r, a.err
	case <-ctx.Done():
		if o.command.Verb.IsWrite() {
			return Result{}, &UnknownError{Op: o.name(), Key: o.key(), Err: ctx.Err()}
		}
		return Result{}, fmt.Errorf("kv: %s %q: %w", o.name(), o.key(), ctx.Err())
	}
}

// begin issues an operation, and waits for room before if necessary.
func (s *Session) begin(ctx context.Context, o Op, done func(Result, error)) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("kv: %s %q was not sent: %w", o.name(), o.key(), err)
	}
	for {
		s.mu.Lock()
		room := s.room
		s.wants++
		s.mu.Unlock()
		if err := s.Issue(o, done); !errors.Is(err, ErrFull) {
			return err
		}
		select {
		case <-room:
		case <-ctx.Done():
			return fmt.Errorf("kv: %s %q: %w", o.name(), o.key(), ctx.Err())
		}
	}
}
