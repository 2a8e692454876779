package labtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
)

// program is the weir that all tests of a package share.
var program struct {
	sync.Mutex // guards what follows
	dir        string
	err        error
}

// Weir returns the path of the program, built from this source by the first test
// that asks for it. All packages share one build, in bin/test of the module: where
// it is up to date already, nothing is linked again, which is most of the work.
func Weir(tb testing.TB) string {
	tb.Helper()
	if !inMain {
		tb.Fatal("nobody would remove the program: the package needs func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }")
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

// buildWeir is called with the lock held. The package's tests get a name of their
// own for the program, so that they keep it when the source changes and tests of
// another package build it anew.
func buildWeir() (err error) {
	shared, err := moduleDir("bin", "test")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(shared, 0o755); err != nil {
		return err
	}
	lock, err := os.OpenFile(filepath.Join(shared, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }() // which unlocks it
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	built := filepath.Join(shared, "weir")
	// Not tb.Context: the program outlives the test that wants it first.
	cmd := exec.Command("go", "build", "-o", built, "github.com/weirdb/weir/cmd/weir")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	if program.dir, err = os.MkdirTemp(shared, "run-"); err != nil {
		return err
	}
	return os.Link(built, filepath.Join(program.dir, "weir"))
}

// moduleDir returns a directory of this module, by its path from the root.
func moduleDir(path ...string) (string, error) {
	dir, err := os.Getwd() // a package's folder, for a test
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

// WriteProgram writes a file that can be run at once: no child that tb or another
// test forks meanwhile has it open for writing, which the kernel would answer with
// "text file busy".
func WriteProgram(tb testing.TB, path string, content []byte) {
	tb.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, content, 0o755); err != nil {
		tb.Fatal(err)
	}
	if err := os.Chmod(path, 0o755); err != nil { // whatever the umask
		tb.Fatal(err)
	}
}

// removeWeir removes what Weir has built.
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
