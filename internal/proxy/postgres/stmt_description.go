package postgres

import (
	"bytes"
	"encoding/binary"
	"hash/fnv"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/proxy/cache"
	"github.com/weirdb/weir/internal/proxy/sqlscan"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file handles prepared statements whose meaning has changed since clients were told of
// it. A client writes parameters and reads results, which may be binary, according to the
// server's earlier description of the statement. The server keeps the types of parameters as
// long as the statement exists, and refuses to run it when the columns of its result have
// changed. weir, which parses the text again on each backend, must do the same; otherwise,
// after ALTER COLUMN ... TYPE, the eight bytes of a bigint would be stored as a double:
//
//   - weir's own Parse declares the types of parameters that clients were told;
//   - after it weir asks for the columns. If they have changed, the statement does not run, and
//     the client gets the server's error for that;
//   - a client that parses the text itself gets its present meaning, as a separate
//     statement. Clients that parsed it before keep the old one.
//
// What must not run before the columns are known waits for them, in its place on the backend:
// weir sends the question, a Flush, and the rest when that is answered. A client that owns the
// backend waits at its Bind, a write of other clients at its first message. A shared read is
// sent at once, and its answer is held back.

// A stmtDescription is what clients were told about a prepared statement.
type stmtDescription struct {
	params  []byte        // number and types of its parameters, as in Parse; nil: unknown
	columns uint64        // of its result: see columnsOf; 0: none, or unknown
	heard   bool          // a client has asked for the description
	at      time.Duration // when it was last compared with the text's present meaning; negative if it may be wrong
	asked   time.Duration // when a client was last sent to compare it
}

// toldKeep is how long a client that parses a statement may get an outdated description of
// it after a change on a direct connection.
const toldKeep = time.Second

// old reports whether the next client that parses the statement must compare the description:
// only one client does, unless the description may be wrong.
func (t *stmtDescription) old(now time.Duration) bool {
	return t.known() && (t.at < 0 || now-t.at > toldKeep && now-t.asked > toldKeep)
}

// expire makes the next client that parses the text compare the description.
func (t *stmtDescription) expire() { t.at = -1 }

func (t *stmtDescription) known() bool { return t.params != nil || t.columns != 0 }

func (t *stmtDescription) is(u stmtDescription) bool {
	return t.columns == u.columns && bytes.Equal(t.params, u.params)
}

// append appends everything by which parameters are written and an answer is read; the
// columns only if the answer does not describe them.
func (t *stmtDescription) append(key []byte, described bool) []byte {
	if !described {
		key = binary.BigEndian.AppendUint64(key, t.columns)
	}
	return cache.AppendField(key, t.params)
}

// compares reports whether the member of a group must be sent unchanged, by itself, since the
// server may tell its client something about a statement that weir does not know. Of several
// members that would only compare an old description, the first one does.
func (u *unit) compares(now time.Duration) bool {
	var bound *stmt
	for i := range u.ops {
		switch o := &u.ops[i]; o.kind {
		case pgwire.ClientParse:
			switch t := &o.st.desc; {
			case u.anew, !t.known() && o.st.infers():
				return true
			case t.old(now):
				u.anew, t.asked = true, now
				return true
			}
		case pgwire.ClientBind:
			bound = o.st
		case pgwire.ClientDescribe:
			st := o.st
			if st == nil {
				st = bound
			}
			if st != nil && !st.desc.heard {
				return true
			}
		}
	}
	return false
}

// parsesItself reports whether the client's own Parse of a statement was sent with the unit.
func parsesItself(u *unit, st *stmt) bool {
	return slices.ContainsFunc(u.exp, func(x expect) bool { return x.code == expParse && x.st == st })
}

// reliesOn is the statement that a grouped write runs, if its columns were described to the
// client before; nil otherwise. For a group it is that of its members.
func (u *unit) reliesOn() *stmt {
	if u.kind == unitRows {
		if u = u.grp.member(relies); u == nil {
			return nil
		}
	}
	for i := range u.ops {
		if o := &u.ops[i]; o.kind == pgwire.ClientBind && o.st.desc.columns != 0 {
			if !slices.ContainsFunc(u.ops[:i], func(p op) bool { return p.kind == pgwire.ClientParse && p.st == o.st }) {
				return o.st
			}
		}
	}
	return nil
}

func relies(u *unit) bool { return u.reliesOn() != nil }

// columnsOf is a hash of the names, types and modifiers of the columns in the body of a
// RowDescription, by which the server itself compares results; 0 if there are none.
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

// planned reports whether the server plans the statement, and checks its columns at each run.
// Statements such as FETCH may have other columns each time.
func (st *stmt) planned() bool {
	switch st.text.Verb {
	case sqlscan.VerbSelect, sqlscan.VerbValues, sqlscan.VerbTable, sqlscan.VerbInsert, sqlscan.VerbUpdate, sqlscan.VerbDelete, sqlscan.VerbMerge:
		return true
	}
	return false
}

// infers reports whether the server infers types of parameters: the text may have
// parameters whose types the client has not declared.
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

// typed is the tail of weir's own Parse message.
func (st *stmt) typed() []byte {
	if st.desc.params == nil {
		return st.tail
	}
	text := bytes.IndexByte(st.tail, 0) + 1
	return append(st.tail[:text:text], st.desc.params...)
}

// putTyped appends weir's own Parse message for a statement whose description is known.
func (k *backendStmts) putTyped(u *unit, st *stmt) {
	k.b.s.Out = pgwire.AppendParseRaw(k.b.s.OutBuf(), st.srvName, st.typed())
	k.compared(u, st, st.desc.params != nil, false)
}

// compared records that the statement, which u has found here or parsed, has the parameters, or
// the columns, that clients were told. A later unit may have parsed it again.
func (k *backendStmts) compared(u *unit, st *stmt, params, columns bool) {
	if was, ok := k.prepared[st]; ok && was.sentBy <= u.lastNum {
		was.params, was.columns = was.params || params, was.columns || columns
		k.prepared[st] = was
	}
}

// doubt makes a statement be parsed again before it is used here.
func (k *backendStmts) doubt(st *stmt) {
	if was, ok := k.prepared[st]; ok {
		was.uncertain = true
		k.prepared[st] = was
	}
}

// mustAsk reports whether u, the last unit begun, must not run a statement before the server
// has described its columns here.
func (k *backendStmts) mustAsk(u *unit, st *stmt) bool {
	return st != nil && st.desc.columns != 0 && !slices.Contains(u.unlike, st) && !parsesItself(u, st) && !(k.knows(u, st) && k.prepared[st].columns)
}

// mustAskFor is mustAsk for a grouped write.
func (k *backendStmts) mustAskFor(u *unit) bool { return k.mustAsk(u, u.reliesOn()) }

// askColumns asks for the columns of a statement, which it prepares here for that purpose.
func (k *backendStmts) askColumns(u *unit, st *stmt) {
	k.need(u, st)
	k.describe(u, st.srvName, expect{st: st})
}

// describe asks for the description of the statement named srvName, after its Parse; x
// describes the expected answer.
func (k *backendStmts) describe(u *unit, srvName string, x expect) {
	k.b.s.Out = pgwire.AppendDescribe(k.b.s.OutBuf(), pgwire.KindStatement, srvName)
	x.code = expHiddenDescribe
	u.exp = append(u.exp, x)
}

// mayBind reports whether the client may run a statement on its backend. If the backend must
// first describe the result, the Bind waits for that.
func (fw *forwarder) mayBind(st *stmt) bool {
	c := fw.c
	if st.desc.columns == 0 || c.tx == pgwire.StatusFailed {
		return true
	}
	if u := c.cur; u != nil {
		switch {
		case u.failed, u.flushedTo > u.expAt:
			return u.failed
		case asked(u):
			return c.link.Cancels == 0
		}
	}
	u := fw.openExtended()
	if !c.link.mustAsk(u, st) {
		return true
	}
	c.link.askColumns(u, st)
	c.transport.toServer(pgwire.AppendFlush(nil))
	u.flushedTo = len(u.exp)
	return false
}

// asked reports whether the last question to the server was what the next Bind returns.
func asked(u *unit) bool {
	n := len(u.exp)
	return n > 0 && u.flushedTo == n && u.exp[n-1].code == expHiddenDescribe && !u.exp[n-1].own
}

// asksFirst asks for the columns of a write that must not run before they are known.
func asksFirst(b *backend, u *unit) bool {
	if u.read || u.refresh || !b.mustAskFor(u) {
		return false
	}
	b.askColumns(u, u.reliesOn())
	b.s.Out = pgwire.AppendFlush(b.s.OutBuf())
	b.s.Touch()
	u.flushedTo = len(u.exp)
	u.asking, u.at = true, math.MaxUint64 // nothing of it is sent
	return true
}

// askersLast puts units that ask for their columns after the others of a run. One of them
// asks, and the rest wait for the next run.
func askersLast(b *backend, units []*unit) []*unit {
	var asks []*unit
	units = slices.DeleteFunc(units, func(u *unit) bool {
		if u.kind == unitRows || !b.mustAskFor(u) {
			return false
		}
		asks = append(asks, u)
		return true
	})
	return append(units, asks...)
}

// onlyAsks reports whether only weir's questions before the first Bind were sent for a linked
// client's unit.
func onlyAsks(u *unit) bool {
	return !u.failed && u.flushedTo > 0 && u.flushedTo == len(u.exp) && u.statements == 0 &&
		!slices.ContainsFunc(u.exp, func(x expect) bool { return x.code < expHiddenParse || x.code > expHiddenClose })
}

// goOn continues after weir's Flush: with the client that owns the backend, or with a write
// that asks for its columns. Nothing of that write is sent while a cancel request is in flight,
// which could hit the marker of its group, or come too early for it: see signal. Members that
// have committed wait for as long, at most --connect-timeout.
func goOn(b *backend, u *unit) {
	switch {
	case !u.asking:
		if u.c != nil {
			u.c.resume() // see blocked and mayBind
		}
		return
	case b.Cancels > 0, !u.failed && u.expAt < u.flushedTo:
		return
	case !u.failed && !u.Left() && u.c.responder.cancelled != u:
		u.sendsAt(b)
		b.sendMessages(u)
	default:
		if !u.failed && !u.Left() {
			u.instead = errEnded(u) // the server had answered before the request came
		}
		b.s.Out = pgwire.AppendSync(b.s.OutBuf())
		b.s.Touch()
	}
	u.asking = false
	if ln := b.lane; ln != nil && ln.key.async() {
		ln.sendMarker(b, ln.Runs[b])
	}
}

// Names of statements that the server does not know: it refuses a Bind in its place, and skips
// what follows it.
const (
	otherColumns = "weir: other columns"
	cancelled    = "weir: cancelled"
)

// refusal is the error for a Bind that weir made the server refuse, whose error is e; nil if e
// is another error.
func refusal(u *unit, e *pgwire.Error) *pgwire.Error {
	switch {
	case e.Code != pgwire.CodeUndefinedStatement:
	case strings.Contains(e.Message, otherColumns):
		return errOtherColumns()
	case strings.Contains(e.Message, cancelled) && u.c != nil:
		return errEnded(u)
	}
	return nil
}

// bindName is the name of a statement for a Bind.
func (k *backendStmts) bindName(u *unit, st *stmt) string {
	switch {
	case slices.Contains(u.unlike, st):
		return otherColumns
	case asked(u) && u.c != nil && u.c.responder.cancelled == u:
		return cancelled // by a request that came too late for the question
	}
	k.need(u, st)
	return st.srvName
}

// memberName is bindName for a member of a group, which cannot ask. If its columns are not
// known, the statement was parsed again after the group's question; then all members run alone.
func (k *backendStmts) memberName(u, member *unit, st *stmt) string {
	name := k.bindName(u, st)
	if relies(member) && k.mustAsk(u, st) {
		return otherColumns
	}
	return name
}

// errOtherColumns is the server's error for a statement whose columns have changed since its
// client was told.
func errOtherColumns() *pgwire.Error {
	e := pgwire.NewError(pgwire.CodeFeatureNotSupported, "cached plan must not change result type")
	e.Routine = "RevalidateCachedQuery"
	return e
}

// described handles a part of the server's description of a statement.
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
	heard, st, unnamed := k.heard, x.st, x.own && x.named != 0
	k.heard = stmtDescription{}
	heard.at = k.b.p.l.Now
	switch {
	case st == nil:
	case x.code == expDescribe, x.own && !st.desc.known():
		k.tells(u, x, heard)
	case st.desc.is(heard), heard.columns == st.desc.columns && (!x.own || st.desc.params == nil):
		if st.desc.params == nil {
			st.desc.params = heard.params // no client was told any
		}
		if !unnamed {
			k.compared(u, st, st.desc.is(heard), true)
		}
		if x.own {
			st.desc.at = heard.at
		}
	case x.own:
		k.doubt(st)
		u.toldOtherwise(x, heard)
	default:
		k.doubt(st) // it may be unchanged the next time
		if u.asking || k.b.owner != nil {
			u.unlike = append(u.unlike, st)
		} else {
			u.instead = errOtherColumns()
		}
	}
}

// tells records what the server tells a client about a statement.
func (k *backendStmts) tells(u *unit, x expect, heard stmtDescription) {
	st, c := x.st, u.c
	if c == nil || u.instead != nil || k.b.owner != nil && !st.single && c.stmts.readsByItself(st) {
		return
	}
	if !u.hears(x, heard) {
		k.doubt(st)
	} else if !x.own || x.named == 0 { // not the backend's unnamed one
		k.compared(u, st, heard.params != nil, true)
	}
}

// hears records what a client is told about a statement. It returns false if other clients
// were told something else: for this client it is now a separate statement.
func (u *unit) hears(x expect, heard stmtDescription) bool {
	st, c := x.st, u.c
	if heard.params == nil { // of a portal
		heard.params = st.desc.params
	}
	if st.desc.params != nil && !bytes.Equal(heard.params, st.desc.params) ||
		st.desc.columns != 0 && heard.columns != st.desc.columns ||
		c.responder.changes && !st.single && !st.desc.is(heard) {
		u.toldOtherwise(x, heard)
		return false
	}
	heard.heard, heard.asked = true, st.desc.asked
	st.desc = heard
	return true
}

// columnsIn is the hash of the columns that the answer to a plain unit describes, for the
// cache; nil if it does not.
func columnsIn(u *unit, resp []byte) any {
	if !slices.ContainsFunc(u.ops, func(o op) bool { return o.kind == pgwire.ClientDescribe }) {
		return nil
	}
	for {
		typ, n, ok := pgwire.Peek(resp)
		if !ok || n > len(resp) {
			return nil
		}
		if typ == pgwire.ServerRowDescription {
			return columnsOf(resp[pgwire.HeaderLen:n])
		}
		resp = resp[n:]
	}
}

// hearsAgain records that the cache has described the columns of a plain unit, unchanged.
func hearsAgain(u *unit, raw []byte, columns uint64) {
	for i := range u.ops {
		o := &u.ops[i]
		if o.kind == pgwire.ClientBind && o.st.desc.columns != columns {
			heard := stmtDescription{columns: columns}
			heard.expire()
			u.hears(expect{st: o.st, named: numberOf(text(cutName(raw[o.name : o.rest-1])))}, heard)
		}
	}
}

// toldOtherwise is called when a client was told something else about a statement than other
// clients: for this client it is now a separate statement, under the names that it uses.
func (u *unit) toldOtherwise(x expect, heard stmtDescription) {
	old, c := x.st, u.c
	if c == nil || c.s.Closed {
		return
	}
	heard.heard = true
	var fresh *stmt
	if c.responder.changes && !old.single { // that may be rolled back
		fresh = c.p.stmts.single(old)
		fresh.desc = heard
	} else {
		fresh = c.p.stmts.toldAs(old, heard)
		if heard.at >= 0 {
			c.p.stmts.follow(old, fresh)
		}
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

// toldAs returns the statement with the text of st of which clients were told t.
func (in *poolStmts) toldAs(st *stmt, t stmtDescription) *stmt {
	if !t.known() || st.desc.is(t) {
		return st
	}
	if !st.desc.known() || st.single || st.key == "" { // or it belongs to one client
		st.desc = t
		return st
	}
	head := in.byKey[st.key]
	for s := head; s != nil; s = s.other {
		if s.desc.is(t) {
			return s
		}
		for s.other != nil && s.other.refs == 0 {
			s.other = s.other.other
		}
	}
	fresh := in.make(st.key, st.tail, st.as)
	fresh.set, fresh.as, fresh.desc = st.set, st.as, t
	fresh.reads(st.as)
	if head != nil {
		fresh.other, head.other = head.other, fresh
	}
	return fresh
}

// follow gives clients that parse a text next st instead of old.
func (in *poolStmts) follow(old, st *stmt) {
	if st == old || in.byKey[old.key] != old {
		return
	}
	for s := old; s != nil; s = s.other {
		if s.other == st {
			s.other = st.other
		}
	}
	st.other = old
	in.byKey[old.key] = st
}
