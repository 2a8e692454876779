package backupbench

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/klauspost/pgzip"

	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
	backupdata "github.com/weirdb/weir/internal/ruler/bench/backup/data"
	"github.com/weirdb/weir/internal/ruler/bench/subject/moves"
)

// move is one operation that a side of this process repeats. It returns the number of bytes
// stored, 0 for none.
type move func(ctx context.Context) (stored int64, err error)

// microExperiment is the common part of the experiments within this process.
func (r *rig) microExperiment(name, title string, factors map[string]string) bench.Experiment {
	return bench.Experiment{Description: bench.Description{Name: name, Title: title, Rounds: r.o.Plan.MicroRounds, Warmup: 1, Factors: factors}}
}

// repeated is a side that repeats f, on plain bytes each time, for the length of a round. Every
// f checks its own outcome: the run is right if f returns no error.
func (r *rig) repeated(name string, plain int64, f move) bench.Side {
	return bench.Side{
		Name: name, Factors: map[string]string{"way": name},
		Run: func(ctx context.Context, _ int) (s bench.Sample, err error) {
			runtime.GC()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			used, err := measure.Self()
			if err != nil {
				return s, err
			}
			t := &moves.Transfer{PlainBytes: plain, Verified: "by its length or by its bytes"}
			began := time.Now()
			for time.Since(began) < r.o.Plan.MicroDuration {
				if err := ctx.Err(); err != nil {
					return s, err
				}
				if t.StoredBytes, err = f(ctx); err != nil {
					return s, fmt.Errorf("%s: %w", name, err)
				}
				s.Ops++
			}
			s.Seconds = time.Since(began).Seconds()
			now, err := measure.Self()
			if err != nil {
				return s, err
			}
			runtime.ReadMemStats(&after)
			t.AllocatedBytes = int64(after.TotalAlloc - before.TotalAlloc)
			s.Parts = []bench.Part{t}
			s.Processes = map[string]measure.Usage{bench.RoleClient: now.Since(used)}
			return s, nil
		},
	}
}

// The four classes of buffers of the reference report.
var bufferSizes = []int{64 << 10, 256 << 10, 1 << 20, 4 << 20}

// bufferCycles is how many buffers a move takes: a single one is too short to time.
const bufferCycles = 1000

// kept holds values that must not be optimised away.
var kept struct {
	sync.Mutex
	b []byte
}

// buffers measures the cost of a buffer: allocated each time, from a sync.Pool, and from weir's
// own bounded pool, on one processor and on all at once.
func (r *rig) buffers(ctx context.Context, name string, size int) error {
	factors := map[string]string{"bytes": strconv.Itoa(size)}
	e := r.microExperiment(name, fmt.Sprintf("%d buffers of %d KiB", bufferCycles, size>>10), factors)
	procs := runtime.GOMAXPROCS(0)
	pool := sync.Pool{New: func() any { b := make([]byte, size); return &b }}
	alone, shared := archive.NewBufferProbe(1, size), archive.NewBufferProbe(procs, size)
	e.Sides = []bench.Side{
		r.repeated("made anew", 0, func(context.Context) (int64, error) {
			for range bufferCycles {
				kept.Lock()
				kept.b = make([]byte, size)
				kept.Unlock()
			}
			return 0, nil
		}),
		r.repeated("sync.Pool", 0, func(context.Context) (int64, error) {
			for range bufferCycles {
				pool.Put(pool.Get())
			}
			return 0, nil
		}),
		r.repeated("weir's pool", 0, func(ctx context.Context) (int64, error) {
			return 0, alone.Cycle(ctx, bufferCycles)
		}),
		r.repeated(fmt.Sprintf("weir's pool, by %d at once", procs), 0, func(ctx context.Context) (int64, error) {
			return 0, together(procs, func() error { return shared.Cycle(ctx, bufferCycles/procs) })
		}),
	}
	_, err := r.Measure(ctx, e, r.env, "")
	return err
}

// classes sends text through weir's pipeline with buffers of each class, as many as a chunk
// needs: what another class than weir's would gain or cost.
func (r *rig) classes(ctx context.Context, name, shape string) error {
	text, err := plainText(shape, r.o.Plan.CompressBytes, r.o.Seed)
	if err != nil {
		return err
	}
	e := r.microExperiment(name, "weir's pipeline by its buffers, zstd:1, on "+shape, map[string]string{"shape": shape, "bytes": strconv.Itoa(len(text)), "seed": strconv.FormatUint(r.o.Seed, 10)})
	e.Baseline = classSide(usualBlock)
	for _, size := range bufferSizes {
		e.Sides = append(e.Sides, r.repeated(classSide(size), int64(len(text)), func(ctx context.Context) (int64, error) {
			var n counter
			err := throughPipeline(ctx, &n, text, archive.Options{Parallel: 1, BufferBytes: size})
			return int64(n), err
		}))
	}
	_, err = r.Measure(ctx, e, r.env, "")
	return err
}

func classSide(size int) string { return fmt.Sprintf("buffers of %d KiB", size>>10) }

// throughPipeline writes text as one chunk of an archive to w.
func throughPipeline(ctx context.Context, w io.Writer, text []byte, o archive.Options) error {
	a, err := archive.CreateStream(ctx, w, o)
	if err != nil {
		return err
	}
	c, err := a.Chunk(ctx, archive.ChunkInfo{Path: "rows", Kind: archive.KindData})
	if err != nil {
		return errors.Join(err, a.Abort(false))
	}
	_, err = c.Write(text)
	if err = errors.Join(err, c.Close()); err != nil {
		return errors.Join(err, a.Abort(false))
	}
	_, err = a.Finish(ctx, archive.Manifest{Summary: archive.Summary{Engine: archive.PostgreSQL}})
	return err
}

// together runs f n times concurrently.
func together(n int, f func() error) error {
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { errs[i] = f() })
	}
	all.Wait()
	return errors.Join(errs...)
}

// plainText is the rows of a shape as text, about n bytes, shared by its tables as in the
// shape.
func plainText(shape string, n int64, seed uint64) ([]byte, error) {
	s, err := backupdata.ByName(shape)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	for _, t := range s.Tables(n) {
		if _, err := b.ReadFrom(t.Reader(backupdata.PostgreSQL, seed)); err != nil {
			return nil, fmt.Errorf("make rows: %w", err)
		}
	}
	return b.Bytes(), nil
}

// standard is the side that all others are compared with.
const standard = "standard library, gzip:6"

// encoding is a named compression.
type encoding struct {
	name string
	make func(io.Writer) (io.WriteCloser, error)
	back func(io.Reader) (io.ReadCloser, error)
}

// encodings lists the standard library's gzip, then all methods on one processor, then gzip on
// all processors; only gzip can use several for one stream.
func (r *rig) encodings() ([]encoding, error) {
	std := func(level int) encoding {
		return encoding{
			name: fmt.Sprintf("standard library, gzip:%d", level),
			make: func(w io.Writer) (io.WriteCloser, error) { return gzip.NewWriterLevel(w, level) },
			back: func(r io.Reader) (io.ReadCloser, error) { return gzip.NewReader(r) },
		}
	}
	out := []encoding{std(6), std(1)}
	add := func(name string, c archive.Compression, workers int) {
		out = append(out, encoding{
			name: name,
			make: func(w io.Writer) (io.WriteCloser, error) { return archive.NewEncoder(w, c, workers) },
			back: func(r io.Reader) (io.ReadCloser, error) { return archive.NewDecoder(r, c.Codec) },
		})
	}
	procs := runtime.GOMAXPROCS(0)
	for _, m := range r.o.Plan.Methods {
		c, err := archive.ParseCompression(m)
		if err != nil {
			return nil, err
		}
		add(m, c, 1)
		if c.Codec == archive.Gzip && procs > 1 {
			add(fmt.Sprintf("%s, %d processors", m, procs), c, procs)
		}
	}
	return out, nil
}

// counter counts bytes and discards them.
type counter int64

func (c *counter) Write(p []byte) (int, error) { *c += counter(len(p)); return len(p), nil }

// compressions compresses a shape's text by all methods, and decompresses it.
func (r *rig) compressions(ctx context.Context, shape string) error {
	text, err := plainText(shape, r.o.Plan.CompressBytes, r.o.Seed)
	if err != nil {
		return err
	}
	all, err := r.encodings()
	if err != nil {
		return err
	}
	plain := int64(len(text))
	factors := map[string]string{"shape": shape, "bytes": strconv.FormatInt(plain, 10), "seed": strconv.FormatUint(r.o.Seed, 10)}
	down := r.microExperiment("compress-"+shape, "Compression of "+shape, factors)
	up := r.microExperiment("decompress-"+shape, "Decompression of "+shape, factors)
	for _, c := range all {
		side, packed, err := r.packing(c, text)
		if err != nil {
			return err
		}
		down.Sides = append(down.Sides, side)
		up.Sides = append(up.Sides, r.repeated(c.name, plain, func(context.Context) (int64, error) {
			return int64(len(packed)), unpack(c, packed, plain)
		}))
	}
	for _, e := range []bench.Experiment{down, up} {
		e.Baseline = standard
		if _, err := r.Measure(ctx, e, r.env, ""); err != nil {
			return err
		}
	}
	return nil
}

// gzipLevel is the level of the gzip sweeps: BestSpeed, as in reference report 3.
const gzipLevel = 1

// parallelGzip is gzip on several processors, with a block size.
func parallelGzip(name string, block, workers int) encoding {
	return encoding{
		name: name,
		make: func(w io.Writer) (io.WriteCloser, error) {
			z, err := pgzip.NewWriterLevel(w, gzipLevel)
			if err != nil {
				return nil, err
			}
			return z, z.SetConcurrency(block, workers)
		},
		back: func(r io.Reader) (io.ReadCloser, error) { return gzip.NewReader(r) },
	}
}

// usualBlock is the block size wherever it is not compared, and weir's own.
const usualBlock = 256 << 10

// gzipBlocks compares block sizes, on all processors.
func (r *rig) gzipBlocks(ctx context.Context, name, shape string) error {
	procs := runtime.GOMAXPROCS(0)
	var all []encoding
	var factors []map[string]string
	for _, n := range r.o.Plan.Blocks {
		all = append(all, parallelGzip(fmt.Sprintf("gzip:%d, blocks of %d KiB", gzipLevel, n>>10), n, procs))
		factors = append(factors, map[string]string{"block": strconv.Itoa(n)})
	}
	return r.gzips(ctx, name, "gzip by its blocks, on "+shape, shape, all, factors)
}

// gzipWorkers compares numbers of workers.
func (r *rig) gzipWorkers(ctx context.Context, name, shape string) error {
	var all []encoding
	var factors []map[string]string
	for _, n := range r.o.Plan.Workers {
		all = append(all, parallelGzip(fmt.Sprintf("gzip:%d, workers: %d", gzipLevel, n), usualBlock, n))
		factors = append(factors, map[string]string{"workers": strconv.Itoa(n)})
	}
	return r.gzips(ctx, name, "gzip by its workers, on "+shape, shape, all, factors)
}

func (r *rig) gzips(ctx context.Context, name, title, shape string, all []encoding, factors []map[string]string) error {
	text, err := plainText(shape, r.o.Plan.CompressBytes, r.o.Seed)
	if err != nil {
		return err
	}
	e := r.microExperiment(name, title, map[string]string{"shape": shape, "bytes": strconv.Itoa(len(text)), "seed": strconv.FormatUint(r.o.Seed, 10)})
	for i, c := range all {
		side, _, err := r.packing(c, text)
		if err != nil {
			return err
		}
		side.Factors = factors[i]
		e.Sides = append(e.Sides, side)
	}
	_, err = r.Measure(ctx, e, r.env, "")
	return err
}

// packing is a side that compresses text. packed is one compressed copy, which was read back
// and compared.
func (r *rig) packing(c encoding, text []byte) (_ bench.Side, packed []byte, err error) {
	var once bytes.Buffer
	if err := pack(&once, c, text); err != nil {
		return bench.Side{}, nil, err
	}
	if err := sameText(c, once.Bytes(), text); err != nil {
		return bench.Side{}, nil, err
	}
	return r.repeated(c.name, int64(len(text)), func(context.Context) (int64, error) {
		var n counter
		err := pack(&n, c, text)
		return int64(n), errors.Join(err, sizeIs(int64(n), int64(once.Len())))
	}), once.Bytes(), nil
}

func pack(w io.Writer, c encoding, text []byte) error {
	e, err := c.make(w)
	if err != nil {
		return err
	}
	if _, err := e.Write(text); err != nil {
		return err
	}
	return e.Close()
}

// sizeSlack is by how much the sizes of two runs of one compression may differ: some split the
// stream depending on timing.
const sizeSlack = 0.02

func sizeIs(n, want int64) error {
	if d := float64(n-want) / float64(want); d > sizeSlack || d < -sizeSlack {
		return fmt.Errorf("compressed to %d bytes, but to %d before", n, want)
	}
	return nil
}

// unpack decompresses everything and counts it.
func unpack(c encoding, packed []byte, plain int64) error {
	d, err := c.back(bytes.NewReader(packed))
	if err != nil {
		return err
	}
	n, err := io.Copy(io.Discard, d)
	if err = errors.Join(err, d.Close()); err != nil {
		return err
	}
	if n != plain {
		return fmt.Errorf("decompressed %d bytes of %d", n, plain)
	}
	return nil
}

// sameText compares the decompressed text with the original, once.
func sameText(c encoding, packed, text []byte) error {
	d, err := c.back(bytes.NewReader(packed))
	if err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	got, err := io.ReadAll(d)
	if err = errors.Join(err, d.Close()); err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	if !bytes.Equal(got, text) {
		return fmt.Errorf("%s: the decompressed text differs from the original", c.name)
	}
	return nil
}
