package labtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

// The program is linked once for all packages, and each has a name of its own for it.
func TestWeirIsSharedByPackages(t *testing.T) {
	path := Weir(t)
	if out, err := exec.Command(path, "version").CombinedOutput(); err != nil || !strings.HasPrefix(string(out), "weir ") {
		t.Errorf("weir version: %v\n%s", err, out)
	}
	if again := Weir(t); again != path {
		t.Errorf("asked again: %s, want %s", again, path)
	}
	if shared, err := moduleDir("bin", "test"); err != nil || filepath.Dir(filepath.Dir(path)) != shared {
		t.Errorf("%s is not in %s, where packages share their build (%v)", path, shared, err)
	}
}
