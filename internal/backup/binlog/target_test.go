package binlog

import (
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/backup/archive"
	dumpmy "github.com/weirdb/weir/internal/backup/mysql"
)

// TestBackupOfAnotherServer: two servers keep backups of one label in one place, and
// neither is taken for the other.
func TestBackupOfAnotherServer(t *testing.T) {
	repo, err := archive.OpenRepository(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	add := func(id, server string) {
		t.Helper()
		w, err := archive.Create(t.Context(), repo, archive.Options{ID: id, Label: "shop"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Finish(t.Context(), archive.Manifest{Summary: archive.Summary{
			Engine: archive.MariaDB, Scope: "database", Server: archive.Server{SystemID: server},
			Position: archive.Position{Time: time.Now().Add(-time.Hour), Binlog: "b.000001", Offset: 400},
		}}); err != nil {
			t.Fatal(err)
		}
	}
	add("one", "server-1")
	if id, err := ChooseBackup(t.Context(), repo, "", dumpmy.LogTarget{}); id != "one" || err != nil {
		t.Errorf("of one server: %q, %v", id, err)
	}
	add("two", "server-2")
	for _, label := range []string{"", "shop"} {
		if id, err := ChooseBackup(t.Context(), repo, label, dumpmy.LogTarget{}); err == nil || !strings.Contains(err.Error(), "2 servers") {
			t.Errorf("of two servers: %q, %v", id, err)
		}
	}
}

func TestParseGTID(t *testing.T) {
	for _, text := range []string{"0-1-42", "4294967295-1-1", "3e11fa47-71ca-11e1-9e33-c80aa9429562:42", "3e11fa47-71ca-11e1-9e33-c80aa9429562:blue:7"} {
		if g, err := ParseGTID(text); err != nil || g.String() != text {
			t.Errorf("%s: %s, %v", text, g, err)
		}
	}
	for _, text := range []string{"", "0-1", "0-1-0", "0-1-2-3", "x-1-2", "0-1-2,1-1-1", "3e11fa47:1", "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5", "3e11fa47-71ca-11e1-9e33-c80aa9429562:0"} {
		if g, err := ParseGTID(text); err == nil {
			t.Errorf("%q is read as %s", text, g)
		}
	}
}
