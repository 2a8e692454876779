package archive

import (
	"context"
	"io"
)

// NewEncoder returns a writer that compresses to w as chunks are compressed, with
// so many workers inside the stream where the codec has them (gzip). Close ends
// the stream and does not close w. It is the counterpart of NewDecoder, for
// measurements.
func NewEncoder(w io.Writer, c Compression, workers int) (io.WriteCloser, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	e, err := newEncoder(c, max(workers, 1))
	if err != nil {
		return nil, err
	}
	e.Reset(w)
	return e, nil
}

// A BufferProbe takes buffers as chunks do and gives them back, to measure what
// that costs. It is safe for concurrent use.
type BufferProbe struct{ pool *bufferPool }

// NewBufferProbe returns a probe of a pool for so many goroutines at once, with
// buffers of size bytes.
func NewBufferProbe(goroutines, size int) *BufferProbe {
	return &BufferProbe{newBufferPool(goroutines, 4, size, &clocks{})}
}

// Cycle takes the memory of a chunk, n buffers of it one after the other, and
// gives all back.
func (p *BufferProbe) Cycle(ctx context.Context, n int) error {
	l, err := p.pool.lease(ctx)
	if err != nil {
		return err
	}
	defer l.release()
	for range n {
		b, err := l.plain.get(ctx)
		if err != nil {
			return err
		}
		l.plain.put(b)
	}
	return nil
}
