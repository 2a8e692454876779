package archive

import (
	"context"
	"errors"
	"io"
)

// A Writer writes one backup. Its methods are safe for concurrent use. Exactly
// one of Finish and Abort ends it.
type Writer struct {
	opts Options
}

// Create begins a backup in a repository, or continues one (Options.Resume). It
// holds the backup's lock until Finish or Abort: a second writer with the same
// id gets [ErrLocked].
func Create(ctx context.Context, repo *Repository, opts Options) (*Writer, error) {
	return nil, errors.ErrUnsupported
}

// CreateStream begins a backup as one tar stream to out. There is no lock, no
// journal and no resuming. The caller closes out after Finish or Abort.
func CreateStream(ctx context.Context, out io.Writer, opts Options) (*Writer, error) {
	return nil, errors.ErrUnsupported
}

// ID returns the backup's id.
func (w *Writer) ID() string { return w.opts.ID }

// Chunk begins a chunk. It waits while Options.Parallel chunks are open. A path
// can be written again only after Abort of its chunk.
func (w *Writer) Chunk(ctx context.Context, info ChunkInfo) (*ChunkWriter, error) {
	return nil, errors.ErrUnsupported
}

// Done returns the chunk with this path if it is complete, be it in this run or,
// when resuming, in an earlier one. A caller that resumes asks before it reads
// from the server, and compares Attributes where a chunk of another snapshot
// will not do.
func (w *Writer) Done(path string) (Chunk, bool) { return Chunk{}, false }

// Discard forgets a chunk of an earlier run, so that it can be written again.
func (w *Writer) Discard(ctx context.Context, path string) error { return errors.ErrUnsupported }

// Stats returns what has happened so far. It costs little: a progress bar may
// ask often.
func (w *Writer) Stats() Stats { return Stats{} }

// Finish writes the manifest, which makes the backup exist, and releases the
// lock. All chunks must be closed. It fills in what content leaves to it: format,
// id, times, chunks, totals. When Finish fails the backup stays resumable.
func (w *Writer) Finish(ctx context.Context, content Manifest) (*Manifest, error) {
	return nil, errors.ErrUnsupported
}

// Abort gives the backup up without a manifest and releases the lock. With keep,
// its complete chunks and the journal stay for a later Resume; otherwise all is
// deleted. Abort after Finish does nothing.
func (w *Writer) Abort(keep bool) error { return errors.ErrUnsupported }

// A ChunkWriter takes the plain bytes of one chunk. One goroutine uses it, except
// for Abort, which any may call. Exactly one of Close and Abort ends it; Abort
// after Close does nothing, so that it can be deferred.
type ChunkWriter struct{}

// Write takes bytes. It waits while the stages behind it are full.
func (c *ChunkWriter) Write(p []byte) (int, error) { return 0, errors.ErrUnsupported }

// AddRows counts rows. The caller knows what a row is.
func (c *ChunkWriter) AddRows(n int64) {}

// Close completes the chunk: when it returns nil, the bytes are durable in the
// storage and, unless in a stream, in the journal.
func (c *ChunkWriter) Close() error { return errors.ErrUnsupported }

// Abort gives the chunk up. Its path can be written again.
func (c *ChunkWriter) Abort() error { return errors.ErrUnsupported }

// Stats are a writer's counters.
type Stats struct {
	// Chunks, Rows, PlainBytes and StoredBytes are of this run, and include chunks
	// that are still open; Chunks counts complete ones only.
	Chunks      int
	Rows        int64
	PlainBytes  int64
	StoredBytes int64

	// Resumed are the chunks and their plain bytes that earlier runs left.
	ResumedChunks     int
	ResumedPlainBytes int64

	Buffers BufferStats
}

// ErrLocked says that another process writes the same backup.
var ErrLocked = errors.New("another process writes this backup")
