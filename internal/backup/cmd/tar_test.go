package backupcmd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/cli"
)

// Of two concurrent backups into one file, the second is refused; one that was killed does not
// prevent the next.
func TestTwoBackupsIntoOneTar(t *testing.T) {
	path := filepath.Join(t.TempDir(), "b.tar")
	if err := os.WriteFile(path+".part", []byte("of one that was killed"), 0o600); err != nil {
		t.Fatal(err)
	}
	w, end, err := archive.CreateFile(t.Context(), path, archive.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := archive.CreateFile(t.Context(), path, archive.Options{}); err == nil || !strings.Contains(err.Error(), "another backup") {
		t.Errorf("a second one: %v", err)
	}
	if _, err := w.Finish(t.Context(), archive.Manifest{}); err != nil {
		t.Fatal(err)
	}
	if err := end(true); err != nil {
		t.Fatal(err)
	}
	program.Must(t, "backup", "verify", path)
	_, end, err = archive.CreateFile(t.Context(), path, archive.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := end(false); err != nil {
		t.Fatal(err)
	}
	program.Must(t, "backup", "verify", path) // the one before is untouched
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 1 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// A backup whose file does not get its name is told as one that failed.
func TestTarThatGetsNoName(t *testing.T) {
	s := newShop(t)
	dir := t.TempDir()
	path, metrics := filepath.Join(dir, "b.tar"), filepath.Join(dir, "weir.prom")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	program.Refuse(t, cli.ExitFailed, []string{"finish stream"}, "backup", s.dsn("shop"), "--to", path, "--schema-only", "--metrics-file", metrics,
		"--hook-after", "echo $WEIR_BACKUP_STATUS > "+filepath.Join(dir, "status"))
	if got, err := os.ReadFile(filepath.Join(dir, "status")); err != nil || string(got) != "failed\n" {
		t.Errorf("the hook was told %q, %v", got, err)
	}
}
