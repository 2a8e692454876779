package mysql

import (
	"strconv"
	"time"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// A lane collects writes that ask for it and runs them in groups: one transaction, one write to
// the server, one flush of its log.
//
//	client 1  INSERT ─┐                                              ┌─► OK, id 41
//	client 2  UPDATE ─┼─► [BEGIN][op 1][op 2][op 3][PING][COMMIT] ───┼─► OK, 1 row
//	client 3  INSERT ─┘      one write()        one flush            └─► ERROR 1062
//
// The server rolls back a statement that fails by itself, and the others stay. A deadlock rolls
// back the whole transaction; the server then runs the rest of the group in transactions of
// their own. The status flags of each answer, and of the PING, show which: a member that was
// rolled back with the transaction has not been answered yet, and runs again alone.
//
// A rows lane goes further: INSERTs of one shape become one multi-row INSERT, see rows.go.
type lane struct {
	core.Lane[*backend, *unit, *run]
	p    *pool
	key  laneKey
	set  *session.Set  // of the backends that it runs on
	rows *rowsPlan     // nil in a transaction lane
	name func() string // for reports

	losses core.Losses // of backends before the lane's settings were applied on them
}

// A laneKey says which writes may share a group. It has everything that could make one member's
// outcome depend on another's context.
type laneKey struct {
	set    *session.Set
	st     *stmt  // rows lane of a prepared statement
	shape  uint64 // rows lane of texts
	rows   bool
	window time.Duration
}

// maxGroupBytes bounds the messages in one group; a longer write runs alone. It is below the
// default max_allowed_packet.
const maxGroupBytes = 1 << 20

// A run is one group in flight on one backend.
type run struct {
	core.Run
	units  []*unit       // client or multi-row units, in the order of their answers
	failed *mywire.Error // a statement could not be prepared
	tx     bool          // sent between BEGIN and COMMIT
	open   bool          // the server accepted BEGIN
	late   bool          // COMMIT was sent after the answer reported a transaction
	intact bool          // the transaction was still open before COMMIT
	unsure bool          // the server did not say whether it was
	commit *mywire.Error // COMMIT failed
}

// lanes are the lanes of a pool.
type lanes struct {
	p   *pool
	all core.Lanes[laneKey, *lane]
}

// of returns the lane for a key. A new lane gets the name and, if it is a rows lane, the plan.
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

// set returns the client's settings with a limit on how long a grouped write waits for locks on
// rows and tables, so that it does not hold up its group; it then runs again alone, with the
// client's own limit. MariaDB allows 0, which means not to wait at all; elsewhere 1 s is the
// minimum. A COMMIT neither begins another transaction nor ends the connection. The server
// lists as many warnings as it can, so that weir can assign them to clients: see rowsListed.
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

// maxListed is the most warnings of a statement that a server can list.
const maxListed = 65535

// setsListed reports whether the sessions of a group may raise max_error_count. Since MySQL 9
// only few accounts may, among them any that has set a value of its own.
func (f *poolFacts) setsListed(set *session.Set) bool {
	_, own := set.Get("max_error_count")
	return own || f.mariadb
}

// rowsListed is how many rows one statement may have in sessions with these settings so that
// the server lists all their warnings even if each row has some: with more rows weir could not
// tell to which row a warning belongs. listed is how many the connection's session lists
// otherwise.
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

// push adds a unit, and schedules a look at the lane after the turn's reads.
func (ln *lane) push(u *unit) {
	u.park, u.c.reader, u.lanedAt = true, nil, ln.p.l.Now
	if err := ln.Push(u, len(u.raw)); err != nil {
		u.park = false
		u.c.lost(u, mywire.NewError(mywire.ErrTooManyConnections, "weir: too many writes wait in one lane: %v", err))
	}
}

// Look sends what can be sent.
func (ln *lane) Look() {
	ln.Awake()
	ln.pump()
}

// pump starts groups while it has items and backends.
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

// give runs a group on a taken backend. It reports whether the group was started at once.
func (ln *lane) give(b *backend) (started bool) {
	ln.Queued = true // no other backend is looked for meanwhile
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

// start takes a group and sends it on b. It returns false if there is nothing to send.
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
			ln.p.Enqueue(waiter{Unit: u}) // the server would close the whole group's connection
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
	b.saveID(nil)
	if ln.rows != nil && r.Count > 1 {
		r.units = ln.rows.gather(ln, r.units, b)
	}
	ln.ready(b, r)
	return true
}

// ready prepares the group's statements on b where necessary, and sends the group when all are
// prepared.
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
	// Otherwise backendQuiet is called when they are prepared.
}

// send appends the group's messages to the backend's output.
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

// needs reports whether the lane is about to use a statement on a backend.
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

// backendQuiet continues a run: everything that was sent is answered.
func (ln *lane) backendQuiet(b *backend) {
	r := ln.Runs[b]
	p := ln.p
	if !r.Sent {
		if r.failed == nil {
			ln.send(b, r)
			return
		}
		// The server does not accept a text any more. Alone, each member gets the server's own
		// answer.
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

// leftOpen reports whether a statement that was sent without BEGIN has left a transaction open,
// which the server would roll back with the connection. Then sessions do not begin with the
// autocommit that weir knows.
func (r *run) leftOpen() bool {
	if r.tx || r.late {
		return false
	}
	u := r.units[0]
	return !u.failed && u.ok.Status&mywire.StatusInTrans != 0
}

// commit sends COMMIT for a transaction that a single statement has left open.
func (ln *lane) commit(b *backend, r *run) {
	r.late = true
	b.hidden(mywire.ComQuery, func(u *unit) { r.commit = u.err })
	b.s.Out = mywire.AppendCommand(b.s.OutBuf(), mywire.ComQuery, "COMMIT")
}

// conclude decides the outcome of one member, or of one multi-row statement.
func (ln *lane) conclude(r *run, u *unit) {
	switch {
	case !r.tx && !r.late || !r.open:
		// It was a transaction of its own.
	case r.unsure && !u.failed && u.ok.Status&mywire.StatusInTrans != 0:
		ln.lost(u, mywire.NewError(mywire.ErrUnknown, "weir: whether the group of this statement was committed is unknown"))
		return
	case !r.intact:
		if u.failed || u.ok.Status&mywire.StatusInTrans != 0 {
			ln.again(u) // rolled back with the transaction, or failed because of it
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
	if u.failed && !u.wrote && ln.causedByGroup(u) {
		ln.again(u)
		return
	}
	ln.acknowledge(u)
}

// rolledBack reports whether a COMMIT that failed with this error number certainly rolled back
// everything.
func rolledBack(code uint16) bool {
	return code == mywire.ErrDeadlock || code == mywire.ErrLockWaitTimeout
}

// causedByGroup reports whether an error came from running in a group: a lock wait shorter than
// the client's own limit, a deadlock with other members' locks, a statement that this backend
// had lost.
func (ln *lane) causedByGroup(u *unit) bool {
	switch u.code {
	case mywire.ErrLockWaitTimeout, mywire.ErrDeadlock, mywire.ErrUnknownStatement:
		return true
	}
	// weir itself kills nothing on a lane's connections: an administrator found the member in
	// the process list and interrupted it on purpose.
	return false
}

// again runs a member of a group alone, or the members of a multi-row statement each by itself
// in a transaction lane. None of them has taken effect.
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
		c.kick("its write was taken back with its group, and a part of its answer has left") // it starts over
		ln.p.l.recycle(u)
		return
	}
	if u.dead { // killed meanwhile
		c.lost(u, errInterrupted())
		return
	}
	ln.Retried++
	if u.code == mywire.ErrLockWaitTimeout && u.failed {
		u.Tries = max(1, u.Tries) // another session holds the lock
	}
	u.again()
	ln.p.alone.queue(u)
}

// acknowledge sends a member its answer.
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

// outOfTransaction clears the flag of the group's transaction in an answer: in its first packet
// if that is an OK, in its last, and in the EOF between columns and rows. All other packets are
// definitions and rows. If whole is false, resp is the beginning of an answer.
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

// unsent runs a member alone whose connection was lost before any of its bytes were sent.
func (ln *lane) unsent(b *backend, u *unit) {
	if c := u.c; c != nil && !c.s.Closed {
		n := ln.p.sharing.moveOut(b, u)
		n.again()
		ln.p.alone.queue(n)
		ln.p.Apart.EndGhosts(&b.Conn) // none of it reached the server
	}
}

// lost answers a member whose outcome is unknown.
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

// backendGone ends a run whose connection was lost.
func (ln *lane) backendGone(b *backend, e *mywire.Error) {
	r := ln.Runs[b]
	if r == nil {
		return
	}
	ln.End(b, &r.Run)
	for _, u := range r.units {
		if !r.Sent {
			ln.again(u) // it was never sent
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

// expire calls lose for everything that has waited in the lane at least minWait, beyond the
// window for which it waits for others; with 0 it is everything.
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
