package archive

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"filippo.io/age"

	"github.com/weirdb/weir/internal/backup/guard"
)

// A ChunkWriter writes the plain bytes of one chunk. It is used by one goroutine, except for
// Abort, which any goroutine may call. Exactly one of Close and Abort ends it; Abort after
// Close does nothing, so that it can be deferred.
//
// Two goroutines process the bytes, and end with the chunk:
//
//	Write  ->  plain  ->  compress  ->  stored  ->  encrypt, hash, store
//	       <- buffers <-            <- buffers  <-
//
// With [Options.Inline], Write compresses, and only the last stage has a goroutine.
type ChunkWriter struct {
	w     *Writer
	chunk Chunk
	lease *lease
	enc   *chunkEncoder

	ctx    context.Context // is cancelled by the first error, which is its cause
	cancel context.CancelCauseFunc
	unbind func() // unbinds ctx from the caller's context, and cancels it if that has ended
	plain  chan []byte
	stored chan []byte
	stages sync.WaitGroup
	object ObjectWriter

	rows, plainBytes, storedBytes atomic.Int64
	began                         time.Time

	mu    sync.Mutex // guards against a concurrent Abort and Write
	cur   []byte
	ended bool
}

// errAborted is the cause of a chunk that its caller aborted.
var errAborted = errors.New("chunk was aborted")

// bind cancels the chunk when the caller's context ends, until unbind is called, or when the
// lock is lost.
func (c *ChunkWriter) bind(ctx context.Context) {
	own, end := context.WithCancelCause(context.WithoutCancel(ctx))
	heed := func() {
		if ctx.Err() != nil {
			end(context.Cause(ctx))
		}
	}
	heed()
	stop := context.AfterFunc(ctx, heed)
	c.unbind = func() {
		stop()
		heed()
	}
	unlock := func() bool { return true }
	if l := c.w.lock; l != nil {
		unlock = context.AfterFunc(l.gone, func() { end(context.Cause(l.gone)) })
	}
	c.ctx, c.cancel = own, func(cause error) {
		stop()
		unlock()
		end(cause)
	}
}

// start starts the stages of a chunk that has its lease and its object.
func (c *ChunkWriter) start(enc encoder, sink *chunkSink) {
	c.plain = make(chan []byte, cap(c.lease.plain.free))
	c.stored = make(chan []byte, cap(c.lease.stored.free))
	c.enc = newChunkEncoder(c, enc)
	c.began = time.Now()
	if !c.w.opts.Inline {
		c.stages.Go(func() {
			defer close(c.stored)
			defer since(&c.w.clocks.compress, time.Now())
			if err := guarded(c.chunk.Path, c.compress); err != nil {
				c.cancel(err)
				if errors.As(err, new(*guard.PanicError)) {
					return // after a panic the state of the encoder is unknown
				}
			}
			// An encoder with goroutines of its own must have ended them before the buffers go
			// to another chunk.
			c.w.encoders.put(enc)
		})
	}
	c.stages.Go(func() {
		defer since(&c.w.clocks.store, time.Now())
		if err := guarded(c.chunk.Path, func() error { return c.store(sink) }); err != nil {
			c.cancel(err)
		}
	})
}

// compress runs until plain is closed or the chunk has failed.
func (c *ChunkWriter) compress() error {
	for {
		b, more, err := receive(c.ctx, c.plain, &c.w.clocks.compressInput)
		switch {
		case err != nil:
			return err
		case !more:
			return c.enc.end()
		case c.ctx.Err() != nil:
			return context.Cause(c.ctx)
		}
		if err := c.enc.write(b); err != nil {
			return err
		}
		c.lease.plain.put(b)
	}
}

// store runs until stored is closed or the chunk has failed.
func (c *ChunkWriter) store(sink *chunkSink) error {
	for {
		b, more, _ := receive(context.Background(), c.stored, &c.w.clocks.storeInput)
		if !more {
			break
		}
		if c.ctx.Err() != nil {
			return context.Cause(c.ctx)
		}
		began := time.Now()
		_, err := sink.top.Write(b)
		since(&c.w.clocks.top, began)
		if err != nil {
			return fmt.Errorf("store chunk %s: %w", c.chunk.Path, err)
		}
		c.lease.stored.put(b)
	}
	// A failed chunk closes stored, too; its object must not appear as complete.
	if c.ctx.Err() != nil {
		return context.Cause(c.ctx)
	}
	began := time.Now()
	err := sink.top.Close()
	since(&c.w.clocks.top, began)
	if err != nil {
		return fmt.Errorf("store chunk %s: %w", c.chunk.Path, err)
	}
	c.chunk.StoredBytes = c.storedBytes.Load()
	c.chunk.StoredSHA256 = hex.EncodeToString(sink.hash.Sum(nil))
	return nil
}

// Write implements io.Writer. It waits while the stages after it are full.
func (c *ChunkWriter) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return 0, fmt.Errorf("write chunk %s: it has ended", c.chunk.Path)
	}
	if late := c.w.late.Load(); late != nil {
		return 0, *late // the backup has failed
	}
	done := 0
	for done < len(p) {
		if c.w.opts.Inline && len(c.cur) == 0 && len(p)-done >= directBytes {
			if err := c.inline(p[done:]); err != nil {
				return done, err
			}
			done = len(p)
			break
		}
		if c.cur == nil {
			b, err := c.lease.plain.get(c.ctx)
			if err != nil {
				return done, err
			}
			c.cur = b
		}
		n := min(len(p)-done, cap(c.cur)-len(c.cur))
		c.cur = append(c.cur, p[done:done+n]...)
		done += n
		if len(c.cur) == cap(c.cur) {
			if err := c.send(); err != nil {
				return done, err
			}
		}
	}
	c.plainBytes.Add(int64(done))
	c.w.plainBytes.Add(int64(done))
	return done, nil
}

// send passes the current buffer on.
func (c *ChunkWriter) send() error {
	if c.ctx.Err() != nil {
		return context.Cause(c.ctx)
	}
	if c.w.opts.Inline {
		if err := c.inline(c.cur); err != nil {
			return err
		}
		c.cur = c.cur[:0]
		return nil
	}
	c.plain <- c.cur // never blocks: has room for all buffers of the ring
	c.cur = nil
	return nil
}

// AddRows adds n to the number of rows in the chunk.
func (c *ChunkWriter) AddRows(n int64) {
	c.rows.Add(n)
	c.w.rows.Add(n)
}

// AddWait adds the time that the caller waited for its input. It is part of the time between
// the beginning of the chunk and its Close; see [Pipeline].
func (c *ChunkWriter) AddWait(d time.Duration) { c.w.clocks.readInput.Add(int64(d)) }

// Close completes the chunk: when it returns nil, the bytes are durable in the storage and,
// unless in a stream, recorded in the journal. After an error the chunk is aborted.
func (c *ChunkWriter) Close() error {
	closing := time.Now()
	if err := c.handOn(); err != nil {
		return err
	}
	defer func() {
		since(&c.w.clocks.finish, closing)
		c.count()
	}()
	return c.complete()
}

// CloseAsync is Close without waiting: it returns when all bytes were passed on, and the chunk
// completes in the background. Until then the chunk counts as open; [Writer.Finish] waits for
// it, and fails if it fails.
func (c *ChunkWriter) CloseAsync() error {
	if err := c.handOn(); err != nil {
		return err
	}
	c.count()
	c.w.completeAsync(c.chunk.Path, c.complete)
	return nil
}

// count adds up the time of the chunk's source, which has ended.
func (c *ChunkWriter) count() {
	c.w.clocks.chunks.Add(1)
	since(&c.w.clocks.read, c.began)
}

// handOn passes the rest of the data to the stages and ends their input. From then on the chunk
// does not depend on the caller's context.
func (c *ChunkWriter) handOn() error {
	c.mu.Lock()
	if c.ended {
		c.mu.Unlock()
		return fmt.Errorf("close chunk %s: it has ended", c.chunk.Path)
	}
	if len(c.cur) > 0 {
		if err := c.send(); err != nil {
			c.mu.Unlock()
			return errors.Join(err, c.Abort())
		}
	}
	c.ended = true
	if c.w.opts.Inline {
		c.endInline()
	}
	c.unbind()
	close(c.plain)
	c.mu.Unlock()
	return nil
}

// complete waits for the stages, commits the object and records the chunk in the journal.
func (c *ChunkWriter) complete() error {
	c.stages.Wait()
	if c.ctx.Err() != nil {
		return errors.Join(context.Cause(c.ctx), c.giveUp())
	}
	if err := c.w.held(c.ctx); err != nil {
		c.cancel(err)
		return errors.Join(fmt.Errorf("store chunk %s: %w", c.chunk.Path, err), c.giveUp())
	}
	committing := time.Now()
	info, err := c.object.Commit()
	since(&c.w.clocks.commit, committing)
	if err != nil {
		c.cancel(err)
		return errors.Join(fmt.Errorf("store chunk %s: %w", c.chunk.Path, err), c.giveUp())
	}
	c.chunk.Segments = info.Segments
	c.chunk.Rows, c.chunk.PlainBytes = c.rows.Load(), c.plainBytes.Load()
	c.cancel(nil)
	c.lease.release()
	return c.w.complete(c.chunk)
}

// Abort discards the chunk. Its path can be written again.
func (c *ChunkWriter) Abort() error {
	c.cancel(errAborted) // ends a blocked Write; does nothing after Close
	c.mu.Lock()
	if c.ended {
		c.mu.Unlock()
		return nil
	}
	c.ended = true
	if c.w.opts.Inline {
		c.endInline()
	}
	c.mu.Unlock()
	c.stages.Wait()
	return c.giveUp()
}

// giveUp releases what a chunk without stages holds.
func (c *ChunkWriter) giveUp() error {
	c.cancel(errAborted)
	err := c.object.Abort()
	c.lease.release()
	c.w.forget(c)
	return err
}

// guarded runs a stage of a chunk. If it panics, only its chunk fails, by a [*guard.PanicError].
func guarded(path string, stage func() error) error { return guard.Run("chunk "+path, stage) }

// ringWriter collects an encoder's output in the buffers of a ring.
type ringWriter struct {
	ctx  context.Context
	ring *ring
	to   chan<- []byte
	cur  []byte
}

func (r *ringWriter) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		if r.cur == nil {
			b, err := r.ring.get(r.ctx)
			if err != nil {
				return len(p) - len(rest), err
			}
			r.cur = b
		}
		n := min(len(rest), cap(r.cur)-len(r.cur))
		r.cur = append(r.cur, rest[:n]...)
		rest = rest[n:]
		if len(r.cur) == cap(r.cur) {
			r.to <- r.cur // never blocks: has room for all buffers of the ring
			r.cur = nil
		}
	}
	return len(p), nil
}

func (r *ringWriter) flush() {
	if r.cur != nil {
		r.to <- r.cur
		r.cur = nil
	}
}

// chunkSink is the last stage: it encrypts if that is requested, and then counts, hashes,
// limits the rate and stores.
type chunkSink struct {
	top  io.WriteCloser
	hash hash.Hash
}

func newChunkSink(c *ChunkWriter, s *sealer) (*chunkSink, error) {
	sink := &chunkSink{hash: sha256.New()}
	below := &countedObject{c: c, hash: sink.hash}
	if s == nil {
		sink.top = below
		return sink, nil
	}
	top, err := age.Encrypt(below, s.recipients...)
	if err != nil {
		return nil, fmt.Errorf("encrypt chunk %s: %w", c.chunk.Path, err)
	}
	sink.top = top
	return sink, nil
}

// countedObject writes to a chunk's object.
type countedObject struct {
	c    *ChunkWriter
	hash hash.Hash
}

func (o *countedObject) Write(p []byte) (int, error) {
	clocks := o.c.w.clocks
	began := time.Now()
	if err := o.c.w.limit.wait(o.c.ctx, len(p)); err != nil {
		return 0, err
	}
	limited := time.Now()
	n, err := o.c.object.Write(p)
	written := time.Now()
	o.hash.Write(p[:n])
	since(&clocks.hash, written)
	clocks.limit.Add(int64(limited.Sub(began)))
	clocks.write.Add(int64(written.Sub(limited)))
	o.c.storedBytes.Add(int64(n))
	o.c.w.storedBytes.Add(int64(n))
	return n, err
}

func (o *countedObject) Close() error { return nil }
