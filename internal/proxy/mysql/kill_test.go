package mysql_test

import (
	"bytes"
	"database/sql"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/proxy/proxytest"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// running is a statement under way.
type running struct {
	err  error
	rows [][]sql.NullString
	done chan struct{}
}

// begin runs a query in the background.
func (c *wire) begin(query string) *running {
	r := &running{done: make(chan struct{})}
	ctx := ctxFor(c.tb)
	go func() {
		defer close(r.done)
		r.rows, r.err = c.Query(ctx, query)
	}()
	return r
}

func (r *running) wait() error {
	<-r.done
	return r.err
}

func (c *wire) id() string { return fmt.Sprint(c.Greeting.ConnectionID) }

// onServer waits until the server runs so many statements like pattern in the
// test's own database: other tests may run the same.
func (w *weir) onServer(t *testing.T, pattern string, want int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d statements like %s run", want, pattern), func() bool {
		direct, err := mywire.Connect(ctxFor(t), mywire.ConnectConfig{Address: server(t).Addr(), User: "root", TLSMode: mywire.TLSDisabled})
		if err != nil {
			t.Fatal(err)
		}
		defer direct.Close()
		rows, err := direct.Query(ctxFor(t), "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE '"+pattern+"' AND IFNULL(db, '') = '"+w.db+"' AND id <> CONNECTION_ID()")
		if err != nil {
			t.Fatal(err)
		}
		return rows[0][0].String == fmt.Sprint(want)
	})
}

// sleeps is a statement that sleeps, with a mark. A SLEEP that is all that a statement selects
// is no error in MySQL when it is killed.
func sleeps(mark string) string {
	return "SELECT 1 FROM (SELECT 1 AS x) AS one WHERE SLEEP(600) /* " + mark + " */"
}

// killAll has the server carry out a KILL of all connections of an account.
func killAll(t *testing.T, what, account string) {
	t.Helper()
	if isMariaDB(server(t)) {
		sqlOn(t, server(t), "KILL "+what+" USER "+account)
		return
	}
	rows, err := direct(t, server(t), "").Query(ctxFor(t), "SELECT id FROM information_schema.processlist WHERE user = '"+account+"'")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		sqlOn(t, server(t), "KILL "+what+" "+r[0].String)
	}
}

func TestKillQueryEndsARunningStatement(t *testing.T) {
	t.Parallel()
	for _, inTx := range []bool{false, true} {
		w := start(t, database(t), nil)
		victim, killer := w.dial(nil), w.dial(nil)
		if inTx {
			victim.must("BEGIN")
		}
		r := victim.begin(sleeps(w.db))
		w.onServer(t, "%"+w.db+"%", 1)
		killer.must("KILL QUERY " + victim.id())
		if err := r.wait(); code(err) != mywire.ErrQueryInterrupted {
			t.Errorf("in transaction %v: %v, want 1317", inTx, err)
		}
		if got := victim.must("DO 0").Status&mywire.StatusInTrans != 0; got != inTx {
			t.Errorf("in transaction %v: %v after the KILL", inTx, got)
		}
		// Its connection is the victim's still, and nothing else is hit by it.
		for range 20 {
			if got := victim.one("SELECT 1") + killer.one("SELECT 2"); got != "12" {
				t.Errorf("after the KILL: %s", got)
			}
		}
		if n := w.snapshot().Cancels; n != 1 {
			t.Errorf("%d KILLs counted", n)
		}
	}
}

// After an error weir asks the server whether a transaction is left. A KILL that comes
// meanwhile is for the command behind that question.
func TestKillBehindAQuestionOfWeirs(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"KILL QUERY ", "KILL "} {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			var kills atomic.Int64 // that the server was sent
			asked, release := make(chan struct{}, 1), make(chan struct{})
			ping := mywire.AppendPing(nil)
			addr := proxytest.Gateway(t, server(t).Addr(), func(client, be net.Conn) {
				go func() {
					_, _ = io.Copy(client, be)
					_ = client.Close()
				}()
				go func() {
					defer be.Close()
					buf := make([]byte, 32<<10)
					for {
						n, err := client.Read(buf)
						if err != nil {
							return
						}
						if bytes.Contains(buf[:n], []byte("KILL ")) {
							kills.Add(1)
						}
						if bytes.HasPrefix(buf[:n], ping) {
							select {
							case asked <- struct{}{}:
							default:
							}
							<-release
						}
						if _, err := be.Write(buf[:n]); err != nil {
							return
						}
					}
				}()
			})
			w := start(t, database(t), func(c *mysql.Config) { c.MySQL.Address = addr })
			victim, killer := w.dial(nil), w.dial(nil)
			victim.must("BEGIN")
			if _, err := victim.Exec(ctxFor(t), "SELECT nothing"); err == nil {
				t.Fatal("an unknown column is selected")
			}
			<-asked
			victim.send(victim.query(sleeps(w.db)))
			heard := make(chan reply, 1)
			go func() {
				r, _ := victim.hear(mywire.ComQuery)
				heard <- r
			}()
			killed := make(chan error, 1)
			go func() {
				_, err := killer.Exec(ctxFor(t), verb+victim.id())
				killed <- err
			}()
			eventually(t, "the KILL is here", func() bool { return w.snapshot().Cancels == 1 })
			close(release)
			if err := <-killed; err != nil {
				t.Error(err)
			}
			if n := kills.Load(); n > 1 || n == 0 && verb != "KILL " { // which a connection that the server has lost by then does not need
				t.Errorf("the server was sent %d KILLs", n)
			}
			// One that comes before the server has begun with the statement is void, as directly.
			var r reply
			eventually(t, "it is killed", func() bool {
				if verb != "KILL " {
					killer.must(verb + victim.id())
				}
				select {
				case r = <-heard:
					return true
				default:
					return false
				}
			})
			if r.err == nil && r.lost == nil {
				t.Error("the victim's statement has run to its end")
			}
			w.onServer(t, "%"+w.db+"%", 0)
			if verb != "KILL " {
				if victim.must("DO 0").Status&mywire.StatusInTrans == 0 {
					t.Error("the KILL has ended the transaction")
				}
			}
		})
	}
}

func TestKillQueryOfWhatWaits(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE t (a int)"), func(c *mysql.Config) { c.PoolSize, c.ReadLanes = 1, -1 })
	holder, victim, killer := w.dial(nil), w.dial(nil), w.dial(nil)
	holder.must("BEGIN")
	r := victim.begin("INSERT INTO t VALUES (1)")
	eventually(t, "the victim waits", func() bool { return w.pool().Waiting == 1 })
	killer.must("KILL QUERY " + victim.id())
	if err := r.wait(); code(err) != mywire.ErrQueryInterrupted {
		t.Errorf("while it waited: %v, want 1317", err)
	}
	holder.must("COMMIT")
	if got := victim.one("SELECT COUNT(*) FROM t"); got != "0" {
		t.Errorf("%s rows of a statement that never ran", got)
	}
}

// Reads of several clients share one connection. A KILL that is meant for one of
// them is not felt by those behind it.
func TestKillQueryInASharedPipeline(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE t (a int PRIMARY KEY)", "INSERT INTO t VALUES (1)", "CREATE TABLE u (a int PRIMARY KEY)", "INSERT INTO u VALUES (2)"),
		func(c *mysql.Config) { c.PoolSize, c.ReadLanes = 2, 1 })
	victim, killer := w.dial(nil), w.dial(nil)
	others := make([]*wire, 8)
	for i := range others {
		others[i] = w.dial(nil)
	}
	const read, other = "SELECT a FROM t WHERE a = 1", "SELECT a FROM u WHERE a = 2"
	for before := w.pool().Reads; w.pool().Reads < before+2; {
		victim.one(read)
		others[0].one(other)
	}
	direct, err := mywire.Connect(ctxFor(t), mywire.ConnectConfig{Address: server(t).Addr(), User: "root", Database: w.db, TLSMode: mywire.TLSDisabled})
	if err != nil {
		t.Fatal(err)
	}
	defer direct.Close()
	for range 50 { // now and then the KILL comes before the server has begun with the read
		if _, err := direct.Exec(ctxFor(t), "LOCK TABLES t WRITE"); err != nil {
			t.Fatal(err)
		}
		r := victim.begin(read)
		w.onServer(t, "%"+read+"%", 1)
		var behind []*running
		for _, c := range others {
			behind = append(behind, c.begin(other))
		}
		killer.must("KILL QUERY " + victim.id())
		if err := r.wait(); code(err) != mywire.ErrQueryInterrupted {
			t.Errorf("victim: %v, want 1317", err)
		}
		for _, r := range behind {
			if err := r.wait(); err != nil || len(r.rows) != 1 || r.rows[0][0].String != "2" {
				t.Errorf("one of the others: %v, %v", r.rows, err)
			}
		}
		if _, err := direct.Exec(ctxFor(t), "UNLOCK TABLES"); err != nil {
			t.Fatal(err)
		}
		if got := victim.one(read); got != "1" {
			t.Errorf("victim afterwards: %s", got)
		}
	}
}

func TestKillConnection(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE t (a int)"), nil)
	killer := w.dial(nil)
	killed := uint16(mywire.ErrMariaConnectionKilled)
	if !isMariaDB(server(t)) {
		killed = mywire.ErrQueryInterrupted
	}
	gone := func(c *wire) {
		t.Helper()
		if _, payload, err := c.tryPacket(); err == nil && mywire.ErrorCode(payload) == killed {
			_, _, err = c.tryPacket()
			if err != io.EOF {
				t.Errorf("after the farewell: %v, want the end", err)
			}
		} else {
			t.Errorf("packet %x, %v; want an error %d", payload, err, killed)
		}
	}
	idle := w.dial(nil)
	killer.must("KILL " + idle.id())
	gone(idle)

	inTx := w.dial(nil)
	inTx.must("BEGIN")
	inTx.must("INSERT INTO t VALUES (1)")
	killer.must("KILL CONNECTION " + inTx.id())
	gone(inTx)
	eventually(t, "its transaction is rolled back", func() bool { return killer.one("SELECT COUNT(*) FROM t FOR UPDATE") == "0" })

	active := w.dial(nil)
	r := active.begin(fmt.Sprintf("SELECT SLEEP(600) /* %s */", w.db))
	w.onServer(t, "%"+w.db+"%", 1)
	killer.must("KILL " + active.id())
	if err := r.wait(); err == nil {
		t.Error("the statement of a killed connection ended well")
	}
	w.onServer(t, "%"+w.db+"%", 0)
	eventually(t, "one client is left", func() bool { return w.snapshot().Clients == 1 })

	if _, err := killer.Exec(ctxFor(t), "KILL "+killer.id()); code(err) != killed {
		t.Errorf("KILL of itself: %v", err)
	}
	eventually(t, "no client is left", func() bool { return w.snapshot().Clients == 0 })
}

func TestKillIsForOnesOwn(t *testing.T) {
	t.Parallel()
	w := start(t, "", nil)
	asBob := as(bob, bobPassword, mywire.TLSDisabled)
	root, one, two := w.dial(nil), w.dial(asBob), w.dial(asBob)
	for _, c := range []struct {
		by   *wire
		what string
		want uint16
	}{
		{one, "KILL QUERY " + root.id(), mywire.ErrKillDenied},
		{one, "KILL " + root.id(), mywire.ErrKillDenied},
		{one, "KILL 4000000000", mywire.ErrNoSuchThread},
		{one, "KILL QUERY " + one.id(), mywire.ErrQueryInterrupted},
		{one, "KILL QUERY " + two.id(), 0}, // idle
		{root, "KILL QUERY " + two.id(), 0},
		{root, "KILL 1999999999", mywire.ErrNoSuchThread}, // a number of the server's own
	} {
		if _, err := c.by.Exec(ctxFor(t), c.what); code(err) != c.want {
			t.Errorf("%s: %v, want %d", c.what, err, c.want)
		}
	}
	one.send(mywire.AppendProcessKill(nil, two.Greeting.ConnectionID))
	if _, payload := one.packet(); !mywire.IsOK(payload) {
		t.Errorf("COM_PROCESS_KILL: %x", payload)
	}
	for _, c := range []*wire{root, one} {
		if got := c.one("SELECT 1"); got != "1" {
			t.Errorf("a bystander: %s", got)
		}
	}
}

// Where weir cannot open a connection for a KILL, a free one carries it.
func TestKillWithoutASecret(t *testing.T) {
	t.Parallel()
	w := start(t, "", func(c *mysql.Config) { c.Auth = mysql.AuthRelay })
	own, password := account(t)
	login := as(own, password, mywire.TLSDisabled)
	victim, killer := w.dial(login), w.dial(login) // each brings a connection
	const mark = "kill without a secret"
	r := victim.begin(sleeps(mark))
	w.onServer(t, "%"+mark+"%", 1)
	// A connection is free only when weir has asked on it what it wants to know.
	eventually(t, "the other connection is free", func() bool { return w.poolOf(own).Free == 1 })
	killer.must("KILL QUERY " + victim.id())
	if err := r.wait(); code(err) != mywire.ErrQueryInterrupted {
		t.Errorf("victim: %v, want 1317", err)
	}
	// And where there is none, the killer hears of it.
	blocked := []*running{victim.begin(sleeps(mark))}
	w.onServer(t, "%"+mark+"%", 1)
	third := w.dial(login)
	eventually(t, "a third connection", func() bool { return third.one("SELECT 1") == "1" })
	holders := []*wire{killer, third}
	for _, c := range holders {
		c.must("BEGIN")
	}
	if _, err := killer.Exec(ctxFor(t), "KILL QUERY "+victim.id()); code(err) != mywire.ErrUnknown {
		t.Errorf("KILL without any connection for it: %v", err)
	}
	killAll(t, "QUERY", own)
	for _, r := range blocked {
		if err := r.wait(); code(err) != mywire.ErrQueryInterrupted {
			t.Errorf("victim: %v, want 1317", err)
		}
	}
}

// A KILL on a free connection sees who is there whatever settings a client has made on it.
func TestKillSeesAllConnections(t *testing.T) {
	t.Parallel()
	onFlavors(t, func(t *testing.T, server *lab.MySQL) {
		one, two := dialAt(t, server.Addr(), "", nil), dialAt(t, server.Addr(), "", nil)
		one.must("SET sql_select_limit = 1, character_set_results = ucs2")
		rows, err := one.Query(ctxFor(t), mysql.KillListSQL(two.Greeting.ConnectionID))
		if err != nil || len(rows) != 2 || !strings.Contains(rows[0][1].String+rows[1][1].String, ":") {
			t.Errorf("%v, %v; want two connections", rows, err)
		}
		for _, row := range rows {
			if id := row[0].String; id != one.id() && id != two.id() {
				t.Errorf("connection %q, want %s or %s", id, one.id(), two.id())
			}
		}
	})
}
