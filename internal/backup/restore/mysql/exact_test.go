package mysql_test

import (
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/backup"
	"github.com/weirdb/weir/internal/backup/archive"
	my "github.com/weirdb/weir/internal/backup/bulk/mysql"
	"github.com/weirdb/weir/internal/backup/restore"
	load "github.com/weirdb/weir/internal/backup/restore/mysql"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
)

// ways are the ways in which rows travel: each restores the newest backup into a
// database of its own.
var ways = []struct {
	name    string
	backup  backup.Options
	restore restore.Options
}{
	{"local", backup.Options{Checksums: true}, restore.Options{}},
	{"inserts", backup.Options{Checksums: true}, restore.Options{NoLocal: true}},
	{"statements", backup.Options{Checksums: true, Inserts: true}, restore.Options{}},
}

// each backs up and restores in each way, and compares what queries say.
func (r *rig) each(queries string) {
	r.t.Helper()
	want := r.client(r.db, queries)
	for _, w := range ways {
		r.backup(w.backup, archive.Options{})
		w.restore.Target = r.db + "_" + w.name
		if got := r.client(r.restored(w.restore), queries); got != want {
			r.t.Errorf("%s:\n%s\ninstead of\n%s", w.name, got, want)
		}
	}
}

// TestValuesWithoutTheirText restores values whose text is that of others: the error
// value of an ENUM beside an empty member, members that are equal, SETs with an empty
// member, and values that are none where the sql_mode is strict.
func TestValuesWithoutTheirText(t *testing.T) {
	eachServer(t, func(t *testing.T, m *lab.MySQL) {
		r := newRig(t, m, `SET sql_mode = '';
CREATE TABLE e (id int PRIMARY KEY, e enum('', 'a', 'b'), plain enum('a', 'b'), same enum('x', 'X', 'y'), uml enum('ä', 'a', 'b') CHARACTER SET utf8mb4,
 wide enum('', 'ß') CHARACTER SET utf16, digits enum('2', '1', '0'), need enum('', 'a') NOT NULL, made varchar(9) AS (CONCAT(e + 0, '.')) STORED);
INSERT INTO e (id, e, plain, same, uml, wide, digits, need) VALUES
 (1, '', 'a', 1, 1, 1, '2', ''), (2, 'nothing', 'nothing', 2, 2, 0, '1', 'nothing'), (3, 'a', 'b', 3, 3, 2, '0', 'a'), (4, NULL, NULL, NULL, NULL, NULL, NULL, 0), (5, 0, 0, 0, 0, 0, 0, 1);
CREATE TABLE s (id int PRIMARY KEY, s set('', 'a', 'b'), same set('x', 'x'), plain set('a', 'b'), big set(`+sixtyFour()+`));
INSERT INTO s VALUES (1, 0, 0, 0, 0), (2, 1, 1, 1, 1), (3, 7, 3, 3, 18446744073709551615), (4, 3, 2, 2, 9223372036854775808), (5, NULL, NULL, NULL, NULL);
CREATE TABLE b (id int PRIMARY KEY, one bit(1), all64 bit(64), odd bit(13) DEFAULT b'1010', d date NOT NULL DEFAULT '0000-00-00', dt datetime(6), ts timestamp NULL, y year, bare int NOT NULL, v int INVISIBLE DEFAULT 5);
SET time_zone = '+00:00', sql_mode = 'ALLOW_INVALID_DATES';
INSERT INTO b (id, one, all64, odd, d, dt, ts, y, bare, v) VALUES (1, b'1', 0xFFFFFFFFFFFFFFFF, b'1111111111111', '0000-00-00', '2021-02-31', '2021-10-31 02:30:00', 0, 0, 7),
 (2, b'0', 0, 0, '2021-02-31', '0000-00-00', NULL, 1901, -1, NULL), (3, NULL, NULL, NULL, '2021-00-00', NULL, NULL, NULL, 1, 5);
CREATE TABLE collated (id int PRIMARY KEY, a varchar(9), b text) DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_unicode_ci; INSERT INTO collated VALUES (1, 'a', 'b');
CREATE TABLE zero (id int AUTO_INCREMENT PRIMARY KEY, b bit(3)); SET sql_mode = 'NO_AUTO_VALUE_ON_ZERO'; INSERT INTO zero VALUES (0, 0), (-3, NULL), (7, 7);
CREATE TABLE g (id int PRIMARY KEY, g geometry NOT NULL, c geometrycollection);
INSERT INTO g VALUES (1, ST_GeomFromText('POINT(1 2)', 4326), NULL), (2, ST_GeomFromText('POINT(1 2)', 0), ST_GeomFromText('GEOMETRYCOLLECTION(POINT(1 1),LINESTRING(0 0,1 1))'));`)
		// The server of the copy may be strict.
		before := r.client("", "SELECT @@GLOBAL.sql_mode")
		r.client("", "SET GLOBAL sql_mode = 'TRADITIONAL'")
		t.Cleanup(func() { r.client("", "SET GLOBAL sql_mode = "+my.Literal(before)) })
		r.each(`SELECT id, e + 0, e, plain + 0, same + 0, uml + 0, wide + 0, digits + 0, need + 0, made FROM e ORDER BY id;
SELECT id, s + 0, same + 0, plain + 0, CAST(big AS UNSIGNED) FROM s ORDER BY id;
SELECT id, HEX(one), HEX(all64), HEX(odd), d, dt, ts, y, bare, v FROM b ORDER BY id;
SELECT id, b + 0 FROM zero ORDER BY id;
SELECT id, ST_SRID(g), HEX(g), HEX(c) FROM g ORDER BY id;`)
	})
}

func sixtyFour() string {
	members := make([]string, 64)
	for i := range members {
		members[i] = my.Literal("m" + strings.Repeat("x", i))
	}
	return strings.Join(members, ", ")
}

// TestHistoryOfRows restores what the rows of system-versioned tables were before,
// with indexes, keys and partitions on them. What no server takes back is said.
func TestHistoryOfRows(t *testing.T) {
	r := newRig(t, server(t, lab.FlavorMariaDB), `
CREATE TABLE plain (id int PRIMARY KEY, v int, up int, KEY v (v), UNIQUE KEY u (v, id), CONSTRAINT f FOREIGN KEY (up) REFERENCES plain (id)) WITH SYSTEM VERSIONING;
INSERT INTO plain VALUES (1, 1, NULL), (2, 2, 1); UPDATE plain SET v = 10 WHERE id = 2; DELETE FROM plain WHERE id = 2; UPDATE plain SET v = 11;
CREATE TABLE named (id int, x int WITHOUT SYSTEM VERSIONING, row_end int, rs timestamp(6) GENERATED ALWAYS AS ROW START, re timestamp(6) GENERATED ALWAYS AS ROW END INVISIBLE, PERIOD FOR SYSTEM_TIME (rs, re)) WITH SYSTEM VERSIONING
 PARTITION BY SYSTEM_TIME LIMIT 100 (PARTITION h HISTORY, PARTITION c CURRENT);
INSERT INTO named (id, x, row_end) VALUES (1, 1, 7); UPDATE named SET id = 2; UPDATE named SET x = 3;
CREATE TABLE gone (id int PRIMARY KEY, e enum('', 'a')) WITH SYSTEM VERSIONING; INSERT INTO gone VALUES (1, ''), (2, 'a'); DELETE FROM gone;
CREATE TABLE aria (id int PRIMARY KEY, v int) ENGINE=Aria WITH SYSTEM VERSIONING; INSERT INTO aria VALUES (1, 1); UPDATE aria SET v = 2;
CREATE TABLE long_one (id int PRIMARY KEY, v int, p char(200)) WITH SYSTEM VERSIONING; INSERT INTO long_one SELECT seq, 1, repeat('p', 200) FROM seq_1_to_8000; UPDATE long_one SET v = 2 WHERE id % 2 = 0; DELETE FROM long_one WHERE id > 6000;`)
	r.each(`SELECT *, row_start, row_end FROM plain FOR SYSTEM_TIME ALL ORDER BY row_start, id; SELECT * FROM plain ORDER BY id;
SELECT *, re FROM named FOR SYSTEM_TIME ALL ORDER BY rs; SELECT * FROM named; SELECT * FROM named PARTITION (h);
SELECT *, row_start, row_end FROM gone FOR SYSTEM_TIME ALL ORDER BY id; SELECT count(*) FROM gone;
SELECT *, row_start, row_end FROM aria FOR SYSTEM_TIME ALL ORDER BY row_start; SELECT * FROM aria;
SELECT count(*), sum(id), sum(v), sum(crc32(row_start)), sum(crc32(row_end)) FROM long_one FOR SYSTEM_TIME ALL; SELECT count(*), sum(v) FROM long_one;`)

	r.client(r.db, `CREATE TABLE by_transaction (id int PRIMARY KEY, v int, s bigint unsigned GENERATED ALWAYS AS ROW START, e bigint unsigned GENERATED ALWAYS AS ROW END, PERIOD FOR SYSTEM_TIME (s, e)) WITH SYSTEM VERSIONING;
INSERT INTO by_transaction (id, v) VALUES (1, 1); UPDATE by_transaction SET v = 2`)
	res := r.backup(backup.Options{Checksums: true}, archive.Options{})
	if text := strings.Join(res.Manifest.Warnings, "\n"); !strings.Contains(text, "by_transaction") || strings.Contains(text, "plain") {
		t.Errorf("of history that is left out: %s", text)
	}
	if got := r.client(r.restored(restore.Options{}), "SELECT id, v FROM by_transaction"); got != "1\t2" {
		t.Errorf("the rows as they are: %s", got)
	}
}

// TestSecureTimestamp restores into a server that takes no time from its clients: what
// needs one is refused before any database is touched, all else comes back.
func TestSecureTimestamp(t *testing.T) {
	labtest.RequireMariaDB(t)
	cfg := config(lab.FlavorMariaDB)
	cfg.Settings["secure-timestamp"] = "YES"
	to := labtest.MariaDB(t, cfg)
	r := newRig(t, server(t, lab.FlavorMariaDB), `CREATE TABLE a (id int PRIMARY KEY, at timestamp(6) DEFAULT now(6)); INSERT INTO a (id) VALUES (1), (2)`)
	later := r.db + "_versioned" // it comes second
	r.createDB(later)
	r.client(later, "CREATE TABLE v (id int PRIMARY KEY, v int) WITH SYSTEM VERSIONING; INSERT INTO v VALUES (1, 1); UPDATE v SET v = 2")
	r.backup(backup.Options{DSN: r.m.DSN(""), Cluster: true, Databases: []string{r.db, later}, NoGlobals: true, Checksums: true}, archive.Options{})

	target := &rig{t: t, m: to, db: r.db, repo: r.repo}
	target.createDB(r.db)
	target.client(r.db, "CREATE TABLE kept (id int)")
	_, err := target.restoreCtx(t.Context(), restore.Options{Create: true, Clean: true, IfExists: true})
	if err == nil || !strings.Contains(err.Error(), "table v") || !strings.Contains(err.Error(), "secure_timestamp=YES") {
		t.Errorf("of history: %v", err)
	}
	if got := target.client(r.db, "SHOW TABLES"); got != "kept" {
		t.Errorf("the refused restore left the tables %q", got)
	}
	if _, err := target.restoreCtx(t.Context(), restore.Options{Database: r.db, Clean: true, IfExists: true, Create: true, Verify: restore.VerifyRows}); err != nil {
		t.Errorf("without history: %v", err)
	}
	if err := load.CheckReplay(t.Context(), to.DSN("not_there_yet")); err == nil || !strings.Contains(err.Error(), "secure-timestamp=YES") {
		t.Errorf("of a replay: %v", err)
	}
	if err := load.CheckReplay(t.Context(), r.m.DSN("")); err != nil {
		t.Errorf("of a replay into a server without it: %v", err)
	}
}

// TestDatabaseKeepsItsComment restores what a database itself is: its character set
// and comment.
func TestDatabaseKeepsItsComment(t *testing.T) {
	r := newRig(t, server(t, lab.FlavorMariaDB), "")
	const comment = `it's \ a "comment" */ with ü and ;`
	r.client("", "ALTER DATABASE "+my.Ident(r.db)+" CHARACTER SET utf8mb3 COLLATE utf8mb3_czech_ci COMMENT "+my.Literal("x"))
	s := r.session("")
	r.exec(s, "ALTER DATABASE "+my.Ident(r.db)+` COMMENT 'it''s \\ a "comment" */ with ü and ;'`)
	r.backup(backup.Options{Checksums: true}, archive.Options{})
	target := r.restored(restore.Options{})
	row, err := s.Row(t.Context(), "SELECT schema_comment, default_character_set_name, default_collation_name FROM information_schema.schemata WHERE schema_name = "+my.Literal(target))
	if err != nil || row[0] != comment || row[1] != "utf8mb3" || row[2] != "utf8mb3_czech_ci" {
		t.Errorf("the copy is %q, %v", row, err)
	}
	// A database that is there already is its owner's; one that a restore makes is compared.
	r.createDB(target)
	if _, err := r.restoreCtx(t.Context(), restore.Options{DSN: r.m.DSN(target), Verify: restore.VerifyRows}); err != nil {
		t.Errorf("into a database of another character set: %v", err)
	}
}

// TestTypesThatTheServerHides checks the warning about types and literal defaults in which
// MariaDB shows a question mark, to every client, for characters of four bytes in UTF-8.
func TestTypesThatTheServerHides(t *testing.T) {
	r := newRig(t, server(t, lab.FlavorMariaDB), "CREATE TABLE hides (a enum('ä', '😀') CHARACTER SET utf8mb4, b enum('?') CHARACTER SET latin1, c varchar(10) CHARACTER SET utf8mb4, d varchar(10) CHARACTER SET utf8mb4 DEFAULT '😀');"+
		"CREATE TABLE shows (a varchar(10) DEFAULT (concat('😀', 'x'))) DEFAULT CHARSET=utf8mb4")
	warnings := r.backup(backup.Options{}, archive.Options{}).Manifest.Warnings
	if len(warnings) != 2 || !strings.Contains(warnings[0], ".hides: ") || !strings.Contains(warnings[0], "column `a`") || !strings.Contains(warnings[1], "column `d`") {
		t.Errorf("warnings: %q", warnings)
	}
}

// TestDefaultsOfServers backs up a server that lets sessions read few rows, and restores
// into one that adds to timestamps what their definitions do not say or makes no index.
func TestDefaultsOfServers(t *testing.T) {
	eachServer(t, func(t *testing.T, m *lab.MySQL) {
		for name, settings := range map[string][]string{
			"timestamps": {"explicit_defaults_for_timestamp = OFF"},
			"joins":      {"sql_big_selects = OFF", "max_join_size = 3"},
			"indexes":    {"alter_algorithm = INSTANT"},
			"commits":    {"completion_type = 2"},
		} {
			if name == "indexes" && m.Flavor() != lab.FlavorMariaDB {
				continue
			}
			t.Run(name, func(t *testing.T) {
				r := newRig(t, m, `SET explicit_defaults_for_timestamp = ON;
CREATE TABLE stamped (id int PRIMARY KEY, first timestamp NOT NULL, second timestamp NOT NULL, free timestamp NULL);
INSERT INTO stamped VALUES (1, '2021-01-01', '2021-01-02', NULL);
CREATE TABLE many (id int PRIMARY KEY, v int, KEY v (v)); INSERT INTO many VALUES (1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 6), (7, 7), (8, 8), (9, 9);`)
				for _, setting := range settings {
					variable, _, _ := strings.Cut(setting, " ")
					before := r.client("", "SELECT @@GLOBAL."+variable)
					r.client("", "SET GLOBAL "+setting)
					t.Cleanup(func() { r.client("", "SET GLOBAL "+variable+" = "+before) })
				}
				r.each(`SET sql_big_selects = ON; SHOW CREATE TABLE stamped; SELECT * FROM stamped; SELECT count(*), sum(v) FROM many;`)
			})
		}
	})
}

// TestReadOnlyByDefault restores into a server whose transactions are read-only by default.
func TestReadOnlyByDefault(t *testing.T) {
	eachServer(t, func(t *testing.T, m *lab.MySQL) {
		r := newRig(t, m, "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
		r.backup(backup.Options{}, archive.Options{})
		variable := "transaction_read_only"
		if m.Flavor() == lab.FlavorMariaDB {
			variable = "tx_read_only"
		}
		r.dropAfter(r.db + "_copy")
		r.client("", "SET GLOBAL "+variable+" = ON")
		t.Cleanup(func() { r.client("", "SET GLOBAL "+variable+" = OFF") })
		if _, err := r.restoreCtx(t.Context(), restore.Options{Create: true, Target: r.db + "_copy", Verify: restore.VerifyRows}); err != nil {
			t.Error(err)
		}
	})
}

// TestDefinitionsOfOtherClients restores what clients that did not speak UTF-8 have
// defined: their bytes mean other characters there.
func TestDefinitionsOfOtherClients(t *testing.T) {
	eachServer(t, func(t *testing.T, m *lab.MySQL) {
		r := newRig(t, m, "CREATE TABLE t (id int PRIMARY KEY, v varchar(9) CHARACTER SET utf8mb4);\nSET NAMES latin1;\n"+
			"CREATE VIEW v AS SELECT '\xe9' AS x;\nCREATE PROCEDURE p() SELECT HEX('\xe9'), 'a';\n"+
			"CREATE FUNCTION f() RETURNS varchar(9) CHARACTER SET utf8mb4 DETERMINISTIC RETURN 'a\xe9';\n"+
			"CREATE TRIGGER g BEFORE INSERT ON t FOR EACH ROW SET NEW.v = 'b\xe9';\n"+
			"CREATE EVENT e ON SCHEDULE AT '2037-01-01 00:00:00' DO SELECT 'c\xe9';\n"+
			"SET NAMES sjis;\nCREATE VIEW s AS SELECT '\x83\x5e' AS x;\nCREATE PROCEDURE q() SELECT HEX('\x83\x5e');")
		r.each(`SELECT HEX(CONVERT(x USING utf8mb4)) FROM v; CALL p(); SELECT HEX(f()); INSERT INTO t (id) VALUES (1); SELECT HEX(v) FROM t; TRUNCATE t;
SELECT HEX(CONVERT(x USING utf8mb4)) FROM s; CALL q(); SELECT HEX(CONVERT(EVENT_DEFINITION USING utf8mb4)) FROM information_schema.EVENTS WHERE EVENT_SCHEMA = DATABASE();`)
	})
}

// TestDefaultsThatAreNoText restores defaults of bytes, and what calls a sequence or a
// library by the name of its database.
func TestDefaultsThatAreNoText(t *testing.T) {
	eachServer(t, func(t *testing.T, m *lab.MySQL) {
		script := `CREATE TABLE bytes (id int PRIMARY KEY, a varbinary(9) DEFAULT 0x00ff0a275cc3, b binary(2) DEFAULT 0xfe80, c blob DEFAULT (0xff27)); CREATE FUNCTION f() RETURNS int DETERMINISTIC RETURN 1;`
		if r := (&rig{t: t, m: m}); r.maria() {
			script += "CREATE SEQUENCE s; CREATE VIEW called AS SELECT NEXTVAL(s) AS n;"
		} else if r.number("SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = 'information_schema' AND table_name = 'LIBRARIES'") > 0 {
			script += "CREATE LIBRARY l LANGUAGE JAVASCRIPT AS 'export function f() { return 1 }'; CREATE FUNCTION called() RETURNS int DETERMINISTIC LANGUAGE JAVASCRIPT USING (l) AS 'return l.f()';"
		}
		r := newRig(t, m, script)
		r.each(`INSERT INTO bytes (id) VALUES (1); SELECT HEX(a), HEX(b), HEX(c) FROM bytes; TRUNCATE bytes;
SELECT view_definition LIKE CONCAT('%', CHAR(96), DATABASE(), CHAR(96), '%') FROM information_schema.views WHERE table_schema = DATABASE()`)
		if !r.maria() {
			r.compare(r.native(r.db), r.restored(restore.Options{}))
		}
	})
}

// TestTablespaces restores a table of a general tablespace that the server does not have.
func TestTablespaces(t *testing.T) {
	r := newRig(t, server(t, lab.FlavorMySQL), "CREATE TABLESPACE weir_test ADD DATAFILE 'weir_test.ibd'; CREATE TABLE t (a int) TABLESPACE weir_test; INSERT INTO t VALUES (1)")
	want := r.native(r.db)
	r.backup(backup.Options{}, archive.Options{})
	r.admin("DROP TABLE "+my.Qualified(r.db, "t"), "DROP TABLESPACE weir_test")
	t.Cleanup(func() { r.admin("DROP TABLESPACE weir_test") }) // behind the copy
	r.with("default_storage_engine", "MyISAM")
	r.compare(want, r.restored(restore.Options{}))
}

// TestLogOfStatements restores, and replays log, into a server that logs statements, and so
// refuses to make a sequence, to change rows under READ COMMITTED, and to take rows of a log. An
// account that may not have them logged as rows is told what to do.
func TestLogOfStatements(t *testing.T) {
	r := newRig(t, server(t, lab.FlavorMariaDB), "CREATE SEQUENCE s; DO NEXTVAL(s); CREATE TABLE t (a int PRIMARY KEY); INSERT INTO t VALUES (1)")
	from := start(r.backup(backup.Options{}, archive.Options{}).Manifest)
	r.client(r.db, "INSERT INTO t VALUES (2)")
	logs := r.logs()
	r.stream(logs, from)
	want := r.native(r.db)
	r.with("binlog_format", "STATEMENT")
	r.with("tx_isolation", "READ-COMMITTED")
	r.into(r.m)
	if _, err := load.Replay(t.Context(), load.ReplayOptions{DSN: r.m.DSN(""), Storage: logs, From: from, Databases: []string{r.db}}); err != nil {
		t.Fatal(err)
	}
	r.compare(want, r.db)
	r.client("", "CREATE USER own; GRANT ALL ON "+r.db+"_own.* TO own")
	t.Cleanup(func() { r.admin("DROP USER own") })
	r.dropAfter(r.db + "_own")
	dsn := strings.Replace(r.m.DSN(""), "root@", "own@", 1)
	if _, err := r.restoreCtx(t.Context(), restore.Options{DSN: dsn, Create: true, Target: r.db + "_own"}); err == nil || !strings.Contains(err.Error(), "grant the account BINLOG ADMIN") {
		t.Errorf("an account of one database: %v", err)
	}
}

// TestOtherEngines: a server that makes a table with another storage engine is not silent about it.
func TestOtherEngines(t *testing.T) {
	r := newRig(t, server(t, lab.FlavorMariaDB), "CREATE TABLE m (a int) ENGINE=MyISAM; INSERT INTO m VALUES (1); CREATE TABLE i (a int) ENGINE=InnoDB")
	r.backup(backup.Options{}, archive.Options{})
	r.admin("SET GLOBAL enforce_storage_engine = InnoDB")
	t.Cleanup(func() { r.admin("SET GLOBAL enforce_storage_engine = NULL") })
	r.dropAfter(r.db + "_copy")
	res, err := r.restoreCtx(t.Context(), restore.Options{Create: true, Target: r.db + "_copy"})
	if err != nil {
		t.Fatal(err)
	}
	if w := strings.Join(res.Warnings, "\n"); strings.Count(w, "storage engine InnoDB instead of MyISAM") != 1 {
		t.Errorf("warnings: %q", w)
	}
}

// TestRestoreWaitsForLocks, as those of a session whose end the server has not noticed yet,
// whatever the server's own patience is.
func TestRestoreWaitsForLocks(t *testing.T) {
	r := newRig(t, server(t, lab.FlavorMariaDB), "CREATE TABLE t (a int); INSERT INTO t VALUES (1)")
	r.backup(backup.Options{}, archive.Options{})
	r.with("lock_wait_timeout", "1")
	s := r.session(r.db)
	r.exec(s, "LOCK TABLES t READ")
	done := begin(func() error {
		_, err := r.restoreCtx(t.Context(), restore.Options{Target: r.db, Clean: true})
		return err
	})
	testkit.Eventually(t, "the restore waits for the lock", func() bool {
		select {
		case err := <-done:
			t.Fatalf("the restore has ended: %v", err)
		default:
		}
		return r.number("SELECT count(*) FROM information_schema.processlist WHERE db = '"+r.db+"' AND state LIKE 'Waiting for table metadata lock%' AND time >= 2") == 1
	})
	r.exec(s, "UNLOCK TABLES")
	if err := finished(t, done); err != nil {
		t.Error(err)
	}
}
