package mysql_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// State that one session leaves on its connection must not reach another one, even if views,
// functions, procedures and triggers make it, which a statement's text does not show.

var leakSetup = []string{
	"CREATE TABLE parent (id INT AUTO_INCREMENT PRIMARY KEY, who INT)",
	"CREATE TABLE n (i INT)", "INSERT INTO n VALUES (0)",
	"CREATE TABLE locked (i INT)", "CREATE TABLE varied (i INT)", "CREATE TABLE zoned (i INT)", "CREATE TABLE child (p BIGINT, i INT)",
	"CREATE TRIGGER t1 BEFORE INSERT ON locked FOR EACH ROW SET NEW.i = GET_LOCK(CONCAT(DATABASE(), '.trigger'), 0)",
	"CREATE TRIGGER t2 BEFORE INSERT ON varied FOR EACH ROW SET @leak = 'trigger'",
	"CREATE TRIGGER t3 BEFORE INSERT ON zoned FOR EACH ROW SET SESSION time_zone = '+09:00'",
	"CREATE TRIGGER t4 BEFORE INSERT ON child FOR EACH ROW SET NEW.p = LAST_INSERT_ID()",
	"CREATE FUNCTION ftz() RETURNS INT NO SQL BEGIN SET SESSION time_zone = '+08:00'; RETURN 1; END",
	"CREATE FUNCTION fmode() RETURNS INT NO SQL BEGIN SET sql_mode = 'ANSI_QUOTES', group_concat_max_len = 7; RETURN 1; END",
	"CREATE FUNCTION fvar() RETURNS INT NO SQL BEGIN SET @leak = 'function'; RETURN 1; END",
	"CREATE FUNCTION finto() RETURNS INT READS SQL DATA BEGIN SELECT i INTO @leak FROM n LIMIT 1; RETURN 1; END",
	"CREATE FUNCTION flock(name VARCHAR(64)) RETURNS INT NO SQL RETURN GET_LOCK(CONCAT(DATABASE(), '.', name), 0)",
	"CREATE FUNCTION flast() RETURNS BIGINT NO SQL RETURN LAST_INSERT_ID()",
	"CREATE FUNCTION fsetlast() RETURNS BIGINT NO SQL RETURN LAST_INSERT_ID(4711)",
	"CREATE FUNCTION ftemp() RETURNS INT MODIFIES SQL DATA BEGIN CREATE TEMPORARY TABLE IF NOT EXISTS leaktemp (i INT); RETURN 1; END",
	"CREATE FUNCTION fnested() RETURNS INT NO SQL RETURN flock('nested')",
	"CREATE FUNCTION fclean(a INT) RETURNS INT NO SQL RETURN a + 1",
	"CREATE VIEW vtz AS SELECT ftz() AS z", "CREATE VIEW vmode AS SELECT fmode() AS z", "CREATE VIEW vvar AS SELECT fvar() AS z",
	"CREATE VIEW vinto AS SELECT finto() AS z", "CREATE VIEW vlock AS SELECT flock('view') AS z", "CREATE VIEW vlast AS SELECT LAST_INSERT_ID() AS z",
	"CREATE VIEW vlast2 AS SELECT flast() AS z", "CREATE VIEW vsetlast AS SELECT fsetlast() AS z", "CREATE VIEW vtemp AS SELECT ftemp() AS z",
	"CREATE VIEW vnested AS SELECT z + fnested() AS y FROM vlast", "CREATE VIEW vclean AS SELECT fclean(i) AS z FROM n",
	"CREATE PROCEDURE plock() BEGIN DO GET_LOCK(CONCAT(DATABASE(), '.procedure'), 0); END",
	"CREATE PROCEDURE ptemp() BEGIN CREATE TEMPORARY TABLE leaktemp (i INT); END",
	"CREATE PROCEDURE pprepare() BEGIN PREPARE leakq FROM 'SELECT 1'; END",
	"CREATE PROCEDURE pset() BEGIN SET time_zone = '+07:00'; SET foreign_key_checks = 0; SET autocommit = 0; END",
	"CREATE PROCEDURE pnext() BEGIN SET TRANSACTION READ ONLY; END",
	"CREATE PROCEDURE pnames() BEGIN SET NAMES latin1; END",
	"CREATE PROCEDURE ptrack() BEGIN SET SESSION session_track_system_variables = ''; SET time_zone = '+06:00'; END",
	"CREATE PROCEDURE pdynamic() BEGIN SET @q = CONCAT('DO GET_LOCK(''', DATABASE(), '.dynamic'', 0)'); PREPARE d FROM @q; EXECUTE d; DEALLOCATE PREPARE d; SET @q = NULL; END",
	"CREATE PROCEDURE pxa() BEGIN XA START 'leak'; XA END 'leak'; XA ROLLBACK 'leak'; END",
	"CREATE PROCEDURE pcall() BEGIN CALL plock(); END",
}

// roads are statements that leave state in a session.
var roads = []string{
	"SELECT z FROM vtz", "SELECT z FROM vmode", "SELECT z FROM vvar", "SELECT z FROM vinto", "SELECT z FROM vlock", "SELECT z FROM vsetlast",
	"SELECT z FROM vtemp", "SELECT y FROM vnested", "SELECT ftz()", "SELECT flock('text')", "SELECT i FROM n WHERE i < fvar() - 2", "SELECT ftz(), no_such_function()",
	"SELECT z, (SELECT 1 UNION SELECT 2) FROM vtz", "INSERT INTO locked VALUES (0)", "INSERT INTO varied VALUES (0)", "INSERT INTO zoned VALUES (0)",
	"/* batch */ INSERT INTO varied (i) VALUES (0)", "/* batch */ INSERT INTO locked (i) VALUES (0)", "/* batch */ INSERT INTO zoned (i) VALUES (0)",
	"CALL plock()", "CALL ptemp()", "CALL pprepare()", "CALL pset()", "CALL pnext()", "CALL pnames()", "CALL ptrack()", "CALL pdynamic()", "CALL pxa()", "CALL pcall()",
	"SET @leak = 'text'", "SELECT @leak := 'select'", "SET time_zone = '+05:00'", "SET SESSION sql_mode = ''", "SET autocommit = 0", "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE",
	"SET TRANSACTION READ ONLY", "CREATE TEMPORARY TABLE leaktemp (i INT)", "PREPARE leakq FROM 'SELECT 1'", "DO GET_LOCK(CONCAT(DATABASE(), '.do'), 0)",
	"EXECUTE IMMEDIATE 'SELECT flock(''immediate'')'", "SET NAMES latin1", "HANDLER n OPEN AS leakh", "SET LAST_INSERT_ID = 99", "SET SESSION session_track_schema = 0",
	"SET foreign_key_checks = 0", "LOCK TABLES n READ", "SET character_set_results = NULL", "BEGIN", "SET insert_id = 40000000", "SET timestamp = 1", "SET ROLE NONE",
	"SET @@time_zone = '+05:00'", "SET @@sql_mode = 'ANSI_QUOTES'", "SET @@insert_id = 40000000", "SET @@timestamp = 1", "SET @@last_insert_id = 77",
	"SET unique_checks = 0", "SET foreign_key_checks = 0, unique_checks = 0", "SET sql_log_bin = 0", "SET @@sql_log_bin = 0, time_zone = '+05:00'", "SET timestamp = DEFAULT",
	"SET @@character_set_client = latin1, @@collation_connection = latin1_bin", "SET SESSION unique_checks = 0, @@foreign_key_checks = 0",
	"EXECUTE IMMEDIATE 'SET @@time_zone = ''+05:00'''", "EXECUTE IMMEDIATE 'SET unique_checks = 0'", "SET STATEMENT max_statement_time = 9 FOR SET @@time_zone = '+05:00'",
	"BEGIN NOT ATOMIC SET @@time_zone = '+05:00'; END", "CALL pbare()", "CALL pflags()", "SELECT z FROM vbare", "INSERT INTO parent (who) VALUES (4)", "SET sql_notes = 0",
	// Only for MySQL.
	"EXPLAIN FORMAT=JSON INTO @leak SELECT 1", "TABLE n INTO @leak", "VALUES ROW(1) INTO @leak", "SELECT /*+ SET_VAR(time_zone = '+05:00') */ flock('text')",
}

var lockNames = []string{"trigger", "view", "nested", "text", "procedure", "dynamic", "do", "immediate"}

// seen is a query for the state of a session's connection.
const seen = "SELECT CONCAT_WS('|', @@time_zone, @@sql_mode, @@autocommit, @@tx_isolation, @@foreign_key_checks, @@group_concat_max_len, @@character_set_client, " +
	"COALESCE(@@character_set_results, 'NULL'), @@collation_connection, @@insert_id, @@timestamp > 2, @@unique_checks, @@sql_log_bin, @@sql_notes, DATABASE(), COALESCE(@leak, 'none'))"

// seenOn returns seen for a server, because MySQL's variable has another name.
func seenOn(server *lab.MySQL) string {
	if isMariaDB(server) {
		return seen
	}
	return strings.ReplaceAll(seen, "tx_isolation", "transaction_isolation")
}

// A leakLook is a session that looks for the state of others.
type leakLook struct {
	*wire
	db   string
	seen string
	base string
}

// look fails the test if the session sees state that is not its own.
func (l *leakLook) look(t *testing.T, after []string) {
	t.Helper()
	id := l.must("INSERT INTO parent (who) VALUES (1)").LastInsertID
	if got := l.one("SELECT z FROM vlast2"); got != fmt.Sprint(id) {
		t.Fatalf("after %q: another session's LAST_INSERT_ID() is %s, not its own %d", after, got, id)
	}
	if got := strings.ReplaceAll(l.one(l.seen), l.db, "{db}"); got != l.base {
		t.Fatalf("after %q another session sees\n  %s\n  instead of\n  %s", after, got, l.base)
	}
	for _, sql := range []string{"SELECT i FROM leaktemp", "EXECUTE leakq", "HANDLER leakh READ FIRST"} {
		if _, err := l.Query(ctxFor(t), sql); err == nil {
			t.Fatalf("after %q another session can run %s", after, sql)
		}
	}
	for _, name := range lockNames {
		if got := l.one("SELECT RELEASE_LOCK('" + l.db + "." + name + "')"); got == "1" {
			t.Fatalf("after %q another session holds lock %s", after, name)
		}
	}
	l.must("BEGIN")
	l.must("INSERT INTO parent (who) VALUES (2)")
	l.must("COMMIT")
}

// TestNothingLeaks leaves state by every road, alone and in pairs, while others read and write,
// and looks for it from another session. WEIR_LEAK_DURATION=8h makes it run that long.
func TestNothingLeaks(t *testing.T) {
	t.Parallel()
	testkit.Long(t, "plants state by every pair of roads")
	nothingLeaks(t, server(t), roads)
}

func nothingLeaks(t *testing.T, server *lab.MySQL, roads []string) {
	long, _ := time.ParseDuration(os.Getenv("WEIR_LEAK_DURATION"))
	sqlOn(t, server, "SET GLOBAL log_bin_trust_function_creators = 1")
	for _, class := range []struct {
		name string
		caps mywire.Caps
	}{{"told in results", mywire.CapDeprecateEOF}, {"not told in results", 0}} {
		t.Run(class.name, func(t *testing.T) {
			t.Parallel()
			db := databaseOn(t, server, leakSetup...)
			w := startFor(t, server, db, func(c *mysql.Config) { c.PoolSize = 4 })
			as := func(cfg *mywire.ConnectConfig) { cfg.Caps |= class.caps }
			unixZero := directTo(t, server, db).one("SELECT FROM_UNIXTIME(60)")
			stop, beside := make(chan struct{}), sync.WaitGroup{}
			defer beside.Wait()
			defer close(stop)
			for range 3 {
				c := w.dial(as)
				beside.Go(func() {
					for n := 0; ; n++ {
						select {
						case <-stop:
							return
						case <-time.After(time.Millisecond):
						}
						c.patient()
						if rows, err := c.Query(ctxFor(t), "SELECT FROM_UNIXTIME(i + 60), i FROM n"); err != nil || rows[0][0].String != unixZero {
							t.Errorf("beside: %v, %v", rows, err)
							return
						}
						if _, err := c.Exec(ctxFor(t), "/* batch */ INSERT INTO parent (who) VALUES (3)"); err != nil {
							t.Errorf("beside: %v", err)
							return
						}
					}
				})
			}
			looker := &leakLook{wire: w.dial(as), db: db, seen: seenOn(server)}
			looker.base = strings.ReplaceAll(directTo(t, server, db).one(looker.seen), db, "{db}")
			looker.look(t, nil)
			rnd := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
			ended := time.Now().Add(long)
			for round := 0; round < len(roads) || time.Now().Before(ended); round++ {
				plants := []string{roads[round%len(roads)]}
				if round >= len(roads) {
					plants = append(plants, roads[rnd.IntN(len(roads))])
				}
				if !plantAndLook(t, server, w, as, looker, plants) {
					return
				}
				if round%97 == 96 {
					t.Logf("%d rounds", round+1)
				}
			}
		})
	}
}

// plantAndLook leaves state in one session, which must see it as on a direct connection, and
// looks for it from another session, while the first one exists and after it has left.
func plantAndLook(t *testing.T, server *lab.MySQL, w *weir, as func(*mywire.ConnectConfig), looker *leakLook, plants []string) bool {
	t.Helper()
	looker.patient()
	planter, direct := w.dial(as), directTo(t, server, looker.db)
	for _, plant := range plants {
		if strings.Contains(plant, "GET_LOCK") || strings.Contains(plant, "lock") || strings.Contains(plant, "nested") || strings.Contains(plant, "xa") || strings.Contains(plant, "dynamic") {
			_, _ = planter.Query(ctxFor(t), plant) // only one session at a time can have it
			continue
		}
		// The number that was chosen is free again for the next INSERT.
		free := func() {
			if strings.HasPrefix(plant, "INSERT INTO parent") {
				looker.must("DELETE FROM parent WHERE id = 40000000")
			}
		}
		free()
		_, want := direct.Query(ctxFor(t), plant)
		free()
		if _, got := planter.Query(ctxFor(t), plant); code(got) != code(want) {
			t.Errorf("%q: %s is answered with %v, directly with %v", plants, plant, got, want)
			return false
		}
		a, errA := planter.Query(ctxFor(t), looker.seen)
		b, errB := direct.Query(ctxFor(t), looker.seen)
		if code(errA) != code(errB) || errA == nil && a[0][0] != b[0][0] {
			t.Errorf("after %q the session sees %v (%v), directly %v (%v)", plants, a, errA, b, errB)
			return false
		}
	}
	_ = direct.Close()
	looker.look(t, plants)
	_ = planter.Close()
	looker.look(t, plants)
	return !t.Failed()
}

// TestFlushedTablesAreUnlocked checks that a lock on all tables that a procedure takes belongs
// to its session, and ends with it.
func TestFlushedTablesAreUnlocked(t *testing.T) {
	t.Parallel()
	own := logging(t) // the lock is on the whole server
	db := databaseOn(t, own, "CREATE TABLE n (i INT)", "CREATE PROCEDURE pflush() BEGIN FLUSH TABLES WITH READ LOCK; END")
	w := startFor(t, own, db, twoBackends)
	holder, other := w.dial(nil), w.dial(nil)
	holder.must("CALL pflush()")
	if _, err := other.Exec(ctxFor(t), "UNLOCK TABLES"); err != nil {
		t.Fatal(err)
	}
	if _, err := holder.Exec(ctxFor(t), "INSERT INTO n VALUES (1)"); code(err) == 0 {
		t.Error("the session that has locked all tables for reading can write")
	}
	if err := holder.Close(); err != nil {
		t.Fatal(err)
	}
	other.must("INSERT INTO n VALUES (1)")
}

// TestCleanRoutinesShare checks that sessions that use harmless routines share connections.
func TestCleanRoutinesShare(t *testing.T) {
	t.Parallel()
	db := database(t, leakSetup...)
	w := start(t, db, nil)
	c := w.dial(func(cfg *mywire.ConnectConfig) { cfg.Caps |= mywire.CapDeprecateEOF })
	c.must("DO 1")
	for _, sql := range []string{"SELECT i FROM n", "SELECT z FROM vclean", "SELECT i AS vclean FROM n"} {
		// A statement that was slow runs alone until it has been fast for a while.
		before := w.pool().Reads
		eventually(t, sql+" runs beside others", func() bool { c.one(sql); return w.pool().Reads-before >= 10 })
	}
	if status := w.pool(); status.Pinned != 0 {
		t.Errorf("the session keeps its connection: %v", status.Pins)
	}
}

// TestSchemaChangedElsewhere checks that weir notices the effects of a view that is created on a
// direct connection, and of one that is created through weir.
func TestSchemaChangedElsewhere(t *testing.T) {
	t.Parallel()
	db := database(t, leakSetup...)
	w := start(t, db, func(c *mysql.Config) { c.PoolSize = 1 })
	a, b := w.dial(nil), w.dial(nil)
	a.one("SELECT i FROM n")
	a.must("CREATE VIEW late AS SELECT flast() AS z")
	id := a.must("INSERT INTO parent (who) VALUES (1)").LastInsertID
	b.must("INSERT INTO parent (who) VALUES (2)")
	if got := a.one("SELECT z FROM late"); got != fmt.Sprint(id) {
		t.Errorf("a new view has another session's id: %s, want %d", got, id)
	}
	sqlOn(t, server(t), "CREATE VIEW "+db+".later AS SELECT "+db+".flast() AS z")
	eventually(t, "the view of another connection is known", func() bool {
		id := a.must("INSERT INTO parent (who) VALUES (1)").LastInsertID
		b.must("INSERT INTO parent (who) VALUES (2)")
		return a.one("SELECT z FROM later") == fmt.Sprint(id)
	})
}

// TestIDsOutliveTheirConnection checks that weir asks a connection for a client's
// LAST_INSERT_ID() before it replaces it, if only that connection knows it.
func TestIDsOutliveTheirConnection(t *testing.T) {
	t.Parallel()
	db := database(t, leakSetup...)
	for _, ask := range []string{"SELECT LAST_INSERT_ID()", "SELECT z FROM vlast"} {
		w := start(t, db, twoBackends)
		c := w.dial(nil)
		eventually(t, "the catalogue is known", func() bool { c.one("SELECT i FROM n"); return w.pool().Backends == w.pool().Free })
		for range 3 {
			c.one("SELECT LAST_INSERT_ID(4711)")
			w.command("RECONNECT " + w.db)
			if got := c.one(ask); got != "4711" {
				t.Errorf("%s: %s, want 4711", ask, got)
			}
		}
	}
}

// The same holds if a connection with a current database is replaced by one without.
func TestIDsOutliveTheirDatabase(t *testing.T) {
	t.Parallel()
	db := database(t)
	w := start(t, db, func(c *mysql.Config) { c.PoolSize = 1 })
	none := func(c *mywire.ConnectConfig) { c.Database = "" }
	c, other := w.dial(none), w.dial(none)
	for range 3 {
		c.must("USE " + db)
		c.one("SELECT LAST_INSERT_ID(4711)")
		if got := other.one("SELECT DATABASE()"); got != "NULL" {
			t.Errorf("another client is in %s", got)
		}
		if got := c.one("SELECT LAST_INSERT_ID()"); got != "4711" {
			t.Errorf("%s, want 4711", got)
		}
	}
}

// A statement may set an id that weir does not know, and leave warnings or counts that the
// client asks for first: weir's query for the id must not overwrite them.
func TestUnknownIDIsAskedForLate(t *testing.T) {
	t.Parallel()
	db := database(t, leakSetup...)
	w := start(t, db, func(c *mysql.Config) { c.PoolSize = 1 })
	var c *wire
	ask := func() reply { return c.try(c.query("SELECT LAST_INSERT_ID()")) }
	id := 0
	eventually(t, "the id of a grouped write is unknown", func() bool {
		id++
		c = w.dial(nil)
		c.must(fmt.Sprintf("/* batch */ INSERT INTO parent (id, who) VALUES (%d, 1)", id))
		return ask().code() == mywire.ErrNotSupportedYet
	})
	for range 2 {
		c.must("DO LAST_INSERT_ID(4711) + 'x'")
		if got := c.try(c.query("SHOW WARNINGS")); !strings.Contains(got.text, "1292") {
			t.Errorf("its warnings: %s", got.text)
		}
		if got := ask(); !strings.Contains(got.text, "4711") {
			t.Errorf("the id: %s", got.text)
		}
	}
}

// When connections of a server that hangs are closed, weir does not wait for an id that only one
// of them knows: LAST_INSERT_ID() is then refused.
func TestHungServerTellsNoIDs(t *testing.T) {
	t.Parallel()
	relay := labtest.Relay(t, server(t).Addr())
	w := start(t, database(t), func(c *mysql.Config) { c.MySQL.Address = relay.Addr() })
	c := w.dial(nil)
	c.one("SELECT LAST_INSERT_ID(4711)")
	eventually(t, "nothing is under way", func() bool { return w.pool().Backends == w.pool().Free })
	relay.Stall()
	w.command("PAUSE " + w.db)
	relay.Heal()
	w.command("RESUME " + w.db)
	if r := c.try(c.query("SELECT LAST_INSERT_ID()")); r.code() != mywire.ErrNotSupportedYet {
		t.Errorf("%s, want error %d", r.text, mywire.ErrNotSupportedYet)
	}
}

// TestUnseenTriggers checks that for an account that may not see triggers, weir assumes that
// there may be any.
func TestUnseenTriggers(t *testing.T) {
	t.Parallel()
	db := database(t, leakSetup...)
	name, password := account(t)
	sqlOn(t, server(t), fmt.Sprintf("GRANT SELECT, INSERT, EXECUTE ON %s.* TO %s@'%%'", db, name))
	as := func(cfg *mywire.ConnectConfig) { cfg.User, cfg.Password = name, password }
	for _, trust := range [][]string{nil, {"*"}} {
		w := start(t, db, func(c *mysql.Config) {
			twoBackends(c)
			c.MySQL.User, c.MySQL.Password, c.TrustFunctions = name, password, trust
		})
		a, b := w.dial(as), w.dial(as)
		a.must("/* batch */ INSERT INTO locked (i) VALUES (0)")
		got := b.one("SELECT RELEASE_LOCK('" + db + ".trigger')")
		if trust == nil && got == "1" {
			t.Error("another session holds the lock that an unseen trigger took")
		}
		if pinned := w.poolOf(name).Pinned; trust == nil && pinned == 0 || trust != nil && pinned > 0 {
			t.Errorf("trusting %q: %d sessions keep their connection after a write", trust, pinned)
		}
		_ = a.Close()
		_ = b.Close()
	}
}

// TestSilentServer checks that each session has a connection of its own if the server accepts
// session tracking but reports nothing.
func TestSilentServer(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE n (i INT)", "INSERT INTO n VALUES (1)")
	w := start(t, db, func(c *mysql.Config) {
		twoBackends(c)
		c.MySQL.Address = silenced(t, server(t).Addr())
		c.Auth, c.Users = mysql.AuthTrust, []mysql.User{{Name: "root"}}
	})
	a, b := w.dial(nil), w.dial(nil)
	b.one("SELECT i FROM n")
	a.must("SET time_zone = '+09:00', foreign_key_checks = 0")
	for range 3 {
		if got := b.one("SELECT CONCAT(@@time_zone, @@foreign_key_checks = 0)"); got == "+09:001" {
			t.Error("another session has the settings")
		}
		if got := a.one("SELECT CONCAT(@@time_zone, @@foreign_key_checks = 0)"); got != "+09:001" {
			t.Errorf("the session has lost its settings: %s", got)
		}
	}
	if status := w.pool(); status.Pinned != 2 {
		t.Errorf("%d sessions keep their connection, want both", status.Pinned)
	}
}

// silenced starts a relay that tells the server that its client does not support session
// tracking.
func silenced(t *testing.T, to string) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	relay := func(conn net.Conn) {
		defer conn.Close()
		up, err := net.Dial("tcp", to)
		if err != nil {
			return
		}
		defer up.Close()
		go func() {
			defer up.Close()
			head := make([]byte, 8) // of the login: its packet header, then the capabilities
			if _, err := io.ReadFull(conn, head); err != nil {
				return
			}
			head[6] &^= byte(mywire.CapSessionTrack >> 16)
			if _, err := up.Write(head); err == nil {
				_, _ = io.Copy(up, conn)
			}
		}()
		_, _ = io.Copy(conn, up)
	}
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go relay(conn)
		}
	}()
	return ln.Addr().String()
}
