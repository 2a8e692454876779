package mysql

import (
	"math"
	"regexp"
	"strconv"
	"strings"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/sqlscan/myscan"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// A rowsPlan builds one statement of the members of a rows lane.
type rowsPlan struct {
	st     *stmt // prepared form; nil for texts
	insert myscan.InsertShape
	bySize map[int]*stmt // prepared statements by number of rows
	exact  int           // up to this number of rows each number has a statement of its own
}

// A group holds the members of one multi-row statement.
type group struct {
	ln    *lane
	units []*unit
	// warnings are those that the server listed.
	warnings [][][]byte
	asked    bool   // the warnings are queried in any case
	step     uint64 // from one row's id to the next
}

func newRowsPlan(st *stmt) *rowsPlan {
	// The statements of 1 to e rows have e*e/2 rows together.
	exact := int(math.Sqrt(2 * planParameters / float64(st.params)))
	return &rowsPlan{st: st, insert: st.insert, bySize: make(map[int]*stmt), exact: min(max(exact, minRows), maxExact)}
}

const (
	// planParameters bounds the parameters of the statements of one plan that a backend keeps
	// prepared, except for the longest ones. The server needs some 300 bytes for each.
	planParameters = 8192
	// maxExact bounds the number of these statements.
	maxExact = 64
)

func newTextPlan(sql string, mode myscan.Mode) *rowsPlan {
	ins, _ := myscan.Insert(strings.Clone(sql), mode)
	return &rowsPlan{insert: ins}
}

func (r *rowsPlan) has(st *stmt) bool {
	for _, s := range r.bySize {
		if s == st {
			return true
		}
	}
	return false
}

// statement returns the multi-row statement of n rows.
func (r *rowsPlan) statement(n int) *stmt {
	st := r.bySize[n]
	if st == nil {
		st = &stmt{sql: string(r.insert.AppendMulti(nil, n)), set: r.st.set, shape: r.st.shape, private: true}
		r.bySize[n] = st
	}
	return st
}

// gather makes multi-row units of a group's members, for b. Texts make statements of any size
// up to the limit. Prepared statements exist for each size up to exact, and beyond that for its
// multiples, so that a backend has to prepare few, and a group makes one statement or two.
func (r *rowsPlan) gather(ln *lane, units []*unit, b *backend) []*unit {
	var out []*unit
	limit := min(ln.Limit, ln.p.facts.rowsListed(ln.key.set, b.listed))
	if r.st != nil {
		limit = min(limit, maxParameters/max(1, r.st.params))
	}
	for len(units) > 0 {
		n := r.fitting(units[:min(len(units), max(1, limit))], b.maxPacket)
		if r.st != nil && n > r.exact {
			n -= n % r.exact
		}
		if n == 1 {
			out = append(out, units[0])
			units = units[1:]
			continue
		}
		u := ln.p.l.newUnit(unitRows, mywire.ComQuery)
		u.grp = &group{ln: ln, units: append([]*unit(nil), units[:n]...)}
		if r.st != nil {
			u.cmd, u.st = mywire.ComStmtExecute, r.statement(n)
		}
		u.park = true
		out = append(out, u)
		units = units[n:]
	}
	return out
}

// fitting returns how many of the units, at least one, make a statement below the server's
// limit.
func (r *rowsPlan) fitting(units []*unit, maxPacket int) int {
	size := len(r.insert.Prefix) + len(r.insert.Suffix)
	for i, u := range units {
		size += max(u.size(), len(r.insert.Tuple)+1)
		if i > 0 && size >= maxPacket {
			return i
		}
	}
	return len(units)
}

// maxParameters is the most parameters that a prepared statement may have.
const maxParameters = 65535

// send appends the multi-row statement to the backend's output.
func (g *group) send(b *backend, u *unit, tx bool) {
	g.step = b.step
	if s, own := g.ln.set.Get("auto_increment_increment"); own {
		g.step = parseUint([]byte(s.Value))
	}
	b.push(u)
	if u.st != nil {
		b.s.Out = g.appendExecute(b.s.OutBuf(), b.use(u.st))
	} else {
		b.s.Out = g.appendText(b.s.OutBuf())
	}
	b.s.Touch()
	if tx {
		// The warnings must be queried at once: the next statement replaces them.
		g.asked = true
		b.ask("SHOW WARNINGS", func(w *unit) { g.warnings = w.result(b.p.key.caps) })
	}
}

func (g *group) appendText(out []byte) []byte {
	plan := g.ln.rows
	at := len(out)
	out = append(out, 0, 0, 0, 0, mywire.ComQuery)
	out = append(out, plan.insert.Prefix...)
	for i, m := range g.units {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, m.raw[m.row.at:m.row.end]...)
	}
	out = append(out, plan.insert.Suffix...)
	n := len(out) - at - mywire.HeaderLen // below 16 MiB by maxGroupBytes
	out[at], out[at+1], out[at+2] = byte(n), byte(n>>8), byte(n>>16)
	return out
}

func (g *group) appendExecute(out []byte, id uint32) []byte {
	params := g.ln.rows.st.params
	at := len(out)
	out = append(out, 0, 0, 0, 0, mywire.ComStmtExecute, byte(id), byte(id>>8), byte(id>>16), byte(id>>24), 0, 1, 0, 0, 0)
	have := 0
	nulls := len(out)
	for _, m := range g.units {
		v := m.values()
		grown := mywire.AppendNulls(out[nulls:], have, v.Nulls, params)
		out = append(out[:nulls], grown...)
		have += params
	}
	out = append(out, 1)
	for _, m := range g.units {
		out = append(out, m.types...)
	}
	for _, m := range g.units {
		out = append(out, m.values().Values...)
	}
	n := len(out) - at - mywire.HeaderLen
	out[at], out[at+1], out[at+2] = byte(n), byte(n>>8), byte(n>>16)
	return out
}

// values parses the unit's COM_STMT_EXECUTE.
func (u *unit) values() mywire.ExecuteMsg {
	m, err := mywire.ParseExecute(u.raw[mywire.HeaderLen:], u.st.params, 0)
	if err != nil {
		panic("an execution that was read before cannot be read") // see freeExecute
	}
	return m
}

// answered is called when the multi-row statement is answered. Without a transaction around it,
// weir can still query its warnings.
func (g *group) answered(u *unit) {
	if !u.failed && u.ok.Warnings > 0 && !g.asked {
		for b, r := range g.ln.Runs {
			if len(r.units) > 0 && r.units[0] == u {
				b.ask("SHOW WARNINGS", func(w *unit) { g.warnings = w.result(b.p.key.caps) })
			}
		}
	}
}

// conclude answers the members of a statement that is committed, or runs them apart if it
// failed.
func (g *group) conclude(u *unit) {
	ln := g.ln
	if u.failed {
		g.apart()
		return
	}
	if u.ok.AffectedRows != uint64(len(g.units)) {
		// Nothing that the plan allows does this. The rows exist, but the single answers are
		// unknown.
		g.lost(u, mywire.NewError(mywire.ErrUnknown, "weir: a statement of %d rows affected %d; the statement is committed", len(g.units), u.ok.AffectedRows))
		return
	}
	ln.Limit = min(core.MaxGroup, ln.Limit+ln.Limit/8+1)
	counts := g.countWarnings(int(u.ok.Warnings))
	for i, m := range g.units {
		id := uint64(0)
		if u.ok.LastInsertID != 0 {
			id = u.ok.LastInsertID + uint64(i)*g.step
		}
		c := m.c
		if c == nil || c.s.Closed {
			ln.p.l.recycle(m)
			continue
		}
		ok := mywire.OK{AffectedRows: 1, LastInsertID: id, Status: u.ok.Status &^ mywire.StatusInTrans, Warnings: counts[i]}
		c.s.Out = mywire.AppendOK(c.s.OutBuf(), 1, c.caps, &ok)
		c.s.Touch()
		m.ok, m.bytes = ok, u.bytes/len(g.units)
		m.generated = true
		c.responder.grouped(m, id, counts[i])
	}
	ln.p.l.recycle(u)
}

var atRow = regexp.MustCompile(`at row (\d+)$`)

// countWarnings assigns each row its own warnings. Warnings that name no row do not come from
// values, see quiet: they belong to the statement, or occur once for every row. If it cannot tell
// which, or the server does not list all, writes of this shape are not made rows any more.
func (g *group) countWarnings(total int) []uint16 {
	n := len(g.units)
	counts := make([]uint16, n)
	if total == 0 {
		return counts
	}
	shape := g.units[0].shape
	if total > len(g.warnings) && total%n == 0 {
		// More than the server lists: see rowsListed.
		shape.KeepApart()
		for i := range counts {
			counts[i] = uint16(total / n)
		}
		return counts
	}
	var everyRow, general int
	without := make(map[string]int)
	for _, w := range g.warnings {
		row := 0
		if m := atRow.FindSubmatch(w[2]); m != nil {
			row, _ = strconv.Atoi(string(m[1])) // digits only
		}
		if row < 1 || row > n {
			without[string(w[2])]++
			continue
		}
		counts[row-1]++
	}
	for _, times := range without {
		if times%n == 0 {
			everyRow += times / n
		} else {
			general += times
		}
	}
	if general > 0 || total > len(g.warnings) {
		shape.KeepApart()
	}
	if general%n == 0 {
		general /= n
	}
	for i := range counts {
		counts[i] += uint16(everyRow + general)
	}
	return counts
}

// apart runs the members in a transaction lane, where each has its own outcome. The statement
// has not taken effect.
func (g *group) apart() {
	ln := g.ln
	ln.Fallbacks++
	ln.Limit = max(minRows, min(ln.Limit, len(g.units))/2)
	to := ln.p.lanes.transaction(ln.key.set, 0)
	for _, m := range g.units {
		switch {
		case m.c == nil || m.c.s.Closed:
		case m.dead: // killed meanwhile
			m.c.lost(m, errInterrupted())
		default:
			to.push(m)
		}
	}
	g.units = nil
}

// minRows is how far failures may reduce the size of a multi-row statement.
const minRows = 8

// lost answers the members with an error: their outcome is unknown.
func (g *group) lost(_ *unit, e *mywire.Error) {
	for _, m := range g.units {
		if c := m.c; c != nil && !c.s.Closed {
			c.lost(m, e)
			m.c = nil
		}
	}
	g.units = nil
}
