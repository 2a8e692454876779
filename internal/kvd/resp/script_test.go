package resp_test

import (
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirdb/weir/internal/kvd/resp"
	"github.com/weirdb/weir/internal/lab/labtest"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the replies in testdata")

func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }

// TestScripts plays the conversations in testdata. In a script, "> SET a 1" is a
// command, with words quoted as in redis-cli, or, as "> raw …", bytes as they are
// in a Go string, and "< +OK" the lines of the reply. "push" reads a
// message that answers nothing, "resp3" changes the protocol, and "@b" goes on
// with another connection. Replies in testdata/redis are those of Redis itself,
// byte for byte: TestScriptsAgainstRedis plays them there.
func TestScripts(t *testing.T) {
	for _, path := range scripts(t, "testdata/*/*.txt") {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			_, addr := serveFake(t, resp.Config{})
			want := readScript(t, path)
			got := play(t, addr, want)
			if *rewrite {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-rewrite to accept):\n%s", path, diff)
			}
		})
	}
}

func TestScriptsAgainstRedis(t *testing.T) {
	addr := labtest.SharedRedis(t).Addr()
	for _, path := range scripts(t, "testdata/redis/*.txt") {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			dial(t, addr).want("+OK\r\n", "FLUSHALL")
			want := readScript(t, path)
			if diff := cmp.Diff(play(t, addr, want), want); diff != "" {
				t.Errorf("%s: Redis differs (-) from the script (+):\n%s", path, diff)
			}
		})
	}
}

func scripts(t *testing.T, pattern string) []string {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	if len(paths) == 0 {
		t.Fatalf("no scripts in %s", pattern)
	}
	return paths
}

func readScript(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// play runs a script and returns it with the replies that there were.
func play(t *testing.T, addr, script string) string {
	t.Helper()
	peers := map[string]*peer{"": dial(t, addr)}
	now := peers[""]
	var b strings.Builder
	show := func(reply string) {
		for line := range strings.SplitSeq(strings.TrimSuffix(reply, "\r\n"), "\r\n") {
			b.WriteString("< " + printable(line) + "\n")
		}
	}
	for line := range strings.Lines(script) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "< ") {
			continue
		}
		b.WriteString(line + "\n")
		switch {
		case strings.HasPrefix(line, "> raw "):
			raw, err := strconv.Unquote(line[len("> raw "):])
			if err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			now.send([]byte(raw))
			show(now.reply())
		case strings.HasPrefix(line, "> "):
			args, ok := resp.SplitLine([]byte(line[2:]))
			if !ok || len(args) == 0 {
				t.Fatalf("cannot read %q", line)
			}
			show(now.do(args...))
		case line == "push":
			show(now.reply())
		case line == "resp3":
			now.resp3()
		case strings.HasPrefix(line, "@"):
			if peers[line[1:]] == nil {
				peers[line[1:]] = dial(t, addr)
			}
			now = peers[line[1:]]
		case line == "" || line[0] == '#':
		default:
			t.Fatalf("what is %q?", line)
		}
	}
	return b.String()
}

// printable escapes what an editor would not show.
func printable(line string) string {
	q := strconv.Quote(line)
	return strings.ReplaceAll(q[1:len(q)-1], `\"`, `"`)
}
