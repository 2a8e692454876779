package measure

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// flushBlock is the size of one calibration write: a PostgreSQL WAL page.
const flushBlock = 8192

// Flush is the cost of forcing a write to the disk at some moment: an 8 KiB overwrite in a
// preallocated file followed by fdatasync, repeated. No durable commit can be cheaper. It does
// not tell whether the device really keeps the data at a power failure.
type Flush struct {
	Bytes int   `json:"bytes"`  // written before each flush
	Count int   `json:"count"`  // number of flushes
	P50Ns int64 `json:"p50_ns"` // median of the durations, in nanoseconds
	P99Ns int64 `json:"p99_ns"` // 99th percentile, in nanoseconds
	MaxNs int64 `json:"max_ns"` // longest, in nanoseconds
}

// flushBlocks is the length of the file, in blocks, which is overwritten again and again like a
// log segment: 1 MiB.
const flushBlocks = 128

// Disk is a file whose blocks are overwritten and forced to disk one by one. It is used by one
// goroutine at a time.
type Disk struct {
	file  *os.File
	block [flushBlock]byte
	next  int64
}

// OpenDisk creates and fills a temporary file in dir. Close removes it.
func OpenDisk(dir string) (*Disk, error) {
	f, err := os.CreateTemp(dir, "weir-flush-*")
	if err != nil {
		return nil, fmt.Errorf("create calibration file: %w", err)
	}
	d := &Disk{file: f}
	for i := range d.block {
		d.block[i] = byte(i * 131) // not zeros, which some storage does not write
	}
	for i := range int64(flushBlocks) {
		if _, err := f.WriteAt(d.block[:], i*flushBlock); err != nil {
			return nil, errors.Join(fmt.Errorf("fill calibration file: %w", err), d.Close())
		}
	}
	if err := f.Sync(); err != nil {
		return nil, errors.Join(fmt.Errorf("flush calibration file: %w", err), d.Close())
	}
	return d, nil
}

// Flush overwrites the next block and returns when it is on the disk.
func (d *Disk) Flush() error {
	d.block[0] = byte(d.next)
	if _, err := d.file.WriteAt(d.block[:], d.next%flushBlocks*flushBlock); err != nil {
		return fmt.Errorf("write calibration block: %w", err)
	}
	d.next++
	if err := flushData(d.file); err != nil {
		return fmt.Errorf("flush calibration block: %w", err)
	}
	return nil
}

// Close removes the file.
func (d *Disk) Close() error {
	if err := errors.Join(d.file.Close(), os.Remove(d.file.Name())); err != nil {
		return fmt.Errorf("remove calibration file: %w", err)
	}
	return nil
}

// CalibrateFlush measures flushes in a temporary file in dir, the directory of the server's
// data, for at most the given time and count. When ctx ends, it returns what it has measured,
// or an error if that is nothing.
func CalibrateFlush(ctx context.Context, dir string, limit time.Duration, count int) (_ *Flush, err error) {
	d, err := OpenDisk(dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	var h Hist
	clock := NewClock()
	for i := 0; i < count && clock.Now() < int64(limit) && ctx.Err() == nil; i++ {
		start := clock.Now()
		if err := d.Flush(); err != nil {
			return nil, err
		}
		h.Record(clock.Now() - start)
	}
	if h.Count() == 0 {
		return nil, fmt.Errorf("calibrate flush: nothing measured: %w", context.Cause(ctx))
	}
	return &Flush{Bytes: flushBlock, Count: int(h.Count()), P50Ns: h.Quantile(.5), P99Ns: h.Quantile(.99), MaxNs: h.Max()}, nil
}
