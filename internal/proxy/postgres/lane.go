package postgres

import (
	"slices"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// A lane gathers writes that may go to the server as one group. There are two
// kinds. Both answer a client only when its own write is durable by the
// client's own settings, and with its own answer.
//
// Rows lane: INSERTs of one shape become one multi-row INSERT in one
// transaction. Any error rolls all of them back; then they run again separately,
// so that only the culprit fails, with its own error.
//
// Solo lane: any single-statement writes, pipelined, each its own transaction
// with asynchronous commit. Their answers are parked until one small
// synchronous commit behind them has flushed the log past all of them:
//
//	client 1  INSERT ─┐                                             ┌─► INSERT 0 1
//	client 2  UPDATE ─┼─► [op 1][op 2][op 3][marker, sync commit] ──┼─► UPDATE 1
//	client 3  DELETE ─┘      one write()         one fsync          └─► ERROR 23503
//
// The log is sequential, so a durable marker makes everything before it durable. The
// lane's one weakening: another session may see a row before it is durable, as with
// any asynchronous commit. It is therefore never used for a client that has set
// synchronous_commit itself.
type lane struct {
	core.Lane[*backend, *unit, *run]
	p    *pool
	key  laneKey
	set  *session.Set // of the backends that it runs on
	rows *rowsPlan    // nil in a solo lane
	// setNow is set with the lock_timeout for groups of the last one's size.
	setNow *session.Set
	name   func() string // for display
	losses core.Losses   // connections lost before the lane's settings were applied on them
}

// laneKey identifies the writes that may share a group. It contains everything that could
// make one member's outcome depend on another's context.
type laneKey struct {
	set     *session.Set
	stmt    *stmt  // rows lane of a prepared statement
	shape   uint64 // rows lane of simple queries
	formats string // rows lane: result formats of Bind
	rows    bool
	sync    bool // solo lane without asynchronous commit
	window  time.Duration
}

// async reports whether the lane's backends commit asynchronously, so that each run needs
// a marker, whatever weir has learned about the server since.
func (k *laneKey) async() bool { return !k.rows && !k.sync }

// laneLockTimeout bounds how long a grouped write waits for a lock of another session, so
// that it does not hold up its group; then it runs again apart (apart.go). Each of many members
// may have to wait, so the bound falls with their number: a group waits for locks for less
// than a second at worst.
func laneLockTimeout(members int) time.Duration {
	switch {
	case members <= 8:
		return 25 * time.Millisecond
	case members <= 32:
		return 10 * time.Millisecond
	default:
		return 3 * time.Millisecond
	}
}

// maxGroupBytes bounds the messages of one group. A longer write goes alone.
const maxGroupBytes = 4 << 20

// A run is one group in flight on one backend.
type run struct {
	core.Run
	ln      *lane
	units   []*unit // of a multi-row run only the count matters: its groups answer and recycle them
	rows    bool    // sent as multi-row groups
	flushed bool    // the marker was answered without error, or none was needed
	notices []byte  // notices with the marker, such as that the wait for a standby was cancelled

	cancelled []*unit // members that their clients have cancelled, and that may wait for a standby: see standby.go
	asks      bool    // weir asks whether it waits for one
}

// lanes are the lanes of a pool.
type lanes struct {
	p   *pool
	all core.Lanes[laneKey, *lane]
}

// of returns the lane for a key; a new one gets a name and, for rows, a plan.
func (ls *lanes) of(key laneKey, name func() string, plan func() *rowsPlan) *lane {
	p := ls.p
	if ln := ls.all[key]; ln != nil {
		return ln
	}
	ln := &lane{p: p, key: key, name: name}
	cfg := core.LaneConfig(p.Options(), key.window, p.Size, maxGroupBytes)
	if key.sync {
		cfg.MaxItems = 1 // behind one that waits for a standby, another one could not be cancelled
	}
	ln.Init(ln, cfg, &p.l.Loop.Loop, &p.l.Agenda, &p.Late)
	ln.set = p.lanes.set(key, 1)
	ln.setNow = ln.set
	if plan != nil {
		ln.rows = plan()
	}
	ls.all.Add(p.l.Now, key, ln)
	return ln
}

// set is the client's settings with a bound on lock waits, unless the client's own is
// shorter, and for the solo lane with asynchronous commit.
func (ls *lanes) set(key laneKey, members int) *session.Set {
	p := ls.p
	set := key.set
	if d, ours := p.facts.lockBound(set, laneLockTimeout(members), 0); ours {
		set = withLockTimeout(p.settings, set, d)
	}
	if key.async() {
		set = p.settings.With(set, session.Setting{Name: "synchronous_commit", Value: "off", Literal: true})
	}
	return set
}

// flushable reports whether writes in these settings may be acknowledged by a
// group flush.
func (ls *lanes) flushable(set *session.Set) bool {
	p := ls.p
	if p.l.cfg.NoSoloLane || !p.facts.canFlush || p.facts.syncDefault == "off" {
		return false
	}
	_, own := set.Get("synchronous_commit") // the client has chosen it itself
	return !own
}

// solo returns the solo lane for the given client settings. If writes may
// not be acknowledged by a group flush, the lane still exists, to run the members of a failed
// group separately; each is then a run of its own and commits synchronously.
func (ls *lanes) solo(set *session.Set, window time.Duration) *lane {
	p := ls.p
	return p.lanes.of(laneKey{set: set, sync: !ls.flushable(set), window: window}, func() string { return "any write" }, nil)
}

// push adds a unit; the lane is looked at when all input of the turn has been read.
func (ln *lane) push(u *unit) {
	u.park, u.c.reader, u.lanedAt = true, nil, ln.p.l.Now
	if err := ln.Push(u, len(u.raw)); err != nil {
		u.park = false
		u.c.lost(u, pgwire.NewError(pgwire.CodeTooManyConnections, "weir: too many writes wait in one lane: %v", err))
	}
}

// Look sends what may be sent.
func (ln *lane) Look() {
	ln.Awake()
	ln.pump()
}

// pump starts groups while there are items, places and backends.
func (ln *lane) pump() {
	for !ln.Queued && ln.Ready() {
		var b *backend
		if len(ln.p.Excl) == 0 {
			b = ln.p.take(ln.setNow, nil)
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

// give runs a group on a taken backend, after the lane's settings were applied on it. It
// returns false if there is nothing to run, or not yet.
func (ln *lane) give(b *backend) bool {
	ln.Queued = false
	if b.in(ln.set, b.app) || b.set == ln.setNow {
		if !b.bytewise {
			ln.p.release(b)
			ln.failAll(misread())
			return false
		}
		ok := ln.start(b)
		if !ok {
			ln.p.release(b)
		}
		ln.Touch()
		return ok
	}
	ln.Queued = true // no other code looks for a backend meanwhile
	b.Mode = core.ModeOwn
	b.prepare(ln.set, b.app, func(err *pgwire.Error) {
		ln.Queued = false
		switch {
		case err == nil:
			ln.losses = core.Losses{}
		case b.died(err) && !ln.p.l.Draining() && ln.losses.Again(ln.p.l.Now, b.Born):
			ln.p.release(b)
			ln.Touch() // on another one: nothing was sent yet
			return
		default:
			ln.p.release(b)
			ln.failAll(refused(err))
			return
		}
		ln.give(b)
	})
	return false
}

// start takes a group and sends it on b. It returns false if there is nothing
// to send.
func (ln *lane) start(b *backend) bool {
	if !ln.Take() {
		return false
	}
	if ln.rows != nil && len(ln.Taken) > 1 {
		if known := ln.rows.current(); !ln.divert(func(u *unit) bool { return !known || u.compares(ln.p.l.Now) }) {
			return false
		}
	}
	r := &run{ln: ln}
	for _, u := range ln.Taken {
		if u.kind == unitRows || !u.Left() {
			u.began = ln.p.l.Now
			r.units = append(r.units, u)
			b.Retired = b.Retired || ln.p.catalogue.outgrew(u)
		}
	}
	clear(ln.Taken)
	if len(r.units) == 0 {
		ln.None()
		return false
	}
	r.Sent = true
	ln.Begin(b, r, &r.Run, len(r.units))
	b.Mode, b.lane = core.ModeLaned, ln
	b.mixed = true
	ln.send(b, r)
	return true
}

// send sends a run. Nothing may be sent behind a member that asks for its columns: further
// members that have to ask stay in the lane, and b may know their columns when they are taken.
func (ln *lane) send(b *backend, r *run) {
	if ln.rows != nil && len(r.units) > 1 {
		i := slices.IndexFunc(r.units, b.mustAskFor)
		if i < 0 {
			r.rows, r.flushed = true, true
			ln.sendRows(b, r)
			return
		}
		// It asks for all of them, and is sent alone: several commits would wait for a standby one
		// after the other, where a client could not be released.
		asks := r.units[i]
		ln.takeBack(r, slices.Delete(r.units, i, i+1))
		r.units = []*unit{asks}
	}
	bound := ln.boundLocks(b, len(r.units))
	for _, u := range r.units {
		u.bound = bound
	}
	units := ln.join(b, askersLast(b, r.units))
	r.flushed, r.units = !ln.key.async(), nil
	for i, u := range units {
		switch {
		case u.kind != unitRows:
			b.send(u)
		case b.mustAskFor(u):
			ln.takeBack(r, units[i:i+1])
			continue
		default:
			u.grp.send(b)
		}
		r.units = append(r.units, u)
		if u.asking {
			ln.takeBack(r, units[i+1:])
			return
		}
	}
	if !r.flushed {
		ln.sendMarker(b, r)
	}
	b.settle()
}

// takeBack returns units of a run that were not sent to the lane.
func (ln *lane) takeBack(r *run, units []*unit) {
	for _, u := range units {
		ln.Unsent(&r.Run, items(u))
		if u.kind == unitRows {
			u.grp.unsent()
		} else if err := ln.Push(u, len(u.raw)); err != nil {
			ln.unsent(u)
		}
	}
}

// items is how many items of the lane a unit of a run stands for: a series has several.
func items(u *unit) int {
	if g, ok := u.grp.(*series); ok {
		return len(g.units)
	}
	return 1
}

// boundLocks sends a lock_timeout for this number of members before a group, unless
// the backend already has it, and returns it: 0 if the client's own applies. It does not wait for
// the answer: at worst the previous value applies.
func (ln *lane) boundLocks(b *backend, members int) time.Duration {
	ln.setNow = ln.p.lanes.set(ln.key, members)
	if b.set != ln.setNow {
		sql := transition(b.set, ln.setNow)
		b.set = ln.setNow
		b.ask(sql, func(u *unit) { b.Doomed = b.Doomed || u.err != nil })
	}
	d, ours := ln.p.facts.lockBound(ln.key.set, laneLockTimeout(members), 0)
	if !ours {
		return 0
	}
	return d
}

const markerSQL = `SELECT pg_catalog.set_config('synchronous_commit', $1, true), pg_catalog.pg_logical_emit_message(true, $2, '')`

// sendMarker appends the synchronous commit of the group.
func (ln *lane) sendMarker(b *backend, r *run) {
	u := ln.p.l.newUnit(unitHidden)
	u.done = func(u *unit) {
		r.flushed = u.err == nil
		b.Doomed = b.Doomed || u.err != nil // the statement may be lost
	}
	b.Push(u, b.p.l.Now)
	b.begin(u)
	st := ln.p.marker
	u.notice = func(msg []byte) { r.notices = append(r.notices, msg...) }
	if !b.knows(u, st) {
		_, there := b.prepared[st]
		if b.learn(u, st); !there {
			b.close(u, st) // an error of an earlier member may have made weir forget what is here
		}
		b.s.Out = pgwire.AppendParseRaw(b.s.OutBuf(), st.srvName, st.tail)
	}
	out := b.s.OutBuf()
	out = pgwire.AppendBind(out, "", st.srvName, &pgwire.BindArgs{Values: [][]byte{[]byte(ln.p.facts.syncDefault), []byte(ln.p.l.cfg.FlushPrefix)}})
	out = pgwire.AppendExecute(out, "", 0)
	b.s.Out = pgwire.AppendSync(out)
	b.s.Touch()
}

// divert moves members of a group to the solo lane: those that must run by themselves, or all,
// if weir no longer knows that the table is fit for multi-row statements. It reports whether any
// are left.
func (ln *lane) divert(is func(u *unit) bool) bool {
	solo := ln.p.lanes.solo(ln.key.set, 0)
	ln.Taken = slices.DeleteFunc(ln.Taken, func(u *unit) bool {
		if u.Left() || !is(u) {
			return false
		}
		solo.push(u)
		return true
	})
	if len(ln.Taken) == 0 {
		ln.None()
	}
	return len(ln.Taken) > 0
}

// backendQuiet ends a run: everything that was sent has been answered.
func (ln *lane) backendQuiet(b *backend) {
	r := ln.Runs[b]
	p := ln.p
	ln.End(b, &r.Run)
	b.lane = nil
	if b.status != pgwire.StatusIdle {
		r.flushed = false // one of them was not a single write; release closes the backend
	}
	if !r.rows {
		for _, u := range r.units {
			if u.kind == unitRows {
				u.grp.note(r.notices)
				u.grp.settle(r.flushed)
			} else {
				if !u.failed && u.c != nil && !u.c.s.Closed {
					u.c.s.Write(r.notices)
				}
				ln.ack(u, r)
			}
		}
	}
	p.release(b)
	ln.Touch()
}

// ack sends a member of a solo run its answer.
func (ln *lane) ack(u *unit, r *run) {
	c := u.c
	if c == nil || c.s.Closed {
		ln.p.l.recycle(u)
		return
	}
	if u.failed && !u.wrote && ln.again(u) {
		if givenUp(u) {
			return
		}
		ln.Retried++
		u.park = false
		u.resp = u.resp[:0]
		u.retries++
		u.exp, u.expAt, u.flushedTo, u.unlike, u.asking = u.exp[:0], 0, 0, nil, false
		u.failed, u.err, u.bytes, u.tuples = false, nil, 0, 0
		ln.p.alone.queue(u)
		return
	}
	if !u.failed && !r.flushed {
		c.lost(u, pgwire.NewError(pgwire.CodeCompletionUnknown,
			"weir: the statement was committed but could not be made durable; whether it survives a crash of the server is unknown"))
		return
	}
	c.s.Write(u.resp)
	c.responder.grouped(u)
}

// again reports whether an error was caused by running in a group: a lock wait longer than
// the lane permits, a statement that this backend had lost, a plan that the server refused.
// When it runs alone, the statement gets its own answer.
func (ln *lane) again(u *unit) bool {
	switch {
	case u.err == nil:
		return false
	case u.lockTimedOut(u.err): // the client must not see it, however often it was tried
		u.waited += u.bound
		return true
	case u.retries >= 3:
		return false
	}
	switch u.err.Code {
	case pgwire.CodeUndefinedStatement, pgwire.CodeDuplicateStatement:
		return missing(u.err)
	case pgwire.CodeFeatureNotSupported:
		return strings.Contains(u.err.Message, "cached plan") && u.renewStatements()
	case pgwire.CodeQueryCanceled:
		return u.c.responder.cancelled != u && u.canceledElsewhere()
	}
	return false
}

// canceledElsewhere distinguishes a cancel request from a statement timeout.
func (u *unit) canceledElsewhere() bool {
	return strings.Contains(u.err.Message, "user request")
}

// unsent runs a member alone whose backend was lost before anything of it was sent.
func (ln *lane) unsent(u *unit) {
	if c := u.c; c == nil || c.s.Closed || givenUp(u) {
		return
	}
	n := ln.p.l.moveOut(u)
	n.again()
	ln.p.alone.queue(n)
}

// lost answers a member whose backend was lost.
func (ln *lane) lost(u *unit, e *pgwire.Error) {
	if c := u.c; c != nil && !c.s.Closed {
		c.lost(u, e)
		u.c = nil
	}
}

// backendGone ends a run whose backend was lost: the outcome of members that the server has
// answered but weir has not acknowledged is unknown.
func (ln *lane) backendGone(b *backend, e *pgwire.Error) {
	r := ln.Runs[b]
	if r == nil {
		return
	}
	ln.End(b, &r.Run)
	if r.rows {
		ln.Touch()
		return // its groups have answered those members that were left
	}
	for _, u := range r.units {
		if u.kind == unitRows {
			u.grp.abandon(e)
			continue
		}
		c := u.c
		if c == nil || c.s.Closed {
			continue
		}
		if u.failed && len(u.resp) > 0 && u.resp[len(u.resp)-6] == pgwire.ServerReady {
			c.s.Write(u.resp) // it failed for its own reason, whatever came after
			c.responder.grouped(u)
			continue
		}
		ln.lost(u, e)
	}
	ln.Touch()
}

// failAll answers everything that waits in the lane with an error.
func (ln *lane) failAll(e *pgwire.Error) { ln.fail(e, func(*unit) bool { return true }) }

// expire refuses what has waited in the lane for at least minWait, beyond the window in which
// it waited for others; 0 means everything.
func (ln *lane) expire(minWait time.Duration, e *pgwire.Error) {
	if minWait > 0 {
		minWait += ln.key.window
	}
	ln.fail(e, func(u *unit) bool {
		overdue := ln.p.l.Now-u.lanedAt >= minWait
		if overdue && !u.Left() {
			ln.p.Stats.Timeouts++
		}
		return overdue
	})
}

func (ln *lane) fail(e *pgwire.Error, which func(u *unit) bool) {
	ln.Q.Remove(func(u *unit) bool {
		if !which(u) {
			return false
		}
		if u.kind == unitRows {
			u.grp.abandon(e)
		} else if u.c != nil && !u.c.s.Closed {
			u.c.lost(u, e)
		}
		return true
	})
}

// forget discards what the lane derived from the schema.
func (ln *lane) forget() {
	if ln.rows != nil {
		ln.rows.bySize, ln.rows.types, ln.rows.typesGuard = nil, nil, guard{}
		ln.rows.table = nil
	}
}

// plainInsert reports whether a unit is [Parse] Bind [Describe] Execute Sync on
// the unnamed portal: what a client sends to run one prepared statement. Only
// such a unit's answer can be derived from a multi-row statement.
func (u *unit) plainInsert() bool {
	want := 0
	order := [...]byte{pgwire.ClientParse, pgwire.ClientBind, pgwire.ClientDescribe, pgwire.ClientExecute, pgwire.ClientSync}
	for i := range u.ops {
		o := &u.ops[i]
		for want < len(order) && order[want] != o.kind {
			if order[want] != pgwire.ClientParse && order[want] != pgwire.ClientDescribe {
				return false
			}
			want++
		}
		if want == len(order) || (o.kind == pgwire.ClientDescribe && o.st != nil) {
			return false
		}
		want++
	}
	return want == len(order)
}
