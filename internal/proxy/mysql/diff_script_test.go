package mysql_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"

	"github.com/weirdb/weir/internal/wire/mywire"
)

// A diffScripter makes random scripts. Client i works on tables whose names end
// with i.
type diffScripter struct {
	*rand.Rand
	client  int
	hints   bool
	mariadb bool
	steps   []diffStep
}

// setup recreates the client's tables. Ids begin with 1 on both sides.
func (g *diffScripter) setup() []string {
	texts := []string{
		"DROP TABLE IF EXISTS child#, kv#, ser#, trig#, isam#, made#",
		"DROP VIEW IF EXISTS seen#", "DROP PROCEDURE IF EXISTS several#", "DROP PROCEDURE IF EXISTS outs#", "DROP PROCEDURE IF EXISTS sets#", "DROP FUNCTION IF EXISTS twice#",
		"CREATE TABLE kv# (k INT PRIMARY KEY, v VARCHAR(20), n DECIMAL(10,2) DEFAULT 1.5, d DATETIME(3) NULL, b BLOB, KEY (v))",
		"INSERT INTO kv# (k, v, n) VALUES (1,'v1',0.25),(2,'v2',0.5),(3,'v3',0.75),(4,'v4',1),(5,'v5',1.25),(6,'v6',1.5),(7,'v7',1.75),(8,'v8',2)",
		"CREATE TABLE ser# (id INT AUTO_INCREMENT PRIMARY KEY, x TINYINT NOT NULL, t VARCHAR(9) DEFAULT 'd', g INT GENERATED ALWAYS AS (x * 2) STORED, UNIQUE (x))",
		"CREATE TABLE child# (k INT, note TEXT, FOREIGN KEY (k) REFERENCES kv# (k))",
		"CREATE TABLE trig# (id INT AUTO_INCREMENT PRIMARY KEY, x INT)",
		"CREATE TRIGGER fires# BEFORE INSERT ON trig# FOR EACH ROW IF NEW.x > 9 THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'too much'; ELSE SET NEW.x = NEW.x + 1; END IF",
		"CREATE TABLE isam# (a INT PRIMARY KEY, b INT) ENGINE=MyISAM",
		"CREATE VIEW seen# AS SELECT k, v FROM kv# WHERE k < 100",
		"CREATE PROCEDURE several#(amount INT) BEGIN SELECT amount; SELECT k, v FROM kv# WHERE k <= amount ORDER BY k; UPDATE kv# SET v = 'called' WHERE k = amount; SELECT ROW_COUNT(); END",
		"CREATE PROCEDURE outs#(IN amount INT, OUT b INT, INOUT c VARCHAR(20)) BEGIN SET b = amount * 2, c = CONCAT(c, '!'); SELECT amount; END",
		"CREATE PROCEDURE sets#(n INT) BEGIN SET SESSION sort_buffer_size = 65536 + 4096 * n; IF n > 6 THEN START TRANSACTION; END IF; INSERT INTO ser# (x) VALUES (n); END",
		"CREATE FUNCTION twice#(n INT) RETURNS INT NO SQL RETURN n * 2",
	}
	for i, t := range texts {
		texts[i] = g.own(t)
	}
	return texts
}

// own puts the client's number into a text.
func (g *diffScripter) own(text string) string {
	return strings.ReplaceAll(text, "#", fmt.Sprint(g.client))
}

// caps returns a class of capabilities. A client of one number has the same in all scripts of a
// seed.
func (g *diffScripter) caps() mywire.Caps {
	caps := mywire.CapLongFlag | mywire.CapTransactions | mywire.CapReserved | mywire.CapMultiResults | mywire.CapPSMultiResults |
		mywire.CapPluginAuth | mywire.CapPluginAuthLenenc | mywire.CapConnectAttrs | mywire.CapLocalFiles | mywire.CapLongPassword | mywire.CapsRequired
	for _, c := range []mywire.Caps{mywire.CapDeprecateEOF, mywire.CapSessionTrack, mywire.CapMultiStatements, mywire.CapFoundRows} {
		if g.IntN(2) == 0 {
			caps |= c
		}
	}
	switch {
	case g.mariadb && g.IntN(3) == 0:
		caps = caps&^mywire.CapLongPassword | mywire.CapBulkOperations | mywire.CapExtendedMetadata
	case g.IntN(3) == 0:
		caps |= mywire.CapODBC | mywire.CapInteractive
	}
	return caps
}

// script makes n steps.
func (g *diffScripter) script(n int) []diffStep {
	for len(g.steps) < n {
		switch k := g.IntN(100); {
		case k < 42:
			g.query(g.statement())
		case k < 45:
			g.warnings()
		case k < 55:
			g.prepare()
		case k < 75:
			g.execute()
		case k < 80:
			g.cursor()
		case k < 84:
			g.longData()
		case k < 93:
			g.command()
		case k < 96:
			g.infile()
		default:
			g.pipeline()
		}
	}
	g.query("ROLLBACK")
	g.query("SELECT RELEASE_ALL_LOCKS()")
	g.query("SELECT k, v, n FROM kv# ORDER BY k")
	g.query("SELECT * FROM ser# ORDER BY id")
	return g.steps
}

func (g *diffScripter) add(text string, parts ...diffPart) {
	g.steps = append(g.steps, diffStep{text: text, parts: parts})
}

func (g *diffScripter) pick(of ...string) string { return of[g.IntN(len(of))] }

// plain returns a command that does not depend on earlier ones. DB in it is replaced by the name
// of the side's database, for names that are global to the server.
func plain(cmd byte, arg string) diffPart {
	return diffPart{cmd: cmd, message: func(s *diffSession) []byte {
		return mywire.AppendCommand(nil, cmd, strings.ReplaceAll(arg, "DB", strings.TrimSuffix(s.other, "x")))
	}}
}

func (g *diffScripter) query(sql string) {
	sql = g.own(sql)
	g.add(sql, plain(mywire.ComQuery, sql))
}

// statement returns one text.
func (g *diffScripter) statement() string {
	n := g.IntN(12)
	switch g.IntN(15) {
	case 0, 1, 2:
		return g.read(n)
	case 3, 4, 5, 6:
		return g.write(n)
	case 7, 8:
		return g.pick("BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT a", "ROLLBACK TO a", "RELEASE SAVEPOINT a", "START TRANSACTION READ ONLY",
			"START TRANSACTION WITH CONSISTENT SNAPSHOT", "COMMIT AND CHAIN", "ROLLBACK AND CHAIN", "BEGIN", "COMMIT", "SET autocommit = 0", "SET autocommit = 1", "SET autocommit = 1",
			"SET TRANSACTION ISOLATION LEVEL SERIALIZABLE", "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", "SET SESSION TRANSACTION READ WRITE")
	case 9:
		return g.setting(n)
	case 10, 11:
		return g.session(n)
	case 12:
		return g.several(n)
	case 13:
		return g.asks()
	}
	return g.pick("SELEC 1", "SELECT nope", "SELECT * FROM missing", "SELECT 'unterminated", "SELECT /* open", "INSERT INTO kv# VALUES (1)", "SELECT (", "SELECT ?",
		"EXECUTE missing", "DEALLOCATE PREPARE missing", "ROLLBACK TO missing", "SELECT `unterminated", "CALL missing()", "", ";", "-- nothing", "SELECT 1; SELECT 2",
		"SELECT 1 UNION SELECT 1, 2", "SELECT EXP(1000)", "USE missing", "DROP TABLE missing", "SELECT (SELECT k FROM kv#)", "/* only a comment */", "SELECT 1;", "SELECT 1 -- end", "SELECT 1 # end")
}

func (g *diffScripter) read(n int) string {
	return g.pick(
		fmt.Sprintf("SELECT * FROM kv# WHERE k = %d", n), "SELECT count(*), sum(k) FROM kv#", "SELECT id, x, t, g FROM ser# ORDER BY id", "SELECT * FROM seen# ORDER BY k",
		fmt.Sprintf("SELECT %d / (%d - 5)", n, n), fmt.Sprintf("SELECT twice#(%d)", n), "SELECT v FROM kv# ORDER BY k FOR UPDATE", "SELECT k FROM kv# ORDER BY k LOCK IN SHARE MODE",
		"SELECT k FROM kv# WHERE v LIKE 'v%' ORDER BY k", "SELECT 1.5e0, 'a', NULL, TRUE, DATE '2000-01-02', TIME '01:02:03', x'41', 1/3", "SELECT DATABASE(), SCHEMA()",
		"SELECT @@sql_mode, @@time_zone, @@autocommit", "SELECT @@sort_buffer_size, @@lc_time_names, @@character_set_results, @@collation_connection", "SELECT 'a\\tb', 'a''b', \"c\"",
		"SHOW TABLES LIKE 'kv#'", "SHOW CREATE TABLE child#", "DESCRIBE kv#", "EXPLAIN SELECT 1", "SELECT REPEAT('x', 70000)", "SELECT  k\tFROM kv# ORDER  BY k LIMIT 2",
		"SELECT CAST('no number' AS SIGNED), CAST('2' AS SIGNED)", fmt.Sprintf("SELECT k FROM kv# WHERE v = %d", n), "SELECT SQL_NO_CACHE 1", "SELECT k, v FROM kv# GROUP BY k HAVING k > 5",
		"SELECT CONVERT(_utf8mb4 0xC3A9 USING latin1)", "SELECT 'é', HEX('é')", "SELECT LAST_INSERT_ID()", "SELECT LAST_INSERT_ID()", "SELECT FROM_UNIXTIME(0), CONVERT_TZ('2000-01-01 00:00:00', '+00:00', '+05:00')",
		"SELECT DATE_FORMAT('2000-01-02', '%W %M')", "TABLE_MISSING", "VALUES (1, 2)", "SHOW VARIABLES LIKE 'sql_mode'", "HELP 'nothing at all'", "CHECK TABLE kv#", "SELECT k INTO @k FROM kv# WHERE k = 1",
		"WITH x AS (SELECT 1 AS a) SELECT * FROM x", "SELECT BENCHMARK(1, 1), USER() LIKE 'root%'", "SELECT k FROM kv# PROCEDURE ANALYSE()", "SELECT NOW() > '2000-01-01'", "SELECT SLEEP(0)", "SELECT UUID() IS NULL, RAND(3)")
}

func (g *diffScripter) write(n int) string {
	sql := g.pick(
		fmt.Sprintf("INSERT INTO kv# (k, v) VALUES (%d, 'new')", n+4), fmt.Sprintf("INSERT INTO kv# (k, v) VALUES (%d, 'it''s; ?')", n+6), fmt.Sprintf("INSERT INTO kv# (k, v) VALUES (%d, 'much longer than a column')", n+20),
		fmt.Sprintf("INSERT INTO kv# (k, v) VALUES (%d, 'up') ON DUPLICATE KEY UPDATE v = CONCAT(LEFT(v, 5), 'u')", n), fmt.Sprintf("INSERT IGNORE INTO kv# (k, v) VALUES (%d, 'ign'), (2, 'dup')", n),
		fmt.Sprintf("UPDATE kv# SET v = CONCAT(LEFT(v, 9), '%d') WHERE k %% 3 = 1", n), fmt.Sprintf("UPDATE kv# SET n = n * 10000000 WHERE k = %d", n), "UPDATE kv# SET v = v", fmt.Sprintf("UPDATE kv# SET v = 'same' WHERE k < %d", n),
		fmt.Sprintf("DELETE FROM kv# WHERE k = %d", n+2), fmt.Sprintf("INSERT INTO ser# (x) VALUES (%d)", n*14), fmt.Sprintf("INSERT INTO ser# (x) VALUES (%d)", n*3), fmt.Sprintf("INSERT INTO ser# (x, t) VALUES (%d, DEFAULT), (%d, 'two')", n*3, n*3+1),
		fmt.Sprintf("INSERT INTO ser# (id, x) VALUES (%d, %d)", 50+n, n), fmt.Sprintf("INSERT INTO child# VALUES (%d, 'orphan?')", n), "INSERT INTO ser# () VALUES ()", "INSERT IGNORE INTO ser# (x) SELECT k FROM kv# ORDER BY k LIMIT 2",
		fmt.Sprintf("REPLACE INTO kv# (k, v) VALUES (%d, 'repl')", n), fmt.Sprintf("REPLACE INTO ser# (x) VALUES (%d)", n), fmt.Sprintf("INSERT INTO ser# (x) VALUES (twice#(%d))", n), fmt.Sprintf("UPDATE ser# SET x = %d WHERE id = %d", n*7, n),
		fmt.Sprintf("INSERT INTO trig# (x) VALUES (%d)", n), fmt.Sprintf("INSERT INTO isam# VALUES (%d, 1)", n), fmt.Sprintf("INSERT INTO isam# VALUES (%d, 1), (3, 1)", n), "TRUNCATE TABLE child#", fmt.Sprintf("INSERT INTO kv# (k, v) VALUES (%d, '/* batch:off */')", n+30),
		fmt.Sprintf("INSERT INTO kv# (k, n) VALUES (%d, 1.239)", n+40), fmt.Sprintf("INSERT INTO kv# (k, n) VALUES (%d, 'x')", n+40), "DELETE FROM child#", fmt.Sprintf("DELETE kv#, child# FROM kv# LEFT JOIN child# USING (k) WHERE kv#.k = %d", n), fmt.Sprintf("INSERT INTO seen# VALUES (%d, 'view')", n+60),
		fmt.Sprintf("INSERT INTO kv# SET k = %d, v = 'set'", n+70), fmt.Sprintf("UPDATE ser# SET id = LAST_INSERT_ID(id) WHERE x = %d", n), fmt.Sprintf("INSERT INTO kv# (k, v) VALUES (LAST_INSERT_ID() + %d, 'last')", 80+n), fmt.Sprintf("INSERT INTO trig# (x) VALUES (%d), (3)", n),
		fmt.Sprintf("INSERT INTO kv# (k, v) VALUES (%d, 'r') RETURNING k, v, n", n+90), fmt.Sprintf("DELETE FROM kv# WHERE k = %d RETURNING *", n+90), fmt.Sprintf("INSERT INTO ser# (x) VALUES (%d) RETURNING id, g", n*5))
	if g.hints && g.IntN(4) > 0 {
		sql = g.pick("/* batch */ ", "/* batch:auto */ ", "/*batch='auto'*/ ", "/* batch:0.2 */ ", "/*route='x',batch='auto'*/\n", "/* batch:off */ ") + sql
	}
	return sql
}

func (g *diffScripter) setting(n int) string {
	return g.pick("SET time_zone = '+09:00'", "SET time_zone = DEFAULT", "SET sql_mode = ''", "SET sql_mode = 'ANSI_QUOTES'", "SET sql_mode = 'NO_BACKSLASH_ESCAPES,STRICT_ALL_TABLES'", "SET sql_mode = DEFAULT", "SET SESSION sql_mode = CONCAT(@@sql_mode, ',PIPES_AS_CONCAT')",
		fmt.Sprintf("SET sort_buffer_size = %d", 65536+n*4096), "SET sort_buffer_size = DEFAULT", "SET lc_time_names = 'de_DE', @u# = 3", "SET lc_time_names = DEFAULT", "SET NAMES latin1", "SET NAMES utf8mb4", "SET NAMES utf8mb4 COLLATE utf8mb4_bin", "SET character_set_results = NULL", "SET NAMES DEFAULT", "SET CHARACTER SET utf8mb4",
		"SET nonsense = 1", "SET time_zone = 'nowhere'", fmt.Sprintf("SET @u# = %d", n), "SET @a = 1, @b = @a + 1", fmt.Sprintf("SET timestamp = %d", 1000000000+n), "SET timestamp = DEFAULT", "SET last_insert_id = 77", "SET insert_id = 95", "SET group_concat_max_len = 1024", "SET SESSION auto_increment_increment = 5",
		"SET auto_increment_increment = DEFAULT", "SET foreign_key_checks = 0", "SET foreign_key_checks = 1", "SET unique_checks = 0, sql_safe_updates = 0", "SET collation_connection = utf8mb4_bin", "SET GLOBAL nonsense = 1", "SET max_error_count = 2", "SET max_error_count = DEFAULT", "SET sql_select_limit = 3", "SET sql_select_limit = DEFAULT",
		"SET session_track_system_variables = '*'", "SET session_track_system_variables = CONCAT(@@global.session_track_system_variables, ',tx_isolation'), sql_mode = CONCAT(@@sql_mode, ',STRICT_TRANS_TABLES')", "SET session_track_system_variables = 'sql_mode,time_zone'",
		"SET time_zone = '+02:00', session_track_system_variables = CONCAT(@@session_track_system_variables, ',lc_time_names'), lc_time_names = 'fr_FR'", "SET session_track_system_variables = DEFAULT", "SET session_track_system_variables = 'nonsense'", "SELECT @@session_track_system_variables", "SHOW VARIABLES LIKE 'session_track_system%'", "SET tx_isolation = 'READ-COMMITTED'", "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE", "SET session_track_state_change = ON", "SET STATEMENT sort_buffer_size = 131072 FOR SELECT @@sort_buffer_size", "SET sql_warnings = ON", "SET innodb_lock_wait_timeout = 3")
}

func (g *diffScripter) session(n int) string {
	return g.pick("PREPARE p FROM 'SELECT ? + 1'", "SET @a = 3", "EXECUTE p USING @a", "DEALLOCATE PREPARE p", "CREATE TEMPORARY TABLE tmp (x INT)", "INSERT INTO tmp VALUES (1)", "SELECT * FROM tmp", "DROP TEMPORARY TABLE tmp", "SELECT @a, @b, @u#, @k", "SELECT @a := 5",
		fmt.Sprintf("SELECT GET_LOCK('DB#%d', 0)", n%2), fmt.Sprintf("SELECT RELEASE_LOCK('DB#%d')", n%2), "SELECT RELEASE_ALL_LOCKS()", "DO GET_LOCK('DB#0', 0)", "LOCK TABLES kv# WRITE", "LOCK TABLES kv# READ, ser# WRITE", "UNLOCK TABLES", "HANDLER kv# OPEN", "HANDLER kv# READ FIRST", "HANDLER kv# CLOSE",
		fmt.Sprintf("CALL several#(%d)", n), fmt.Sprintf("CALL outs#(%d, @b, @c)", n), fmt.Sprintf("CALL sets#(%d)", n), "CREATE TABLE made# (x INT)", "DROP TABLE IF EXISTS made#", "ALTER TABLE kv# ADD COLUMN IF NOT EXISTS extra INT", "ALTER TABLE made# ADD y INT", "CREATE TABLE IF NOT EXISTS made# (x INT)", "FLUSH TABLES kv#", "ANALYZE TABLE ser#",
		"XA START 'DB#'", "XA END 'DB#'", "XA ROLLBACK 'DB#'", "DO 1", "DO SLEEP(0)", "SIGNAL SQLSTATE '01000' SET MESSAGE_TEXT = 'careful'", "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'stop'", "BEGIN NOT ATOMIC SELECT 1; SELECT 2; END", "INSERT INTO made# VALUES (1)", "SELECT * FROM made#", "EXECUTE IMMEDIATE 'SELECT 6'",
		"CREATE SEQUENCE IF NOT EXISTS seq#", "SELECT NEXTVAL(seq#)", "SELECT LASTVAL(seq#)", "DROP SEQUENCE IF EXISTS seq#", "RENAME TABLE made# TO made#x", "DROP TABLE IF EXISTS made#x", "KILL QUERY 0", "OPTIMIZE TABLE isam#")
}

// warnings asks for the warnings of a statement that uses a table, or fails. On MariaDB, any
// other statement leaves the warnings of the one before, which weir cannot know.
func (g *diffScripter) warnings() {
	n := g.IntN(12)
	g.query(g.pick(g.write(n), g.write(n), "SELEC 1", "SELECT * FROM missing", "SELECT CAST('no' AS SIGNED), CAST(v AS SIGNED) FROM kv# WHERE k < 4 ORDER BY k", "DROP TABLE IF EXISTS missing, missing2"))
	for range 1 + g.IntN(2) {
		g.query(g.pick("SHOW WARNINGS", "show warnings", "SHOW WARNINGS LIMIT 1", "SHOW ERRORS", "SHOW COUNT(*) WARNINGS", "SELECT @@warning_count", "SELECT @@error_count", "GET DIAGNOSTICS @n = NUMBER"))
	}
}

// asks returns a question about the statement before, or the connection.
func (g *diffScripter) asks() string {
	return g.pick("SELECT ROW_COUNT()", "SELECT FOUND_ROWS()", "SELECT SQL_CALC_FOUND_ROWS k FROM kv# LIMIT 1", "SELECT LAST_INSERT_ID(), @@last_insert_id", "SELECT @@identity",
		"SELECT LAST_INSERT_ID(55)", "SELECT @@in_transaction", "SELECT @@session.autocommit", "SHOW CREATE VIEW seen#", "SHOW FULL COLUMNS FROM kv#", "SELECT CONNECTION_ID() > 0", "SELECT DATABASE()")
}

func (g *diffScripter) several(n int) string {
	return g.pick("SELECT 1; SELECT 2", "SELECT 1;;", fmt.Sprintf("INSERT INTO kv# (k, v) VALUES (%d, 'multi'); SELECT nope", 20+n), fmt.Sprintf("BEGIN; INSERT INTO kv# (k, v) VALUES (%d, 'multi'); COMMIT; SELECT 1", 40+n), "SELECT 1; ROLLBACK", "BEGIN; SELECT nope; SELECT 2",
		"SET time_zone = '+01:00'; SELECT FROM_UNIXTIME(0)", "SELECT 1 FROM kv# WHERE v = 'x;y'; SELECT k FROM kv# ORDER BY k", "SELECT 'a;b' AS `c;d`; DO 1; SELECT 3", fmt.Sprintf("CALL several#(%d); SELECT 9", n), "INSERT INTO ser# (x) VALUES (44); SELECT LAST_INSERT_ID()", "UPDATE kv# SET v = 'rc' WHERE k < 4; SELECT ROW_COUNT()",
		"SET @a = 1; SET @b = 2; SELECT @a + @b", "SELECT CAST('z' AS SIGNED); SELECT 5", "BEGIN; UPDATE kv# SET v = 'open' WHERE k = 1", "INSERT INTO ser# (x) VALUES (45); INSERT INTO ser# (x) VALUES (45); SELECT 1", "PREPARE p FROM 'SELECT 4'; EXECUTE p", "USE nowhere; SELECT 1")
}

// prepare prepares a statement and keeps it in a slot.
func (g *diffScripter) prepare() { g.prepareIn(1 + g.IntN(4)) }

func (g *diffScripter) prepareIn(slot int) {
	sql := g.own(g.parameterised())
	g.add(fmt.Sprintf("prepare %d: %s", slot, sql), diffPart{cmd: mywire.ComStmtPrepare, slot: slot, message: func(s *diffSession) []byte {
		delete(s.slots, slot)
		s.preparing = sql
		return mywire.AppendPrepare(nil, strings.ReplaceAll(sql, "DB", strings.TrimSuffix(s.other, "x")))
	}})
}

func (g *diffScripter) parameterised() string {
	hint := ""
	if g.hints {
		hint = g.pick("", "/* batch */ ", "/* batch:auto */ ")
	}
	if g.IntN(5) == 0 {
		return g.statement()
	}
	return g.pick("SELECT * FROM kv# WHERE k = ?", "SELECT ? / (? - 5)", hint+"INSERT INTO kv# (v, k) VALUES (?, ?)", hint+"INSERT INTO ser# (x, t) VALUES (?, 'lit')", hint+"INSERT INTO ser# (x) VALUES (?)", hint+"UPDATE kv# SET v = ? WHERE k = ?", hint+"DELETE FROM ser# WHERE x = ?",
		"SELECT k, v FROM kv# WHERE v <> ? ORDER BY k", hint+"INSERT IGNORE INTO kv# (k) VALUES (?)", hint+"REPLACE INTO kv# (k, v, n) VALUES (?, ?, ?)", "SELECT ?, ?, ?", "CALL outs#(?, ?, ?)", "CALL several#(?)", "SELECT k FROM kv# ORDER BY k LIMIT ?", hint+"INSERT INTO kv# (k, v) VALUES (?, ?) ON DUPLICATE KEY UPDATE v = ?",
		"SELECT LENGTH(?), LEFT(?, 3)", hint+"INSERT INTO kv# (k, d, b) VALUES (?, ?, ?)", "SELECT * FROM kv#", hint+"INSERT INTO trig# (x) VALUES (?)", "SELECT k, v, n, d, b FROM kv# WHERE k > ? ORDER BY k", hint+"INSERT INTO ser# (x) VALUES (?) RETURNING id, x", "SELECT ? = 'a\\'b', @@sort_buffer_size", "SELECT LAST_INSERT_ID(), ?")
}

// value encodes a parameter of the type kind.
func (g *diffScripter) value(kind byte) []byte {
	switch kind {
	case mywire.TypeLongLong:
		return binary.LittleEndian.AppendUint64(nil, uint64(g.IntN(130)))
	case mywire.TypeTiny:
		return []byte{byte(g.IntN(12))}
	case mywire.TypeDouble:
		return binary.LittleEndian.AppendUint64(nil, math.Float64bits(float64(g.IntN(40))/4))
	case mywire.TypeDatetime:
		return []byte{7, 0xd0, 7, 1, byte(1 + g.IntN(28)), 3, 4, 5}
	case mywire.TypeNull:
		return nil
	}
	return mywire.AppendLenencString(nil, g.pick("7", "text", "it's", "", "2000-01-02", "12abc", strings.Repeat("long ", 9)))
}

// execute runs what is in a slot, with types or, if it has run before, without.
func (g *diffScripter) execute() {
	slot := 1 + g.IntN(4)
	g.add(g.executeOf(slot, 0))
}

func (g *diffScripter) executeOf(slot int, flags byte) (string, diffPart) {
	var kinds []byte
	var values []map[byte][]byte // for each position, a value of each kind
	for range 12 {
		kinds = append(kinds, []byte{mywire.TypeLongLong, mywire.TypeLongLong, mywire.TypeVarString, mywire.TypeDouble, mywire.TypeTiny, mywire.TypeDatetime, mywire.TypeNull}[g.IntN(7)])
		all := make(map[byte][]byte)
		for _, k := range []byte{mywire.TypeLongLong, mywire.TypeVarString, mywire.TypeDouble, mywire.TypeTiny, mywire.TypeDatetime, mywire.TypeNull} {
			all[k] = g.value(k)
		}
		values = append(values, all)
	}
	typed := g.IntN(3) > 0
	text := fmt.Sprintf("execute %d, flags %d, types %v %x", slot, flags, typed, kinds)
	return text, diffPart{cmd: mywire.ComStmtExecute, message: func(s *diffSession) []byte {
		st := s.slots[slot]
		if st == nil {
			return mywire.AppendExecute(nil, 0, 999999, flags, nil, nil)
		}
		if st.params > len(kinds) {
			return nil
		}
		use := kinds[:st.params]
		// MariaDB forgets the types of a procedure's parameters.
		sendTypes := typed || st.kinds == nil || strings.Contains(st.sql, "CALL")
		if !sendTypes {
			use = st.kinds
		}
		st.kinds = use
		nulls := make([]byte, mywire.NullsLen(st.params))
		var types []byte
		var body [][]byte
		for i, k := range use {
			types = append(types, k, 0)
			if v := values[i][k]; v != nil {
				body = append(body, v)
			} else {
				nulls[i/8] |= 1 << (i % 8)
			}
		}
		if sendTypes || st.params == 0 {
			return mywire.AppendExecute(nil, 0, st.id, flags, nulls, types, body...)
		}
		payload := binary.LittleEndian.AppendUint32([]byte{mywire.ComStmtExecute}, st.id)
		payload = append(append(append(payload, flags, 1, 0, 0, 0), nulls...), 0)
		for _, v := range body {
			payload = append(payload, v...)
		}
		return mywire.AppendPacket(nil, 0, payload)
	}}
}

// withSlot returns a command about the statement in a slot.
func withSlot(cmd byte, slot int, message func(id uint32) []byte) diffPart {
	return diffPart{cmd: cmd, message: func(s *diffSession) []byte {
		if st := s.slots[slot]; st != nil {
			return message(st.id)
		}
		return message(999999)
	}}
}

// cursor executes with a cursor, or fetches from one. MySQL's answers depend on how the
// statement was executed before, so with MySQL it is prepared anew.
func (g *diffScripter) cursor() {
	slot := 1 + g.IntN(4)
	if !g.mariadb {
		slot = 6
		g.prepareIn(slot)
		g.add(g.executeOf(slot, mywire.CursorReadOnly))
		g.add("fetch 3 rows", withSlot(mywire.ComStmtFetch, slot, func(id uint32) []byte { return mywire.AppendFetch(nil, id, 3) }))
	}
	if g.mariadb && g.IntN(2) == 0 {
		g.add(g.executeOf(slot, mywire.CursorReadOnly))
		return
	}
	n := uint32(1 + g.IntN(5))
	g.add(fmt.Sprintf("fetch %d rows of %d", n, slot), withSlot(mywire.ComStmtFetch, slot, func(id uint32) []byte { return mywire.AppendFetch(nil, id, n) }))
}

// longData sends parts of a parameter, usually followed by an execution. It prepares the
// statement anew, because MariaDB misreads the value if the parameter had another type before.
func (g *diffScripter) longData() {
	slot, param := 1+g.IntN(4), uint16(g.IntN(3))
	g.prepareIn(slot)
	data := []byte(strings.Repeat(g.pick("long", "d", "x'y"), g.IntN(4)))
	text := fmt.Sprintf("long data %q for parameter %d of %d", data, param, slot)
	part := diffPart{cmd: mywire.ComStmtSendLongData, message: func(s *diffSession) []byte {
		st := s.slots[slot]
		if st == nil || int(param) >= st.params {
			return nil
		}
		return mywire.AppendLongData(nil, mywire.LongDataMsg{StmtID: st.id, Param: param, Data: data})
	}}
	parts := []diffPart{part}
	for range g.IntN(3) {
		parts = append(parts, part)
	}
	if g.IntN(4) == 0 {
		g.add(text+", reset", append(parts, withSlot(mywire.ComStmtReset, slot, func(id uint32) []byte { return mywire.AppendStmtReset(nil, id) }))...)
		return
	}
	// With long data the execution has no value.
	g.add(text+", execute", append(parts, diffPart{cmd: mywire.ComStmtExecute, message: func(s *diffSession) []byte {
		st := s.slots[slot]
		if st == nil {
			return mywire.AppendExecute(nil, 0, 999999, 0, nil, nil)
		}
		nulls := make([]byte, mywire.NullsLen(st.params))
		var types []byte
		st.kinds = nil
		for i := range st.params {
			if i != int(param) {
				nulls[i/8] |= 1 << (i % 8)
			}
			types = append(types, mywire.TypeBlob, 0)
			st.kinds = append(st.kinds, mywire.TypeBlob)
		}
		return mywire.AppendExecute(nil, 0, st.id, 0, nulls, types)
	}})...)
}

// command is one of the others.
func (g *diffScripter) command() {
	slot := 1 + g.IntN(4)
	switch g.IntN(14) {
	case 0:
		g.add("ping", plain(mywire.ComPing, ""))
	case 1:
		g.add("statistics", plain(mywire.ComStatistics, ""))
	case 2:
		where := g.pick("", "x", "missing")
		g.add("init db "+where, diffPart{cmd: mywire.ComInitDB, message: func(s *diffSession) []byte {
			return mywire.AppendInitDB(nil, strings.TrimSuffix(s.other, "x")+where)
		}})
	case 3:
		where := g.pick("", "x", "")
		g.add("USE "+where, diffPart{cmd: mywire.ComQuery, message: func(s *diffSession) []byte {
			return mywire.AppendCommand(nil, mywire.ComQuery, "USE "+strings.TrimSuffix(s.other, "x")+where)
		}})
	case 4:
		arg := g.own(g.pick("kv#\x00", "kv#\x00k%", "missing\x00", "kv#\x00%\x00"))
		g.add(fmt.Sprintf("field list %q", arg), plain(mywire.ComFieldList, arg))
	case 5:
		option := g.IntN(3)
		g.add(fmt.Sprintf("set option %d", option), plain(mywire.ComSetOption, string([]byte{byte(option), 0})))
	case 6:
		g.add("reset connection", diffPart{cmd: mywire.ComResetConnection, message: func(s *diffSession) []byte {
			clear(s.slots)
			return mywire.AppendResetConnection(nil)
		}})
	case 7:
		whom := []diffUser{{name: "root"}, {name: bob, password: bobPassword}}[g.IntN(2)]
		whom.where = g.pick("", "x")
		g.changeUser(whom)
	case 8, 9:
		g.add(fmt.Sprintf("close %d", slot), diffPart{cmd: mywire.ComStmtClose, message: func(s *diffSession) []byte {
			st := s.slots[slot]
			if st == nil {
				return mywire.AppendStmtClose(nil, 999999)
			}
			delete(s.slots, slot)
			return mywire.AppendStmtClose(nil, st.id)
		}}, plain(mywire.ComPing, ""))
	case 10, 11:
		g.add(fmt.Sprintf("reset %d", slot), withSlot(mywire.ComStmtReset, slot, func(id uint32) []byte { return mywire.AppendStmtReset(nil, id) }))
	case 12:
		cmd := []byte{mywire.ComSleep, mywire.ComTime, mywire.ComConnect, mywire.ComDelayedInsert, mywire.ComDaemon, 0x30, 0x80, 0xf0}[g.IntN(8)]
		g.add(fmt.Sprintf("command %#02x", cmd), plain(cmd, g.pick("", "x")))
	default:
		g.query(g.pick("ROLLBACK", "COMMIT", "SET autocommit = 1", "UNLOCK TABLES"))
	}
}

func (g *diffScripter) changeUser(whom diffUser) {
	g.add("change user "+whom.name+" "+whom.where, diffPart{cmd: mywire.ComChangeUser, whom: &whom, message: func(s *diffSession) []byte {
		return mywire.AppendChangeUser(nil, s.Caps, &mywire.ChangeUser{
			User: whom.name, Database: whom.database(s), Charset: s.rig.charset(), Plugin: mywire.PluginNative,
		})
	}})
}

// infile makes the server ask for a file.
func (g *diffScripter) infile() {
	sql := g.own(g.pick("LOAD DATA LOCAL INFILE 'f' INTO TABLE kv# (k, v)", "LOAD DATA LOCAL INFILE 'f' REPLACE INTO TABLE kv# (k, v)", "LOAD DATA LOCAL INFILE 'f' INTO TABLE missing", "LOAD DATA LOCAL INFILE 'f' INTO TABLE kv# (k, v); SELECT 7"))
	n := 40 + g.IntN(50)
	files := [][][]byte{
		nil, // no file, as from a client that does not have it
		{fmt.Appendf(nil, "%d\tone\n%d\ttwo\n", n, n+1)},
		{fmt.Appendf(nil, "%d\to", n), []byte("ne\n"), fmt.Appendf(nil, "%d\ttwo\n", n+1)},
		{[]byte("bad\trow\tlong\n")},
	}
	g.add(sql, diffPart{cmd: mywire.ComQuery, file: files[g.IntN(len(files))], message: func(*diffSession) []byte { return mywire.AppendCommand(nil, mywire.ComQuery, sql) }})
}

// pipeline sends several commands at once. MariaDB's clients execute a statement
// before they know its number.
func (g *diffScripter) pipeline() {
	if g.mariadb && g.IntN(2) == 0 {
		sql := g.own(g.pick("SELECT 1", "SELECT k FROM kv# ORDER BY k", "INSERT INTO ser# () VALUES ()", "SELECT nope", "UPDATE kv# SET v = 'last' WHERE k = 2"))
		parts := []diffPart{
			{cmd: mywire.ComStmtPrepare, slot: 5, message: func(*diffSession) []byte { return mywire.AppendPrepare(nil, sql) }},
			{cmd: mywire.ComStmtExecute, message: func(*diffSession) []byte { return mywire.AppendExecute(nil, 0, mywire.StmtLast, 0, nil, nil) }},
		}
		g.add("prepare and execute at once: "+sql, parts...)
		return
	}
	var parts []diffPart
	var texts []string
	for range 2 + g.IntN(4) {
		sql := g.own(g.statement())
		parts, texts = append(parts, plain(mywire.ComQuery, sql)), append(texts, sql)
	}
	if g.IntN(2) == 0 {
		parts, texts = append(parts, plain(mywire.ComPing, "")), append(texts, "ping")
	}
	g.add("at once: "+strings.Join(texts, " | "), parts...)
}
