package mysql_test

import "github.com/weirdb/weir/internal/wire/mywire"

const (
	lenient = "SET sql_mode = ''"
	strict  = "SET sql_mode = 'STRICT_TRANS_TABLES'"
	// someRows fills g with k = 0, 0, 0, 1, 1, 1, ...
	someRows = "INSERT INTO g (k) WITH RECURSIVE s (x) AS (SELECT 0 UNION ALL SELECT x + 1 FROM s WHERE x < 900) SELECT x DIV 3 FROM s"
	// evenRows fills g with k = 0, 2, 4, ...
	evenRows = "INSERT INTO g (k) WITH RECURSIVE s (x) AS (SELECT 0 UNION ALL SELECT x + 1 FROM s WHERE x < 900) SELECT 2 * x FROM s"
	autoG    = "CREATE TABLE g (id BIGINT AUTO_INCREMENT PRIMARY KEY, k BIGINT, v INT DEFAULT 1)"
)

var groupedCases = []groupedCase{
	// Writes that become rows of one statement.
	{name: "plain rows", lane: rowsLane, setup: []string{"CREATE TABLE g (k INT, v VARCHAR(20))"}, sql: `INSERT INTO g VALUES (%d, 'v''"\\ü')`, check: "SELECT COUNT(*) = COUNT(DISTINCT k), MIN(v), MAX(v) FROM g"},
	{name: "auto increment", lane: rowsLane, own: true, setup: []string{autoG}, sql: "INSERT INTO g (k) VALUES (%d)", check: "SELECT COUNT(*) = COUNT(DISTINCT k), SUM(v) = COUNT(*) FROM g"},
	{name: "auto increment with a step of its own", lane: rowsLane, own: true, session: "SET auto_increment_increment = 7, auto_increment_offset = 3", setup: []string{autoG}, sql: "INSERT INTO g (k) VALUES (%d)", check: "SELECT MIN(id % 7), MAX(id % 7) FROM g"},
	{name: "auto increment that is not the key", lane: rowsLane, own: true, setup: []string{"CREATE TABLE g (k BIGINT PRIMARY KEY, id INT UNSIGNED AUTO_INCREMENT, UNIQUE (id)) AUTO_INCREMENT = 4000000000"}, sql: "INSERT INTO g (k) VALUES (%d)", check: "SELECT MIN(id) FROM g"},
	{name: "defaults and generated columns", lane: rowsLane, setup: []string{"CREATE TABLE g (k INT, d VARCHAR(9) DEFAULT 'dflt', n DECIMAL(6,2) DEFAULT 1.50, s INT GENERATED ALWAYS AS (k * 2) STORED, w INT GENERATED ALWAYS AS (k * 3) VIRTUAL)"}, sql: "INSERT INTO g (k, d) VALUES (%d, DEFAULT)", check: "SELECT MIN(d), MIN(n), SUM(s = 2 * k), SUM(w = 3 * k) = COUNT(*) FROM g WHERE k < 10"},
	{name: "literal and swapped columns", lane: rowsLane, setup: []string{"CREATE TABLE g (a INT, b VARCHAR(9), c VARCHAR(9))"}, sql: "INSERT INTO g (c, a, b) VALUES ('real', %d, 'x')", check: "SELECT a, b, c FROM g ORDER BY a LIMIT 10"},
	{name: "semicolons, comments and hints in literals", lane: rowsLane, setup: []string{"CREATE TABLE g (k INT, v VARCHAR(99))"}, sql: "INSERT INTO g VALUES (%d, 'a; DROP TABLE g; -- /* batch:off */ ?')", text: true, check: "SELECT MIN(v), MAX(v) FROM g"},
	{name: "notes of single rows", lane: rowsLane, setup: []string{"CREATE TABLE g (k INT, n DECIMAL(6,1))"}, sql: "INSERT INTO g VALUES (%d, %s)", value: every(3, "1.55", "1.5"), check: "SELECT SUM(n = 1.6) > 0 FROM g"},
	{name: "warnings that name no row", setup: []string{"CREATE TABLE g (k INT, n VARCHAR(9))"}, sql: "INSERT INTO g VALUES (%d, CAST(%s AS CHAR(2)))", value: every(3, "'xxx'", "'x'"), check: "SELECT COUNT(*) > 0 FROM g"},
	{name: "warnings of functions", setup: []string{"CREATE TABLE g (k INT, n BLOB)"}, sql: "INSERT INTO g VALUES (%d, UNCOMPRESS(%s))", value: every(3, "'xxxxxxxxxxxxx'", "NULL"), check: "SELECT COUNT(*) > 0 FROM g"},
	{name: "warnings of the parser", setup: []string{"CREATE TABLE g (k INT, n VARCHAR(9))"}, sql: "INSERT INTO g VALUES (%d, %s)", value: every(3, "_utf8'x'", "'x'"), check: "SELECT COUNT(*) > 0 FROM g"},
	{name: "warnings of single rows, two each", root: true, lane: rowsLane, session: "SET max_error_count = 3", setup: []string{"CREATE TABLE g (k INT, n DECIMAL(6,1), m DECIMAL(6,1))"}, sql: "INSERT INTO g VALUES (%d, %s)", value: every(2, "1.55, 1.55", "1.5, 1.5"), check: "SELECT SUM(n = 1.6) > 0 FROM g"},
	{name: "foreign key", lane: rowsLane, setup: []string{"CREATE TABLE p (k INT PRIMARY KEY)", "INSERT INTO p WITH RECURSIVE s (x) AS (SELECT 0 UNION ALL SELECT x + 1 FROM s WHERE x < 900) SELECT 2 * x FROM s", "CREATE TABLE g (k INT, CONSTRAINT f FOREIGN KEY (k) REFERENCES p (k))"}, sql: "INSERT INTO g VALUES (%d)", check: "SELECT COUNT(*) FROM g WHERE k % 2 = 1"},
	{name: "partitioned", lane: rowsLane, own: true, setup: []string{"CREATE TABLE g (id BIGINT AUTO_INCREMENT, k INT, KEY (id)) PARTITION BY HASH (k) PARTITIONS 3"}, sql: "INSERT INTO g (k) VALUES (%d)", check: "SELECT COUNT(*) = COUNT(DISTINCT id) FROM g"},
	{name: "value without a partition", lane: rowsLane, setup: []string{"CREATE TABLE g (k INT, n INT) PARTITION BY RANGE (n) (PARTITION a VALUES LESS THAN (5), PARTITION b VALUES LESS THAN (12))"}, sql: "INSERT INTO g VALUES (%d, %s)", value: every(3, "20", "7"), check: "SELECT MAX(n) FROM g"},
	{name: "unique key", lane: rowsLane, setup: []string{"CREATE TABLE g (k INT UNIQUE)", evenRows}, sql: "INSERT INTO g VALUES (%d)", check: "SELECT COUNT(*) = COUNT(DISTINCT k) FROM g"},
	{name: "unique key and auto increment", lane: rowsLane, own: true, setup: []string{"CREATE TABLE g (id BIGINT AUTO_INCREMENT PRIMARY KEY, k INT UNIQUE)", evenRows}, sql: "INSERT INTO g (k) VALUES (%d)", check: "SELECT COUNT(*) = COUNT(DISTINCT k) FROM g"},
	{name: "found rows does not touch inserts", lane: rowsLane, own: true, caps: mywire.CapFoundRows, setup: []string{autoG}, sql: "INSERT INTO g (k) VALUES (%d)", check: "SELECT COUNT(*) > 0 FROM g"},

	// Writes that do not fit among rows, but in a transaction.
	{name: "null key", setup: []string{"CREATE TABLE g (k INT, n INT NOT NULL)"}, session: lenient, sql: "INSERT INTO g VALUES (%[1]d, NULLIF(%[1]d %% 3, 0))", check: "SELECT COUNT(*) FROM g WHERE n = 0"},
	{name: "null without strict mode", session: lenient, setup: []string{"CREATE TABLE g (k INT, n INT NOT NULL)"}, sql: "INSERT INTO g VALUES (%d, %s)", value: every(3, "NULL", "1"), check: "SELECT COUNT(*) FROM g WHERE n = 0"},
	{name: "null parameter without strict mode", session: lenient, nulls: true, setup: []string{"CREATE TABLE g (k INT, n INT NOT NULL)"}, sql: "INSERT INTO g VALUES (%[1]d, %[1]d)", check: "SELECT COUNT(*) FROM g WHERE n = 0"},
	{name: "null parameter with strict mode", lane: rowsLane, nulls: true, setup: []string{"CREATE TABLE g (k INT, n INT NOT NULL)"}, sql: "INSERT INTO g VALUES (%[1]d, %[1]d)", check: "SELECT COUNT(*) FROM g WHERE n = 0"},
	{name: "truncation without strict mode", session: lenient, setup: []string{"CREATE TABLE g (k INT, t TINYINT, v VARCHAR(2))"}, sql: "INSERT INTO g VALUES (%[1]d, (%[1]d %% 7 = 3) * 300, (%[1]d %% 9 = 4) * 300)", check: "SELECT MAX(t), MAX(LENGTH(v)) FROM g"},
	{name: "truncation with strict mode", session: strict, lane: rowsLane, setup: []string{"CREATE TABLE g (k INT, t TINYINT)"}, sql: "INSERT INTO g VALUES (%d, %s)", value: every(3, "200", "100"), check: "SELECT MAX(t) FROM g"},
	{name: "explicit ids", setup: []string{autoG}, sql: "INSERT INTO g (id, k) VALUES (%[1]d + 1000, %[1]d)", check: "SELECT SUM(id = k + 1000) = COUNT(*) FROM g"},
	{name: "explicit ids of a key that is not shown", mysql: true, session: "SET show_gipk_in_create_table_and_information_schema = OFF", setup: []string{"SET sql_generate_invisible_primary_key = ON", "CREATE TABLE g (k INT)"}, sql: "INSERT INTO g (my_row_id, k) VALUES (3 * %[1]d + 1000, %[1]d)", check: "SELECT SUM(my_row_id = 3 * k + 1000) = COUNT(*) FROM g"},
	{name: "generated by 0 or NULL", own: true, setup: []string{autoG}, sql: "INSERT INTO g (id, k) VALUES (NULLIF(%[1]d %% 2, 1), %[1]d)", check: "SELECT COUNT(*) = COUNT(DISTINCT k) FROM g"},
	{name: "several rows", setup: []string{autoG}, sql: "INSERT INTO g (id, k) VALUES (2 * %[1]d + 1, %[1]d), (2 * %[1]d + 2, -1)", check: "SELECT SUM(k = -1) = SUM(k >= 0) FROM g"},
	{name: "ignore", setup: []string{"CREATE TABLE g (k INT PRIMARY KEY)", evenRows}, sql: "INSERT IGNORE INTO g VALUES (%d)", check: "SELECT COUNT(*) = COUNT(DISTINCT k) FROM g"},
	{name: "ignore and auto increment", own: false, setup: []string{"CREATE TABLE g (id BIGINT AUTO_INCREMENT PRIMARY KEY, k INT UNIQUE)", evenRows}, sql: "INSERT IGNORE INTO g (id, k) VALUES (%[1]d + 5000, %[1]d)", check: "SELECT COUNT(*) = COUNT(DISTINCT k) FROM g"},
	{name: "ignore truncation", setup: []string{"CREATE TABLE g (k INT, t TINYINT)"}, sql: "INSERT IGNORE INTO g VALUES (%[1]d, (%[1]d %% 7 = 3) * 500)", check: "SELECT MAX(t) FROM g"},
	{name: "replace", setup: []string{"CREATE TABLE g (k INT PRIMARY KEY, v INT DEFAULT 1)", evenRows}, sql: "REPLACE INTO g VALUES (%[1]d, %[1]d)", check: "SELECT SUM(v = k) FROM g WHERE k < 10"},
	{name: "on duplicate key update", setup: []string{"CREATE TABLE g (k INT PRIMARY KEY, n INT DEFAULT 1)", evenRows}, sql: "INSERT INTO g (k) VALUES (%d) ON DUPLICATE KEY UPDATE n = n + (k %% 4 = 0)", check: "SELECT MIN(n), MAX(n) FROM g WHERE k < 10"},
	{name: "on duplicate key update, found rows", caps: mywire.CapFoundRows, setup: []string{"CREATE TABLE g (k INT PRIMARY KEY, n INT DEFAULT 1)", evenRows}, sql: "INSERT INTO g (k) VALUES (%d) ON DUPLICATE KEY UPDATE n = n + (k %% 4 = 0)", check: "SELECT MIN(n), MAX(n) FROM g WHERE k < 10"},
	{name: "on duplicate key update and auto increment", setup: []string{"CREATE TABLE g (id BIGINT AUTO_INCREMENT PRIMARY KEY, k INT UNIQUE, n INT DEFAULT 1)", evenRows}, sql: "INSERT INTO g (id, k) VALUES (%[1]d + 5000, %[1]d) ON DUPLICATE KEY UPDATE n = n + 1", check: "SELECT COUNT(*) = COUNT(DISTINCT k) FROM g"},
	{name: "insert select", setup: []string{"CREATE TABLE g (k INT)", "CREATE TABLE s (k INT)", "INSERT INTO s VALUES (1), (2), (3)"}, sql: "INSERT INTO g SELECT s.k + %[1]d * 10 FROM s WHERE s.k <= %[1]d %% 4", check: "SELECT COUNT(*) = COUNT(DISTINCT k) FROM g"},
	{name: "insert set", setup: []string{"CREATE TABLE g (k INT, v INT)"}, sql: "INSERT INTO g SET k = %[1]d, v = %[1]d", check: "SELECT COUNT(*) = SUM(k = v) FROM g"},
	{name: "insert returning", mariadb: true, setup: []string{"CREATE TABLE g (k INT PRIMARY KEY, d VARCHAR(9) DEFAULT 'x')"}, sql: "INSERT INTO g (k) VALUES (%d) RETURNING k, d, k + 1", check: "SELECT COUNT(*) > 0 FROM g"},
	{name: "insert returning, in the older form", without: mywire.CapDeprecateEOF, mariadb: true, setup: []string{"CREATE TABLE g (k INT PRIMARY KEY, d VARCHAR(9) DEFAULT 'x')", evenRows}, sql: "INSERT INTO g (k) VALUES (%d) RETURNING k, d, k + 1", check: "SELECT COUNT(*) > 0 FROM g"},
	{name: "auto increment without extras", lane: rowsLane, own: true, without: mywire.CapDeprecateEOF | mywire.CapSessionTrack | mywire.CapMultiStatements | mywire.CapMultiResults | mywire.CapPSMultiResults, setup: []string{autoG}, sql: "INSERT INTO g (k) VALUES (%d)", check: "SELECT COUNT(*) = COUNT(DISTINCT k) FROM g"},
	{name: "delete returning", mariadb: true, setup: []string{"CREATE TABLE g (k INT)", someRows}, sql: "DELETE FROM g WHERE k = %d RETURNING k", check: "SELECT COUNT(*) = SUM(k > 9) FROM g"},
	{name: "update", setup: []string{"CREATE TABLE g (k INT, n INT DEFAULT 0)", someRows}, sql: "UPDATE g SET n = k %% 2 WHERE k = %d", check: "SELECT SUM(n) FROM g WHERE k < 10"},
	{name: "update, found rows", caps: mywire.CapFoundRows, setup: []string{"CREATE TABLE g (k INT, n INT DEFAULT 0)", someRows}, sql: "UPDATE g SET n = k %% 2 WHERE k = %d", check: "SELECT SUM(n) FROM g WHERE k < 10"},
	{name: "update violating a check", setup: []string{"CREATE TABLE g (k INT, n INT DEFAULT 0, CONSTRAINT c CHECK (n < 100))", someRows}, sql: "UPDATE g SET n = k %% 5 * 30 WHERE k = %d", check: "SELECT MAX(n) FROM g"},
	{name: "update with limit and order", setup: []string{"CREATE TABLE g (k INT, n INT DEFAULT 0)", someRows}, sql: "UPDATE g SET n = 1 WHERE k = %d ORDER BY n LIMIT 2", check: "SELECT SUM(n) FROM g WHERE k < 10"},
	{name: "delete", setup: []string{"CREATE TABLE g (k INT)", someRows}, sql: "DELETE FROM g WHERE k = %d", check: "SELECT COUNT(*) FROM g WHERE k < 10"},
	{name: "delete with a foreign key", setup: []string{"CREATE TABLE g (k INT PRIMARY KEY)", evenRows, "CREATE TABLE c (k INT, CONSTRAINT f FOREIGN KEY (k) REFERENCES g (k))", "INSERT INTO c SELECT k FROM g WHERE k % 4 = 0"}, sql: "DELETE FROM g WHERE k = %d", check: "SELECT COUNT(*) FROM g WHERE k < 10"},
	{name: "warnings that are none", session: "SET sql_notes = 0", setup: []string{"CREATE TABLE g (k INT, n DECIMAL(6,1))"}, lane: rowsLane, sql: "INSERT INTO g VALUES (%d, 1.55)", check: "SELECT MIN(n) FROM g"},
	{name: "no ids by SQL mode", session: "SET sql_mode = 'STRICT_TRANS_TABLES,NO_AUTO_VALUE_ON_ZERO'", setup: []string{autoG}, sql: "INSERT INTO g (id, k) VALUES (%[1]d, %[1]d)", check: "SELECT SUM(id = k) = COUNT(*) FROM g"},

	// Writes that are never grouped.
	{name: "triggers", never: true, setup: []string{"CREATE TABLE g (k INT)", "CREATE TRIGGER a AFTER INSERT ON g FOR EACH ROW INSERT INTO log VALUES (NEW.k)"}, sql: "INSERT INTO g VALUES (%d)", check: "SELECT COUNT(*) = (SELECT COUNT(*) FROM g) FROM log"},
	{name: "MyISAM", never: true, setup: []string{"CREATE TABLE g (k INT PRIMARY KEY) ENGINE = MyISAM", evenRows}, sql: "INSERT INTO g VALUES (%d)", check: "SELECT COUNT(*) = COUNT(DISTINCT k) FROM g"},
	{name: "view", never: true, setup: []string{"CREATE TABLE b (k INT)", "CREATE VIEW g AS SELECT k FROM b WHERE k % 3 > 0 WITH CHECK OPTION"}, sql: "INSERT INTO g VALUES (%d)", check: "SELECT COUNT(*) FROM b WHERE k % 3 = 0"},
	{name: "update of two tables", never: true, setup: []string{"CREATE TABLE g (k INT, n INT DEFAULT 0)", someRows, "CREATE TABLE h (k INT, n INT DEFAULT 0)", "INSERT INTO h (k) SELECT k FROM g"}, sql: "UPDATE g, h SET g.n = 1, h.n = 1 WHERE g.k = %[1]d AND h.k = %[1]d", check: "SELECT SUM(g.n), SUM(h.n) FROM g, h WHERE g.k = h.k AND g.k < 10"},
	{name: "stored function", never: true, root: true, setup: []string{"CREATE TABLE g (k INT)", "CREATE FUNCTION f (x INT) RETURNS INT DETERMINISTIC MODIFIES SQL DATA BEGIN INSERT INTO log VALUES (x); RETURN x; END"}, sql: "INSERT INTO g VALUES (f(%d))", check: "SELECT COUNT(*) = (SELECT COUNT(*) FROM g) FROM log"},
	{name: "settings of the lane's connection", never: true, setup: []string{"CREATE TABLE g (k INT, a BIGINT, b BIGINT, c INT)"}, sql: "INSERT INTO g VALUES (%d, @@innodb_lock_wait_timeout, @@lock_wait_timeout, @@max_error_count)", check: "SELECT DISTINCT a, b, c FROM g"},
	{name: "state of the transaction", mariadb: true, never: true, setup: []string{"CREATE TABLE g (k INT, a INT)"}, sql: "INSERT INTO g VALUES (%d, @@in_transaction)", check: "SELECT DISTINCT a FROM g"},
	{name: "autocommit off", never: true, session: "SET autocommit = 0", text: true, setup: []string{"CREATE TABLE g (k INT)"}, sql: "INSERT INTO g VALUES (%d)", check: "SELECT COUNT(*) FROM g"},
	{name: "batch off", never: true, setup: []string{"CREATE TABLE g (k INT)"}, hint: "/* batch:off */ ", sql: "INSERT INTO g VALUES (%d)", check: "SELECT COUNT(*) > 0 FROM g"},
	{name: "hint in a literal only", never: true, setup: []string{"CREATE TABLE g (k INT, v VARCHAR(30))"}, hint: "/* no hint */ ", sql: "INSERT INTO g VALUES (%d, '/* batch */')", check: "SELECT COUNT(*) FROM g"},
}
