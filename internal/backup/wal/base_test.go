package wal

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/wire/pgrepl"
)

// TestBaseOntoAFullStorage says once that a storage is full, and leaves nothing.
func TestBaseOntoAFullStorage(t *testing.T) {
	t.Parallel()
	local, err := archive.OpenRepository(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	w, err := archive.Create(t.Context(), archive.NewRepository(fullStorage{local.Storage()}), archive.Options{ID: "b"})
	if err != nil {
		t.Fatal(err)
	}
	sink := &baseSink{ctx: t.Context(), w: w}
	file, err := sink.Archive(pgrepl.Tablespace{})
	if err != nil {
		t.Fatal(err)
	}
	noise := make([]byte, 64<<10)
	random := rand.NewChaCha8([32]byte{})
	var failed error
	for range 1 << 12 { // far more than what is on the way to the storage
		_, _ = random.Read(noise)
		if _, failed = file.Write(noise); failed != nil {
			break
		}
	}
	if !errors.Is(failed, archive.ErrFull) {
		t.Fatalf("the writes: %v", failed)
	}
	// The reader of the server's stream closes the file after a failed write, too.
	all := errors.Join(failed, file.Close(), sink.abort(), w.Abort(false))
	if strings.Count(all.Error(), archive.ErrFull.Error()) != 1 {
		t.Errorf("in all: %v", all)
	}
	for o, err := range local.Storage().List(t.Context(), "", true) {
		t.Errorf("%s is left, %v", o.Name, err)
	}
}

// fullStorage takes no byte of an object that is written as a stream.
type fullStorage struct{ archive.Storage }

func (s fullStorage) Create(ctx context.Context, name string) (archive.ObjectWriter, error) {
	o, err := s.Storage.Create(ctx, name)
	return fullObject{o}, err
}

type fullObject struct{ archive.ObjectWriter }

func (fullObject) Write([]byte) (int, error) { return 0, archive.ErrFull }
