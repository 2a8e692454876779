package mysql_test

import (
	"testing"

	"github.com/weirdb/weir/internal/lab"
)

// TestDatabasesOfWideCharacters: in a database whose character set has no characters of one
// byte, MariaDB garbles what it tells of the session.
func TestDatabasesOfWideCharacters(t *testing.T) {
	t.Parallel()
	onFlavors(t, func(t *testing.T, server *lab.MySQL) {
		for _, charset := range []string{"ucs2", "utf16", "utf16le", "utf32"} {
			db, home := databaseOn(t, server), databaseOn(t, server)
			sqlOn(t, server, "ALTER DATABASE "+db+" CHARACTER SET "+charset, "CREATE TABLE "+db+".t (k INT PRIMARY KEY, v VARCHAR(20))")
			for _, at := range []string{db, home} {
				w := startFor(t, server, at, nil)
				c, other := w.dial(nil), w.dial(nil)
				for _, c := range []*wire{c, other} {
					c.must("USE " + db)
				}
				c.must("SET time_zone = '+05:00', sql_mode = 'ANSI_QUOTES,STRICT_TRANS_TABLES', lc_time_names = 'de_DE', group_concat_max_len = 4321, foreign_key_checks = 0, unique_checks = 0, sql_safe_updates = 0, NAMES latin1")
				c.must("INSERT INTO t VALUES (1, 'one')")
				other.must("/* batch */ INSERT INTO t VALUES (2, 'two')")
				for range 3 {
					if got := c.one(`SELECT CONCAT(v, @@time_zone, @@lc_time_names, @@group_concat_max_len, @@character_set_client, DATABASE()) FROM "t" WHERE k = 1`); got != "one+05:00de_DE4321latin1"+db {
						t.Errorf("%s: %s", charset, got)
					}
					if got := other.one("SELECT CONCAT(v, @@character_set_client, DATABASE()) FROM t WHERE k = 2"); got != "twoutf8mb4"+db {
						t.Errorf("%s: the other session's %s", charset, got)
					}
				}
				c.must("DELETE FROM t")
				if p := w.pool(); p.Pinned != 0 {
					t.Errorf("%s: %d sessions are pinned", charset, p.Pinned)
				}
			}
		}
	})
}
