package measure

import (
	"context"
	"fmt"
	"os"
	"time"
)

// flushBlock is the size of one calibration write: a PostgreSQL WAL page.
const flushBlock = 8192

// Flush is what forcing a write to the disk cost at some moment: an 8 KiB
// overwrite inside a preallocated file, then fdatasync, one after the other. It
// is the cheapest a durable commit can be, and it says nothing about whether
// the device really keeps the data when the power goes.
type Flush struct {
	Bytes int   `json:"bytes"`
	Count int   `json:"count"`
	P50Ns int64 `json:"p50_ns"`
	P99Ns int64 `json:"p99_ns"`
	MaxNs int64 `json:"max_ns"`
}

// CalibrateFlush measures flushes in a temporary file in dir, the directory of
// the server's data, for at most the given time and count. It ends early with
// what it has when ctx is done, and fails if that is nothing.
func CalibrateFlush(ctx context.Context, dir string, limit time.Duration, count int) (*Flush, error) {
	const blocks = 128 // 1 MiB, walked over and over as a log segment is
	f, err := os.CreateTemp(dir, "weir-flush-*")
	if err != nil {
		return nil, fmt.Errorf("create calibration file: %w", err)
	}
	defer func() {
		f.Close()
		os.Remove(f.Name())
	}()
	block := make([]byte, flushBlock)
	for i := range block {
		block[i] = byte(i * 131) // not zeros, which some storage does not write
	}
	for i := range int64(blocks) {
		if _, err := f.WriteAt(block, i*flushBlock); err != nil {
			return nil, fmt.Errorf("fill calibration file: %w", err)
		}
	}
	if err := f.Sync(); err != nil {
		return nil, fmt.Errorf("flush calibration file: %w", err)
	}
	var h Hist
	clock := NewClock()
	for i := int64(0); i < int64(count) && clock.Now() < int64(limit) && ctx.Err() == nil; i++ {
		block[0] = byte(i)
		start := clock.Now()
		if _, err := f.WriteAt(block, i%blocks*flushBlock); err != nil {
			return nil, fmt.Errorf("write calibration block: %w", err)
		}
		if err := flushData(f); err != nil {
			return nil, fmt.Errorf("flush calibration block: %w", err)
		}
		h.Record(clock.Now() - start)
	}
	if h.Count() == 0 {
		return nil, fmt.Errorf("calibrate flush: nothing measured: %w", context.Cause(ctx))
	}
	return &Flush{Bytes: flushBlock, Count: int(h.Count()), P50Ns: h.Quantile(.5), P99Ns: h.Quantile(.99), MaxNs: h.Max()}, nil
}
