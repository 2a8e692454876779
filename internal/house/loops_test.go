package house

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"
	"testing/fstest"
)

// A deferred call waits for the end of its function, so in an endless loop each round adds one
// more.
func TestNoDeferInAnEndlessLoop(t *testing.T) {
	tree := os.DirFS("../..")
	err := eachFile(tree, func(name string) error {
		if strings.HasSuffix(name, "_test.go") {
			return nil
		}
		content, err := os.ReadFile("../../" + name)
		if err != nil {
			return err
		}
		found, err := endlessDefers(name, content)
		for _, at := range found {
			t.Errorf("%s: a defer in an endless loop", at)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestEndlessDefersAreFound(t *testing.T) {
	file := fstest.MapFS{"a.go": {Data: []byte(`package a

func f() {
	defer g()
	for range 3 {
		defer g()
	}
	for {
		defer g()
		func() { defer g() }()
		for range 3 {
			defer g()
		}
	}
}
`)}}
	found, err := endlessDefers("a.go", file["a.go"].Data)
	if err != nil || fmt.Sprint(found) != "[a.go:9 a.go:12]" {
		t.Errorf("found %v, %v", found, err)
	}
}

// endlessDefers returns where a function defers calls within its own loops that have no
// condition.
func endlessDefers(name string, content []byte) (found []string, err error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, content, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var endless func(within bool) func(ast.Node) bool
	endless = func(within bool) func(ast.Node) bool {
		return func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncLit:
				ast.Inspect(n.Body, endless(false))
				return false
			case *ast.ForStmt:
				if n.Cond == nil && !within {
					ast.Inspect(n.Body, endless(true))
					return false
				}
			case *ast.DeferStmt:
				if within {
					found = append(found, fmt.Sprintf("%s:%d", name, fset.Position(n.Pos()).Line))
				}
			}
			return true
		}
	}
	ast.Inspect(file, endless(false))
	return found, nil
}
