// Package house checks the structure of the repository: which package may import which,
// how long a file may be and which package names say nothing. Its tests run the checks on
// the whole tree, and count the methods of each type besides. The package reads import
// clauses only, with the standard library; the compiler checks the rest.
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

// product is one of weir's products: the folders that make it, and its benchmark,
// which may import them as cmd and examples may.
type product struct {
	folders []string
	benches []string // none for the ruler itself
}

// products know nothing of each other, so that each can be deleted with its
// folders, its benchmark and its line in cmd/weir, or be shipped alone. What two of
// them need lies below both.
var products = []product{
	{[]string{"internal/proxy"}, []string{"internal/ruler/bench/proxy"}},
	{[]string{"outbox", "internal/outbox"}, []string{"internal/ruler/bench/outbox", "bench/peers"}},
	{[]string{"internal/backup"}, []string{"internal/ruler/bench/backup"}},
	{[]string{"kv", "internal/kvd"}, []string{"internal/ruler/bench/kv", "bench/peers/libraries/resp"}},
	{[]string{"internal/ruler", "bench"}, nil},
}

// has reports whether a folder is the product's, its benchmark's included.
func (p *product) has(dir string) bool {
	return insideAny(dir, p.folders) || insideAny(dir, p.benches)
}

// aboveProducts may import any product: they put products together.
var aboveProducts = []string{"cmd", "examples"}

// forbidden lists further arrows that must not be, beside those into products.
// Tests may break them: a restore is tested with a backup.
var forbidden = []struct {
	from, to []string
	reason   string
}{
	{
		[]string{"internal/measure", "internal/ruler/report"},
		[]string{"internal/lab", "internal/ruler/bench"},
		"the ruler knows nothing of what it measures",
	},
	{
		[]string{"internal/backup/restore"},
		[]string{"internal/backup/postgres", "internal/backup/mysql", "internal/backup/wal"},
		"a restore reads the archive, and needs no package that writes it",
	},
	{
		[]string{"internal/backup/archive"},
		[]string{"internal/wire", "internal/backup/bulk"},
		"the archive knows no database",
	},
}

// nameless are package names that say nothing about what is inside.
var nameless = []string{"util", "utils", "common", "helper", "helpers", "model", "models", "type", "types"}

// skipped directories hold no code of ours.
var skipped = []string{"testdata", "vendor", "node_modules", "bin", "out"}

// Check returns every breach of the rules in the module whose root is tree and which holds
// these products, one line each and sorted, beginning with the file.
func Check(tree fs.FS, all []product) ([]string, error) {
	module, err := modulePath(tree)
	if err != nil {
		return nil, err
	}
	var found []string
	err = eachFile(tree, func(name string) error {
		breaches, err := checkFile(tree, all, module, name)
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

// eachFile calls do with each Go file of ours.
func eachFile(tree fs.FS, do func(name string) error) error {
	return fs.WalkDir(tree, ".", func(name string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && name != "." && (slices.Contains(skipped, e.Name()) || strings.HasPrefix(e.Name(), ".")):
			return fs.SkipDir
		case e.IsDir() || path.Ext(name) != ".go":
			return nil
		}
		return do(name)
	})
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

func checkFile(tree fs.FS, all []product, module, name string) ([]string, error) {
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
		if reason := checkImport(all, dir, target, test); reason != "" {
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
func checkImport(all []product, dir, target string, test bool) string {
	if inside(dir, "batch") && !inside(target, "batch") {
		return "batch imports nothing of weir"
	}
	for _, p := range all {
		if insideAny(target, p.benches) && !insideAny(dir, p.benches) && dir != "cmd/weir" {
			return "only cmd/weir imports a product's benchmark"
		}
		if !insideAny(target, p.folders) || p.has(dir) || insideAny(dir, aboveProducts) {
			continue
		}
		if slices.ContainsFunc(all, func(other product) bool { return insideAny(dir, other.folders) }) {
			return "products never import each other"
		}
		return "only verbs and a product's own benchmark import a product"
	}
	if inside(target, "cmd") && !inside(dir, "cmd") {
		return "nothing imports a verb"
	}
	if room := verbs(target); room != "" && !inside(dir, room) && dir != "cmd/weir" && !(test && sameProduct(all, dir, target)) {
		return "only cmd/weir imports verbs"
	}
	if inside(dir, "cmd") && !test && ofProduct(all, target) && verbs(target) != target && !isBench(all, target) {
		return "cmd/weir imports the verbs of a product and its benchmark, and nothing else of it"
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

// verbs returns the folder of verbs that target lies in, such as
// internal/proxy/cmd, or "".
func verbs(target string) string {
	parts := strings.SplitN(target, "/", 4)
	if len(parts) < 3 || parts[0] != "internal" || parts[2] != "cmd" {
		return ""
	}
	return path.Join(parts[:3]...)
}

func ofProduct(all []product, target string) bool {
	return slices.ContainsFunc(all, func(p product) bool { return insideAny(target, p.folders) })
}

// sameProduct reports whether two folders are of one product: its tests run its verbs.
func sameProduct(all []product, a, b string) bool {
	return slices.ContainsFunc(all, func(p product) bool { return p.has(a) && p.has(b) })
}

func isBench(all []product, target string) bool {
	return slices.ContainsFunc(all, func(p product) bool { return slices.Contains(p.benches, target) })
}

// Importers returns the folders that import one of the given ones and lie outside
// of all of them: what has to change when they are deleted.
func Importers(tree fs.FS, folders ...string) ([]string, error) {
	module, err := modulePath(tree)
	if err != nil {
		return nil, err
	}
	var found []string
	err = eachFile(tree, func(name string) error {
		if insideAny(path.Dir(name), folders) || slices.Contains(found, path.Dir(name)) {
			return nil
		}
		content, err := fs.ReadFile(tree, name)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, content, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			if target, ours := relative(module, imported); ours && insideAny(target, folders) {
				found = append(found, path.Dir(name))
				break
			}
		}
		return nil
	})
	return found, err
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
