package replica

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/weirdb/weir/internal/kvd/consensus/session"
	"github.com/weirdb/weir/internal/kvd/resp"
	"github.com/weirdb/weir/internal/kvd/wire"
)

// maxQueued is how many requests of a line wait for those in flight, beyond what
// a session accepts.
const maxQueued = 16 << 10

// A line is a connection's session of the cluster, and its requests.
type line struct {
	g *gateway

	mu      sync.Mutex // guards what follows
	slot    uint64     // its requests are numbered from slot << slotShift
	s       *session.Session
	expired bool         // the cluster has forgotten the session
	replies resp.Replies // nil when the connection is closed
	left    int64        // when it was closed
	used    int64        // last write
	first   uint64       // tag of entries[0]
	entries []entry      // in order of issue
	again   []unfit      // reads whose answers found no room, by tag
	queue   []queued     // requests that wait for their turn, by tag: after those in again
	coming  int          // bytes of answers that were asked for again
	window  int          // maximum of reads in flight, see learn
	moved   int64        // when a request was last answered, or a read only waited for the client
	gaveUp  int64        // when a write or a strong read was given up
	local   []localRead  // to be read from this replica's state
	locals  int          // reads that it was asked for; writes wait for them
	waits   []wait       // committed, but not on enough replicas
	marked  bool         // replies were completed and not flushed

	busy  bool   // it has a connection; guarded by the gateway's lock
	known uint64 // session by which the gateway finds it; guarded by the gateway's lock, too
}

// entry is a request in flight.
type entry struct {
	reply    *resp.Reply // nil once it is answered, or no longer wanted
	over     bool        // the session has reported its outcome
	write    bool
	level    resp.Level
	waits    bool // in the queue, or to be asked again
	stale    bool // it was in flight when one before it was put off
	coming   int  // bytes of the answer, if it was asked for again
	deadline int64
	wait     *wait
}

// queued is a request that waits for the session.
type queued struct {
	tag     uint64
	command []byte
	query   bool
	local   bool // from this replica's state
	weak    bool
	wait    bool // not a command: a WAIT
}

// wait is a WAIT of a client.
type wait struct {
	reply    *resp.Reply
	replicas int
	index    uint64 // entry of the log, once it is committed
	deadline int64  // 0: none
}

// Do implements resp.Session.
func (l *line) Do(batch []resp.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.g.clock()
	hopeless := l.g.hopeless(now)
	joining := len(l.g.Replica.Status().Members) == 0 // it has no state to answer from
	for i := range batch {
		r := &batch[i]
		err := resp.ErrLoading
		if !joining {
			err = l.issue(now, r, hopeless)
		}
		if err != nil {
			r.Reply.Done(wire.Result{}, err)
		}
	}
	l.settle()
}

// localRead is a query that is answered from what this replica has applied,
// whatever the session has seen elsewhere.
type localRead struct {
	tag             uint64
	command, result []byte
}

// issue begins one request. After an error it is not in flight.
func (l *line) issue(now int64, r *resp.Request, hopeless bool) error {
	c := &r.Command
	query, blind := natureOf(c)
	weak := r.Level != resp.Strong && (query || blind && !r.Certain)
	switch {
	case hopeless && !(query && weak):
		return resp.ErrNoQuorum
	case !query && largest(c) > l.g.cfg.MaxValue:
		r.Reply.Done(wire.Result{Code: wire.TooLarge}, nil)
		return nil
	}
	l.refresh(now, query)
	if !query {
		l.used = now
	}
	tag := l.first + uint64(len(l.entries))
	q := queued{tag: tag, query: query, local: query && r.Level == resp.Local, weak: weak}
	err := session.ErrFull
	if len(l.queue) == 0 && len(l.again) == 0 {
		err = l.hand(now, &q, c)
	}
	full := errors.Is(err, session.ErrFull)
	if full {
		if len(l.queue) >= maxQueued {
			return resp.ErrBusy
		}
		q.command = c.Append(nil)
		l.queue = append(l.queue, q)
		err = nil
	}
	if err != nil {
		return l.explain(session.Outcome{Err: err})
	}
	l.entries = append(l.entries, entry{
		reply: r.Reply, write: !query, level: r.Level, waits: full, deadline: now + int64(l.g.cfg.RequestTimeout),
	})
	return nil
}

// natureOf reports whether a command is a query, and if not, whether its answer can
// be omitted.
func natureOf(c *wire.Command) (query, blind bool) {
	if c.Verb >= wire.Get {
		return true, false
	}
	var f wire.Footprint
	c.Footprint(&f)
	return !f.Write, f.Blind
}

// largest is the size of the largest value that a command writes.
func largest(c *wire.Command) int {
	n := len(c.Value)
	for i := range c.Pairs {
		n = max(n, len(c.Pairs[i].Value))
	}
	for i := range c.Commands {
		n = max(n, largest(&c.Commands[i]))
	}
	return n
}

// refresh gives the line a new session if the old one has expired or, before
// a write, soon will because nothing was written for long.
func (l *line) refresh(now int64, query bool) {
	if l.expired || !query && l.s.Open() == 0 && l.s.Unstable() == 0 && l.stale(now) {
		_, ended := l.s.Take()
		for i := range ended {
			l.complete(&ended[i])
		}
		l.g.begin(l, now)
		l.expired = false
	}
}

// stale reports that the session might expire before it is used.
func (l *line) stale(now int64) bool {
	idle := l.g.cfg.SessionIdle
	if idle == 0 {
		idle = time.Hour
	}
	return now-l.used > int64(idle/2)
}

// hand passes a request to the session, or a local read to the replica. The window bounds the
// reads in flight. A write waits for earlier reads of the keys that it writes, so that
// they do not see it. A session that turns out to have expired is replaced: it has not
// accepted the request.
func (l *line) hand(now int64, q *queued, c *wire.Command) error {
	switch {
	case q.local && l.locally() >= l.window, q.query && !q.local && l.s.Reads() >= l.window:
		return session.ErrFull
	case q.local:
		if err := c.Validate(); err != nil {
			return err
		}
		l.local = append(l.local, localRead{tag: q.tag, command: c.Append(nil)})
		return nil
	}
	err := l.offer(now, q, c)
	if errors.Is(err, session.ErrExpired) {
		l.expired = true
		l.refresh(now, q.query)
		err = l.offer(now, q, c)
	}
	return err
}

func (l *line) offer(now int64, q *queued, c *wire.Command) error {
	switch {
	case q.query:
		return l.s.Read(now, q.tag, *c, q.weak)
	case l.locally() > 0 || l.s.Overtakes(c):
		return session.ErrFull
	}
	return l.s.Write(now, q.tag, *c, q.weak)
}

// settle sends the session's messages and completes requests that have ended, until
// nothing more follows. It reports whether replies were completed.
func (l *line) settle() (completed bool) {
	for {
		sends, outcomes := l.s.Take()
		if len(sends) > 0 {
			l.g.send(sends)
		}
		for i := range outcomes {
			completed = l.complete(&outcomes[i]) || completed
		}
		idle := len(sends) == 0 && len(outcomes) == 0
		l.s.Recycle(sends, outcomes)
		if idle && !l.drain() {
			l.trim()
			break
		}
	}
	if len(l.local) > 0 {
		l.locals += len(l.local)
		l.g.readLocally(l, l.local)
		l.local = nil
	}
	return completed
}

// drain passes waiting requests to the session, and reports whether it accepted any.
func (l *line) drain() bool {
	now := l.g.clock()
	took := l.askAgain(now)
	if len(l.again) > 0 {
		return took
	}
	n := 0
	for ; n < len(l.queue); n++ {
		q := &l.queue[n]
		e := l.entry(q.tag)
		if e.reply == nil && !q.wait { // it has timed out
			e.over = true
			continue
		}
		err := l.handQueued(now, q)
		if errors.Is(err, session.ErrFull) {
			break
		}
		e.waits = false
		if err != nil {
			l.complete(&session.Outcome{Tag: q.tag, Err: err})
		} else {
			e.deadline = l.due(e)
		}
	}
	clear(l.queue[:n])
	l.queue = l.queue[n:]
	if len(l.queue) == 0 {
		l.queue = nil
	}
	return took || n > 0
}

func (l *line) handQueued(now int64, q *queued) error {
	if q.wait {
		return l.s.Wait(now, q.tag)
	}
	c, err := wire.ParseCommand(q.command)
	if err != nil {
		return err
	}
	return l.hand(now, q, &c)
}

// complete ends one request, and reports whether its client was answered.
func (l *line) complete(o *session.Outcome) bool {
	if o.Err != nil && errors.Is(o.Err, session.ErrExpired) {
		l.expired = true
	}
	e := l.entry(o.Tag)
	if e == nil {
		return false // it was given up with the connection
	}
	if o.Err == nil {
		l.moved = l.g.clock()
	}
	if l.unfit(e, o) {
		return false
	}
	e.over = true
	if e.wait != nil {
		return l.committed(e, o)
	}
	reply := e.reply
	e.reply = nil
	if reply == nil {
		return false
	}
	if o.Err != nil {
		reply.Done(wire.Result{}, l.explain(*o))
		return true
	}
	if len(o.Result) == 0 { // a weak write, whose answer is only that it happened
		reply.Done(wire.Result{}, nil)
		return true
	}
	result, err := wire.ParseResult(o.Result)
	if err != nil {
		err = fmt.Errorf("answer of the cluster: %w", err)
	}
	if o.Revision != 0 {
		result.Revision = o.Revision
	}
	reply.Done(result, err)
	return true
}

// explain translates an outcome's error to the words that Redis clients know.
func (l *line) explain(o session.Outcome) error {
	switch {
	case errors.Is(o.Err, session.ErrExpired) && o.Unknown:
		return resp.ErrUncertain
	case errors.Is(o.Err, session.ErrExpired):
		return resp.ErrExpired
	case errors.Is(o.Err, session.ErrFull):
		return resp.ErrBusy
	}
	return errors.New(strings.ReplaceAll(o.Err.Error(), "\n", ": "))
}

// trim removes the oldest requests that have ended.
func (l *line) trim() {
	n := 0
	for n < len(l.entries) && l.entries[n].over {
		n++
	}
	if n == 0 {
		return
	}
	l.first += uint64(n)
	left := copy(l.entries, l.entries[n:])
	clear(l.entries[left:])
	l.entries = l.entries[:left]
}

// expire answers requests that have timed out.
func (l *line) expire(now int64) {
	told := false
	if len(l.again) > 0 && l.s.Reads()+l.locally() == 0 {
		l.moved = now // all wait for the client
	}
	for i := range l.entries {
		e := &l.entries[i]
		if e.reply == nil || e.wait != nil {
			continue
		}
		if e.waits {
			e.deadline = l.due(e)
		}
		if e.deadline <= now {
			l.giveUp(now, l.first+uint64(i), e)
			told = true
		}
	}
	for i := range l.entries {
		if e := &l.entries[i]; e.wait != nil && e.wait.deadline != 0 && e.wait.deadline <= now {
			e.wait.reply.Done(wire.Result{}, nil) // not even committed
			e.wait.deadline = 0
			e.wait.reply = nil
			told = true
		}
	}
	if told {
		l.tell()
	}
}

// due is when a waiting request times out: it waits for its client, or for
// earlier answers. A weak read may be answered although earlier ones were given up.
func (l *line) due(e *entry) int64 {
	since := l.moved
	if e.level != resp.Strong && !e.write {
		since = max(since, l.gaveUp)
	}
	return max(e.deadline, since+int64(l.g.cfg.RequestTimeout))
}

// giveUp answers a request that has timed out. A read in flight is
// cancelled, so that others get its place; a write may still happen.
func (l *line) giveUp(now int64, tag uint64, e *entry) {
	err := resp.ErrNoQuorum
	if e.write {
		err = resp.ErrUncertain
	}
	e.reply.Done(wire.Result{}, err)
	e.reply = nil
	if e.write || e.level == resp.Strong {
		l.gaveUp = now
	}
	if !e.waits && !e.write && e.level != resp.Local {
		l.s.Cancel(tag)
		l.coming -= e.coming
		e.over, e.coming = true, 0
	}
}

// tell makes the gateway flush the line's replies.
func (l *line) tell() {
	if !l.marked {
		l.marked = true
		l.g.dirty = append(l.g.dirty, l)
	}
}

// Wait implements resp.Session. What is committed is on a majority of disks;
// only the leader knows of more replicas.
func (l *line) Wait(replicas int, timeout time.Duration, reply *resp.Reply) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.g.clock()
	w := &wait{reply: reply, replicas: replicas}
	if timeout > 0 {
		w.deadline = now + int64(timeout)
	}
	tag := l.first + uint64(len(l.entries))
	err := session.ErrFull
	if len(l.queue) == 0 { // else it would not wait for what was not sent yet
		err = l.s.Wait(now, tag)
	}
	if errors.Is(err, session.ErrFull) && len(l.queue) < maxQueued {
		l.queue = append(l.queue, queued{tag: tag, wait: true})
		err = nil
	}
	if err != nil {
		reply.Done(wire.Result{}, l.explain(session.Outcome{Err: err}))
		return
	}
	l.entries = append(l.entries, entry{reply: reply, wait: w})
	l.settle()
}

// committed ends the first part of a WAIT: the writes before it are committed.
func (l *line) committed(e *entry, o *session.Outcome) bool {
	w := e.wait
	e.reply, e.wait = nil, nil
	switch {
	case w.reply == nil:
		return false
	case o.Err != nil:
		w.reply.Done(wire.Result{}, l.explain(*o))
		return true
	}
	w.index = l.s.Token().Index
	if s := l.g.Replica.Status(); s.holders(w.index) >= w.replicas {
		w.reply.Done(wire.Result{Number: int64(s.holders(w.index))}, nil)
		return true
	}
	l.waits = append(l.waits, *w)
	return false
}

// look completes the WAITs that have been satisfied, or have timed out.
func (l *line) look(s *Status) {
	if len(l.waits) == 0 {
		return
	}
	now := l.g.clock()
	kept := l.waits[:0]
	for _, w := range l.waits {
		n := s.holders(w.index)
		if n < w.replicas && (w.deadline == 0 || w.deadline > now) {
			kept = append(kept, w)
			continue
		}
		w.reply.Done(wire.Result{Number: int64(n)}, nil)
		l.tell()
	}
	l.waits = kept
}

// holders is how many voters besides the leader have a committed entry on their
// disks, as far as this replica knows.
func (s *Status) holders(index uint64) int {
	voters, have := 0, 0
	for i := range s.Members {
		if !s.Members[i].Learner {
			voters++
		}
	}
	for i := range s.Peers {
		if p := &s.Peers[i]; !p.Learner && p.ID != s.ID && p.Match >= index {
			have++
		}
	}
	return max(have, voters/2)
}

// Token implements resp.Session.
func (l *line) Token() (view, index uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.s.Token()
	return t.View, t.Index
}

// Advance implements resp.Session.
func (l *line) Advance(view, index uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.s.Join(session.Token{View: view, Index: index})
}

// Close implements resp.Session. Requests in flight continue for a while.
func (l *line) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.g.open.Add(-1)
	l.replies, l.left = nil, l.g.clock()
	l.g.mu.Lock()
	l.busy = false
	l.g.mu.Unlock()
	for i := range l.entries {
		l.entries[i].reply = nil
		if w := l.entries[i].wait; w != nil {
			w.reply = nil
		}
	}
	l.waits, l.queue, l.again, l.coming = nil, nil, nil, 0
	for i := range l.entries {
		l.entries[i].over = true
	}
	l.trim()
}
