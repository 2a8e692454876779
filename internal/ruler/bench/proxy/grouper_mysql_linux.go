package proxybench

import (
	"encoding/binary"
	"fmt"

	"github.com/weirdb/weir/internal/wire/mywire"
)

// mysqlGroups are groups in MySQL's protocol, for clients that requested answers without EOF
// packets, as the load does. The server chooses the IDs of prepared statements, so a statement
// is prepared before its first execution. Each member gets the insert id of its row; ids are
// consecutive, since the server is private.
type mysqlGroups struct{ out []byte }

// The load's COM_STMT_EXECUTE: after the header come the command, the statement's ID, flags,
// the number of iterations, the NULL bitmap, a byte that says that types follow, the types, and
// two BIGINTs.
const (
	executeHead = mywire.HeaderLen + 1 + 4 + 1 + 4
	executeRow  = executeHead + 1 + 1 + 2*2
	executeLen  = executeRow + 2*8
)

func (p *mysqlGroups) asked(g *grouper, client int32, b []byte) bool {
	if len(b) <= mywire.HeaderLen || b[3] != 0 {
		return false // it is logging in
	}
	switch body := b[mywire.HeaderLen:]; body[0] {
	case mywire.ComStmtPrepare:
		g.parseInsert(&g.prepared, body[1:])
	case mywire.ComStmtExecute:
		if len(b) != executeLen || g.prepared.head == nil {
			return false
		}
		g.wait(&g.prepared, client, b[executeRow:])
		return true
	case mywire.ComQuery:
		sql := body[1:]
		head := g.parseInsert(&g.text, sql)
		if head == 0 {
			return false
		}
		p.out = append(append(p.out[:0], sql[head:]...), ',')
		g.wait(&g.text, client, p.out)
		return true
	case mywire.ComQuit:
		return g.leave(client)
	}
	return false
}

func (p *mysqlGroups) appendGroup(out []byte, t *groupTexts, l *groupLane, n int) []byte {
	rows := t.rows[:t.ends[n-1]]
	switch {
	case !t.binds:
		at := len(out)
		out = append(out, 0, 0, 0, 0, mywire.ComQuery)
		out = append(append(out, t.head...), rows[:len(rows)-1]...)
		return endPacket(out, at)
	case l.knows[groupKey{t.epoch, n}] == 0:
		l.rows = append(l.rows[:0], rows...)
		at := len(out)
		out = append(out, 0, 0, 0, 0, mywire.ComStmtPrepare)
		out = append(out, t.head...)
		for range n {
			out = append(out, "(?,?),"...)
		}
		return endPacket(out[:len(out)-1], at)
	}
	return appendRows(out, l.knows[groupKey{t.epoch, n}], rows, n)
}

// appendRows appends the execution of a prepared INSERT of n rows.
func appendRows(out []byte, statement uint32, rows []byte, n int) []byte {
	at := len(out)
	out = append(out, 0, 0, 0, 0, mywire.ComStmtExecute)
	out = binary.LittleEndian.AppendUint32(out, statement)
	out = append(out, 0, 1, 0, 0, 0) // no cursor, one iteration
	out = append(out, make([]byte, (2*n+7)/8)...)
	out = append(out, 1) // types follow
	for range 2 * n {
		out = append(out, byte(mywire.TypeLongLong), 0)
	}
	return endPacket(append(out, rows...), at)
}

// endPacket fills in the length of the packet that starts at at.
func endPacket(out []byte, at int) []byte {
	n := len(out) - at - mywire.HeaderLen
	out[at], out[at+1], out[at+2] = byte(n), byte(n>>8), byte(n>>16)
	return out
}

func (p *mysqlGroups) said(l *groupLane) (next []byte, done bool, err error) {
	packets := 0
	for rest := l.in; len(rest) > 0; packets++ {
		n, _, ok := mywire.Peek(rest)
		if !ok || len(rest) < mywire.HeaderLen+n {
			return nil, false, nil
		}
		rest = rest[mywire.HeaderLen+n:]
	}
	size, _, _ := mywire.Peek(l.in)
	first := l.in[mywire.HeaderLen : mywire.HeaderLen+size]
	if mywire.IsError(first) {
		e, err := mywire.ParseError(first)
		if err != nil {
			return nil, true, err
		}
		return nil, true, e
	}
	n := len(l.members)
	if key := (groupKey{l.texts.epoch, n}); l.texts.binds && l.knows[key] == 0 {
		if packets < 1+2*n {
			return nil, false, nil // the definitions of the parameters follow
		}
		st, err := mywire.ParsePrepared(first)
		if err != nil {
			return nil, true, err
		}
		l.knows[key], l.in = st.StmtID, l.in[:0]
		p.out = appendRows(p.out[:0], st.StmtID, l.rows, n)
		return p.out, false, nil
	}
	ok, err := mywire.ParseOK(first, 0)
	if err != nil {
		return nil, true, err
	}
	if ok.AffectedRows != uint64(n) {
		return nil, true, fmt.Errorf("%d rows of a group of %d were stored", ok.AffectedRows, n)
	}
	l.id = ok.LastInsertID
	return nil, true, nil
}

func (p *mysqlGroups) appendAnswer(out []byte, l *groupLane, i int) []byte {
	return mywire.AppendOK(out, 1, 0, &mywire.OK{AffectedRows: 1, LastInsertID: l.id + uint64(i), Status: mywire.StatusAutocommit})
}
