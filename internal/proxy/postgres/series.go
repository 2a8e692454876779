package postgres

import (
	"encoding/binary"
	"slices"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/proxy/sqlscan"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// A txnGroup is the members of a run that share a transaction; its unit is of kind
// unitRows, in the backend's queue.
type txnGroup interface {
	// send appends its messages, which end with one Sync.
	send(b *backend)
	// message handles one message of the answer.
	message(u *unit, typ byte, msg []byte)
	// ready ends its transaction.
	ready()
	// note keeps the server's notices about the flush.
	note(notices []byte)
	// settle answers the members, or makes them run again separately.
	settle(flushed bool)
	// member is the first member for which is returns true, or nil.
	member(is func(u *unit) bool) *unit
	// free answers u, if it is a member, when the transaction is known to be committed on
	// the primary, and reports whether it did.
	free(u *unit) bool
	// unsent is called when the backend is lost before anything was sent.
	unsent()
	// lost is called when the backend is lost before it has answered.
	lost(u *unit, e *pgwire.Error)
	// abandon answers every member with an error.
	abandon(e *pgwire.Error)
}

// A series is a set of UPDATEs and DELETEs of a solo lane that run one after the other in one
// transaction, each with its own answer: with one begin, flush and end, they cost the
// server half as much as in a transaction each. sqlscan.Serial says which
// statements, and serialFacts which tables, behave the same either way.
//
// Any error rolls all of them back; then each runs again in a transaction of its own,
// so that only the culprit fails, with its own error.
type series struct {
	ln *lane
	u  *unit
	b  *backend
	members

	at  int // members answered
	err *pgwire.Error
}

// members are the units that share a transaction, and their common outcome.
type members struct {
	units   []*unit
	notices []byte // NoticeResponse messages: of the commit, which all share, and of the flush
	settled bool
}

// note implements txnGroup.
func (m *members) note(notices []byte) { m.notices = append(m.notices, notices...) }

// lost implements txnGroup.
func (m *members) lost(_ *unit, e *pgwire.Error) { m.abandon(e) }

// abandon implements txnGroup.
func (m *members) abandon(e *pgwire.Error) {
	m.settled = true
	for _, u := range m.units {
		if u.c != nil && !u.c.s.Closed {
			u.c.lost(u, e)
		}
		u.c = nil
	}
}

// unsent implements txnGroup.
func (g *series) unsent() { g.goOn(g.ln) }

// goOn makes each member run by itself: nothing of them was sent.
func (m *members) goOn(ln *lane) {
	m.settled = true
	solo := ln.p.lanes.solo(ln.key.set, 0)
	for _, u := range m.units {
		u.serial = nil
		if u.c != nil && !u.c.s.Closed && !givenUp(u) {
			u.retries++
			solo.push(u)
		}
	}
	m.units = nil
}

// maxSeries bounds a series, so that one whose every member waits for a lock as long as
// laneLockTimeout permits ends before the server looks for deadlocks: see serialSQL.
const maxSeries = 128

// join makes series of those members of a run that may be in one, if there are several
// in a row.
func (ln *lane) join(b *backend, units []*unit) []*unit {
	if ln.p.l.cfg.NoRowsLane {
		return units
	}
	out := units[:0]
	for len(units) > 0 {
		n := 0
		for n < len(units) && n < min(ln.Limit, maxSeries) && units[n].serial != nil && units[n].serial.state == tablePlain &&
			!units[n].compares(ln.p.l.Now) && !b.mustAskFor(units[n]) {
			n++
		}
		if n < 2 {
			out, units = append(out, units[0]), units[1:]
			continue
		}
		g := &series{ln: ln, u: ln.p.l.newUnit(unitRows), members: members{units: slices.Clone(units[:n])}}
		g.u.grp = g
		out, units = append(out, g.u), units[n:]
	}
	return out
}

// send implements txnGroup: the members' messages without their Syncs, a guard for
// each table, one Sync.
func (g *series) send(b *backend) {
	g.b = b
	g.u.sendsAt(b)
	b.Push(g.u, b.p.l.Now)
	b.begin(g.u)
	var tables []*serialFacts
	for _, u := range g.units {
		for i := range u.ops {
			o := &u.ops[i]
			msg := u.raw[o.off:o.end]
			switch o.kind {
			case pgwire.ClientBind:
				b.putBind(msg, int(o.name-o.off), int(o.rest-o.off), b.memberName(g.u, u, o.st))
			case pgwire.ClientDescribe, pgwire.ClientExecute:
				b.s.Out = append(b.s.OutBuf(), msg...)
			}
		}
		if !slices.Contains(tables, u.serial) {
			tables = append(tables, u.serial)
		}
	}
	b.need(g.u, g.ln.p.serials.guard)
	for _, f := range tables {
		out := append(b.s.OutBuf(), f.guardBind...)
		b.s.Out = pgwire.AppendExecute(out, "", 0)
	}
	b.s.Out = pgwire.AppendSync(b.s.OutBuf())
	b.s.Touch()
}

// message implements txnGroup.
func (g *series) message(u *unit, typ byte, msg []byte) {
	var m *unit // nil: a guard's
	if g.at < len(g.units) {
		m = g.units[g.at]
	}
	switch typ {
	case pgwire.ServerParseComplete, pgwire.ServerCloseComplete:
		u.expAt++ // weir's own: a member's Parse is answered with its Bind
	case pgwire.ServerBindComplete:
		if m != nil {
			if m.parses() {
				m.resp = append(m.resp, parseComplete...)
			}
			m.resp = append(m.resp, msg...)
		}
	case pgwire.ServerRowDescription, pgwire.ServerNoData, pgwire.ServerDataRow:
		if m != nil {
			if m.resp = append(m.resp, msg...); len(m.resp) > maxHeld {
				m.bytes += len(m.resp)
				m.goesOn(g.b)
			}
		}
	case pgwire.ServerNotice:
		switch {
		case m == nil:
			g.notices = append(g.notices, msg...)
		case !u.parsing() || m.parses():
			m.resp = append(m.resp, msg...)
		}
	case pgwire.ServerCommandComplete, pgwire.ServerPortalSuspended:
		if m != nil {
			m.resp = append(m.resp, msg...)
			m.tuples = tagged(msg[pgwire.HeaderLen:])
			g.at++
		}
	case pgwire.ServerError:
		e, err := pgwire.ParseError(msg[pgwire.HeaderLen:])
		if err != nil {
			e = pgwire.NewError(pgwire.CodeInternalError, "unreadable error")
		}
		g.err = e
		g.b.unlearn(u)
	}
}

// ready implements txnGroup: the answers wait for the end of the run.
func (g *series) ready() {}

// settle implements txnGroup.
func (g *series) settle(flushed bool) {
	if g.settled {
		return
	}
	g.settled = true
	ln := g.ln
	switch {
	case g.err != nil:
		g.apart()
	case g.at != len(g.units):
		g.abandon(pgwire.NewError(pgwire.CodeCompletionUnknown, "weir: the server did not answer each of %d statements; whether this one took effect is unknown", len(g.units)))
	case !flushed:
		g.abandon(pgwire.NewError(pgwire.CodeCompletionUnknown,
			"weir: the statement was committed but could not be made durable; whether it survives a crash of the server is unknown"))
	default:
		if ln.Limit < core.MaxGroup {
			ln.Limit = min(core.MaxGroup, ln.Limit+1+ln.Limit/16)
		}
		for _, u := range g.units {
			g.answer(u)
		}
	}
	ln.p.l.recycle(g.u)
	g.u = nil
}

// answer sends a member the server's answer to it.
func (g *series) answer(u *unit) {
	c := u.c
	if c == nil || c.s.Closed {
		g.ln.p.l.recycle(u)
		return
	}
	out := append(c.s.OutBuf(), g.notices...)
	out = append(out, u.resp...)
	c.s.Out = append(out, readyIdle...)
	c.s.Touch()
	u.bytes += len(u.resp) + len(readyIdle)
	if u.shape != nil {
		u.shape.Observe(u.shape.Cost(), u.bytes)
	}
	c.responder.grouped(u)
}

var readyIdle = pgwire.AppendReadyForQuery(nil, pgwire.StatusIdle)

// apart makes each member run again in a transaction of its own, after an error that
// rolled all of them back.
func (g *series) apart() {
	ln := g.ln
	ln.Fallbacks++
	ln.Limit = max(smallGroup, min(ln.Limit, len(g.units))/2)
	solo := ln.p.lanes.solo(ln.key.set, 0)
	guarded := g.at == len(g.units) || g.err.Code == pgwire.CodeFeatureNotSupported || g.err.Code == pgwire.CodeUndefinedStatement
	for _, u := range g.units {
		if guarded {
			ln.p.serials.drop(u.serial) // the table has changed, or a plan is out of date: ask again
		}
		u.retries++
		if u.wrote && u.c != nil && !u.c.s.Closed {
			u.c.kick("its write was taken back with its group, and a part of its answer has left") // the client must start over
		}
		u.serial, u.resp, u.bytes, u.tuples = nil, u.resp[:0], 0, 0
		if u.c != nil && !u.c.s.Closed && !givenUp(u) {
			solo.push(u)
		}
	}
}

// serialFacts is what weir knows of one table under one search path, for series.
type serialFacts struct {
	key       tableKey
	state     tableState
	at        time.Duration
	epoch     uint64   // of the catalogue
	columns   []string // their names
	guardBind []byte   // the guard's Bind message for this table
}

// serials are the tables of a pool.
type serials struct {
	p     *pool
	guard *stmt
	m     map[tableKey]*serialFacts
}

func (s *serials) init(p *pool) {
	s.p, s.guard = p, p.stmts.internal(serialGuardSQL)
}

func (s *serials) forget() { clear(s.m) }

func (s *serials) drop(f *serialFacts) {
	if f != nil && s.m[f.key] == f {
		delete(s.m, f.key)
		f.state = tableOther
	}
}

// of returns what is known of the table of a unit that executes one write and nothing
// else, nil if the unit may not join a series. If nothing is known, it asks the server.
func (s *serials) of(set *session.Set, u *unit, st *stmt) *serialFacts {
	if !st.serialOK || st.info.Effects != sqlscan.EffWrites || u.retries > 0 || u.limited && st.serial.Returning || !u.plainInsert() {
		return nil
	}
	p := s.p
	key := tableKey{set, st.serial.Table}
	f := s.m[key]
	if f == nil || f.epoch != p.catalogue.epoch || f.state == tableOther && p.l.Now-f.at > tableKeep {
		s.look(key)
		return nil
	}
	if f.state != tablePlain {
		return nil
	}
	for _, name := range st.serial.Fields {
		if !slices.Contains(f.columns, name) {
			return nil // it may be a function of the row
		}
	}
	return f
}

// look asks the server about a table.
func (s *serials) look(key tableKey) {
	p := s.p
	if len(s.m) >= sight.MaxShapes {
		clear(s.m)
	}
	if s.m == nil {
		s.m = make(map[tableKey]*serialFacts)
	}
	key.name = strings.Clone(key.name)
	f := &serialFacts{key: key, at: p.l.Now, epoch: p.catalogue.epoch}
	s.m[key] = f
	p.askIn(key.set, serialSQL(key.name), serialColumns, func(u *unit) { f.learn(p, u) })
}

func (f *serialFacts) learn(p *pool, u *unit) {
	f.at = p.l.Now
	if u.err != nil || len(u.rows) != 1 || string(u.rows[0][4]) != "t" {
		f.state = tableOther
		return
	}
	f.state = tablePlain
	f.columns = strings.Split(string(u.rows[0][5]), "\x01")
	f.guardBind = pgwire.AppendBind(nil, "", p.serials.guard.srvName, &pgwire.BindArgs{
		Values: [][]byte{[]byte(f.key.name), u.rows[0][0], u.rows[0][1], u.rows[0][2], u.rows[0][3]},
	})
}

// quietTriggers are the triggers of foreign keys that check, and change nothing, at the end of
// each statement: RI_FKey_check_ins, check_upd, restrict_del, restrict_upd, noaction_del,
// noaction_upd. Their numbers are the same in every PostgreSQL.
const quietTriggers = `NOT EXISTS (SELECT FROM pg_catalog.pg_trigger t WHERE t.tgrelid = c.oid
 AND (NOT t.tgisinternal OR t.tginitdeferred OR t.tgfoid <> ALL (ARRAY[1644, 1645, 1648, 1649, 1654, 1655]::pg_catalog.oid[])))`

// serialColumns is how many columns serialSQL has.
const serialColumns = 6

// serialSQL asks whether a table is fit: an ordinary table without children, row
// security, rules, triggers that do anything, deferred constraints, and without
// user-defined functions and types in its columns, defaults, checks and indexes; and whether
// weir's short lock waits end before the server looks for deadlocks.
func serialSQL(name string) string {
	var ops []string
	for _, o := range sqlscan.QuietOperators() {
		ops = append(ops, quoteLiteral(o))
	}
	const deps = ` d JOIN pg_catalog.pg_depend p ON p.refclassid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND `
	return own(`SELECT c.oid, c.xmin, `+schemasSQL(name)+`, `+committedReads+` AND c.relkind = 'r' AND c.relpersistence <> 't' AND NOT c.relispartition AND NOT c.relrowsecurity AND NOT c.relhasrules AND NOT c.relhassubclass
 AND `+quietTriggers+`
 AND NOT EXISTS (SELECT FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.atttypid >= 16384)
 AND NOT EXISTS (SELECT FROM pg_catalog.pg_attrdef`+deps+`p.classid = 'pg_catalog.pg_attrdef'::pg_catalog.regclass AND p.objid = d.oid WHERE d.adrelid = c.oid)
 AND NOT EXISTS (SELECT FROM pg_catalog.pg_constraint`+deps+`p.classid = 'pg_catalog.pg_constraint'::pg_catalog.regclass AND p.objid = d.oid WHERE d.conrelid = c.oid)
 AND NOT EXISTS (SELECT FROM pg_catalog.pg_index`+deps+`p.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND p.objid = d.indexrelid WHERE d.indrelid = c.oid)
 AND NOT EXISTS (SELECT FROM pg_catalog.pg_operator o WHERE o.oid >= 16384 AND o.oprleft < 16384 AND o.oprright < 16384 AND o.oprname = ANY (ARRAY[`+strings.Join(ops, ", ")+`]::pg_catalog.name[]))
 AND NOT EXISTS (SELECT FROM pg_catalog.pg_cast k WHERE k.oid >= 16384 AND k.castsource < 16384 AND k.casttarget < 16384)
 AND pg_catalog.current_setting('deadlock_timeout', true)::pg_catalog.interval >= '500ms'::pg_catalog.interval,
 (SELECT pg_catalog.string_agg(a.attname, pg_catalog.chr(1)) FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)
 FROM pg_catalog.pg_class c WHERE c.oid = `) + `pg_catalog.to_regclass(` + quoteLiteral(name) + `)`
}

// serialGuardSQL fails, by a division by zero, unless the name still refers to the same
// table in the same version without triggers that do anything. It runs
// after the members, whose locks keep the table from changing.
var serialGuardSQL = own(`SELECT 1 / pg_catalog.count(*) FROM pg_catalog.pg_class c
 WHERE ` + committedReads + ` AND ` + sameSchemas + ` AND c.oid = pg_catalog.to_regclass($1) AND c.oid = $2::pg_catalog.oid AND c.xmin = $3::pg_catalog.xid AND ` + quietTriggers)

// builtinParams reports whether a Parse message's parameters, after its text, are all of
// built-in types, or have no type yet.
func builtinParams(tail []byte, text int) bool {
	p := tail[min(text+1, len(tail)):]
	if len(p) < 2 {
		return false
	}
	for p = p[2:]; len(p) >= 4; p = p[4:] {
		if binary.BigEndian.Uint32(p) >= 16384 {
			return false
		}
	}
	return true
}
