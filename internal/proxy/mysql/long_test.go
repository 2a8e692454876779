package mysql_test

import (
	"bytes"
	"fmt"
	"net"
	"strings"
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
		if ok := c.must("INSERT INTO t (a) VALUES (1)" + strings.Repeat(", (1)", 100000)); ok.AffectedRows != 100001 {
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
	// Who leaves meanwhile leaves nothing behind.
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

// What the names in such texts lead to is found beside the loop, too, also when the catalog
// was read again since a statement was prepared.
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
			eventually(t, "the catalog is read again", func() bool {
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
		if r := c.try(c.query("DO 0")); (r.lost != nil) != refused {
			t.Errorf("%.40s, and then: %v %v", sql, r.err, r.lost)
		}
	}
	if got := other.one("SELECT CONCAT(COUNT(*), ' ', MIN(a)) FROM u"); got != "2 1" {
		t.Errorf("there are %s", got)
	}
}

// A server may answer such a text, and close the connection, before it has all of it. What
// comes after that is not judged any more.
func TestTextsThatAreNotReadAndAreAnsweredEarly(t *testing.T) {
	t.Parallel()
	var early atomic.Bool
	addr := proxytest.Gateway(t, server(t).Addr(), func(client, be net.Conn) {
		answers := make(chan struct{}, 1)
		go func() {
			defer client.Close()
			buf := make([]byte, 32<<10)
			for {
				n, err := be.Read(buf)
				if err != nil {
					return
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
			buf := make([]byte, 32<<10)
			for {
				n, err := client.Read(buf)
				if err != nil {
					return
				}
				before := early.Load() && bytes.Contains(buf[:n], []byte("SET SESSION last_insert_id")) // weir's own
				if before {
					select {
					case <-answers:
					default:
					}
				}
				if _, err := be.Write(buf[:n]); err != nil {
					return
				}
				if before {
					<-answers
					_, _ = client.Write(mywire.AppendError(nil, 1, mywire.NewError(mywire.ErrPacketTooLarge, "too much")))
				}
			}
		}()
	})
	w := start(t, database(t, "CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY)", "CREATE TABLE u (a BIGINT, b LONGTEXT)"), func(c *mysql.Config) { c.MySQL.Address = addr })
	w.GatherAtMost(ctxFor(t), 1<<20)
	c, id := w.dial(nil), 0
	eventually(t, "an id of its own is given in a group", func() bool {
		before := w.pool().Grouped
		id++
		c.must(fmt.Sprintf("/* batch */ INSERT INTO t VALUES (%d)", id))
		return w.pool().Grouped > before
	})
	early.Store(true)
	msg := c.query("INSERT INTO u VALUES (0, '" + strings.Repeat("x", 3<<20) + "'), (LAST_INSERT_ID(), '')")
	c.send(msg[:2<<20])
	if r, _ := c.hear(mywire.ComQuery); r.code() != mywire.ErrPacketTooLarge {
		t.Fatalf("answered early: %v %v", r.err, r.lost)
	}
	c.send(msg[2<<20:])
	_, _ = c.hear(mywire.ComQuery) // whatever it is
	w.dial(nil).must("DO 0")       // weir is there
}

// What clients prepare and close again does not stay.
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
