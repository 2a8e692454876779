package archive

import (
	"fmt"
	"io"
	"runtime"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/klauspost/pgzip"
	"github.com/pierrec/lz4/v4"

	"github.com/weirdb/weir/internal/backup/fastzstd"
)

// An encoder compresses one stream after another.
type encoder interface {
	io.Writer

	// Close ends the stream. It does not close what is below.
	Close() error

	// Reset begins another stream; the previous one may be incomplete.
	Reset(w io.Writer)
}

// encoders hands out encoders of one kind. They are reused, because they are costly to create:
// a zstd encoder has megabytes of tables.
type encoders struct {
	compression Compression
	workers     int // goroutines per stream, for codecs that support it

	mu   sync.Mutex
	idle []encoder
}

// newEncoders returns encoders for up to parallel streams at once. Parallel streams keep the
// processors busy by themselves; gzip uses several workers per stream only if there are fewer
// streams than processors.
func newEncoders(c Compression, parallel int) *encoders {
	return &encoders{compression: c, workers: max(1, runtime.GOMAXPROCS(0)/parallel)}
}

// get returns an encoder; the caller begins its stream with Reset.
func (e *encoders) get() (encoder, error) {
	e.mu.Lock()
	if n := len(e.idle); n > 0 {
		enc := e.idle[n-1]
		e.idle = e.idle[:n-1]
		e.mu.Unlock()
		return enc, nil
	}
	e.mu.Unlock()
	return newEncoder(e.compression, e.workers)
}

// put takes an encoder back. It drops the stream first, which also ends the goroutines of an
// incomplete one.
func (e *encoders) put(enc encoder) {
	enc.Reset(io.Discard)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.idle = append(e.idle, enc)
}

func newEncoder(c Compression, workers int) (encoder, error) {
	switch c.Codec {
	case None:
		return &copier{}, nil
	case Gzip:
		level := c.Level
		if level == 0 {
			level = gzip.DefaultCompression
		}
		w, err := pgzip.NewWriterLevel(io.Discard, level)
		if err != nil {
			return nil, fmt.Errorf("prepare gzip: %w", err)
		}
		return &gzipEncoder{Writer: w, workers: workers}, nil
	case Zstd:
		if c.Level <= 2 {
			return fastzstd.New(io.Discard), nil
		}
		w, err := zstd.NewWriter(nil, zstdOptions(c.Level)...)
		if err != nil {
			return nil, fmt.Errorf("prepare zstd: %w", err)
		}
		return w, nil
	case LZ4:
		w := lz4.NewWriter(io.Discard)
		e := &lz4Encoder{Writer: w, level: lz4Level(c.Level)}
		return e, nil
	}
	return nil, c.validate()
}

// zstdOptions maps a level of the zstd tool, above those of fastzstd, to the options of the Go
// encoder.
//
// Measured on COPY text (48 MB of orders, events and documents; 30 MB of source
// code and prose), one core, as size in MB and CPU seconds, beside the zstd tool
// at the level on the left:
//
//	level  tool            Go encoder              window of Go's
//	3-5    17.9 0.24 s     default  17.8 0.31 s    4 MiB
//	        6.4 0.11 s               6.5 0.13 s
//	6-9                    better   14.4 0.60 s    8 MiB
//	                                 5.8 0.22 s
//	10-22                  best
//
// At level 3, a window of 4 MiB compresses as well as 8 MiB, and 1 MiB 1-2 % worse. Each stream
// has one goroutine: chunks are parallel already.
func zstdOptions(level int) []zstd.EOption {
	step, window := zstd.SpeedDefault, 4<<20
	switch {
	case level >= 10:
		step, window = zstd.SpeedBestCompression, 8<<20
	case level >= 6:
		step, window = zstd.SpeedBetterCompression, 8<<20
	}
	return []zstd.EOption{
		zstd.WithEncoderLevel(step), zstd.WithWindowSize(window),
		zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(true), zstd.WithZeroFrames(true),
	}
}

// lz4Level maps a level of the lz4 tool: 1 and 2 are its fast mode, from 3 on it
// searches.
func lz4Level(level int) lz4.CompressionLevel {
	if level < 3 {
		return lz4.Fast
	}
	return []lz4.CompressionLevel{
		lz4.Level3, lz4.Level4, lz4.Level5, lz4.Level6, lz4.Level7, lz4.Level8, lz4.Level9,
	}[min(level, 9)-3]
}

// gzipBlock is the block size of pgzip in bytes.
const gzipBlock = 256 << 10

// gzipEncoder restores pgzip's concurrency, which its Reset resets.
type gzipEncoder struct {
	*pgzip.Writer
	workers int
}

func (g *gzipEncoder) Reset(w io.Writer) {
	g.Writer.Reset(w)
	if err := g.SetConcurrency(gzipBlock, g.workers); err != nil {
		panic(fmt.Sprintf("archive: gzip block of %d bytes, %d workers: %v", gzipBlock, g.workers, err))
	}
}

// lz4Encoder restores lz4's options, which its Reset resets. Blocks of 1 MiB compress as well
// as blocks of 4 MiB (both 1.58:1 on the text above; 64 KiB: 1.48:1) with a quarter of the
// memory.
type lz4Encoder struct {
	*lz4.Writer
	level lz4.CompressionLevel
}

func (l *lz4Encoder) Reset(w io.Writer) {
	l.Writer.Reset(w)
	err := l.Apply(
		lz4.CompressionLevelOption(l.level), lz4.BlockSizeOption(lz4.Block1Mb),
		lz4.ConcurrencyOption(1), lz4.ChecksumOption(true), lz4.BlockChecksumOption(true),
	)
	if err != nil {
		panic(fmt.Sprintf("archive: lz4 level %v: %v", l.level, err))
	}
}

// copier is the encoder that changes nothing.
type copier struct{ w io.Writer }

func (c *copier) Write(p []byte) (int, error) { return c.w.Write(p) }
func (c *copier) Close() error                { return nil }
func (c *copier) Reset(w io.Writer)           { c.w = w }

// maxWindow limits the memory that a zstd stream may request for decompression; it is the limit
// of `zstd -d` without further options.
const maxWindow = 128 << 20

// NewDecoder returns a reader that decompresses r. Close releases its memory and does not close
// r.
func NewDecoder(r io.Reader, c Codec) (io.ReadCloser, error) {
	switch c {
	case None:
		return io.NopCloser(r), nil
	case Gzip:
		d, err := gzip.NewReader(r)
		if err != nil {
			return nil, fmt.Errorf("read gzip: %w", err)
		}
		return d, nil
	case Zstd:
		d, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, fmt.Errorf("read zstd: %w", err)
		}
		return d.IOReadCloser(), nil
	case LZ4:
		return io.NopCloser(lz4.NewReader(r)), nil
	}
	return nil, fmt.Errorf("compression %q: none, gzip, zstd and lz4 are known", c)
}
