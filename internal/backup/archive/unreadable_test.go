package archive

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"
)

// badSectors is a disk that has lost bytes of some files.
type badSectors struct {
	Storage
	lost func(name string) bool
}

func (s *badSectors) Open(ctx context.Context, name string, offset int64) (io.ReadCloser, error) {
	in, err := s.Storage.Open(ctx, name, offset)
	if err == nil && s.lost(name) {
		err = in.Close()
		in = io.NopCloser(iotest.ErrReader(&Error{Op: "read", Place: name, Err: syscall.EIO}))
	}
	return in, err
}

// TestVerifyGoesOnBehindBadSectors: each file that the disk cannot read is named, and
// the others are verified.
func TestVerifyGoesOnBehindBadSectors(t *testing.T) {
	t.Parallel()
	repo, _, m := backupFiles(t, Options{})
	bad := m.Chunks[0].File
	for _, storedOnly := range []bool{false, true} {
		disk := &badSectors{Storage: repo.Storage(), lost: func(name string) bool {
			return strings.HasSuffix(name, "/"+bad) || strings.HasSuffix(name, "/"+sumsName)
		}}
		r, err := Open(t.Context(), NewRepository(disk), "b", ReadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		v, err := r.Verify(t.Context(), VerifyOptions{StoredOnly: storedOnly, Parallel: 1})
		if err != nil {
			t.Fatal(err)
		}
		if v.Chunks != len(m.Chunks)+1 || len(v.Bad) != 2 {
			t.Errorf("%d of %d files are verified; bad: %v", v.Chunks, len(m.Chunks)+1, v.Bad)
		}
		for _, e := range v.Bad {
			if e.File != bad && e.File != sumsName || !errors.Is(e, ErrCorrupt) || !errors.Is(e, syscall.EIO) {
				t.Errorf("%+v", e)
			}
		}
	}
}

// TestNewestThatCannotBeRead: a request for the newest backup does not get an older one
// where a disk has lost the manifest of the newest.
func TestNewestThatCannotBeRead(t *testing.T) {
	t.Parallel()
	repo, _, _ := backupFiles(t, Options{})
	lost := ""
	disk := NewRepository(&badSectors{Storage: repo.Storage(), lost: func(name string) bool { return lost != "" && name == lost+"/"+manifestName }})
	var ids []string
	for _, label := range []string{"shop", "shop", "other"} {
		w, err := Create(t.Context(), repo, Options{Label: label})
		if err != nil {
			t.Fatal(err)
		}
		m, err := w.Finish(t.Context(), Manifest{Summary: Summary{Engine: PostgreSQL, Scope: "database"}})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, m.ID)
	}
	open := func(id string) (string, error) {
		r, err := Open(t.Context(), disk, id, ReadOptions{})
		if err != nil {
			return "", err
		}
		return r.Manifest().ID, r.Close()
	}
	for _, c := range []struct{ lost, ask, want string }{
		{"", "latest:shop", ids[1]},
		{ids[1], "latest:shop", ""},
		{ids[0], "latest:shop", ids[1]},
		{ids[2], "latest:shop", ids[1]}, // of another label
		{ids[2], "latest", ""},
		{ids[2], ids[1], ids[1]},
	} {
		lost = c.lost
		got, err := open(c.ask)
		if got != c.want || c.want == "" && (err == nil || !strings.Contains(err.Error(), c.lost) || !errors.Is(err, syscall.EIO) && !strings.Contains(err.Error(), "input/output error")) {
			t.Errorf("%s with %q lost: %q, %v", c.ask, c.lost, got, err)
		}
	}
}

// TestDamagedBackupInACopiedRepository: what a copy has made of the time at which the manifest
// was written makes an old backup no newer one.
func TestDamagedBackupInACopiedRepository(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	repo, err := OpenRepository(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now().Add(-time.Hour)
	var ids []string
	for i := range 3 {
		w, err := Create(t.Context(), repo, Options{Label: "shop", Now: func() time.Time { return now.Add(time.Duration(i) * time.Minute) }})
		if err != nil {
			t.Fatal(err)
		}
		m, err := w.Finish(t.Context(), Manifest{Summary: Summary{Engine: PostgreSQL, Scope: "database"}})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, m.ID)
	}
	if err := os.WriteFile(filepath.Join(dir, ids[1], manifestName), []byte("{]"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, written := range []time.Time{time.Now(), now.Add(-time.Hour)} {
		if err := os.Chtimes(filepath.Join(dir, ids[1], manifestName), written, written); err != nil {
			t.Fatal(err)
		}
		entries, err := List(t.Context(), repo, time.Now())
		if err != nil || len(entries) != 3 || entries[1].ID != ids[1] || entries[1].State != Damaged {
			t.Fatalf("%+v, %v", entries, err)
		}
		r, err := Open(t.Context(), repo, Latest, ReadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got := r.Manifest().ID; got != ids[2] {
			t.Errorf("the latest is %s, want %s", got, ids[2])
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}
