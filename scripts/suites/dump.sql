-- What scripts/driver-suites dumps: each kind of thing that mariadb-dump knows.
CREATE TABLE wide (id int AUTO_INCREMENT PRIMARY KEY, name varchar(100), note text, body blob, price decimal(12,4),
  seen datetime(6), flags bit(5), kind enum('a','b'), doc json, KEY (name)) DEFAULT CHARSET utf8mb4;
INSERT INTO wide (name, note, body, price, seen, flags, kind, doc)
  SELECT concat('näme-', seq), if(seq % 7 = 0, NULL, concat('it''s "', seq, '" \\ line\nnext')), unhex(sha2(seq, 256)), seq / 7,
    '2024-01-01' + INTERVAL seq MINUTE, seq % 32, if(seq % 2, 'a', 'b'), json_object('n', seq) FROM seq_1_to_2000;
CREATE TABLE keyed (a int, b varchar(10), PRIMARY KEY (a, b)) PARTITION BY HASH (a) PARTITIONS 3;
INSERT INTO keyed SELECT seq % 10, seq FROM seq_1_to_300;
CREATE TABLE empty (id int);
CREATE TABLE child (id int PRIMARY KEY, wide_id int, FOREIGN KEY (wide_id) REFERENCES wide (id) ON DELETE CASCADE);
INSERT INTO child SELECT seq, seq FROM seq_1_to_50;
CREATE VIEW seen AS SELECT id, name FROM wide WHERE flags > 3;
CREATE SEQUENCE numbers START WITH 5;
DELIMITER //
CREATE TRIGGER stamp BEFORE INSERT ON child FOR EACH ROW SET NEW.id = NEW.id + 0//
CREATE PROCEDURE tidy() BEGIN DELETE FROM child WHERE id < 0; END//
CREATE FUNCTION half(n int) RETURNS int DETERMINISTIC RETURN n DIV 2//
CREATE EVENT later ON SCHEDULE EVERY 1 YEAR STARTS '2037-01-01 00:00:00' DO DELETE FROM empty//
DELIMITER ;
