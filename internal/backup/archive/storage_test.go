package archive

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// testStorage is what every storage that can be read and written must do.
func testStorage(t *testing.T, s Storage) {
	t.Run("objects appear with Commit", func(t *testing.T) { testObjects(t, s) })
	t.Run("list", func(t *testing.T) { testList(t, s) })
	t.Run("absent", func(t *testing.T) { testAbsent(t, s) })
	t.Run("PutNew has one winner", func(t *testing.T) { testPutNew(t, s) })
}

func testObjects(t *testing.T, s Storage) {
	ctx := t.Context()
	for _, size := range []int{0, 1, 100_000, 12 << 20} {
		name := fmt.Sprintf("objects/a b/ü%d", size)
		data := noise(uint64(size), size)
		w, err := s.Create(ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		for rest := data; len(rest) > 0; {
			n := min(len(rest), 1_000_003)
			if _, err := w.Write(rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		if _, err := s.Stat(ctx, name); !errors.Is(err, ErrNotExist) {
			t.Errorf("%s before Commit: %v", name, err)
		}
		info, err := w.Commit()
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Abort(); err != nil {
			t.Errorf("Abort after Commit: %v", err)
		}
		if info.Name != name || info.Size != int64(size) {
			t.Errorf("committed %+v, want %s with %d bytes", info, name, size)
		}
		if info, err := s.Stat(ctx, name); err != nil || info.Size != int64(size) || time.Since(info.Modified).Abs() > time.Hour {
			t.Errorf("Stat is %+v, %v", info, err)
		}
		for _, offset := range []int{0, size / 3, size} {
			if got := readFrom(t, s, name, int64(offset)); !bytes.Equal(got, data[offset:]) {
				t.Errorf("%s from %d: %d bytes differ from the %d expected", name, offset, len(got), size-offset)
			}
		}
	}
	w, err := s.Create(ctx, "objects/aborted")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(noise(1, 11<<20)); err != nil {
		t.Fatal(err)
	}
	if err := w.Abort(); err != nil {
		t.Error(err)
	}
	if _, err := s.Stat(ctx, "objects/aborted"); !errors.Is(err, ErrNotExist) {
		t.Errorf("an aborted object: %v", err)
	}
	if n, err := s.Clean(ctx, "", farFuture); err != nil || n != 0 {
		t.Errorf("%d pieces were left, %v", n, err)
	}
}

func readFrom(t *testing.T, s Storage, name string, offset int64) []byte {
	t.Helper()
	in, err := s.Open(t.Context(), name, offset)
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(in)
	if err := errors.Join(err, in.Close()); err != nil {
		t.Fatal(err)
	}
	return got
}

func testList(t *testing.T, s Storage) {
	ctx := t.Context()
	names := []string{"list/a", "list/b/c", "list/b/d/e", "listing"}
	for _, name := range names {
		if err := s.Put(ctx, name, []byte(name)); err != nil {
			t.Fatal(err)
		}
		if err := s.Put(ctx, name, []byte("again")); err != nil {
			t.Errorf("Put over %s: %v", name, err)
		}
	}
	for _, c := range []struct {
		dir  string
		deep bool
		want string
	}{
		{"list", false, "list/a list/b/"},
		{"list/", true, "list/a list/b/c list/b/d/e"},
		{"list/b/d", false, "list/b/d/e"},
		{"nothing", true, ""},
	} {
		var got []string
		for o, err := range s.List(ctx, c.dir, c.deep) {
			if err != nil {
				t.Fatal(err)
			}
			if o.Size != 5 && !strings.HasSuffix(o.Name, "/") {
				t.Errorf("%s has %d bytes", o.Name, o.Size)
			}
			got = append(got, o.Name)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("list of %q (deep %v): %q, want %q", c.dir, c.deep, got, c.want)
		}
	}
	for range s.List(ctx, "", true) {
		break // must not hang or leak
	}
	if err := s.Delete(ctx, append(names, "list/never")...); err != nil {
		t.Error(err)
	}
	for o := range s.List(ctx, "list", true) {
		t.Errorf("%s is still there", o.Name)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	for _, err := range s.List(ended, "", true) {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("list after cancel: %v", err)
		}
	}
}

func testAbsent(t *testing.T, s Storage) {
	ctx := t.Context()
	if _, err := s.Open(ctx, "no/such", 0); !errors.Is(err, ErrNotExist) {
		t.Errorf("open: %v", err)
	}
	if _, err := s.Stat(ctx, "no/such"); !errors.Is(err, ErrNotExist) {
		t.Errorf("stat: %v", err)
	}
	if err := s.Delete(ctx, "no/such"); err != nil {
		t.Errorf("delete: %v", err)
	}
	if err := s.Delete(ctx); err != nil {
		t.Errorf("delete nothing: %v", err)
	}
}

func testPutNew(t *testing.T, s Storage) {
	var mu sync.Mutex
	var won []string
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			me := fmt.Sprintf("writer %d", i)
			err := s.PutNew(t.Context(), "new/one", []byte(me))
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				won = append(won, me)
			case !errors.Is(err, ErrExist):
				t.Error(err)
			}
		})
	}
	all.Wait()
	if len(won) != 1 {
		t.Fatalf("%q won", won)
	}
	if got := readFrom(t, s, "new/one", 0); string(got) != won[0] {
		t.Errorf("%q is stored, %q won", got, won[0])
	}
}

// noise returns n bytes that do not compress.
func noise(seed uint64, n int) []byte {
	out := make([]byte, n)
	x := seed*0x9E3779B97F4A7C15 + 1
	for i := range out {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		out[i] = byte(x)
	}
	return out
}

func TestLocalStorage(t *testing.T) {
	t.Parallel()
	s, err := NewLocal(t.TempDir() + "/not/yet")
	if err != nil {
		t.Fatal(err)
	}
	testStorage(t, s)
	for _, name := range []string{"", ".", "..", "../x", "/etc/passwd", "a/../../b", "a//b", "x\x00"} {
		if _, err := s.Open(t.Context(), name, 0); err == nil || errors.Is(err, ErrNotExist) {
			t.Errorf("open %q: %v", name, err)
		}
		if err := s.Put(t.Context(), name, nil); err == nil {
			t.Errorf("put %q succeeds", name)
		}
	}
}

func TestLocalStorageWithoutHardLinks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, err := NewLocal(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Put(t.Context(), "from", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := claimNew(dir+"/from", dir+"/to"); err != nil {
		t.Fatal(err)
	}
	if err := s.Put(t.Context(), "from", []byte("y")); err != nil {
		t.Fatal(err)
	}
	if err := claimNew(dir+"/from", dir+"/to"); err == nil {
		t.Error("a taken name is taken again")
	}
	if got := readFrom(t, s, "to", 0); string(got) != "x" {
		t.Errorf("the file holds %q", got)
	}
}

// TestEscapedNamesAreUnambiguous makes paths of hostile names.
func TestEscapedNamesAreUnambiguous(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("ü", 63)
	tables := [][2]string{
		{"a", "b.c"},
		{"a.b", "c"},
		{"", "a.b.c"},
		{"a/b", "c"},
		{"a", "/b"},
		{"a%2F", "b"},
		{"a", "%2Fb"},
		{"..", ".."},
		{long, long + "1"},
		{long, long + "2"},
		{"A", "b"},
		{"a", "b"},
		{"a", "b "},
		{"a", "b\n"},
		{"", ""},
		{"a", "\xff"},
		{"a", "\ufffd"},
		{"", "%"},
	}
	var seen []string
	for _, n := range tables {
		p := DataPath("d/b", n[0], n[1], 1, "copy")
		if err := checkPath(p); err != nil {
			t.Errorf("%q: %v", n, err)
		}
		if slices.Contains(seen, p) {
			t.Errorf("%q: path %s is another table's, too", n, p)
		}
		seen = append(seen, p)
	}
	if got, want := DataPath("shop", "public", "orders", 7, "copy"), "db/shop/data/public.orders/0007.copy"; got != want {
		t.Errorf("path is %s, want %s", got, want)
	}
}

// A place of a kind that weir does not know is refused, and not taken for a directory.
func TestUnknownKindOfPlaceIsRefused(t *testing.T) {
	t.Chdir(t.TempDir())
	for location, fine := range map[string]bool{
		"gs://bucket/prefix": false, "S3://bucket": false, "postgres://app:secret@db/shop": false,
		"backups": true, "file://backups": true, "./odd://name": true,
	} {
		s, err := OpenStorage(t.Context(), location)
		if (err == nil) != fine {
			t.Errorf("%s: %v, %v", location, s, err)
		}
		if err != nil && (!strings.Contains(err.Error(), "s3://BUCKET/PREFIX") || strings.Contains(err.Error(), "secret")) {
			t.Errorf("%s: %v", location, err)
		}
	}
}
