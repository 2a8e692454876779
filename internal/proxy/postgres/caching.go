package postgres

import (
	"bytes"
	"time"

	"github.com/weirdb/weir/internal/proxy/cache"
	"github.com/weirdb/weir/internal/proxy/postgres/catalogue"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/proxy/sqlscan"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file handles reads with a ttl, which package cache may answer.
//
// An answer may be kept under the same conditions under which its statement may run in a shared
// pipeline: the client owns no backend and has nothing in flight, and sends one read whose text
// and names show no effect. Its answer can depend on the data, on the text and parameters, on
// the user and database, and on the settings of the session; except for the data, the key
// contains all of them.
//
//	router ── Ask ──► Hit ────────────────────────► the server's bytes, as they were
//	                  Refresh ── as Hit, and a unit without a client runs the statement
//	                  Lead ────► the unit runs as ever, its answer is held until it is whole
//	                  Follow ──► its bytes stay in the socket's buffer until the leader's
//	                             unit has ended, and are looked at again
//
// An answer that grows beyond --cache-max-answer is passed on as it comes (spill).

// caching is a client's side of the cache.
type caching struct {
	cache.Client
	c *client

	writes  bool // has written in the current transaction
	changes bool // ... has changed the schema in it
}

// A cached says what happens to a statement with a ttl.
type cached uint8

const (
	cachedNot   cached = iota // it runs; its unit ends a flight, if it has one
	cachedWaits               // its input is processed again later
	cachedDone                // it was answered
)

// query looks up the answer to a simple query that is a read. raw is its message; u is only
// used for statistics.
func (ca *caching) query(u *unit, raw []byte, sql string, info *catalogue.Reading) cached {
	c := ca.c
	if c.inflight > 0 {
		return cachedWaits // until its earlier units are answered
	}
	t := c.texts.asRead(sql)
	if t.Varies() {
		return ca.skip(cache.SkipVolatile)
	}
	body := sql
	if t.String() == sql {
		body = t.Body()
	}
	key := append(ca.key(&info.Hints), 'Q')
	return ca.ask(u, raw, cache.AppendField(key, body), &info.Hints)
}

// extended looks up the answer to a whole unit of extended messages, which raw holds.
func (ca *caching) extended(u *unit, raw []byte) cached {
	c := ca.c
	switch {
	case c.inflight > 0:
		return cachedWaits
	case !c.texts.bytewise || c.p.facts.silent || !u.reads() || u.limited:
		return cachedNot // it is counted when it has a backend
	case !u.plain(raw):
		return ca.skip(cache.SkipMessages)
	}
	var bind *op
	describe := byte('-')
	for i := range u.ops {
		switch o := &u.ops[i]; o.kind {
		case pgwire.ClientBind:
			bind = o
		case pgwire.ClientDescribe:
			describe = 'D'
		}
	}
	st := bind.st
	if st.set == nil {
		return ca.skip(cache.SkipKey) // too long to be shared
	}
	if st.learnBody(); st.volatile {
		return ca.skip(cache.SkipVolatile)
	}
	u.shape = st.shape
	u.follow(c, &st.info, st.sql)
	h := &st.info.Hints
	key := append(ca.key(h), 'E', describe)
	for _, part := range [...]string{st.set.Key(), st.as.encoding, st.as.conforming} {
		key = cache.AppendField(key, part) // the settings with which its constants and names were parsed
	}
	key = cache.AppendField(key, st.body)
	key = cache.AppendField(key, st.tail[len(st.sql)+1:]) // types of parameters
	key = st.desc.append(key, describe == 'D')
	did := ca.ask(u, raw, append(key, raw[bind.rest:bind.end]...), h)
	u.flight = ca.Made()
	return did
}

// plain reports whether the unit only runs one statement in the unnamed portal.
func (u *unit) plain(raw []byte) bool {
	if !u.plainInsert() {
		return false
	}
	for i := range u.ops {
		o := &u.ops[i]
		body := raw[o.off+pgwire.HeaderLen : o.end]
		switch o.kind {
		case pgwire.ClientBind, pgwire.ClientExecute:
			if body[0] != 0 {
				return false
			}
		case pgwire.ClientDescribe:
			if len(body) != 2 {
				return false
			}
		}
	}
	return true
}

// learnBody computes, once, what the cache needs to know of the statement.
func (st *stmt) learnBody() {
	if st.body != "" {
		return
	}
	var t sqlscan.Text
	t.Read(st.asRead)
	st.volatile = t.Varies()
	if st.body = st.sql; st.asRead == st.sql {
		st.body = t.Body()
	}
}

// key begins a key: everything that an answer depends on, except for the statement.
func (ca *caching) key(h *sqlscan.Hints) []byte {
	c := ca.c
	lex := c.texts.lexical()
	key := c.l.cacheKey[:0]
	for _, part := range [...]string{c.p.key.database, c.p.key.user, c.p.key.role, c.set.Key(), lex.encoding, lex.conforming, h.Tag} {
		key = cache.AppendField(key, part)
	}
	return key
}

// ask asks the cache. With cachedNot the unit that runs the statement takes the flight from
// Made, if there is one.
func (ca *caching) ask(u *unit, raw, key []byte, h *sqlscan.Hints) cached {
	c := ca.c
	c.l.cacheKey = key[:0]
	if c.mode() != session.ModeAuto {
		return ca.skip(cache.SkipMode)
	}
	q := cache.Query{Key: key, Database: c.p.answers, TTL: h.TTL, Tag: h.Tag, Now: c.l.Now}
	switch role, a, f := ca.Ask(&q); role {
	case cache.Hit:
		return ca.answer(u, raw, a, c.l.Now)
	case cache.Refresh:
		c.p.refreshes.run(u, raw, c.set, f)
		return ca.answer(u, raw, a, c.l.Now)
	case cache.Shared:
		return ca.answer(u, raw, a, c.queuedAt)
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
	c.state = stateWaiting
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

// answer sends the client the cached answer to a unit, which is not sent to the server. The
// client has waited since since.
func (ca *caching) answer(u *unit, raw []byte, a *cache.Answer, since time.Duration) cached {
	c := ca.c
	if u.simple {
		c.stmts.unname("") // as the server does
	} else {
		names := u.parsed
		u.parsed = u.parsed[:0]
		for _, n := range names {
			c.stmts.rename(u, n)
		}
		c.stmts.settle(u)
		if u.ops[0].kind == pgwire.ClientParse {
			c.s.Write(parseComplete)
		}
	}
	u.c = c
	if columns, ok := a.Info.(uint64); ok {
		hearsAgain(u, raw, columns)
	}
	c.reply(a.Bytes)
	c.stats.units++
	c.p.Stats.Cached++
	c.p.Stats.Transactions++
	u.queuedAt, u.bytes, u.tuples = since, len(a.Bytes), a.Rows
	c.p.count(u, sight.Cached)
	if c.draining && c.login.entry == nil {
		c.leaveIfIdle()
	}
	return cachedDone
}

// skip counts a statement with a ttl that is not cached, and notifies the client.
func (ca *caching) skip(why cache.Skip) cached {
	ca.Forget()
	ca.c.p.answers.Skipped(why)
	return ca.tell(why)
}

func (ca *caching) tell(why cache.Skip) cached {
	ca.c.hints.warn(why.Told(), true)
	return cachedNot
}

// linked counts a statement that runs on the client's own backend.
func (ca *caching) linked(info *catalogue.Reading) {
	if why := ca.whyNot(info); why != 0 {
		ca.skip(why)
	}
}

// whyNot is why a statement on the client's own backend is not cached; 0 if it does
// not ask for it.
func (ca *caching) whyNot(info *catalogue.Reading) cache.Skip {
	c := ca.c
	switch {
	case info.Hints.TTL == 0:
		return 0
	case c.tx != pgwire.StatusIdle:
		return cache.SkipTransaction
	case c.mode() != session.ModeAuto:
		return cache.SkipMode
	case info.Unread != "" || info.Effects.Has(sqlscan.EffUnknown|sqlscan.EffEncoding) || !c.link.bytewise || c.p.facts.silent:
		return cache.SkipUnread
	case routeOf(&info.Statement) != routeRead:
		return cache.SkipStatement
	case c.pins.held != 0:
		return cache.SkipSession
	}
	return cache.SkipMessages
}

// readEffects are the effects of statements that leave data as they are.
const readEffects = sqlscan.EffBackslash | sqlscan.EffTx | sqlscan.EffSet | sqlscan.EffSessionRead | sqlscan.EffSleep

// ran records that a unit of the linked client has ended: whether it may have written, when
// that may have become visible, and a change of the schema.
func (ca *caching) ran(u *unit, status byte) {
	c := ca.c
	ca.writes = ca.writes || u.effects&^readEffects != 0 || c.pins.held != 0
	ca.changes = ca.changes || u.changesSchema()
	if status != pgwire.StatusIdle {
		return
	}
	if ca.changes {
		ca.changes = false
		c.l.srv.Cache.Purge(c.p.key.database)
	}
	if ca.writes {
		ca.writes = false
		ca.Wrote()
	}
}

// changesSchema reports whether the text of a unit changes what others see of the schema.
func (u *unit) changesSchema() bool {
	return u.effects.Has(sqlscan.EffDDL) && (!u.effects.Has(sqlscan.EffTemp) || u.effects.Has(sqlscan.EffMulti))
}

// unknown handles a unit of which it is unknown whether it has changed the schema, or
// has committed such a change.
func (p *pool) unknown(u *unit) {
	if u.changesSchema() || u.c != nil && u.c.cached.changes {
		p.forgetTexts()
		p.l.srv.Cache.Purge(p.key.database)
		p.l.srv.lookups.recent.forget()
	} else if u.hides {
		p.l.srv.lookups.recent.forget()
	}
}

// off removes the flight from the unit.
func (u *unit) off() *cache.Flight {
	f := u.flight
	u.flight = nil
	if u.c != nil {
		u.c.cached.Ended()
	}
	return f
}

// land ends the flight of a unit that was answered.
func (u *unit) land(status byte) {
	f, resp := u.off(), u.resp
	if !u.simple && u.ops[0].kind == pgwire.ClientParse {
		resp = bytes.TrimPrefix(resp, parseComplete)
	}
	switch {
	case u.failed, status != pgwire.StatusIdle:
		f.Fail()
	case !rowsOnly(resp):
		f.Refuse(cache.SkipAnswer)
	default:
		f.Keep(resp, u.tuples, columnsIn(u, resp))
	}
}

// rowsOnly reports whether an answer is complete, and contains nothing but what any client
// would get for the same question.
func rowsOnly(p []byte) bool {
	for {
		typ, n, ok := pgwire.Peek(p)
		if !ok || n > len(p) {
			return false
		}
		switch typ {
		case pgwire.ServerBindComplete, pgwire.ServerRowDescription, pgwire.ServerNoData, pgwire.ServerDataRow, pgwire.ServerCommandComplete:
		case pgwire.ServerReady:
			return n == len(p)
		default:
			return false
		}
		p = p[n:]
	}
}

// drop ends the unit's flight as failed.
func (u *unit) drop() { u.off().Fail() }

// spill passes on the answer of a unit with a flight as it comes, because it is too long to be
// kept.
func (b *backend) spill(u *unit) {
	u.off().Refuse(cache.SkipLarge)
	resp := u.resp
	u.resp = nil
	if !u.hold {
		u.bytes -= len(resp)
		b.emit(u, resp)
		return
	}
	u.resp = resp
}

// held reports whether the answer is kept until it is complete.
func (u *unit) held() bool { return u.hold || u.flight != nil }

// refreshes are statements of a pool that run again because their answers are old. No client
// waits for them.
type refreshes struct {
	p       *pool
	running int
}

// run runs u's statement again, in the given settings, unless too many run already.
func (r *refreshes) run(u *unit, raw []byte, set *session.Set, f *cache.Flight) {
	p := r.p
	if r.running >= p.Slots() {
		f.Leave()
		return
	}
	r.running++
	n := p.l.newUnit(unitClient)
	n.raw, n.ops, n.simple = append(n.raw[:0], raw...), append(n.ops[:0], u.ops...), u.simple
	n.shape, n.queuedAt, n.flight, n.refresh = u.shape, p.l.Now, f, true
	send := func(b *backend) {
		if !b.bytewise || p.catalogue.outgrew(n) {
			p.release(b)
			r.lost(n)
			return
		}
		b.send(n)
	}
	p.Enqueue(waiter{Ask: func(b *backend) {
		if b.in(set, b.app) {
			send(b)
			return
		}
		b.prepare(set, b.app, func(err *pgwire.Error) {
			if err != nil {
				p.release(b)
				r.lost(n)
				return
			}
			send(b)
		})
	}})
}

// answered ends a refresh.
func (r *refreshes) answered(u *unit, status byte) {
	r.running--
	if u.flight != nil { // else its answer was too long
		u.land(status)
	}
}

// lost ends a refresh without an answer.
func (r *refreshes) lost(u *unit) {
	r.running--
	if u.flight != nil {
		u.off().Leave()
	}
}
