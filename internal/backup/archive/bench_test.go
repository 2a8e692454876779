package archive

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"testing"

	stdgzip "compress/gzip"
)

// BenchmarkBufferLease is what a chunk pays for its memory, beside making it.
func BenchmarkBufferLease(b *testing.B) {
	ctx := context.Background()
	b.Run("lease and release", func(b *testing.B) {
		p := newBufferPool(2, 8, 256<<10, &clocks{})
		for b.Loop() {
			l, err := p.lease(ctx)
			if err != nil {
				b.Fatal(err)
			}
			l.release()
		}
	})
	b.Run("get and put", func(b *testing.B) {
		p := newBufferPool(1, 8, 256<<10, &clocks{})
		l, err := p.lease(ctx)
		if err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			buf, err := l.plain.get(ctx)
			if err != nil {
				b.Fatal(err)
			}
			l.plain.put(buf)
		}
	})
	b.Run("allocate", func(b *testing.B) {
		for b.Loop() {
			kept = make([]byte, 256<<10)
		}
	})
}

var kept []byte

// BenchmarkCompress is each codec's rate on COPY text, and how many times smaller
// its output is; the standard library's gzip stands beside for comparison.
func BenchmarkCompress(b *testing.B) {
	data := copyRows(1, 8<<20)
	measure := func(b *testing.B, compress func(w io.Writer) error) {
		b.Helper()
		b.SetBytes(int64(len(data)))
		var size int64
		for b.Loop() {
			var out countWriter
			if err := compress(&out); err != nil {
				b.Fatal(err)
			}
			size = int64(out)
		}
		b.ReportMetric(float64(len(data))/float64(size), "ratio")
	}
	for _, s := range []string{"none", "lz4:1", "lz4:9", "zstd:1", "zstd:3", "zstd:6", "gzip:1", "gzip:6"} {
		c, err := ParseCompression(s)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(s, func(b *testing.B) {
			e, err := newEncoder(c, 1)
			if err != nil {
				b.Fatal(err)
			}
			measure(b, func(w io.Writer) error {
				e.Reset(w)
				if _, err := e.Write(data); err != nil {
					return err
				}
				return e.Close()
			})
		})
	}
	b.Run("standard-gzip:6", func(b *testing.B) {
		e := stdgzip.NewWriter(io.Discard)
		measure(b, func(w io.Writer) error {
			e.Reset(w)
			if _, err := e.Write(data); err != nil {
				return err
			}
			return e.Close()
		})
	})
}

type countWriter int64

func (c *countWriter) Write(p []byte) (int, error) { *c += countWriter(len(p)); return len(p), nil }

// BenchmarkDecompress is the way back.
func BenchmarkDecompress(b *testing.B) {
	data := copyRows(1, 8<<20)
	for _, codec := range Codecs() {
		b.Run(string(codec), func(b *testing.B) {
			var packed bytes.Buffer
			e, err := newEncoder(Compression{Codec: codec}, 1)
			if err != nil {
				b.Fatal(err)
			}
			e.Reset(&packed)
			if _, err := e.Write(data); err != nil {
				b.Fatal(err)
			}
			if err := e.Close(); err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				d, err := NewDecoder(bytes.NewReader(packed.Bytes()), codec)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := io.Copy(io.Discard, d); err != nil {
					b.Fatal(err)
				}
				if err := d.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkWriter is the whole pipeline into a directory, two chunks at once.
func BenchmarkWriter(b *testing.B) {
	data := copyRows(1, 8<<20)
	for name, e := range map[string]EncryptionOptions{"plain": {}, "age": ageKeys(b).options} {
		b.Run(name, func(b *testing.B) {
			w, err := Create(b.Context(), localRepo(b), Options{Encryption: e})
			if err != nil {
				b.Fatal(err)
			}
			defer w.Abort(false)
			b.SetBytes(int64(len(data)))
			i := 0
			for b.Loop() {
				i++
				if err := writeChunk(b.Context(), w, ChunkInfo{Path: fmt.Sprintf("x/%d", i)}, data); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
