package mysql_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// These tests are about faults around a session: clients that do not read, the order of answers,
// and backends that die or hold session state.

// query returns the COM_QUERY for a text.
func query(sql string) []byte { return mywire.AppendCommand(nil, mywire.ComQuery, sql) }

// direct opens a session on the server itself.
func direct(tb testing.TB, server *lab.MySQL, db string) *wire {
	tb.Helper()
	return speakerTo(tb, server.Addr(), db, nil).wire
}

// A client that does not read its answers delays no other client, neither meanwhile nor when its
// backends are used again.
func TestClientThatDoesNotReadHoldsUpNobody(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 50000)
	w := startFor(t, server(t), "", func(c *mysql.Config) {
		c.PoolSize, c.ReadLanes = 2, -1 // the client may keep one of them, in the middle of an answer
		c.MySQL = mute(t, func(c *mywire.Client, sql string) []byte {
			if strings.Contains(sql, "long") {
				return values(c, long)
			}
			return values(c, "short")
		})
	})
	slow, others := w.dial(nil), []*wire{w.dial(nil), w.dial(nil)}
	if err := slow.Conn.(*net.TCPConn).SetReadBuffer(16 << 10); err != nil {
		t.Fatal(err)
	}
	bystanders := func() {
		t.Helper()
		var all []*running
		for _, c := range others {
			all = append(all, c.begin("SELECT SLEEP(0)"))
		}
		for _, r := range all {
			if err := r.wait(); err != nil || r.rows[0][0].String != "short" {
				t.Fatalf("bystander: %v, %v", r.rows, err)
			}
		}
	}
	sent := 0
	for held := false; !held; sent++ {
		before := w.pool().Statements
		slow.send(query("SELECT SLEEP(0), 'long'"))
		held = true
		for range 50 { // answered soon, or only when the client reads
			bystanders()
			if before += 2; w.pool().Statements > before {
				held = false
				break
			}
		}
	}
	slow.send(bytes.Repeat(query("SELECT SLEEP(0), 'long'"), 100))
	bystanders()
	for i := range sent + 100 {
		var a mywire.Answer
		a.Reset(mywire.ComQuery, slow.Caps)
		for event := mywire.EventMore; event != mywire.EventDone; {
			seq, payload := slow.packet()
			var err error
			if _, event, err = a.Feed(mywire.AppendPacket(nil, seq, payload)); err != nil || a.Err() != nil {
				t.Fatalf("answer %d: %v, %v", i, err, a.Err())
			}
		}
	}
	bystanders()
}

// weir's own answers come after those of the client's statements in flight.
func TestOwnAnswersComeInOrder(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE t (a int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
	w := start(t, db, nil)
	const read = "SELECT a FROM t WHERE a = 1"
	warm := w.dial(nil)
	for before := w.pool().Reads; w.pool().Reads < before+1; {
		warm.one(read)
	}
	locker := direct(t, server(t), db)
	noThread := uint16(mywire.ErrNoSuchThread)
	if !isMariaDB(server(t)) {
		noThread = mywire.ErrUnknownCommand // of MySQL since 9
	}
	for _, c := range []struct {
		name string
		then []byte
		want uint16
	}{
		{"COM_PROCESS_KILL", mywire.AppendProcessKill(nil, 4000000000), noThread},
		{"an unknown command", mywire.AppendCommand(nil, 200, ""), mywire.ErrUnknownCommand},
		{"replication", mywire.AppendCommand(nil, mywire.ComBinlogDump, "1234567890"), mywire.ErrNotSupportedYet},
		{"an unknown statement", mywire.AppendExecute(nil, 0, 4711, 0, nil, nil), mywire.ErrUnknownStatement},
		{"an unknown statement's reset", mywire.AppendStmtReset(nil, 4711), mywire.ErrUnknownStatement},
		{"a message out of order", mywire.AppendHeader(nil, 0, 0), mywire.ErrMalformedPacket},
	} {
		client := w.dial(nil)
		locker.must("LOCK TABLES t WRITE")
		client.send(append(query(read), c.then...))
		w.onServer(t, "%"+read+"%", 1)
		locker.must("UNLOCK TABLES")
		var a mywire.Answer
		a.Reset(mywire.ComQuery, client.Caps)
		for event := mywire.EventMore; event != mywire.EventDone; {
			seq, payload := client.packet()
			var err error
			if _, event, err = a.Feed(mywire.AppendPacket(nil, seq, payload)); err != nil {
				t.Fatalf("%s behind a read: %v", c.name, err)
			}
		}
		if a.Err() != nil || a.Rows() != 1 {
			t.Errorf("%s behind a read: the read is answered with %v", c.name, a.Err())
		}
		if _, payload := client.packet(); mywire.ErrorCode(payload) != c.want {
			t.Errorf("%s behind a read: %x, want error %d", c.name, payload, c.want)
		}
	}
}

// A session that survives the loss of its backend does not wait for an id that only that backend
// knew.
func TestLastInsertIDOfALostBackend(t *testing.T) {
	t.Parallel()
	w := startFor(t, server(t), "", func(c *mysql.Config) {
		c.MySQL = mute(t, func(c *mywire.Client, sql string) []byte {
			switch {
			case strings.HasPrefix(sql, "INSERT"):
				return mywire.AppendError(nil, 1, mywire.NewError(mywire.ErrDuplicateKey, "Duplicate entry"))
			case strings.HasPrefix(sql, "SELECT SLEEP("):
				return nil
			}
			return values(c, "7")
		})
	})
	client := w.dial(nil)
	for _, c := range []*wire{w.dial(nil), client} { // the first makes weir look up the table
		if _, err := c.Exec(ctxFor(t), "INSERT INTO t (id, a) VALUES (100, 1)"); code(err) != mywire.ErrDuplicateKey {
			t.Fatal(err)
		}
	}
	if _, err := client.Query(ctxFor(t), "SELECT SLEEP(1)"); code(err) != mywire.ErrNetRead {
		t.Fatalf("the statement that ends the connection: %v", err)
	}
	if got, err := client.Query(ctxFor(t), "SELECT LAST_INSERT_ID()"); code(err) != mywire.ErrNotSupportedYet {
		t.Errorf("LAST_INSERT_ID(): %v, %v; want an error of weir's", got, err)
	}
	if got := client.one("SELECT SLEEP"); got != "7" {
		t.Error(got)
	}
}

// A statement that was prepared in a database that was dropped does not run in another one.
func TestPreparedInADatabaseThatIsGone(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE t (a int)")
	sqlOn(t, server(t), "CREATE DATABASE "+db+"_gone", "CREATE TABLE "+db+"_gone.t (a int)")
	w := start(t, db, func(c *mysql.Config) { c.PoolSize, c.ReadLanes = 2, -1 })
	client, one, two := w.speaker(nil), w.dial(nil), w.dial(nil)
	one.must("BEGIN")
	client.must("USE " + db + "_gone")
	_, p := client.told(mywire.ComStmtPrepare, mywire.AppendPrepare(nil, "INSERT INTO t VALUES (5)"))
	client.must("USE " + db)
	sqlOn(t, server(t), "DROP DATABASE "+db+"_gone")
	two.must("BEGIN")
	one.must("COMMIT") // now the other backend is the free one
	if got, _ := client.told(mywire.ComStmtExecute, mywire.AppendExecute(nil, 0, p.StmtID, 0, nil, nil)); !strings.HasPrefix(got, "ERROR ") {
		t.Errorf("executed: %s", got)
	}
	two.must("COMMIT")
	if got := two.one("SELECT COUNT(*) FROM t"); got != "0" {
		t.Errorf("%s rows in a table of the same name elsewhere", got)
	}
}

// A session that ends its own connection affects no other client's statement.
func TestReleaseIsForTheSessionAlone(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, set, end string }{
		{"COMMIT RELEASE", "DO 0", "COMMIT RELEASE"},
		{"ROLLBACK RELEASE", "DO 0", "ROLLBACK RELEASE"},
		{"completion_type", "SET completion_type = 'RELEASE'", "COMMIT"},
	} {
		w := start(t, database(t), func(c *mysql.Config) { c.PoolSize, c.ReadLanes = 1, -1 })
		first, second := w.dial(nil), w.dial(nil)
		first.must(c.set)
		first.must("BEGIN")
		r := second.begin("SELECT SLEEP(0)")
		eventually(t, "the second waits", func() bool { return w.pool().Waiting == 1 })
		first.must(c.end)
		if err := r.wait(); err != nil {
			t.Errorf("%s: the other's statement: %v", c.name, err)
		}
		if _, _, err := first.tryPacket(); err != io.EOF {
			t.Errorf("%s: %v, want the end of the connection", c.name, err)
		}
	}
}

// Locks that a transaction does not end stay with their session, and end with it.
func TestLocksEndWithTheirSession(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	server, err := lab.StartMariaDB(ctx, serverConfig())
	if lab.NotInstalled(err) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := server.Discard(ctx); err != nil {
			t.Error(err)
		}
	}()
	db := databaseOn(t, server, "CREATE TABLE t (a int)")
	for i, script := range [][]string{
		{"FLUSH TABLES WITH READ LOCK", "BEGIN", "COMMIT"},
		{"SELECT GET_LOCK('release_all_locks', 0)"},
		{"SELECT RELEASE_ALL_LOCKS(), GET_LOCK('named', 0)"},
		{"SELECT GET_LOCK('na' 'med', 0), GET_LOCK('other', 0)", "SELECT RELEASE_LOCK('other')"},
		{"SELECT GET_LOCK(/* get_lock('x') */ 'named', 0)", "SELECT RELEASE_LOCK('x')"},
	} {
		w := startFor(t, server, db, nil)
		client, root := w.dial(nil), direct(t, server, db)
		for _, sql := range script {
			if _, err := client.Query(ctxFor(t), sql); err != nil {
				t.Fatalf("%s: %v", sql, err)
			}
		}
		if err := client.Close(); err != nil {
			t.Fatal(err)
		}
		eventually(t, fmt.Sprintf("script %d: the locks are free", i), func() bool {
			if i == 0 {
				_, err := root.Exec(ctxFor(t), "SET STATEMENT lock_wait_timeout=1 FOR INSERT INTO t VALUES (1)")
				return err == nil
			}
			return root.one("SELECT IS_FREE_LOCK('release_all_locks') AND IS_FREE_LOCK('named')") == "1"
		})
		if err := w.stop(); err != nil {
			t.Error(err)
		}
	}
}

// A client that waits for a connection that weir cannot open gets an error in the end.
func TestWaitForAnUnreachableStateEnds(t *testing.T) {
	t.Parallel()
	db := database(t)
	w := start(t, "", func(c *mysql.Config) {
		c.PoolSize, c.QueueTimeout, c.ConnectPatience = 1, 200*time.Millisecond, 100*time.Millisecond
	})
	asBob := as(bob, bobPassword, mywire.TLSDisabled)
	one, two := w.dial(asBob), w.dial(asBob)
	eventually(t, "the one connection is in the database", func() bool { // for which a busy machine may take too long
		_, err := one.Exec(ctxFor(t), "USE "+db)
		return err == nil
	})
	for range 2 {
		if got, err := two.Query(ctxFor(t), "SELECT SLEEP(0)"); err != nil && code(err) == 0 {
			t.Fatalf("%v, %v; want an answer or an error", got, err)
		}
	}
}

// mute starts a server that answers weir's own queries itself and all others by calling answer.
// If that returns nil, it closes the connection.
func mute(t *testing.T, answer func(c *mywire.Client, sql string) []byte) mywire.ConnectConfig {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	serve := func(conn net.Conn, id uint32) {
		defer conn.Close()
		ctx := context.Background()
		c, err := mywire.Accept(ctx, conn, mywire.AcceptConfig{Version: "10.11.9-MariaDB", ConnectionID: id, TLSMode: mywire.TLSDisabled})
		if err != nil || c.Trust(ctx) != nil || c.Welcome(ctx, &mywire.OK{Status: mywire.StatusAutocommit}) != nil {
			return
		}
		for {
			payload, err := packetOf(c)
			if err != nil {
				return
			}
			out := hiddenAnswer(c, payload)
			if out == nil {
				out = answer(c, string(payload[1:]))
			}
			if out == nil {
				return
			}
			if _, err := c.Conn.Write(out); err != nil {
				return
			}
		}
	}
	go func() {
		for id := uint32(1); ; id++ {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go serve(conn, id)
		}
	}()
	return mywire.ConnectConfig{Address: ln.Addr().String(), User: "root", TLSMode: mywire.TLSDisabled}
}

// packetOf reads a command of one packet, or the first packet of a longer one.
func packetOf(c *mywire.Client) (payload []byte, err error) {
	var head [mywire.HeaderLen]byte
	if _, err := io.ReadFull(c.Conn, head[:]); err != nil {
		return nil, err
	}
	n, _, _ := mywire.Peek(head[:])
	payload = make([]byte, min(n, 8<<10))
	_, err = io.ReadFull(c.Conn, payload)
	return payload, err
}

// values returns a result of one row.
func values(c *mywire.Client, list ...string) []byte {
	row := make([][]byte, len(list))
	for i, v := range list {
		row[i] = []byte(v)
	}
	return mywire.AppendTextResult(nil, c.Caps, mywire.StatusAutocommit, list, [][][]byte{row})
}

// hiddenAnswer answers weir's own queries. It returns nil for others.
func hiddenAnswer(c *mywire.Client, payload []byte) []byte {
	sql := string(payload[1:])
	switch {
	case strings.HasPrefix(sql, "SET SESSION session_track_"):
		told := mywire.AppendChange(nil, mywire.Change{Kind: mywire.TrackSystemVariables, Name: []byte("session_track_system_variables"), Value: []byte("*")})
		return mywire.AppendOK(nil, 1, c.Caps, &mywire.OK{Status: mywire.StatusAutocommit | mywire.StatusSessionState, State: told})
	case strings.HasPrefix(sql, "SET STATEMENT "):
		return values(c, "1")
	case strings.HasPrefix(sql, "SELECT LOWER(VARIABLE_NAME)"):
		return values(c, "last_gtid")
	case strings.Contains(sql, "information_schema"), strings.HasPrefix(sql, "SHOW GLOBAL STATUS"):
		return mywire.AppendTextResult(nil, c.Caps, mywire.StatusAutocommit, []string{"a", "b", "c", "d"}, nil)
	case payload[0] == mywire.ComPing, strings.HasPrefix(sql, "SET SESSION "), strings.HasPrefix(sql, "DO "):
		return mywire.AppendOK(nil, 1, c.Caps, &mywire.OK{Status: mywire.StatusAutocommit})
	case strings.HasPrefix(sql, "SELECT @@auto_increment_increment"):
		return values(c, "1", "16777216", "1", "64", "")
	case strings.HasPrefix(sql, "SELECT @@wsrep_on"):
		return values(c, "0", "autocommit,time_zone", "OFF", "utf8mb4", "utf8mb4", "utf8mb4", "utf8mb4_general_ci", "STRICT_TRANS_TABLES", "SYSTEM", "1", "28800")
	}
	return nil
}

// While the server does not read a message, only that client waits. If the server then closes
// the connection, the client goes on.
func TestServerHangsUpOnALongMessage(t *testing.T) {
	t.Parallel()
	hangUp := make(chan struct{})
	w := startFor(t, server(t), "", func(c *mysql.Config) {
		c.Mode = "transaction" // the catalogue of this server cannot be read, and without it so long a text pins
		c.MySQL = mute(t, func(c *mywire.Client, sql string) []byte {
			if strings.Contains(sql, "xxx") {
				<-hangUp
				return nil
			}
			return values(c, "fine")
		})
	})
	client := w.dial(nil)
	if got := client.one("SELECT SLEEP(0)"); got != "fine" {
		t.Fatal(got)
	}
	message := query("SELECT SLEEP(0), '" + strings.Repeat("x", 12<<20) + "'")
	before, last := w.snapshot().Loops[0].BytesIn, uint64(0)
	client.send(message)
	eventually(t, "the message is under way", func() bool {
		n := w.snapshot().Loops[0].BytesIn - before
		still := n == last // answers to weir's own queries count, too
		last = n
		return still && n >= uint64(len(message))
	})
	close(hangUp)
	if _, payload := client.packet(); mywire.ErrorCode(payload) != mywire.ErrNetRead {
		t.Errorf("%x, want error 1158", payload)
	}
	if got := client.one("SELECT SLEEP(0)"); got != "fine" {
		t.Error(got)
	}
}

// Settings of a text that failed later belong to its client alone.
func TestSettingsOfAFailedText(t *testing.T) {
	t.Parallel()
	onFlavors(t, func(t *testing.T, server *lab.MySQL) {
		db := databaseOn(t, server, "CREATE TABLE t (a int PRIMARY KEY)",
			"CREATE PROCEDURE zone() BEGIN SET time_zone = '+09:00'; SIGNAL SQLSTATE '45000'; END",
			"CREATE PROCEDURE locks() BEGIN SET autocommit = 0; SIGNAL SQLSTATE '45000'; END",
			"CREATE PROCEDURE var() BEGIN SET @weir = 5; SIGNAL SQLSTATE '45000'; END",
			"CREATE PROCEDURE temp() BEGIN CREATE TEMPORARY TABLE t (b int); SIGNAL SQLSTATE '45000'; END",
			"CREATE FUNCTION func() RETURNS INT BEGIN SET time_zone = '+09:00'; SIGNAL SQLSTATE '45000'; RETURN 1; END")
		const state = "SELECT @@time_zone, @@autocommit, DATABASE(), @weir"
		for _, text := range []string{
			"CALL zone()", "CALL locks()", "CALL var()", "CALL temp()", "SELECT func()",
			"SET time_zone = '+09:00'; SELEKT", "SET autocommit = 0; SELEKT", "USE mysql; SELEKT", "BEGIN; SELEKT", "SET @weir = 6; SELEKT",
		} {
			w := startFor(t, server, db, func(c *mysql.Config) { c.PoolSize = 1 })
			multi := func(c *mywire.ConnectConfig) {
				c.Caps = mywire.WantedCaps | mywire.CapMultiStatements
			}
			through, past, other, fresh := w.speaker(multi), speakerTo(t, server.Addr(), db, multi), w.speaker(multi), speakerTo(t, server.Addr(), db, multi)
			for range 2 {
				if got, want := through.ask(text), past.ask(text); got != want {
					t.Errorf("%s: %s, direct %s", text, got, want)
				}
				for _, q := range []string{state, "SELECT * FROM " + db + ".t", state} {
					if got, want := through.ask(q), past.ask(q); got != want {
						t.Errorf("%s, then %s: %s, direct %s", text, q, got, want)
					}
				}
			}
			_ = through.Close() // gives back what it holds
			for _, q := range []string{state, "SELECT * FROM " + db + ".t"} {
				if got, want := other.ask(q), fresh.ask(q); got != want {
					t.Errorf("another client after %s: %s, direct %s", text, got, want)
				}
			}
		}
	})
}

// A bulk execution without types uses those of the same client's previous execution, not those
// of another client.
func TestTypesOfABulkExecution(t *testing.T) {
	t.Parallel()
	needsMariaDB(t, "bulk executions")
	const table = "CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, a BIGINT)"
	w := start(t, database(t, table), func(c *mysql.Config) { c.PoolSize, c.ReadLanes = 1, -1 })
	bulk := func(c *mywire.ConnectConfig) { c.Caps = mywire.WantedCaps | mywire.CapBulkOperations }
	direct := database(t, table)
	want, rows := bulksWithoutTypes(speakerTo(t, server(t).Addr(), direct, bulk), speakerTo(t, server(t).Addr(), direct, bulk))
	format := w.dial(nil).one("SELECT @@global.binlog_format")
	// A server that writes statements to its log takes no bulks.
	if format != "STATEMENT" && (rows != "1,2,3,4,5,6" || strings.Contains(want, "ERROR")) {
		t.Fatalf("directly, in format %s: %s, %s", format, rows, want)
	}
	if got, found := bulksWithoutTypes(w.speaker(bulk), w.speaker(bulk)); got != want || found != rows {
		t.Errorf("%s and rows %s, want %s and rows %s", got, found, want, rows)
	}
}

// bulksWithoutTypes lets two clients execute an INSERT in turns, in bulk and not, with types and
// without, and returns their answers and the numbers in the table.
func bulksWithoutTypes(one, two speaker) (told, rows string) {
	const insert = "INSERT INTO t (a) VALUES (?)"
	_, p := one.told(mywire.ComStmtPrepare, mywire.AppendPrepare(nil, insert))
	_, q := two.told(mywire.ComStmtPrepare, mywire.AppendPrepare(nil, insert))
	number := func(n byte) []byte { return []byte{0, n, 0, 0, 0} } // indicator, INT
	message := func(flags byte, types []byte, rows ...[]byte) []byte {
		payload := append([]byte{mywire.ComStmtBulkExecute, byte(p.StmtID), byte(p.StmtID >> 8), byte(p.StmtID >> 16), byte(p.StmtID >> 24), flags, 0}, types...)
		return mywire.AppendPacket(nil, 0, append(payload, bytes.Join(rows, nil)...))
	}
	var answers []string
	for _, c := range []struct {
		what    string
		by      speaker
		command byte
		message []byte
	}{
		{"with types", one, mywire.ComStmtBulkExecute, message(128, []byte{mywire.TypeLong, 0}, number(1), number(2))},
		{"of another client", two, mywire.ComStmtExecute, mywire.AppendExecute(nil, 0, q.StmtID, 0, []byte{0}, []byte{mywire.TypeVarString, 0}, []byte("\x013"))},
		{"without types", one, mywire.ComStmtBulkExecute, message(0, nil, number(4), number(5))},
		{"of one row", one, mywire.ComStmtExecute, mywire.AppendPacket(nil, 0, []byte{mywire.ComStmtExecute, byte(p.StmtID), 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 6, 0, 0, 0})},
	} {
		got, _ := c.by.told(c.command, c.message)
		answers = append(answers, c.what+": "+got)
	}
	return strings.Join(answers, "; "), two.one("SELECT GROUP_CONCAT(a ORDER BY id) FROM t")
}

// A statement that was prepared with autocommit on is prepared on another connection
// in the middle of a transaction with autocommit off, and does not end it.
func TestPreparingAnewEndsNoTransaction(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE t (a INT)"), func(c *mysql.Config) { c.PoolSize, c.ReadLanes = 2, -1 })
	c, first, second := w.dial(nil), w.dial(nil), w.dial(nil)
	first.must("BEGIN")
	insert := c.prepare("INSERT INTO t VALUES (?)")
	second.must("BEGIN") // on the connection that has the statement
	first.must("ROLLBACK")
	c.must("SET autocommit = 0")
	c.must("INSERT INTO t VALUES (1)")
	c.must("SET sql_mode = 'ANSI_QUOTES'") // so the text is read in other settings than these
	if r := c.try(insert.execute(2)); r.err != nil || r.lost != nil {
		t.Fatalf("%v %v", r.err, r.lost)
	}
	c.must("ROLLBACK")
	if got := c.one("SELECT COUNT(*) FROM t"); got != "0" {
		t.Errorf("%s rows outlive the rollback", got)
	}
}

// A trigger's user variables are those of the session that fired it.
func TestVariablesOfATrigger(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE t (a int)", "CREATE TRIGGER tr BEFORE INSERT ON t FOR EACH ROW SET @fired = COALESCE(@fired, 0) + 1")
	w := start(t, db, func(c *mysql.Config) { c.PoolSize = 1 })
	one, two := w.dial(nil), w.dial(nil)
	one.must("INSERT INTO t VALUES (1)")
	one.must("INSERT INTO t VALUES (2)")
	if got := one.one("SELECT @fired"); got != "2" {
		t.Errorf("the trigger's session: %s", got)
	}
	if err := one.Close(); err != nil {
		t.Fatal(err)
	}
	if got := two.one("SELECT @fired"); got != "NULL" {
		t.Errorf("another session: %s", got)
	}
}

// If only a connection of another class knows an id, weir asks it there; that connection serves
// one client at a time.
func TestLastInsertIDAcrossClasses(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE t (id int AUTO_INCREMENT PRIMARY KEY, a int)")
	w := start(t, db, func(c *mysql.Config) { c.PoolSize, c.ReadLanes = 1, -1 })
	client, one, two := w.speaker(nil), w.dial(nil), w.dial(nil)
	client.must("INSERT INTO t (a) VALUES (1)")
	client.must("INSERT INTO t (id, a) VALUES (100, 1)")
	// Within a transaction, or before what it did is judged, the option pins the session.
	eventually(t, "what it did is judged", func() bool { p := w.pool(); return p.Backends == p.Free })
	client.told(mywire.ComSetOption, mywire.AppendSetOption(nil, mywire.OptionMultiStatementsOff))
	if got := client.one("SELECT LAST_INSERT_ID()"); got != "1" {
		t.Errorf("LAST_INSERT_ID() is %s", got)
	}
	one.must("BEGIN")
	one.must("INSERT INTO t (a) VALUES (2)")
	r := two.begin("INSERT INTO t (a) VALUES (3)")
	eventually(t, "the other waits", func() bool {
		select {
		case <-r.done:
			return true
		default:
			return w.pool().Waiting == 1
		}
	})
	one.must("ROLLBACK")
	if err := r.wait(); err != nil {
		t.Error(err)
	}
	if got := one.one("SELECT COUNT(*) FROM t"); got != "3" {
		t.Errorf("%s rows", got)
	}
}

// A trigger in another database does not count for a table of the same name: no session keeps
// its connection because of it.
func TestTriggersOfAnotherDatabase(t *testing.T) {
	t.Parallel()
	owner := server(t)
	setup := []string{"CREATE TABLE same (a int)", "CREATE VIEW seen AS SELECT * FROM same"}
	db := database(t, setup...)
	other := database(t, append(setup, "CREATE TRIGGER tr BEFORE INSERT ON same FOR EACH ROW SET @fired = DATABASE()")...)
	w := start(t, db, func(c *mysql.Config) { c.PoolSize, c.ReadLanes = 1, -1 })
	writer, reader := w.dial(nil), w.dial(nil)
	for _, x := range []struct {
		statement string
		pins      bool
	}{
		{"INSERT INTO same VALUES (1)", false},
		{"INSERT INTO seen VALUES (1)", false},
		{"INSERT INTO " + other + ".same VALUES (1)", true},
		{"INSERT INTO " + other + ".seen VALUES (1)", true},
	} {
		writer := writer
		if x.pins {
			writer = w.dial(nil)
		}
		writer.must(x.statement)
		if x.pins {
			// The trigger set a user variable, so the session is pinned.
			if got := writer.one("SELECT @fired"); got != other {
				t.Errorf("%s: the variable is %s", x.statement, got)
			}
			if p := w.pool(); p.Free != 0 {
				t.Errorf("%s: the connection is free: %+v", x.statement, p)
			}
			_ = writer.Conn.Close()
		}
		if got := reader.one("SELECT @fired"); got != "NULL" {
			t.Errorf("%s: another session reads %s", x.statement, got)
		}
		reader.must("COMMIT")
	}
	// In the other database, the trigger counts.
	writer.must("USE " + other)
	writer.must("INSERT INTO same VALUES (1)")
	if got := direct(t, owner, other).one("SELECT COUNT(*) FROM same"); got != "3" {
		t.Errorf("%s rows", got)
	}
	if p := w.pool(); p.Free != 0 {
		t.Errorf("the connection is free: %+v", p)
	}
}

// A file that the server stops reading, or whose client leaves, affects no other client.
func TestLocalInfileThatEndsBadly(t *testing.T) {
	t.Parallel()
	owner := server(t)
	db := database(t, "CREATE TABLE t (a int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
	var before string
	root := direct(t, owner, db)
	if before = root.one("SELECT @@GLOBAL.local_infile"); before != "1" {
		root.must("SET GLOBAL local_infile = 1")
	}
	w := start(t, db, func(c *mysql.Config) { c.LocalInfile, c.PoolSize, c.ReadLanes = true, 1, -1 })
	local := func(c *mywire.ConnectConfig) { c.Caps = mywire.WantedCaps | mywire.CapLocalFiles }
	load := func(c *wire) {
		t.Helper()
		c.send(query("LOAD DATA LOCAL INFILE 'x' REPLACE INTO TABLE t"))
		if _, payload := c.packet(); len(payload) == 0 || payload[0] != 0xfb {
			t.Fatalf("asked for %x, want a file", payload)
		}
	}
	client, other := w.dial(local), w.dial(local)
	load(client) // a file that does not hold numbers
	line := append(mywire.AppendPacket(nil, 2, []byte("x\n")), mywire.AppendPacket(nil, 3, []byte("5\n"))...)
	client.send(append(line, mywire.AppendPacket(nil, 4, nil)...))
	if seq, payload := client.packet(); seq != 5 || mywire.ErrorCode(payload) == 0 {
		t.Errorf("answer %d %x, want an error with number 5", seq, payload)
	}
	load(client) // more packets than numbers, each of which could be taken for a command
	var file []byte
	seq := byte(2)
	for i := range 600 {
		file = append(file, mywire.AppendPacket(nil, seq, fmt.Appendf(nil, "%d\n", 1000+i))...)
		seq++
	}
	client.send(append(file, mywire.AppendPacket(nil, seq, nil)...))
	if got, payload := client.packet(); got != seq+1 || !mywire.IsOK(payload) {
		t.Errorf("answer %d %x, want an OK with number %d", got, payload, seq+1)
	}
	if got := client.one("SELECT COUNT(*) FROM t") + " " + other.one("SELECT COUNT(*) FROM t"); got != "601 601" {
		t.Error(got)
	}
	load(client)
	client.send(mywire.AppendPacket(nil, 2, []byte("7\n")))
	r := other.begin("SELECT COUNT(*) FROM t")
	eventually(t, "another waits", func() bool { return w.pool().Waiting == 1 })
	if err := client.Conn.Close(); err != nil {
		t.Fatal(err)
	}
	if err := r.wait(); err != nil {
		t.Errorf("another client: %v", err)
	}
}
