package backupbench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"

	"github.com/weirdb/weir/internal/backup/archive"
)

// copyMethod copies everything from a reader to a writer.
type copyMethod struct {
	name string
	copy func(w io.Writer, r io.Reader) error
}

// copyMethods are those of the reference report, with reused buffers, and weir's own: through
// the pipeline of an archive without compression, which also computes two hashes.
func copyMethods() []copyMethod {
	with := func(name string, size int) copyMethod {
		b := make([]byte, size)
		return copyMethod{name, func(w io.Writer, r io.Reader) error {
			_, err := io.CopyBuffer(w, r, b)
			return err
		}}
	}
	return []copyMethod{
		{"io.Copy", func(w io.Writer, r io.Reader) error {
			_, err := io.Copy(w, r)
			return err
		}},
		with("buffer of 256 KiB", 256<<10),
		with("buffer of 1 MiB", 1<<20),
		with("buffer of 4 MiB", 4<<20),
		{"bufio, 256 KiB", func(w io.Writer, r io.Reader) error {
			b := bufio.NewWriterSize(w, 256<<10)
			_, err := io.Copy(plainWriter{b}, r)
			return errors.Join(err, b.Flush())
		}},
		{"weir's pipeline, hashed", throughArchive},
	}
}

// throughArchive writes one chunk to an archive.
func throughArchive(w io.Writer, r io.Reader) error {
	ctx := context.Background()
	a, err := archive.CreateStream(ctx, w, archive.Options{Compression: archive.Compression{Codec: archive.None}, Parallel: 1})
	if err != nil {
		return err
	}
	c, err := a.Chunk(ctx, archive.ChunkInfo{Path: "copy", Kind: archive.KindData})
	if err != nil {
		return errors.Join(err, a.Abort(false))
	}
	if _, err := io.CopyBuffer(plainWriter{c}, r, make([]byte, 256<<10)); err != nil {
		return errors.Join(err, a.Abort(false))
	}
	if err := c.Close(); err != nil {
		return errors.Join(err, a.Abort(false))
	}
	_, err = a.Finish(ctx, archive.Manifest{Summary: archive.Summary{Engine: archive.PostgreSQL}})
	return err
}

// plainWriter and plainReader hide every method but one, so that io.Copy copies through a
// buffer and does not take a shortcut that only memory has.
type (
	plainWriter struct{ io.Writer }
	plainReader struct{ io.Reader }
)

// repeating is n bytes that repeat a block.
type repeating struct {
	block []byte
	left  int64
	at    int
}

func (r *repeating) Read(p []byte) (int, error) {
	if r.left == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(int64(len(p)), r.left)], r.block[r.at:])
	r.at = (r.at + n) % len(r.block)
	r.left -= int64(n)
	return n, nil
}

// copies copies bytes from memory to nowhere, or to a file that is flushed.
func (r *rig) copies(ctx context.Context, name, to string) error {
	block := make([]byte, 4<<20)
	rng := rand.NewChaCha8([32]byte{1})
	_, _ = rng.Read(block) // never fails
	n := r.o.Plan.Copy
	path := filepath.Join(r.o.Out, "copy.tmp")
	e := r.microExperiment(name, fmt.Sprintf("Copy of %s to %s", sizeText(n), to), map[string]string{"bytes": strconv.FormatInt(n, 10), "to": to})
	for _, m := range copyMethods() {
		e.Sides = append(e.Sides, r.repeated(m.name, n, func(context.Context) (int64, error) {
			in := plainReader{&repeating{block: block, left: n}}
			if to == "nowhere" {
				var out counter
				err := m.copy(plainWriter{&out}, in)
				return 0, errors.Join(err, atLeast(int64(out), n))
			}
			return 0, toFile(path, in, n, m)
		}))
	}
	_, err := r.Measure(ctx, e, r.env, "")
	return errors.Join(err, removeIfThere(path))
}

// toFile copies into a new file and flushes it.
func toFile(path string, in io.Reader, n int64, m copyMethod) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("make file: %w", err)
	}
	err = m.copy(plainWriter{f}, in)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("look at file: %w", err)
	}
	return atLeast(info.Size(), n)
}

// atLeast returns an error if a copy is short. An archive is larger than its chunk.
func atLeast(got, want int64) error {
	if got < want {
		return fmt.Errorf("got %d bytes of %d", got, want)
	}
	return nil
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove file: %w", err)
	}
	return nil
}
