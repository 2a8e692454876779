package wal

import (
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/backup/archive"
)

// TestBaseOfAnotherCluster: two clusters keep base backups of one label in one place, and
// neither is taken for the other.
func TestBaseOfAnotherCluster(t *testing.T) {
	t.Parallel()
	repo, err := archive.OpenRepository(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for id, system := range map[string]string{"one": "7300000000000000001", "two": "7300000000000000002"} {
		w, err := archive.Create(t.Context(), repo, archive.Options{ID: id, Label: "shop"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Finish(t.Context(), archive.Manifest{Summary: archive.Summary{
			Engine: archive.PostgreSQL, Scope: ScopeBase, Server: archive.Server{SystemID: system},
			Position: archive.Position{Time: time.Now().Add(-time.Hour), LSN: "0/3000100", Timeline: 1},
		}}); err != nil {
			t.Fatal(err)
		}
	}
	if id, err := ChooseBase(t.Context(), repo, repo.Storage(), "shop", Target{}, archive.ReadOptions{}); err == nil || !strings.Contains(err.Error(), "2 clusters") {
		t.Errorf("of two clusters: %q, %v", id, err)
	}
}
