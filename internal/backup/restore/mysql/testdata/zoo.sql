SET sql_mode = 'NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES', time_zone = '+00:00', foreign_key_checks = 0;
CREATE TABLE numbers (
  id int NOT NULL PRIMARY KEY,
  t tinyint, tu tinyint unsigned, s smallint, m mediumint, i int unsigned zerofill, b bigint, bu bigint unsigned,
  d decimal(65,30), f float, fd float(7,4), db double, dd double(20,5), bo bool, bi bit(1), bb bit(64), y year
);
INSERT INTO numbers VALUES
 (0, -128, 255, -32768, -8388608, 42, -9223372036854775808, 18446744073709551615, -12345678901234567890123456789012345.123456789012345678901234567890,
  3.14159274, 123.4567, 2.2250738585072014e-308, 3.14159, true, b'1', b'1111111111111111111111111111111111111111111111111111111111111111', 1901),
 (1, 127, 0, 32767, 8388607, 0, 9223372036854775807, 0, 0.1, 16777216, 0.1, 1.7976931348623157e308, -0.1, false, b'0', b'1000000000000000000000000000000000000000000000000000000000001010', 2155),
 (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
 (3, 0, 0, 0, 0, 0, 0, 0, 0, 1e-45, -0.0001, 0.1, 0, 0, 0, 9, 0),
 (4, 0, 0, 0, 0, 0, 0, 0, 0, 0.333333343, 999.9999, 0.30000000000000004, 0, 0, 0, 92, 0);
CREATE TABLE times (
  id int NOT NULL PRIMARY KEY, d date, t time(6), dt datetime(6), ts timestamp(6) NULL, dt0 datetime, auto timestamp NOT NULL DEFAULT current_timestamp() ON UPDATE current_timestamp()
);
INSERT INTO times VALUES
 (1, '0000-00-00', '-838:59:59', '0000-00-00 00:00:00', '1970-01-01 00:00:01', '1000-01-01', '2020-02-02 02:02:02'),
 (2, '2021-02-31', '838:59:59.000000', '9999-12-31 23:59:59.999999', '2038-01-19 03:14:07.999999', NULL, '2020-03-29 02:30:00'),
 (3, '2021-00-00', '00:00:00.000001', '2021-00-15 00:00:00', '2024-10-27 00:59:59.5', '2024-02-29 23:59:59', '2000-01-01 00:00:00');
CREATE TABLE strings (
  id int NOT NULL PRIMARY KEY, c char(10), v varchar(100) CHARACTER SET latin1, u varchar(100) CHARACTER SET utf8mb4, u3 varchar(50) CHARACTER SET utf8mb3,
  g varchar(50) CHARACTER SET gbk, w varchar(50) CHARACTER SET utf16, bin binary(8), vb varbinary(300), tx text, lt longtext, bl blob, lb longblob,
  e enum('a','it''s','','ü') , s set('x','yz','w') , s2 set('x','y') CHARACTER SET latin1
) DEFAULT CHARSET=utf8mb4;
INSERT INTO strings VALUES
 (1, 'ab ', 'grün \\ "q" ''s''', 'emoji 😀 漢字', 'ñ', '漢字', 'utf16 😀', x'0001020304', x'000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9fa0a1a2a3a4a5a6a7a8a9aaabacadaeafb0b1b2b3b4b5b6b7b8b9babbbcbdbebfc0c1c2c3c4c5c6c7c8c9cacbcccdcecfd0d1d2d3d4d5d6d7d8d9dadbdcdddedfe0e1e2e3e4e5e6e7e8e9eaebecedeeeff0f1f2f3f4f5f6f7f8f9fafbfcfdfeff', 'tab\tnew\nline\r\0nul\Zsub\\N', '\\N', x'000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9fa0a1a2a3a4a5a6a7a8a9aaabacadaeafb0b1b2b3b4b5b6b7b8b9babbbcbdbebfc0c1c2c3c4c5c6c7c8c9cacbcccdcecfd0d1d2d3d4d5d6d7d8d9dadbdcdddedfe0e1e2e3e4e5e6e7e8e9eaebecedeeeff0f1f2f3f4f5f6f7f8f9fafbfcfdfeff', '', 'it''s', 'x,w', 'y'),
 (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
 (3, '', '', '', '', '', '', '', '', '', '', '', '', '', '', ''),
 (4, '\\', '\\\\', '\n', '\t', 'a', 'b', '\0', '\0', '\\N', 'N', '\\.', '%', 'ü', 'x,yz,w', 'x,y');
INSERT INTO strings (id, lt, lb) VALUES (5, repeat('long \t text ', 40000), repeat(x'00ff0a5c09', 700000));
CREATE TABLE shapes (id int NOT NULL PRIMARY KEY, g geometry NOT NULL, p point, SPATIAL KEY sp (g));
INSERT INTO shapes VALUES (1, ST_GeomFromText('POINT(1 2)'), ST_GeomFromText('POINT(0.1 -7.25)')), (2, ST_GeomFromText('POLYGON((0 0,0 9,9 9,9 0,0 0))'), NULL);
CREATE TABLE docs (id int NOT NULL PRIMARY KEY, j json);
INSERT INTO docs VALUES (1, '{"a": [1, 2.5, "ü\\n\\t", null, true], "k\\\\": "😀"}'), (2, NULL), (3, '"str"');
CREATE TABLE computed (
  a int NOT NULL, b int, c int GENERATED ALWAYS AS (a + b) STORED, d varchar(20) GENERATED ALWAYS AS (concat(b, 'x,(''')) VIRTUAL,
  PRIMARY KEY (a), KEY d (d), UNIQUE KEY c (c, b), CONSTRAINT positive CHECK (a > 0 or b <> 7)
) COMMENT='a comment, with ''quotes'', (parens) and `ticks`';
INSERT INTO computed (a, b) VALUES (1, 2), (2, 3), (-1, 6), (4, NULL);
CREATE TABLE only_computed (a int GENERATED ALWAYS AS (1 + 1) STORED);
INSERT INTO only_computed () VALUES (), (), ();
CREATE TABLE hidden (id int NOT NULL PRIMARY KEY, seen int, unseen int DEFAULT 5 INVISIBLE);
INSERT INTO hidden (id, seen, unseen) VALUES (1, 2, 3), (2, 3, 4);
CREATE TABLE auto_zero (id int NOT NULL AUTO_INCREMENT, x int, PRIMARY KEY (id)) AUTO_INCREMENT=100;
INSERT INTO auto_zero VALUES (0, 1), (-5, 2), (7, 3);
CREATE TABLE auto_second (x int NOT NULL, id int NOT NULL AUTO_INCREMENT, y int, PRIMARY KEY (x), KEY ky (y), UNIQUE KEY k (id));
INSERT INTO auto_second VALUES (1, 10, 1), (2, 20, 2);
CREATE TABLE nokey (a int, b varchar(10), UNIQUE KEY u (a), KEY b (b));
INSERT INTO nokey VALUES (1, 'x'), (NULL, 'y'), (NULL, 'y');
CREATE TABLE bare (x int);
INSERT INTO bare VALUES (1), (1), (NULL);
CREATE TABLE empty_one (id int NOT NULL PRIMARY KEY, t text, FULLTEXT KEY ft (t));
CREATE TABLE fulltexts (id int NOT NULL PRIMARY KEY, a text, b text, FULLTEXT KEY fa (a), KEY pre (a(10)), FULLTEXT KEY fb (b), KEY down (id, a(5)));
INSERT INTO fulltexts VALUES (1, 'some words', 'other words');
CREATE TABLE `select` (`from` int NOT NULL, `wh``ere "x"` int, `tab	new
line` int, `größe 漢` int, PRIMARY KEY (`from`), KEY `i``dx, (x)` (`wh``ere "x"`));
INSERT INTO `select` VALUES (1, 2, 3, 4);
CREATE TABLE `we``ird.na me/ü\%` (id int NOT NULL PRIMARY KEY, up int, KEY k (up), CONSTRAINT `f``k` FOREIGN KEY (up) REFERENCES `we``ird.na me/ü\%` (id) ON DELETE CASCADE);
INSERT INTO `we``ird.na me/ü\%` VALUES (1, NULL), (2, 1);
CREATE TABLE CamelCase (Id int NOT NULL PRIMARY KEY);
INSERT INTO CamelCase VALUES (1);
CREATE TABLE child (id int NOT NULL PRIMARY KEY, parent int, other int, KEY po (parent, other), CONSTRAINT to_parent FOREIGN KEY (parent) REFERENCES zz_parent (id) ON UPDATE CASCADE, CONSTRAINT to_cc FOREIGN KEY (other) REFERENCES CamelCase (Id));
CREATE TABLE zz_parent (id int NOT NULL PRIMARY KEY, KEY x (id));
INSERT INTO zz_parent VALUES (1), (2);
INSERT INTO child VALUES (1, 1, 1), (2, NULL, NULL);
CREATE TABLE parts (id int NOT NULL, d date NOT NULL, PRIMARY KEY (id, d)) PARTITION BY RANGE (to_days(d)) (PARTITION p0 VALUES LESS THAN (737791), PARTITION p1 VALUES LESS THAN MAXVALUE);
INSERT INTO parts VALUES (1, '2019-01-01'), (2, '2024-01-01');
CREATE TABLE log (id int NOT NULL AUTO_INCREMENT PRIMARY KEY, what varchar(100));
DELIMITER ;;
CREATE FUNCTION plus_one(x int) RETURNS int DETERMINISTIC RETURN x + 1 ;;
CREATE PROCEDURE note_it(IN w varchar(50), OUT n int) COMMENT 'it''s; one'
BEGIN
  -- a comment; with a semicolon
  INSERT INTO log (what) VALUES (concat(w, ';'));
  SELECT count(*) INTO n FROM log;
END ;;
SET sql_mode = 'ANSI_QUOTES' ;;
CREATE PROCEDURE ansi() SELECT "id" FROM "log" ;;
SET sql_mode = 'NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES' ;;
CREATE TRIGGER second AFTER INSERT ON hidden FOR EACH ROW INSERT INTO log (what) VALUES ('2nd; ü') ;;
CREATE TRIGGER first AFTER INSERT ON hidden FOR EACH ROW PRECEDES second BEGIN INSERT INTO log (what) VALUES ('1st'); SET @x = 1; END ;;
CREATE TRIGGER before_it BEFORE UPDATE ON numbers FOR EACH ROW SET NEW.t = 5 ;;
SET time_zone = 'SYSTEM' ;;
CREATE EVENT nightly ON SCHEDULE EVERY 1 DAY STARTS '2035-01-01 00:00:00' DISABLE DO DELETE FROM log WHERE id < 0 ;;
SET time_zone = '+00:00' ;;
DELIMITER ;
CREATE VIEW z_bottom AS SELECT id, seen FROM hidden WHERE seen > 0;
CREATE VIEW a_top AS SELECT b.id, plus_one(b.seen) AS more FROM z_bottom b;
CREATE ALGORITHM=MERGE SQL SECURITY INVOKER VIEW `vi``ew` AS SELECT 'ü; "x"' AS t, `from` FROM `select` WITH CASCADED CHECK OPTION;
