package postgres

import (
	"bytes"
	"slices"
	"time"

	"github.com/weirdb/weir/internal/proxy/cache"
	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/postgres/catalogue"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/proxy/sqlscan"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file gathers the extended messages of a client without a backend into
// one unit, and decides where it may run.

// extended reads extended messages up to their Sync.
func (rt *router) extended(p []byte) int {
	c := rt.c
	u := c.l.newUnit(unitClient)
	used, verdict := rt.collect(u, p)
	if verdict == collected {
		rt.partialDue = false
		if u.ttl > 0 {
			switch c.cached.extended(u, p[:used]) {
			case cachedWaits:
				c.l.recycle(u)
				return 0
			case cachedDone:
				c.l.recycle(u)
				return used
			}
		}
		if c.inflight > 0 && !(u.shared() && rt.mayFollow() && !u.stalled(c.l.Now)) {
			verdict = collectMore
		} else if rt.sendWhole(u, p[:used]) {
			return used
		} else {
			verdict = collectAlone
			c.cached.Leave((*cache.Flight).Leave)
		}
	}
	if verdict == collectBad {
		c.l.recycle(u)
		return len(p)
	}
	own := u.effects.Has(sqlscan.EffSequenceRead)
	c.l.recycle(u)
	if verdict == collectMore {
		return 0
	}
	if verdict == collectRest {
		if c.inflight > 0 {
			return 0
		}
		if !rt.partialDue {
			rt.awaitSync()
			return 0
		}
	}
	rt.partialDue = false
	return rt.needBackend(own)
}

// syncPatience is how long messages without a Sync wait for one. Then the client gets a
// backend, which answers what is there: a pipeline may be long, and the client may wait for an
// error in the middle of it.
const syncPatience = 10 * time.Millisecond

// A partial is a client whose last message was not a Sync.
type partial struct{ c *client }

func (rt *router) awaitSync() {
	c := rt.c
	if rt.partialAt == 0 {
		rt.partialAt = c.l.Now
		c.l.Agenda.At(partial{c})
	}
}

func (p partial) Deadline() (time.Duration, bool) {
	return p.c.router.partialAt + syncPatience, !p.c.s.Closed && p.c.link == nil && len(p.c.s.In) > 0
}

func (p partial) Due() {
	c := p.c
	c.router.partialAt = 0
	if !c.s.Closed && c.link == nil && c.state != stateWaiting && c.inflight == 0 && len(c.s.In) > 0 {
		c.router.partialDue = true
		c.resume()
	}
}

type collectVerdict uint8

const (
	collected    collectVerdict = iota
	collectMore                 // a message is not whole yet
	collectRest                 // the Sync has not come yet
	collectAlone                // needs a backend of its own
	collectBad                  // the client was disconnected
)

// collect reads messages into u.ops without consuming them. The offsets are
// relative to p.
func (rt *router) collect(u *unit, p []byte) (used int, v collectVerdict) {
	c := rt.c
	i := 0
	for {
		typ, n, ok := pgwire.Peek(p[i:])
		if ok && (n < pgwire.HeaderLen || n > c.l.cfg.MaxMessage) {
			c.protocolError("message of type %q is %d bytes long", typ, n-1)
			return 0, collectBad
		}
		if !ok || i+n > len(p) {
			if len(p) >= maxWhole { // no more is read: see maxHeld
				return 0, collectAlone
			}
			if i == len(p) {
				return 0, collectRest
			}
			return 0, collectMore
		}
		o := op{kind: typ, off: int32(i), end: int32(i + n)}
		body := p[i+pgwire.HeaderLen : i+n]
		i += n
		switch typ {
		case pgwire.ClientSync:
			u.ops = append(u.ops, o)
			return i, collected
		case pgwire.ClientParse:
			name, rest, ok := cstr(body, 0)
			if !ok {
				c.protocolError("malformed Parse message")
				return 0, collectBad
			}
			if len(name) > 0 && u.hangs(c, name) {
				return 0, collectMore
			}
			if len(name) > 0 && u.lookup(c, name) != nil {
				return 0, collectAlone // the server itself will refuse the duplicate
			}
			if _, err := pgwire.ParseParse(body); err != nil {
				c.protocolError("malformed Parse message")
				return 0, collectBad
			}
			if end := bytes.IndexByte(body[rest:], 0); !c.texts.readable(text(body[rest : rest+max(end, 0)])) {
				return 0, collectAlone
			}
			if o.st = c.p.stmts.forClient(c, body[rest:]); o.st.single {
				return 0, collectAlone
			}
			if !c.stmts.fits(name, o.st) {
				return 0, collectBad
			}
			u.parsed = append(u.parsed, parsedName{name: string(cutName(name)), st: o.st})
			u.effects |= o.st.info.Effects
			if o.st.info.Hints.Bad != nil {
				c.hints.warn(o.st.info.Hints.Bad, true)
			}
		case pgwire.ClientBind:
			_, at, ok := cstr(body, 0)
			if !ok {
				c.protocolError("malformed Bind message")
				return 0, collectBad
			}
			name, rest, ok := cstr(body, at)
			if !ok {
				c.protocolError("malformed Bind message")
				return 0, collectBad
			}
			if u.hangs(c, name) {
				return 0, collectMore
			}
			o.st = u.lookup(c, name)
			if o.st == nil || o.st.single || o.st.readsDifferently(c) || o.st.long() {
				return 0, collectAlone // the server will say that it does not exist, or parse it as it was
			}
			head := int32(pgwire.HeaderLen)
			o.name, o.rest = o.off+head+int32(at), o.off+head+int32(rest)
			c.p.stmts.refresh(o.st)
			u.effects |= o.st.info.Effects
			u.ttl = max(u.ttl, o.st.info.Hints.TTL)
		case pgwire.ClientDescribe, pgwire.ClientClose:
			m, err := pgwire.ParseDescribe(body)
			if err != nil {
				c.protocolError("malformed message of type %q", typ)
				return 0, collectBad
			}
			if m.Kind == pgwire.KindStatement {
				if u.hangs(c, m.Name) {
					return 0, collectMore
				}
				o.st = u.lookup(c, m.Name)
				if typ == pgwire.ClientClose {
					u.parsed = append(u.parsed, parsedName{name: string(cutName(m.Name))})
				} else if o.st == nil || o.st.single || o.st.readsDifferently(c) {
					return 0, collectAlone
				}
			}
		case pgwire.ClientExecute:
			m, err := pgwire.ParseExecute(body)
			if err != nil {
				c.protocolError("malformed Execute message")
				return 0, collectBad
			}
			u.limited = u.limited || m.Limit != 0
		default:
			// Flush asks for answers before the Sync; anything else is
			// unusual enough to leave to a backend.
			return 0, collectAlone
		}
		u.ops = append(u.ops, o)
	}
}

// lookup returns the statement for a name of the client's, parsed in this unit or
// before.
func (u *unit) lookup(c *client, name []byte) *stmt {
	name = cutName(name)
	for i := len(u.parsed) - 1; i >= 0; i-- {
		if u.parsed[i].name == text(name) {
			return u.parsed[i].st
		}
	}
	if len(name) == 0 {
		return c.stmts.unnamed
	}
	return c.stmts.byName[text(name)]
}

// shared reports whether every statement that the unit executes is a read that
// may share a pipeline. A unit that executes nothing (Parse, Describe, Close)
// may too.
func (u *unit) shared() bool {
	for i := range u.ops {
		o := &u.ops[i]
		if o.kind == pgwire.ClientBind && (o.st.route != routeRead || !o.st.shape.Sharable()) {
			return false
		}
	}
	return true
}

// stalled reports whether reads like this unit currently hold up those behind them.
func (u *unit) stalled(now time.Duration) bool {
	for i := range u.ops {
		if o := &u.ops[i]; o.kind == pgwire.ClientBind && o.st.shape.Stalled(now) {
			return true
		}
	}
	return u.shape != nil && u.shape.Stalled(now)
}

// reads reports whether every statement that the unit executes is a read.
func (u *unit) reads() bool {
	for i := range u.ops {
		if o := &u.ops[i]; o.kind == pgwire.ClientBind && o.st.route != routeRead {
			return false
		}
	}
	return true
}

// sendWhole routes a collected unit: to a shared backend or into a group. It
// returns false when the unit needs a backend of its own.
func (rt *router) sendWhole(u *unit, p []byte) bool {
	c := rt.c
	if !c.texts.bytewise || c.p.facts.silent {
		return false
	}
	var write *stmt
	binds := 0
	for i := range u.ops {
		if o := &u.ops[i]; o.kind == pgwire.ClientBind {
			binds++
			if o.st.route == routeWrite {
				write = o.st
			}
			u.shape = o.st.shape
			u.follow(c, &o.st.info, o.st.sql)
		}
	}
	if write == nil {
		switch {
		case u.limited:
			return false // a part of a result may have to stay with its portal
		case u.shared():
			rt.adopt(u, p)
			c.p.sharing.run(u)
		case u.reads() && c.inflight == 0 && !c.crowded():
			rt.adopt(u, p)
			c.p.sharing.runAlone(u)
		default:
			return false
		}
		return true
	}
	if binds != 1 || c.inflight > 0 {
		return false
	}
	window, ok := rt.batchWindow(&write.info.Statement)
	if !ok {
		return false
	}
	ln := rt.laneForStmt(u, p, write, window)
	if ln == nil {
		return false
	}
	rt.adopt(u, p)
	ln.push(u)
	return true
}

// adopt makes a collected unit the client's: from now on it will be answered.
func (rt *router) adopt(u *unit, p []byte) {
	c := rt.c
	u.c = c
	u.raw = append(u.raw[:0], p...)
	u.queuedAt = c.l.Now
	c.inflight++
	c.stats.units++
	names := u.parsed
	u.parsed = u.parsed[:0]
	for _, n := range names {
		c.stmts.rename(u, n)
	}
}

// A router chooses where each unit of a client without a backend runs: pipelined with the
// reads of others, in a group, or on a backend of its own.
type router struct {
	c *client

	wantOwn    bool          // wait for the backend where it last wrote, if that is free
	partialAt  time.Duration // since when messages without a Sync wait; 0: none do
	partialDue bool          // they have waited long enough
	refusal    *pgwire.Error // the last error with which a unit was refused
}

// feed reads the next unit of a client without a backend. It returns how
// much of p it consumed; 0 means that more is needed, or that the client waits.
func (rt *router) feed(typ byte, n int, p []byte) int {
	c := rt.c
	if typ == pgwire.ClientTerminate {
		return c.transport.terminate()
	}
	if c.state == stateSkipping && typ != pgwire.ClientSync {
		switch {
		case n > len(p) && n <= maxScanned && (typ == pgwire.ClientParse || typ == pgwire.ClientBind || typ == pgwire.ClientQuery):
			return 0 // see leads
		case rt.leads(typ, n, p):
			c.fatal(ending(rt.refusal))
			return len(p)
		}
		c.transport.drop = n
		return c.transport.takeDrop(len(p))
	}
	if reads(typ) && c.mode() == session.ModeSession {
		return rt.needBackend(false) // which it keeps until it leaves
	}
	if c.listens.needsBackend(typ) {
		if c.listens.move != nil {
			return 0 // tried again when that ends
		}
		return rt.needBackend(false)
	}
	switch typ {
	case pgwire.ClientSync:
		if c.inflight > 0 {
			return 0
		}
		c.state.leave(stateSkipping)
		c.reply(pgwire.AppendReadyForQuery(nil, pgwire.StatusIdle))
		return n
	case pgwire.ClientCopyData, pgwire.ClientCopyDone, pgwire.ClientCopyFail:
		// Left over from a COPY that the server has ended with an error.
		c.transport.drop = n
		return c.transport.takeDrop(len(p))
	case pgwire.ClientFlush:
		return n
	case pgwire.ClientQuery:
		return rt.query(n, p)
	case pgwire.ClientParse, pgwire.ClientBind, pgwire.ClientDescribe, pgwire.ClientExecute, pgwire.ClientClose:
		return rt.extended(p)
	case pgwire.ClientFunction:
		return rt.needBackend(false)
	default:
		c.protocolError("unknown message type %q", typ)
		return len(p)
	}
}

// needBackend queues the client for a backend of its own. It returns 0: no input
// is consumed until it has one.
func (rt *router) needBackend(own bool) int {
	c := rt.c
	if c.inflight > 0 {
		return 0 // in order: after its earlier units are answered
	}
	rt.wantOwn = own
	c.p.queueClient(c)
	return 0
}

// query handles a simple query.
func (rt *router) query(n int, p []byte) int {
	c := rt.c
	if n > len(p) {
		if len(p) > maxWhole {
			return rt.needBackend(false)
		}
		return 0
	}
	if n > maxScanned {
		return rt.needBackend(false)
	}
	sql, err := pgwire.ParseQuery(p[pgwire.HeaderLen:n])
	if err != nil {
		c.protocolError("malformed Query message")
		return len(p)
	}
	if rt.knownRow(p[:n], text(sql)) {
		return n
	}
	info := c.texts.scan(text(sql))
	c.texts.warn(&info.Hints)
	if rt.intercept(&info.Statement) {
		return n
	}
	if !c.texts.bytewise || c.p.facts.silent {
		return rt.needBackend(false)
	}
	switch routeOf(&info.Statement) {
	case routeRead:
		sh := c.texts.shape(text(sql), &info)
		if info.Hints.TTL > 0 {
			switch rt.cachedQuery(p[:n], text(sql), &info, sh) {
			case cachedWaits:
				return 0
			case cachedDone:
				return n
			}
		}
		if !sh.Sharable() {
			if c.inflight > 0 {
				return 0
			}
			if c.crowded() {
				c.cached.Leave((*cache.Flight).Leave)
				return rt.needBackend(false)
			}
			c.stmts.unname("")
			u := rt.unitOf(p[:n])
			u.simple, u.shape = true, sh
			u.follow(c, &info, text(sql))
			c.p.sharing.runAlone(u)
			return n
		}
		if c.inflight > 0 && (!rt.mayFollow() || sh.Stalled(c.l.Now)) {
			return 0
		}
		c.stmts.unname("") // as the server does
		u := rt.unitOf(p[:n])
		u.simple, u.shape = true, sh
		u.follow(c, &info, text(sql))
		c.p.sharing.run(u)
		return n
	case routeWrite:
		window, ok := rt.batchWindow(&info.Statement)
		if !ok {
			break
		}
		if c.inflight > 0 {
			return 0
		}
		ln, shape, row := rt.laneForText(text(sql), &info.Statement, window)
		if ln == nil {
			break
		}
		if ln.rows != nil {
			rt.remember(ln, text(sql), &info, shape, row)
		}
		rt.pushRow(ln, p[:n], text(sql), &info, shape, row)
		return n
	}
	return rt.needBackend(info.Effects.Has(sqlscan.EffSequenceRead))
}

// knownRow handles a simple query whose text is recognized from before. It returns false
// if the text must be parsed.
func (rt *router) knownRow(p []byte, sql string) bool {
	c := rt.c
	pool := c.p
	if c.inflight > 0 || !c.texts.bytewise || pool.facts.silent || !pool.facts.known {
		return false
	}
	t, row := pool.rowTexts.find(sql)
	if t == nil || t.epoch != pool.catalogue.epoch || t.as != c.texts.lexical() {
		return false
	}
	window, ok := rt.batchWindow(&t.info.Statement)
	if !ok || pool.tables.look(pool, c.set, t.insert.Table) != tablePlain {
		return false
	}
	ln := pool.lanes.all[laneKey{set: c.set, shape: t.key, rows: true, window: window}]
	if ln == nil || !ln.rows.insert.Compatible(t.insert) {
		return false
	}
	pool.catalogue.used = true
	rt.pushRow(ln, p, sql, &t.info, t.shape, span{row.at + pgwire.HeaderLen, row.end + pgwire.HeaderLen})
	return true
}

// pushRow adds a simple query to a lane.
func (rt *router) pushRow(ln *lane, p []byte, sql string, info *catalogue.Reading, sh *sight.Shape, row span) {
	rt.c.stmts.unname("")
	u := rt.unitOf(p)
	u.simple, u.shape, u.row = true, sh, row
	u.follow(rt.c, info, sql)
	ln.push(u)
}

// cachedQuery looks up the answer to a simple query that is a read.
func (rt *router) cachedQuery(raw []byte, sql string, info *catalogue.Reading, sh *sight.Shape) cached {
	u := rt.c.l.newUnit(unitClient)
	u.simple, u.shape = true, sh
	u.follow(rt.c, info, sql)
	did := rt.c.cached.query(u, raw, sql, info)
	rt.c.l.recycle(u)
	return did
}

// unitOf makes a unit of whole messages, which it copies.
func (rt *router) unitOf(p []byte) *unit {
	c := rt.c
	u := c.l.newUnit(unitClient)
	u.c, u.flight = c, c.cached.Made()
	u.raw = append(u.raw[:0], p...)
	u.queuedAt = c.l.Now
	c.inflight++
	c.stats.units++
	return u
}

// mayFollow reports whether one more shared read may be sent behind the client's
// earlier ones, on the same backend, so that their answers come in order.
func (rt *router) mayFollow() bool {
	c := rt.c
	b := c.reader
	return b != nil && b.Mode == core.ModeShared && !b.Retired && b.set == c.set && b.Depth() < core.MaxPipeline && b.Cancels == 0 && !b.Doomed && len(c.p.Reads) == 0 && len(c.again) == 0
}

// batchWindow reports whether a write should join a group, and how long it may wait for
// others: 0 is adaptive.
func (rt *router) batchWindow(info *sqlscan.Statement) (time.Duration, bool) {
	c := rt.c
	cfg := c.l.cfg
	if c.tx != pgwire.StatusIdle || c.pins.held != 0 || c.mode() == session.ModeSession {
		return 0, false
	}
	if _, known := c.p.facts.lockTimeout(c.set); !known {
		return 0, false // nor is how long it may wait in a group
	}
	h := info.Hints.Batch
	switch h.Kind {
	case sqlscan.BatchOff:
		return 0, false
	case sqlscan.BatchAuto:
		return 0, true
	case sqlscan.BatchWindow:
		return h.Window, true
	}
	return cfg.BatchDefault(c.p.key.database, c.p.key.user)
}

// laneForStmt finds the lane for a unit that executes one prepared write and
// nothing else, or nil. raw holds the unit's messages, which the offsets of its ops refer to.
func (rt *router) laneForStmt(u *unit, raw []byte, st *stmt, window time.Duration) *lane {
	c := rt.c
	p := c.p
	if !p.facts.known {
		return nil
	}
	// A multi-row statement cannot suspend the portal of one of its members.
	if st.rows && !p.l.cfg.NoRowsLane && u.plainInsert() && (!u.limited || !st.insert.Returning) {
		v := u.bind(raw)
		if !v.ok {
			return nil // the server will report the error
		}
		switch p.tables.look(p, c.set, st.insert.Table) {
		case tablePlain:
			key := laneKey{set: c.set, stmt: st, rows: true, window: window}
			if st.insert.Returning {
				key.formats = string(v.results)
			}
			if ln := p.lanes.all[key]; ln != nil {
				return ln // the usual case, which needs neither name nor plan
			}
			return p.lanes.of(key, st.shape.Shown, func() *rowsPlan { return newRowsPlan(p, c.set, st) })
		case tableUnknown:
			if !p.lastForShared() {
				return nil
			}
		}
	}
	if st.shape.Long() {
		return nil
	}
	ln := rt.soloLane(window)
	if ln != nil && !p.l.cfg.NoRowsLane {
		u.serial = p.serials.of(c.set, u, st)
	}
	return ln
}

// laneForText finds the lane for a simple query that was just parsed, or nil. row is
// the place of the row in its message, for a rows lane.
func (rt *router) laneForText(sql string, info *sqlscan.Statement, window time.Duration) (ln *lane, sh *sight.Shape, row span) {
	c := rt.c
	p := c.p
	if !p.facts.known {
		return nil, nil, span{}
	}
	asRead := c.texts.asRead(sql)
	sh = p.stmts.shape(asRead, info.Verb)
	if info.Verb == sqlscan.VerbInsert && !p.l.cfg.NoRowsLane && asRead.String() == sql {
		if ins, ok := asRead.Insert(); ok && ins.MaxParam == 0 {
			switch p.tables.look(p, c.set, ins.Table) {
			case tablePlain:
				key := laneKey{set: c.set, shape: ins.ShapeKey(), rows: true, window: window}
				ln := p.lanes.all[key]
				if ln == nil {
					ln = p.lanes.of(key, sh.Shown, func() *rowsPlan { return newTextPlan(p, c.set, sql) })
				}
				if ln.rows.insert.Compatible(ins) {
					at := pgwire.HeaderLen + ins.TupleAt
					return ln, sh, span{at, at + len(ins.Tuple)}
				}
			case tableUnknown:
				if !p.lastForShared() {
					return nil, nil, span{}
				}
			}
		}
	}
	if sh.Long() {
		return nil, nil, span{}
	}
	return rt.soloLane(window), sh, span{}
}

func (rt *router) soloLane(window time.Duration) *lane {
	c := rt.c
	p := c.p
	if p.l.cfg.NoSoloLane || !p.lanes.flushable(c.set) {
		return nil
	}
	return p.lanes.solo(c.set, window)
}

// intercept answers what only weir can answer: its own status, and DEALLOCATE of a
// statement whose name only weir knows.
func (rt *router) intercept(info *sqlscan.Statement) bool {
	c := rt.c
	if c.inflight > 0 || (c.link != nil && c.link.Depth() > 0) {
		return false
	}
	switch {
	case !rt.weirs(info):
		return false
	case info.Effects.Has(sqlscan.EffWeirShow):
		c.reply(c.status())
	default:
		c.stmts.unname(info.Name)
		out := pgwire.AppendCommandComplete(nil, "DEALLOCATE")
		c.reply(pgwire.AppendReadyForQuery(out, c.tx))
	}
	return true
}

// weirs reports whether only weir can answer a statement.
func (rt *router) weirs(info *sqlscan.Statement) bool {
	c := rt.c
	return info.Effects.Has(sqlscan.EffWeirShow) ||
		info.Verb == sqlscan.VerbDeallocate && !info.Effects.Has(sqlscan.EffMulti|sqlscan.EffDeallocateAll) && c.stmts.byName[info.Name] != nil && !slices.Contains(c.stmts.lent, info.Name) && c.tx != pgwire.StatusFailed
}
