package main

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/wire/mywire"
)

// errorPlaces are the packages whose errors reach clients, and where the reference has
// them.
var errorPlaces = []struct{ dir, section string }{
	{"internal/proxy/postgres", "PostgreSQL"},
	{"internal/proxy/mysql", "MySQL and MariaDB"},
	{"internal/proxy/core", "The console"},
	{"internal/proxy/bouncer", "weir pgbouncer"},
	{"internal/kvd/resp", "weir kv, to Redis clients"},
}

// docs/reference/errors.md has every error that weir itself sends to clients: texts and
// codes are those of the code, meanings those of testdata/errors.txt. -update writes it.
func TestErrorReferenceIsCurrent(t *testing.T) {
	codes := constants(t, "internal/wire/pgwire", "internal/wire/mywire", "internal/proxy/mysql")
	blocks := errorBlocks(t)
	var page bytes.Buffer
	page.WriteString(errorHead)
	for _, place := range errorPlaces {
		sent := sentErrors(t, place.dir, codes)
		page.WriteString("\n## " + place.section + "\n\n| text | code | meaning | what to do |\n| --- | --- | --- | --- |\n")
		for _, b := range blocks[place.section] {
			var texts, all []string
			for _, text := range b.texts {
				if sent[text] == nil {
					t.Errorf("testdata/errors.txt, %s: %q is sent nowhere in %s", place.section, text, place.dir)
				}
				texts = append(texts, "`"+verbOfFormat.ReplaceAllString(strings.ReplaceAll(text, "|", "\\|"), "…")+"`")
				for _, code := range sent[text] {
					if !slices.Contains(all, code) {
						all = append(all, code)
					}
				}
				delete(sent, text)
			}
			slices.Sort(all)
			fmt.Fprintf(&page, "| %s | %s | %s | %s |\n", strings.Join(texts, "<br>"), strings.Join(all, "<br>"), b.means, b.do)
		}
		for text := range sent {
			t.Errorf("testdata/errors.txt, %s: say what %q means, which %s sends", place.section, text, place.dir)
		}
	}
	current(t, "errors.md", page.Bytes())
}

// current holds a page of docs/reference against what it should be, or writes it.
func current(t *testing.T, name string, want []byte) {
	t.Helper()
	path := filepath.Join("../../docs/reference", name)
	if flag.Lookup("update").Value.String() == "true" {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if have, err := os.ReadFile(path); err != nil || !bytes.Equal(have, want) {
		t.Errorf("docs/reference/%s is not current (%v): go test ./cmd/weir -run %s -update", name, err, t.Name())
	}
}

const errorHead = `# Errors

Written by ` + "`go test ./cmd/weir -run TestErrorReferenceIsCurrent -update`" + `: what weir itself sends to clients. All others are the server's, word for word. … stands for what differs from case to case. Codes are SQLSTATEs to clients of PostgreSQL, and numbers with their SQLSTATE to clients of MySQL and MariaDB. By what you see rather than by text: [troubleshooting](../troubleshooting.md). Exit codes and errors of commands: [reference](index.md#exit-codes).
`

var verbOfFormat = regexp.MustCompile(`%[-+#0-9.]*[a-zA-Z]`)

// errorBlock is an entry of testdata/errors.txt.
type errorBlock struct {
	texts     []string
	means, do string
}

func errorBlocks(t *testing.T) map[string][]errorBlock {
	t.Helper()
	text, err := os.ReadFile("testdata/errors.txt")
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string][]errorBlock)
	section := ""
	for _, part := range strings.Split(string(text), "\n\n") {
		var b errorBlock
		for line := range strings.Lines(part) {
			line = strings.TrimSuffix(line, "\n")
			switch {
			case strings.HasPrefix(line, "#"), line == "":
			case strings.HasPrefix(line, "== "):
				section = line[3:]
			case strings.HasPrefix(line, "means: "):
				b.means = line[7:]
			case strings.HasPrefix(line, "do: "):
				b.do = line[4:]
			default:
				b.texts = append(b.texts, line)
			}
		}
		if len(b.texts) == 0 {
			continue
		}
		if b.means == "" || b.do == "" {
			t.Errorf("testdata/errors.txt: %q has no means or no do", b.texts[0])
		}
		found[section] = append(found[section], b)
	}
	return found
}

// goFiles parses a package, but for its tests.
func goFiles(t *testing.T, dir string) (list []*ast.File) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join("../..", dir, "*.go"))
	if err != nil || len(names) == 0 {
		t.Fatalf("%s: %v, %d files", dir, err, len(names))
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, file)
	}
	return list
}

// constants reads the constants of packages: their text by their name.
func constants(t *testing.T, dirs ...string) map[string]string {
	t.Helper()
	found := make(map[string]string)
	for _, dir := range dirs {
		for _, file := range goFiles(t, dir) {
			ast.Inspect(file, func(n ast.Node) bool {
				spec, ok := n.(*ast.ValueSpec)
				if ok && len(spec.Names) == 1 && len(spec.Values) == 1 {
					if lit, ok := spec.Values[0].(*ast.BasicLit); ok {
						found[spec.Names[0].Name] = strings.Trim(lit.Value, `"`)
					}
				}
				return true
			})
		}
	}
	return found
}

var respWord = regexp.MustCompile(`^([A-Z]{3,}) `)

// sentErrors finds what a package sends: the codes of each text.
func sentErrors(t *testing.T, dir string, constants map[string]string) map[string][]string {
	t.Helper()
	sent := make(map[string][]string)
	for _, file := range goFiles(t, dir) {
		ast.Inspect(file, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && dir == "internal/kvd/resp" {
				// Not what an error quotes, and not the help of commands.
				if m := respWord.FindStringSubmatch(unquoted(lit)); m != nil && respErrors[m[1]] {
					sent[m[1]] = []string{}
				}
				return true
			}
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			code, text := "", ast.Expr(nil)
			switch name := called(call); {
			case (name == "NewError" || name == "NewFatal") && len(call.Args) > 1:
				code, text = codeText(call.Args[0], constants), call.Args[1]
			case name == "protocolError" && len(call.Args) > 0:
				code, text = constants["CodeProtocolViolation"], call.Args[0]
				if dir == "internal/proxy/mysql" {
					code = codeText(ast.NewIdent("ErrMalformedPacket"), constants)
				}
			case name == "refusal" && dir == "internal/proxy/bouncer" && len(call.Args) > 0:
				code, text = constants["CodeProtocolViolation"], call.Args[0]
			case name == "refuse" && dir == "internal/proxy/core" && len(call.Args) > 0:
				code, text = constants["CodeObjectState"]+", "+codeText(ast.NewIdent("ErrUnknown"), constants), call.Args[0]
			default:
				return true
			}
			lit, ok := text.(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING {
				return true // a text that comes from elsewhere
			}
			if s := unquoted(lit); s != "%v" && s != "%s" {
				sent[s] = append(sent[s], code)
			}
			return true
		})
	}
	return sent
}

// respErrors are the first words of errors of Redis; other words in capitals are options
// of commands.
var respErrors = map[string]bool{
	"CLUSTERDOWN": true, "UNCERTAIN": true, "TRYAGAIN": true, "BUSY": true, "LOADING": true, "MOVED": true, "ASK": true, "READONLY": true, "NOLEASE": true,
	"NOAUTH": true, "WRONGPASS": true, "NOPERM": true, "NOPROTO": true, "EXECABORT": true, "NOSCRIPT": true, "WRONGTYPE": true, "ERR": true,
	"CROSSSLOT": true, "MISCONF": true, "OOM": true, "UNKILLABLE": true, "NOREPLICAS": true, "MASTERDOWN": true,
}

func called(call *ast.CallExpr) string {
	switch f := call.Fun.(type) {
	case *ast.SelectorExpr:
		return f.Sel.Name
	case *ast.Ident:
		return f.Name
	}
	return ""
}

func unquoted(lit *ast.BasicLit) string {
	s, err := strconv.Unquote(lit.Value)
	if err != nil {
		return ""
	}
	return s
}

// codeText is the code that an argument stands for.
func codeText(arg ast.Expr, constants map[string]string) string {
	name := ""
	switch a := arg.(type) {
	case *ast.SelectorExpr:
		name = a.Sel.Name
	case *ast.Ident:
		name = a.Name
	}
	value := constants[name]
	if value == "" {
		return "the cause's"
	}
	if n, err := strconv.ParseUint(value, 10, 16); err == nil && len(value) == 4 {
		return fmt.Sprintf("%s (%s)", value, mywire.StateOf(uint16(n)))
	}
	return value
}
