package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// maxWalk is the number of files through which a statement may go at most, and
// maxMethods that of the methods of a type on its way.
const (
	maxWalk    = 6
	maxMethods = 40
)

// methodsOf returns, of each type of a package, the files in which its methods are.
func methodsOf(t *testing.T, dir string) map[string]map[string]string {
	t.Helper()
	fset := token.NewFileSet()
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	types := make(map[string]map[string]string)
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Recv == nil {
				continue
			}
			recv := fn.Recv.List[0].Type
			if star, ok := recv.(*ast.StarExpr); ok {
				recv = star.X
			}
			switch generic := recv.(type) {
			case *ast.IndexExpr:
				recv = generic.X
			case *ast.IndexListExpr:
				recv = generic.X
			}
			id, ok := recv.(*ast.Ident)
			if !ok {
				continue
			}
			if types[id.Name] == nil {
				types[id.Name] = make(map[string]string)
			}
			types[id.Name][fn.Name.Name] = filepath.Base(name)
		}
	}
	return types
}

var (
	walkStep   = regexp.MustCompile(`^//\t(\w+\.go) +(\w+\.\w+(?:, \w+\.\w+)*)`)
	walkNamed  = regexp.MustCompile(`\b(router|forwarder|pool|lane)\.(\w+)`)
	walkHeads  = []string{"// Plain", "// In a lane", "// Pinned"}
	proxySides = []string{"../proxy/postgres", "../proxy/mysql"}
)

// The walk of an INSERT at the top of each side's package names functions that there
// are, in the files where they are, and no more files than a reader keeps in mind.
func TestTheWalkOfAnInsertIsThere(t *testing.T) {
	for _, dir := range proxySides {
		types := methodsOf(t, dir)
		doc, err := os.ReadFile(filepath.Join(dir, "doc.go"))
		if err != nil {
			t.Fatal(err)
		}
		files := make(map[string][]string) // of each way
		way, steps := "", 0
		for _, line := range strings.Split(string(doc), "\n") {
			for _, head := range walkHeads {
				if strings.HasPrefix(line, head) {
					way = head
				}
			}
			for _, m := range walkNamed.FindAllStringSubmatch(line, -1) {
				if types[m[1]][m[2]] == "" && m[2] != "go" {
					t.Errorf("%s: the walk names %s, which there is not", dir, m[0])
				}
			}
			step := walkStep.FindStringSubmatch(line)
			if step == nil {
				continue
			}
			steps++
			for _, name := range strings.Split(step[2], ", ") {
				typ, method, _ := strings.Cut(name, ".")
				if have := types[typ][method]; have != step[1] {
					t.Errorf("%s: the walk has %s in %s; it is in %q", dir, name, step[1], have)
				}
			}
			if !slices.Contains(files[way], step[1]) {
				files[way] = append(files[way], step[1])
			}
		}
		for _, head := range walkHeads {
			if n := len(files[head]); n == 0 || n > maxWalk {
				t.Errorf("%s: %q goes through %d files: %v", dir, head, n, files[head])
			}
		}
		if steps < 20 {
			t.Errorf("%s: the walk has %d steps", dir, steps)
		}
	}
}

// Neither a client nor a part of it does everything.
func TestNoPartOfAClientIsAGod(t *testing.T) {
	for _, dir := range proxySides {
		types := methodsOf(t, dir)
		for _, typ := range []string{"client", "transport", "router", "forwarder", "responder", "pins", "statements", "texts", "settings", "hintWarnings", "login"} {
			if n := len(types[typ]); n == 0 || n > maxMethods {
				t.Errorf("%s: %s has %d methods; the limit is %d", dir, typ, n, maxMethods)
			}
		}
	}
}

// No type of a product does everything.
func TestNoTypeIsAGod(t *testing.T) {
	seen := make(map[string]bool)
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if name := d.Name(); slices.Contains(skipped, name) || strings.HasPrefix(name, ".") && path != "../.." {
			return filepath.SkipDir
		}
		for typ, methods := range methodsOf(t, path) {
			name := strings.TrimPrefix(filepath.ToSlash(path), "../../") + "." + typ
			if n := len(methods); n > maxMethods {
				t.Errorf("%s has %d methods; the limit is %d", name, n, maxMethods)
			}
			seen[name] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(seen) < 500 {
		t.Errorf("%d types were looked at", len(seen))
	}
}
