package archive

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// slowStorage takes its time with each write, and may panic.
type slowStorage struct {
	Storage
	write  time.Duration
	commit time.Duration
	panics string // "create" or "write"; "" for never
	wrote  atomic.Int64
}

func (s *slowStorage) Create(ctx context.Context, name string) (ObjectWriter, error) {
	if s.panics == "create" && strings.Contains(name, "orders") {
		panic("no memory for " + name)
	}
	w, err := s.Storage.Create(ctx, name)
	if err != nil || !strings.Contains(name, "orders") {
		return w, err
	}
	return &slowWriter{w, s}, nil
}

type slowWriter struct {
	ObjectWriter
	s *slowStorage
}

func (w *slowWriter) Write(p []byte) (int, error) {
	if w.s.panics == "write" {
		panic("a page is gone")
	}
	w.s.wrote.Add(1)
	time.Sleep(w.s.write)
	return w.ObjectWriter.Write(p)
}

func (w *slowWriter) Commit() (ObjectInfo, error) {
	time.Sleep(w.s.commit)
	return w.ObjectWriter.Commit()
}

// TestPipelineTellsWhoWaits makes one stage slow at a time. Time is that of the
// test's own bubble: what is slow takes exactly so long, and all else none.
func TestPipelineTellsWhoWaits(t *testing.T) {
	pipelineTells(t, false)
	pipelineTells(t, true)
}

func pipelineTells(t *testing.T, inline bool) {
	t.Helper()
	for _, c := range []struct {
		name                       string
		source, write, commit, own time.Duration
		check                      func(p Pipeline, s Shares) bool
	}{
		{"the server", time.Second, 0, 0, 0, func(p Pipeline, s Shares) bool {
			return s.Server == 1 && p.Read.Input == 10*time.Second && p.Read.Busy == 0 && p.Read.Output == 0
		}},
		{"taking rows apart", 0, 0, 0, time.Second, func(p Pipeline, s Shares) bool { return s.Own == 1 && p.Read.Busy == 10*time.Second }},
		{"the storage", 0, time.Second, 0, 0, func(p Pipeline, s Shares) bool {
			return s.Storage == 1 && s.Compressor == 0 && p.Write == time.Duration(10)*time.Second && p.Store.Busy == p.Write && p.Compress.Output > 0
		}},
		{"durability", 0, 0, 3 * time.Second, 0, func(p Pipeline, s Shares) bool {
			return s.Storage == 1 && p.Commit == 3*time.Second && p.Finish == p.Commit && p.Write == 0
		}},
		{"half and half", time.Second, 0, 10 * time.Second, 0, func(_ Pipeline, s Shares) bool {
			return math.Abs(s.Server-.5) < .01 && math.Abs(s.Storage-.5) < .01
		}},
	} {
		dir := t.TempDir()
		synctest.Test(t, func(t *testing.T) {
			local, err := OpenStorage(t.Context(), dir)
			if err != nil {
				t.Fatal(err)
			}
			w, err := Create(t.Context(), NewRepository(&slowStorage{Storage: local, write: c.write, commit: c.commit}), Options{
				ID: "x", Inline: inline, Compression: Compression{Codec: None}, Buffers: 4, BufferBytes: 64 << 10,
			})
			if err != nil {
				t.Fatal(err)
			}
			chunk, err := w.Chunk(t.Context(), ChunkInfo{Path: "db/shop/data/orders/0001.copy", Kind: KindData})
			if err != nil {
				t.Fatal(err)
			}
			for range 10 {
				time.Sleep(c.source + c.own)
				chunk.AddWait(c.source)
				if _, err := chunk.Write(make([]byte, 64<<10)); err != nil {
					t.Fatal(err)
				}
			}
			if err := chunk.Close(); err != nil {
				t.Fatal(err)
			}
			p := w.Stats().Pipeline
			if s := p.Shares(); !c.check(p, s) || p.Chunks != 1 || math.Abs(s.Server+s.Own+s.Compressor+s.Storage-1) > 1e-9 {
				t.Errorf("%s: %+v, %+v", c.name, s, p)
			}
			if err := w.Abort(false); err != nil {
				t.Fatal(err)
			}
		})
	}
	if s := (Pipeline{}).Shares(); s != (Shares{}) {
		t.Errorf("of nothing: %+v", s)
	}
}

// The compressor is the limit where it is slow: real time, but only its order of
// magnitude is looked at.
func TestPipelineTellsOfASlowCompressor(t *testing.T) {
	w, err := Create(t.Context(), mustOpen(t, t.TempDir()), Options{ID: "x", Compression: Compression{Codec: Zstd, Level: 6}, Buffers: 4, BufferBytes: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	chunk, err := w.Chunk(t.Context(), ChunkInfo{Path: "db/shop/data/orders/0001.copy", Kind: KindData})
	if err != nil {
		t.Fatal(err)
	}
	text := make([]byte, 1<<20)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range text {
		text[i] = "abcdefgh"[r.IntN(8)]
	}
	if _, err := chunk.Write(text); err != nil {
		t.Fatal(err)
	}
	if err := chunk.Close(); err != nil {
		t.Fatal(err)
	}
	p := w.Stats().Pipeline
	if p.Compress.Busy <= p.Store.Busy/2 || p.Compress.Busy <= p.Compress.Output || p.Read.Output == 0 || p.Shares().Compressor == 0 {
		t.Errorf("%+v, %+v", p.Shares(), p)
	}
	if err := w.Abort(false); err != nil {
		t.Fatal(err)
	}
}

// TestStageThatPanicsFailsItsChunk has the storage panic in the goroutine of a stage.
func TestStageThatPanicsFailsItsChunk(t *testing.T) {
	stagePanics(t, false)
	stagePanics(t, true)
}

func stagePanics(t *testing.T, inline bool) {
	t.Helper()
	w, err := Create(t.Context(), NewRepository(&slowStorage{Storage: mustOpen(t, t.TempDir()).Storage(), panics: "write"}), Options{ID: "x", Inline: inline})
	if err != nil {
		t.Fatal(err)
	}
	chunk, err := w.Chunk(t.Context(), ChunkInfo{Path: "db/shop/data/orders/0001.copy", Kind: KindData})
	if err != nil {
		t.Fatal(err)
	}
	_, err = chunk.Write([]byte("1\tx\n"))
	err = errors.Join(err, chunk.Close())
	if err == nil || !strings.Contains(err.Error(), "orders/0001.copy: weir panicked: a page is gone") || !strings.Contains(err.Error(), "stages_test.go") {
		t.Errorf("error: %v", err)
	}
	// Others go on.
	other, err := w.Chunk(t.Context(), ChunkInfo{Path: "db/shop/data/items/0001.copy", Kind: KindData})
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Close(); err != nil {
		t.Error(err)
	}
	if err := w.Abort(false); err != nil {
		t.Fatal(err)
	}
}

func mustOpen(t *testing.T, dir string) *Repository {
	t.Helper()
	repo, err := OpenRepository(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	return repo
}
