package mysql_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// pinCases are sessions that need one connection, in databases as of stateSetup.
var pinCases = []struct {
	name, cause string
	enter       []string
	probe, want string   // want is a prefix of what the session is told
	alien       string   // what no other client may be told; "" where others cannot ask
	leave       []string // none: the pin lasts as long as the session
	only        lab.Flavor
}{
	{"temporary table", "temp", []string{"CREATE TEMPORARY TABLE tt (x INT)", "INSERT INTO tt VALUES (7)"}, "SELECT x FROM tt", "7", "7", nil, ""},
	{"user variable", "user_variable", []string{"SET @mine = 'v'"}, "SELECT @mine", "v", "v", nil, ""},
	{"user variable in a SELECT", "user_variable", []string{"SELECT @mine := 'w'"}, "SELECT @mine", "w", "w", nil, ""},
	{"user variable by INTO", "user_variable", []string{"SELECT 'x' INTO @mine"}, "SELECT @mine", "x", "x", nil, ""},
	{"user variable by OUT", "user_variable", []string{"CALL takes_out(@mine)"}, "SELECT @mine", "77", "77", nil, ""},
	{"named lock", "get_lock", []string{"SELECT GET_LOCK('{db}.l', 0)"}, "SELECT IS_FREE_LOCK('{db}.l')", "0", "", []string{"SELECT RELEASE_LOCK('{db}.l')"}, ""},
	{"two named locks", "get_lock", []string{"SELECT GET_LOCK('{db}.l', 0)", "SELECT GET_LOCK('{db}.m', 0)", "SELECT RELEASE_LOCK('{db}.m')"}, "SELECT IS_FREE_LOCK('{db}.l')", "0", "", []string{"SELECT RELEASE_LOCK('{db}.l')"}, ""},
	{"named locks, all released", "get_lock", []string{"SELECT GET_LOCK(CONCAT('{db}', '.l'), 0)"}, "SELECT IS_FREE_LOCK('{db}.l')", "0", "", []string{"SELECT RELEASE_ALL_LOCKS()"}, ""},
	{"locked tables", "table_lock", []string{"LOCK TABLES t READ"}, "INSERT INTO t (v) VALUES ('no')", "ERROR 1099", "", []string{"UNLOCK TABLES"}, ""},
	{"locked tables, left by BEGIN", "table_lock", []string{"LOCK TABLES t READ"}, "INSERT INTO t (v) VALUES ('no')", "ERROR 1099", "", []string{"BEGIN", "COMMIT"}, ""},
	{"prepared by SQL", "prepare", []string{"PREPARE p FROM 'SELECT 8'"}, "EXECUTE p", "8", "8", []string{"DEALLOCATE PREPARE p"}, ""},
	{"prepared by SQL, twice", "prepare", []string{"PREPARE p FROM 'SELECT 8'", "PREPARE q FROM 'SELECT 9'", "DEALLOCATE PREPARE q"}, "EXECUTE p", "8", "8", []string{"DROP PREPARE P"}, ""},
	{"prepared by SQL, in a text of several", "prepare", []string{"SELECT 1; PREPARE p FROM 'SELECT 8'", "PREPARE q FROM 'SELECT 9'", "DEALLOCATE PREPARE q"}, "EXECUTE p", "8", "8", []string{"DROP PREPARE P"}, ""},
	{"handler", "handler", []string{"HANDLER plain OPEN"}, "HANDLER plain READ FIRST", "none", "none", nil, ""},
	{"XA", "xa", []string{"XA START '{db}'", "INSERT INTO plain VALUES (1, 1)"}, "SELECT COUNT(*) FROM plain", "1", "1", []string{"XA END '{db}'", "XA ROLLBACK '{db}'"}, ""},
	{"random seed", "set", []string{"SET rand_seed1 = 1, rand_seed2 = 2"}, "SELECT RAND() < 2", "1", "", nil, ""},
	{"timestamp", "timestamp", []string{"SET timestamp = 1234"}, "SELECT UNIX_TIMESTAMP(NOW())", "1234", "1234", []string{"SET timestamp = DEFAULT"}, ""},
	{"timestamp, at once free and set", "timestamp", []string{"SET timestamp = DEFAULT, timestamp = 1234"}, "SELECT UNIX_TIMESTAMP(NOW())", "1234", "1234", []string{"SET timestamp = 1, timestamp = DEFAULT"}, ""},
	{"session tracking", "session_track", []string{"SET session_track_schema = OFF"}, "SELECT @@session_track_schema", "0", "0", nil, ""},
	{"role", "role", []string{"SET ROLE NONE"}, "SELECT COALESCE(CURRENT_ROLE(), 'NONE')", "NONE", "", nil, ""},
	{"dropped database", "database", []string{"CREATE DATABASE {db}_gone", "USE {db}_gone", "DROP DATABASE {db}_gone"}, "SELECT DATABASE()", "NULL", "NULL", []string{"USE {db}"}, ""},
	{"procedure that sets", "function", []string{"CALL set_var()"}, "SELECT @inner", "from a procedure", "from a procedure", nil, ""},
	{"procedure that makes a table", "function", []string{"CALL make_temp()", "INSERT INTO tt VALUES (4)"}, "SELECT x FROM tt", "4", "4", nil, ""},
	{"function that sets", "function", []string{"SELECT func_var()"}, "SELECT @f", "by function", "by function", nil, ""},
	{"next transaction, and a statement that is none", "next_transaction", []string{"SET TRANSACTION READ ONLY", "SELECT 1", "DO 2", "INSERT INTO plain VALUES (1, 1)"}, "SELECT 1", "1", "", []string{"COMMIT"}, ""},
	{"next transaction", "next_transaction", []string{"SET TRANSACTION READ ONLY"}, "SELECT 1", "1", "", []string{"BEGIN", "COMMIT"}, ""},
	{"found rows", "found_rows", []string{"SELECT SQL_CALC_FOUND_ROWS id FROM t LIMIT 1"}, "SELECT 1", "1", "", []string{"DO 0"}, ""},
	{"connection id", "connection_id", []string{"SET @c = CONNECTION_ID()"}, "SELECT @c = CONNECTION_ID()", "1", "1", nil, ""},
	{"compound statement", "unknown", []string{"BEGIN NOT ATOMIC DECLARE x INT; SET @inner = 5; END"}, "SELECT @inner", "5", "5", nil, lab.FlavorMariaDB},
}

// Every cause pins its session and is counted; only its own client sees the state; and the pin
// ends with the state or the session.
func pinsAppearHoldAndEnd(t *testing.T, server *lab.MySQL) {
	dbs := &stateDatabases{tb: t, server: server}
	for _, c := range pinCases {
		if c.only != "" && c.only != server.Flavor() {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := startFor(t, server, dbs.lend(t), twoBackends)
			named := func(sql string) string { return strings.ReplaceAll(sql, "{db}", w.db) }
			churn := newChurner(w, nil)
			mine := w.speaker(func(c *mywire.ConnectConfig) { c.Caps = mywire.WantedCaps | mywire.CapMultiStatements })
			for _, sql := range c.enter {
				if got := mine.ask(named(sql)); strings.Contains(got, "ERROR") && c.cause != "next_transaction" {
					t.Fatalf("%s: %s", sql, got)
				}
			}
			if p := w.pool(); p.Pinned != 1 || p.Pins[c.cause] == 0 {
				t.Errorf("%d sessions are pinned, causes %v, want one by %s", p.Pinned, p.Pins, c.cause)
			}
			if got := (speaker{w.console()}).ask("SHOW PINS"); !strings.Contains(got, c.cause) {
				t.Errorf("SHOW PINS: %s", got)
			}
			churn.run()
			for i := 0; i < 2 && c.cause != "found_rows"; i++ {
				if got := mine.value(named(c.probe)); !strings.HasPrefix(got, c.want) {
					t.Errorf("%s: %s, want %s", c.probe, got, c.want)
				}
				if c.alien != "" {
					other := w.within(t).speaker(nil) // what it asks may pin it
					if got := other.value(named(c.probe)); got == c.alien {
						t.Errorf("another client is told %s", got)
					}
					_ = other.Close()
				}
				churn.run()
			}
			for _, sql := range c.leave {
				mine.ask(named(sql))
			}
			if c.leave != nil {
				eventually(t, "the pin is gone", func() bool { return w.pool().Pinned == 0 })
			}
			mine.send(mywire.AppendResetConnection(nil))
			if got, _ := mine.answerTo(mywire.ComResetConnection); !strings.HasPrefix(got, "OK") {
				t.Errorf("COM_RESET_CONNECTION: %s", got)
			}
			if c.cause != "session_track" && c.cause != "role" { // which a reset leaves
				eventually(t, "a reset session is not pinned", func() bool { return w.pool().Pinned == 0 })
			}
			for _, other := range []speaker{w.speaker(nil), {churn.one}, {churn.two}, mine} {
				if got := other.value(named(c.probe)); c.alien != "" && got == c.alien {
					t.Errorf("after the reset somebody is told %s", got)
				}
				_ = other.Close()
			}
			eventually(t, "all backends are free", func() bool {
				p := w.pool()
				return p.Free == p.Backends && p.Owned == 0
			})
		})
	}
}

// A client that vanishes leaves nothing behind.
func vanishedClientsLeaveNothing(t *testing.T, server *lab.MySQL) {
	w := startFor(t, server, databaseOn(t, server, stateSetup...), func(c *mysql.Config) { c.PoolSize = 1 })
	for _, quit := range []bool{true, false} {
		mine := w.speaker(nil)
		for _, sql := range []string{
			"CREATE TEMPORARY TABLE tt (x INT)", "SET @mine = 1", "DO GET_LOCK('" + w.db + "', 0)", "PREPARE p FROM 'SELECT 1'",
			"SET time_zone = '+09:00', sql_mode = 'ANSI'", "USE mysql", "SET autocommit = 0", "INSERT INTO " + w.db + ".plain VALUES (1, 1)",
		} {
			mine.must(sql)
		}
		if quit {
			_ = mine.Close()
		} else {
			_ = mine.Conn.Close()
		}
		other := w.speaker(nil)
		for query, want := range map[string]string{
			"SELECT x FROM tt": "ERROR 1146", "SELECT @mine": "NULL", "SELECT IS_FREE_LOCK('" + w.db + "')": "1", "EXECUTE p": "ERROR 1243",
			"SELECT @@time_zone = '+09:00'": "0", "SELECT DATABASE()": w.db, "SELECT @@autocommit": "1", "SELECT COUNT(*) FROM plain": "0",
			"SELECT INSTR(@@sql_mode, 'ANSI')": "0",
		} {
			if got := other.value(query); got != want {
				t.Errorf("quit %v: %s: %s, want %s", quit, query, got, want)
			}
		}
		_ = other.Close()
	}
}

// Without pins, as between transactions in mode transaction, state is not kept; in
// mode session it is, without any contention.
func modesKeepWhatTheySay(t *testing.T, server *lab.MySQL) {
	db := databaseOn(t, server, stateSetup...)
	for mode, want := range map[session.Mode]string{session.ModeSession: "5", session.ModeTransaction: "NULL"} {
		w := startFor(t, server, db, func(c *mysql.Config) { c.PoolSize, c.Mode = 2, mode })
		mine, other := w.speaker(nil), w.speaker(nil)
		mine.must("SET @x = 5, time_zone = '+03:00'")
		for range 3 {
			other.must("BEGIN")
			other.must("SET @x = NULL")
			if mode == session.ModeTransaction {
				mine.must("BEGIN")
				mine.must("COMMIT")
			}
			other.must("COMMIT")
		}
		if mode == session.ModeTransaction {
			// Whichever backend it gets has been cleared.
			third := w.speaker(nil)
			third.must("BEGIN")
			third.must("SET @x = NULL")
			other.must("BEGIN")
			other.must("SET @x = NULL")
			third.must("COMMIT")
			other.must("COMMIT")
		}
		if got := mine.value("SELECT @x"); got != want {
			t.Errorf("mode %s: @x is %s, want %s", mode, got, want)
		}
		if got := mine.value("SELECT @@time_zone"); got != "+03:00" {
			t.Errorf("mode %s: time_zone is %s", mode, got)
		}
	}
	w := startFor(t, server, db, func(c *mysql.Config) { c.Mode = session.ModeStatement })
	mine := w.speaker(nil)
	if got := mine.ask("BEGIN"); !strings.Contains(got, "transactions are refused in mode statement") {
		t.Errorf("BEGIN in mode statement: %s", got)
	}
	if got := mine.value("SELECT 3"); got != "3" {
		t.Errorf("after the refusal: %s", got)
	}
}

// A transaction that is prepared outlives its session, and another one commits it or takes it
// back; what comes next on the connection is not in it.
func TestPreparedTransactionsOutliveTheirSession(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE t (id INT PRIMARY KEY)",
		"CREATE PROCEDURE begins() XA START 'inside'", "CREATE PROCEDURE prepares() BEGIN XA END 'inside'; XA PREPARE 'inside'; END",
		"CREATE PROCEDURE hides(t TEXT) BEGIN SET @t = t; PREPARE s FROM @t; EXECUTE s; DEALLOCATE PREPARE s; END")
	w := start(t, db, twoBackends)
	other, check := w.dial(nil), directTo(t, server(t), db)
	xid := fmt.Sprintf(" '%s'", db)
	ways := map[string]struct{ begin, prepare []string }{
		"plain":   {[]string{"XA START" + xid}, []string{"XA END" + xid, "XA PREPARE" + xid}},
		"routine": {[]string{"CALL begins()"}, []string{"CALL prepares()"}},
	}
	if isMariaDB(server(t)) { // MySQL prepares no XA
		ways["immediate"] = struct{ begin, prepare []string }{
			[]string{`EXECUTE IMMEDIATE CONCAT("XA START", "` + xid + `")`},
			[]string{`EXECUTE IMMEDIATE CONCAT("XA END", "` + xid + `")`, `EXECUTE IMMEDIATE CONCAT("XA PREPARE", "` + xid + `")`},
		}
		ways["hidden"] = struct{ begin, prepare []string }{
			[]string{`CALL hides("XA START` + xid + `")`}, []string{`CALL hides("XA END` + xid + `")`, `CALL hides("XA PREPARE` + xid + `")`},
		}
	}
	leave := map[string]func(c *wire){
		"closed": func(c *wire) { _ = c.Close() },
		"reset": func(c *wire) {
			if r := c.try(mywire.AppendCommand(nil, mywire.ComResetConnection, "")); r.err != nil || r.lost != nil {
				t.Errorf("reset: %s %v", r.text, r.lost)
			}
		},
		"changed": func(c *wire) {
			if err := c.changeUser("root", "", db); err != nil {
				t.Error(err)
			}
		},
	}
	id := 0
	connections := func() (ids string) {
		return check.one("SELECT CONCAT(',', GROUP_CONCAT(ID ORDER BY ID), ',') FROM information_schema.PROCESSLIST WHERE DB = '" + db + "'")
	}
	for way, sql := range ways {
		for how, left := range leave {
			for _, end := range []string{"ROLLBACK", "COMMIT"} {
				id++
				c := w.dial(nil)
				for _, text := range append(append(sql.begin, fmt.Sprintf("INSERT INTO t VALUES (%d)", id)), sql.prepare...) {
					c.must(text)
				}
				before := connections()
				left(c)
				// MariaDB says OK, and leaves the rows locked for ever, if another session ends a
				// transaction while the connection that has prepared it is on its way out.
				eventually(t, "its connection has gone", func() bool {
					now := connections()
					return slices.ContainsFunc(strings.Split(strings.Trim(before, ","), ","), func(id string) bool { return !strings.Contains(now, ","+id+",") })
				})
				ended := "XA " + end + xid
				if way == "routine" {
					ended = "XA " + end + " 'inside'"
				}
				eventually(t, "it is nobody's", func() bool {
					r := other.try(other.query(ended))
					return r.code() == 0 && r.lost == nil
				})
				want := map[string]string{"ROLLBACK": "0", "COMMIT": "1"}[end]
				if got := check.one(fmt.Sprintf("SELECT COUNT(*) FROM t WHERE id = %d FOR UPDATE", id)); got != want {
					t.Errorf("%s, %s, %s: %s rows, want %s", way, how, end, got, want)
				}
				for range 2 {
					other.must(fmt.Sprintf("REPLACE INTO t VALUES (%d)", id))
				}
				_ = c.Close()
			}
		}
	}
}
