package mysql

import (
	"slices"
	"strings"
	"testing"
)

const shop = "CREATE TABLE `o``r, (d` (\n" +
	"  `id` int NOT NULL AUTO_INCREMENT,\n" +
	"  `e` enum('a,b','it''s)','\\'') DEFAULT NULL COMMENT 'KEY (`x`), FOREIGN KEY',\n" +
	"  `c` int GENERATED ALWAYS AS (coalesce(`id`,0)) VIRTUAL,\n" +
	"  PRIMARY KEY (`id`),\n" +
	"  UNIQUE KEY `u` (`e`,`c`),\n" +
	"  KEY `k``y` (`c`),\n" +
	"  CONSTRAINT `f` FOREIGN KEY (`c`) REFERENCES `p` (`id`) ON DELETE SET NULL,\n" +
	"  CONSTRAINT `ck` CHECK (`id` > 0)\n" +
	") ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT='a, b'"

func TestSplit(t *testing.T) {
	d, err := ParseDefinition(shop)
	if err != nil {
		t.Fatal(err)
	}
	if d.String() != shop {
		t.Errorf("put together: %s", d)
	}
	table, indexes, foreign := d.Split()
	if len(table.Items) != 5 || !slices.Equal(indexes, []string{"UNIQUE KEY `u` (`e`,`c`)", "KEY `k``y` (`c`)"}) ||
		!slices.Equal(foreign, []string{"CONSTRAINT `f` FOREIGN KEY (`c`) REFERENCES `p` (`id`) ON DELETE SET NULL"}) {
		t.Errorf("%q\n%q\n%q", table.Items, indexes, foreign)
	}
	if got := []string{ItemName(indexes[1]), ItemName(foreign[0])}; !slices.Equal(got, []string{"k`y", "f"}) {
		t.Errorf("names %q", got)
	}
}

func TestSplitLeavesIndexes(t *testing.T) {
	for name, sql := range map[string]string{
		"another engine":    "CREATE TABLE `t` (\n  `a` int NOT NULL,\n  PRIMARY KEY (`a`),\n  KEY `k` (`a`)\n) ENGINE=MyISAM COMMENT=' ENGINE=InnoDB'",
		"no primary key":    "CREATE TABLE `t` (\n  `a` int NOT NULL,\n  UNIQUE KEY `k` (`a`)\n) ENGINE=InnoDB",
		"AUTO_INCREMENT":    "CREATE TABLE `t` (\n  `a` int NOT NULL,\n  `b` int NOT NULL AUTO_INCREMENT,\n  PRIMARY KEY (`a`),\n  KEY `k` (`b`)\n) ENGINE=InnoDB",
		"nothing to divide": "CREATE TABLE `t` (\n  `a` int DEFAULT NULL\n) ENGINE=InnoDB",
	} {
		d, err := ParseDefinition(sql)
		if err != nil {
			t.Fatal(err)
		}
		if table, indexes, foreign := d.Split(); len(indexes)+len(foreign) > 0 || table.String() != sql {
			t.Errorf("%s: %q %q", name, indexes, foreign)
		}
	}
}

func TestDefiner(t *testing.T) {
	for sql, want := range map[string][2]string{
		"CREATE DEFINER=`ro ot`@`%` PROCEDURE `p`() SELECT 'DEFINER=x'":      {"CREATE PROCEDURE `p`() SELECT 'DEFINER=x'", "`ro ot`@`%`"},
		"CREATE ALGORITHM=MERGE DEFINER=`a`@`b` SQL SECURITY DEFINER VIEW v": {"CREATE ALGORITHM=MERGE SQL SECURITY DEFINER VIEW v", "`a`@`b`"},
		`CREATE DEFINER="r"@"h" PACKAGE "p"`:                                 {`CREATE PACKAGE "p"`, `"r"@"h"`},
		"CREATE FUNCTION `DEFINER=x`() RETURNS int RETURN 1":                 {"CREATE FUNCTION `DEFINER=x`() RETURNS int RETURN 1", ""},
	} {
		if got, definer := Definer(sql); got != want[0] || definer != want[1] {
			t.Errorf("%s: %q %q", sql, got, definer)
		}
	}
}

// FuzzParseDefinition looks for texts that cannot be put together again.
func FuzzParseDefinition(f *testing.F) {
	f.Add(shop)
	f.Add("CREATE TABLE `t` (a'")
	f.Fuzz(func(t *testing.T, sql string) {
		d, err := ParseDefinition(sql)
		if err != nil {
			return
		}
		again, err := ParseDefinition(d.String())
		if err != nil || again.Tail != d.Tail || !slices.Equal(again.Items, d.Items) {
			t.Fatalf("%q, put together %q: %v", sql, d, err)
		}
		d.Split()
		if without, definer := Definer(sql); len(without)+len(definer) > len(sql) {
			t.Fatalf("%q has definer %q, and without it is %q", sql, definer, without)
		}
	})
}

func TestGlobalsRoundTrip(t *testing.T) {
	g := Globals{Accounts: []Account{{Name: "'a'@'%'", Statements: []string{"CREATE USER 'a'@'%'", "GRANT USAGE ON *.* TO 'a'@'%'"}}, {Name: "'b'@''"}}}
	if got := ParseGlobals(g.String()); got.String() != g.String() || len(got.Accounts) != 2 || len(got.Accounts[0].Statements) != 2 {
		t.Errorf("%q", got)
	}
}

func TestVersionNumber(t *testing.T) {
	for text, want := range map[string]int{"5.5.5-10.11.19-MariaDB": 101119, "11.4.2-MariaDB-log": 110402, "8.0.36": 80036, "9.7.0-er2": 90700, "x": 0} {
		if got := versionNumber(text); got != want {
			t.Errorf("%s: %d instead of %d", text, got, want)
		}
	}
}

// TestSameDefinitions takes what MySQL prints of one table in two ways for the same, and
// nothing else.
func TestSameDefinitions(t *testing.T) {
	const table = "CREATE TABLE `t` (\n  `a` text COLLATE utf8mb4_unicode_ci COMMENT ' CHARACTER SET utf8mb4 COLLATE utf8mb4_bin'\n) ENGINE=InnoDB AUTO_INCREMENT=7"
	for other, want := range map[string]bool{
		table: true,
		strings.Replace(table, "text COLLATE", "text CHARACTER SET utf8mb4 COLLATE", 1): true,
		strings.Replace(table, "=7", "=8", 1):                                           true,
		strings.Replace(table, "text COLLATE", "text CHARACTER SET utf8mb3 COLLATE", 1): false,
		strings.Replace(table, "unicode_ci", "bin", 1):                                  false,
		strings.Replace(table, "' CHARACTER SET utf8mb4 ", "' ", 1):                     false,
	} {
		if (&Entry{Create: table}).Same(&Entry{Create: other}) != want {
			t.Errorf("%s: same is %v", other, !want)
		}
	}
}

func TestDefinitionsAreText(t *testing.T) {
	for sql, want := range map[string]string{
		"CREATE TABLE `t` (`a` varbinary(9) DEFAULT 'ü')":                                      "CREATE TABLE `t` (`a` varbinary(9) DEFAULT 'ü')",
		"CREATE TABLE `t` (`a` varbinary(9) DEFAULT '\\0\xff\\n''\\\\', `b` text DEFAULT 'ü')": "CREATE TABLE `t` (`a` varbinary(9) DEFAULT x'00ff0a275c', `b` text DEFAULT 'ü')",
		"CREATE TABLE `t` (CHECK (`a` <> _binary'\xfe'))":                                      "CREATE TABLE `t` (CHECK (`a` <> _binary x'fe'))",
	} {
		if got := textual(sql); got != want {
			t.Errorf("%q: %s, want %s", sql, got, want)
		}
	}
}

func TestDefinitionsInAnotherDatabase(t *testing.T) {
	for _, c := range []struct {
		kind      Kind
		sql, want string
	}{
		{KindTable, "CREATE TABLE `a` (`a` int DEFAULT nextval(`a`.`s`))", "CREATE TABLE `a` (`a` int DEFAULT nextval(`b`.`s`))"},
		{KindView, "CREATE VIEW `v` AS select nextval(`a`.`s`) AS `n`,`a`.`x` AS `x` from `a`", "CREATE VIEW `v` AS select nextval(`b`.`s`) AS `n`,`a`.`x` AS `x` from `a`"},
		{KindFunction, "CREATE FUNCTION `f`() RETURNS int LANGUAGE JAVASCRIPT USING (`a`.`l` AS `l`, `c`.`l`) AS $$ `a`.`l` $$", "CREATE FUNCTION `f`() RETURNS int LANGUAGE JAVASCRIPT USING (`b`.`l` AS `l`, `c`.`l`) AS $$ `a`.`l` $$"},
		{KindProcedure, "CREATE PROCEDURE `p`() SELECT `a`.`x` FROM `a`", "CREATE PROCEDURE `p`() SELECT `a`.`x` FROM `a`"},
	} {
		e := &Entry{Kind: c.kind, Create: c.sql}
		if got := e.In("a", "b"); got != c.want {
			t.Errorf("%s, want %s", got, c.want)
		}
	}
}

func TestEngine(t *testing.T) {
	for tail, want := range map[string]string{
		") COMMENT=' ENGINE=x'":                                 "",
		") ENGINE=Aria DEFAULT CHARSET=latin1 COMMENT='x'":      "Aria",
		") /*!50100 TABLESPACE `a ENGINE=b` */ ENGINE=InnoDB":   "InnoDB",
		") ENGINE=MyISAM\n PARTITION BY HASH (a)\nPARTITIONS 2": "MyISAM",
	} {
		if got := (Definition{Tail: tail}).Engine(); got != want {
			t.Errorf("%s: %q, want %q", tail, got, want)
		}
	}
}

func TestTablespace(t *testing.T) {
	for tail, want := range map[string]string{
		") ENGINE=InnoDB COMMENT=' TABLESPACE `x`'":      "",
		") /*!50100 TABLESPACE `ts``1` */ ENGINE=InnoDB": "ts`1",
	} {
		if got := (Definition{Tail: tail}).Tablespace(); got != want {
			t.Errorf("%s: %q, want %q", tail, got, want)
		}
	}
}
