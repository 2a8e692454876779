package mysql_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// Clients that break the protocol get an error or are disconnected, and no other client notices.
func TestBrokenMessagesHarmOnlyTheirSender(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE t (a INT PRIMARY KEY)"), func(c *mysql.Config) { c.PoolSize = 2 })
	other := w.dial(nil)
	other.must("BEGIN")
	other.must("INSERT INTO t VALUES (1)")
	huge := mywire.AppendHeader(nil, mywire.MaxPayload, 0)
	for _, c := range []struct {
		name string
		send []byte
		code uint16 // 0: the connection ends without a word
	}{
		{"a number out of order", append(mywire.AppendHeader(nil, 1, 3), mywire.ComPing), mywire.ErrMalformedPacket},
		{"an empty message", mywire.AppendHeader(nil, 0, 0), mywire.ErrMalformedPacket},
		{"an execution that is cut short", mywire.AppendCommand(nil, mywire.ComStmtExecute, "\x01"), mywire.ErrMalformedPacket},
		{"a COM_CHANGE_USER that is cut short", mywire.AppendCommand(nil, mywire.ComChangeUser, "root"), mywire.ErrMalformedPacket},
		{"a second packet out of order", append(append(append(huge, mywire.ComQuery), bytes.Repeat([]byte{' '}, mywire.MaxPayload-1)...), mywire.AppendPacket(nil, 7, []byte("SELECT 1"))...), mywire.ErrMalformedPacket},
	} {
		for _, linked := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, transaction %v", c.name, linked), func(t *testing.T) {
				conn := w.within(t).dial(nil)
				if linked {
					conn.must("BEGIN")
					conn.must("INSERT INTO t VALUES (2)")
				}
				conn.send(c.send)
				_, payload, err := conn.tryPacket()
				if err != nil || mywire.ErrorCode(payload) != c.code {
					t.Fatalf("answer %.200q, %v; want error %d", payload, err, c.code)
				}
				if _, _, err := conn.tryPacket(); err == nil {
					t.Error("the session goes on")
				}
			})
		}
	}
	if got := other.one("SELECT COUNT(*) FROM t"); got != "1" {
		t.Errorf("the other session sees %s rows, want its own", got)
	}
	other.must("COMMIT")
	// Whatever the broken sessions held is free again, and rolled back.
	if got := other.one("SELECT COUNT(*) FROM t WHERE a = 2"); got != "0" {
		t.Errorf("%s rows of broken sessions", got)
	}
	eventually(t, "all backends are free", func() bool { p := w.pool(); return p.Backends == p.Free && p.Waiting == 0 })
}

// Clients that go away in the middle of a message, at each place where weir may
// be with it, leave nothing behind.
func TestClientGoneMidPacket(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE t (a INT PRIMARY KEY, b LONGBLOB)"), func(c *mysql.Config) { c.PoolSize, c.LocalInfile = 2, true })
	insert := mywire.AppendCommand(nil, mywire.ComQuery, "INSERT INTO t VALUES (1, 'x')")
	long := append(mywire.AppendHeader(nil, 1<<20, 0), append([]byte{mywire.ComQuery}, bytes.Repeat([]byte{' '}, 300<<10)...)...)
	streamed := append(mywire.AppendHeader(nil, mywire.MaxPayload, 0), append([]byte{mywire.ComQuery}, bytes.Repeat([]byte{' '}, mywire.MaxPayload-1)...)...)
	for name, send := range map[string][]byte{
		"header":          insert[:2],
		"header alone":    insert[:4],
		"half a text":     insert[:len(insert)-3],
		"long text":       long,
		"16 MiB and more": append(streamed, mywire.AppendHeader(nil, 100, 1)...),
		"long data":       append(mywire.AppendPrepare(nil, "INSERT INTO t VALUES (2, ?)"), mywire.AppendHeader(nil, 1000, 0)...),
		"a file":          append(mywire.AppendCommand(nil, mywire.ComQuery, "LOAD DATA LOCAL INFILE 'f' INTO TABLE t"), append(mywire.AppendHeader(nil, 500, 2), "3\tx\n"...)...),
	} {
		for _, linked := range []bool{false, true} {
			conn := w.dial(func(c *mywire.ConnectConfig) { c.Caps = baseCaps })
			if linked {
				conn.must("BEGIN")
				conn.must("INSERT INTO t VALUES (9, 'linked')")
			}
			conn.send(send)
			if err := conn.Conn.Close(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
	eventually(t, "all clients are gone", func() bool { return w.snapshot().Clients == 0 })
	eventually(t, "all backends are free", func() bool { p := w.pool(); return p.Backends == p.Free })
	probe := w.dial(nil)
	eventually(t, "nothing was written", func() bool { return probe.one("SELECT COUNT(*) FROM t") == "0" })
}

// A client that reads a huge result slowly holds up the server, not weir's
// memory, and gets every byte in the end.
func TestSlowReaderOfAHugeResult(t *testing.T) {
	t.Parallel()
	onFlavors(t, func(t *testing.T, server *lab.MySQL) {
		db := databaseOn(t, server, "CREATE TABLE t (a INT PRIMARY KEY, b LONGBLOB)", "INSERT INTO t VALUES (1, REPEAT('x', 1000000))")
		w := startFor(t, server, db, func(c *mysql.Config) { c.PoolSize = 2 })
		slow, other := w.dial(nil), w.dial(nil)
		slow.must("BEGIN") // on a backend of its own
		const rows = 100
		query := "SELECT b FROM t"
		for i := 1; i < rows; i++ {
			query += " UNION ALL SELECT b FROM t"
		}
		slow.send(mywire.AppendCommand(nil, mywire.ComQuery, query))
		eventually(t, "weir has begun to pass the result on", func() bool {
			return other.one("SELECT COUNT(*) FROM t") == "1" && w.snapshot().Loops[0].BytesOut > 1<<20
		})
		for range 50 {
			other.must("DO 0")
		}
		// Bytes beyond those that the kernel buffers would be kept by weir.
		if in := w.snapshot().Loops[0].BytesIn; in > rows*1000000/2 {
			t.Errorf("%d MiB are read from the server for a client that does not read", in>>20)
		}
		n, total := slow.drain()
		if n != rows || total < rows*1000000 {
			t.Errorf("%d rows, %d bytes", n, total)
		}
		slow.must("ROLLBACK")
	})
}

// FuzzClientBytes sends weir what no client would, after a login. It may end that
// session; it must not harm another, nor weir.
func FuzzClientBytes(f *testing.F) {
	server := server(f)
	db := database(f, "CREATE TABLE t (a INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
	const user, password = "fuzzer", "of bytes" // who may do no harm to the server
	sqlOn(f, server, "CREATE USER IF NOT EXISTS "+user+"@'%' IDENTIFIED BY '"+password+"'", "GRANT SELECT, INSERT, UPDATE ON "+db+".* TO "+user+"@'%'")
	w := start(f, db, func(c *mysql.Config) { c.PoolSize, c.LocalInfile = 2, true })
	canary := w.dial(nil)
	canary.must("SET @mine = 'kept'")
	for _, seed := range [][]byte{
		nil,
		{0},
		mywire.AppendPing(nil), mywire.AppendQuit(nil), mywire.AppendCommand(nil, mywire.ComQuery, "SELECT 1"), mywire.AppendCommand(nil, mywire.ComQuery, "/* batch */ INSERT INTO t VALUES (2)"),
		append(mywire.AppendPrepare(nil, "SELECT ?"), mywire.AppendExecute(nil, 0, 1, 1, []byte{0}, []byte{mywire.TypeVarString, 0}, []byte("\x01x"))...),
		append(mywire.AppendPrepare(nil, "INSERT INTO t VALUES (?)"), mywire.AppendExecute(nil, 0, 1, 0, []byte{0}, []byte{mywire.TypeLong, 0}, []byte{1})...),
		append(mywire.AppendPrepare(nil, "SELECT ?"), mywire.AppendLongData(nil, mywire.LongDataMsg{StmtID: 1, Data: []byte("x")})...),
		mywire.AppendFetch(nil, 1, 2), mywire.AppendStmtReset(nil, 1), mywire.AppendStmtClose(nil, 1), mywire.AppendSetOption(nil, 0), mywire.AppendResetConnection(nil), mywire.AppendInitDB(nil, "x"),
		mywire.AppendCommand(nil, mywire.ComFieldList, "t\x00"), mywire.AppendCommand(nil, mywire.ComStmtBulkExecute, "\x01\x00\x00\x00\x80\x00"), mywire.AppendCommand(nil, mywire.ComChangeUser, "root\x00\x00\x00"),
		mywire.AppendCommand(nil, mywire.ComQuery, "LOAD DATA LOCAL INFILE 'f' INTO TABLE t"), mywire.AppendHeader(nil, mywire.MaxPayload, 0), mywire.AppendProcessKill(nil, 1<<30|1<<29), mywire.AppendCommand(nil, mywire.ComStatistics, ""),
		query("SELECT /* \xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff */ get_lock('fuzz', 0)"), query("ȺȺȺȺȺȺȺȺȺȺȺȺȺȺȺȺ get_lock"),
		append(mywire.AppendCommand(nil, mywire.ComQuery, "BEGIN"), mywire.AppendCommand(nil, mywire.ComStmtPrepare, "SELECT * FROM t FOR UPDATE")...),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		conn, err := mywire.Connect(ctx, mywire.ConnectConfig{Address: w.Addr().String(), User: user, Password: password, Database: db, TLSMode: mywire.TLSDisabled})
		if err != nil {
			t.Fatalf("login: %v", err)
		}
		_ = conn.Conn.SetDeadline(time.Now().Add(patience))
		if _, err := conn.Conn.Write(append(p, mywire.AppendQuit(nil)...)); err == nil {
			if tcp, ok := conn.Conn.(interface{ CloseWrite() error }); ok {
				_ = tcp.CloseWrite() // weir may have closed already
			}
			if _, err := io.Copy(io.Discard, conn.Conn); err != nil && isTimeout(err) {
				t.Errorf("the session does not end: %v", err)
			}
		}
		_ = conn.Conn.Close()
		_ = canary.Conn.SetDeadline(time.Now().Add(patience))
		rows, err := canary.Query(ctx, "SELECT @mine")
		if err != nil || len(rows) != 1 || rows[0][0].String != "kept" {
			t.Fatalf("another session: %v, %v", rows, err)
		}
	})
}

func isTimeout(err error) bool {
	timeout, ok := err.(interface{ Timeout() bool })
	return ok && timeout.Timeout()
}
