package archive

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"filippo.io/age"

	"github.com/weirdb/weir/internal/testkit"
)

// copyRows returns about n bytes of COPY text: numbers, times, words, and a few random bytes
// that do not compress.
func copyRows(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	words := strings.Fields("the order was shipped to a customer who returned it because the colour differed from what had been shown on the page")
	var b bytes.Buffer
	for i := 1; b.Len() < n; i++ {
		fmt.Fprintf(&b, "%d\t2026-%02d-%02d %02d:%02d:%02d\t%d.%02d\t", i, 1+r.IntN(12), 1+r.IntN(28), r.IntN(24), r.IntN(60), r.IntN(60), r.IntN(900), r.IntN(100))
		for range 3 + r.IntN(12) {
			b.WriteString(words[r.IntN(len(words))] + " ")
		}
		fmt.Fprintf(&b, "\t\\\\x%016x\t\\N\n", r.Uint64())
	}
	return b.Bytes()
}

// fixture returns what the tests back up: chunks of awkward sizes with awkward names.
func fixture() map[string][]byte { return maps.Clone(rows()) }

// rows are made once: tests change the map, never the bytes.
var rows = sync.OnceValue(func() map[string][]byte {
	return map[string][]byte{
		"globals.sql":                                           []byte("CREATE ROLE shop;\n"),
		SchemaPath("shop", "pre-data"):                          []byte("CREATE TABLE orders (id int);\n"),
		DataPath("shop", "public", "orders", 1, "copy"):         copyRows(1, 300<<10),
		DataPath("shop", "public", "orders", 2, "copy"):         copyRows(2, 300<<10),
		DataPath("shop", "we.ird", `a/b "c" ü`+"\n", 1, "copy"): copyRows(3, 4096),
		DataPath("shop", "public", "empty", 1, "copy"):          nil,
	}
})

func fixtureContent() Manifest {
	return Manifest{
		Summary: Summary{Engine: PostgreSQL, Server: Server{Version: "15.20", Number: 150020}, Scope: "database", Position: Position{LSN: "0/1628F30"}},
		Options: map[string]string{"jobs": "2"},
		Databases: []Database{{Name: "shop", Tables: []Table{
			{Schema: "public", Name: "orders", Columns: []string{"id", "at"}},
			{Schema: "we.ird", Name: `a/b "c" ü` + "\n"},
			{Schema: "public", Name: "empty"},
		}}},
	}
}

func fixtureInfo(path string) ChunkInfo {
	info := ChunkInfo{Path: path, Kind: KindOther}
	for _, t := range fixtureContent().Databases[0].Tables {
		for part := 1; part <= 2; part++ {
			if path == DataPath("shop", t.Schema, t.Name, part, "copy") {
				info = ChunkInfo{Path: path, Kind: KindData, Database: "shop", Schema: t.Schema, Table: t.Name, Part: part, Content: "copy-text"}
			}
		}
	}
	return info
}

// writeChunk writes one chunk in pieces of odd sizes.
func writeChunk(ctx context.Context, w *Writer, info ChunkInfo, data []byte) error {
	c, err := w.Chunk(ctx, info)
	if err != nil {
		return err
	}
	for rest := data; len(rest) > 0; {
		n := min(len(rest), 7919)
		if _, err := c.Write(rest[:n]); err != nil {
			return errors.Join(err, c.Abort())
		}
		rest = rest[n:]
	}
	c.AddRows(int64(bytes.Count(data, []byte("\n"))))
	return c.Close()
}

// writeAll writes the chunks of data that are not yet in the backup, and finishes it.
func writeAll(ctx context.Context, w *Writer, data map[string][]byte, content Manifest) (*Manifest, error) {
	for path, bytes := range data {
		if _, done := w.Done(path); done {
			continue
		}
		if err := writeChunk(ctx, w, fixtureInfo(path), bytes); err != nil {
			return nil, errors.Join(err, w.Abort(true))
		}
	}
	m, err := w.Finish(ctx, content)
	if err != nil {
		return nil, errors.Join(err, w.Abort(true))
	}
	return m, nil
}

// mustWrite writes the fixture into repo.
func mustWrite(t testing.TB, repo *Repository, opts Options) *Manifest {
	t.Helper()
	w, err := Create(t.Context(), repo, opts)
	if err != nil {
		t.Fatal(err)
	}
	m, err := writeAll(t.Context(), w, fixture(), fixtureContent())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// checkContent compares all chunks of a backup with data.
func checkContent(t testing.TB, r *Reader, data map[string][]byte) {
	t.Helper()
	if got := len(r.Manifest().Chunks); got != len(data) {
		t.Errorf("the manifest has %d chunks, want %d", got, len(data))
	}
	for path, want := range data {
		got, err := readChunk(t.Context(), r, path)
		if err != nil {
			t.Error(err)
		} else if !bytes.Equal(got, want) {
			t.Errorf("chunk %s: %d bytes differ from the %d written", path, len(got), len(want))
		}
	}
}

func readChunk(ctx context.Context, r *Reader, path string) ([]byte, error) {
	in, err := r.Chunk(ctx, path)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(in)
	return data, errors.Join(err, in.Close())
}

// mustVerify expects a backup without a fault.
func mustVerify(t testing.TB, r *Reader) *Verification {
	t.Helper()
	v, err := r.Verify(t.Context(), VerifyOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range v.Bad {
		t.Error(bad)
	}
	if len(v.Unknown) > 0 {
		t.Errorf("unknown objects %q", v.Unknown)
	}
	return v
}

func localRepo(t testing.TB) *Repository {
	t.Helper()
	repo, err := OpenRepository(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return repo
}

// keys are for all tests: making an SSH key or a passphrase's key takes time.
type testKeys struct {
	options  EncryptionOptions
	read     ReadOptions
	wrong    ReadOptions
	identity string
}

func ageKeys(t testing.TB) testKeys {
	t.Helper()
	right, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	wrong, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	return testKeys{
		options:  EncryptionOptions{Recipients: []string{right.Recipient().String()}},
		read:     ReadOptions{Identities: [][]byte{[]byte("# key\n" + right.String() + "\n")}},
		wrong:    ReadOptions{Identities: [][]byte{[]byte(wrong.String())}},
		identity: right.String(),
	}
}

func phraseKeys() testKeys {
	return testKeys{
		options: EncryptionOptions{Passphrase: "correct horse", PassphraseWork: 10},
		read:    ReadOptions{Passphrase: "correct horse"},
		wrong:   ReadOptions{Passphrase: "wrong horse"},
	}
}

// TestRoundTrip writes and reads a backup for every combination of codec, encryption and
// storage.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	hidden := ageKeys(t)
	hidden.options.HideNames = true
	crypts := map[string]testKeys{"plain": {}, "age": ageKeys(t), "passphrase": phraseKeys(), "hidden": hidden}
	for _, codec := range Codecs() {
		for name, keys := range crypts {
			t.Run(fmt.Sprintf("%s/%s/directory", codec, name), func(t *testing.T) {
				t.Parallel()
				repo := localRepo(t)
				mustWrite(t, repo, Options{Label: "shop", Compression: Compression{Codec: codec}, Encryption: keys.options})
				r, err := Open(t.Context(), repo, Latest, keys.read)
				if err != nil {
					t.Fatal(err)
				}
				checkContent(t, r, fixture())
				mustVerify(t, r)
				checkTables(t, r.Manifest())
			})
			t.Run(fmt.Sprintf("%s/%s/stream", codec, name), func(t *testing.T) {
				t.Parallel()
				path := filepath.Join(t.TempDir(), "backup.tar")
				writeStream(t, path, Options{Label: "shop", Compression: Compression{Codec: codec}, Encryption: keys.options}, fixture())
				r, err := OpenLocation(t.Context(), path, "", keys.read)
				if err != nil {
					t.Fatal(err)
				}
				checkContent(t, r, fixture())
				mustVerify(t, r)
				if err := r.Close(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

func writeStream(t testing.TB, path string, opts Options, data map[string][]byte) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w, err := CreateStream(t.Context(), f, opts)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := writeAll(t.Context(), w, data, fixtureContent()); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

func checkTables(t *testing.T, m *Manifest) {
	t.Helper()
	orders := m.Databases[0].Tables[0]
	first := bytes.Count(fixture()[DataPath("shop", "public", "orders", 1, "copy")], []byte("\n"))
	second := bytes.Count(fixture()[DataPath("shop", "public", "orders", 2, "copy")], []byte("\n"))
	if want := int64(first + second); orders.Rows != want || orders.Parts != 2 {
		t.Errorf("table orders has %d rows in %d parts, want %d in 2", orders.Rows, orders.Parts, want)
	}
	if m.Totals.Tables != 3 || m.Totals.Chunks != len(fixture()) {
		t.Errorf("totals are %+v", m.Totals)
	}
	if m.Engine != PostgreSQL || m.Label != "shop" || m.Position.LSN != "0/1628F30" {
		t.Errorf("the summary is %+v", m.Summary)
	}
}

func TestFinishedBackupHoldsNothingButItself(t *testing.T) {
	t.Parallel()
	repo := localRepo(t)
	m := mustWrite(t, repo, Options{ID: "b", Label: "shop"})
	want := map[string]bool{"b/manifest.json": true, "b/SHA256SUMS": true}
	for _, c := range m.Chunks {
		want["b/"+c.File] = true
	}
	for o, err := range repo.Storage().List(t.Context(), "", true) {
		if err != nil {
			t.Fatal(err)
		}
		if !want[o.Name] {
			t.Errorf("%s is left over", o.Name)
		}
		delete(want, o.Name)
	}
	for name := range want {
		t.Errorf("%s is missing", name)
	}
}

// TestMemoryIsBounded counts buffers: whatever is written, the pool hands out no more than its
// limit, and no more chunks are open than it has leases for.
func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	w, err := Create(t.Context(), localRepo(t), Options{Parallel: 3, Buffers: 4, BufferBytes: 4 << 10})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort(false)
	data := copyRows(9, 2<<20)
	var open []*ChunkWriter
	for i := range 3 {
		c, err := w.Chunk(t.Context(), ChunkInfo{Path: fmt.Sprintf("x/%d", i)})
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, c)
	}
	impatient, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := w.Chunk(impatient, ChunkInfo{Path: "x/3"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a fourth chunk of three: %v", err)
	}
	for _, c := range open {
		if _, err := c.Write(data); err != nil {
			t.Fatal(err)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	s := w.Stats()
	if s.Buffers.Allocated > s.Buffers.Total || s.Buffers.MostLeased > s.Buffers.Total || s.Buffers.Total != 12 {
		t.Errorf("buffers are %+v", s.Buffers)
	}
	if s.Buffers.Leased != 0 || s.Buffers.LeaseWaits != 1 {
		t.Errorf("after all chunks ended buffers are %+v", s.Buffers)
	}
	if s.PlainBytes != int64(3*len(data)) || s.Chunks != 3 || s.OpenChunks != 0 {
		t.Errorf("stats are %+v", s)
	}
}

func TestAbortedChunkLeavesNothing(t *testing.T) {
	t.Parallel()
	eachCodec(func(codec Codec, inline bool) {
		repo := localRepo(t)
		w, err := Create(t.Context(), repo, Options{ID: "b", Inline: inline, Compression: Compression{Codec: codec}, Parallel: 1, Buffers: 4, BufferBytes: 4 << 10})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 10 {
			ctx, cancel := context.WithCancel(t.Context())
			c, err := w.Chunk(ctx, ChunkInfo{Path: "x/y"})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.Write(copyRows(1, 100<<10)); err != nil {
				t.Fatal(err)
			}
			if i%2 == 0 {
				cancel()
				if err := c.Close(); !errors.Is(err, context.Canceled) {
					t.Errorf("%s: close after cancel: %v", codec, err)
				}
			}
			if err := c.Abort(); err != nil {
				t.Error(err)
			}
			cancel()
		}
		if s := w.Stats(); s.PlainBytes != 0 || s.StoredBytes != 0 || s.Buffers.Leased != 0 || s.Buffers.Allocated > 4 {
			t.Errorf("%s: stats after aborts are %+v", codec, s)
		}
		want := copyRows(5, 50<<10)
		if err := writeChunk(t.Context(), w, ChunkInfo{Path: "x/y"}, want); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Finish(t.Context(), Manifest{}); err != nil {
			t.Fatal(err)
		}
		r, err := Open(t.Context(), repo, "b", ReadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		checkContent(t, r, map[string][]byte{"x/y": want})
		mustVerify(t, r)
	})
}

// eachCodec calls f for each codec, with and without a goroutine that compresses.
func eachCodec(f func(codec Codec, inline bool)) {
	for _, codec := range Codecs() {
		f(codec, false)
		f(codec, true)
	}
}

// TestInline checks that inline compression writes the same as the stages, without their
// buffers.
func TestInline(t *testing.T) {
	t.Parallel()
	want := copyRows(7, 1<<20)
	sums := map[bool]Chunk{}
	for _, inline := range []bool{false, true} {
		repo := localRepo(t)
		w, err := Create(t.Context(), repo, Options{ID: "b", Inline: inline, Parallel: 1, Compression: Compression{Codec: Zstd, Level: 1}})
		if err != nil {
			t.Fatal(err)
		}
		c, err := w.Chunk(t.Context(), ChunkInfo{Path: "x/y"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write(want); err != nil {
			t.Fatal(err)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		if s := w.Stats(); inline && s.Buffers.Allocated > s.Buffers.Total/2 || s.Pipeline.Compress.Busy == 0 || s.Pipeline.Read.Output == 0 {
			t.Errorf("inline %v: %+v", inline, s)
		}
		m, err := w.Finish(t.Context(), Manifest{})
		if err != nil {
			t.Fatal(err)
		}
		sums[inline] = m.Chunks[0]
		r, err := Open(t.Context(), repo, "b", ReadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		checkContent(t, r, map[string][]byte{"x/y": want})
	}
	if a, b := sums[false], sums[true]; a.StoredSHA256 != b.StoredSHA256 || a.PlainXXH64 != b.PlainXXH64 || a.PlainBytes != b.PlainBytes {
		t.Errorf("%+v is not %+v", a, b)
	}
}

// TestAbortFromElsewhere ends a Write that waits for a storage that never takes
// anything.
func TestAbortFromElsewhere(t *testing.T) {
	t.Parallel()
	for _, inline := range []bool{false, true} {
		abortFromElsewhere(t, inline)
	}
}

func abortFromElsewhere(t *testing.T, inline bool) {
	t.Helper()
	s := &stuckStorage{Storage: localRepo(t).Storage(), release: make(chan struct{})}
	w, err := Create(t.Context(), NewRepository(s), Options{Inline: inline, Buffers: 4, BufferBytes: 4 << 10, Compression: Compression{Codec: None}})
	if err != nil {
		t.Fatal(err)
	}
	c, err := w.Chunk(t.Context(), ChunkInfo{Path: "x/y"})
	if err != nil {
		t.Fatal(err)
	}
	wrote := make(chan error, 1)
	go func() {
		_, err := c.Write(make([]byte, 1<<20))
		wrote <- err
	}()
	testkit.Eventually(t, "the write waits", func() bool { return w.Stats().Buffers.FillWaits > 0 || inline && w.Stats().Buffers.StoreWaits > 0 })
	aborted := make(chan error, 1)
	go func() { aborted <- w.Abort(false) }()
	if err := <-wrote; !errors.Is(err, errAborted) {
		t.Errorf("write: %v", err)
	}
	close(s.release)
	if err := <-aborted; err != nil {
		t.Error(err)
	}
	if s := w.Stats(); s.Buffers.Leased != 0 {
		t.Errorf("buffers are %+v", s.Buffers)
	}
}

// stuckStorage has objects that take no byte before release is closed.
type stuckStorage struct {
	Storage
	release chan struct{}
}

func (s *stuckStorage) Create(ctx context.Context, name string) (ObjectWriter, error) {
	o, err := s.Storage.Create(ctx, name)
	return &stuckObject{o, s.release}, err
}

type stuckObject struct {
	ObjectWriter
	release chan struct{}
}

func (o *stuckObject) Write(p []byte) (int, error) {
	<-o.release
	return o.ObjectWriter.Write(p)
}

func TestWriterRefusesNonsense(t *testing.T) {
	t.Parallel()
	w, err := Create(t.Context(), localRepo(t), Options{ID: "b"})
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"", "/x", "x/", "x//y", "../x", "x/../y", "manifest.json", "run-7", "journal-x", "a\x00b", "a\\b", "\xff", strings.Repeat("x", 300)} {
		if _, err := w.Chunk(t.Context(), ChunkInfo{Path: path}); err == nil {
			t.Errorf("path %q is taken", path)
		}
	}
	c, err := w.Chunk(t.Context(), ChunkInfo{Path: "x/y", Kind: KindData, Database: "d", Table: "t"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Chunk(t.Context(), ChunkInfo{Path: "x/y"}); !errors.Is(err, ErrExist) {
		t.Errorf("one path twice: %v", err)
	}
	if _, err := w.Finish(t.Context(), Manifest{}); err == nil {
		t.Error("finish with an open chunk succeeds")
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Chunk(t.Context(), ChunkInfo{Path: "x/y"}); !errors.Is(err, ErrExist) {
		t.Errorf("a complete path again: %v", err)
	}
	if _, err := w.Finish(t.Context(), Manifest{}); err == nil || !strings.Contains(err.Error(), `table "t"`) {
		t.Errorf("finish without the chunk's table: %v", err)
	}
	if err := w.Abort(false); err != nil {
		t.Error(err)
	}
	if _, err := w.Chunk(t.Context(), ChunkInfo{Path: "x/z"}); err == nil {
		t.Error("a chunk after the end is taken")
	}
}
