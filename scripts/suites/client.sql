-- What the mariadb client does in one session, in sections that begin with
-- "-- test: NAME". Answers must not depend on when or where they are given.

-- test: types
CREATE TABLE t (a tinyint, b bigint unsigned, c decimal(20,5), d double, e date, f datetime(6), g time(3), h year,
  i char(5), j varchar(20), k varbinary(20), l blob, m text, n enum('x','y'), o set('p','q'), p bit(9), q json);
INSERT INTO t VALUES (-1, 18446744073709551615, 3.14159, 1e100, '2024-02-29', '2024-02-29 12:34:56.789012', '-12:34:56.789',
  1999, 'ab', 'Grüße 🙂', 0x00ff, 'blob', 'text', 'y', 'p,q', b'100000001', '{"a": [1, null]}');
INSERT INTO t () VALUES ();
SELECT * FROM t\G
SELECT a, b, c, d, e, f, g, h, i, j, hex(k), l, m, n, o, hex(p), q FROM t ORDER BY a IS NULL;
SELECT NULL, '', repeat('x', 300), -0e0, 1/3, TRUE;
DESCRIBE t;
SHOW CREATE TABLE t;

-- test: errors
SELECT * FROM missing;
SELEC 1;
CREATE TABLE u (id int PRIMARY KEY);
INSERT INTO u VALUES (1), (1);
INSERT INTO u VALUES (1);
SELECT * FROM u;
SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'as told', MYSQL_ERRNO = 31000;
USE missing;
SELECT 1/0, cast('x' AS int);
SHOW WARNINGS;
INSERT IGNORE INTO u VALUES (1);
SHOW WARNINGS;

-- test: transactions
CREATE TABLE t (id int AUTO_INCREMENT PRIMARY KEY, v int) ENGINE=InnoDB;
BEGIN;
INSERT INTO t (v) VALUES (1);
SAVEPOINT one;
INSERT INTO t (v) VALUES (2);
ROLLBACK TO one;
INSERT INTO t (v) VALUES (3);
COMMIT;
SELECT v FROM t ORDER BY id;
SET autocommit = 0;
INSERT INTO t (v) VALUES (4);
ROLLBACK;
SELECT count(*) FROM t;
SET autocommit = 1;
START TRANSACTION READ ONLY;
INSERT INTO t (v) VALUES (5);
COMMIT;
SELECT last_insert_id() > 0, row_count(), found_rows();
XA START 'x';
INSERT INTO t (v) VALUES (6);
XA END 'x';
XA PREPARE 'x';
XA COMMIT 'x';
SELECT v FROM t ORDER BY id;

-- test: session
SET @a = 1, @b := 'two', SESSION sql_mode = 'ANSI_QUOTES', time_zone = '+05:00';
SELECT @a, @b, @@sql_mode, @@time_zone;
CREATE TABLE "quoted" (id int);
SHOW TABLES;
SET NAMES latin1;
SELECT @@character_set_client, hex('é');
SET NAMES utf8mb4;
CREATE TEMPORARY TABLE tmp (n int);
INSERT INTO tmp VALUES (1), (2), (3);
SELECT sum(n) FROM tmp;
SELECT get_lock('weir-suite', 0), is_used_lock('weir-suite') = connection_id(), release_lock('weir-suite');
PREPARE s FROM 'SELECT ? + ?';
SET @x = 20, @y = 22;
EXECUTE s USING @x, @y;
DEALLOCATE PREPARE s;
EXECUTE s USING @x, @y;
SELECT SQL_CALC_FOUND_ROWS n FROM tmp ORDER BY n LIMIT 1;
SELECT found_rows();
USE mysql;
SELECT database();
LOCK TABLES user READ;
UNLOCK TABLES;

-- test: routines
DELIMITER //
CREATE PROCEDURE many(n int) BEGIN SELECT n; SELECT n + 1, 'second'; UPDATE nothing SET a = 1; END//
CREATE FUNCTION twice(n int) RETURNS int DETERMINISTIC RETURN 2 * n//
CREATE PROCEDURE given(OUT a int, INOUT b int) BEGIN SET a = 1; SET b = b + 1; END//
DELIMITER ;
CALL many(7);
CREATE TABLE nothing (a int);
CALL many(8);
SELECT twice(21);
SET @b = 5;
CALL given(@a, @b);
SELECT @a, @b;
CALL missing();
SELECT 'one'; SELECT 'two'; SELECT * FROM missing; SELECT 'three';

-- test: large
SELECT length(repeat('x', 20000000)) AS n, md5(repeat('x', 20000000)) AS sum;
CREATE TABLE l (b longblob);
INSERT INTO l VALUES (repeat('y', 17000000));
SELECT length(b), md5(b) FROM l;
SELECT seq, repeat('z', 50) FROM seq_1_to_3000;
SELECT md5(group_concat(seq)) FROM seq_1_to_100;

-- test: catalogue
CREATE TABLE parent (id int PRIMARY KEY, name varchar(20), KEY (name));
CREATE TABLE child (id int, parent_id int, FOREIGN KEY (parent_id) REFERENCES parent (id));
CREATE VIEW v AS SELECT id FROM parent;
SHOW FULL TABLES;
SHOW INDEX FROM parent;
SHOW COLUMNS FROM child;
SHOW CREATE VIEW v;
SELECT table_name, table_type FROM information_schema.tables WHERE table_schema = database() ORDER BY 1;
EXPLAIN SELECT * FROM parent WHERE name = 'x';
CHECK TABLE parent;
ANALYZE TABLE parent;
OPTIMIZE TABLE child;
HANDLER parent OPEN;
HANDLER parent READ FIRST;
HANDLER parent CLOSE;
DROP VIEW v;
DROP TABLE child, parent;
SHOW TABLES;
