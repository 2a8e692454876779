package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirdb/weir/internal/proxy/postgres/catalogue"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// A liar is a proxy whose server says whatever the test has it say.
type liar struct {
	tb    testing.TB
	srv   *Server
	l     *loop
	ctx   context.Context
	pools int
}

func newLiar(tb testing.TB) *liar {
	li := &liar{tb: tb}
	srv, err := New(Config{
		Postgres: pgwire.ConnectConfig{Address: "127.0.0.1:1", User: "u", Database: "d", TLSMode: pgwire.TLSDisable}, Listen: "127.0.0.1:0",
		Options: session.Options{Limits: session.Limits{PoolSize: 2}, Loops: 1, TrustLoopback: true, DrainTimeout: time.Millisecond, Log: slog.New(slog.DiscardHandler)},
	})
	if err != nil {
		tb.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = srv.Run(ctx)
	}()
	tb.Cleanup(func() { stop(); <-ended })
	li.srv, li.l, li.ctx = srv, srv.Loops[0], ctx
	return li
}

// call runs f on the loop.
func (li *liar) call(f func()) {
	if err := li.l.Call(li.ctx, f); err != nil {
		li.tb.Fatal(err)
	}
}

// A stage is one server connection, the clients that use it, and a server at its other end.
type stage struct {
	li      *liar
	p       *pool
	b       *backend
	server  int   // the other end of the connection
	others  []int // of the clients
	clients []*client
	closed  error // why the connection was closed
}

// overheard keeps why a connection was closed.
type overheard struct {
	*backend
	st *stage
}

func (o overheard) OnClosed(err error) {
	if o.st.closed = err; err == nil {
		o.st.closed = errors.New("closed without an error")
	}
	o.backend.OnClosed(err)
}

// pair returns the two ends of a connection.
func (li *liar) pair() (near, far int) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		li.tb.Fatal(err)
	}
	return fds[0], fds[1]
}

// new prepares a connection, on which weir asks about the server first unless that is known.
func (li *liar) new(known bool) *stage {
	st := &stage{li: li}
	li.pools++
	key := poolKey{database: fmt.Sprintf("d%d", li.pools), user: "u"}
	near, far := li.pair()
	st.server = far
	st.p = li.l.pool(key)
	if known {
		st.p.facts = facts{known: true, canFlush: true, syncDefault: "on", version: "15.0", at: li.l.Now + time.Hour}
		r := new(catalogue.Known).Reader(catalogue.Database{}, nil)
		r.Feed([][][]byte{{[]byte("1"), []byte("abs")}})
		r.Feed([][][]byte{{[]byte("stamp"), []byte("1"), nil, nil, nil, nil, nil}})
		x, err := r.Index()
		if err != nil {
			li.tb.Fatal(err)
		}
		st.p.catalogue.index, st.p.catalogue.ready, st.p.catalogue.lookAt = x, true, li.l.Now+time.Hour
	}
	st.connected(near)
	return st
}

// connected gives the pool a connection to the server.
func (st *stage) connected(near int) {
	st.p.Adopt(&backendConn{fd: near, via: new(pgwire.ConnectConfig), params: map[string]string{
		"server_version": "15.0", encodingName: "UTF8", conformingName: "on",
	}})
	for _, b := range st.p.Backends {
		st.b = b
	}
	if st.b == nil {
		st.li.tb.Fatal("the connection was not taken")
	}
	st.b.s.Handle(overheard{st.b, st})
	st.li.l.Settle()
}

// client sends messages as a new client.
func (st *stage) client(messages ...[]byte) *client {
	l := st.li.l
	near, far := st.li.pair()
	st.others = append(st.others, far)
	c := newClient(l)
	id, _, err := l.srv.register(l, pgwire.Version32)
	if err != nil {
		st.li.tb.Fatal(err)
	}
	c.id = id
	l.Given()
	_ = l.srv.SessionCounts.Enter(new(session.Options), st.p.key.database, st.p.key.user)
	if c.s, err = l.Watch(near, c); err != nil {
		st.li.tb.Fatal(err)
	}
	st.p.greeting[l.Settings.Empty()] = []pgwire.Param{{Name: encodingName, Value: "UTF8"}, {Name: conformingName, Value: "on"}}
	l.seat(c, st.p.key, nil, nil, nil)
	st.clients = append(st.clients, c)
	st.says(c, messages...)
	return c
}

// says has a client send messages.
func (st *stage) says(c *client, messages ...[]byte) {
	if _, err := unix.Write(st.others[slices.Index(st.clients, c)], slices.Concat(messages...)); err != nil {
		return // it was disconnected
	}
	c.s.Try()
	st.li.l.Settle()
}

// answers has the server send bytes.
func (st *stage) answers(p ...[]byte) {
	_, _ = unix.Write(st.server, slices.Concat(p...)) // which weir may have closed
	st.b.s.Try()
	st.li.l.Settle()
}

// end closes everything.
func (st *stage) end() {
	for _, c := range st.clients {
		c.s.Close(nil)
	}
	for _, b := range slices.Clone(st.p.Backends) {
		b.s.Close(nil)
	}
	for _, fd := range append(st.others, st.server) {
		_ = unix.Close(fd)
	}
	l := st.li.l
	delete(l.Pools, st.p.key)
	delete(l.proofs, st.p.key.database)
	l.PoolList = slices.DeleteFunc(l.PoolList, func(p *pool) bool { return p == st.p })
}

func ext(name, sql string) []byte {
	out := pgwire.AppendBind(pgwire.AppendParse(nil, name, sql, nil), "", name, new(pgwire.BindArgs))
	return pgwire.AppendExecute(pgwire.AppendDescribe(out, pgwire.KindPortal, ""), "", 0)
}

// scenes are what the server may be asked when it begins to lie.
var scenes = []func(li *liar) *stage{
	func(li *liar) *stage { return li.new(false) },
	func(li *liar) *stage { // a client with the connection to itself
		st := li.new(true)
		st.client(pgwire.AppendQuery(nil, "BEGIN"), ext("a", "SELECT 1"), pgwire.AppendClose(nil, 'S', "a"), ext("a", "SELECT 2"), pgwire.AppendFlush(nil))
		return st
	},
	func(li *liar) *stage { // COPY
		st := li.new(true)
		st.client(ext("", "COPY t FROM STDIN"), pgwire.AppendSync(nil), pgwire.AppendCopyData(nil, []byte("1\n")), pgwire.AppendCopyDone(nil), pgwire.AppendSync(nil), pgwire.AppendQuery(nil, "SELECT 1"))
		return st
	},
	func(li *liar) *stage { // shared reads
		st := li.new(true)
		for range 2 {
			st.client(pgwire.AppendQuery(nil, "SELECT 1"), ext("s", "SELECT 2"), pgwire.AppendSync(nil), pgwire.AppendQuery(nil, "SELECT 1 /* cache=1m */"))
		}
		return st
	},
	func(li *liar) *stage { // a multi-row INSERT
		st := li.new(true)
		types := st.p.guards.types
		st.p.tables.m = map[tableKey]*tableFacts{{li.l.Settings.Empty(), "t"}: {state: tablePlain, guard: guard{types, pgwire.AppendBind(nil, "", types.srvName, new(pgwire.BindArgs))}}}
		for range 3 {
			st.client(pgwire.AppendQuery(nil, "/* batch */ INSERT INTO t (k) VALUES (1) RETURNING k"))
		}
		return st
	},
	func(li *liar) *stage { // writes in one group
		st := li.new(true)
		for range 3 {
			st.client(pgwire.AppendQuery(nil, "/* batch */ UPDATE t SET k = 1 WHERE k = 2"), ext("", "/* batch */ UPDATE t SET k = 1 WHERE k = 2"), pgwire.AppendSync(nil))
		}
		return st
	},
	func(li *liar) *stage { // weir's questions about a table
		st := li.new(true)
		st.client(pgwire.AppendQuery(nil, "/* batch */ INSERT INTO t (k) VALUES (1)"))
		return st
	},
	func(li *liar) *stage { // ... about a session
		st := li.new(true)
		c := st.client(pgwire.AppendQuery(nil, "LISTEN a"))
		st.answers(pgwire.AppendReadyForQuery(pgwire.AppendCommandComplete(nil, "LISTEN"), 'I'))
		st.says(c, pgwire.AppendQuery(nil, "SELECT set_config('a.b', 'x', false)"))
		return st
	},
	func(li *liar) *stage { // ... about a free connection
		st := li.new(true)
		st.b.Answered = li.l.Now
		st.p.audits.at = 0
		st.p.audits.next()
		return st
	},
	func(li *liar) *stage { // ... about locks
		st := li.new(true)
		st.p.probe.asked = -time.Hour
		st.p.probe.ask()
		return st
	},
}

// FuzzServerMessages has the server say anything at any time: that ends no more than its
// connection.
func FuzzServerMessages(f *testing.F) {
	cc := pgwire.AppendCommandComplete
	ready := pgwire.AppendReadyForQuery(nil, 'I')
	row := pgwire.AppendDataRow(nil, [][]byte{[]byte("1"), []byte("t"), nil})
	e := pgwire.AppendError(nil, pgwire.NewError("42P01", "no such thing"))
	for scene := range scenes {
		for _, raw := range [][]byte{
			slices.Concat(row, cc(nil, "SELECT 1"), ready, row, cc(nil, "SELECT 1"), ready),
			slices.Concat(parseComplete, bindComplete, noData, []byte{'G', 0, 0, 0, 7, 0, 0, 0}, cc(nil, "COPY 1"), ready),
			slices.Concat(e, ready, ready), slices.Concat(parseComplete, e, ready),
			{'Z', 0, 0, 0, 4},
			{'C', 0, 0, 0, 4},
			{'D', 0, 0, 0, 4},
			{'D', 0, 0, 0, 6, 0, 0},
			{'E', 0, 0, 0, 4},
			{'S', 0, 0, 0, 4},
			{'A', 0, 0, 0, 4},
			{'N', 0, 0, 0, 4},
			{'Z', 0, 0, 0, 0},
			slices.Concat(pgwire.AppendParameterStatus(nil, "client_encoding", "SJIS"), ready),
		} {
			f.Add(byte(scene), false, raw)
			f.Add(byte(scene), true, raw)
		}
	}
	li := newLiar(f)
	f.Fuzz(func(t *testing.T, scene byte, framed bool, raw []byte) {
		li.tb = t // f's own Fatal panics in here
		if len(raw) > 16<<10 {
			return
		}
		if framed {
			raw = frames(raw)
		}
		var st *stage
		li.call(func() {
			st = scenes[int(scene)%len(scenes)](li)
			st.answers(raw[:len(raw)/2])
		})
		li.call(func() { st.answers(raw[len(raw)/2:]) }) // in a later turn
		li.call(func() { st.end() })
	})
}

// frames makes messages of the server's of any bytes.
func frames(raw []byte) (out []byte) {
	const types = "ZCDEGTSAN123nsItHVWc"
	for len(raw) > 1 {
		typ, n := types[int(raw[0])%len(types)], int(raw[1])%32
		raw = raw[2:]
		n = min(n, len(raw))
		out = pgwire.AppendMessage(out, typ, raw[:n])
		raw = raw[n:]
	}
	return out
}

// Every scene has the server be asked something.
func TestScenesOfServerMessages(t *testing.T) {
	li := newLiar(t)
	for i, scene := range scenes {
		li.call(func() {
			st := scene(li)
			if st.b.Depth() == 0 {
				t.Errorf("scene %d: nothing is under way", i)
			}
			st.end()
		})
	}
}

// Messages that are too short, or do not answer what was asked, end their connection by an
// error that names them.
func TestMalformedMessagesOfTheServer(t *testing.T) {
	li := newLiar(t)
	for _, c := range []struct {
		name  string
		scene int
		raw   []byte
		want  string
	}{
		{"ReadyForQuery without a status", 1, []byte{'Z', 0, 0, 0, 4}, "server sent a malformed ReadyForQuery message"},
		{"a length that is none", 1, []byte{'C', 0, 0, 0, 2}, `server sent a message of type 'C' and length 2`},
		{"an empty error", 1, []byte{'E', 0, 0, 0, 4}, "server sent a malformed ErrorResponse message"},
		{"an empty parameter", 1, []byte{'S', 0, 0, 0, 4}, "server sent a malformed ParameterStatus message"},
		{"facts without columns", 0, slices.Concat(pgwire.AppendReadyForQuery(nil, 'I'), pgwire.AppendReadyForQuery(nil, 'I'), pgwire.AppendDataRow(nil, nil)), "server sent a DataRow of 0 columns where weir had asked for 5"},
		{"facts that are cut", 0, slices.Concat(pgwire.AppendReadyForQuery(nil, 'I'), pgwire.AppendReadyForQuery(nil, 'I'), []byte{'D', 0, 0, 0, 6, 0, 5}), "server sent a malformed DataRow message"},
		{"locks without columns", 9, pgwire.AppendDataRow(nil, nil), "server sent a DataRow of 0 columns where weir had asked for 1"},
		{"a session with one column", 8, pgwire.AppendDataRow(nil, [][]byte{nil}), "server sent a DataRow of 1 columns where weir had asked for 2"},
		{"a table without columns", 6, pgwire.AppendDataRow(nil, nil), "server sent a DataRow of 0 columns where weir had asked for 8"},
		{"a group's empty tag", 4, slices.Concat(parseComplete, bindComplete, []byte{'C', 0, 0, 0, 4}, []byte{'Z', 0, 0, 0, 4}), "server sent a malformed ReadyForQuery message"},
	} {
		t.Run(c.name, func(t *testing.T) {
			li.call(func() {
				st := scenes[c.scene](li)
				st.answers(c.raw)
				if st.closed == nil || st.closed.Error() != c.want {
					t.Errorf("closed by %v, want %s", st.closed, c.want)
				}
				st.end()
			})
		})
	}
}
