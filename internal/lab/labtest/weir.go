package labtest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// program is the weir program that all tests of a package share.
var program struct {
	sync.Mutex // guards the fields below
	dir        string
	err        error
}

// Weir returns the path of the program, built from this source by the first test that needs it.
// All packages share one build, in bin/test of the module: if it is up to date, nothing is
// linked, which would be most of the work.
func Weir(tb testing.TB) string {
	tb.Helper()
	if !inMain {
		tb.Fatal("the program would never be removed: the package needs func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }")
	}
	p := &program
	p.Lock()
	defer p.Unlock()
	if p.dir == "" && p.err == nil {
		if p.err = buildWeir(); p.err != nil {
			p.err = fmt.Errorf("build weir: %w", p.err)
		}
	}
	if p.err != nil {
		tb.Fatal(p.err)
	}
	return filepath.Join(p.dir, "weir")
}

// buildWeir is called with the lock held. The package's tests get their own name for the
// program, so that they keep it if tests of another package rebuild it from changed sources.
func buildWeir() (err error) {
	if err := noteSources(); err != nil {
		return err
	}
	bin, err := moduleDir("bin")
	if err != nil {
		return err
	}
	// These files must not be inputs of the test, as files used through package os would be: go
	// test would find them changed each time and repeat the tests.
	shared := filepath.Join(bin, "test")
	for _, dir := range []string{bin, shared} {
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	path := filepath.Join(shared, "lock")
	lock, err := syscall.Open(path, syscall.O_CREAT|syscall.O_RDWR|syscall.O_CLOEXEC, 0o644)
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	defer func() { err = errors.Join(err, syscall.Close(lock)) }() // which unlocks it
	if err := syscall.Flock(lock, syscall.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", path, err)
	}
	built := filepath.Join(shared, "weir")
	// Not tb.Context: the program outlives the first test that needs it.
	cmd := exec.Command("go", "build", "-o", built, "github.com/weirdb/weir/cmd/weir")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	if program.dir, err = os.MkdirTemp(shared, "run-"); err != nil {
		return err
	}
	return os.Link(built, filepath.Join(program.dir, "weir"))
}

// noteSources reads the directories that the program is built from, which makes them inputs of
// the test: go test repeats it if one of their files has changed, and otherwise uses the cached
// result.
func noteSources() error {
	const format = "{{if .Module}}{{if .Module.Main}}{{.Dir}}\n{{$dir := .Dir}}{{range .EmbedFiles}}{{$dir}}/{{.}}\n{{end}}{{end}}{{end}}"
	out, err := exec.Command("go", "list", "-deps", "-f", format, "github.com/weirdb/weir/cmd/weir").Output()
	if err != nil {
		return fmt.Errorf("list the program's sources: %w", err)
	}
	for _, path := range strings.Fields(string(out)) {
		info, err := os.Stat(path)
		if err == nil && info.IsDir() {
			_, err = os.ReadDir(path)
		}
		if err != nil {
			return err
		}
	}
	for _, name := range []string{"go.mod", "go.sum"} {
		path, err := moduleDir(name)
		if err != nil {
			return err
		}
		if _, err := os.Stat(path); err != nil {
			return err
		}
	}
	return nil
}

// moduleDir returns a directory or file of this module, by its path from the root.
func moduleDir(path ...string) (string, error) {
	dir, err := os.Getwd() // a package's directory, in a test
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return filepath.Join(append([]string{dir}, path...)...), nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("no go.mod above the tests")
		}
		dir = parent
	}
}

// WriteProgram writes a file that can be executed at once: no child that this or another test
// forks in the meantime has it open for writing, which would make the kernel fail with "text
// file busy".
func WriteProgram(tb testing.TB, path string, content []byte) {
	tb.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, content, 0o755); err != nil {
		tb.Fatal(err)
	}
	if err := os.Chmod(path, 0o755); err != nil { // regardless of the umask
		tb.Fatal(err)
	}
}

// removeWeir removes the program that Weir built.
func removeWeir() error {
	program.Lock()
	defer program.Unlock()
	if program.dir == "" {
		return nil
	}
	err := os.RemoveAll(program.dir)
	program.dir, program.err = "", errors.New("the tests of the package have ended")
	return err
}
