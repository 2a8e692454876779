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
// that asks for it and removed by Main. Building takes seconds, most of them for
// the linker.
func Weir(tb testing.TB) string {
	tb.Helper()
	if !inMain {
		tb.Fatal("nobody would remove the program: the package needs func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }")
	}
	p := &program
	p.Lock()
	defer p.Unlock()
	if p.dir == "" && p.err == nil {
		p.err = buildWeir()
	}
	if p.err != nil {
		tb.Fatal(p.err)
	}
	return filepath.Join(p.dir, "weir")
}

// buildWeir is called with the lock held.
func buildWeir() (err error) {
	if program.dir, err = os.MkdirTemp("", "weir-test-"); err != nil {
		return fmt.Errorf("build weir: %w", err)
	}
	// Not tb.Context: the program outlives the test that wants it first.
	cmd := exec.Command("go", "build", "-o", filepath.Join(program.dir, "weir"), "github.com/weirdb/weir/cmd/weir")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build weir: %w\n%s", err, out)
	}
	return nil
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
