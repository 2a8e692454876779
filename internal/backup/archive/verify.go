package archive

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sync/errgroup"
)

// VerifyOptions configure Verify.
type VerifyOptions struct {
	// Parallel is how many chunks are read at once. Default: 2.
	Parallel int

	// StoredOnly compares the stored bytes only. It is implied if the backup is encrypted and
	// no key was given.
	StoredOnly bool

	// Progress is called after every chunk, by one goroutine at a time. Default: nil.
	Progress func(Progress)
}

// Progress is the progress of a verification.
type Progress struct {
	Chunks, TotalChunks int
	Bytes, TotalBytes   int64 // stored bytes
	Bad                 int
}

// A Verification is what Verify found.
type Verification struct {
	Chunks      int           `json:"chunks"`                // number of chunks that were checked
	StoredBytes int64         `json:"stored_bytes"`          // of these chunks, as stored
	PlainBytes  int64         `json:"plain_bytes"`           // of these chunks, before compression and encryption
	StoredOnly  bool          `json:"stored_only,omitempty"` // only the hashes of the stored bytes were checked
	Bad         []*ChunkError `json:"bad,omitempty"`         // chunks that are missing or damaged

	// Unknown are objects in the backup that the manifest does not list.
	Unknown []string `json:"unknown,omitempty"`
}

// OK reports whether all chunks are intact.
func (v *Verification) OK() bool { return len(v.Bad) == 0 }

// Verify reads every byte of every chunk and compares the hashes. With a key it also decrypts,
// decompresses and compares the plain bytes. It continues after a damaged chunk; it returns an
// error only if it cannot continue, for example because ctx has ended.
func (r *Reader) Verify(ctx context.Context, opts VerifyOptions) (*Verification, error) {
	v := &Verification{StoredOnly: opts.StoredOnly || r.manifest.Encryption != nil && r.keys == nil}
	total := Progress{TotalChunks: len(r.manifest.Chunks), TotalBytes: r.manifest.Totals.StoredBytes}
	var mu sync.Mutex
	note := func(c *Chunk, plain int64, bad *ChunkError) {
		mu.Lock()
		defer mu.Unlock()
		v.Chunks++
		v.StoredBytes += c.StoredBytes
		v.PlainBytes += plain
		total.Chunks++
		total.Bytes += c.StoredBytes
		if bad != nil {
			v.Bad = append(v.Bad, bad)
			total.Bad++
		}
		if opts.Progress != nil {
			opts.Progress(total)
		}
	}
	group, reading := errgroup.WithContext(ctx)
	group.SetLimit(max(1, cmp.Or(opts.Parallel, 2)))
	for i := range r.manifest.Chunks {
		c := &r.manifest.Chunks[i]
		if reading.Err() != nil {
			break
		}
		group.Go(func() error {
			plain, err := r.verifyChunk(reading, c, v.StoredOnly)
			var bad *ChunkError
			if err != nil && !errors.As(err, &bad) {
				return err
			}
			note(c, plain, bad)
			return nil
		})
	}
	err := group.Wait()
	if err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("verify backup %s: %w", r.manifest.ID, err)
	}
	for _, check := range []func(context.Context) error{r.checkSums, r.checkKey} {
		var bad *ChunkError
		switch err := check(ctx); {
		case errors.As(err, &bad):
			v.Chunks++
			v.Bad = append(v.Bad, bad)
		case err != nil:
			return nil, fmt.Errorf("verify backup %s: %w", r.manifest.ID, err)
		}
	}
	slices.SortFunc(v.Bad, func(a, b *ChunkError) int { return strings.Compare(a.Path, b.Path) })
	if v.Unknown, err = r.unknown(ctx); err != nil {
		return nil, fmt.Errorf("verify backup %s: %w", r.manifest.ID, err)
	}
	return v, nil
}

// CheckDefinitions verifies everything but rows and large objects, which are verified while a
// restore reads them: definitions, state, and SHA256SUMS. So a restore finds damage there
// before it changes its target.
func (r *Reader) CheckDefinitions(ctx context.Context) error {
	if err := r.checkSums(ctx); err != nil {
		return err
	}
	for i := range r.manifest.Chunks {
		c := &r.manifest.Chunks[i]
		if c.Kind == KindData || c.Kind == KindBlobs || c.Kind == KindLog {
			continue
		}
		if _, err := r.verifyChunk(ctx, c, false); err != nil {
			return err
		}
	}
	return nil
}

// checkSums compares SHA256SUMS with the manifest.
func (r *Reader) checkSums(ctx context.Context) error {
	_, err := wanted(ctx, r.storage, r.dir, sumsName, r.sums, maxManifest)
	return unreadable(sumsName, sumsName, err)
}

// checkKey compares the key file of a passphrase with the manifest.
func (r *Reader) checkKey(ctx context.Context) error {
	e := r.manifest.Encryption
	if e == nil || e.KeyFile == "" {
		return nil
	}
	_, err := e.keyFile(ctx, r.storage, r.dir)
	return unreadable(e.KeyFile, e.KeyFile, err)
}

// verifyChunk reads a chunk to its end and returns the number of its plain bytes.
func (r *Reader) verifyChunk(ctx context.Context, c *Chunk, storedOnly bool) (int64, error) {
	open := r.open
	if storedOnly {
		open = r.openStored
	}
	in, err := open(ctx, c)
	if err != nil {
		return 0, unreadable(c.Path, c.File, err)
	}
	n, err := io.CopyBuffer(io.Discard, onlyReader{in}, make([]byte, 128<<10))
	if storedOnly {
		n = 0
	}
	return n, unreadable(c.Path, c.File, errors.Join(err, in.Close()))
}

// unreadable converts the error of a disk that has lost bytes of a file to a ChunkError. Errors
// that affect all files, such as those of a storage that is unreachable, are returned
// unchanged.
func unreadable(path, file string, err error) error {
	var bad *ChunkError
	if errors.As(err, &bad) || !errors.Is(err, syscall.EIO) && !errors.Is(err, syscall.EBADMSG) {
		return err
	}
	return &ChunkError{Path: path, File: file, Fault: ErrCorrupt, Err: err}
}

// onlyReader hides WriteTo, which some decoders have, and which would hide the source of an
// error.
type onlyReader struct{ io.Reader }

// unknown lists the objects that the manifest does not list.
func (r *Reader) unknown(ctx context.Context) ([]string, error) {
	known := map[string]bool{}
	for i := range r.manifest.Chunks {
		c := &r.manifest.Chunks[i]
		known[c.File] = true
		if c.Segments > 1 {
			known[c.File+partSuffix] = true
		}
	}
	if r.sealed != "" {
		known[r.sealed] = true
	}
	var found []string
	for o, err := range r.storage.List(ctx, r.dir, true) {
		if err != nil {
			return nil, err
		}
		name := strings.TrimPrefix(o.Name, r.dir)
		of := name // the chunk that a segment belongs to
		if i := strings.LastIndex(name, partSuffix); i >= 0 {
			of = name[:i+len(partSuffix)]
		}
		if !known[name] && !known[of] && !reserved(name) {
			found = append(found, name)
		}
	}
	slices.Sort(found)
	return found, nil
}
