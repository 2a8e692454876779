package archive

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/iotest"
	"time"
)

// backupFiles writes the fixture and returns the directory of the backup.
func backupFiles(t *testing.T, opts Options) (*Repository, string, *Manifest) {
	t.Helper()
	dir := t.TempDir()
	repo, err := OpenRepository(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	opts.ID, opts.Label = "b", "shop"
	m := mustWrite(t, repo, opts)
	return repo, filepath.Join(dir, "b"), m
}

// damage is one way to damage the file of a chunk.
type damage struct {
	name  string
	fault error
	do    func(t *testing.T, dir, file string, size int64)
}

func damages() []damage {
	flip := func(at func(size int64) int64) func(*testing.T, string, string, int64) {
		return func(t *testing.T, dir, file string, size int64) {
			t.Helper()
			data, err := os.ReadFile(filepath.Join(dir, file))
			if err != nil {
				t.Fatal(err)
			}
			data[at(size)] ^= 0x10
			if err := os.WriteFile(filepath.Join(dir, file), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	cut := func(to func(size int64) int64) func(*testing.T, string, string, int64) {
		return func(t *testing.T, dir, file string, size int64) {
			t.Helper()
			if err := os.Truncate(filepath.Join(dir, file), to(size)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return []damage{
		{"first bit", ErrCorrupt, flip(func(int64) int64 { return 0 })},
		{"header", ErrCorrupt, flip(func(int64) int64 { return 7 })},
		{"middle", ErrCorrupt, flip(func(n int64) int64 { return n / 2 })},
		{"last bit", ErrCorrupt, flip(func(n int64) int64 { return n - 1 })},
		{"emptied", ErrTruncated, cut(func(int64) int64 { return 0 })},
		{"cut in the header", ErrTruncated, cut(func(int64) int64 { return 3 })},
		{"cut in the middle", ErrTruncated, cut(func(n int64) int64 { return n / 2 })},
		{"cut by one", ErrTruncated, cut(func(n int64) int64 { return n - 1 })},
		{"longer", ErrCorrupt, func(t *testing.T, dir, file string, _ int64) {
			t.Helper()
			f, err := os.OpenFile(filepath.Join(dir, file), os.O_APPEND|os.O_WRONLY, 0)
			if err == nil {
				_, err = f.Write(make([]byte, 100))
			}
			if err := errors.Join(err, f.Close()); err != nil {
				t.Fatal(err)
			}
		}},
		{"missing", ErrMissing, func(t *testing.T, dir, file string, _ int64) {
			t.Helper()
			if err := os.Remove(filepath.Join(dir, file)); err != nil {
				t.Fatal(err)
			}
		}},
		{"swapped", ErrSwapped, func(t *testing.T, dir, file string, _ int64) {
			t.Helper()
			other := strings.Replace(file, "0001.", "0002.", 1)
			if err := os.Rename(filepath.Join(dir, other), filepath.Join(dir, file)); err != nil {
				t.Fatal(err)
			}
		}},
	}
}

// TestDamageIsNamed damages a chunk of each codec, plain and encrypted, in each way, and expects
// that reading and verifying name the chunk.
func TestDamageIsNamed(t *testing.T) {
	t.Parallel()
	for _, codec := range Codecs() {
		for name, keys := range map[string]testKeys{"plain": {}, "age": ageKeys(t)} {
			for _, d := range damages() {
				t.Run(fmt.Sprintf("%s/%s/%s", codec, name, d.name), func(t *testing.T) {
					t.Parallel()
					repo, dir, m := backupFiles(t, Options{Compression: Compression{Codec: codec}, Encryption: keys.options})
					path := DataPath("shop", "public", "orders", 1, "copy")
					i := slices.IndexFunc(m.Chunks, func(c Chunk) bool { return c.Path == path })
					d.do(t, dir, m.Chunks[i].File, m.Chunks[i].StoredBytes)
					r, err := Open(t.Context(), repo, "b", keys.read)
					if err != nil {
						t.Fatal(err)
					}
					_, err = readChunk(t.Context(), r, path)
					checkFault(t, err, d.fault, path)
					for _, stored := range []bool{false, true} {
						v, err := r.Verify(t.Context(), VerifyOptions{StoredOnly: stored})
						if err != nil {
							t.Fatal(err)
						}
						if v.OK() || v.Chunks != len(m.Chunks) {
							t.Fatalf("verify (stored only %v) found %d of %d chunks bad", stored, len(v.Bad), v.Chunks)
						}
						checkFault(t, v.Bad[0], d.fault, path)
					}
				})
			}
		}
	}
}

func checkFault(t *testing.T, err, fault error, path string) {
	t.Helper()
	var bad *ChunkError
	if !errors.As(err, &bad) || !errors.Is(err, fault) || bad.Path != path || bad.Hint() == "" {
		t.Errorf("got %v, want %v of %s", err, fault, path)
		return
	}
	if text, err := json.Marshal(bad); err != nil || !bytes.Contains(text, []byte(fault.Error())) {
		t.Errorf("as JSON: %s, %v", text, err)
	}
}

func TestWrongKeyIsNamed(t *testing.T) {
	t.Parallel()
	path := DataPath("shop", "public", "orders", 1, "copy")
	keys := ageKeys(t)
	repo, _, _ := backupFiles(t, Options{Encryption: keys.options})
	r, err := Open(t.Context(), repo, "b", keys.wrong)
	if err != nil {
		t.Fatal(err)
	}
	_, err = readChunk(t.Context(), r, path)
	checkFault(t, err, ErrWrongKey, path)

	r, err = Open(t.Context(), repo, "b", ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err = readChunk(t.Context(), r, path); !errors.Is(err, ErrNoKey) {
		t.Errorf("without a key: %v", err)
	}
	if v := mustVerify(t, r); !v.StoredOnly {
		t.Error("verify without a key claims to have read plain bytes")
	}

	phrase := phraseKeys()
	repo, _, _ = backupFiles(t, Options{Encryption: phrase.options})
	if _, err := Open(t.Context(), repo, "b", phrase.wrong); !errors.Is(err, ErrWrongKey) {
		t.Errorf("a wrong passphrase: %v", err)
	}
}

func TestHiddenNames(t *testing.T) {
	t.Parallel()
	keys := ageKeys(t)
	keys.options.HideNames = true
	repo, dir, _ := backupFiles(t, Options{Encryption: keys.options})
	err := filepath.Walk(dir, func(name string, info os.FileInfo, err error) error {
		if err != nil || info.IsDir() {
			return err
		}
		data, err := os.ReadFile(name)
		for _, secret := range []string{"orders", "pre-data", "globals", "0/1628F30"} {
			if bytes.Contains(data, []byte(secret)) || strings.Contains(strings.TrimPrefix(name, dir), secret) {
				t.Errorf("%s shows %q", name, secret)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	r, err := Open(t.Context(), repo, "b", ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if v := mustVerify(t, r); !v.StoredOnly || v.Chunks != len(fixture())+1 {
		t.Errorf("verify without the key: %+v", v)
	}
	if _, err := Open(t.Context(), repo, "b", keys.wrong); !errors.Is(err, ErrWrongKey) {
		t.Errorf("a wrong key: %v", err)
	}
}

func TestManifestEditedNewerOrForeign(t *testing.T) {
	t.Parallel()
	repo, dir, m := backupFiles(t, Options{})
	file := filepath.Join(dir, manifestName)
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	forge := func(change func(*Manifest)) []byte {
		copied := *m
		copied.Chunks = slices.Clone(m.Chunks)
		change(&copied)
		data, err := copied.encode()
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	for _, c := range []struct {
		name string
		data []byte
		is   error
		says string
	}{
		{"one digit", bytes.Replace(good, []byte(`"jobs": "2"`), []byte(`"jobs": "3"`), 1), ErrEdited, ""},
		{"a space", bytes.Replace(good, []byte(`"jobs": "2"`), []byte(`"jobs":  "2"`), 1), ErrEdited, ""},
		{"cut", good[:len(good)/2], ErrEdited, ""},
		{"no digest", bytes.Replace(good, []byte(`"digest"`), []byte(`"Digest"`), 1), ErrEdited, ""},
		{"empty", nil, ErrEdited, ""},
		{"newer", forge(func(m *Manifest) { m.Version++; m.Weir = "9.9" }), ErrNewer, "weir 9.9"},
		{"older than the first", forge(func(m *Manifest) { m.Version = 0 }), nil, "version 0"},
		{"foreign", forge(func(m *Manifest) { m.Format = "tarball" }), nil, "no backup of weir"},
		{"outside", forge(func(m *Manifest) { m.Chunks[0].File = "../../etc/passwd" }), nil, "file name"},
		{"absolute", forge(func(m *Manifest) { m.Chunks[0].File = "/etc/passwd" }), nil, "file name"},
		{"twice", forge(func(m *Manifest) { m.Chunks[1].File = m.Chunks[0].File }), nil, "twice"},
		{"another backup's", forge(func(m *Manifest) { m.ID = "other" }), ErrSwapped, "other"},
		{"codec", forge(func(m *Manifest) { m.Chunks[0].Codec = "rar" }), nil, "rar"},
	} {
		if err := os.WriteFile(file, c.data, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Open(t.Context(), repo, "b", ReadOptions{})
		if err == nil || c.is != nil && !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), repo, "b", ReadOptions{}); !errors.Is(err, ErrIncomplete) {
		t.Errorf("without a manifest: %v", err)
	}
	if _, err := Open(t.Context(), repo, "nothing", ReadOptions{}); !errors.Is(err, ErrNotExist) {
		t.Errorf("no backup: %v", err)
	}
	if _, err := Open(t.Context(), repo, Latest, ReadOptions{}); !errors.Is(err, ErrNoBackup) {
		t.Errorf("latest of none complete: %v", err)
	}
}

// TestStreamFaults reads truncated streams, from a pipe and after tar has extracted them.
func TestStreamFaults(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "backup.tar")
	data := fixture()
	data["db/shop/blobs/large.bin"] = noise(3, 2*segmentBytes+5)
	data["db/shop/blobs/exact.bin"] = noise(4, segmentBytes)
	writeStream(t, file, Options{ID: "b", Compression: Compression{Codec: None}}, data)
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	r, err := OpenStream(t.Context(), iotest.OneByteReader(bytes.NewReader(whole[:1000])), ReadOptions{SpoolDir: dir})
	if err == nil {
		t.Error("the beginning of a stream opens", r)
	}
	for _, n := range []int{0, 100, len(whole) / 2, len(whole) - 3000} {
		if _, err := OpenStream(t.Context(), bytes.NewReader(whole[:n]), ReadOptions{SpoolDir: dir}); err == nil {
			t.Errorf("%d of %d bytes open", n, len(whole))
		} else if n > 1000 && !errors.Is(err, ErrIncomplete) || n == 0 && err.Error() != "open the stream: it holds no backup" {
			t.Errorf("%d of %d bytes: %v", n, len(whole), err)
		}
	}
	r, err = OpenStream(t.Context(), bytes.NewReader(whole), ReadOptions{SpoolDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	checkContent(t, r, data)
	mustVerify(t, r)
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".*")); err != nil || len(left) > 0 {
		t.Errorf("%q are left, %v", left, err)
	}
	runTool(t, dir, nil, "tar", "xf", "backup.tar")
	r, err = OpenLocation(t.Context(), filepath.Join(dir, "b"), "", ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	checkContent(t, r, data)
	mustVerify(t, r)
	if err := os.Remove(filepath.Join(dir, "b", segmentName("db/shop/blobs/large.bin", 2))); err != nil {
		t.Fatal(err)
	}
	_, err = readChunk(t.Context(), r, "db/shop/blobs/large.bin")
	checkFault(t, err, ErrMissing, "db/shop/blobs/large.bin")
}

// TestDiskFull fills a small file system while a backup is written, makes room
// and goes on.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("mounting a small file system needs root")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=2m"); err != nil {
		t.Skipf("mount a tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	repo, err := OpenRepository(t.Context(), filepath.Join(dir, "repo"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "ballast"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	data := map[string][]byte{}
	for i := range 8 {
		data[fmt.Sprintf("x/%d", i)] = noise(uint64(i), 190<<10)
	}
	w, err := Create(t.Context(), repo, Options{ID: "b"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = writeAll(t.Context(), w, data, Manifest{})
	if !errors.Is(err, ErrFull) || !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "make room") {
		t.Fatalf("on a full disk: %v", err)
	}
	if _, err := Open(t.Context(), repo, "b", ReadOptions{}); !errors.Is(err, ErrIncomplete) {
		t.Errorf("the backup that did not fit: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, "ballast")); err != nil {
		t.Fatal(err)
	}
	w, err = Create(t.Context(), repo, Options{ID: "b", Resume: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(w.Resumed()) == 0 {
		t.Error("nothing was resumed")
	}
	if _, err := writeAll(t.Context(), w, data, Manifest{}); err != nil {
		t.Fatal(err)
	}
	r, err := Open(t.Context(), repo, "b", ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	checkContent(t, r, data)
	mustVerify(t, r)
}

// TestPermissionDenied writes into a directory without permission.
func TestPermissionDenied(t *testing.T) {
	t.Parallel()
	// /proc refuses every user, root too.
	s, err := NewLocal("/proc/weir")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Put(t.Context(), "x", nil); err == nil {
		t.Error("/proc can be written")
	}
	if err := localError("write", "/x", &os.PathError{Op: "write", Path: "/x", Err: syscall.EACCES}); !errors.Is(err, ErrDenied) ||
		err.Error() != "write /x: permission denied (check the owner and mode of the directory)" {
		t.Errorf("the error is %v", err)
	}
	full := localError("write", "/x", &os.PathError{Op: "write", Path: "/x", Err: syscall.ENOSPC})
	if err := localError("write to stream", "y", full); err.Error() != "write to stream y: write /x: no space left on device (make room)" {
		t.Errorf("an error of an error is %v", err)
	}
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, []byte("no archive"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := NewLocal(file); err == nil {
		t.Error("a file is taken for a directory")
	}
	if _, err := OpenLocation(t.Context(), file, "", ReadOptions{}); err == nil {
		t.Error("a file of text is taken for a backup")
	}
}

// TestFailingStorage uses a storage that fails after some bytes: the chunk must fail with that
// error, and nothing may hang or leak.
func TestFailingStorage(t *testing.T) {
	t.Parallel()
	eachCodec(func(codec Codec, inline bool) {
		boom := errors.New("boom")
		s := &failingStorage{Storage: localRepo(t).Storage(), after: 40 << 10, err: boom}
		w, err := Create(t.Context(), NewRepository(s), Options{Inline: inline, Compression: Compression{Codec: codec}, Buffers: 4, BufferBytes: 4 << 10})
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if err := writeChunk(t.Context(), w, ChunkInfo{Path: "x/y"}, noise(1, 1<<20)); !errors.Is(err, boom) {
				t.Errorf("%s: %v", codec, err)
			}
		}
		if s := w.Stats(); s.Buffers.Leased != 0 || s.OpenChunks != 0 || s.PlainBytes != 0 {
			t.Errorf("%s: %+v", codec, s)
		}
		if err := w.Abort(false); err != nil {
			t.Error(err)
		}
	})
}

type failingStorage struct {
	Storage
	after int
	err   error
}

func (s *failingStorage) Create(ctx context.Context, name string) (ObjectWriter, error) {
	o, err := s.Storage.Create(ctx, name)
	return &failingObject{ObjectWriter: o, left: s.after, err: s.err}, err
}

type failingObject struct {
	ObjectWriter
	left int
	err  error
}

func (o *failingObject) Write(p []byte) (int, error) {
	if o.left -= len(p); o.left < 0 {
		return 0, o.err
	}
	return o.ObjectWriter.Write(p)
}

// TestFailOnAFullStorage names what fails besides: only that the storage is full is said once.
func TestFailOnAFullStorage(t *testing.T) {
	t.Parallel()
	s := &fullStorage{Storage: localRepo(t).Storage(), abort: errors.New("boom")}
	w, err := Create(t.Context(), NewRepository(s), Options{ID: "b"})
	if err != nil {
		t.Fatal(err)
	}
	if err := writeChunk(t.Context(), w, ChunkInfo{Path: "x/y"}, noise(1, 1<<10)); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Chunk(t.Context(), ChunkInfo{Path: "x/z"}); err != nil {
		t.Fatal(err)
	}
	s.full.Store(true)
	err = w.Fail(fmt.Errorf("write x/z: %w", ErrFull))
	if !errors.Is(err, s.abort) || strings.Count(err.Error(), ErrFull.Error()) != 1 {
		t.Errorf("on a full storage: %v", err)
	}
}

// fullStorage cannot abort an object, and takes no further one once it is full.
type fullStorage struct {
	Storage
	full  atomic.Bool
	abort error
}

func (s *fullStorage) Put(ctx context.Context, name string, data []byte) error {
	if s.full.Load() {
		return ErrFull
	}
	return s.Storage.Put(ctx, name, data)
}

func (s *fullStorage) Create(ctx context.Context, name string) (ObjectWriter, error) {
	o, err := s.Storage.Create(ctx, name)
	return &unabortable{o, s.abort}, err
}

type unabortable struct {
	ObjectWriter
	err error
}

func (o *unabortable) Abort() error { return errors.Join(o.err, o.ObjectWriter.Abort()) }

func TestVerifyEndsWithItsContext(t *testing.T) {
	t.Parallel()
	repo, dir, _ := backupFiles(t, Options{})
	r, err := Open(t.Context(), repo, "b", ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Verify(ctx, VerifyOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("verify after cancel: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "db", "stray"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var last Progress
	v, err := r.Verify(t.Context(), VerifyOptions{Progress: func(p Progress) { last = p }})
	if err != nil || !v.OK() || len(v.Unknown) != 1 || v.Unknown[0] != "db/stray" {
		t.Errorf("verify: %+v, %v", v, err)
	}
	if last.Chunks != last.TotalChunks || last.Bytes != last.TotalBytes {
		t.Errorf("the last progress is %+v", last)
	}
}

func TestRateLimit(t *testing.T) {
	t.Parallel()
	l := &limiter{perSecond: 1000}
	now := time.Unix(0, 0)
	var waits []time.Duration
	for range 4 {
		waits = append(waits, l.reserve(100, now))
	}
	if want := []time.Duration{0, 50 * time.Millisecond, 150 * time.Millisecond, 250 * time.Millisecond}; !slices.Equal(waits, want) {
		t.Errorf("waits are %v, want %v", waits, want)
	}
	if d := l.reserve(100, now.Add(time.Hour)); d != 0 {
		t.Errorf("after an hour of rest the wait is %v", d)
	}
	if d := (&limiter{}).reserve(1<<30, now); d != 0 {
		t.Errorf("without a limit the wait is %v", d)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	slow := &limiter{perSecond: 1}
	_ = slow.wait(ctx, 1000)
	if err := slow.wait(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("a wait that is cancelled: %v", err)
	}
}
