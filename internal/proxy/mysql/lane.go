package mysql

import (
	"strconv"
	"time"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// A lane gathers writes that ask for it and runs them in groups: one
// transaction, one write to the server, one flush of its log.
//
//	client 1  INSERT ─┐                                              ┌─► OK, id 41
//	client 2  UPDATE ─┼─► [BEGIN][op 1][op 2][op 3][PING][COMMIT] ───┼─► OK, 1 row
//	client 3  INSERT ─┘      one write()        one flush            └─► ERROR 1062
//
// A statement that fails takes back itself alone, and the others stay. What
// takes back the whole transaction is a deadlock, after which the server runs
// the rest of the group in transactions of their own. The status flags of each
// answer, and of the PING, tell which: a member that was taken back has not been
// answered, and is run again alone.
//
// A rows lane goes further: INSERTs of one shape become one multi-row INSERT, see
// rows.go.
type lane struct {
	core.Lane[*backend, *unit, *run]
	p    *pool
	key  laneKey
	set  *session.Set  // of the backends that it runs on
	rows *rowsPlan     // nil in a transaction lane
	name func() string // for reports

	losses core.Losses // of backends before they were in the lane's settings
}

// laneKey says which writes may share a group. Everything that could make one
// member's outcome depend on another's context is in it.
type laneKey struct {
	set    *session.Set
	st     *stmt  // rows lane of a prepared statement
	shape  uint64 // rows lane of texts
	rows   bool
	window time.Duration
}

// maxGroupBytes bounds the messages in one group; a longer write goes alone.
// It is below max_allowed_packet wherever that was not lowered.
const maxGroupBytes = 1 << 20

// A run is one group in flight on one backend.
type run struct {
	core.Run
	units  []*unit       // client or multi-row units, in the order of their answers
	failed *mywire.Error // a statement could not be prepared
	tx     bool          // sent between BEGIN and COMMIT
	open   bool          // the server said BEGIN was fine
	late   bool          // COMMIT was sent when the answer had told of a transaction
	intact bool          // the transaction was still the same before COMMIT
	unsure bool          // the server did not say whether it was
	commit *mywire.Error // COMMIT failed
}

// lanes are those of a pool.
type lanes struct {
	p   *pool
	all core.Lanes[laneKey, *lane]
}

// of returns the lane for a key; a new one is called name and, of rows, has a plan.
func (ls *lanes) of(key laneKey, name func() string, plan func() *rowsPlan) *lane {
	p := ls.p
	if ln := ls.all[key]; ln != nil {
		return ln
	}
	cfg := core.LaneConfig(p.Options(), key.window, p.Size, maxGroupBytes)
	if key.window == 0 && !key.rows {
		cfg.MaxLanes = 1 // two groups that update the same rows would wait for each other
	}
	ln := &lane{p: p, key: key, name: name, set: p.lanes.set(key.set)}
	ln.Init(ln, cfg, &p.l.Loop.Loop, &p.l.Agenda, &p.Late)
	if plan != nil {
		ln.rows = plan()
	}
	ls.all.Add(p.l.Now, key, ln)
	return ln
}

// set is the client's settings, with a bound on the waits of a grouped
// write for rows and tables that somebody else has locked, so that it does not
// hold up its group; it is then run again alone, with the client's own patience.
// MariaDB knows 0, which is not to wait at all; elsewhere 1 s is the least. A
// COMMIT neither begins another transaction nor ends the connection. And the server
// lists as many warnings as it can, to tell whose they are: see rowsListed.
func (ls *lanes) set(set *session.Set) *session.Set {
	p := ls.p
	wait := lockWait{time.Second, time.Second}
	if p.facts.nowait() {
		wait = lockWait{}
	}
	set = p.settings.With(set, session.Setting{Name: "completion_type", Value: "NO_CHAIN", Literal: true})
	set = p.alone.withLockWait(set, wait)
	if !p.facts.setsListed(set) {
		return set
	}
	return p.settings.With(set, session.Setting{Name: "max_error_count", Value: strconv.Itoa(maxListed), Literal: true})
}

// maxListed is the most warnings of a statement that a server lists.
const maxListed = 65535

// setsListed reports whether the sessions of a group may have the server list all
// warnings. MySQL has allowed that since 9 to few accounts, among them any that has a
// number of its own.
func (f *poolFacts) setsListed(set *session.Set) bool {
	_, own := set.Get("max_error_count")
	return own || f.mariadb
}

// rowsListed is how many rows one statement may have in sessions of such settings, so
// that the server lists their warnings where each has some: of more rows than that it
// could not be told whose a warning is.
// listed is how many the connection's session lists otherwise.
func (f *poolFacts) rowsListed(set *session.Set, listed int) int {
	const aRow = 4
	if f.setsListed(set) {
		listed = maxListed
	}
	return listed / aRow
}

func (ls *lanes) transaction(set *session.Set, window time.Duration) *lane {
	p := ls.p
	return p.lanes.of(laneKey{set: set, window: window}, func() string { return "any write" }, nil)
}

// push adds a unit and has the lane looked at when the turn's reads are done.
func (ln *lane) push(u *unit) {
	u.park, u.c.reader, u.lanedAt = true, nil, ln.p.l.Now
	if err := ln.Push(u, len(u.raw)); err != nil {
		u.park = false
		u.c.lost(u, mywire.NewError(mywire.ErrTooManyConnections, "weir: too many writes wait in one lane: %v", err))
	}
}

// Look sends what may be sent.
func (ln *lane) Look() {
	ln.Awake()
	ln.pump()
}

// pump starts groups while there are items, lanes and backends.
func (ln *lane) pump() {
	for !ln.Queued && ln.Ready() {
		var b *backend
		if len(ln.p.Excl) == 0 {
			b = ln.p.take(ln.set, nil)
		}
		if b == nil {
			ln.Queued = true
			ln.p.Enqueue(waiter{Lane: ln})
			return
		}
		if !ln.give(b) {
			return
		}
	}
}

// give runs a group on a taken backend. It reports whether one was started at
// once.
func (ln *lane) give(b *backend) (started bool) {
	ln.Queued = true // nobody else looks for a backend meanwhile
	b.Mode = core.ModeOwn
	b.readied(ln.set, nil, func(b *backend, err *mywire.Error) {
		ln.Queued = false
		if err != nil {
			lost := b.s.Closed
			ln.p.release(b)
			switch {
			case !lost:
				ln.failAll(err)
			case ln.p.l.Draining() || !ln.losses.Again(ln.p.l.Now, b.Born):
				ln.losses = core.Losses{}
				ln.failAll(errLostUnsent())
			}
			ln.Touch() // else on another one: nothing was sent yet
			return
		}
		ln.losses = core.Losses{}
		if started = ln.start(b); !started {
			ln.p.release(b)
		}
		ln.Touch()
	})
	return started
}

// start takes a group and sends it on b. It reports false if there is nothing
// to send.
func (ln *lane) start(b *backend) bool {
	if !ln.Take() {
		return false
	}
	r := &run{}
	for _, u := range ln.Taken {
		switch {
		case u.Left():
		case u.size() >= b.maxPacket:
			u.park = false
			ln.p.Enqueue(waiter{Unit: u}) // the server would hang up on the whole group
		default:
			u.began = ln.p.l.Now
			r.units = append(r.units, u)
		}
	}
	clear(ln.Taken)
	if len(r.units) == 0 {
		ln.None()
		return false
	}
	ln.Begin(b, r, &r.Run, len(r.units))
	b.Mode, b.lane = core.ModeLaned, ln
	b.lastUser = nil
	b.yieldID(nil)
	if ln.rows != nil && r.Count > 1 {
		r.units = ln.rows.gather(ln, r.units, b)
	}
	ln.ready(b, r)
	return true
}

// ready has the group's statements prepared on b where they are not, and sends
// the group when all are.
func (ln *lane) ready(b *backend, r *run) {
	missing := 0
	for _, u := range r.units {
		st := u.st
		if st == nil || b.prepared[st] != nil || st.learning {
			continue
		}
		missing++
		st.learning = true
		b.learn(st, func(err *mywire.Error) {
			st.learning = false
			if err != nil && r.failed == nil {
				r.failed = err
			}
		})
	}
	for _, u := range r.units {
		if u.st != nil {
			u.st.learning = false
		}
	}
	if missing == 0 {
		ln.send(b, r)
	}
	// Otherwise backendQuiet comes when they are prepared.
}

// send appends the group.
func (ln *lane) send(b *backend, r *run) {
	r.tx = len(r.units) > 1
	r.open, r.intact = true, true
	if r.tx {
		b.hidden(mywire.ComQuery, func(u *unit) { r.open = u.err == nil })
		b.s.Out = mywire.AppendCommand(b.s.OutBuf(), mywire.ComQuery, "BEGIN")
	}
	for _, u := range r.units {
		if u.kind == unitRows {
			u.grp.send(b, u, r.tx)
		} else {
			b.send(u)
		}
	}
	if r.tx {
		b.hidden(mywire.ComPing, func(u *unit) {
			r.intact, r.unsure = u.err == nil && u.ok.Status&mywire.StatusInTrans != 0, u.err != nil
		})
		b.s.Out = mywire.AppendPing(b.s.OutBuf())
		b.hidden(mywire.ComQuery, func(u *unit) { r.commit = u.err })
		b.s.Out = mywire.AppendCommand(b.s.OutBuf(), mywire.ComQuery, "COMMIT")
	}
	r.Sent = true
}

// needs reports whether the lane is about to use a statement on some backend.
func (ln *lane) needs(st *stmt) bool {
	if ln.rows != nil && ln.rows.has(st) {
		return true
	}
	for _, r := range ln.Runs {
		for _, u := range r.units {
			if u.st == st {
				return true
			}
		}
	}
	return false
}

// backendQuiet goes on with a run: everything that was sent has been answered.
func (ln *lane) backendQuiet(b *backend) {
	r := ln.Runs[b]
	p := ln.p
	if !r.Sent {
		if r.failed == nil {
			ln.send(b, r)
			return
		}
		// A text that the server does not take any more. Alone, each gets the
		// server's own answer.
		for _, u := range r.units {
			ln.again(u)
		}
	} else {
		if r.leftOpen() {
			ln.commit(b, r)
			return
		}
		for _, u := range r.units {
			ln.conclude(r, u)
		}
	}
	ln.End(b, &r.Run)
	b.lane = nil
	p.release(b)
	ln.Touch()
}

// leftOpen reports whether a statement that was sent without BEGIN has left a transaction
// open, which the server would roll back with the connection: its sessions do not begin
// as weir knows.
func (r *run) leftOpen() bool {
	if r.tx || r.late {
		return false
	}
	u := r.units[0]
	return !u.failed && u.ok.Status&mywire.StatusInTrans != 0
}

// commit sends the COMMIT of a transaction that one statement has left open.
func (ln *lane) commit(b *backend, r *run) {
	r.late = true
	b.hidden(mywire.ComQuery, func(u *unit) { r.commit = u.err })
	b.s.Out = mywire.AppendCommand(b.s.OutBuf(), mywire.ComQuery, "COMMIT")
}

// conclude decides what became of one member, or of one multi-row statement.
func (ln *lane) conclude(r *run, u *unit) {
	switch {
	case !r.tx && !r.late || !r.open:
		// It was a transaction of its own.
	case r.unsure && !u.failed && u.ok.Status&mywire.StatusInTrans != 0:
		ln.lost(u, mywire.NewError(mywire.ErrUnknown, "weir: whether the group of this statement was committed is unknown"))
		return
	case !r.intact:
		if u.failed || u.ok.Status&mywire.StatusInTrans != 0 {
			ln.again(u) // taken back with the transaction, or failed because of it
			return
		}
	case r.commit != nil && rolledBack(r.commit.Code):
		ln.again(u)
		return
	case r.commit != nil:
		ln.lost(u, mywire.NewError(r.commit.Code, "%s (COMMIT of a group of weir; whether the statement took effect is unknown)", r.commit.Message))
		return
	}
	if u.kind == unitRows {
		u.grp.conclude(u)
		return
	}
	if u.failed && !u.wrote && ln.ownMaking(u) {
		ln.again(u)
		return
	}
	ln.acknowledge(u)
}

// rolledBack reports whether a COMMIT that failed with this number certainly took
// everything back.
func rolledBack(code uint16) bool {
	return code == mywire.ErrDeadlock || code == mywire.ErrLockWaitTimeout
}

// ownMaking reports whether an error came from running in a group: a lock that was
// not waited for as long as the client would have, a deadlock with other members'
// locks, a statement that this backend had lost.
func (ln *lane) ownMaking(u *unit) bool {
	switch u.code {
	case mywire.ErrLockWaitTimeout, mywire.ErrDeadlock, mywire.ErrUnknownStatement:
		return true
	}
	// Weir itself kills nothing on a lane's connections: who has interrupted a member
	// has seen it in the server's list, and means it.
	return false
}

// again runs a member of a group alone, or the members of a multi-row statement
// each by itself in a transaction lane. Nothing of them has taken effect.
func (ln *lane) again(u *unit) {
	if u.kind == unitRows {
		u.grp.apart()
		return
	}
	c := u.c
	if c == nil || c.s.Closed {
		ln.p.l.recycle(u)
		return
	}
	if u.wrote {
		c.kick("its write was taken back with its group, and a part of its answer has left") // it begins anew
		ln.p.l.recycle(u)
		return
	}
	if u.dead { // killed meanwhile
		c.lost(u, errInterrupted())
		return
	}
	ln.Retried++
	if u.code == mywire.ErrLockWaitTimeout && u.failed {
		u.Tries = max(1, u.Tries) // somebody holds the lock
	}
	u.again()
	ln.p.alone.queue(u)
}

// acknowledge gives a member its answer.
func (ln *lane) acknowledge(u *unit) {
	c := u.c
	if c == nil || c.s.Closed {
		ln.p.l.recycle(u)
		return
	}
	switch {
	case !u.wrote:
		outOfTransaction(u.resp, c.caps, true)
	case !u.failed:
		mywire.ClearStatus(u.resp[u.end+mywire.HeaderLen:], c.caps, mywire.StatusInTrans)
	}
	c.s.Write(u.resp)
	c.responder.grouped(u, u.ok.LastInsertID, u.ok.Warnings)
}

// outOfTransaction takes the flag of the group's transaction out of an answer:
// out of its first packet if that is an OK, out of its last, and out of the EOF
// between columns and rows. All others are definitions and rows. Not whole, it is the
// beginning of an answer.
func outOfTransaction(resp []byte, caps mywire.Caps, whole bool) {
	first := true
	for p := resp; len(p) > mywire.HeaderLen; first = false {
		n, _, _ := mywire.Peek(p)
		end := mywire.HeaderLen + n
		if len(p) < end {
			return
		}
		payload := p[mywire.HeaderLen:end]
		if first || whole && end == len(p) || (mywire.IsEOF(payload) && !caps.Has(mywire.CapDeprecateEOF)) {
			mywire.ClearStatus(payload, caps, mywire.StatusInTrans)
		}
		p = p[end:]
	}
}

// unsent has a member run alone whose backend is gone before anything of it has left weir.
func (ln *lane) unsent(b *backend, u *unit) {
	if c := u.c; c != nil && !c.s.Closed {
		n := ln.p.sharing.moveOut(b, u)
		n.again()
		ln.p.alone.queue(n)
		ln.p.Apart.EndGhosts(&b.Conn) // the server has none of it
	}
}

// lost answers a member whose outcome is not known.
func (ln *lane) lost(u *unit, e *mywire.Error) {
	if u.kind == unitRows {
		u.grp.lost(u, e)
		return
	}
	if c := u.c; c != nil && !c.s.Closed {
		c.lost(u, e)
		u.c = nil
	}
}

// backendGone ends a run whose backend is gone.
func (ln *lane) backendGone(b *backend, e *mywire.Error) {
	r := ln.Runs[b]
	if r == nil {
		return
	}
	ln.End(b, &r.Run)
	for _, u := range r.units {
		if !r.Sent {
			ln.again(u) // never left weir
			continue
		}
		ln.lost(u, e)
	}
	ln.Touch()
}

// failAll answers everything that waits in the lane with an error.
func (ln *lane) failAll(e *mywire.Error) {
	ln.expire(0, func(u *unit) { u.c.lost(u, e) })
}

// expire calls lose for what has waited in the lane at least as long as min, beyond the
// window that it was to wait for others; with 0 it is everything.
func (ln *lane) expire(minWait time.Duration, lose func(u *unit)) {
	if minWait > 0 {
		minWait += ln.key.window
	}
	ln.Q.Remove(func(u *unit) bool {
		if ln.p.l.Now-u.lanedAt < minWait {
			return false
		}
		if !u.Left() {
			lose(u)
		}
		return true
	})
}
