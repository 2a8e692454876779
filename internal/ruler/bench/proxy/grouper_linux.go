package proxybench

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"

	"github.com/weirdb/weir/internal/ruler/bench/floor"
)

// A grouper is what is left of a proxy that joins INSERTs into groups: a copier that, once
// a client has sent its first INSERT, sends those of all clients to the server as one
// statement of many rows, as many as wait, and answers each. It knows the two ways in which
// the load writes an INSERT, and nothing else: it parses no SQL, looks for no hint, knows no
// limits, no errors and no settings, and any surprise ends the connection.
type grouper struct {
	*copier
	prepared, text groupTexts
	lanes          map[int32]*groupLane // by their sockets
}

// groupLanes is how many groups may be under way, as weir has by default.
const groupLanes = 2

// groupMost is how many rows a group has, as weir has by default.
const groupMost = 256

// groupTexts are INSERTs of one protocol that wait for a group.
type groupTexts struct {
	head    []byte  // of the statement, up to VALUES and a space
	epoch   int     // counts the heads
	clients []int32 // who wait
	rows    []byte  // theirs, one behind the other
	ends    []int   // of each in rows
	answer  []byte  // to each
}

// A groupLane is a connection to the server on which groups run. It began as one client's,
// and outlives it.
type groupLane struct {
	fd      int32
	busy    bool
	members []int32 // of the group under way
	in      []byte
	epoch   int
	knows   [groupMost + 1]bool // the statements of so many rows, of the present epoch
}

func newGrouper(c *copier) *grouper {
	g := &grouper{copier: c, lanes: make(map[int32]*groupLane)}
	done := append([]byte{'C', 0, 0, 0, 15}, "INSERT 0 1\x00"...)
	done = append(done, 'Z', 0, 0, 0, 5, 'I')
	g.text.answer = done
	g.prepared.answer = append([]byte{'2', 0, 0, 0, 4, 'n', 0, 0, 0, 4}, done...)
	c.seen, c.turned = g.seen, g.turned
	return g
}

// seen takes what a connection has sent, and reports whether it need not be copied.
func (g *grouper) seen(from int32, b []byte) bool {
	if l := g.lanes[from]; l != nil && l.busy {
		g.answered(l, b)
		return true
	}
	if !g.clients[from] {
		return false
	}
	switch b[0] {
	case 'P': // the client's own prepared statement, which begins with its name and text
		name := 5 + bytes.IndexByte(b[5:], 0) + 1
		g.prepared.is(b[name:])
	case 'B':
		row := bindRow(b)
		if row == nil || g.prepared.head == nil {
			return false
		}
		g.wait(&g.prepared, from, row)
		return true
	case 'Q':
		at := bytes.Index(b, []byte("VALUES "))
		if at < 0 {
			return false
		}
		g.text.is(b[5:])
		g.wait(&g.text, from, append(b[at+len("VALUES "):len(b)-1], ','))
		return true
	case 'X':
		return g.leave(from)
	}
	return false
}

// is notes the text of an INSERT.
func (t *groupTexts) is(b []byte) {
	if n := len(t.head); n > 0 && bytes.HasPrefix(b, t.head) {
		return
	}
	if at := bytes.Index(b, []byte("VALUES ")); at >= 0 {
		t.head = bytes.Clone(b[:at+len("VALUES ")])
		t.epoch++
	}
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

// wait has a client's row go with the next group. The connection becomes a lane if there
// are too few.
func (g *grouper) wait(t *groupTexts, client int32, row []byte) {
	if server := int32(g.others[client]); len(g.lanes) < groupLanes && g.lanes[server] == nil {
		g.lanes[server] = &groupLane{fd: server}
	}
	t.clients = append(t.clients, client)
	t.rows = append(t.rows, row...)
	t.ends = append(t.ends, len(t.rows))
}

// leave ends a client whose connection to the server is a lane, which stays.
func (g *grouper) leave(client int32) bool {
	server := int32(g.others[client])
	if g.lanes[server] == nil {
		return false
	}
	g.others[server] = -1
	g.end(client)
	return true
}

// turned starts groups when a turn's events are done.
func (g *grouper) turned() error {
	for _, t := range []*groupTexts{&g.prepared, &g.text} {
		for _, l := range g.lanes {
			if len(t.clients) == 0 {
				break
			}
			if !l.busy {
				if err := g.start(l, t); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (g *grouper) start(l *groupLane, t *groupTexts) error {
	n := min(len(t.clients), groupMost)
	rows := t.rows[:t.ends[n-1]]
	out := g.out[:0]
	if t == &g.text {
		out = append(out, 'Q', 0, 0, 0, 0)
		out = append(out, t.head...)
		out = append(out, rows...)
		out[len(out)-1] = 0 // the last comma
		binary.BigEndian.PutUint32(out[1:], uint32(len(out)-1))
	} else {
		out = t.bind(out, l, n, rows)
	}
	g.out = out
	if !floor.Write(int(l.fd), out) {
		return errors.New("send a group: the server has gone")
	}
	l.busy, l.members = true, append(l.members[:0], t.clients[:n]...)
	t.clients = append(t.clients[:0], t.clients[n:]...)
	for i, e := range t.ends[n:] {
		t.ends[i] = e - len(rows)
	}
	t.ends = t.ends[:len(t.ends)-n]
	t.rows = append(t.rows[:0], t.rows[len(rows):]...)
	return nil
}

// bind appends what runs a prepared INSERT of n rows, and what prepares it the first time.
func (t *groupTexts) bind(out []byte, l *groupLane, n int, rows []byte) []byte {
	if l.epoch != t.epoch {
		l.epoch, l.knows = t.epoch, [groupMost + 1]bool{}
	}
	name := fmt.Sprintf("g%d_%d", t.epoch, n)
	message := func(kind byte) int {
		out = append(out, kind, 0, 0, 0, 0)
		return len(out) - 4
	}
	end := func(at int) { binary.BigEndian.PutUint32(out[at:], uint32(len(out)-at)) }
	if !l.knows[n] {
		l.knows[n] = true
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

// answered takes what the server says to a group, and answers its members.
func (g *grouper) answered(l *groupLane, b []byte) {
	l.in = append(l.in, b...)
	if end := len(l.in) - 6; end < 0 || l.in[end] != 'Z' {
		return
	}
	text := l.in[0] == 'C'
	done := []byte("INSERT 0 " + strconv.Itoa(len(l.members)) + "\x00")
	ok := bytes.Contains(l.in, done)
	l.in = l.in[:0]
	answer := g.prepared.answer
	if text {
		answer = g.text.answer
	}
	for _, m := range l.members {
		if !ok || !floor.Write(int(m), answer) {
			g.end(m)
		}
	}
	l.busy = false
}
