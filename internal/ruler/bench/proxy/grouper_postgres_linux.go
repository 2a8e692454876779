package proxybench

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
)

// postgresGroups are groups in PostgreSQL's protocol. The grouper chooses the names of prepared
// statements, so a statement is prepared together with its first execution.
type postgresGroups struct {
	prepared, text, updates []byte // the answer to each member
	row                     []byte
	rows                    [][]byte
}

func newPostgresGroups() *postgresGroups {
	bound := []byte{'2', 0, 0, 0, 4, 'n', 0, 0, 0, 4}
	done := func(tag string) []byte {
		b := append([]byte{'C', 0, 0, 0, byte(4 + len(tag) + 1)}, tag...)
		return append(b, 0, 'Z', 0, 0, 0, 5, 'I')
	}
	return &postgresGroups{
		text: done("INSERT 0 1"), prepared: slices.Concat(bound, done("INSERT 0 1")), updates: slices.Concat(bound, done("UPDATE 1")),
	}
}

func (p *postgresGroups) asked(g *grouper, client int32, b []byte) bool {
	switch b[0] {
	case 'P': // the client's own prepared statement: first its name and text
		name := 5 + bytes.IndexByte(b[5:], 0) + 1
		sql, _, _ := bytes.Cut(b[name:], []byte{0})
		if bytes.HasPrefix(sql, []byte("UPDATE ")) {
			g.setHead(&g.updates, sql)
		} else {
			g.parseInsert(&g.prepared, sql)
		}
	case 'B':
		args, n := bindArguments(b)
		t := &g.prepared
		if n == 1 {
			t = &g.updates
		}
		if n < 1 || n > 2 || t.head == nil {
			return false
		}
		g.wait(t, client, args)
		return true
	case 'Q':
		sql := b[5 : len(b)-1]
		head := g.parseInsert(&g.text, sql)
		if head == 0 {
			return false
		}
		g.wait(&g.text, client, p.arguments(sql[head:]))
		return true
	case 'X':
		return g.leave(client)
	}
	return false
}

// bindArguments returns the arguments, with their lengths, of a Bind as the load sends it. n is
// their number; 0 if the message is something else.
func bindArguments(b []byte) (args []byte, n int) {
	size := 1 + int(binary.BigEndian.Uint32(b[1:]))
	name := 6 + bytes.IndexByte(b[6:], 0) + 1
	at := name + 4 // after the numbers of formats and of arguments
	if size > len(b) || at > size {
		return nil, 0
	}
	return b[at : size-4], int(binary.BigEndian.Uint16(b[name+2:]))
}

// arguments converts the two literals of a row, such as (1, 2), to the form in a Bind.
func (p *postgresGroups) arguments(row []byte) []byte {
	value, created, _ := bytes.Cut(row[1:len(row)-1], []byte(", "))
	p.row = p.row[:0]
	for _, v := range [][]byte{value, created} {
		p.row = binary.BigEndian.AppendUint32(p.row, uint32(len(v)))
		p.row = append(p.row, v...)
	}
	return p.row
}

func (p *postgresGroups) appendGroup(out []byte, t *groupTexts, l *groupLane, n int) []byte {
	if t.serial {
		return p.appendSeries(out, t, l, n)
	}
	name, known := l.statement(t, n)
	if !known {
		at := len(out)
		out = append(append(append(out, 'P', 0, 0, 0, 0), name...), 0)
		out = append(out, t.head...)
		for i := range n {
			out = fmt.Appendf(out, "($%d,$%d),", 2*i+1, 2*i+2)
		}
		out = endMessage(append(out[:len(out)-1], 0, 0, 0), at)
	}
	return appendSync(appendExecution(out, name, t.rows[:t.ends[n-1]], 2*n))
}

// appendSeries appends n UPDATEs, in the order of their keys, so that groups cannot deadlock.
func (p *postgresGroups) appendSeries(out []byte, t *groupTexts, l *groupLane, n int) []byte {
	name, known := l.statement(t, 1)
	if !known {
		at := len(out)
		out = append(append(append(out, 'P', 0, 0, 0, 0), name...), 0)
		out = endMessage(append(append(out, t.head...), 0, 0, 0), at)
	}
	p.rows = p.rows[:0]
	for i, at := 0, 0; i < n; i++ {
		p.rows = append(p.rows, t.rows[at:t.ends[i]])
		at = t.ends[i]
	}
	slices.SortFunc(p.rows, bytes.Compare)
	for _, row := range p.rows {
		out = appendExecution(out, name, row, 1)
	}
	return appendSync(out)
}

// statement returns the name of a lane's prepared statement for a number of rows, and whether
// it exists already.
func (l *groupLane) statement(t *groupTexts, rows int) (name string, known bool) {
	key := groupKey{t.epoch, rows}
	known = l.knows[key] != 0
	l.knows[key] = 1
	return fmt.Sprintf("g%d_%d", t.epoch, rows), known
}

// appendExecution appends Bind and Execute of a prepared statement.
func appendExecution(out []byte, name string, args []byte, n int) []byte {
	at := len(out)
	out = append(append(append(out, 'B', 0, 0, 0, 0, 0), name...), 0, 0, 0)
	out = binary.BigEndian.AppendUint16(out, uint16(n))
	out = endMessage(append(append(out, args...), 0, 0), at)
	return append(out, 'E', 0, 0, 0, 9, 0, 0, 0, 0, 0)
}

func appendSync(out []byte) []byte { return append(out, 'S', 0, 0, 0, 4) }

// endMessage fills in the length of the message that starts at at.
func endMessage(out []byte, at int) []byte {
	binary.BigEndian.PutUint32(out[at+1:], uint32(len(out)-at-1))
	return out
}

func (p *postgresGroups) said(l *groupLane) (next []byte, done bool, err error) {
	if end := len(l.in) - 6; end < 0 || l.in[end] != 'Z' {
		return nil, false, nil
	}
	n, all := len(l.members), false
	if l.texts.serial {
		all = bytes.Count(l.in, []byte("UPDATE 1\x00")) == n
	} else {
		all = bytes.Contains(l.in, []byte("INSERT 0 "+strconv.Itoa(n)+"\x00"))
	}
	if !all {
		err = errors.New("not all rows of a group were stored")
	}
	return nil, true, err
}

func (p *postgresGroups) appendAnswer(out []byte, l *groupLane, _ int) []byte {
	switch {
	case l.texts.serial:
		return append(out, p.updates...)
	case l.texts.text:
		return append(out, p.text...)
	default:
		return append(out, p.prepared...)
	}
}
