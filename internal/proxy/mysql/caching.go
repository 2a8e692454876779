package mysql

import (
	"cmp"
	"encoding/binary"
	"time"

	"github.com/weirdb/weir/internal/proxy/cache"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/proxy/sqlscan"
	"github.com/weirdb/weir/internal/proxy/sqlscan/myscan"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// This file handles reads with a ttl, which package cache may answer.
//
// An answer may be cached if its statement may share a connection with the reads of others, by
// the same proof: a client that owns no backend and has nothing in flight sends one SELECT that
// has no effects and reads no session state. Its answer can depend on the data, on the text and
// parameters, on the account, and on the session's settings. The key holds all of these except
// the data, and the client's capabilities, status and character set besides.
//
//	router ── Ask ──► Hit ────────────────────────► the server's packets, unchanged
//	                  Refresh ── as Hit, and a unit without a client runs the statement
//	                  Lead ────► the unit runs as usual, also on a backend of the client's
//	                             own, and its answer is held until it is complete
//	                  Follow ──► its bytes stay in the socket's buffer until the leader's
//	                             unit has ended, and are processed again
//
// An answer that exceeds --cache-max-answer is passed on as it comes (spill).

// caching is a client's side of the cache.
type caching struct {
	cache.Client
	c *client

	writes bool // it has written in the current transaction
	// counted: the current statement is already counted as not cached.
	counted bool
}

// A cached says how a statement with a ttl continues.
type cached uint8

const (
	cachedNot   cached = iota // it runs; its unit ends a flight, if it has one
	cachedWaits               // its bytes are processed again later
	cachedDone                // it is answered
)

// query looks up the answer to a text in the message, which is a read.
func (ca *caching) query(msg []byte, sql string, info *myscan.Statement, sh *sight.Shape) cached {
	c := ca.c
	if c.inflight > 0 {
		return cachedWaits // until its earlier ones are answered
	}
	if !ca.may(info, sh) {
		return cachedNot // and counted when it has a backend
	}
	t := c.texts.asRead(sql)
	if t.Varies() {
		return ca.skip(cache.SkipVolatile)
	}
	u := c.l.newUnit(unitClient, mywire.ComQuery)
	defer c.l.recycle(u)
	u.shape, u.verb = sh, info.Verb
	u.follow(c, &info.Hints, sql)
	key := append(ca.key(&info.Hints), mywire.ComQuery)
	return ca.ask(u, msg, cache.AppendField(key, t.Body()), &info.Hints)
}

// execute looks up the answer to the execution of a prepared statement.
func (ca *caching) execute(msg []byte, cs *clientStmt, m *mywire.ExecuteMsg) cached {
	c, st := ca.c, cs.st
	if c.inflight > 0 {
		return cachedWaits
	}
	if !ca.may(&st.info, st.shape) {
		return cachedNot
	}
	if st.body == "" {
		var t myscan.Text
		t.Read(st.sql, st.mode)
		st.body, st.volatile = t.Body(), t.Varies()
	}
	if st.volatile {
		return ca.skip(cache.SkipVolatile)
	}
	cs.noteTypes(m)
	if len(cs.types) != 2*st.params {
		return ca.skip(cache.SkipMessages) // query attributes are among them
	}
	u := c.l.newUnit(unitClient, mywire.ComStmtExecute)
	defer c.l.recycle(u)
	u.st, u.cs, u.types, u.shape, u.verb = st, cs, cs.types, st.shape, st.info.Verb
	h := &st.info.Hints
	u.follow(c, h, st.sql)
	key := append(ca.key(h), mywire.ComStmtExecute)
	key = cache.AppendField(key, st.set.Key()) // in which its names are read
	key = cache.AppendField(key, st.body)
	key = cache.AppendField(key, m.Nulls)
	key = cache.AppendField(key, cs.types)
	return ca.ask(u, msg, append(key, m.Values...), h)
}

// may reports whether the answer to a read may be given to others who send the same. If not,
// the read is counted here if it runs beside others, otherwise when it has a backend.
func (ca *caching) may(info *myscan.Statement, sh *sight.Shape) bool {
	c := ca.c
	why := ca.whyNot(info, sh, true)
	if why != 0 && c.router.mayShare(sh.Sharable()) {
		ca.skip(why)
	}
	return why == 0 && len(c.settings.owed) == 0
}

// key begins a key: everything that an answer depends on except the statement.
func (ca *caching) key(h *sqlscan.Hints) []byte {
	c := ca.c
	k := c.p.key
	key := c.l.cacheKey[:0]
	for _, part := range [...]string{k.database, k.user, c.set.Key(), h.Tag} {
		key = cache.AppendField(key, part)
	}
	key = binary.LittleEndian.AppendUint64(key, uint64(c.caps))
	return append(binary.LittleEndian.AppendUint16(key, uint16(c.status&keptStatus)), k.charset)
}

// ask looks up the answer. If it returns cachedNot, the unit that runs the statement takes the
// flight of Made, if there is one.
func (ca *caching) ask(u *unit, msg, key []byte, h *sqlscan.Hints) cached {
	c := ca.c
	c.l.cacheKey = key[:0]
	q := cache.Query{Key: key, Database: c.p.answers, TTL: h.TTL, Tag: h.Tag, Now: c.l.Now}
	switch role, a, f := ca.Ask(&q); role {
	case cache.Hit:
		return ca.answer(u, msg, a, c.l.Now)
	case cache.Refresh:
		c.p.refreshes.run(u, msg, c, f)
		return ca.answer(u, msg, a, c.l.Now)
	case cache.Shared:
		return ca.answer(u, msg, a, c.queuedAt)
	case cache.Follow:
		return cachedWaits
	}
	if q.Why != 0 {
		return ca.tell(q.Why)
	}
	return cachedNot
}

// Post implements cache.Session.
func (ca *caching) Post(f func()) { ca.c.l.Post(f) }

// Await implements cache.Session.
func (ca *caching) Await() {
	c := ca.c
	c.state.enter(stateWaiting)
	c.queuedAt = c.l.Now
}

// Resume implements cache.Session.
func (ca *caching) Resume() {
	ca.c.state.leave(stateWaiting)
	ca.c.resume()
}

// Gone implements cache.Session.
func (ca *caching) Gone() bool { return ca.c.s.Closed }

// tick bounds the wait for a flight.
func (ca *caching) tick() {
	c := ca.c
	if limit := c.p.Limits.QueueTimeout; limit > 0 && ca.Waits() && c.l.Now-c.queuedAt > limit {
		ca.GiveUp()
	}
}

// answer sends the client the cached answer for a unit, which is not sent. since is when the
// client's wait began.
func (ca *caching) answer(u *unit, msg []byte, a *cache.Answer, since time.Duration) cached {
	c := ca.c
	c.reply(a.Bytes)
	c.stats.units++
	c.p.Stats.Cached++
	c.p.Stats.Transactions++
	u.c, u.raw, u.queuedAt, u.bytes, u.rows, u.ok = c, append(u.raw[:0], msg...), since, len(a.Bytes), a.Rows, a.Info.(mywire.OK)
	c.diag.last.shared(u)
	c.p.count(u, sight.Cached)
	if c.draining {
		c.leaveIfIdle()
	}
	return cachedDone
}

// skip counts a statement with a ttl that is not cached, and warns about it.
func (ca *caching) skip(why cache.Skip) cached {
	ca.Forget()
	ca.c.p.answers.Skipped(why)
	return ca.tell(why)
}

func (ca *caching) tell(why cache.Skip) cached {
	ca.counted = true
	ca.c.hints.warn(why.Told())
	return cachedNot
}

// linked counts a statement that runs on a backend of the client's own as not cached, unless
// its answer goes to the cache, or the lookup has counted it. judged: the effects of the
// objects that it names are known.
func (ca *caching) linked(info *myscan.Statement, sh *sight.Shape, judged bool) {
	switch {
	case info.Hints.TTL == 0:
	case ca.counted:
		ca.counted = false
	case ca.Leads():
	default:
		ca.skip(cmp.Or(ca.whyNot(info, sh, judged), cache.SkipMessages))
		ca.counted = false
	}
}

// whyNot returns why the answer to a statement may not be cached; 0 if it may.
func (ca *caching) whyNot(info *myscan.Statement, sh *sight.Shape, judged bool) cache.Skip {
	c := ca.c
	f := &c.p.facts
	switch {
	case c.inTx() || !c.autocommit():
		return cache.SkipTransaction
	case c.l.cfg.Mode != session.ModeAuto || c.l.cfg.ReadLanes == 0:
		return cache.SkipMode
	case !judged || f.silent || !f.known || info.Effects.Has(myscan.EffUnknown|myscan.EffOpaque):
		return cache.SkipUnread
	case routeOf(info) != routeRead || info.Effects != 0 || info.Verb == myscan.VerbShow:
		return cache.SkipStatement
	case c.pins.held != 0 || c.diag.alone() || c.link != nil && c.diag.last.leftOn(c.link):
		return cache.SkipSession
	case sh.KeptAlone():
		return cache.SkipAnswer
	}
	return 0
}

// readEffects are the effects of statements that do not change data.
const readEffects = myscan.EffTxBegin | myscan.EffTxEnd | myscan.EffSavepoint | myscan.EffSet | myscan.EffSetBare | myscan.EffUse | myscan.EffNextTx |
	myscan.EffSysVar | myscan.EffSessionRead | myscan.EffDiag | myscan.EffLastID | myscan.EffCalcFoundRows | myscan.EffSleep | myscan.EffLockRows

// ran records that a command of the linked client has ended: whether it may have written, and
// when that may have become visible.
func (ca *caching) ran(u *unit) {
	c := ca.c
	ca.writes = ca.writes || u.effects&^readEffects != 0 || c.pins.held != 0
	if ca.writes && (!c.inTx() || u.failed) {
		ca.Wrote()
		ca.writes = c.inTx()
	}
}

// made returns the flight for a unit that is just being made, if that unit ends it.
func (ca *caching) made(cmd byte) *cache.Flight {
	if cmd != mywire.ComQuery && cmd != mywire.ComStmtExecute {
		return nil
	}
	return ca.Made()
}

// takeFlight detaches the flight from the unit.
func (u *unit) takeFlight() *cache.Flight {
	f := u.flight
	u.flight = nil
	if u.c != nil {
		u.c.cached.Ended()
	}
	return f
}

// endFlight ends the flight of a unit that is answered.
func (u *unit) endFlight() {
	f := u.takeFlight()
	switch {
	case u.failed, u.stateful, u.ok.Status&(mywire.StatusInTrans|mywire.StatusMoreResults) != 0:
		f.Fail()
	case u.ok.Warnings > 0:
		f.Refuse(cache.SkipAnswer)
	default:
		f.Keep(u.resp, u.rows, u.ok)
	}
}

// spill passes the answer of a unit with a flight on as it comes: it is too long for the cache.
func (b *backend) spill(u *unit) {
	u.takeFlight().Refuse(cache.SkipLarge)
	if u.hold {
		return
	}
	resp := u.resp
	u.resp = nil
	u.bytes -= len(resp)
	b.emit(u, resp)
}

// held reports whether the answer is held until it is complete.
func (u *unit) held() bool { return u.hold || u.flight != nil }

// refreshes are statements of a pool that run again because their answers are old. No client
// waits for them.
type refreshes struct {
	p       *pool
	running int
}

// run runs the statement of u again, in the settings of c, unless too many run already.
func (r *refreshes) run(u *unit, msg []byte, c *client, f *cache.Flight) {
	p, set := r.p, c.set
	if r.running >= p.Slots() {
		f.Leave()
		return
	}
	r.running++
	n := p.l.newUnit(unitClient, u.cmd)
	n.raw, n.st, n.types, n.verb, n.shape = append(n.raw[:0], msg...), u.st, u.types, u.verb, u.shape
	n.queuedAt, n.flight, n.refresh, n.caps = p.l.Now, f, true, c.caps
	p.Enqueue(waiter{Ask: func(b *backend) {
		b.readied(set, n.st, func(b *backend, err *mywire.Error) {
			if err != nil {
				p.release(b)
				r.lost(n)
				return
			}
			b.lastUser = nil
			b.saveID(nil)
			b.send(n)
		})
	}})
}

// answered ends a refresh.
func (r *refreshes) answered(u *unit) {
	r.running--
	if u.flight != nil { // otherwise its answer was too long
		u.endFlight()
	}
}

// lost ends a refresh that has no answer.
func (r *refreshes) lost(u *unit) {
	r.running--
	if u.flight != nil {
		u.takeFlight().Leave()
	}
}
