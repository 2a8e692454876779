package mysql_test

import (
	"bytes"
	"fmt"
	"net"
	"strings"
	gosync "sync"
	"sync/atomic"
	"testing"

	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/proxy/proxytest"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// A text of many megabytes is read beside the loop, and means what it means directly:
// what it does to the session is noticed.
func TestLongTextsAreReadWhole(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, a INT)"), nil)
	c, other := w.dial(nil), w.dial(nil)
	pad := "/* " + strings.Repeat("x", 1<<20) + " */"
	for range 2 {
		if got := c.one("SELECT 7 " + pad); got != "7" {
			t.Errorf("read: %s", got)
		}
		if ok := c.must("INSERT INTO t (a) VALUES (1)" + strings.Repeat(", (1"+strings.Repeat(" ", 50)+")", 6000)); ok.AffectedRows != 6001 {
			t.Errorf("%d rows", ok.AffectedRows)
		}
		c.must("SET @v = 5 " + pad)
		c.must("BEGIN " + pad)
		c.must("UPDATE t SET a = 2 WHERE id = 1 " + pad)
		if got := other.one("SELECT COUNT(*) FROM t WHERE a = 2"); got != "0" {
			t.Errorf("%s rows seen of a transaction", got)
		}
		c.must("ROLLBACK " + pad)
		if got := c.one("SELECT @v"); got != "5" {
			t.Errorf("user variable: %s", got)
		}
		if _, err := c.Query(ctxFor(t), "SELECT FROM "+pad); code(err) != mywire.ErrSyntax {
			t.Errorf("nonsense: %v", err)
		}
	}
	if got := other.one("SELECT @v"); got != "NULL" {
		t.Errorf("the variable of another: %s", got)
	}
	// A client that leaves meanwhile leaves no trace.
	gone := w.dial(nil)
	gone.send(gone.query("SELECT 8 " + pad))
	_ = gone.Close()
	eventually(t, "it has gone", func() bool { return w.snapshot().Clients == 2 })
}

// So is one that is prepared.
func TestLongTextsArePrepared(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE t (a BIGINT)"), nil)
	c, other := w.dial(nil), w.dial(nil)
	pad := " /* " + strings.Repeat("x", 1<<20) + " */"
	run := func(sql string) reply {
		t.Helper()
		p := c.prepare(sql + pad)
		r := c.try(p.execute(7))
		if r.err != nil || r.lost != nil {
			t.Errorf("%s: %v %v", sql, r.err, r.lost)
		}
		c.send(mywire.AppendStmtClose(nil, p.id))
		return r
	}
	for range 2 {
		run("INSERT INTO t VALUES (?)")
		run("SET @v = ?")
		if got := c.one("SELECT CONCAT(@v, ' ', COUNT(*) > 0) FROM t WHERE a = 7"); got != "7 1" {
			t.Errorf("afterwards: %s", got)
		}
		if got := other.one("SELECT @v"); got != "NULL" {
			t.Errorf("the variable of another: %s", got)
		}
		c.must("PREPARE s FROM 'SET @v = 9" + pad + "'")
		c.must("EXECUTE s")
		if got := c.one("SELECT @v"); got != "9" {
			t.Errorf("afterwards: %s", got)
		}
		c.must("DEALLOCATE PREPARE s")
		c.send(mywire.AppendPrepare(nil, "SELECT FROM"+pad))
		if _, payload := c.packet(); mywire.IsOK(payload) {
			t.Error("nonsense is prepared")
		}
	}
	gone := w.dial(nil)
	gone.send(mywire.AppendPrepare(nil, "SELECT 8"+pad))
	_ = gone.Close()
	eventually(t, "it has gone", func() bool { return w.snapshot().Clients == 2 })
}

// Names in such texts are resolved beside the loop, too, also when the catalogue was read again
// since a statement was prepared.
func TestLongTextsAreJudgedAwayFromTheLoop(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE t (a BIGINT)", "CREATE TRIGGER sets BEFORE INSERT ON t FOR EACH ROW SET @v = NEW.a"), nil)
	pad := " /* " + strings.Repeat("x", 1<<20) + " */"
	watcher := w.dial(nil)
	for i := range 3 {
		c := w.dial(nil)
		p := c.prepare("INSERT INTO t VALUES (?)" + pad)
		for k := range 3 {
			if r := c.try(p.execute(int64(k))); r.err != nil || r.lost != nil {
				t.Fatalf("%v %v", r.err, r.lost)
			}
			if got := c.one("SELECT @v"); got != fmt.Sprint(k) {
				t.Errorf("the variable that the trigger has set is %s, want %d", got, k)
			}
			c.must("INSERT INTO t VALUES (10)" + pad)
			if got := c.one("SELECT @v"); got != "10" {
				t.Errorf("the variable that the trigger has set is %s, want 10", got)
			}
			watcher.must(fmt.Sprintf("CREATE VIEW v%d_%d AS SELECT 1", i, k))
			eventually(t, "the catalogue is read again", func() bool {
				before := w.pool().Reads
				watcher.one("SELECT a FROM t WHERE a < 0 UNION SELECT 1")
				return w.pool().Reads > before
			})
		}
		if got := watcher.one("SELECT @v"); got != "NULL" {
			t.Errorf("the variable of another: %s", got)
		}
		watcher = w.dial(nil)
		_ = c.Close()
	}
	if n := w.LongestRead(ctxFor(t)); n > 256<<10 {
		t.Errorf("a text of %d bytes was read on the loop", n)
	}
}

// A text that weir passes on unread may ask for an id that was not kept, wherever in it: it
// is refused, and ends the session, since the server has a part of it.
func TestTextsThatAreNotReadAskForNoLostID(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY)", "CREATE TABLE u (a BIGINT, b LONGTEXT)"), nil)
	w.GatherAtMost(ctxFor(t), 1<<20)
	other, id := w.dial(nil), 0
	pad := strings.Repeat("x", 3<<20)
	const before, between = "INSERT INTO u VALUES (0, '", "'), ("
	first := strings.Repeat("x", mywire.MaxPayload-len("?"+before+between+"LAST_IN"))
	for sql, refused := range map[string]bool{
		before + first + between + "LAST_INSERT_ID(), '')":                     true, // in two packets
		"INSERT INTO u VALUES (LAST_INSERT_ID(), '" + pad + "')":               true,
		"INSERT INTO u VALUES (0, '" + pad + "'), (Last_Insert_ID(), '')":      true,
		"INSERT INTO u VALUES (0, '" + pad + "'), (@@SESSION.identity, '')":    true,
		"INSERT INTO u VALUES (1, '" + pad + "'), (1, 'identity of a person')": false,
	} {
		c := w.dial(nil)
		eventually(t, "an id of its own is given in a group", func() bool {
			before := w.pool().Grouped
			id++
			c.must(fmt.Sprintf("/* batch */ INSERT INTO t VALUES (%d)", id))
			return w.pool().Grouped > before
		})
		r := c.try(c.query(sql))
		if refused && r.code() != mywire.ErrNotSupportedYet || !refused && (r.err != nil || r.lost != nil) {
			t.Errorf("%.40s: %v %v", sql, r.err, r.lost)
		}
		if refused && (!strings.Contains(r.text, "the session ends") || strings.Contains(r.text, "from now on")) {
			t.Errorf("%.40s: %q does not say what happens", sql, r.text)
		}
		if r := c.try(c.query("DO 0")); (r.lost != nil) != refused {
			t.Errorf("%.40s, and then: %v %v", sql, r.err, r.lost)
		}
	}
	if got := other.one("SELECT CONCAT(COUNT(*), ' ', MIN(a)) FROM u"); got != "2 1" {
		t.Errorf("there are %s", got)
	}
}

// answersEarly is a server in front of the tests', which answers the first command that
// holds the text with an error before it has all of it. What the other one says of it comes
// when another command does.
func answersEarly(t *testing.T, text, next string) (addr string) {
	var answered atomic.Bool
	return proxytest.Gateway(t, server(t).Addr(), func(client, be net.Conn) {
		answers, more := make(chan struct{}, 1), make(chan struct{})
		var holds atomic.Bool
		go func() {
			defer client.Close()
			buf := make([]byte, 32<<10)
			for {
				n, err := be.Read(buf)
				if err != nil {
					return
				}
				if holds.Load() {
					<-more
				}
				if _, err := client.Write(buf[:n]); err != nil {
					return
				}
				select {
				case answers <- struct{}{}:
				default:
				}
			}
		}()
		go func() {
			defer be.Close()
			goOn := gosync.OnceFunc(func() { close(more) })
			defer goOn()
			buf := make([]byte, 32<<10)
			var seen []byte
			for {
				n, err := client.Read(buf)
				if err != nil {
					return
				}
				// A text may come in two reads.
				seen = append(seen[max(0, len(seen)-max(len(text), len(next))):], buf[:n]...)
				now := bytes.Contains(seen, []byte(text)) && answered.CompareAndSwap(false, true)
				behind := now && bytes.Contains(buf[:n], []byte("SET SESSION last_insert_id")) // weir's own, which is answered first
				select {
				case <-answers:
				default:
				}
				if _, err := be.Write(buf[:n]); err != nil {
					return
				}
				if behind {
					<-answers
				}
				if now {
					holds.Store(true)
					_, _ = client.Write(mywire.AppendError(nil, 1, mywire.NewError(mywire.ErrPacketTooLarge, "too much")))
				}
				if bytes.Contains(seen, []byte(next)) {
					goOn()
				}
			}
		}()
	})
}

// A server may answer such a text before it has all of it. The session is over then, and
// what comes of the text is not judged any more.
func TestTextsThatAreNotReadAndAreAnsweredEarly(t *testing.T) {
	t.Parallel()
	addr := answersEarly(t, "INSERT INTO u", "DO 0")
	w := start(t, database(t, "CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY)", "CREATE TABLE u (a BIGINT, b LONGTEXT)"), func(c *mysql.Config) { c.MySQL.Address = addr })
	w.GatherAtMost(ctxFor(t), 1<<20)
	c, id := w.dial(nil), 0
	eventually(t, "an id of its own is given in a group", func() bool {
		before := w.pool().Grouped
		id++
		c.must(fmt.Sprintf("/* batch */ INSERT INTO t VALUES (%d)", id))
		return w.pool().Grouped > before
	})
	msg := c.query("INSERT INTO u VALUES (0, '" + strings.Repeat("x", 3<<20) + "'), (LAST_INSERT_ID(), '')")
	c.send(msg[:32<<10])
	if r, _ := c.hear(mywire.ComQuery); r.code() != mywire.ErrPacketTooLarge {
		t.Fatalf("answered early: %v %v", r.err, r.lost)
	}
	_, _ = c.Conn.Write(msg[32<<10:]) // unless weir has closed it
	if r, _ := c.hear(mywire.ComQuery); r.lost == nil {
		t.Errorf("answered again: %q %v", r.text, r.err)
	}
	w.dial(nil).must("DO 0") // weir is there
}

// The server's answer to the rest is not taken for that of the next command.
func TestExecutionsThatAreAnsweredEarly(t *testing.T) {
	t.Parallel()
	const early, next = "answered early", "SELECT 7 * 6"
	addr := answersEarly(t, early, next)
	w := start(t, database(t, "CREATE TABLE u (b LONGTEXT)"), func(c *mysql.Config) { c.MySQL.Address = addr })
	w.GatherAtMost(ctxFor(t), 1<<20)
	c := w.dial(nil)
	p := c.prepare("INSERT INTO u VALUES (?)")
	value := mywire.AppendLenencString(nil, early+strings.Repeat("x", 3<<20))
	msg := mywire.AppendExecute(nil, c.Caps, p.id, 0, []byte{0}, []byte{253, 0}, value)
	c.send(msg[:32<<10])
	if r, _ := c.hear(mywire.ComStmtExecute); r.code() != mywire.ErrPacketTooLarge {
		t.Fatalf("answered early: %v %v", r.err, r.lost)
	}
	_, _ = c.Conn.Write(msg[32<<10:]) // unless weir has closed it
	if r := c.try(c.query(next)); r.lost == nil {
		t.Errorf("what comes next is answered with %q %v", r.text, r.err)
	}
	if got := w.dial(nil).one(next); got != "42" {
		t.Errorf("another client gets %s", got)
	}
}

// Statements that clients prepare and close do not accumulate.
func TestPreparedTextsAreBounded(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), nil)
	c := w.dial(nil)
	pad := strings.Repeat("x", 60000)
	for i := range 1000 {
		p := c.prepare(fmt.Sprintf("SELECT %d + ? /* %s */", i, pad))
		if i%100 == 0 {
			if r := c.try(p.execute(1)); r.err != nil || r.lost != nil {
				t.Fatal(r.err, r.lost)
			}
		}
		c.send(mywire.AppendStmtClose(nil, p.id))
	}
	if kept := w.TextBytes(ctxFor(t)); kept > 40<<20 {
		t.Errorf("%d bytes of texts are kept", kept)
	}
}

// A KILL QUERY that comes while a long text is read ends the statement.
func TestKillQueryOfALongText(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), nil)
	c, killer := w.dial(nil), w.dial(nil)
	text := "SELECT SLEEP(100000)" + strings.Repeat("/**/", 3<<20)
	before := w.Scans(ctxFor(t))
	c.send(c.query(text))
	eventually(t, "the text is being read", func() bool { return w.Scans(ctxFor(t)) > before })
	killer.must("KILL QUERY " + c.id())
	if r, _ := c.hear(mywire.ComQuery); r.code() != mywire.ErrQueryInterrupted {
		t.Errorf("the answer is %v, %v; want error %d", r.err, r.lost, mywire.ErrQueryInterrupted)
	}
	if got := c.one("SELECT 1"); got != "1" {
		t.Errorf("afterwards: %s", got)
	}
}

// A KILL QUERY that comes while a long text is read hits nothing that comes after it, where
// the connection is lost meanwhile and the statement ends otherwise.
func TestKillQueryOfALongTextIsForNothingElse(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), func(c *mysql.Config) { c.PoolSize = 1 })
	root := dialAt(t, server(t).Addr(), w.db, nil)
	c, other, killer := w.dial(nil), w.dial(nil), w.dial(nil)
	before := w.Scans(ctxFor(t))
	c.send(c.query("SELECT SLEEP(100000)" + strings.Repeat("/**/", 3<<20)))
	eventually(t, "the text is being read", func() bool { return w.Scans(ctxFor(t)) > before })
	takes := other.begin("SELECT GET_LOCK('" + w.db + "', 0)")
	eventually(t, "another one waits", func() bool { return w.pool().Waiting > 0 })
	killer.must("KILL QUERY " + c.id())
	for _, id := range w.backends(root) {
		root.try(root.query("KILL " + id))
	}
	_ = takes.wait() // it has the next connection, unless the text was read before
	killer.must("KILL QUERY " + c.id())
	if r, _ := c.hear(mywire.ComQuery); r.code() != mywire.ErrQueryInterrupted {
		t.Errorf("the answer is %v, %v; want error %d", r.err, r.lost, mywire.ErrQueryInterrupted)
	}
	_ = other.Close()
	c.must("SET @v = 1")
}
