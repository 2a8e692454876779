package proxybench

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/weirdb/weir/internal/ruler/bench/floor"
)

// A grouper is what is left of a proxy that joins writes into groups: a copier that, once
// a client has sent its first INSERT, sends those of all clients to the server as one
// statement of many rows, as many as wait, and answers each. It knows the two ways in which
// the load writes an INSERT, in PostgreSQL's protocol also its prepared UPDATE by key, and
// nothing else: it parses no SQL, looks for no hint, knows no limits, no errors and no
// settings, and any surprise ends the connection.
type grouper struct {
	*copier
	protocol                groupProtocol
	prepared, text, updates groupTexts
	epochs                  int                  // of all of them
	lanes                   map[int32]*groupLane // by their sockets
}

// A groupProtocol is what a grouper knows of the protocol that the load speaks.
type groupProtocol interface {
	// asked takes what a client has sent, and reports whether it need not be copied.
	asked(g *grouper, client int32, b []byte) bool
	// appendGroup appends what runs the first n rows that wait on a lane, or, where the
	// lane does not know a statement of so many rows and must say first what it is called,
	// what prepares that.
	appendGroup(out []byte, t *groupTexts, l *groupLane, n int) []byte
	// said looks at what the server has said to a lane. next is what it is to be sent
	// then; done says that the group has been answered, with an error unless all its
	// rows are there.
	said(l *groupLane) (next []byte, done bool, err error)
	// appendAnswer appends what a lane's i-th member is answered.
	appendAnswer(out []byte, l *groupLane, i int) []byte
}

// groupLanes is how many groups may be under way, as weir has by default.
const groupLanes = 2

// groupMost is how many rows a group has, as weir has by default.
const groupMost = 256

// groupTexts are statements of one kind that wait for a group.
type groupTexts struct {
	binds   bool    // rows are arguments; else each is text with a comma behind it
	text    bool    // clients sent text, and are answered so
	serial  bool    // UPDATEs, which run one behind the other in one transaction
	head    []byte  // of an INSERT, up to VALUES and a space; all of an UPDATE
	epoch   int     // the head's number
	clients []int32 // who wait
	rows    []byte  // theirs, one behind the other
	ends    []int   // of each in rows
}

// A groupLane is a connection to the server on which groups run. It began as one client's,
// and outlives it.
type groupLane struct {
	fd      int32
	busy    bool
	texts   *groupTexts // of the group under way
	members []int32     // of it
	rows    []byte      // of it, while the server prepares its statement
	in      []byte
	id      uint64              // that the server has given its first row
	knows   map[groupKey]uint32 // what was prepared, by number
}

// groupKey names the statement of so many rows.
type groupKey struct{ epoch, rows int }

func newGrouper(c *copier, protocol string) error {
	g := &grouper{copier: c, prepared: groupTexts{binds: true}, text: groupTexts{text: true}, lanes: make(map[int32]*groupLane)}
	switch protocol {
	case joinsPostgres:
		g.protocol = newPostgresGroups()
		g.text.binds = true // weir, too, makes arguments of literals there
		g.updates = groupTexts{binds: true, serial: true}
	case joinsMySQL:
		g.protocol = new(mysqlGroups)
	default:
		return fmt.Errorf("join writes of protocol %q: want %s or %s", protocol, joinsPostgres, joinsMySQL)
	}
	c.seen, c.turned = g.seen, g.turned
	return nil
}

// seen takes what a connection has sent, and reports whether it need not be copied.
func (g *grouper) seen(from int32, b []byte) bool {
	if l := g.lanes[from]; l != nil && l.busy {
		g.answered(l, b)
		return true
	}
	return g.clients[from] && g.protocol.asked(g, from, b)
}

// is notes the text of an INSERT, and reports how long its head is, 0 for another's.
func (g *grouper) is(t *groupTexts, sql []byte) int {
	at := bytes.Index(sql, []byte("VALUES "))
	if at < 0 {
		return 0
	}
	head := sql[:at+len("VALUES ")]
	g.begins(t, head)
	return len(head)
}

// begins notes how a statement begins.
func (g *grouper) begins(t *groupTexts, head []byte) {
	if !bytes.Equal(t.head, head) {
		g.epochs++
		t.head, t.epoch = bytes.Clone(head), g.epochs
	}
}

// wait has a client's row go with the next group. The connection becomes a lane if there
// are too few.
func (g *grouper) wait(t *groupTexts, client int32, row []byte) {
	if server := int32(g.others[client]); len(g.lanes) < groupLanes && g.lanes[server] == nil {
		g.lanes[server] = &groupLane{fd: server, knows: make(map[groupKey]uint32)}
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
	for _, t := range []*groupTexts{&g.prepared, &g.text, &g.updates} {
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
	l.texts, l.members = t, append(l.members[:0], t.clients[:n]...)
	g.out = g.protocol.appendGroup(g.out[:0], t, l, n)
	if !floor.Write(int(l.fd), g.out) {
		return errors.New("send a group: the server has gone")
	}
	l.busy = true
	end := t.ends[n-1]
	t.clients = append(t.clients[:0], t.clients[n:]...)
	for i, e := range t.ends[n:] {
		t.ends[i] = e - end
	}
	t.ends = t.ends[:len(t.ends)-n]
	t.rows = append(t.rows[:0], t.rows[end:]...)
	return nil
}

// answered takes what the server says to a group, and answers its members.
func (g *grouper) answered(l *groupLane, b []byte) {
	l.in = append(l.in, b...)
	next, done, err := g.protocol.said(l)
	if len(next) > 0 && !floor.Write(int(l.fd), next) {
		done, err = true, errors.New("the server has gone")
	}
	if !done {
		return
	}
	l.in = l.in[:0]
	for i, m := range l.members {
		g.out = g.protocol.appendAnswer(g.out[:0], l, i)
		if err != nil || !floor.Write(int(m), g.out) {
			g.end(m)
		}
	}
	l.busy = false
}
