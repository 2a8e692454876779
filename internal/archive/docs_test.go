package archive

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
)

// docCommands returns the shell blocks of docs/archive-format.md.
func docCommands(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("../../docs/archive-format.md")
	if err != nil {
		t.Fatal(err)
	}
	var blocks []string
	for i, part := range strings.Split(string(text), "```sh\n") {
		if i > 0 {
			block, _, _ := strings.Cut(part, "```")
			blocks = append(blocks, block)
		}
	}
	if len(blocks) != 4 {
		t.Fatalf("the page has %d shell blocks, want 4: PostgreSQL, MariaDB, age, tar", len(blocks))
	}
	return blocks
}

// shell runs commands as they are on the page.
func shell(t *testing.T, dir, commands string, env ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-euc", commands)
	cmd.Dir = dir
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}, env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil || stderr.Len() > 0 {
		t.Fatalf("%s: %v: %s", commands, err, stderr.Bytes())
	}
	return string(out)
}

// orderRows are rows as COPY and LOAD DATA both write them.
func orderRows(from, to int) []byte {
	var b bytes.Buffer
	for i := from; i < to; i++ {
		fmt.Fprintf(&b, "%d\tnote %d with a \\t tab, a \\\\ and an ü\n", i, i)
	}
	return b.Bytes()
}

func docBackup(t *testing.T, schema, content string, opts Options) string {
	t.Helper()
	dir := t.TempDir()
	repo, err := OpenRepository(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	opts.ID = "b"
	w, err := Create(t.Context(), repo, opts)
	if err != nil {
		t.Fatal(err)
	}
	before, after := "pre-data", "post-data"
	if content == "tsv" { // of MariaDB and MySQL
		before, after = "tables", "objects"
	}
	_, err = writeAll(t.Context(), w, map[string][]byte{
		SchemaPath("shop", before):                     []byte("CREATE TABLE orders (id int, note varchar(100));\n"),
		SchemaPath("shop", after):                      []byte("ALTER TABLE orders ADD PRIMARY KEY (id);\n"),
		DataPath("shop", schema, "orders", 1, content): orderRows(0, 500),
		DataPath("shop", schema, "orders", 2, content): orderRows(500, 1000),
	}, fixtureContent())
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "b")
}

const docCheck = `SELECT count(*), sum(id), min(note), sum(length(note)) FROM orders`

func wantDocCheck(t *testing.T, out, sep string) {
	t.Helper()
	length := 0
	for i := range 1000 {
		length += len([]rune(fmt.Sprintf("note %d with a \t tab, a \\ and an ü", i)))
	}
	if want := strings.Join([]string{"1000", "499500", "note 0 with a \t tab, a \\ and an ü", fmt.Sprint(length)}, sep); strings.TrimSpace(out) != want {
		t.Errorf("the restored table has %q, want %q", out, want)
	}
}

func TestDocumentedRestoreOfPostgreSQL(t *testing.T) {
	t.Parallel()
	server := labtest.Postgres(t, lab.PostgresConfig{})
	needTools(t, "zstd", "psql", "createdb", "sha256sum")
	dir := docBackup(t, "public", "copy", Options{})
	env := []string{
		"PGHOST=" + server.Host(), fmt.Sprintf("PGPORT=%d", server.Port()), "PGUSER=" + server.User(), "PGPASSWORD=" + server.Password(), "PGCLIENTENCODING=UTF8",
	}
	shell(t, dir, docCommands(t)[0], env...)
	wantDocCheck(t, shell(t, dir, "psql -XAt -F '|' -c '"+docCheck+"' copy", env...), "|")
}

func TestDocumentedRestoreOfMariaDB(t *testing.T) {
	t.Parallel()
	server := labtest.MariaDB(t, lab.MySQLConfig{})
	needTools(t, "zstd", "mariadb")
	dir := docBackup(t, "", "tsv", Options{})
	home := t.TempDir()
	options := fmt.Sprintf("[client]\nhost=%s\nport=%d\nuser=%s\npassword=%s\ndefault-character-set=utf8mb4\n", server.Host(), server.Port(), server.User(), server.Password())
	if err := os.WriteFile(filepath.Join(home, ".my.cnf"), []byte(options), 0o600); err != nil {
		t.Fatal(err)
	}
	env := "HOME=" + home
	shell(t, dir, docCommands(t)[1], env)
	got := shell(t, dir, "mariadb -BNr -e '"+strings.Replace(docCheck, "length", "char_length", 1)+"' copy", env)
	wantDocCheck(t, got, "\t")
}

func TestDocumentedDecryptionAndStream(t *testing.T) {
	t.Parallel()
	commands := docCommands(t)
	t.Run("age", func(t *testing.T) {
		t.Parallel()
		needTools(t, "age", "zstd")
		keys := ageKeys(t)
		dir := docBackup(t, "public", "copy", Options{Encryption: keys.options})
		if err := os.WriteFile(filepath.Join(dir, "key.txt"), []byte(keys.identity+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := shell(t, dir, commands[2]); got != string(orderRows(0, 500)) {
			t.Errorf("%d bytes are decrypted, want %d", len(got), len(orderRows(0, 500)))
		}
	})
	t.Run("stream", func(t *testing.T) {
		t.Parallel()
		needTools(t, "tar", "zstd")
		dir := t.TempDir()
		rows := noise(1, 2*segmentBytes)
		path := DataPath("shop", "public", "orders", 1, "copy")
		writeStream(t, filepath.Join(dir, "backup.tar"), Options{ID: "b"}, map[string][]byte{path: rows})
		if got := shell(t, dir, commands[3]); got != string(rows) {
			t.Errorf("%d bytes come out of the stream, want %d", len(got), len(rows))
		}
	})
}

func needTools(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("%s is not installed", name)
		}
	}
}
