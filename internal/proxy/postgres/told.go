package postgres

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"hash/fnv"
	"slices"
	"time"

	"github.com/weirdb/weir/internal/proxy/cache"
	"github.com/weirdb/weir/internal/proxy/sqlscan"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file is about prepared statements that mean something else by now than their
// clients were told. A client writes parameters and reads results, which may be binary, by
// what the server once said of a statement. The server keeps the types of its parameters
// as long as the statement, and refuses to run it when the columns of its result have
// become others. weir, which parses the text again on each backend, must do the same, or
// after ALTER COLUMN ... TYPE the eight bytes of a bigint are stored as those of a double:
//
//   - a Parse of weir's own has the types of parameters that clients were told;
//   - behind it weir asks for the columns. If they are others, the statement is not run, and
//     the client gets the error that the server has for this;
//   - a client that parses the text itself gets what it means now, as a statement of its
//     own. Those who parsed it before keep theirs.
//
// Who must not run what it should not waits for the columns: a client that owns the backend,
// and what writes. A shared read does not wait; its answer is withheld.

// told is what clients know of a prepared statement.
type told struct {
	params  []byte        // number and types of its parameters, as in Parse; nil if nobody knows
	columns uint64        // of its result: see columnsOf; 0 if it has none, or nobody knows
	heard   bool          // somebody has asked
	at      time.Duration // when it was last compared with what the text means
}

// toldKeep is how long a client that parses a statement gets what others were told of it,
// where that was changed on a direct connection.
const toldKeep = time.Second

func (t *told) old(now time.Duration) bool { return t.known() && now-t.at > toldKeep }

// doubt has it compared with what the text means now when a client next parses that.
func (t *told) doubt() { t.at = -2 * toldKeep }

// asks reports whether a unit is to be sent as it is, since the server may tell its client
// of a statement what weir does not know.
func (u *unit) asks(now time.Duration) bool {
	var bound *stmt
	for i := range u.ops {
		switch o := &u.ops[i]; o.kind {
		case pgwire.ClientParse:
			if o.st.told.old(now) || !o.st.told.known() && o.st.infers() {
				return true
			}
		case pgwire.ClientBind:
			bound = o.st
		case pgwire.ClientDescribe:
			if st := cmp.Or(o.st, bound); st != nil && !st.told.heard {
				return true
			}
		}
	}
	return false
}

func (t *told) known() bool { return t.params != nil || t.columns != 0 }

func (t *told) is(u told) bool { return t.columns == u.columns && bytes.Equal(t.params, u.params) }

// append appends what parameters are written, and an answer is read by, unless it is described
// itself.
func (t *told) append(key []byte, described bool) []byte {
	if !described {
		key = binary.BigEndian.AppendUint64(key, t.columns)
	}
	return cache.AppendField(key, t.params)
}

// A likeness is how a statement on a backend compares with what clients were told.
type likeness uint8

const (
	likenessUnknown likeness = iota // it was parsed without regard to that
	likeParams                      // its parameters are those; the columns are not known yet
	likeTold
	unlikeTold // its columns are others
)

// columnsOf is a number for the names, types and modifiers of the columns in the body of a
// RowDescription, by which the server tells results apart; 0 if there are none.
func columnsOf(body []byte) uint64 {
	n, p, ok := take16(body)
	if !ok || n == 0 {
		return 0
	}
	h := fnv.New64a() // the same in each process: see moved
	for range n {
		_, at, ok := cstr(p, 0)
		if !ok || len(p) < at+18 {
			return 0
		}
		h.Write(p[:at])
		h.Write(p[at+6 : at+10])  // type
		h.Write(p[at+12 : at+16]) // modifier
		p = p[at+18:]
	}
	return h.Sum64() | 1
}

// planned reports whether the server plans the statement, and looks at its columns each time.
// Those of others, as FETCH, may be others each time.
func (st *stmt) planned() bool {
	switch st.text.Verb {
	case sqlscan.VerbSelect, sqlscan.VerbValues, sqlscan.VerbTable, sqlscan.VerbInsert, sqlscan.VerbUpdate, sqlscan.VerbDelete, sqlscan.VerbMerge:
		return true
	}
	return false
}

// infers reports whether the server finds types of parameters by itself: the text may have
// some that the client has not declared.
func (st *stmt) infers() bool {
	end := bytes.IndexByte(st.tail, 0)
	if end < 0 || bytes.IndexByte(st.tail[:end], '$') < 0 {
		return false
	}
	n, oids, ok := take16(st.tail[end+1:])
	for ; ok && n > 0 && len(oids) >= 4; n-- {
		if binary.BigEndian.Uint32(oids) == 0 {
			return true
		}
		oids = oids[4:]
	}
	return bytes.Equal(st.tail[end+1:], []byte{0, 0})
}

// typed is the tail of a Parse message of weir's own.
func (st *stmt) typed() []byte {
	if st.told.params == nil {
		return st.tail
	}
	text := bytes.IndexByte(st.tail, 0) + 1
	return append(st.tail[:text:text], st.told.params...)
}

// putTyped appends a Parse message of weir's own for a statement that was learned.
func (k *backendStmts) putTyped(st *stmt) likeness {
	k.b.s.Out = pgwire.AppendParseRaw(k.b.s.OutBuf(), st.srvName, st.typed())
	k.like(st, likeParams)
	was := k.prepared[st]
	was.typed = st.told.params != nil
	k.prepared[st] = was
	return likeParams
}

// like notes how a statement here compares with what clients were told.
func (k *backendStmts) like(st *stmt, l likeness) {
	if was, ok := k.prepared[st]; ok {
		was.like = l
		k.prepared[st] = was
	}
}

// unasked reports whether the columns of a statement that is to be run here are to be asked
// for first.
func (k *backendStmts) unasked(st *stmt) bool {
	if st.told.columns == 0 {
		return false
	}
	like, ok := k.uses(st)
	return !ok || like == likeParams || like == unlikeTold && k.prepared[st].asked != k.begun
}

// inquire asks for the columns of a statement that is unasked.
func (k *backendStmts) inquire(u *unit, st *stmt) {
	if like, ok := k.uses(st); ok && like == unlikeTold {
		k.doubt(st) // it may be as before again
	}
	k.need(u, st)
	k.askColumns(u, st, false)
}

// askColumns asks for the columns of a statement, behind its Parse. own tells that this is a
// client's own.
func (k *backendStmts) askColumns(u *unit, st *stmt, own bool) {
	k.b.s.Out = pgwire.AppendDescribe(k.b.s.OutBuf(), pgwire.KindStatement, st.srvName)
	u.exp = append(u.exp, expect{code: expHiddenDescribe, st: st, own: own})
}

// bindName is the name of a statement for a Bind. If it is unlike what clients were told, it
// is a name that the server does not know: the server refuses it in its place, and what is
// behind it. The next time weir asks anew, since the columns may be the former ones again; in
// a lane that is the next run, see askFor.
func (k *backendStmts) bindName(st *stmt, like likeness) string {
	if like != unlikeTold || st.told.columns == 0 {
		return st.srvName
	}
	if k.b.lane == nil {
		k.doubt(st)
	}
	return unlikeName
}

// doubt has a statement parsed again before it is used here.
func (k *backendStmts) doubt(st *stmt) {
	if was, ok := k.prepared[st]; ok {
		was.uncertain = true
		k.prepared[st] = was
	}
}

const unlikeName = "weir: other columns"

// errUnlike is the server's error for a statement with other columns than its client was told.
func errUnlike() *pgwire.Error {
	e := pgwire.NewError(pgwire.CodeFeatureNotSupported, "cached plan must not change result type")
	e.Routine = "RevalidateCachedQuery"
	return e
}

// asked reports whether the client may run a statement on its backend. If the backend is to
// say first what it returns, the Bind waits for that.
func (fw *forwarder) asked(st *stmt) bool {
	c := fw.c
	b, u := c.link, c.cur
	switch {
	case st.told.columns == 0, c.tx == pgwire.StatusFailed, u != nil && u.failed:
		return true
	case u != nil && u.flushedTo > u.expAt:
		return false
	case !b.unasked(st):
		return true
	}
	u = fw.openExtended()
	b.inquire(u, st)
	c.transport.toServer(pgwire.AppendFlush(nil))
	u.flushedTo = len(u.exp)
	return false
}

// described handles a part of what the server says of a statement.
func (k *backendStmts) described(u *unit, x expect, typ byte, body []byte) {
	switch typ {
	case pgwire.ServerParameterDescription:
		if n, oids, ok := take16(body); !ok || len(oids) != 4*n {
			k.b.malformed("ParameterDescription")
			return
		}
		k.heard.params = append(make([]byte, 0, len(body)), body...)
		return
	case pgwire.ServerRowDescription:
		if x.st != nil && x.st.planned() {
			k.heard.columns = columnsOf(body)
		}
	case pgwire.ServerNoData:
	default:
		return
	}
	heard, st := k.heard, x.st
	k.heard = told{}
	switch {
	case st == nil:
	case x.code == expDescribe, x.own && !st.told.known():
		k.tells(u, x, heard)
	case st.told.is(heard), heard.columns == st.told.columns && (!x.own || st.told.params == nil):
		k.like(st, likeTold)
		if x.own {
			st.told.at = k.b.p.l.Now
		}
	case x.own:
		k.parsedAnew(u, x, heard)
	default:
		if was, ok := k.prepared[st]; ok {
			was.like, was.asked = unlikeTold, u.num
			k.prepared[st] = was
		}
		if k.b.owner == nil && u.kind == unitClient {
			u.instead = errUnlike()
		}
	}
}

// tells notes what a client is told of a statement.
func (k *backendStmts) tells(u *unit, x expect, heard told) {
	st, c := x.st, u.c
	if c == nil || u.instead != nil || k.b.owner != nil && !st.single && c.stmts.readsByItself(st) {
		return
	}
	if heard.params == nil { // of a portal
		heard.params = st.told.params
	}
	if st.told.params != nil && !bytes.Equal(heard.params, st.told.params) ||
		st.told.columns != 0 && heard.columns != st.told.columns ||
		c.back.changes && !st.single && !st.told.is(heard) {
		k.parsedAnew(u, x, heard)
		return
	}
	st.told = heard
	st.told.heard, st.told.at = true, k.b.p.l.Now
	if k.has(st) && !(x.own && x.code == expDescribe) { // that is the unnamed one
		k.like(st, likeTold)
	}
}

// parsedAnew is called when a client was told otherwise of a statement than others before:
// for this client it is another one now, under the names that it was told of.
func (k *backendStmts) parsedAnew(u *unit, x expect, heard told) {
	old := x.st
	k.doubt(old)
	c := u.c
	if c == nil || c.s.Closed {
		return
	}
	heard.heard, heard.at = true, k.b.p.l.Now
	var fresh *stmt
	if c.back.changes && !old.single { // that may be rolled back
		fresh = c.p.stmts.single(old)
		fresh.told = heard
	} else {
		fresh = c.p.stmts.as(old, heard)
	}
	for i := range u.parsed {
		if n := &u.parsed[i]; n.st == old {
			n.st = fresh
			c.stmts.renew(n.name, old, fresh)
		}
	}
	if x.named == 0 {
		return
	}
	for name := range c.stmts.byName {
		if numberOf(name) == x.named {
			c.stmts.renew(name, old, fresh)
		}
	}
	if numberOf("") == x.named {
		c.stmts.renew("", old, fresh)
	}
}

// renew makes a client's name that points to old point to fresh.
func (ss *statements) renew(name string, old, fresh *stmt) {
	if fresh != old && ss.named([]byte(name)) == old {
		at := ss.unnamedAt
		ss.name(name, fresh)
		ss.unnamedAt = at
	}
}

// as returns a statement of which a client was told t: st, unless others were told otherwise.
func (in *poolStmts) as(st *stmt, t told) *stmt {
	if !t.known() || st.told.is(t) {
		return st
	}
	if !st.told.known() || st.single || st.key == "" { // or it is one client's
		st.told = t
		return st
	}
	now := in.byKey[st.key] // for those who parse it next
	if now != nil && now.told.is(t) {
		return now
	}
	fresh := in.make(st.key, st.tail, st.as)
	fresh.set, fresh.as, fresh.told = st.set, st.as, t
	fresh.reads(st.as)
	if now == st {
		in.byKey[st.key] = fresh
	}
	return fresh
}

// askFor has the columns of the statements that units run asked for, where they are not known,
// and then calls then: with an error if the server has not said them, and nothing of the units
// may be sent. It reports false if all are known.
func (b *backend) askFor(units []*unit, then func(err *pgwire.Error)) bool {
	var of []*stmt
	look := func(u *unit) {
		for i := range u.ops {
			o := &u.ops[i]
			parsed := func(p op) bool { return p.kind == pgwire.ClientParse && p.st == o.st }
			if o.kind == pgwire.ClientBind && b.unasked(o.st) && !slices.Contains(of, o.st) && !slices.ContainsFunc(u.ops[:i], parsed) {
				of = append(of, o.st)
			}
		}
	}
	for _, u := range units {
		if g, ok := u.grp.(*group); ok {
			for _, u := range g.units {
				look(u)
			}
		} else {
			look(u)
		}
	}
	if len(of) == 0 {
		return false
	}
	b.Held = true
	var failed *pgwire.Error
	for i, st := range of {
		u := b.p.l.newUnit(unitHidden)
		u.done = func(u *unit) {
			if u.err != nil {
				b.unlearn(u)
				failed = cmp.Or(failed, u.err)
			}
			if i == len(of)-1 {
				b.p.l.Post(func() { // when the answer has been dealt with
					b.Held = false
					then(failed)
				})
			}
		}
		b.Push(u, b.p.l.Now)
		b.begin(u)
		b.inquire(u, st)
		b.s.Out = pgwire.AppendSync(b.s.OutBuf())
	}
	b.s.Touch()
	return true
}
