package archive

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A Writer writes one backup. Its methods are safe for concurrent use. Exactly one of Finish
// and Abort ends it.
type Writer struct {
	opts    Options
	storage Storage
	dir     string // the backup's directory with a trailing slash
	begun   time.Time

	seal     *sealer  // nil: not encrypted
	lock     *lock    // nil in a stream
	journal  *journal // nil in a stream, and if names are hidden
	buffers  *bufferPool
	encoders *encoders
	limit    limiter
	clocks   *clocks

	rows, plainBytes, storedBytes atomic.Int64

	late atomic.Pointer[error] // the first error of a chunk that was closed with CloseAsync

	mu           sync.Mutex
	ended        bool
	open         map[string]*ChunkWriter  // the value is nil while a chunk is being opened
	ending       map[string]chan struct{} // open chunks that complete in the background; closed when they are complete or have failed
	done         map[string]Chunk
	chunks       int // completed in this run
	resumed      int
	resumedBytes int64
}

func newWriter(s Storage, opts Options) (*Writer, error) {
	seal, err := newSealer(opts.Encryption)
	if err != nil {
		return nil, err
	}
	times := &clocks{}
	return &Writer{
		opts: opts, storage: s, dir: opts.ID + "/", seal: seal,
		buffers: newBufferPool(opts.Parallel, opts.Buffers, opts.BufferBytes, times), clocks: times,
		encoders: newEncoders(opts.Compression, opts.Parallel),
		limit:    limiter{perSecond: opts.Rate},
		open:     map[string]*ChunkWriter{}, ending: map[string]chan struct{}{}, done: map[string]Chunk{},
	}, nil
}

// encryption returns what the manifest says about encryption.
func (w *Writer) encryption() *Encryption {
	if w.seal == nil {
		return nil
	}
	return w.seal.public
}

// ID returns the backup's id.
func (w *Writer) ID() string { return w.opts.ID }

// fileName returns the name of a chunk's object, relative to the backup.
func (w *Writer) fileName(path string) string {
	if w.opts.Encryption.HideNames {
		sum := sha256.Sum256([]byte(w.opts.ID + "\x00" + path))
		path = "c/" + hex.EncodeToString(sum[:12])
	}
	path += w.opts.Compression.Codec.Suffix()
	if w.seal != nil {
		path += ageSuffix
	}
	return path
}

// Chunk begins a chunk. It waits while Options.Parallel chunks are open. A path can be written
// again only after Abort of its chunk. When ctx ends, the chunk fails; it must still be
// aborted.
func (w *Writer) Chunk(ctx context.Context, info ChunkInfo) (*ChunkWriter, error) {
	if err := checkPath(info.Path); err != nil {
		return nil, err
	}
	if err := w.claim(info.Path); err != nil {
		return nil, err
	}
	c, err := w.begin(ctx, info)
	if err != nil {
		w.unclaim(info.Path)
		return nil, fmt.Errorf("begin chunk %s: %w", info.Path, err)
	}
	w.mu.Lock()
	ended := w.ended
	w.open[info.Path] = c
	w.mu.Unlock()
	if ended { // Abort was called meanwhile, and did not see this chunk
		return nil, errors.Join(errEnded, c.Abort())
	}
	return c, nil
}

var errEnded = errors.New("write chunk: the backup has ended")

// claim reserves a path.
func (w *Writer) claim(path string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if late := w.late.Load(); late != nil {
		return *late // the backup has failed
	}
	_, done := w.done[path]
	_, open := w.open[path]
	switch {
	case w.ended:
		return errEnded
	case done || open:
		return fmt.Errorf("begin chunk %s: %w", path, ErrExist)
	}
	w.open[path] = nil
	return nil
}

func (w *Writer) unclaim(path string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.open, path)
}

// begin collects what a chunk needs and starts its stages.
func (w *Writer) begin(ctx context.Context, info ChunkInfo) (*ChunkWriter, error) {
	if err := w.held(ctx); err != nil {
		return nil, err
	}
	lease, err := w.buffers.lease(ctx)
	if err != nil {
		return nil, err
	}
	c := &ChunkWriter{w: w, lease: lease, chunk: Chunk{
		ChunkInfo: info, File: w.fileName(info.Path), Codec: w.opts.Compression.Codec,
	}}
	c.bind(ctx)
	if err := w.equip(c); err != nil {
		c.cancel(err)
		lease.release()
		return nil, err
	}
	return c, nil
}

func (w *Writer) equip(c *ChunkWriter) error {
	enc, err := w.encoders.get()
	if err != nil {
		return err
	}
	c.object, err = w.storage.Create(c.ctx, w.dir+c.chunk.File)
	if err != nil {
		w.encoders.put(enc)
		return err
	}
	sink, err := newChunkSink(c, w.seal)
	if err != nil {
		w.encoders.put(enc)
		return errors.Join(err, c.object.Abort())
	}
	c.start(enc, sink)
	return nil
}

// held returns ErrLocked if another run has taken over the backup.
func (w *Writer) held(ctx context.Context) error {
	if w.lock == nil {
		return nil
	}
	return w.lock.held(ctx)
}

// complete records a chunk that is in the storage.
func (w *Writer) complete(c Chunk) error {
	if strings.HasPrefix(c.File, c.Path) {
		c.Path = c.File[:len(c.Path)] // keep one copy of the text: there may be many chunks
	}
	if w.journal != nil {
		line, err := chunkLine(c)
		if err == nil {
			err = w.journal.add(context.Background(), line)
		}
		if err != nil {
			w.unclaim(c.Path)
			return fmt.Errorf("complete chunk %s: %w", c.Path, err)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.open, c.Path)
	w.done[c.Path] = c
	w.chunks++
	return nil
}

// completeAsync completes an open chunk in the background.
func (w *Writer) completeAsync(path string, complete func() error) {
	over := make(chan struct{})
	w.mu.Lock()
	w.ending[path] = over
	w.mu.Unlock()
	go func() {
		defer close(over)
		err := guarded(path, complete)
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.ending[path] == over {
			delete(w.ending, path)
		}
		if err != nil {
			w.late.CompareAndSwap(nil, &err)
		}
	}()
}

// await waits until the chunk of a path has completed or failed, if it was closed with
// CloseAsync.
func (w *Writer) await(path string) {
	w.mu.Lock()
	over := w.ending[path]
	w.mu.Unlock()
	if over != nil {
		<-over
	}
}

// awaitAll waits for all chunks that complete in the background (see
// [ChunkWriter.CloseAsync]), and returns the first error.
func (w *Writer) awaitAll() error {
	w.mu.Lock()
	all := slices.Collect(maps.Values(w.ending))
	w.mu.Unlock()
	for _, over := range all {
		<-over
	}
	if late := w.late.Load(); late != nil {
		return *late
	}
	return nil
}

// settlePatience limits how long a failed backup waits for chunks that complete in the
// background: their storage may be what hangs.
const settlePatience = 5 * time.Second

// Fail ends a backup that has failed. It waits some seconds for chunks that complete in the
// background (see [ChunkWriter.CloseAsync]), and keeps complete chunks for a later Resume; if
// there are none, it deletes everything. It returns the cause, joined with errors of the
// cleanup. If a chunk failed in the background, its error is the cause: whatever failed because
// of it, such as reading another table, is not to blame.
func (w *Writer) Fail(cause error) error {
	if late := w.late.Load(); late != nil && errors.Is(cause, *late) {
		cause = *late
	}
	if w.journal != nil {
		settled := make(chan struct{})
		go func() {
			defer close(settled)
			_ = w.awaitAll() // the errors of failed chunks are known already
		}()
		timer := time.NewTimer(settlePatience)
		defer timer.Stop()
		select {
		case <-settled:
		case <-timer.C: // Abort cancels them, and then what waits for them
		}
	}
	return errors.Join(cause, w.abort(w.Stats().Complete() > 0, cause))
}

// forget subtracts what an aborted chunk had counted.
func (w *Writer) forget(c *ChunkWriter) {
	w.rows.Add(-c.rows.Load())
	w.plainBytes.Add(-c.plainBytes.Load())
	w.storedBytes.Add(-c.storedBytes.Load())
	w.unclaim(c.chunk.Path)
}

// Done returns the chunk with this path if it is complete, whether in this run or, when
// resuming, in an earlier one. A caller that resumes calls it before reading from the server,
// and compares Attributes if a chunk of another snapshot is not acceptable. It waits for a
// chunk that completes in the background; see [ChunkWriter.CloseAsync].
func (w *Writer) Done(path string) (Chunk, bool) {
	w.await(path)
	w.mu.Lock()
	defer w.mu.Unlock()
	c, ok := w.done[path]
	return c, ok
}

// Resumed returns the chunks that earlier runs completed, ordered by path.
func (w *Writer) Resumed() []Chunk {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.resumed == 0 {
		return nil
	}
	return sortedChunks(w.done)
}

// Discard removes a complete chunk, so that it can be written again.
func (w *Writer) Discard(ctx context.Context, path string) error {
	c, ok := w.Done(path)
	if !ok {
		return fmt.Errorf("discard chunk %s: %w", path, ErrNotExist)
	}
	if w.journal != nil {
		line, err := discardLine(path)
		if err == nil {
			err = w.journal.add(ctx, line)
		}
		if err != nil {
			return fmt.Errorf("discard chunk %s: %w", path, err)
		}
	}
	w.mu.Lock()
	delete(w.done, path)
	w.mu.Unlock()
	if w.lock != nil {
		var done func()
		ctx, done = w.lock.while(ctx)
		defer done()
	}
	if err := w.storage.Delete(ctx, w.dir+c.File); err != nil {
		return fmt.Errorf("discard chunk %s: %w", path, w.lock.why(err))
	}
	return nil
}

// Stats returns the counters so far. It is cheap: a progress bar may call it often.
func (w *Writer) Stats() Stats {
	w.mu.Lock()
	defer w.mu.Unlock()
	return Stats{
		Chunks: w.chunks, OpenChunks: len(w.open),
		Rows: w.rows.Load(), PlainBytes: w.plainBytes.Load(), StoredBytes: w.storedBytes.Load(),
		ResumedChunks: w.resumed, ResumedPlainBytes: w.resumedBytes,
		Buffers: w.buffers.stats(), Pipeline: w.clocks.pipeline(),
	}
}

// Stats are a writer's counters.
type Stats struct {
	// Chunks counts the complete chunks of this run. Rows, PlainBytes and StoredBytes are of
	// this run, too, and include the open chunks; what an aborted chunk had counted is
	// subtracted.
	Chunks, OpenChunks int
	Rows               int64
	PlainBytes         int64
	StoredBytes        int64

	// ResumedChunks and their plain bytes are from earlier runs.
	ResumedChunks     int
	ResumedPlainBytes int64

	Buffers BufferStats

	// Pipeline says which stages worked and which waited, over all chunks that have ended.
	Pipeline Pipeline
}

// Complete returns the number of chunks that a resumed run would find.
func (s Stats) Complete() int { return s.Chunks + s.ResumedChunks }

// Abort ends the backup without a manifest and releases the lock. With keep, its complete
// chunks and the journal remain for a later Resume; otherwise everything is deleted. Chunks
// that are still open are aborted. Abort after Finish does nothing.
func (w *Writer) Abort(keep bool) error { return w.abort(keep, nil) }

// abort is Abort after a failure, whose cause it does not repeat: a full storage does not take the
// end of the lock either, which then expires.
func (w *Writer) abort(keep bool, cause error) error {
	w.mu.Lock()
	if w.ended {
		w.mu.Unlock()
		return nil
	}
	w.ended = true
	open := slices.Collect(maps.Values(w.open))
	w.mu.Unlock()
	var errs []error
	for _, c := range open {
		if c != nil {
			errs = append(errs, c.Abort())
		}
	}
	_ = w.awaitAll() // Abort has cancelled them, or they are about to end
	// The context of the backup has often ended by now; the cleanup must not depend on it, and
	// must not hang either.
	ctx, cancel := context.WithTimeout(context.Background(), runPatience)
	defer cancel()
	errs = append(errs, w.leave(ctx, keep && w.journal != nil)...)
	if errors.Is(cause, ErrFull) {
		errs = slices.DeleteFunc(errs, func(err error) bool { return errors.Is(err, ErrFull) })
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("abort backup %s: %w", w.opts.ID, err)
	}
	return nil
}

// leave ends the run of an unfinished backup.
func (w *Writer) leave(ctx context.Context, keep bool) (errs []error) {
	if w.journal != nil {
		errs = append(errs, w.journal.lines.Close(), w.journal.sink.Close())
	}
	switch {
	case w.lock == nil:
	case errors.Is(w.lock.held(ctx), ErrLocked):
		w.lock.halt() // the files belong to the run that took over
	case keep:
		errs = append(errs, w.lock.release(ctx))
	default:
		w.lock.halt()
		// When its lease ends, another run may take over the backup.
		ctx, cancel := context.WithTimeout(ctx, w.lock.lease())
		defer cancel()
		errs = append(errs, removeBackup(ctx, w.storage, w.dir))
	}
	return errs
}

func sortedChunks(m map[string]Chunk) []Chunk {
	all := slices.AppendSeq(make([]Chunk, 0, len(m)), maps.Values(m)) // allocated at once: there may be many
	slices.SortFunc(all, func(a, b Chunk) int { return cmp.Compare(a.Path, b.Path) })
	return all
}

// CreateStream begins a backup as one tar stream to out. There is no lock and no journal, and
// it cannot be resumed. The caller closes out after Finish or Abort; a stream without Finish
// has no manifest and is not a backup.
func CreateStream(ctx context.Context, out io.Writer, opts Options) (*Writer, error) {
	opts = opts.withDefaults()
	if err := opts.validate(); err != nil {
		return nil, fmt.Errorf("create backup: %w", err)
	}
	if opts.Resume {
		return nil, errors.New("create backup: a stream cannot be resumed")
	}
	if opts.ID == "" {
		opts.ID = newID(opts.Now(), opts.Label)
	}
	w, err := newWriter(newTarWriter(out, opts.Now), opts)
	if err == nil && opts.Encryption.Passphrase != "" {
		err = w.seal.addKey(ctx, w.storage, w.dir, opts.Encryption, false)
	}
	if err != nil {
		return nil, fmt.Errorf("create backup %s: %w", opts.ID, err)
	}
	w.begun = opts.Now()
	return w, nil
}
