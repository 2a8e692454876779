package clitest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
)

// Page is a page of the documentation whose commands are executed.
//
// Each fenced block of the language sh is executed, all blocks of a page in one shell, in order
// and in an empty directory, unless a comment before it says why not:
//
//	<!-- not run: it needs a cluster of Kubernetes -->
//
// Commands for a step that a reader takes by waiting are in a comment, too, and run before the
// block:
//
//	<!-- first: await pg_isready -q -h 127.0.0.1 -p 6432 -->
//
// Here await repeats a command until it succeeds. A block of the language text right after an
// executed one is the expected output of that: its lines have to appear in this order, other
// lines may come between them, and … stands for anything within a line.
type Page struct {
	Name   string
	Blocks []Block // of the language sh
}

// Block is a block of commands.
type Block struct {
	Line   int // line number of the fence
	Text   string
	NotRun string   // the reason; empty: it is executed
	First  []string // commands to run before it
	Output []string // lines that it must print
}

var (
	pageComment = regexp.MustCompile(`^\s*<!-- (not run|first): (.*\S) -->\s*$`)
	pageFence   = regexp.MustCompile("^(\\s*)```\\s*(\\S*)")
)

// ParsePage parses a page. It rejects comments that belong to no block.
func ParsePage(name, text string) (Page, error) {
	p := Page{Name: name}
	var next Block
	var inside *Block
	language, open, indent, output := "", false, "", false
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimRight(line, "\r\n")
		fence := pageFence.FindStringSubmatch(line)
		switch {
		case open && fence != nil:
			if inside != nil && language == "sh" {
				p.Blocks = append(p.Blocks, *inside)
			}
			output = inside != nil && language == "sh"
			open, inside = false, nil
		case open && language == "sh":
			inside.Text += strings.TrimPrefix(line, indent) + "\n"
		case open && inside != nil: // output of the block before
			inside.Output = append(inside.Output, line)
		case open:
		case fence != nil:
			indent, language, open = fence[1], fence[2], true
			switch {
			case language == "sh":
				next.Line = number
				block := next
				inside, next = &block, Block{}
			case next.NotRun != "" || next.First != nil:
				return p, fmt.Errorf("%s:%d: the comment before this block belongs to a block of sh", name, number)
			case language == "text" && output:
				inside = &p.Blocks[len(p.Blocks)-1]
			}
			output = false
		default:
			if m := pageComment.FindStringSubmatch(line); m != nil {
				if m[1] == "first" {
					next.First = append(next.First, m[2])
				} else {
					next.NotRun = m[2]
				}
				continue
			}
			if strings.TrimSpace(line) == "" {
				continue
			}
			output = false
			if next.NotRun != "" || next.First != nil {
				return p, fmt.Errorf("%s:%d: the comment above belongs to no block", name, number)
			}
		}
	}
	if open || next.NotRun != "" || next.First != nil {
		return p, fmt.Errorf("%s: ends within a block, or with a comment of none", name)
	}
	return p, nil
}

// Runs reports whether any block is executed.
func (p Page) Runs() bool {
	for _, b := range p.Blocks {
		if b.NotRun == "" {
			return true
		}
	}
	return false
}

// pagePorts are the ports that pages use. They are replaced when a page is executed, so that
// pages can run concurrently, and beside the machine's own servers.
var pagePorts = regexp.MustCompile(`\b(3306|3307|3308|4222|5432|5433|5434|6379|6380|6432|6433|740[1-3]|741[1-3]|918[7-9]|919[0-3])\b`)

// pagePrelude is the beginning of a page's shell script.
const pagePrelude = `set -eu -o pipefail
await() {
	for _ in $(seq 600); do
		if "$@" >/dev/null 2>&1; then return 0; fi
		sleep 0.2
	done
	echo "gave up waiting for: $*"
	return 1
}
finish() {
	status=$?
	for pid in $(jobs -p); do kill "$pid" 2>/dev/null || :; done
	wait
	exit $status
}
trap finish EXIT
`

// script returns the page as a shell script that prints where each block begins.
func (p Page) script() string {
	var b strings.Builder
	b.WriteString(pagePrelude)
	for _, block := range p.Blocks {
		if block.NotRun != "" {
			continue
		}
		for _, command := range block.First {
			b.WriteString(command + "\n")
		}
		fmt.Fprintf(&b, "echo; echo '@@ %d'\n%s", block.Line, block.Text)
	}
	b.WriteString("echo; echo '@@ end'\n")
	return b.String()
}

// RunPage executes the commands of a page. root is the checkout, whose examples and other files
// are linked into the directory of the commands.
func RunPage(t *testing.T, root string, page Page) {
	t.Helper()
	text := page.script()
	dir := t.TempDir()
	for _, name := range []string{"examples", "contrib", "deploy", "scripts"} {
		if err := os.Symlink(filepath.Join(root, name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(labtest.Weir(t), filepath.Join(dir, "bin/weir")); err != nil {
		t.Fatal(err)
	}
	ports := map[string]string{"6432": "", "3307": "", "9187": "", "9188": ""} // of servers that are given none
	for _, port := range pagePorts.FindAllString(text, -1) {
		ports[port] = ""
	}
	addrs := labtest.Addrs(t, len(ports))
	for port := range ports {
		_, ports[port], _ = strings.Cut(addrs[0], ":")
		addrs = addrs[1:]
	}
	renumber := func(s string) string {
		return pagePorts.ReplaceAllStringFunc(s, func(port string) string { return ports[port] })
	}
	// Debian's psql in PATH is a Perl program that looks for the real one, which takes ten
	// times as long as running that.
	clients, _, err := lab.FindPostgres(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	var environment []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "PG") && !strings.HasPrefix(kv, "MYSQL_") && (!strings.HasPrefix(kv, "WEIR_") || keptFor(kv)) {
			environment = append(environment, kv)
		}
	}
	cmd := exec.CommandContext(t.Context(), "bash", "-c", renumber(text))
	cmd.Dir = dir
	cmd.Env = append(environment, renumber("WEIR_LISTEN_POSTGRES=127.0.0.1:6432"), renumber("WEIR_LISTEN_MYSQL=127.0.0.1:3307"),
		renumber("WEIR_ADMIN=127.0.0.1:9187"), renumber("WEIR_OUTBOX_ADMIN=127.0.0.1:9188"),
		"PATH="+filepath.Join(dir, "bin")+":"+clients+":"+os.Getenv("PATH")+":"+filepath.Join(root, "bin/tools"), "LC_ALL=C.UTF-8", "PSQLRC=/dev/null", "PAGER=cat")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	// A process group of its own, so that nothing that it has started outlives it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	err = cmd.Run()
	printed := out.String()
	sections := pageSections(printed)
	if err != nil || sections["end"] == nil {
		last := 0
		for at := range sections {
			if n, e := strconv.Atoi(at); e == nil {
				last = max(last, n)
			}
		}
		t.Fatalf("%s: the block of line %d: %v\n%s", page.Name, last, err, printed)
	}
	for _, block := range page.Blocks {
		if missing := lacks(sections[strconv.Itoa(block.Line)], block.Output, renumber); missing != "" && block.NotRun == "" {
			t.Errorf("%s: the block of line %d did not print %q (in this order), but\n%s",
				page.Name, block.Line, missing, strings.Join(sections[strconv.Itoa(block.Line)], "\n"))
		}
	}
}

// keptFor reports whether a variable tells the lab where its servers are.
func keptFor(variable string) bool {
	name, _, _ := strings.Cut(variable, "=")
	return strings.HasSuffix(name, "_BIN") || strings.HasSuffix(name, "_DIR") || strings.HasSuffix(name, "_SERVER")
}

// pageSections returns the lines that each block has printed, by the line number of the block.
func pageSections(printed string) map[string][]string {
	sections := make(map[string][]string)
	at := ""
	for line := range strings.Lines(printed) {
		line = strings.TrimRight(line, "\n")
		if place, ok := strings.CutPrefix(line, "@@ "); ok {
			at = place
			sections[at] = []string{}
			continue
		}
		sections[at] = append(sections[at], line)
	}
	return sections
}

// lacks returns the first wanted line that was not printed after those before it, or "".
// Consecutive spaces count as one.
func lacks(printed, wanted []string, renumber func(string) string) string {
	for _, line := range wanted {
		want := strings.Join(strings.Fields(renumber(line)), " ")
		if want == "" || want == "…" {
			continue
		}
		parts := strings.Split(want, "…")
		for i := range parts {
			parts[i] = regexp.QuoteMeta(parts[i])
		}
		pattern := regexp.MustCompile("^" + strings.Join(parts, ".*") + "$")
		found := false
		for i, have := range printed {
			if pattern.MatchString(strings.Join(strings.Fields(have), " ")) {
				printed, found = printed[i+1:], true
				break
			}
		}
		if !found {
			return line
		}
	}
	return ""
}
