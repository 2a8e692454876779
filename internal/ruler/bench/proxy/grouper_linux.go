package proxybench

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/weirdb/weir/internal/ruler/bench/floor"
)

// A grouper is a minimal proxy that groups writes: a copier that, once a client has sent its
// first INSERT, sends those of all clients to the server as one statement with as many rows as
// are waiting, and answers each client. It knows the two ways in which the load writes an
// INSERT, and in PostgreSQL's protocol also the load's prepared UPDATE by key, and nothing
// else: it parses no SQL, looks for no hint, knows no limits, errors or settings, and anything
// unexpected ends the connection.
type grouper struct {
	*copier
	protocol                groupProtocol
	prepared, text, updates groupTexts
	epochs                  int                  // of all of them
	lanes                   map[int32]*groupLane // by their sockets
}

// A groupProtocol is the grouper's knowledge of the load's protocol.
type groupProtocol interface {
	// asked handles data from a client, and reports whether it need not be copied.
	asked(g *grouper, client int32, b []byte) bool
	// appendGroup appends the messages that run the first n rows waiting for a lane, or, if the
	// lane must first prepare a statement for that many rows, the messages that prepare it.
	appendGroup(out []byte, t *groupTexts, l *groupLane, n int) []byte
	// said handles data from the server on a lane. next is what to send to the server then;
	// done means that the group has been answered, with an error unless all its rows are
	// stored.
	said(l *groupLane) (next []byte, done bool, err error)
	// appendAnswer appends the answer to a lane's i-th member.
	appendAnswer(out []byte, l *groupLane, i int) []byte
}

// groupLanes is how many groups may be under way, as in weir's default.
const groupLanes = 2

// groupMost is the largest number of rows in a group, as in weir's default.
const groupMost = 256

// groupTexts are statements of one kind that wait for a group.
type groupTexts struct {
	binds   bool    // rows are arguments; else each is text followed by a comma
	text    bool    // clients sent text, and are answered accordingly
	serial  bool    // UPDATEs, which run one after another in one transaction
	head    []byte  // of an INSERT, up to VALUES and a space; the whole text of an UPDATE
	epoch   int     // the head's number
	clients []int32 // those that wait
	rows    []byte  // their rows, concatenated
	ends    []int   // end of each row in rows
}

// A groupLane is a server connection on which groups run. It started as one client's, and
// outlives it.
type groupLane struct {
	fd      int32
	busy    bool
	texts   *groupTexts // of the current group
	members []int32     // its clients
	rows    []byte      // its rows, while the server prepares its statement
	in      []byte
	id      uint64              // of its first row, from the server
	knows   map[groupKey]uint32 // prepared statements, by ID
}

// groupKey identifies the statement for a number of rows.
type groupKey struct{ epoch, rows int }

func newGrouper(c *copier, protocol string) error {
	g := &grouper{copier: c, prepared: groupTexts{binds: true}, text: groupTexts{text: true}, lanes: make(map[int32]*groupLane)}
	switch protocol {
	case joinsPostgres:
		g.protocol = newPostgresGroups()
		g.text.binds = true // weir, too, converts literals to arguments there
		g.updates = groupTexts{binds: true, serial: true}
	case joinsMySQL:
		g.protocol = new(mysqlGroups)
	default:
		return fmt.Errorf("group writes of protocol %q: want %s or %s", protocol, joinsPostgres, joinsMySQL)
	}
	c.seen, c.turned = g.seen, g.turned
	return nil
}

// seen handles data of a connection, and reports whether it need not be copied.
func (g *grouper) seen(from int32, b []byte) bool {
	if l := g.lanes[from]; l != nil && l.busy {
		g.answered(l, b)
		return true
	}
	return g.clients[from] && g.protocol.asked(g, from, b)
}

// parseInsert records the text of an INSERT, and returns the length of its head, 0 for another
// statement.
func (g *grouper) parseInsert(t *groupTexts, sql []byte) int {
	at := bytes.Index(sql, []byte("VALUES "))
	if at < 0 {
		return 0
	}
	head := sql[:at+len("VALUES ")]
	g.setHead(t, head)
	return len(head)
}

// setHead records the head of a statement.
func (g *grouper) setHead(t *groupTexts, head []byte) {
	if !bytes.Equal(t.head, head) {
		g.epochs++
		t.head, t.epoch = bytes.Clone(head), g.epochs
	}
}

// wait adds a client's row to the next group. The connection becomes a lane if there are too
// few.
func (g *grouper) wait(t *groupTexts, client int32, row []byte) {
	if server := int32(g.others[client]); len(g.lanes) < groupLanes && g.lanes[server] == nil {
		g.lanes[server] = &groupLane{fd: server, knows: make(map[groupKey]uint32)}
	}
	t.clients = append(t.clients, client)
	t.rows = append(t.rows, row...)
	t.ends = append(t.ends, len(t.rows))
}

// leave ends a client whose server connection is a lane, which stays open.
func (g *grouper) leave(client int32) bool {
	server := int32(g.others[client])
	if g.lanes[server] == nil {
		return false
	}
	g.others[server] = -1
	g.end(client)
	return true
}

// turned starts groups after a batch of events.
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

// answered handles the server's answer to a group, and answers its members.
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
