package house

import (
	"encoding/json"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/weirdb/weir/internal/testkit"
)

func TestWeirKeepsTheRules(t *testing.T) {
	breaches, err := Check(os.DirFS("../.."), products)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range breaches {
		t.Error(b)
	}
}

// A product goes with its folders, its benchmark, its line in cmd/weir and its
// examples: nothing else knows it.
func TestNothingElseKnowsAProduct(t *testing.T) {
	tree := os.DirFS("../..")
	for _, p := range products {
		importers, err := Importers(tree, p.folders...)
		if err != nil {
			t.Fatal(err)
		}
		for _, dir := range importers {
			if dir != "cmd/weir" && !inside(dir, "examples") && !p.has(dir) {
				t.Errorf("%s imports %v", dir, p.folders)
			}
		}
		if !slices.Contains(importers, "cmd/weir") {
			t.Errorf("no verb of %v is in cmd/weir", p.folders)
		}
	}
}

// TestEachProductCanBeDeleted takes a product's folders and its benchmark out of
// the build, and out of cmd/weir its imports and its lines, one in products.go and one in
// ruler.go: what is left compiles, the tests beside it too.
func TestEachProductCanBeDeleted(t *testing.T) {
	testkit.Long(t, "compiles cmd/weir and the ruler once for each product")
	for _, p := range products {
		if len(p.benches) == 0 {
			continue // the ruler: see TestRulerCanBeDeleted
		}
		t.Run(p.folders[0], func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			replaced := make(map[string]string)
			for _, file := range []string{"cmd/weir/products.go", "cmd/weir/ruler.go"} {
				text, err := os.ReadFile(absolute(t, file))
				if err != nil {
					t.Fatal(err)
				}
				left, lines := without(t, string(text), &p)
				if lines != 1 {
					t.Errorf("%d lines of %s name %v, want one", lines, file, p.folders)
				}
				changed := filepath.Join(dir, path.Base(file))
				if err := os.WriteFile(changed, []byte(left), 0o644); err != nil {
					t.Fatal(err)
				}
				replaced[absolute(t, file)] = changed
			}
			vetWithout(t, &p, replaced, "./cmd/weir", "./internal/ruler/cmd")
		})
	}
}

// TestRulerCanBeDeleted does the same with the ruler: cmd/weir then says of its verbs that they
// are not in the build.
func TestRulerCanBeDeleted(t *testing.T) {
	testkit.Long(t, "compiles cmd/weir")
	i := slices.IndexFunc(products, func(p product) bool { return len(p.benches) == 0 })
	if i < 0 {
		t.Skip("the ruler is deleted")
	}
	slim, err := os.ReadFile("../../cmd/weir/slim.go")
	if err != nil {
		t.Fatal(err)
	}
	constraint, always, _ := strings.Cut(string(slim), "\n")
	if !strings.HasPrefix(constraint, "//go:build ") {
		t.Fatalf("cmd/weir/slim.go begins with %q", constraint)
	}
	changed := filepath.Join(t.TempDir(), "slim.go")
	if err := os.WriteFile(changed, []byte(always), 0o644); err != nil {
		t.Fatal(err)
	}
	vetWithout(t, &products[i], map[string]string{
		absolute(t, "cmd/weir/ruler.go"): "", absolute(t, "cmd/weir/demo.go"): "", absolute(t, "cmd/weir/slim.go"): changed,
	}, "./cmd/weir")
}

// vetWithout vets packages as they are without a product, with the given files replaced.
func vetWithout(t *testing.T, p *product, replaced map[string]string, packages ...string) {
	t.Helper()
	err := eachFile(os.DirFS("../.."), func(name string) error {
		if p.has(path.Dir(name)) {
			replaced[absolute(t, name)] = "" // as if it were not there
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "overlay.json")
	if err := os.WriteFile(file, overlay, 0o644); err != nil {
		t.Fatal(err)
	}
	vet := exec.CommandContext(t.Context(), "go", append([]string{"vet", "-overlay", file}, packages...)...)
	vet.Dir = "../.."
	if out, err := vet.CombinedOutput(); err != nil {
		t.Errorf("without %v: %v\n%s", p.folders, err, out)
	}
}

// absolute returns the path of a file of the tree.
func absolute(t *testing.T, name string) string {
	t.Helper()
	full, err := filepath.Abs("../../" + name)
	if err != nil {
		t.Fatal(err)
	}
	return full
}

// without removes a product's imports from a Go file, and the lines that use them,
// which it counts.
func without(t *testing.T, text string, p *product) (left string, lines int) {
	t.Helper()
	var names []string
	for line := range strings.Lines(text) {
		name, imported, ok := strings.Cut(strings.TrimSpace(line), ` "github.com/weirdb/weir/`)
		switch {
		case ok && p.has(strings.TrimSuffix(imported, `"`)):
			names = append(names, name+".")
		case slices.ContainsFunc(names, func(n string) bool { return strings.Contains(line, n) }):
			lines++
		default:
			left += line
		}
	}
	return left, lines
}

// examples are the products of made-up trees. They are there when a product is deleted.
var examples = []product{
	{[]string{"internal/proxy"}, []string{"internal/ruler/bench/proxy"}},
	{[]string{"outbox", "internal/outbox"}, []string{"internal/ruler/bench/outbox", "bench/peers"}},
	{[]string{"internal/backup"}, []string{"internal/ruler/bench/backup"}},
	{[]string{"kv", "internal/kvd"}, []string{"internal/ruler/bench/kv"}},
	{[]string{"internal/ruler", "bench"}, nil},
}

func TestCheckCatchesEachBreach(t *testing.T) {
	const m = "example.com/m"
	long := "package a\n" + strings.Repeat("\n", MaxLines)
	tests := []struct {
		name  string
		files map[string]string
		want  []string
	}{
		{"product imports product", map[string]string{
			"internal/proxy/pool/a.go":    `import "example.com/m/outbox/postgres"`,
			"outbox/a.go":                 `import "example.com/m/internal/ruler/profile"`,
			"internal/backup/a.go":        `import "example.com/m/internal/kvd/replica"`,
			"kv/a.go":                     `import "example.com/m/internal/outbox/torture"`,
			"internal/ruler/profile/a.go": `import "example.com/m/internal/proxy/postgres"`,
		}, []string{
			"internal/backup/a.go: imports internal/kvd/replica: products never import each other",
			"internal/proxy/pool/a.go: imports outbox/postgres: products never import each other",
			"internal/ruler/profile/a.go: imports internal/proxy/postgres: products never import each other",
			"kv/a.go: imports internal/outbox/torture: products never import each other",
			"outbox/a.go: imports internal/ruler/profile: products never import each other",
		}},
		{"a test is no excuse for that", map[string]string{
			"internal/proxy/a_test.go": `import "example.com/m/internal/kvd/replica"`,
		}, []string{"internal/proxy/a_test.go: imports internal/kvd/replica: products never import each other"}},
		{"product imports itself and what lies below", map[string]string{
			"internal/proxy/pool/a.go":  `import ("example.com/m/internal/proxy"; "example.com/m/internal/lab"; "example.com/m/batch")`,
			"outbox/postgres/a.go":      `import "example.com/m/outbox"`,
			"internal/kvd/dump/a.go":    `import "example.com/m/kv"`,
			"internal/outbox/ctl/a.go":  `import ("example.com/m/outbox"; "example.com/m/internal/wire/pgwire")`,
			"internal/backup/run/a.go":  `import "example.com/m/internal/backup/archive"`,
			"internal/ruler/bench/a.go": `import ("example.com/m/internal/ruler/report"; "example.com/m/internal/measure")`,
		}, nil},
		{"those above import products", map[string]string{
			"cmd/weir/a.go":      `import ("example.com/m/internal/proxy/cmd"; "example.com/m/internal/lab/cmd")`,
			"examples/shop/a.go": `import ("example.com/m/outbox"; "example.com/m/kv")`,
		}, nil},
		{"verbs are imported by cmd/weir alone, which imports nothing else of a product", map[string]string{
			"cmd/weir/a.go":                `import "example.com/m/internal/proxy/postgres"`,
			"cmd/weir/a_test.go":           `import "example.com/m/internal/proxy/postgres"`,
			"cmd/weir/b.go":                `import "example.com/m/outbox"`,
			"internal/proxy/mysql/a.go":    `import "example.com/m/internal/proxy/cmd"`,
			"internal/measure/a.go":        `import "example.com/m/internal/lab/cmd"`,
			"internal/kvd/cmd/a.go":        `import ("example.com/m/internal/kvd/replica"; "example.com/m/internal/lab/cmd")`,
			"internal/proxy/cmd/a_test.go": `import "example.com/m/internal/proxy/cmd"`,
			"kv/a_test.go":                 `import "example.com/m/internal/kvd/cmd"`,
			"internal/proxy/a_test.go":     `import "example.com/m/internal/lab/cmd"`,
		}, []string{
			"cmd/weir/a.go: imports internal/proxy/postgres: cmd/weir imports the verbs of a product and its benchmark, and nothing else of it",
			"cmd/weir/b.go: imports outbox: cmd/weir imports the verbs of a product and its benchmark, and nothing else of it",
			"internal/kvd/cmd/a.go: imports internal/lab/cmd: only cmd/weir imports verbs",
			"internal/measure/a.go: imports internal/lab/cmd: only cmd/weir imports verbs",
			"internal/proxy/a_test.go: imports internal/lab/cmd: only cmd/weir imports verbs",
			"internal/proxy/mysql/a.go: imports internal/proxy/cmd: only cmd/weir imports verbs",
		}},
		{"a benchmark imports its own product", map[string]string{
			"internal/ruler/bench/outbox/a.go": `import "example.com/m/outbox"`,
			"internal/ruler/bench/kv/a.go":     `import ("example.com/m/kv"; "example.com/m/outbox")`,
			"internal/ruler/bench/a.go":        `import "example.com/m/kv"`,
			"internal/ruler/cmd/a.go":          `import "example.com/m/internal/ruler/bench/kv"`,
			"cmd/weir/a.go":                    `import "example.com/m/internal/ruler/bench/kv"`,
		}, []string{
			"internal/ruler/bench/a.go: imports kv: products never import each other",
			"internal/ruler/bench/kv/a.go: imports outbox: products never import each other",
			"internal/ruler/cmd/a.go: imports internal/ruler/bench/kv: only cmd/weir imports a product's benchmark",
		}},
		{"those below do not", map[string]string{
			"internal/wire/pgwire/a.go": `import "example.com/m/internal/proxy"`,
			"internal/wire/mywire/a.go": `import "example.com/m/internal/backup"`,
			"internal/admin/a.go":       `import "example.com/m/outbox"`,
			"internal/measure/a.go":     `import "example.com/m/internal/proxy"`,
			"internal/lab/a.go":         `import "example.com/m/internal/kvd/replica"`,
			"internal/wire/binlog/a.go": `import "example.com/m/internal/ruler/report"`,
		}, []string{
			"internal/admin/a.go: imports outbox: only verbs and a product's own benchmark import a product",
			"internal/lab/a.go: imports internal/kvd/replica: only verbs and a product's own benchmark import a product",
			"internal/measure/a.go: imports internal/proxy: only verbs and a product's own benchmark import a product",
			"internal/wire/binlog/a.go: imports internal/ruler/report: only verbs and a product's own benchmark import a product",
			"internal/wire/mywire/a.go: imports internal/backup: only verbs and a product's own benchmark import a product",
			"internal/wire/pgwire/a.go: imports internal/proxy: only verbs and a product's own benchmark import a product",
		}},
		{"a restore needs no backup but in its tests", map[string]string{
			"internal/backup/restore/postgres/a.go":      `import ("example.com/m/internal/backup/postgres"; "example.com/m/internal/backup/archive")`,
			"internal/backup/restore/postgres/a_test.go": `import "example.com/m/internal/backup/postgres"`,
			"internal/backup/archive/a.go":               `import "example.com/m/internal/wire/pgwire"`,
		}, []string{
			"internal/backup/archive/a.go: imports internal/wire/pgwire: the archive knows no database",
			"internal/backup/restore/postgres/a.go: imports internal/backup/postgres: a restore reads the archive, and needs no package that writes it",
		}},
		{"names that only begin alike are others", map[string]string{
			"internal/proxyfoo/a.go":    `import "example.com/m/internal/laboratory"`,
			"internal/wire/pgwire/a.go": `import "example.com/mm/internal/proxy"`,
		}, nil},
		{"batch imports nothing of weir", map[string]string{
			"batch/a.go":      `import "example.com/m/internal/measure"`,
			"batch/b.go":      `import "example.com/m/batch/sim"`,
			"batch/sim/a.go":  `import "example.com/m/batch"`,
			"batch/sim/b.go":  `import "example.com/m/internal/measure"`,
			"batch/c_test.go": `import ("example.com/m/batch/sim"; "time")`,
		}, []string{
			"batch/a.go: imports internal/measure: batch imports nothing of weir",
			"batch/b.go: imports batch/sim: batch imports nothing of weir",
			"batch/sim/b.go: imports internal/measure: batch imports nothing of weir",
		}},
		{"the ruler knows no subject", map[string]string{
			"internal/measure/a.go":      `import "example.com/m/internal/lab"`,
			"internal/ruler/report/a.go": `import ("example.com/m/internal/lab"; "example.com/m/internal/ruler/bench")`,
			"internal/measure/a_test.go": `import "example.com/m/internal/lab"`,
		}, []string{
			"internal/measure/a.go: imports internal/lab: the ruler knows nothing of what it measures",
			"internal/ruler/report/a.go: imports internal/lab: the ruler knows nothing of what it measures",
			"internal/ruler/report/a.go: imports internal/ruler/bench: the ruler knows nothing of what it measures",
		}},
		{"nothing imports a verb", map[string]string{
			"internal/ruler/bench/a.go": `import "example.com/m/cmd/weir"`,
		}, []string{"internal/ruler/bench/a.go: imports cmd/weir: nothing imports a verb"}},
		{"names that say nothing", map[string]string{
			"internal/util/a.go":        "package util",
			"internal/x/a_test.go":      "package helpers_test",
			"internal/common/a.go":      "package common",
			"internal/models/a.go":      "package models",
			"internal/types/a.go":       "package types",
			"internal/commonplace/a.go": "package commonplace",
		}, []string{
			"internal/common/a.go: package common says nothing about what is inside",
			"internal/models/a.go: package models says nothing about what is inside",
			"internal/types/a.go: package types says nothing about what is inside",
			"internal/util/a.go: package util says nothing about what is inside",
			"internal/x/a_test.go: package helpers says nothing about what is inside",
		}},
		{"length", map[string]string{
			"a/a.go": long,
			"a/b.go": strings.TrimSuffix(long, "\n"),
			"a/c.go": long + "// the end",
		}, []string{
			"a/a.go: 701 lines, more than 700: make it two files",
			"a/c.go: 702 lines, more than 700: make it two files",
		}},
		{"not our code", map[string]string{
			"a/testdata/a.go": "not Go", ".git/a.go": "not Go", "bin/a.go": "not Go", "a/a.c": "not Go",
		}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tree := fstest.MapFS{"go.mod": {Data: []byte("// a module\nmodule " + m + "\n\ngo 1.26\n")}}
			for name, content := range tt.files {
				if strings.HasPrefix(content, "import") {
					content = "package a\n\n" + content + "\n"
				}
				tree[name] = &fstest.MapFile{Data: []byte(content)}
			}
			got, err := Check(tree, examples)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("breaches (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCheckNeedsAReadableTree(t *testing.T) {
	mod := &fstest.MapFile{Data: []byte("module example.com/m\n")}
	for name, tree := range map[string]fstest.MapFS{
		"no go.mod":      {},
		"no module line": {"go.mod": {Data: []byte("go 1.26\n")}},
		"not Go":         {"go.mod": mod, "a/a.go": {Data: []byte("not Go")}},
	} {
		if got, err := Check(tree, examples); err == nil {
			t.Errorf("%s: breaches %v, want an error", name, got)
		}
	}
}

// The build that `make run` waits for has the proxy and the demo, and no package that
// takes long to compile.
func TestDemoBuildIsSmall(t *testing.T) {
	testkit.Long(t, "compiles cmd/weir with the tag demo")
	withTag(t, "demo",
		"modernc.org/sqlite", "github.com/sijms/go-ora", "github.com/redis/go-redis", "github.com/twmb/franz-go", "github.com/nats-io",
		"github.com/minio", "github.com/cilium/ebpf", "go.etcd.io", "google.golang.org/grpc", "github.com/rabbitmq",
		"github.com/weirdb/weir/internal/backup", "github.com/weirdb/weir/internal/outbox", "github.com/weirdb/weir/internal/kvd")
}

// TestSlimBuildLeavesOutTheRuler compiles weir as servers and images have it, and
// looks for what that build is to go without.
func TestSlimBuildLeavesOutTheRuler(t *testing.T) {
	testkit.Long(t, "compiles cmd/weir with the tag slim")
	withTag(t, "slim",
		"github.com/weirdb/weir/internal/ruler", "github.com/sijms/go-ora", "github.com/cilium/ebpf",
		"go.etcd.io/etcd/client", "github.com/lib/pq", "github.com/twmb/franz-go/pkg/kfake", "html/template")
}

// withTag compiles cmd/weir with a build tag, and looks for packages that it is to go
// without.
func withTag(t *testing.T, tag string, without ...string) {
	t.Helper()
	list := exec.CommandContext(t.Context(), "go", "list", "-tags", tag, "-deps", "./cmd/weir")
	list.Dir = "../.."
	out, err := list.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		for _, unwanted := range without {
			if strings.HasPrefix(line, unwanted) {
				t.Errorf("the build with the tag %s has %s", tag, line)
			}
		}
	}
	vet := exec.CommandContext(t.Context(), "go", "vet", "-tags", tag, "./cmd/weir")
	vet.Dir = "../.."
	if out, err := vet.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// make test runs tests that the race detector's build leaves out without the detector.
func TestWhatRunsAloneIsPlain(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	var patterns []string
	for _, name := range []string{"plain", "late"} {
		_, list, ok := strings.Cut(strings.ReplaceAll(string(makefile), "\\\n", " "), "\n"+name+" := ")
		if !ok {
			t.Fatalf("the Makefile has no list named %s", name)
		}
		list, _, _ = strings.Cut(list, "\n")
		patterns = append(patterns, strings.Fields(list)...)
	}
	seen := 0
	err = eachFile(os.DirFS("../.."), func(name string) error {
		text, err := os.ReadFile("../../" + name)
		if err != nil || !strings.HasSuffix(name, "_test.go") || !strings.Contains(string(text), "\ttestkit.Alone(") {
			return err
		}
		seen++
		dir := "./" + path.Dir(name)
		if !slices.ContainsFunc(patterns, func(p string) bool {
			parent, all := strings.CutSuffix(p, "/...")
			return p == dir || all && (parent == dir || strings.HasPrefix(dir, parent+"/"))
		}) {
			t.Errorf("%s calls testkit.Alone: %s must be one of the plain or late packages of the Makefile", name, dir)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen == 0 {
		t.Error("no file calls testkit.Alone")
	}
}
