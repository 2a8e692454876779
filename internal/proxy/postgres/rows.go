package postgres

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/postgres/rowtext"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sqlscan"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// A rowsPlan says how the members of a rows lane become one statement.
type rowsPlan struct {
	p      *pool
	set    *session.Set
	st     *stmt // prepared form; nil for simple queries
	insert sqlscan.InsertShape
	bySize map[int]*stmt // multi-row statements by number of tuples
	typed  bool          // ... with the parameter types that clients were told
	table  *tableFacts
	max    int // maximum of tuples in one statement
	// types are those of the columns of simple queries, nil if the constants of their rows
	// cannot become parameters: see package rowtext. typesGuard is the guard that checks them.
	types      []uint32
	typesGuard guard
}

// maxParams is the maximum of parameters in a Bind message.
const maxParams = 65535

func newRowsPlan(p *pool, set *session.Set, st *stmt) *rowsPlan {
	return &rowsPlan{p: p, set: set, st: st, insert: st.insert, max: most(st.insert.MaxParam, maxParams)}
}

// most is how many tuples of k parameters fit in one statement with that limit.
func most(k, params int) int {
	n := core.MaxGroup
	if k > 0 {
		n = min(n, max(1, params/k))
	}
	return part(n)
}

// part is how many of n tuples go in one statement: n with only its three highest bits. So
// few sizes occur, each of which is parsed and planned once for a backend, and a group is sent
// in two or three statements.
func part(n int) int {
	if low := bits.Len(uint(n)) - 3; low > 0 {
		return n >> low << low
	}
	return n
}

func newTextPlan(p *pool, set *session.Set, sql string) *rowsPlan {
	ins, _ := sqlscan.Insert(strings.Clone(sql))
	return &rowsPlan{p: p, set: set, insert: ins, max: most(ins.Arity, rowtext.MaxValues)}
}

// multi returns the prepared statement for n tuples.
func (r *rowsPlan) multi(n int) *stmt {
	if r.st != nil && r.typed != (r.st.desc.params != nil) {
		r.typed, r.bySize = !r.typed, nil
	}
	if st := r.bySize[n]; st != nil {
		return st
	}
	text := make([]byte, 0, len(r.insert.Prefix)+n*(len(r.insert.Tuple)+4)+len(r.insert.Suffix)+2)
	text = append(append(text, r.insert.Prefix...), ' ')
	for i := range n {
		if i > 0 {
			text = append(text, ',')
		}
		text = r.appendTuple(text, i)
	}
	text = append(append(text, ' '), r.insert.Suffix...)
	tail := r.appendTypes(append(text, 0), n)
	st := r.p.stmts.make(r.set.Key()+"\x01"+string(tail), tail, lexical{})
	if r.bySize == nil {
		r.bySize = make(map[int]*stmt)
	}
	r.bySize[n] = st
	return st
}

// appendTuple appends the tuple of row i.
func (r *rowsPlan) appendTuple(text []byte, i int) []byte {
	if r.st != nil {
		return r.insert.AppendTuple(text, i*r.insert.MaxParam)
	}
	at := len(text)
	for j := range r.types {
		text = append(text, ",$"...)
		text = strconv.AppendInt(text, int64(i*len(r.types)+j+1), 10)
	}
	text[at] = '('
	return append(text, ')')
}

// appendTypes appends the types of the parameters of n tuples.
func (r *rowsPlan) appendTypes(tail []byte, n int) []byte {
	if r.st == nil {
		tail = binary.BigEndian.AppendUint16(tail, uint16(n*len(r.types)))
		for range n {
			for _, typ := range r.types {
				tail = binary.BigEndian.AppendUint32(tail, typ)
			}
		}
		return tail
	}
	k := r.insert.MaxParam
	oids := r.st.desc.params
	if oids == nil {
		oids = r.st.tail[len(r.st.sql)+1:]
	}
	have := int(binary.BigEndian.Uint16(oids))
	if have == 0 {
		return append(tail, 0, 0)
	}
	tail = binary.BigEndian.AppendUint16(tail, uint16(n*k))
	for range n {
		for i := range k {
			if i < have {
				tail = append(tail, oids[2+4*i:6+4*i]...)
			} else {
				tail = append(tail, 0, 0, 0, 0)
			}
		}
	}
	return tail
}

// current reports whether the table is known to be fit for multi-row statements.
func (r *rowsPlan) current() bool {
	if r.table != nil && r.table.state == tablePlain {
		return true
	}
	f := r.p.tables.m[tableKey{r.set, r.insert.Table}]
	if f == nil || f.state != tablePlain {
		r.table = nil
		return false
	}
	r.table = f
	if r.st == nil {
		r.types, r.typesGuard, r.bySize = f.columns.TypesOf(&r.insert), f.columnsGuard, nil
	}
	return true
}

// A group is the members of one multi-row transaction.
type group struct {
	ln *lane
	u  *unit // of kind unitRows, in the backend's queue
	b  *backend
	members
	guard  guard // when the table was last known to be fit
	asText bool  // its constants must not become parameters
	bound  bool  // they did

	sizes    []int // tuples in each statement
	at       int   // statements completed
	desc     []byte
	rows     []byte // DataRow messages
	ends     []int  // end of each row in rows
	err      *pgwire.Error
	mismatch bool
	parsed   []byte // notices from parsing its statements
}

// sendRows sends a whole run as multi-row groups, with at most the lane's present
// limit of members in each.
func (ln *lane) sendRows(b *backend, r *run) {
	units := r.units
	for len(units) > 0 {
		n := min(len(units), ln.Limit)
		g := ln.group(units[:n])
		units = units[n:]
		g.send(b)
	}
}

func (ln *lane) group(units []*unit) *group {
	g := &group{ln: ln, members: members{units: units}, guard: ln.rows.table.guard}
	g.u = ln.p.l.newUnit(unitRows)
	g.u.grp = g
	return g
}

// send appends the group's messages: multi-row statements, the guard, one Sync.
// All of it is one implicit transaction.
func (g *group) send(b *backend) {
	g.b = b
	g.u.sendsAt(b)
	plan := g.ln.rows
	g.sizes, g.at, g.err, g.rows, g.ends, g.notices = g.sizes[:0], 0, nil, g.rows[:0], g.ends[:0], nil
	g.parsed = nil
	g.u.exp, g.u.expAt = g.u.exp[:0], 0
	b.Push(g.u, b.p.l.Now)
	b.begin(g.u)
	describe := plan.insert.Returning
	g.bound = plan.st == nil && !g.asText && b.p.l.bound.bind(g.units, plan.types)
	if plan.st == nil && !g.bound {
		g.putText(b, g.units, describe)
	} else {
		for from := 0; from < len(g.units); describe = false {
			n := min(part(len(g.units)-from), plan.max)
			if plan.st != nil {
				g.putMulti(b, g.units[from:from+n], describe)
			} else {
				g.putConstants(b, from, n, describe)
			}
			from += n
		}
	}
	if m := g.member(relies); m != nil {
		g.putBind(b, m)
	}
	g.putGuard(b)
	b.s.Out = pgwire.AppendSync(b.s.OutBuf())
	b.s.Touch()
}

// putMulti appends one prepared multi-row statement.
func (g *group) putMulti(b *backend, units []*unit, describe bool) {
	st := g.ln.rows.multi(len(units))
	b.need(g.u, st)
	k := g.ln.rows.insert.MaxParam
	out := b.s.OutBuf()
	at := len(out)
	out = append(out, pgwire.ClientBind, 0, 0, 0, 0, 0)
	out = append(append(out, st.srvName...), 0)
	out = putFormats(out, units, k)
	out = binary.BigEndian.AppendUint16(out, uint16(k*len(units)))
	for _, u := range units {
		v := u.bind(u.raw)
		out = append(out, v.values...)
	}
	out = append(out, units[0].bind(units[0].raw).results...)
	binary.BigEndian.PutUint32(out[at+1:], uint32(len(out)-at-1))
	if describe {
		out = pgwire.AppendDescribe(out, pgwire.KindPortal, "")
	}
	b.s.Out = pgwire.AppendExecute(out, "", 0)
	g.sizes = append(g.sizes, len(units))
}

// putBind appends the Bind of a member that relies on what its client was told; the server
// refuses it if the statement would now return other columns.
func (g *group) putBind(b *backend, m *unit) {
	for i := range m.ops {
		if o := &m.ops[i]; o.kind == pgwire.ClientBind {
			b.putBind(m.raw[o.off:o.end], int(o.name-o.off), int(o.rest-o.off), b.memberName(g.u, m, o.st))
			b.s.Touch()
		}
	}
}

// putFormats appends the parameter formats of all members, as one code if they
// are all equal.
func putFormats(out []byte, units []*unit, k int) []byte {
	first := units[0].bind(units[0].raw).formats
	same := len(first) <= 2
	if same {
		for _, u := range units[1:] {
			if string(u.bind(u.raw).formats) != string(first) {
				same = false
				break
			}
		}
	}
	if same {
		out = binary.BigEndian.AppendUint16(out, uint16(len(first)/2))
		return append(out, first...)
	}
	out = binary.BigEndian.AppendUint16(out, uint16(k*len(units)))
	for _, u := range units {
		f := u.bind(u.raw).formats
		for i := range k {
			switch {
			case len(f) == 0:
				out = append(out, 0, 0)
			case len(f) == 2:
				out = append(out, f...)
			default:
				out = append(out, f[2*i:2*i+2]...)
			}
		}
	}
	return out
}

// putText appends one multi-row statement made of literal tuples.
func (g *group) putText(b *backend, units []*unit, describe bool) {
	plan := g.ln.rows
	out := b.s.OutBuf()
	at := len(out)
	out = append(out, pgwire.ClientParse, 0, 0, 0, 0, 0)
	out = append(append(out, plan.insert.Prefix...), ' ')
	for i, u := range units {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, u.raw[u.row.at:u.row.end]...)
	}
	out = append(append(out, ' '), plan.insert.Suffix...)
	out = append(out, 0, 0, 0)
	binary.BigEndian.PutUint32(out[at+1:], uint32(len(out)-at-1))
	out = pgwire.AppendBind(out, "", "", &pgwire.BindArgs{})
	if describe {
		out = pgwire.AppendDescribe(out, pgwire.KindPortal, "")
	}
	b.s.Out = pgwire.AppendExecute(out, "", 0)
	g.u.exp = append(g.u.exp, expect{code: expHiddenParse, st: nil})
	g.sizes = append(g.sizes, len(units))
}

// putGuard appends the check that the table has not changed since it was
// found fit for multi-row statements. It runs after the INSERT, in the same
// transaction, when the INSERT's lock keeps the table from changing: if a
// trigger or rule was just created, the group is rolled back.
func (g *group) putGuard(b *backend) {
	guard := g.guard
	if g.bound {
		guard = g.ln.rows.typesGuard // for the types that were sent
	}
	b.need(g.u, guard.st)
	out := append(b.s.OutBuf(), guard.bind...)
	b.s.Out = pgwire.AppendExecute(out, "", 0)
}

// message handles one message of the answer.
func (g *group) message(u *unit, typ byte, msg []byte) {
	switch typ {
	case pgwire.ServerParseComplete, pgwire.ServerCloseComplete:
		u.expAt++
	case pgwire.ServerRowDescription:
		if g.at < len(g.sizes) {
			g.desc = append(g.desc[:0], msg...)
		}
	case pgwire.ServerDataRow:
		if g.at < len(g.sizes) {
			g.rows = append(g.rows, msg...)
			g.ends = append(g.ends, len(g.rows))
		}
	case pgwire.ServerNotice:
		if u.parsing() {
			g.parsed = append(g.parsed, msg...)
		} else {
			g.notices = append(g.notices, msg...)
		}
	case pgwire.ServerCommandComplete:
		if g.at < len(g.sizes) {
			n, ok := pgwire.RowsAffected(bytes.TrimSuffix(msg[pgwire.HeaderLen:], []byte{0}))
			if !ok || n != uint64(g.sizes[g.at]) {
				g.mismatch = true
			}
		}
		g.at++
	case pgwire.ServerError:
		e, err := pgwire.ParseError(msg[pgwire.HeaderLen:])
		if err != nil {
			e = pgwire.NewError(pgwire.CodeInternalError, "unreadable error")
		}
		g.err = e
		g.b.unlearn(u)
	}
}

// ready ends the group's transaction.
func (g *group) ready() {
	if g.b.lane != nil && g.ln.rows != nil && g.b.lane == g.ln {
		g.settle(true)
	}
	// In a solo lane the answers wait for the marker.
}

// settle answers the members, or makes them run again separately.
func (g *group) settle(flushed bool) {
	if g.settled {
		return
	}
	g.settled = true
	ln := g.ln
	n := len(g.units)
	switch {
	case g.err != nil:
		g.fallBack()
	case g.mismatch || (ln.rows.insert.Returning && len(g.ends) != n):
		// The guard makes this impossible; if it happens anyway, the rows are committed, and
		// it is unknown whose are missing.
		g.abandon(pgwire.NewError(pgwire.CodeCompletionUnknown,
			"weir: a group of %d inserts did not store one row each; whether this one was stored is unknown", n))
		ln.p.tables.spoil(ln.key.set, ln.rows.insert.Table)
	case !flushed:
		g.abandon(pgwire.NewError(pgwire.CodeCompletionUnknown,
			"weir: the insert was committed but could not be made durable; whether it survives a crash of the server is unknown"))
	default:
		if ln.Limit < core.MaxGroup {
			ln.Limit = min(core.MaxGroup, ln.Limit+1+ln.Limit/16)
		}
		for i, u := range g.units {
			g.answer(i, u)
		}
	}
	ln.p.l.recycle(g.u)
	g.u = nil
}

// answer sends member i its own answer.
func (g *group) answer(i int, u *unit) {
	c := u.c
	if c == nil || c.s.Closed {
		g.ln.p.l.recycle(u)
		return
	}
	out := c.s.OutBuf()
	if u.simple || u.parses() {
		out = append(out, g.parsed...)
	}
	out = append(out, g.notices...)
	returning := g.ln.rows.insert.Returning
	if u.simple {
		if returning {
			out = append(out, g.desc...)
		}
	} else {
		for j := range u.ops {
			switch u.ops[j].kind {
			case pgwire.ClientParse:
				out = append(out, parseComplete...)
			case pgwire.ClientBind:
				out = append(out, bindComplete...)
			case pgwire.ClientDescribe:
				if returning {
					out = append(out, g.desc...)
				} else {
					out = append(out, noData...)
				}
			}
		}
	}
	if returning {
		from := 0
		if i > 0 {
			from = g.ends[i-1]
		}
		out = append(out, g.rows[from:g.ends[i]]...)
	}
	c.s.Out = append(out, insertOne...)
	c.s.Touch()
	u.bytes, u.tuples = 40, 1
	c.responder.grouped(u)
}

var (
	bindComplete = pgwire.AppendBindComplete(nil)
	noData       = pgwire.AppendNoData(nil)
	insertOne    = pgwire.AppendReadyForQuery(pgwire.AppendCommandComplete(nil, "INSERT 0 1"), pgwire.StatusIdle)
)

// unsent implements txnGroup.
func (g *group) unsent() { g.goOn(g.ln) }

// smallGroup is the size up to which a failed group's members run one by
// one; a larger group is first split into about as many parts as a part has
// members, so that one culprit costs the others little.
const smallGroup = 8

// fallBack runs the members again separately, after an error rolled all of them
// back. Large groups fail more easily than small ones when any member may, so
// the lane's groups become smaller for a while.
func (g *group) fallBack() {
	ln := g.ln
	p := ln.p
	ln.Fallbacks++
	ln.Limit = max(smallGroup, min(ln.Limit, len(g.units))/2)
	if g.at >= len(g.sizes) || g.err.Code == pgwire.CodeFeatureNotSupported || g.err.Code == pgwire.CodeUndefinedStatement {
		// The guard failed, or a plan is out of date: ask about the table again, and about what the
		// statement means.
		if ln.rows.st != nil {
			ln.rows.st.desc.expire()
		}
		p.tables.drop(ln.key.set, ln.rows.insert.Table)
		ln.forget()
	} else if g.bound && ln.rows.table != nil {
		// It may be a member's fault, or the columns may have changed.
		p.tables.lookAgain(p, ln.key.set, ln.rows.insert.Table, ln.rows.table)
	}
	solo := p.lanes.solo(ln.key.set, 0)
	g.units = slices.DeleteFunc(g.units, givenUp)
	part := len(g.units)
	if part > smallGroup && ln.rows.table != nil {
		part = 1 << (bits.Len(uint(part)) / 2)
	} else {
		part = 1
	}
	for rest := g.units; len(rest) > 0; {
		n := min(part, len(rest))
		if n == 1 {
			u := rest[0]
			u.retries++
			if u.c != nil && !u.c.s.Closed {
				solo.push(u)
			}
		} else {
			sub := ln.group(rest[:n])
			sub.asText = true
			sub.u.queuedAt = p.l.Now
			solo.pushGroup(sub)
		}
		rest = rest[n:]
	}
}

func (ln *lane) pushGroup(g *group) {
	g.u.c, g.u.lanedAt = g.units[0].c, ln.p.l.Now // not gone
	if err := ln.Push(g.u, 0); err != nil {
		g.abandon(pgwire.NewError(pgwire.CodeTooManyConnections, "weir: too many writes wait in one lane: %v", err))
	}
}

// bindView is a Bind message, parsed as far as grouping needs it.
type bindView struct {
	formats []byte // two bytes each; none, one or one per parameter
	values  []byte // lengths and values, as in the message
	results []byte // count and formats of the result columns
	ok      bool
}

// bind parses the unit's Bind message in raw.
func (u *unit) bind(raw []byte) (v bindView) {
	for i := range u.ops {
		o := &u.ops[i]
		if o.kind != pgwire.ClientBind {
			continue
		}
		return viewBind(raw[o.rest:o.end], o.st.insert.MaxParam)
	}
	return v
}

// viewBind parses p, the part of a Bind message after its names; want is the
// number of parameters that the statement takes.
func viewBind(p []byte, want int) (v bindView) {
	n, p, ok := take16(p)
	if !ok || len(p) < 2*n || (n > 1 && n != want) {
		return v
	}
	v.formats, p = p[:2*n], p[2*n:]
	n, p, ok = take16(p)
	if !ok || n != want {
		return v
	}
	at := 0
	for range n {
		if len(p) < at+4 {
			return v
		}
		size := int(int32(binary.BigEndian.Uint32(p[at:])))
		at += 4
		if size > 0 {
			at += size
		}
		if at > len(p) || size < -1 {
			return v
		}
	}
	v.values, v.results = p[:at], p[at:]
	n, rest, ok := take16(v.results)
	v.ok = ok && len(rest) == 2*n
	return v
}

func take16(p []byte) (int, []byte, bool) {
	if len(p) < 2 {
		return 0, nil, false
	}
	return int(binary.BigEndian.Uint16(p)), p[2:], true
}
