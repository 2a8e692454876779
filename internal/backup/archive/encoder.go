package archive

import (
	"context"
	"io"
)

// NewEncoder returns a writer that compresses to w as chunks are compressed, with the given
// number of workers per stream if the codec supports it (gzip). Close ends the stream and does
// not close w. It is the counterpart of NewDecoder, for measurements.
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

// A BufferProbe takes and returns buffers as chunks do, to measure the cost. It is safe for
// concurrent use.
type BufferProbe struct{ pool *bufferPool }

// NewBufferProbe returns a probe for the given number of concurrent goroutines, with buffers of
// size bytes.
func NewBufferProbe(goroutines, size int) *BufferProbe {
	return &BufferProbe{newBufferPool(goroutines, 4, size, &clocks{})}
}

// Cycle takes the memory of a chunk, uses n buffers of it one after the other, and returns it.
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
