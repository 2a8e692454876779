package mysql_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// stateSetup is what the scripts find in their database.
var stateSetup = []string{
	churnTable,
	"CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, v VARCHAR(20))",
	"INSERT INTO t (v) VALUES ('a'), ('b'), ('c'), ('d'), ('e')",
	"CREATE TABLE plain (k INT PRIMARY KEY, v TINYINT)",
	"CREATE TABLE noauto (x INT)",
	"CREATE PROCEDURE set_zone() SET time_zone = '+05:00'",
	"CREATE PROCEDURE set_var() SET @inner = 'from a procedure'",
	"CREATE PROCEDURE make_temp() CREATE TEMPORARY TABLE tt (x INT)",
	"CREATE PROCEDURE two_results() BEGIN SELECT 1; SELECT 2; END",
	"CREATE PROCEDURE takes_out(OUT o INT) SET o = 77",
	"CREATE PROCEDURE set_mode() SET sql_mode = 'ANSI_QUOTES'",
	"CREATE PROCEDURE insert_one() INSERT INTO t (v) VALUES ('by procedure')",
	"CREATE FUNCTION func_zone() RETURNS INT DETERMINISTIC BEGIN SET time_zone = '+06:00'; RETURN 1; END",
	"CREATE FUNCTION func_var() RETURNS INT DETERMINISTIC BEGIN SET @f = 'by function'; RETURN 1; END",
	"CREATE FUNCTION func_insert() RETURNS INT BEGIN INSERT INTO t (v) VALUES ('by function'); RETURN 5; END",
	"CREATE FUNCTION func_lastid(n INT) RETURNS INT BEGIN RETURN LAST_INSERT_ID(n); END",
	"CREATE FUNCTION func_lock() RETURNS INT RETURN GET_LOCK('in a function', 0)",
	"CREATE FUNCTION func_read_zone() RETURNS VARCHAR(20) RETURN @@time_zone",
	"CREATE VIEW zone_view AS SELECT func_read_zone() AS z",
}

// stateReset makes a database as of stateSetup that a script has used what it was.
var stateReset = []string{
	"DELETE FROM t", "DELETE FROM plain", "DELETE FROM noauto", "DELETE FROM churn",
	"INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd'), (5, 'e')",
	"ALTER TABLE t AUTO_INCREMENT = 6", "ALTER TABLE churn AUTO_INCREMENT = 1000000",
}

// stateDatabases lends databases as of stateSetup, and proxies for them: to make one is more
// work than to run a script, and each database is read by every proxy.
type stateDatabases struct {
	tb      testing.TB
	server  *lab.MySQL
	mu      sync.Mutex
	free    []string         // guarded by mu
	proxies map[string]*weir // guarded by mu; by database
}

// lend is for a subtest of tb. A database in which something went wrong is not lent again.
func (s *stateDatabases) lend(t *testing.T) string {
	t.Helper()
	s.mu.Lock()
	db := ""
	if n := len(s.free); n > 0 {
		db, s.free = s.free[n-1], s.free[:n-1]
	}
	s.mu.Unlock()
	if db == "" {
		db = databaseOn(s.tb, s.server, stateSetup...)
	}
	t.Cleanup(func() {
		if t.Failed() {
			return
		}
		sqlOn(t, s.server, append([]string{"USE " + db}, stateReset...)...)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.free = append(s.free, db)
	})
	return db
}

// through returns the proxy for a database that is lent to t, with two backends.
func (s *stateDatabases) through(t *testing.T, db string) *weir {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proxies == nil {
		s.proxies = make(map[string]*weir)
	}
	if s.proxies[db] == nil {
		s.proxies[db] = startFor(s.tb, s.server, db, twoBackends)
	}
	return s.proxies[db].within(t)
}

// stateScripts are sessions. A step that begins with "mariadb:" or "mysql:" is for
// that server alone; one that begins with "prepared:" goes through the binary
// protocol. "same:" asks what may be refused, but never be wrong.
var stateScripts = []struct {
	name  string
	steps []string
}{
	{"time zone", []string{"SET time_zone = '+03:00'", "SELECT @@time_zone, FROM_UNIXTIME(0)", "prepared:SELECT @@time_zone, FROM_UNIXTIME(0)", "SET time_zone = DEFAULT", "SELECT @@time_zone"}},
	{"time zone by expression", []string{"SET time_zone = CONCAT('+0', 1 + 1, ':00')", "SELECT @@time_zone", "SELECT * FROM zone_view"}},
	{"time zone by procedure", []string{"CALL set_zone()", "SELECT @@time_zone, FROM_UNIXTIME(0)"}},
	{"time zone by function", []string{"SELECT func_zone()", "SELECT @@time_zone, FROM_UNIXTIME(0)"}},
	{"time zone by function, prepared", []string{"prepared:SELECT func_zone()", "SELECT @@time_zone, FROM_UNIXTIME(0)"}},
	{"time zone by SQL PREPARE", []string{"PREPARE s FROM 'SET time_zone = ''+04:00'''", "EXECUTE s", "DEALLOCATE PREPARE s", "SELECT @@time_zone"}},
	{"time zone by EXECUTE IMMEDIATE", []string{"mariadb:EXECUTE IMMEDIATE 'SET time_zone = ''+04:00'''", "SELECT @@time_zone"}},
	{"time zone prepared", []string{"prepared:SET time_zone = '+07:00'", "SELECT @@time_zone, FROM_UNIXTIME(0)"}},
	{"several settings", []string{"SET time_zone = '+03:00', sql_mode = 'ANSI', sql_select_limit = 2, autocommit = 1", "SELECT @@time_zone, @@sql_mode, @@sql_select_limit", "SELECT v FROM t ORDER BY id", "SET sql_select_limit = DEFAULT", "SELECT COUNT(*) FROM t", "SELECT v FROM t ORDER BY id"}},
	{"a SET that fails midway", []string{"SET time_zone = '+03:00', sql_mode = 'NO_SUCH_MODE'", "SELECT @@time_zone, @@sql_mode"}},
	{"names", []string{"SET NAMES latin1", "SELECT @@character_set_client, @@character_set_results, @@character_set_connection, @@collation_connection", "SELECT CHARSET('x'), COLLATION('x')"}},
	{"names with a collation", []string{"SET NAMES utf8mb4 COLLATE utf8mb4_bin", "SELECT @@collation_connection, 'a' = 'A', COLLATION('x')"}},
	{"names with the collation of the character set", []string{"mariadb:SET NAMES latin1 COLLATE DEFAULT", "SELECT @@character_set_client, @@collation_connection", "prepared:SELECT @@character_set_client, @@collation_connection"}},
	{"names, default", []string{"SET NAMES latin1", "SET NAMES DEFAULT", "SELECT @@character_set_client, @@character_set_results, @@character_set_connection, @@collation_connection"}},
	{"character set", []string{"SET CHARACTER SET latin1", "SELECT @@character_set_client, @@character_set_results, @@character_set_connection, @@collation_connection"}},
	{"collation alone", []string{"SET collation_connection = utf8mb4_bin", "SELECT @@character_set_connection, @@collation_connection, 'a' = 'A'", "SET collation_connection = latin1_swedish_ci", "SELECT @@character_set_connection, @@collation_connection"}},
	{"collation, then character set", []string{"SET collation_connection = utf8mb4_bin", "SET character_set_connection = utf8mb4", "SELECT @@character_set_connection, @@collation_connection, 'a' = 'A'"}},
	{"results unconverted", []string{"SET character_set_results = NULL", "SELECT @@character_set_results, HEX('ä')", "SELECT 'x'", "SET character_set_results = latin1", "SELECT 'ä', @@character_set_results"}},
	{"client character set", []string{"SET character_set_client = latin1", "SELECT HEX('ä')", "SET NAMES utf8mb4", "SELECT HEX('ä')"}},
	{"names gbk", []string{"SET NAMES gbk", "SELECT HEX('\xbf\\'), 1 -- ')", "SELECT @@collation_connection"}},
	{"ANSI quotes", []string{"SET sql_mode = 'ANSI_QUOTES'", `SELECT "v" FROM "t" WHERE id = 1`, `SELECT "v;", 1`, "SET sql_mode = ''", `SELECT "v" FROM t WHERE id = 1`, `SELECT "@x := 1"`}},
	{"ANSI quotes appended", []string{"SET sql_mode = CONCAT(@@sql_mode, ',ANSI_QUOTES')", `SELECT "v" FROM "t" WHERE id = 1`, `SELECT "id" AS "GET_LOCK('x', 0)" FROM "t" WHERE "id" = 2`, "SELECT @@sql_mode"}},
	{"no backslash escapes", []string{"SET sql_mode = 'NO_BACKSLASH_ESCAPES'", `SELECT '\', '@x := 1'`, `SELECT 'a\', HEX('\')`, `INSERT INTO t (v) VALUES ('\')`, "SELECT LAST_INSERT_ID()", `SELECT v FROM t WHERE v = '\'`, "SET sql_mode = DEFAULT", `SELECT '\'', 1`}},
	{"mode by procedure", []string{"CALL set_mode()", `SELECT "v" FROM "t" WHERE id = 3`, "SELECT @@sql_mode"}},
	{"pipes as concat, real as float", []string{"SET sql_mode = 'PIPES_AS_CONCAT'", "SELECT 'a' || 'b'", "SET sql_mode = ''", "SELECT 'a' || 'b'"}},
	{"strict or not", []string{"SET sql_mode = ''", "INSERT INTO plain VALUES (1, 1000)", "SELECT * FROM plain", "SET sql_mode = 'STRICT_ALL_TABLES'", "INSERT INTO plain VALUES (2, 1000)", "SELECT * FROM plain"}},
	{"ignore space", []string{"SET sql_mode = 'IGNORE_SPACE'", "SELECT COUNT (*) FROM t", "SET sql_mode = ''", "SELECT COUNT (*) FROM t"}},
	{"database", []string{"USE information_schema", "SELECT DATABASE()", "SELECT COUNT(*) FROM schemata WHERE schema_name = 'mysql'", "USE mysql", "SELECT DATABASE()", "prepared:SELECT DATABASE()", "USE no_such_database", "SELECT DATABASE()"}},
	{"database created and dropped", []string{"CREATE DATABASE {db}_x", "USE {db}_x", "CREATE TABLE q (a INT)", "INSERT INTO q VALUES (5)", "SELECT a, DATABASE() FROM q", "DROP DATABASE {db}_x", "SELECT DATABASE()", "SELECT * FROM q", "USE {db}", "SELECT DATABASE(), COUNT(*) FROM noauto"}},
	{"autocommit off", []string{"SET autocommit = 0", "SELECT @@autocommit", "INSERT INTO plain VALUES (10, 1)", "SELECT COUNT(*) FROM plain WHERE k = 10", "ROLLBACK", "SELECT COUNT(*) FROM plain WHERE k = 10", "INSERT INTO plain VALUES (11, 1)", "COMMIT", "SELECT COUNT(*) FROM plain WHERE k = 11", "SET autocommit = 1", "INSERT INTO plain VALUES (12, 1)", "ROLLBACK", "SELECT COUNT(*) FROM plain WHERE k = 12"}},
	{"autocommit on commits", []string{"SET autocommit = 0", "INSERT INTO plain VALUES (20, 1)", "SET autocommit = 1", "ROLLBACK", "SELECT COUNT(*) FROM plain WHERE k = 20"}},
	{"isolation", []string{"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", "mariadb:SELECT @@tx_isolation", "mysql:SELECT @@transaction_isolation", "BEGIN", "mariadb:SELECT @@tx_isolation", "COMMIT", "SET SESSION TRANSACTION READ ONLY", "INSERT INTO plain VALUES (30, 1)", "SET SESSION TRANSACTION READ WRITE", "INSERT INTO plain VALUES (30, 1)"}},
	{"next transaction", []string{"SET TRANSACTION READ ONLY", "INSERT INTO plain VALUES (31, 1)", "INSERT INTO plain VALUES (31, 1)", "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE", "BEGIN", "SET TRANSACTION READ ONLY", "COMMIT", "INSERT INTO plain VALUES (32, 1)"}},
	{"next transaction, begun", []string{"SET TRANSACTION READ ONLY", "BEGIN", "INSERT INTO plain VALUES (33, 1)", "COMMIT", "INSERT INTO plain VALUES (33, 1)"}},
	{"read only transaction", []string{"START TRANSACTION READ ONLY", "SELECT 1", "INSERT INTO plain VALUES (34, 1)", "COMMIT"}},
	{"chain", []string{"BEGIN", "INSERT INTO plain VALUES (35, 1)", "COMMIT AND CHAIN", "INSERT INTO plain VALUES (36, 1)", "ROLLBACK", "SELECT k FROM plain WHERE k IN (35, 36)"}},
	{"completion type", []string{"SET completion_type = 'CHAIN'", "BEGIN", "INSERT INTO plain VALUES (37, 1)", "COMMIT", "INSERT INTO plain VALUES (38, 1)", "ROLLBACK", "SELECT k FROM plain WHERE k IN (37, 38)", "SET completion_type = DEFAULT", "ROLLBACK"}},
	{"statement settings", []string{"mariadb:SET STATEMENT time_zone = '+09:00' FOR SELECT @@time_zone, FROM_UNIXTIME(0)", "SELECT @@time_zone = '+09:00'", "mariadb:SET STATEMENT sql_select_limit = 1 FOR SELECT v FROM t ORDER BY id", "SELECT v FROM t ORDER BY id LIMIT 3", "mysql:SELECT /*+ SET_VAR(time_zone='+09:00') */ @@time_zone", "SELECT @@time_zone = '+09:00'"}},
	{"timestamp", []string{"SET timestamp = 86400", "SELECT UNIX_TIMESTAMP(NOW())", "prepared:SELECT UNIX_TIMESTAMP(NOW())", "SET timestamp = DEFAULT", "SELECT UNIX_TIMESTAMP(NOW()) > 1000000000"}},
	{"insert id", []string{"SET insert_id = 4711", "INSERT INTO t (v) VALUES ('chosen')", "SELECT LAST_INSERT_ID(), (SELECT v FROM t WHERE id = 4711)"}},
	{"random seeds", []string{"SET rand_seed1 = 5, rand_seed2 = 9", "SELECT RAND()", "SELECT RAND()"}},
	{"user variables", []string{"SET @a = 5", "SELECT @a", "SELECT @a := @a + 1", "SELECT @a, @b", "prepared:SELECT @a", "SELECT v INTO @b FROM t WHERE id = 2", "SELECT @b", "CALL takes_out(@o)", "SELECT @o", "SET @a = NULL", "SELECT @a"}},
	{"user variable by procedure", []string{"CALL set_var()", "SELECT @inner"}},
	{"user variable by function", []string{"SELECT func_var()", "SELECT @f"}},
	{"user variable by function, prepared", []string{"prepared:SELECT func_var()", "SELECT @f"}},
	{"temporary table", []string{"CREATE TEMPORARY TABLE tt (x INT)", "INSERT INTO tt VALUES (7)", "SELECT x FROM tt", "prepared:SELECT x FROM tt", "DROP TEMPORARY TABLE tt", "SELECT x FROM tt"}},
	{"temporary table hides another", []string{"SELECT COUNT(*) FROM noauto", "CREATE TEMPORARY TABLE noauto (y INT)", "INSERT INTO noauto VALUES (8)", "SELECT * FROM noauto", "prepared:SELECT * FROM noauto", "DROP TEMPORARY TABLE noauto", "SELECT * FROM noauto", "prepared:SELECT * FROM noauto"}},
	{"temporary table by procedure", []string{"CALL make_temp()", "INSERT INTO tt VALUES (9)", "SELECT x FROM tt"}},
	{"temporary table from SELECT", []string{"CREATE TEMPORARY TABLE tt SELECT id FROM t WHERE id < 3", "SELECT COUNT(*) FROM tt"}},
	{"SQL PREPARE", []string{"PREPARE p FROM 'SELECT ? + 1'", "SET @n = 4", "EXECUTE p USING @n", "PREPARE q FROM 'SELECT 2'", "DEALLOCATE PREPARE p", "EXECUTE q", "EXECUTE p USING @n", "DROP PREPARE q", "EXECUTE q"}},
	{"named locks", []string{"SELECT GET_LOCK('{db}.one', 0)", "SELECT IS_USED_LOCK('{db}.one') = CONNECTION_ID()", "SELECT RELEASE_LOCK('{db}.one')", "SELECT RELEASE_LOCK('{db}.one')", "SELECT IS_FREE_LOCK('{db}.one')"}},
	{"two named locks", []string{"SELECT GET_LOCK('{db}.a', 0), GET_LOCK('{db}.b', 0)", "SELECT RELEASE_LOCK('{db}.a')", "SELECT IS_USED_LOCK('{db}.b') = CONNECTION_ID()", "SELECT RELEASE_ALL_LOCKS()", "SELECT IS_FREE_LOCK('{db}.b')"}},
	{"a named lock taken twice", []string{"SELECT GET_LOCK('{db}.t', 0)", "SELECT GET_LOCK('{db}.t', 0)", "SELECT RELEASE_LOCK('{db}.t')", "SELECT IS_FREE_LOCK('{db}.t')", "SELECT RELEASE_LOCK('{db}.t')", "SELECT IS_FREE_LOCK('{db}.t')"}},
	{"a named lock by expression", []string{"SELECT GET_LOCK(CONCAT('{db}', '.x'), 0)", "SELECT RELEASE_LOCK(CONCAT('{db}', '.x'))", "SELECT IS_FREE_LOCK('{db}.x')"}},
	{"a named lock in a prepared statement", []string{"prepared:SELECT GET_LOCK('{db}.p', 0)", "SELECT IS_USED_LOCK('{db}.p') = CONNECTION_ID()", "prepared:SELECT RELEASE_LOCK('{db}.p')", "SELECT IS_FREE_LOCK('{db}.p')"}},
	{"tables locked", []string{"LOCK TABLES t WRITE", "SELECT COUNT(*) FROM plain", "INSERT INTO t (v) VALUES ('locked')", "SELECT COUNT(*) FROM t WHERE v = 'locked'", "UNLOCK TABLES", "SELECT COUNT(*) FROM noauto"}},
	{"tables locked, then a transaction", []string{"LOCK TABLES t READ", "INSERT INTO t (v) VALUES ('x')", "BEGIN", "INSERT INTO t (v) VALUES ('y')", "ROLLBACK", "SELECT COUNT(*) FROM noauto"}},
	{"handler", []string{"HANDLER t OPEN", "HANDLER t READ FIRST", "HANDLER t READ NEXT", "HANDLER t CLOSE", "HANDLER t READ NEXT"}},
	{"XA", []string{"XA START '{db}'", "INSERT INTO plain VALUES (40, 1)", "XA END '{db}'", "XA PREPARE '{db}'", "XA COMMIT '{db}'", "SELECT COUNT(*) FROM plain WHERE k = 40", "XA START '{db}'", "INSERT INTO plain VALUES (41, 1)", "XA END '{db}'", "XA ROLLBACK '{db}'", "SELECT COUNT(*) FROM plain WHERE k = 41"}},
	{"last insert id", []string{"INSERT INTO t (v) VALUES ('x'), ('y')", "SELECT LAST_INSERT_ID()", "SELECT @@last_insert_id, @@identity", "prepared:SELECT LAST_INSERT_ID()", "INSERT INTO noauto VALUES (1)", "SELECT LAST_INSERT_ID()", "INSERT INTO t (id, v) VALUES (5000, 'explicit')", "SELECT LAST_INSERT_ID()", "INSERT INTO t (v) VALUES ('z')", "SELECT LAST_INSERT_ID()", "INSERT INTO t SELECT NULL, 'w'", "SELECT LAST_INSERT_ID()"}},
	{"last insert id set", []string{"SELECT LAST_INSERT_ID(42)", "SELECT LAST_INSERT_ID()", "UPDATE t SET v = 'u', id = LAST_INSERT_ID(id) WHERE id = 1", "SELECT LAST_INSERT_ID()", "SET last_insert_id = 9", "SELECT LAST_INSERT_ID()", "SET identity = 10", "SELECT @@last_insert_id", "INSERT INTO noauto VALUES (LAST_INSERT_ID())", "SELECT MAX(x) FROM noauto", "INSERT INTO noauto VALUES (LAST_INSERT_ID(66))", "SELECT LAST_INSERT_ID()"}},
	{"last insert id of ODKU", []string{"INSERT INTO t (id, v) VALUES (2, 'x') ON DUPLICATE KEY UPDATE v = 'dup', id = LAST_INSERT_ID(id)", "SELECT LAST_INSERT_ID()", "INSERT INTO t (v) VALUES ('n') ON DUPLICATE KEY UPDATE v = 'm'", "SELECT LAST_INSERT_ID()", "INSERT IGNORE INTO t (id, v) VALUES (2, 'again')", "SELECT LAST_INSERT_ID()", "REPLACE INTO t (v) VALUES ('r')", "SELECT LAST_INSERT_ID()"}},
	{"last insert id by others", []string{"CALL insert_one()", "SELECT LAST_INSERT_ID()", "SELECT func_insert()", "SELECT LAST_INSERT_ID()", "SELECT func_lastid(99)", "SELECT LAST_INSERT_ID()"}},
	{"last insert id after a failure", []string{"INSERT INTO t (v) VALUES ('good')", "INSERT INTO t (v) VALUES ('much too long for a column of twenty')", "SELECT LAST_INSERT_ID()", "INSERT INTO t (id, v) VALUES (1, 'dup')", "SELECT LAST_INSERT_ID()", "INSERT INTO t (id, v) VALUES (NULL, 'p'), (1, 'q')", "SELECT LAST_INSERT_ID()"}},
	{"last insert id, prepared", []string{"prepared:INSERT INTO t (v) VALUES ('pp')", "prepared:SELECT LAST_INSERT_ID()", "prepared:INSERT INTO t (id, v) VALUES (NULL, 'null')", "SELECT LAST_INSERT_ID()", "prepared:INSERT INTO t (id, v) VALUES (6000, 'six')", "SELECT LAST_INSERT_ID()", "INSERT INTO t (id, v) VALUES (0, 'zero')", "SELECT LAST_INSERT_ID()", "INSERT INTO t (id, v) VALUES (DEFAULT, 'def')", "SELECT LAST_INSERT_ID()"}},
	{"last insert id as a null", []string{"SET sql_auto_is_null = 1", "INSERT INTO t (v) VALUES ('odbc')", "SELECT v FROM t WHERE id IS NULL", "SELECT v FROM t WHERE id IS NULL"}},
	{"last insert id in a write", []string{"INSERT INTO t (v) VALUES ('parent')", "INSERT INTO noauto VALUES (LAST_INSERT_ID())", "SELECT MAX(x) FROM noauto", "prepared:INSERT INTO noauto VALUES (LAST_INSERT_ID() + 1)", "SELECT MAX(x) FROM noauto"}},
	{"last insert id with the row count", []string{"INSERT INTO t (v) VALUES ('1'), ('2')", "same:SELECT ROW_COUNT(), LAST_INSERT_ID()", "INSERT INTO t (v) VALUES ('1'), ('2')", "same:SELECT ROW_COUNT(), LAST_INSERT_ID()", "SELECT 1", "same:SELECT ROW_COUNT(), LAST_INSERT_ID()"}},
	{"last insert id after REPLACE and LOAD", []string{"REPLACE INTO t (id, v) VALUES (5, 'five')", "SELECT LAST_INSERT_ID()", "INSERT INTO noauto SELECT id FROM t WHERE id < 3", "SELECT LAST_INSERT_ID()", "DO LAST_INSERT_ID(3)", "SELECT LAST_INSERT_ID()", "SELECT 1", "PREPARE p FROM 'SELECT LAST_INSERT_ID()'", "EXECUTE p"}},
	{"last insert id in a transaction", []string{"BEGIN", "INSERT INTO t (v) VALUES ('tx')", "SELECT LAST_INSERT_ID()", "ROLLBACK", "SELECT LAST_INSERT_ID()"}},
	{"warnings", []string{"SELECT CAST('abc' AS SIGNED)", "same:SHOW WARNINGS", "SELECT CAST('abc' AS SIGNED)", "same:SHOW WARNINGS", "same:SHOW COUNT(*) WARNINGS", "SELECT CAST('abc' AS SIGNED), CAST('def' AS SIGNED)", "same:SELECT @@warning_count", "SELECT 1", "same:SHOW WARNINGS"}},
	{"warnings of a write", []string{"SET sql_mode = ''", "INSERT INTO plain VALUES (50, 1000)", "same:SHOW WARNINGS", "INSERT INTO plain VALUES (51, 1000)", "same:SELECT @@warning_count, @@error_count", "INSERT IGNORE INTO plain VALUES (50, 1)", "same:SHOW WARNINGS"}},
	{"errors", []string{"SELECT * FROM no_such_table", "same:SHOW ERRORS", "SELEKT", "same:SHOW WARNINGS", "SELEKT", "same:SHOW COUNT(*) ERRORS", "INSERT INTO plain VALUES (1, 1), (1, 2)", "same:SHOW ERRORS", "same:GET DIAGNOSTICS CONDITION 1 @n = MYSQL_ERRNO", "SELECT @n"}},
	{"row count", []string{"UPDATE t SET v = CONCAT(v, '!') WHERE id < 4", "same:SELECT ROW_COUNT()", "UPDATE t SET v = CONCAT(v, '?') WHERE id < 3", "same:SELECT ROW_COUNT()", "same:SELECT ROW_COUNT()"}},
	{"found rows", []string{"SELECT SQL_CALC_FOUND_ROWS v FROM t WHERE id < 6 LIMIT 2", "SELECT FOUND_ROWS()", "SELECT v FROM t WHERE id < 3", "same:SELECT FOUND_ROWS()", "SELECT v FROM t WHERE id < 4", "same:SELECT FOUND_ROWS()", "prepared:SELECT SQL_CALC_FOUND_ROWS v FROM t WHERE id < 6 LIMIT 1", "prepared:SELECT FOUND_ROWS()"}},
	{"sequences", []string{"mariadb:CREATE SEQUENCE s", "mariadb:SELECT NEXTVAL(s)", "mariadb:same:SELECT LASTVAL(s)", "mariadb:SELECT NEXTVAL(s)", "mariadb:SELECT LASTVAL(s)", "mariadb:SELECT NEXT VALUE FOR s", "mariadb:SELECT PREVIOUS VALUE FOR s", "mariadb:DROP SEQUENCE s"}},
	{"role", []string{"CREATE ROLE {db}_role", "GRANT {db}_role TO root@'%'", "SET ROLE {db}_role", "SELECT CURRENT_ROLE()", "SET ROLE NONE", "SELECT CURRENT_ROLE()", "DROP ROLE {db}_role"}},
	{"profiling and limits", []string{"SET max_statement_time_is_unknown = 1", "SET max_error_count = 3", "SELECT @@max_error_count", "SET foreign_key_checks = 0", "SELECT @@foreign_key_checks", "SET foreign_key_checks = ON, unique_checks = OFF", "SELECT @@foreign_key_checks, @@unique_checks", "SET unique_checks = 1", "SET sql_safe_updates = 1", "UPDATE t SET v = 'unsafe'", "SET sql_safe_updates = 0", "SET group_concat_max_len = 3", "SELECT GROUP_CONCAT(v ORDER BY id) FROM t WHERE id < 5", "SET auto_increment_increment = 10", "INSERT INTO t (v) VALUES ('i'), ('j')", "SELECT LAST_INSERT_ID()", "SET auto_increment_increment = 1"}},
	{"settings of every type", []string{"SET lc_messages = 'de_DE'", "SELECT no_such_column", "SET lc_messages = 'en_US'", "SET max_join_size = 18446744073709551615, long_query_time = 1.5", "SELECT @@max_join_size, @@long_query_time", "SET default_storage_engine = MyISAM", "SELECT @@default_storage_engine", "SET sql_big_selects = OFF, sql_notes = 0", "SELECT @@sql_big_selects, @@sql_notes", "DROP TABLE IF EXISTS nothing_here", "SET optimizer_switch = 'index_merge=off'", "SELECT LOCATE('index_merge=off', @@optimizer_switch)", "SET block_encryption_mode = 'aes-256-cbc'", "SELECT @@block_encryption_mode", "mariadb:SET old_mode = ''", "SET net_write_timeout = 99, wait_timeout = 555", "SELECT @@net_write_timeout, @@wait_timeout", "SET init_connect = 'x'"}},
	{"multiple results", []string{"CALL two_results()", "SELECT 1"}},
	{"DDL commits", []string{"BEGIN", "INSERT INTO plain VALUES (60, 1)", "CREATE TABLE ddl (a INT)", "ROLLBACK", "SELECT COUNT(*) FROM plain WHERE k = 60", "DROP TABLE ddl"}},
	{"a failed statement in a transaction", []string{"BEGIN", "INSERT INTO plain VALUES (61, 1)", "INSERT INTO plain VALUES (61, 1)", "SELECT COUNT(*) FROM plain WHERE k = 61", "COMMIT", "SELECT COUNT(*) FROM plain WHERE k = 61"}},
	{"compound statements", []string{"mariadb:BEGIN NOT ATOMIC SET @x = 3; SET time_zone = '+02:30'; END", "SELECT @x, @@time_zone = '+02:30'"}},
	{"comments that run", []string{"/*!50000 SET */ time_zone = '+01:30'", "SELECT @@time_zone", "/*! SET @k = 4 */", "SELECT @k", "/*!99999 SET @k = 5 */", "SELECT @k"}},
	{"session tracking chosen", []string{"SET session_track_schema = 0", "SELECT @@session_track_schema", "USE mysql", "SELECT DATABASE()"}},
	{"connection id stays", []string{"SET @c = CONNECTION_ID()", "SELECT @c = CONNECTION_ID()"}},
	{"performance of statistics", []string{"SHOW SESSION STATUS LIKE 'Com_rollback_to_savepoint'", "SHOW VARIABLES LIKE 'time_zone'", "SET time_zone = '+08:00'", "SHOW VARIABLES LIKE 'time_zone'"}},
}

// The answers to a session do not depend on other sessions that have its backends in between.
func scriptsAreAnsweredAsDirect(t *testing.T, server *lab.MySQL) {
	dbs := &stateDatabases{tb: t, server: server}
	for i, script := range stateScripts {
		t.Run(script.name, func(t *testing.T) {
			t.Parallel()
			db1, db2 := dbs.lend(t), dbs.lend(t)
			w := dbs.through(t, db2)
			kinds := []string{"default", "old"}
			if testing.Short() {
				kinds = kinds[i%2 : i%2+1] // the mixed scripts are the default one's
			}
			for _, kind := range kinds {
				var change func(*mywire.ConnectConfig)
				if kind == "old" {
					change = func(c *mywire.ConnectConfig) {
						c.Caps = mywire.WantedCaps &^ (mywire.CapDeprecateEOF | mywire.CapSessionTrack)
					}
				}
				direct, through := speakerTo(t, server.Addr(), db1, change), w.speaker(change)
				churn := newChurner(w, change)
				for _, step := range script.steps {
					want, run := runStep(server, direct, step, db1)
					if !run {
						continue
					}
					churn.run()
					got, _ := runStep(server, through, step, db2)
					if strings.Contains(step, "same:") && strings.HasPrefix(got, fmt.Sprintf("ERROR %d weir: ", mywire.ErrNotSupportedYet)) {
						continue
					}
					if want, got := comparable(server, want, db1), comparable(server, got, db2); got != want {
						t.Errorf("%s client: %s\n  through weir: %s\n  direct:       %s", kind, step, got, want)
					}
				}
				for _, c := range []*wire{direct.wire, through.wire, churn.one, churn.two} {
					_ = c.Close()
				}
			}
		})
	}
}

// runStep runs one step of a script and reports whether it is for this server.
func runStep(server *lab.MySQL, c speaker, step, db string) (answer string, run bool) {
	for _, f := range []lab.Flavor{lab.FlavorMariaDB, lab.FlavorMySQL} {
		rest, only := strings.CutPrefix(step, map[lab.Flavor]string{lab.FlavorMariaDB: "mariadb:", lab.FlavorMySQL: "mysql:"}[f])
		if only && server.Flavor() != f {
			return "", false
		}
		step = rest
	}
	step = strings.ReplaceAll(strings.TrimPrefix(step, "same:"), "{db}", db)
	if sql, prepared := strings.CutPrefix(step, "prepared:"); prepared {
		return c.askPrepared(sql), true
	}
	return c.ask(step), true
}
