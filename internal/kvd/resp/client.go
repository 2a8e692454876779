package resp

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/kvd/wire"
)

func connectionCommands() []command {
	const group = "connection"
	return []command{
		{"ping", -1, always | isFast, 0, 0, 0, ping, group, "Answers PONG, or its argument."},
		{"echo", 2, always | isFast, 0, 0, 0, echo, group, "Answers its argument."},
		{"quit", -1, anybody | always | notQueued | isFast, 0, 0, 0, quit, group, "Ends the connection."},
		{"reset", 1, anybody | always | notQueued | isFast, 0, 0, 0, reset, group, "Makes the connection as new."},
		{"hello", -1, anybody | always | notInMulti | isFast, 0, 0, 0, hello, group, "Chooses the protocol, and logs in."},
		{"auth", -2, anybody | always | notInMulti | isFast, 0, 0, 0, auth, group, "Logs in."},
		{"select", 2, always | isFast, 0, 0, 0, selectDB, group, "Takes database 0, the only one."},
		{"client", -2, always, 0, 0, 0, client, group, "ID, SETNAME, GETNAME, SETINFO, INFO, LIST, NO-EVICT, NO-TOUCH, TRACKING, CACHING, TRACKINGINFO, GETREDIR."},
		{"readonly", 1, always | isFast, 0, 0, 0, readOnly, group, "Takes the level session: reads of this replica, weak writes."},
		{"readwrite", 1, always | isFast, 0, 0, 0, readWrite, group, "Takes the level strong."},
		{"asking", 1, always | isFast, 0, 0, 0, asking, group, "Does nothing: no slot ever moves."},
		{"wait", 3, notInMulti, 0, 0, 0, wait, group, "Waits until replicas have the connection's writes."},
		{"waitaof", 4, notInMulti, 0, 0, 0, waitAOF, group, "Waits until disks have the connection's writes."},
		{"acl", -2, always, 0, 0, 0, acl, group, "WHOAMI."},
	}
}

// caching is the effect of CLIENT CACHING on the next command.
type caching uint8

const (
	cachingDefault caching = iota
	cachingYes
	cachingNo
)

// state is the state of a connection that its client can change.
type state struct {
	id      uint64
	since   time.Time
	proto   uint8
	level   Level
	user    *User     // nil: not logged in
	loginBy time.Time // otherwise it is disconnected
	multi   *queue
	watched watched
	call    call // the command being executed

	listener  listener
	optIn     bool // tracks after CLIENT CACHING YES only
	optOut    bool // tracks except after CLIENT CACHING NO
	caching   caching
	redirects bool // it has asked for the slots of the cluster, so it understands MOVED

	identity // guarded by conn.mu, since CLIENT LIST of other clients shows it
}

// identity is how a client describes itself.
type identity struct{ name, library, version string }

// defaultUser is the user of every client if a server has no users.
var defaultUser = &User{Name: "default"}

func ping(k *call) {
	switch len(k.args) {
	case 1:
		k.simple("PONG")
	case 2:
		k.bulk(k.args[1])
	default:
		k.fail(wrongNumber("ping"))
	}
}

func echo(k *call) { k.bulk(k.args[1]) }

func quit(k *call) {
	k.c.closing = true
	k.ok()
}

func reset(k *call) {
	c := k.c
	c.multi, c.watched, c.level, c.proto = nil, watched{}, Strong, 2
	c.stopListening()
	c.setIdentity(func(i *identity) { i.name = "" })
	c.resetLogin()
	k.proto = 2
	k.reply.proto = 2
	k.simple("RESET")
}

// setIdentity changes the identity.
func (c *conn) setIdentity(change func(*identity)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.identity)
}

const badName = "ERR Client names cannot contain spaces, newlines or special characters."

// printable reports whether a name can be shown in a list.
func printable(name []byte) bool {
	for _, c := range name {
		if c < '!' || c > '~' {
			return false
		}
	}
	return true
}

func selectDB(k *call) {
	n, ok := parseInt(k.args[1])
	switch {
	case !ok:
		k.fail(notAnInteger)
	case n != 0:
		k.fail("ERR DB index is out of range")
	default:
		k.ok()
	}
}

func readOnly(k *call) {
	k.c.level = OwnSession
	k.ok()
}

func readWrite(k *call) {
	k.c.level = Strong
	k.ok()
}

func asking(k *call) { k.ok() }

// timeout parses a number of milliseconds.
func (k *call) timeout(arg []byte) (d time.Duration, ok bool) {
	n, ok := parseInt(arg)
	switch {
	case !ok || n > int64(1<<62/time.Millisecond):
		k.fail("ERR timeout is not an integer or out of range")
		return 0, false
	case n < 0:
		k.fail("ERR timeout is negative")
		return 0, false
	}
	return time.Duration(n) * time.Millisecond, true
}

func wait(k *call) {
	replicas, ok := parseInt(k.args[1])
	if !ok || replicas > 1<<30 {
		k.fail(notAnInteger)
		return
	}
	if d, ok := k.timeout(k.args[2]); ok {
		k.await(int(max(replicas, 0)), d, shape{render: renderNumber, n: 1})
	}
}

// waitAOF does the same as wait, since replicas of weir write to their disks.
func waitAOF(k *call) {
	local, ok := parseInt(k.args[1])
	replicas, also := parseInt(k.args[2])
	if !ok || !also || local < 0 || local > 1 || replicas < 0 || replicas > 1<<30 {
		k.fail("ERR value is out of range, must be positive")
		return
	}
	if d, ok := k.timeout(k.args[3]); ok {
		k.await(int(replicas), d, shape{render: renderWaitAOF, n: 1})
	}
}

// renderWaitAOF renders the counts of this replica's disk, which has all that was answered, and
// of the others'.
func renderWaitAOF(e *encoder, _ *shape, r []wire.Result) {
	e.array(2)
	e.int(1)
	e.int(r[0].Number)
}

// await waits for earlier writes. Later commands are executed meanwhile. Their replies follow
// its own, and a disconnect of the client is noticed.
func (k *call) await(replicas int, d time.Duration, s shape) {
	k.to.shape = s
	k.asked = true
	k.c.waiting = append(k.c.waiting, waiting{len(k.c.batch), replicas, d, k.reply})
}

// client executes CLIENT.
func client(k *call) {
	sub := strings.ToLower(string(k.args[1]))
	c := k.c
	n := len(k.args)
	switch {
	case sub == "id" && n == 2:
		k.int(int64(c.id))
	case sub == "getname" && n == 2:
		if c.name == "" {
			k.null()
			return
		}
		k.text(c.name)
	case sub == "setname" && n == 3:
		if !printable(k.args[2]) {
			k.fail(badName)
			return
		}
		c.setIdentity(func(i *identity) { i.name = string(k.args[2]) })
		k.ok()
	case sub == "setinfo" && n == 4:
		k.setInfo()
	case sub == "info" && n == 2:
		k.verbatim(c.describe() + "\n")
	case sub == "list":
		k.verbatim(c.srv.describeClients())
	case (sub == "no-evict" || sub == "no-touch") && n == 3:
		if !is(k.args[2], "ON") && !is(k.args[2], "OFF") {
			k.fail(syntaxError)
			return
		}
		k.ok()
	case sub == "tracking" && n >= 3:
		clientTracking(k)
	case sub == "caching" && n == 3:
		clientCaching(k)
	case sub == "trackinginfo" && n == 2:
		trackingInfo(k)
	case sub == "getredir" && n == 2:
		if c.listener.mode == untracked {
			k.int(-1)
			return
		}
		k.int(0)
	case slices.Contains(clientSubs, sub):
		k.wrongArity()
	default:
		k.unknownSub()
	}
}

var clientSubs = []string{
	"id", "getname", "setname", "setinfo", "info", "no-evict", "no-touch", "tracking", "caching", "trackinginfo", "getredir",
}

func (k *call) setInfo() {
	value := string(k.args[3])
	if !printable(k.args[3]) {
		k.fail(fmt.Sprintf("ERR %s cannot contain spaces, newlines or special characters.", strings.ToLower(string(k.args[2]))))
		return
	}
	switch {
	case is(k.args[2], "LIB-NAME"):
		k.c.setIdentity(func(i *identity) { i.library = value })
	case is(k.args[2], "LIB-VER"):
		k.c.setIdentity(func(i *identity) { i.version = value })
	default:
		k.fail(fmt.Sprintf("ERR Unrecognized option '%.128s'", k.args[2]))
		return
	}
	k.ok()
}

// describe returns a client's line in CLIENT LIST.
func (c *conn) describe() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var b strings.Builder
	b.WriteString("id=" + strconv.FormatUint(c.id, 10))
	fmt.Fprintf(&b, " addr=%s laddr=%s name=%s age=%d db=0 tot-cmds=%d in-flight=%d in-flight-bytes=%d lib-name=%s lib-ver=%s",
		c.sock.RemoteAddr(), c.sock.LocalAddr(), c.name, int(time.Since(c.since).Seconds()), c.ring.tail, c.open, c.inFlight,
		c.library, c.version)
	return b.String()
}

func (s *Server) describeClients() string {
	s.mu.Lock()
	all := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		all = append(all, c)
	}
	s.mu.Unlock()
	slices.SortFunc(all, func(a, b *conn) int { return int(a.id) - int(b.id) })
	var b strings.Builder
	for _, c := range all {
		b.WriteString(c.describe() + "\n")
	}
	return b.String()
}

func acl(k *call) {
	switch {
	case is(k.args[1], "WHOAMI") && len(k.args) == 2:
		k.text(k.c.user.Name)
	case is(k.args[1], "WHOAMI"):
		k.wrongArity()
	default:
		k.unknownSub()
	}
}
