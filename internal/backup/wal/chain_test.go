package wal

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/wire/pgrepl"
)

// TestVerifyFindsHoles builds logs of which something is missing: between two
// files, between two bytes, or at the end that the base backup needs.
func TestVerifyFindsHoles(t *testing.T) {
	t.Parallel()
	const size = 1 << 20
	// The base backup goes from the middle of segment 5 to the middle of segment 6.
	const start, stop = 5*size + size/2, 6*size + size/2
	for name, test := range map[string]struct {
		log     map[int]int // bytes by segment; fewer than a segment are the part of one
		withLog bool
		noted   map[uint32]pgrepl.LSN // up to where it was archived
		want    string                // the problem, "" for none
		end     int
	}{
		"whole":                           {log: map[int]int{5: size, 6: size, 7: 100}, end: 7*size + 100},
		"its own log":                     {withLog: true, end: stop},
		"its own log and more":            {log: map[int]int{6: size, 7: 100}, withLog: true, end: 7*size + 100},
		"nothing":                         {log: map[int]int{}, want: "cannot be started", end: 5 * size},
		"older log only":                  {log: map[int]int{4: size}, want: "cannot be started", end: 5 * size},
		"ends before the backup":          {log: map[int]int{5: size}, want: "cannot be started", end: 6 * size},
		"ends before, within a segment":   {log: map[int]int{5: size, 6: size/2 - 1}, want: "cannot be started", end: stop - 1},
		"ends with the backup":            {log: map[int]int{5: size, 6: size / 2}, end: stop},
		"a segment":                       {log: map[int]int{5: size, 6: size, 8: size}, want: "replayed up to 0/700000 only", end: 7 * size},
		"a segment that the backup needs": {log: map[int]int{5: size, 7: size}, want: "cannot be started", end: 6 * size},
		"the rest of a segment":           {log: map[int]int{5: size, 6: size, 7: 4096, 8: size}, want: "replayed up to 0/701000 only", end: 7*size + 4096},
		"the rest, beside its own log":    {log: map[int]int{7: 4096, 8: size}, withLog: true, want: "replayed up to 0/701000 only", end: 7*size + 4096},
		"whole, as noted":                 {log: map[int]int{5: size, 6: size, 7: 100}, noted: map[uint32]pgrepl.LSN{1: 7*size + 100}, end: 7*size + 100},
		"more than noted":                 {log: map[int]int{5: size, 6: size, 7: 200}, noted: map[uint32]pgrepl.LSN{1: 7*size + 100}, end: 7*size + 200},
		"its own log, older noted":        {withLog: true, noted: map[uint32]pgrepl.LSN{1: 5 * size}, end: stop},
		"the newest part":                 {log: map[int]int{5: size, 6: size}, noted: map[uint32]pgrepl.LSN{1: 7*size + 100}, want: "log is missing from 0/700000 to 0/700064, 1 segments: the backup can be replayed up to 0/700000 only", end: 7 * size},
		"the newest segments":             {log: map[int]int{5: size, 6: size}, noted: map[uint32]pgrepl.LSN{1: 9 * size}, want: "2 segments: the backup can be replayed up to 0/700000 only", end: 7 * size},
		"all, beside its own log":         {withLog: true, noted: map[uint32]pgrepl.LSN{1: 9 * size}, want: "log is missing from 0/700000 to 0/900000", end: stop},
		"an older part":                   {log: map[int]int{5: size, 6: size, 7: 100}, noted: map[uint32]pgrepl.LSN{1: 7*size + 200}, want: "log is missing from 0/700064", end: 7*size + 100},
		"a timeline":                      {log: map[int]int{5: size, 6: size, 7: 100}, noted: map[uint32]pgrepl.LSN{1: 7*size + 100, 2: 8 * size}, want: "timeline 2 was archived up to 0/800000, and its history is missing", end: 7*size + 100},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			storage, err := archive.NewLocal(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			s, err := createStore(t.Context(), storage, cluster{SystemID: "1", SegmentBytes: size}, archive.Options{})
			if err != nil {
				t.Fatal(err)
			}
			for number, n := range test.log {
				file := pgrepl.Segment{Timeline: 1, Number: uint64(number), Size: size}.Name()
				if n < size {
					file += partialMark
				}
				if err := s.put(t.Context(), file, bytes.NewReader(make([]byte, n)), archive.Position{}); err != nil {
					t.Fatal(err)
				}
			}
			for timeline, at := range test.noted {
				if err := s.noteEnd(t.Context(), timeline, at); err != nil {
					t.Fatal(err)
				}
			}
			v, err := Verify(t.Context(), storage, &archive.Manifest{
				Summary: archive.Summary{
					ID: "b", Scope: ScopeBase, Server: archive.Server{SystemID: "1"},
					Position: archive.Position{LSN: pgrepl.LSN(stop).String(), Timeline: 1},
				},
				Attributes: map[string]string{"start_lsn": pgrepl.LSN(start).String(), "wal": fmt.Sprint(test.withLog)},
			}, archive.ReadOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(v.Problems, "; "); !strings.Contains(got, test.want) || (got == "") != (test.want == "") {
				t.Errorf("problems: %q, want %q", got, test.want)
			}
			if want := pgrepl.LSN(test.end).String(); v.End != want {
				t.Errorf("it ends at %s, want %s", v.End, want)
			}
		})
	}
}

// TestOldTimelineBehindItsEnd: a segment of a timeline that was left in the middle of it holds
// log of no timeline that follows, while the next one's copy of it is not archived.
func TestOldTimelineBehindItsEnd(t *testing.T) {
	t.Parallel()
	const size = 1 << 20
	left := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC) // about when the timeline was
	storage, err := archive.NewLocal(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s, err := createStore(t.Context(), storage, cluster{SystemID: "1", SegmentBytes: size}, archive.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, number := range []uint64{5, 6, 7} {
		name, content := pgrepl.Segment{Timeline: 1, Number: number, Size: size}.Name(), make([]byte, size)
		if number == 7 {
			copy(content, commits(number*size, left, left.Add(time.Hour)))
		}
		if err := s.put(t.Context(), name, bytes.NewReader(content), archive.Position{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.put(t.Context(), "00000002.history", strings.NewReader("1\t0/700050\tfailed\n"), archive.Position{}); err != nil {
		t.Fatal(err)
	}
	base := &archive.Manifest{
		Summary: archive.Summary{
			ID: "b", Scope: ScopeBase, Server: archive.Server{SystemID: "1"}, Position: archive.Position{LSN: "0/600100", Timeline: 1},
		},
		Attributes: map[string]string{"start_lsn": "0/500100", "wal": "false"},
	}
	v, err := Verify(t.Context(), storage, base, archive.ReadOptions{})
	if err != nil || !v.OK() || v.End != "0/700050" {
		t.Errorf("%+v, %v", v, err)
	}
	if err := s.noteEnd(t.Context(), 2, 7*size+0x100); err != nil {
		t.Fatal(err)
	}
	v, err = Verify(t.Context(), storage, base, archive.ReadOptions{})
	if err != nil || len(v.Problems) != 1 || !strings.Contains(v.Problems[0], "missing from 0/700050 to 0/700100") {
		t.Errorf("with more that is noted: %+v, %v", v, err)
	}
	for _, target := range []Target{{LSN: 7*size + 0x40}, {LSN: 7*size + 0x80, Timeline: "1"}, {Time: left.Add(-time.Second)}, {Time: left.Add(time.Minute), Timeline: "1"}} {
		if err := target.Check(t.Context(), storage, base, archive.ReadOptions{}); err != nil {
			t.Errorf("%+v: %v", target, err)
		}
	}
	for _, behind := range []Target{{LSN: 7*size + 0x80}, {Time: left.Add(time.Minute)}} {
		if err := behind.Check(t.Context(), storage, base, archive.ReadOptions{}); err == nil || !strings.Contains(err.Error(), "ends at 0/700050 on timeline 2") {
			t.Errorf("%+v, behind the end of its timeline: %v", behind, err)
		}
	}
}

// commits is the first page of a segment, with transactions that end at these times. The
// records are 34 bytes long, and begin at 0x28, 0x50 and so on.
func commits(segment uint64, at ...time.Time) []byte {
	page := binary.LittleEndian.AppendUint16(nil, 0xd110)
	page = binary.LittleEndian.AppendUint16(page, pageLong)
	page = binary.LittleEndian.AppendUint32(page, 1)
	page = binary.LittleEndian.AppendUint64(page, segment)
	page = append(page, make([]byte, 16)...)
	page = binary.LittleEndian.AppendUint32(page, 1<<20)
	page = binary.LittleEndian.AppendUint32(page, 8192)
	for _, at := range at {
		record := binary.LittleEndian.AppendUint32(nil, recordHeader+10)
		record = append(append(record, make([]byte, recordHeader-4)...), 255, 8)
		record[17] = managerTransaction
		record = binary.LittleEndian.AppendUint64(record, uint64(at.Sub(since2000(0)).Microseconds()))
		page = append(append(page, record...), make([]byte, -len(record)&7)...)
	}
	return page
}

// TestPiecesAreInOrder restores a tar file whose pieces have names of four and of
// five digits, as those of 10 TiB do.
func TestPiecesAreInOrder(t *testing.T) {
	t.Parallel()
	var file bytes.Buffer
	out := tar.NewWriter(&file)
	content := strings.Repeat("0123456789", 500)
	for _, name := range []string{"global/", controlFile} {
		h := &tar.Header{Name: name, Mode: 0o700, Typeflag: tar.TypeDir}
		if !strings.HasSuffix(name, "/") {
			h.Typeflag, h.Size = tar.TypeReg, int64(len(content))
		}
		if err := out.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := out.Write([]byte(content)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	repo, err := archive.OpenRepository(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	w, err := archive.Create(t.Context(), repo, archive.Options{ID: "b"})
	if err != nil {
		t.Fatal(err)
	}
	half := file.Len() / 2
	for part, piece := range map[int][]byte{9999: file.Bytes()[:half], 10000: file.Bytes()[half:]} {
		c, err := w.Chunk(t.Context(), archive.ChunkInfo{Path: fmt.Sprintf("base/base.tar/%04d", part), Kind: KindBase, Part: part})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write(piece); err != nil {
			t.Fatal(err)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.Finish(t.Context(), archive.Manifest{
		Summary:    archive.Summary{Engine: archive.PostgreSQL, Scope: ScopeBase, Position: archive.Position{LSN: "0/200", Timeline: 1}},
		Attributes: map[string]string{"start_lsn": "0/100", "wal": "true"},
	}); err != nil {
		t.Fatal(err)
	}
	r, err := archive.Open(t.Context(), repo, "b", archive.ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	dir := filepath.Join(t.TempDir(), "data")
	if err := RestoreDir(t.Context(), r, DirOptions{Dir: dir, UID: -1, GID: -1}); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, controlFile)); err != nil || string(got) != content {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// badDisk cannot read objects.
type badDisk struct{ archive.Storage }

func (d badDisk) Open(ctx context.Context, name string, offset int64) (io.ReadCloser, error) {
	in, err := d.Storage.Open(ctx, name, offset)
	if err != nil {
		return nil, err
	}
	return io.NopCloser(iotest.ErrReader(&fs.PathError{Op: "read", Path: name, Err: syscall.EIO})), in.Close()
}

// TestPartThatCannotBeRead: a receiver must not take it for nothing, and write less over it;
// what is damaged is written anew.
func TestPartThatCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	local, err := archive.NewLocal(dir)
	if err != nil {
		t.Fatal(err)
	}
	c := cluster{SystemID: "7", SegmentBytes: 16 << 20}
	s, err := createStore(t.Context(), local, c, archive.Options{})
	if err != nil {
		t.Fatal(err)
	}
	const name = "000000010000000000000001.partial"
	if err := s.put(t.Context(), name, strings.NewReader("log"), archive.Position{}); err != nil {
		t.Fatal(err)
	}
	if n, err := s.length(t.Context(), name); n != 3 || err != nil {
		t.Errorf("length %d, %v", n, err)
	}
	bad := &store{storage: badDisk{local}, cluster: c}
	if n, err := bad.length(t.Context(), name); !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), name) {
		t.Errorf("of what the disk cannot read: %d, %v", n, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "wal", "7", name+".tar"), []byte("no tar file"), 0o600); err != nil {
		t.Fatal(err)
	}
	if n, err := s.length(t.Context(), name); n != 0 || err != nil {
		t.Errorf("of what is damaged: %d, %v", n, err)
	}
}
