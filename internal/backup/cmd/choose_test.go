package backupcmd

import (
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/wal"
)

// takenOf writes a backup of nothing of a server, at a position of its log.
func takenOf(t *testing.T, place, id string, s archive.Summary) {
	t.Helper()
	repo, err := archive.OpenRepository(t.Context(), place)
	if err != nil {
		t.Fatal(err)
	}
	w, err := archive.Create(t.Context(), repo, archive.Options{ID: id, Label: "shop"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Finish(t.Context(), archive.Manifest{Summary: s}); err != nil {
		t.Fatal(err)
	}
}

// TestBaseOfAnotherServer: two servers keep backups of one label in one place, and
// neither is taken for the other.
func TestBaseOfAnotherServer(t *testing.T) {
	place := t.TempDir()
	of := func(server string) archive.Summary {
		return archive.Summary{
			Engine: archive.MariaDB, Scope: "database", Server: archive.Server{SystemID: server},
			Position: archive.Position{Time: time.Now().Add(-time.Hour), Binlog: "b.000001", Offset: 400},
		}
	}
	takenOf(t, place, "one", of("server-1"))
	l := &restoreLog{latest: true, on: true}
	if id, err := l.choose(t.Context(), place); id != "one" || err != nil {
		t.Errorf("of one server: %q, %v", id, err)
	}
	takenOf(t, place, "two", of("server-2"))
	for _, label := range []string{"", "shop"} {
		l.label = label
		if id, err := l.choose(t.Context(), place); err == nil || !strings.Contains(err.Error(), "2 servers") {
			t.Errorf("of two servers: %q, %v", id, err)
		}
	}

	bases := t.TempDir()
	base := func(system string) archive.Summary {
		return archive.Summary{
			Engine: archive.PostgreSQL, Scope: wal.ScopeBase, Server: archive.Server{SystemID: system},
			Position: archive.Position{Time: time.Now().Add(-time.Hour), LSN: "0/3000100", Timeline: 1},
		}
	}
	takenOf(t, bases, "one", base("7300000000000000001"))
	takenOf(t, bases, "two", base("7300000000000000002"))
	repo, err := archive.OpenRepository(t.Context(), bases)
	if err != nil {
		t.Fatal(err)
	}
	if id, err := wal.ChooseBase(t.Context(), repo, repo.Storage(), "shop", wal.Target{}, archive.ReadOptions{}); err == nil || !strings.Contains(err.Error(), "2 clusters") {
		t.Errorf("of two clusters: %q, %v", id, err)
	}
}
