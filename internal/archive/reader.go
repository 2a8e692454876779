package archive

import (
	"context"
	"errors"
	"io"
)

// A Reader reads one backup that is complete. It is safe for concurrent use.
type Reader struct{}

// ReadOptions holds the keys for reading.
type ReadOptions struct {
	// Identities are private keys: the content of an age identity file or of an
	// unencrypted OpenSSH private key.
	Identities [][]byte

	// Passphrase opens a backup that was written with one.
	Passphrase string

	// SpoolDir is where a stream from a pipe is kept while it is read, for its
	// manifest comes last. Default: os.TempDir().
	SpoolDir string
}

// Latest, as an id, is the newest complete backup of a repository.
const Latest = "latest"

// Open opens the backup id, or the newest one for [Latest] or "", of a repository.
// "latest:LABEL" is the newest of that label.
// It reads the manifest and checks it against its own digest.
func Open(ctx context.Context, repo *Repository, id string, opts ReadOptions) (*Reader, error) {
	return nil, errors.ErrUnsupported
}

// OpenLocation opens the backup at location, which is a repository (then id says
// which), the directory of one backup, or a file with a tar stream; all but the
// last may be in S3.
func OpenLocation(ctx context.Context, location, id string, opts ReadOptions) (*Reader, error) {
	return nil, errors.ErrUnsupported
}

// OpenStream opens a tar stream. When in is an io.ReaderAt of a regular file, its
// chunks are read in place; otherwise all of it is copied to a temporary file
// first, which Close removes. The caller closes in.
func OpenStream(ctx context.Context, in io.Reader, opts ReadOptions) (*Reader, error) {
	return nil, errors.ErrUnsupported
}

// Manifest returns the manifest. The caller does not change it.
func (r *Reader) Manifest() *Manifest { return nil }

// Chunk opens the plain bytes of a chunk. They are verified on the way: io.EOF
// comes only after all bytes agreed with the manifest, and any other end is a
// [*ChunkError]. What was read before such an error must be discarded, by a
// rollback for example.
func (r *Reader) Chunk(ctx context.Context, path string) (io.ReadCloser, error) {
	return nil, errors.ErrUnsupported
}

// Verify reads every byte of every chunk and compares. With the key it also
// decrypts, decompresses and compares the plain bytes. It goes on after a bad
// chunk; the error is for what keeps it from going on, such as ctx.
func (r *Reader) Verify(ctx context.Context, opts VerifyOptions) (*Verification, error) {
	return nil, errors.ErrUnsupported
}

// Close releases what the reader holds.
func (r *Reader) Close() error { return nil }

// VerifyOptions says how to verify.
type VerifyOptions struct {
	// Parallel is how many chunks are read at once. Default: 2.
	Parallel int

	// StoredOnly compares the stored bytes only. It is implied when the backup
	// is encrypted and there is no key.
	StoredOnly bool

	// Progress is called after every chunk, by one goroutine at a time. Default: nil.
	Progress func(Progress)
}

// Progress is how far a verification is.
type Progress struct {
	Chunks, TotalChunks int
	Bytes, TotalBytes   int64 // stored bytes
	Bad                 int
}

// A Verification is what Verify found.
type Verification struct {
	Chunks      int           `json:"chunks"`
	StoredBytes int64         `json:"stored_bytes"`
	PlainBytes  int64         `json:"plain_bytes"`
	StoredOnly  bool          `json:"stored_only,omitempty"`
	Bad         []*ChunkError `json:"bad,omitempty"`

	// Unknown are objects in the backup that the manifest does not list.
	Unknown []string `json:"unknown,omitempty"`
}

// OK reports whether all chunks are good.
func (v *Verification) OK() bool { return len(v.Bad) == 0 }

// A ChunkError says what is wrong with a chunk. errors.Is tells its fault:
// [ErrMissing], [ErrTruncated], [ErrCorrupt], [ErrSwapped], [ErrWrongKey].
type ChunkError struct {
	Path     string `json:"path"`
	File     string `json:"file"`
	Fault    error  `json:"-"`
	Expected string `json:"expected,omitempty"`
	Got      string `json:"got,omitempty"`
	Err      error  `json:"-"` // the cause below, when there is one
}

// The faults of a chunk.
var (
	ErrMissing   = errors.New("missing")
	ErrTruncated = errors.New("truncated")
	ErrCorrupt   = errors.New("corrupt")
	ErrSwapped   = errors.New("holds another chunk's bytes")
	ErrWrongKey  = errors.New("wrong key")
)

// The faults of a manifest.
var (
	// ErrIncomplete says that a backup has no manifest: it was never finished.
	ErrIncomplete = errors.New("backup is incomplete: it has no manifest")

	// ErrEdited says that a manifest does not agree with its own digest.
	ErrEdited = errors.New("manifest was changed after it was written")

	// ErrNewer says that a manifest is of a later version of weir.
	ErrNewer = errors.New("backup was written by a newer weir")

	// ErrNoKey says that a backup is encrypted and no key was given.
	ErrNoKey = errors.New("backup is encrypted and no key was given")
)

// Error names the chunk, the fault and what was expected and got.
func (e *ChunkError) Error() string {
	s := "chunk " + e.Path + " (" + e.File + "): " + e.Fault.Error()
	if e.Expected != "" {
		s += ": expected " + e.Expected + ", got " + e.Got
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns the fault and the cause.
func (e *ChunkError) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Fault}
	}
	return []error{e.Fault, e.Err}
}
