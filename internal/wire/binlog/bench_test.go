package binlog

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// benchLog is a log of transactions with so many rows each, of 512 bytes in
// events of about 8 KiB, as servers make them.
func benchLog(rows, perTransaction int) *builder {
	const perEvent = 16
	b := newBuilder(true)
	for id := 0; id < rows; {
		b.gtid(uint64(id+1), 0).table()
		for left := perTransaction; left > 0; left -= perEvent {
			n := min(left, perEvent)
			b.insert(id, n, 512)
			id += n
		}
		b.xid()
	}
	return b
}

// BenchmarkDecode reads rows of an id and a payload of 512 bytes as a Stream
// receives them, checksums included, without a network.
func BenchmarkDecode(b *testing.B) {
	for _, bc := range []struct {
		name           string
		perTransaction int
		want           func(string, string) bool
	}{
		{"rows=1", 1, nil},
		{"rows=1000", 1000, nil},
		{"rows=1/unwanted", 1, func(string, string) bool { return false }},
	} {
		b.Run(bc.name, func(b *testing.B) {
			const rows = 20000
			sent := benchLog(rows, bc.perTransaction).packets()
			b.SetBytes(int64(len(sent)))
			b.ReportAllocs()
			before := cpuTime(b)
			for b.Loop() {
				stream := streamOf(bytes.NewReader(sent), 1<<20)
				stream.buf = make([]byte, bufferSize)
				seen := drainRows(b, NewReader(stream, ReaderConfig{Want: bc.want}))
				if bc.want == nil && seen != rows {
					b.Fatalf("%d rows, want %d", seen, rows)
				}
			}
			b.ReportMetric(float64(b.N)*rows/b.Elapsed().Seconds(), "rows/s")
			b.ReportMetric(float64(b.N)*rows/(cpuTime(b)-before).Seconds(), "rows/cpu-s")
		})
	}
}

// cpuTime is what this process has used. On a machine that others use, it says
// more than the clock.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func drainRows(b *testing.B, r *Reader) (rows int) {
	b.Helper()
	for {
		rec, err := r.Next(b.Context())
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return rows
		}
		if err != nil {
			b.Fatal(err)
		}
		if rec.Kind != Changes {
			continue
		}
		for rec.Rows.Next() {
			if rec.Rows.After[0].Int64() != int64(rows) || len(rec.Rows.After[1].Bytes()) != 512 {
				b.Fatalf("row %d: %v", rows, rec.Rows.After[0].Int64())
			}
			rows++
		}
	}
}

// Duration returns a TIME; 0 for other kinds.
func (v Value) Duration() time.Duration {
	if v.kind != KindTime {
		return 0
	}
	return time.Duration(int64(v.n)) * time.Microsecond
}
