package proxybench

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
)

// postgresGroups are groups in PostgreSQL's protocol. The grouper chooses the names of
// prepared statements, so one is prepared together with its first execution.
type postgresGroups struct {
	prepared, text []byte // what each member is answered
}

func newPostgresGroups() *postgresGroups {
	done := append([]byte{'C', 0, 0, 0, 15}, "INSERT 0 1\x00"...)
	done = append(done, 'Z', 0, 0, 0, 5, 'I')
	return &postgresGroups{text: done, prepared: append([]byte{'2', 0, 0, 0, 4, 'n', 0, 0, 0, 4}, done...)}
}

func (p *postgresGroups) asked(g *grouper, client int32, b []byte) bool {
	switch b[0] {
	case 'P': // the client's own prepared statement, which begins with its name and text
		name := 5 + bytes.IndexByte(b[5:], 0) + 1
		g.prepared.is(b[name:])
	case 'B':
		row := bindRow(b)
		if row == nil || g.prepared.head == nil {
			return false
		}
		g.wait(&g.prepared, client, row)
		return true
	case 'Q':
		return g.waitText(client, b[5:len(b)-1])
	case 'X':
		return g.leave(client)
	}
	return false
}

// bindRow cuts the two arguments, with their lengths, out of what the load sends for a
// prepared INSERT; nil if it is none.
func bindRow(b []byte) []byte {
	size := 1 + int(binary.BigEndian.Uint32(b[1:]))
	name := 6 + bytes.IndexByte(b[6:], 0) + 1
	at := name + 4 // behind the numbers of formats and of arguments
	if size > len(b) || at > size || binary.BigEndian.Uint16(b[name+2:]) != 2 {
		return nil
	}
	return b[at : size-4]
}

func (p *postgresGroups) appendGroup(out []byte, t *groupTexts, l *groupLane, n int) []byte {
	rows := t.rows[:t.ends[n-1]]
	message := func(kind byte) int {
		out = append(out, kind, 0, 0, 0, 0)
		return len(out) - 4
	}
	end := func(at int) { binary.BigEndian.PutUint32(out[at:], uint32(len(out)-at)) }
	if !t.binds {
		at := message('Q')
		out = append(append(out, t.head...), rows...)
		out[len(out)-1] = 0 // the last comma
		end(at)
		return out
	}
	name := fmt.Sprintf("g%d_%d", t.epoch, n)
	if l.knows[n] == 0 {
		l.knows[n] = 1
		at := message('P')
		out = append(append(out, name...), 0)
		out = append(out, t.head...)
		for i := range n {
			out = fmt.Appendf(out, "($%d,$%d),", 2*i+1, 2*i+2)
		}
		out = append(out[:len(out)-1], 0, 0, 0)
		end(at)
	}
	at := message('B')
	out = append(append(append(out, 0), name...), 0, 0, 0)
	out = binary.BigEndian.AppendUint16(out, uint16(2*n))
	out = append(append(out, rows...), 0, 0)
	end(at)
	out = append(out, 'E', 0, 0, 0, 9, 0, 0, 0, 0, 0)
	return append(out, 'S', 0, 0, 0, 4)
}

func (p *postgresGroups) said(l *groupLane) (next []byte, done bool, err error) {
	if end := len(l.in) - 6; end < 0 || l.in[end] != 'Z' {
		return nil, false, nil
	}
	if !bytes.Contains(l.in, []byte("INSERT 0 "+strconv.Itoa(len(l.members))+"\x00")) {
		err = errors.New("not all rows of a group are there")
	}
	return nil, true, err
}

func (p *postgresGroups) appendAnswer(out []byte, l *groupLane, _ int) []byte {
	if l.texts.binds {
		return append(out, p.prepared...)
	}
	return append(out, p.text...)
}
