package postgres

import (
	"encoding/binary"

	"github.com/weirdb/weir/internal/proxy/postgres/rowtext"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// boundRows are the constants of the rows of a group, as putConstants sends them.
type boundRows struct {
	values []byte
	ends   []int // of each row
}

// maxBound is how much memory is kept for the next group.
const maxBound = 1 << 20

// bind collects the rows of simple queries. It returns false if their constants cannot be
// parameters of these types.
func (r *boundRows) bind(units []*unit, types []uint32) bool {
	if types == nil {
		return false
	}
	if cap(r.values) > maxBound {
		r.values = nil
	}
	r.values, r.ends = r.values[:0], r.ends[:0]
	for _, u := range units {
		var ok bool
		if r.values, ok = rowtext.AppendValues(r.values, text(u.raw[u.row.at:u.row.end]), types); !ok {
			return false
		}
		r.ends = append(r.ends, len(r.values))
	}
	return true
}

// of returns the values of n rows, beginning with from.
func (r *boundRows) of(from, n int) []byte {
	begin := 0
	if from > 0 {
		begin = r.ends[from-1]
	}
	return r.values[begin:r.ends[from+n-1]]
}

// putConstants appends one prepared multi-row statement for n of the rows that the loop has
// bound, beginning with from.
func (g *group) putConstants(b *backend, from, n int, describe bool) {
	r := g.ln.rows
	st := r.multi(n)
	b.need(g.u, st)
	out := b.s.OutBuf()
	at := len(out)
	out = append(out, pgwire.ClientBind, 0, 0, 0, 0, 0)
	out = append(append(out, st.srvName...), 0)
	out = append(out, 0, 0) // all as text
	out = binary.BigEndian.AppendUint16(out, uint16(n*len(r.types)))
	out = append(out, b.p.l.bound.of(from, n)...)
	out = append(out, 0, 0)
	binary.BigEndian.PutUint32(out[at+1:], uint32(len(out)-at-1))
	if describe {
		out = pgwire.AppendDescribe(out, pgwire.KindPortal, "")
	}
	b.s.Out = pgwire.AppendExecute(out, "", 0)
	g.sizes = append(g.sizes, n)
}
