// Package house holds the rules of the house: which package may import which,
// how long a file may be and how a package may not be called. DESIGN calls for
// them; the test beside this file checks them on the whole tree, so that a
// breach fails like any other mistake. It reads import clauses only, with the
// standard library: what compiles is the compiler's business.
package house

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// MaxLines is how long a Go file may be. A longer one is two files.
const MaxLines = 700

// parts are the packages that weir's verbs run, each with all below it. They
// know nothing of each other, so that any of them can be deleted or shipped
// alone; what two of them need lies below both.
var parts = []string{
	"internal/proxy", "outbox", "internal/backup", "internal/restore", "internal/replica", "internal/profile",
}

// aboveParts may import any part: they put parts together.
var aboveParts = []string{"cmd", "internal/bench", "internal/outboxctl", "internal/torture", "examples"}

// testsMay lists arrows between parts that tests may draw: what a restore is
// tested with is a backup.
var testsMay = []struct{ from, to string }{
	{"internal/restore", "internal/backup"},
}

// forbidden lists further arrows that must not be, beside those into parts.
// Tests may break them: a test of measure may well need a server from the lab.
var forbidden = []struct {
	from, to []string
	reason   string
}{
	{
		[]string{"internal/measure", "internal/report"},
		[]string{"internal/lab", "internal/bench"},
		"the ruler knows nothing of what it measures",
	},
	{
		[]string{"internal/pgwire", "internal/mywire", "internal/sqlscan", "internal/lab", "internal/consensus"},
		[]string{"internal/bench", "internal/report"},
		"arrows point down only",
	},
}

// nameless are package names that say nothing about what is inside.
var nameless = []string{"util", "utils", "common", "helper", "helpers", "model", "models", "type", "types"}

// skipped directories hold no code of ours.
var skipped = []string{"testdata", "vendor", "node_modules", "bin", "out"}

// Check returns every breach of the rules in the module whose root is tree, one
// line each and sorted, beginning with the file.
func Check(tree fs.FS) ([]string, error) {
	module, err := modulePath(tree)
	if err != nil {
		return nil, err
	}
	var found []string
	err = fs.WalkDir(tree, ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() {
			if name != "." && (slices.Contains(skipped, e.Name()) || strings.HasPrefix(e.Name(), ".")) {
				return fs.SkipDir
			}
			return nil
		}
		if path.Ext(name) != ".go" {
			return nil
		}
		breaches, err := checkFile(tree, module, name)
		for _, b := range breaches {
			found = append(found, name+": "+b)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("check the rules of the house: %w", err)
	}
	slices.Sort(found)
	return found, nil
}

// modulePath reads the module's path from go.mod.
func modulePath(tree fs.FS) (string, error) {
	content, err := fs.ReadFile(tree, "go.mod")
	if err != nil {
		return "", fmt.Errorf("read module path: %w", err)
	}
	for s := bufio.NewScanner(bytes.NewReader(content)); s.Scan(); {
		if p, ok := strings.CutPrefix(s.Text(), "module "); ok {
			return strings.Trim(strings.TrimSpace(p), `"`), nil
		}
	}
	return "", errors.New("read module path: go.mod names no module")
}

func checkFile(tree fs.FS, module, name string) ([]string, error) {
	content, err := fs.ReadFile(tree, name)
	if err != nil {
		return nil, err
	}
	file, err := parser.ParseFile(token.NewFileSet(), name, content, parser.ImportsOnly)
	if err != nil {
		return nil, err
	}
	var found []string
	if n := countLines(content); n > MaxLines {
		found = append(found, fmt.Sprintf("%d lines, more than %d: make it two files", n, MaxLines))
	}
	if pkg := strings.TrimSuffix(file.Name.Name, "_test"); slices.Contains(nameless, pkg) {
		found = append(found, fmt.Sprintf("package %s says nothing about what is inside", pkg))
	}
	dir, test := path.Dir(name), strings.HasSuffix(name, "_test.go")
	for _, spec := range file.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return nil, err
		}
		target, ours := relative(module, imported)
		if !ours {
			continue
		}
		if reason := checkImport(dir, target, test); reason != "" {
			found = append(found, fmt.Sprintf("imports %s: %s", target, reason))
		}
	}
	return found, nil
}

// relative returns an import's path below the module, "." for its root.
func relative(module, imported string) (string, bool) {
	if imported == module {
		return ".", true
	}
	return strings.CutPrefix(imported, module+"/")
}

// checkImport returns why the package in dir must not import target, or "".
func checkImport(dir, target string, test bool) string {
	if inside(dir, "batch") && !inside(target, "batch") {
		return "batch imports nothing of weir"
	}
	for _, part := range parts {
		if !inside(target, part) || inside(dir, part) || insideAny(dir, aboveParts) {
			continue
		}
		if test && slices.ContainsFunc(testsMay, func(a struct{ from, to string }) bool { return inside(dir, a.from) && inside(target, a.to) }) {
			continue
		}
		if insideAny(dir, parts) {
			return "parts never import each other"
		}
		return "only verbs and bench import parts"
	}
	if inside(target, "cmd") && !inside(dir, "cmd") {
		return "nothing imports a verb"
	}
	if test {
		return ""
	}
	for _, rule := range forbidden {
		if insideAny(dir, rule.from) && insideAny(target, rule.to) {
			return rule.reason
		}
	}
	if dir == "batch" && target != "batch" {
		return "batch imports nothing of weir"
	}
	return ""
}

// inside reports whether dir is parent or lies below it.
func inside(dir, parent string) bool {
	return dir == parent || strings.HasPrefix(dir, parent+"/")
}

func insideAny(dir string, parents []string) bool {
	return slices.ContainsFunc(parents, func(p string) bool { return inside(dir, p) })
}

func countLines(content []byte) int {
	n := bytes.Count(content, []byte("\n"))
	if len(content) > 0 && !bytes.HasSuffix(content, []byte("\n")) {
		n++
	}
	return n
}
