package archive

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestListNamesWhatItCannotRead: a place that can be listed in part only is no shorter list.
func TestListNamesWhatItCannotRead(t *testing.T) {
	t.Parallel()
	repo, dir, _ := backupFiles(t, Options{})
	for _, open := range []string{filepath.Dir(filepath.Dir(dir)), filepath.Dir(dir), dir} {
		if err := os.Chmod(open, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, closed := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(closed, 0); err != nil {
			t.Fatal(err)
		}
		var entries []Entry
		var err, latest error
		asNobody(func() {
			entries, err = List(t.Context(), repo, time.Now())
			_, latest = Open(t.Context(), repo, Latest, ReadOptions{})
		})
		if err := os.Chmod(closed, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, err := range []error{err, latest} {
			if !errors.Is(err, ErrDenied) || !strings.Contains(err.Error(), closed) {
				t.Errorf("%s closed: %d entries, %v", closed, len(entries), err)
			}
		}
	}
	// The name is that of what cannot be looked at, not of the list that it is in.
	closed := filepath.Join(dir, "file")
	if err := os.WriteFile(closed, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o744); err != nil { // names can be read, and nothing else
		t.Fatal(err)
	}
	var err error
	asNobody(func() {
		for _, e := range repo.Storage().List(t.Context(), "b", false) {
			err = errors.Join(err, e)
		}
	})
	if !errors.Is(err, ErrDenied) || !strings.Contains(err.Error(), "look at "+dir+"/") {
		t.Errorf("names without anything else: %v", err)
	}
}

// asNobody runs f as a user whom permissions of files hold for.
func asNobody(f func()) {
	if os.Getuid() != 0 {
		f()
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const nobody = 65534
	was, _ := unix.SetfsuidRetUid(nobody)
	defer func() { _, _ = unix.SetfsuidRetUid(was) }()
	f()
}
