package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
)

// gatedStorage completes chunks when the gate lets it: with nil, or with an error, as which
// they fail.
type gatedStorage struct {
	Storage
	gate chan error
}

func (s *gatedStorage) Create(ctx context.Context, name string) (ObjectWriter, error) {
	o, err := s.Storage.Create(ctx, name)
	if err == nil && strings.Contains(name, "/db/") {
		o = &gatedObject{o, ctx.Done(), s.gate}
	}
	return o, err
}

type gatedObject struct {
	ObjectWriter
	end  <-chan struct{}
	gate chan error
}

func (o *gatedObject) Commit() (ObjectInfo, error) {
	var err error
	select {
	case err = <-o.gate:
	case <-o.end:
		err = errAborted
	}
	if err != nil {
		return ObjectInfo{}, errors.Join(err, o.Abort())
	}
	return o.ObjectWriter.Commit()
}

// writeAsync writes a chunk that becomes complete beside what follows, with a context that ends
// before.
func writeAsync(t *testing.T, w *Writer, path string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c, err := w.Chunk(ctx, ChunkInfo{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte(path)); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseAsync(); err != nil {
		t.Fatal(err)
	}
	if n := w.Stats().OpenChunks; n != 1 {
		t.Errorf("chunk %s counts before it is complete", path)
	}
	if err := c.Close(); err == nil {
		t.Errorf("chunk %s is closed twice", path)
	}
}

func gated(t *testing.T, inline bool) (*Repository, *Writer, chan error) {
	t.Helper()
	repo := localRepo(t)
	gate := make(chan error, 2)
	w, err := Create(t.Context(), NewRepository(&gatedStorage{repo.Storage(), gate}), Options{ID: "b", Inline: inline})
	if err != nil {
		t.Fatal(err)
	}
	return repo, w, gate
}

// TestCloseAsync: Finish waits for chunks that are on their way, whether or not the context of
// their making has ended, and so do those who ask for them, write them again or take them back.
func TestCloseAsync(t *testing.T) {
	t.Parallel()
	for _, inline := range []bool{false, true} {
		repo, w, gate := gated(t, inline)
		writeAsync(t, w, "db/x")
		gate <- nil
		if err := w.Discard(t.Context(), "db/x"); err != nil {
			t.Fatal(err)
		}
		writeAsync(t, w, "db/x")
		gate <- nil
		gate <- nil
		if err := w.Replace(t.Context(), ChunkInfo{Path: "db/x"}, func(out io.Writer) error {
			_, err := out.Write([]byte("db/x"))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if _, done := w.Done("db/x"); !done {
			t.Error("a chunk that became complete is not done")
		}
		writeAsync(t, w, "db/y")
		go func() { gate <- nil }()
		if _, err := w.Finish(t.Context(), Manifest{}); err != nil {
			t.Fatal(err)
		}
		r, err := Open(t.Context(), repo, "b", ReadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		checkContent(t, r, map[string][]byte{"db/x": []byte("db/x"), "db/y": []byte("db/y")})
	}
}

// TestCloseAsyncFails: a chunk that does not become complete fails what comes next, and
// the backup.
func TestCloseAsyncFails(t *testing.T) {
	t.Parallel()
	repo, w, gate := gated(t, true)
	broken := errors.New("broken disk")
	writeAsync(t, w, "db/x")
	long, err := w.Chunk(t.Context(), ChunkInfo{Path: "db/long"})
	if err != nil {
		t.Fatal(err)
	}
	gate <- broken
	w.await("db/x")
	if _, err := long.Write([]byte("more")); !errors.Is(err, broken) {
		t.Errorf("write to a chunk that is open: %v", err)
	}
	if err := long.Abort(); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Chunk(t.Context(), ChunkInfo{Path: "db/y"}); !errors.Is(err, broken) {
		t.Errorf("the next chunk: %v", err)
	}
	if err := w.Sweep(t.Context(), nil, func(string) bool { return true }); !errors.Is(err, broken) {
		t.Errorf("sweep: %v", err)
	}
	if _, err := w.Finish(t.Context(), Manifest{}); !errors.Is(err, broken) {
		t.Errorf("finish: %v", err)
	}
	if err := w.Abort(false); err != nil {
		t.Fatal(err)
	}
	for o, err := range repo.Storage().List(t.Context(), "", true) {
		t.Errorf("%s is left, %v", o.Name, err)
	}
}

// TestFailNamesTheChunk: a backup that fails because a chunk on its way did does not blame
// what it was doing when that came to light.
func TestFailNamesTheChunk(t *testing.T) {
	t.Parallel()
	_, w, gate := gated(t, true)
	broken := errors.New("broken disk")
	writeAsync(t, w, "db/x")
	gate <- broken
	w.await("db/x")
	_, err := w.Chunk(t.Context(), ChunkInfo{Path: "db/y"})
	err = w.Fail(fmt.Errorf("read table y: %w", err))
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), "db/x") || strings.Contains(err.Error(), "table y") {
		t.Errorf("error: %v", err)
	}
}

// TestAbortDuringClose: Abort comes to an end only when no chunk is on its way.
func TestAbortDuringClose(t *testing.T) {
	t.Parallel()
	repo, w, gate := gated(t, true)
	writeAsync(t, w, "db/x")
	go func() { gate <- nil }()
	if err := w.Abort(false); err != nil {
		t.Fatal(err)
	}
	for o, err := range repo.Storage().List(t.Context(), "", true) {
		t.Errorf("%s is left, %v", o.Name, err)
	}
}

// TestFailKeepsWhatEnds: a backup that fails keeps the chunks that are complete, and
// comes to an end though another one never does.
func TestFailKeepsWhatEnds(t *testing.T) {
	t.Parallel()
	repo, w, gate := gated(t, true)
	writeAsync(t, w, "db/x")
	gate <- nil
	w.await("db/x")
	writeAsync(t, w, "db/stuck")
	broken := errors.New("no more tables")
	if err := w.Fail(broken); err == nil || err.Error() != broken.Error() {
		t.Errorf("fail: %v", err)
	}
	w, err := Create(t.Context(), repo, Options{ID: "b", Resume: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, done := w.Done("db/x"); !done {
		t.Error("a complete chunk is lost")
	}
	if _, done := w.Done("db/stuck"); done {
		t.Error("a chunk is complete that never became so")
	}
	if err := w.Abort(false); err != nil {
		t.Fatal(err)
	}
}
