package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/cli/clitest"
)

func TestConfigCheck(t *testing.T) {
	clitest.ClearEnvironment(t)
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		clitest.Write(t, path, text)
		return path
	}
	for name, tt := range map[string]struct{ text, verb string }{
		"kv":     {"id: 1\npeers: 1=127.0.0.1:7001\ndata: " + filepath.Join(dir, "data") + "\n", "kv serve"},
		"proxy":  {"postgres: postgres://app@db/app\npool_size: 20\n", "proxy"},
		"outbox": {"db: sqlite:shop.db\nsink: 'stdout:'\n", "outbox relay"},
	} {
		path := file(name+".yaml", tt.text)
		want := path + ": fine for weir " + tt.verb + "\n"
		if got := program.Must(t, "config", "check", path); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
		if got := program.Must(t, "config", "check", "--of", tt.verb, path); got != want {
			t.Errorf("%s, named: %q, want %q", name, got, want)
		}
	}
	if left, err := filepath.Glob(filepath.Join(dir, "data*")); err != nil || len(left) > 0 {
		t.Errorf("a check has made %q: %v", left, err)
	}
	bad := file("bad.yaml", "postgres: postgres://app@db/app\npool_sise: 20\nmode: fast\nqueue_timeout: soon\n")
	program.Refuse(t, 2, []string{
		`bad.yaml:2: unknown key "pool_sise"; did you mean pool_size?`,
		`bad.yaml:3: mode "fast": want`,
		`bad.yaml:4: queue_timeout "soon": want a duration`,
	}, "config", "check", bad)
	program.Refuse(t, 2, []string{"no sink"}, "config", "check", file("half.yaml", "db: sqlite:shop.db\n"))
	for text, want := range map[string]string{
		"postgres: x\nmode: [auto\npool_size: 3\n":   "bad.yaml:2: did not find expected ',' or ']'",
		"postgres: \"x\n":                            "bad.yaml:2: found unexpected end of stream",
		"postgres: x\npool_size: 5\n\tmode: auto\n":  "bad.yaml:3: a tab before the first character: indent with spaces",
		"\tpostgres: x\n":                            "bad.yaml:1: a tab before the first character: indent with spaces",
		"limits:\n  - user: a\n\t    pool_size: 1\n": "bad.yaml:3: a tab before the first character: indent with spaces",
		"postgres: x\nmode: \x00\n":                  "bad.yaml:2: control characters are not allowed: is this a text file, in UTF-8?",
		"postgres: x\nmode: caf\xe9\n":               "bad.yaml:2: incomplete UTF-8 octet sequence: is this a text file",
		"@postgres: x\n":                             "bad.yaml:1: found character that cannot start any token",
		"postgress: x\n":                             "bad.yaml:1: unknown key \"postgress\"; did you mean postgres?",
		"proxy:\n  postgres: x\n":                    "bad.yaml:1: unknown key \"proxy\": a file is for one verb, whose keys stand in the first column",
		"listen: x\npostgres: x\npool_size: 3\n":     "bad.yaml:1: unknown key \"listen\"; did you mean listen_postgres or listen_mysql?",
		"# nothing\n":                                "it has no lines of the form key: value",
	} {
		program.Refuse(t, 2, []string{want}, "config", "check", file("bad.yaml", text))
	}
	program.Refuse(t, 2, []string{"give --of", "kv serve"}, "config", "check", file("any.yaml", "log_level: debug\n"))
	program.Refuse(t, 2, []string{"did you mean proxy?"}, "config", "check", "--of", "proxi", bad)
	program.Refuse(t, 2, []string{"no such file"}, "config", "check", filepath.Join(dir, "gone.yaml"))
}

// The examples that come with weir are fine.
func TestConfigCheckOfTheExamples(t *testing.T) {
	clitest.ClearEnvironment(t)
	examples, err := filepath.Glob("../../contrib/*.yaml")
	if err != nil || len(examples) < 3 {
		t.Fatalf("%q: %v", examples, err)
	}
	secrets := t.TempDir() // in the place of /etc/weir
	clitest.Write(t, filepath.Join(secrets, "secret"), strings.Repeat("5", 64))
	clitest.Write(t, filepath.Join(secrets, "redis"), "a password\n")
	for _, path := range examples {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		path = filepath.Join(t.TempDir(), filepath.Base(path))
		clitest.Write(t, path, strings.ReplaceAll(string(text), "/etc/weir", secrets))
		program.Must(t, "config", "check", path)
	}
}
