package mysql_test

import (
	"testing"

	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// TestCollationOfTheDatabase: SET CHARACTER SET and LOAD DATA go by it, on a connection
// that was reset, and a session takes it along to the next one.
func TestCollationOfTheDatabase(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "ALTER DATABASE CHARACTER SET latin2 COLLATE latin2_croatian_ci"), func(c *mysql.Config) { c.PoolSize = 1 })
	other := w.dial(nil)
	other.must("SET @left = 1")
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	c, other := w.dial(nil), w.dial(nil)
	for range 2 { // the second time after what others have set
		if got := c.one("SELECT @@collation_database"); got != "latin2_croatian_ci" {
			t.Errorf("the database's is %s", got)
		}
		c.must("SET CHARACTER SET utf8mb3")
		other.must("SET NAMES latin1")
		other.one("SELECT 1")
		if got := c.one("SELECT @@collation_connection"); got != "latin2_croatian_ci" {
			t.Errorf("SET CHARACTER SET has brought %s", got)
		}
		if got := c.one("SELECT @@character_set_client"); got != "utf8mb3" {
			t.Errorf("SET CHARACTER SET has brought %s", got)
		}
	}
	if n := w.pool().Opened; n != 1 {
		t.Errorf("%d connections to the server", n)
	}
}

// TestTextsOfBytesInWideStrings: where 'ANSI' would be two characters of UTF-16, the
// settings of the next session are set nevertheless.
func TestTextsOfBytesInWideStrings(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), func(c *mysql.Config) { c.PoolSize = 1 })
	binary := func(c *mywire.ConnectConfig) { c.Charset = 63 }
	c, other := w.dial(binary), w.dial(binary)
	c.must("SET character_set_connection = utf16")
	c.must("SET sql_mode = TRADITIONAL")
	want := c.one("SELECT @@sql_mode")
	for range 2 {
		other.must("SET sql_mode = ANSI_QUOTES")
		if got := other.one("SELECT @@sql_mode"); got != "ANSI_QUOTES" {
			t.Errorf("the other session's sql_mode is %s", got)
		}
		if got := c.one("SELECT @@sql_mode"); got != want {
			t.Errorf("sql_mode is %s, was %s", got, want)
		}
		if got := c.one("SELECT @@character_set_connection"); got != "utf16" {
			t.Errorf("strings are in %s", got)
		}
	}
	if n := w.pool().Opened; n != 1 {
		t.Errorf("%d connections to the server", n)
	}
}
