package mysql_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/proxy/sqlscan/myscan"
)

// library is the source of a loadable function that keeps something for a connection.
const library = `
int weir_keeps_init(void *u, void *args, char *message) { return 0; }
long long weir_keeps(void *u, void *args, char *null, char *error) { static __thread long long n; return ++n; }
`

// State that a library's function leaves on the connection belongs to its client: neither a text
// nor a catalogue shows that state.
func TestFunctionsOfLibrariesPin(t *testing.T) {
	t.Parallel()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler (cc) to build a loadable function with")
	}
	dir := t.TempDir()
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		_ = os.Chmod(d, 0o755) // the server may run as another user
	}
	source := filepath.Join(dir, "keeps.c")
	if err := os.WriteFile(source, []byte(library), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(cc, "-shared", "-fPIC", "-o", filepath.Join(dir, "keeps.so"), source).CombinedOutput(); err != nil {
		t.Fatalf("compile: %v\n%s", err, out)
	}
	cfg := serverConfig()
	cfg.Settings = map[string]string{"plugin_dir": dir}
	server := labtest.MariaDB(t, cfg)
	sqlOn(t, server, "CREATE FUNCTION weir_keeps RETURNS INTEGER SONAME 'keeps.so'")
	db := databaseOn(t, server, "CREATE TABLE t (a INT)", "INSERT INTO t VALUES (1)", "CREATE TABLE fired (a INT)",
		"CREATE FUNCTION clean(a INT) RETURNS INT NO SQL RETURN a + ABS(a)",
		"CREATE FUNCTION routine() RETURNS INT NO SQL RETURN weir_keeps()",
		"CREATE TRIGGER fires BEFORE INSERT ON fired FOR EACH ROW SET NEW.a = weir_keeps()",
		"CREATE VIEW seen AS SELECT weir_keeps() AS k",
		"CREATE PROCEDURE takes(a INT) BEGIN END")
	w := startFor(t, server, db, twoBackends)
	w.dial(nil).must("DO 0")
	for _, sql := range []string{
		"SELECT weir_keeps()", "SELECT a + WEIR_KEEPS( ) FROM t", "DO `weir_keeps`()", "SELECT routine()", "INSERT INTO fired VALUES (1)",
		"SELECT k FROM seen", "CALL takes(weir_keeps())", "UPDATE t SET a = weir_keeps()", "CREATE TABLE made AS SELECT weir_keeps()",
	} {
		c := w.speaker(nil)
		c.must(sql)
		eventually(t, sql+" pins", func() bool { return w.pool().Pinned == 1 })
		_ = c.Close()
		eventually(t, "it is gone", func() bool { return w.pool().Pinned == 0 })
	}
	c := w.speaker(nil)
	for _, sql := range []string{
		"SELECT clean(a) FROM t", "SELECT TO_CHAR(NOW(), 'YYYY'), COUNT(*), clean(1) FROM t", "INSERT INTO t (a) SELECT clean(1)",
		"SET sql_mode = 'IGNORE_SPACE'", "SELECT COUNT (*) FROM t", "CREATE FUNCTION more(a INT) RETURNS INT NO SQL RETURN clean(a)", "CALL takes(clean(1))",
	} {
		if got := c.ask(sql); strings.Contains(got, "ERROR") {
			t.Errorf("%s: %s", sql, got)
		}
		eventually(t, sql+" keeps no connection", func() bool { p := w.pool(); return p.Pinned == 0 && p.Owned == 0 })
	}
	var major, minor, patch uint32
	direct := dialAt(t, server.Addr(), "", nil)
	if _, err := fmt.Sscanf(direct.one("SELECT VERSION()"), "%d.%d.%d", &major, &minor, &patch); err != nil {
		t.Fatal(err)
	}
	rows, err := direct.Query(ctxFor(t), "SELECT function FROM information_schema.SQL_FUNCTIONS")
	if err != nil || len(rows) == 0 {
		t.Fatalf("the server's functions: %d, %v", len(rows), err)
	}
	for _, row := range rows {
		if name := strings.ToLower(row[0].String); !myscan.IsBuiltIn(name, myscan.Mode{MariaDB: true, Version: major*10000 + minor*100 + patch}) {
			t.Errorf("%s is built in", name)
		}
	}
}
