package archive

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/weirdb/weir/internal/backup/guard"
)

// chunkEncoder compresses one chunk and hashes its plain bytes.
type chunkEncoder struct {
	c   *ChunkWriter
	enc encoder
	out *ringWriter

	// open says that the hash of the plain bytes is stored. It is not stored for an encrypted
	// backup, because it would allow others to test guesses about the content; there,
	// encryption authenticates the plain bytes.
	open  bool
	knows summed // an encoder that computes the hash; nil: plain is used
	plain xxhash.Digest
}

func newChunkEncoder(c *ChunkWriter, enc encoder) *chunkEncoder {
	e := &chunkEncoder{c: c, enc: enc, out: &ringWriter{ctx: c.ctx, ring: c.lease.stored, to: c.stored}, open: c.w.seal == nil}
	e.knows, _ = enc.(summed)
	e.plain.Reset()
	enc.Reset(e.out)
	return e
}

func (e *chunkEncoder) write(b []byte) error {
	if e.open && e.knows == nil {
		_, _ = e.plain.Write(b) // never fails
	}
	if _, err := e.enc.Write(b); err != nil {
		return fmt.Errorf("compress chunk %s: %w", e.c.chunk.Path, err)
	}
	return nil
}

// end ends the stream, passes on the rest of the output and records the hash.
func (e *chunkEncoder) end() error {
	if err := e.enc.Close(); err != nil {
		return fmt.Errorf("compress chunk %s: %w", e.c.chunk.Path, err)
	}
	switch {
	case e.open && e.knows != nil:
		e.c.chunk.PlainXXH64 = plainXXH64(e.knows.Sum64())
	case e.open:
		e.c.chunk.PlainXXH64 = plainXXH64(e.plain.Sum64())
	}
	e.out.flush()
	return nil
}

// directBytes is the least size of a write that is compressed directly from the caller's
// memory. Smaller writes are collected in a buffer first.
const directBytes = 64 << 10

// inline compresses in the goroutine that writes. This time counts as the source waiting for
// the compressor.
func (c *ChunkWriter) inline(b []byte) error {
	if c.ctx.Err() != nil {
		return context.Cause(c.ctx)
	}
	began := time.Now()
	err := guarded(c.chunk.Path, func() error { return c.enc.write(b) })
	since(&c.w.clocks.readFull, began)
	since(&c.w.clocks.compress, began)
	if err != nil {
		c.cancel(err)
		return context.Cause(c.ctx) // that of the storing stage, if it failed first
	}
	return nil
}

// endInline ends the stream of a chunk that is compressed inline, unless the chunk or the
// storing stage has failed. c.mu is held.
func (c *ChunkWriter) endInline() {
	if c.ctx.Err() == nil {
		began := time.Now()
		if err := guarded(c.chunk.Path, c.enc.end); err != nil {
			c.cancel(err)
		}
		since(&c.w.clocks.compress, began)
	}
	if !errors.As(context.Cause(c.ctx), new(*guard.PanicError)) { // after a panic the state of the encoder is unknown
		c.w.encoders.put(c.enc.enc) // ends its goroutines, which may still write
	}
	close(c.stored)
}
