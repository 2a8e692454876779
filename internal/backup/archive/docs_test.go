package archive

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// docCommands returns the shell blocks of docs/archive-format.md.
func docCommands(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("../../../docs/archive-format.md")
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
