// Package moves is about data that is backed up, restored, compressed or copied: what a sample of
// it holds, its metrics and its rules.
package moves

import (
	"sync"

	"github.com/weirdb/weir/internal/ruler/bench"
)

// Subject describes results about moved data.
var Subject = &bench.Subject{
	Key:      "transfer",
	New:      func() bench.Part { return &Transfer{} },
	Metrics:  sync.OnceValue(metrics),
	Compared: []string{"stored", "peak"},
	Rules:    rules,
}

// Of returns the part of a sample about moved data, nil if it has none.
func Of(parts []bench.Part) *Transfer { return bench.PartOf[*Transfer](parts) }

// Transfer is the part of a sample about data that was backed up, restored, compressed or
// copied. Sample.Ops then counts such moves, usually one, and Sample.Seconds is how long all of
// them took.
type Transfer struct {
	// PlainBytes is the size of the data of each move as text, which is the same for all sides.
	PlainBytes int64 `json:"plain_bytes"`
	// StoredBytes is the size on disk or after compression; 0 if nothing was stored.
	StoredBytes int64 `json:"stored_bytes,omitempty"`
	// PeakBytes is the largest amount of memory that the processes of the move used together,
	// sampled while they ran; 0 if it was not measured.
	PeakBytes int64 `json:"peak_bytes,omitempty"`
	// AllocatedBytes is how much all moves allocated on Go's heap; 0 if nothing, or if another
	// process did the work.
	AllocatedBytes int64 `json:"allocated_bytes,omitempty"`
	// Verified says how the outcome was compared with its source, and Rows how many rows were
	// compared.
	Verified string `json:"verified,omitempty"`
	Rows     int64  `json:"rows,omitempty"`
	// Inside holds the program's own measurements, by the keys of their metrics.
	Inside map[string]float64 `json:"inside,omitempty"`
}

// Subject implements bench.Part.
func (*Transfer) Subject() *bench.Subject { return Subject }

// Keys of Transfer.Inside that rules use: what the readers of the server spent their time on,
// in percent.
const (
	InsideServer     = "wait_server"
	InsideOwn        = "own_work"
	InsideCompressor = "wait_compressor"
	InsideStorage    = "wait_storage"
)

// insideMetrics are the measurements that weir reports about itself.
func insideMetrics() []bench.Metric {
	var out []bench.Metric
	add := func(unit string, names ...[2]string) {
		for _, n := range names {
			out = append(out, bench.Metric{Key: n[0], Name: n[1], Unit: unit, Detail: true, Neutral: true, Value: func(s *bench.Sample) (float64, bool) {
				t := Of(s.Parts)
				if t == nil {
					return 0, false
				}
				v, ok := t.Inside[n[0]]
				return v, ok
			}})
		}
	}
	add("%", [2]string{InsideServer, "readers wait for the server"}, [2]string{InsideOwn, "readers' own work"},
		[2]string{InsideCompressor, "readers wait for the compressor"}, [2]string{InsideStorage, "readers wait for the storage"})
	for _, stage := range [][2]string{{"read", "read"}, {"compress", "compress and hash"}, {"store", "encrypt, hash, store"}} {
		add("s", [2]string{stage[0] + "_busy", stage[1] + ": works"}, [2]string{stage[0] + "_input", stage[1] + ": waits for input"}, [2]string{stage[0] + "_output", stage[1] + ": waits for output"})
	}
	add("s", [2]string{"hash", "hash of stored data"}, [2]string{"encrypt", "encryption"}, [2]string{"write", "writes"}, [2]string{"commit", "durability"})
	add("", [2]string{"goroutines", "goroutines"}, [2]string{"workers_peak", "workers, peak"}, [2]string{"workers_busy", "workers busy, on average"},
		[2]string{"workers_grown", "times workers were added"}, [2]string{"workers_shrunk", "times workers were removed"}, [2]string{"workers_idled", "workers that ended idle"}, [2]string{"jobs_completed", "jobs completed"})
	add("MB", [2]string{"mem_buffers", "buffers"}, [2]string{"mem_sessions", "sessions"}, [2]string{"mem_compressors", "compressors"}, [2]string{"mem_lists", "lists"},
		[2]string{"mem_rest", "rest of the heap"}, [2]string{"mem_stacks", "stacks"}, [2]string{"mem_runtime", "Go's runtime and free heap"}, [2]string{"mem_program", "program"},
		[2]string{"mem_garbage", "garbage at the peak"}, [2]string{"mem_peak", "peak of the process"}, [2]string{"cached", "left in the page cache"})
	return out
}

func metrics() []bench.Metric {
	of := func(f func(*bench.Sample, *Transfer) float64) func(*bench.Sample) (float64, bool) {
		return func(s *bench.Sample) (float64, bool) {
			t := Of(s.Parts)
			if t == nil || s.Ops == 0 {
				return 0, false
			}
			v := f(s, t)
			return v, v > 0
		}
	}
	cpu := func(role string) func(*bench.Sample) (float64, bool) {
		return of(func(s *bench.Sample, _ *Transfer) float64 {
			v := s.Processes[role].CPUSeconds()
			if v < bench.LeastCPUSeconds {
				return 0
			}
			return v / float64(s.Ops)
		})
	}
	return append([]bench.Metric{
		{Key: "wall", Name: "time", Unit: "s", Detail: true, Value: of(func(s *bench.Sample, _ *Transfer) float64 { return s.Seconds / float64(s.Ops) })},
		{Key: "plain_rate", Name: "data", Unit: "MB/s", Higher: true, Value: of(func(s *bench.Sample, t *Transfer) float64 {
			return float64(t.PlainBytes) * float64(s.Ops) / s.Seconds / 1e6
		})},
		{Key: "client_s", Name: "CPU, client", Unit: "s", Detail: true, Value: cpu(bench.RoleClient)},
		{Key: "server_s", Name: "CPU, server", Unit: "s", Detail: true, Value: cpu(bench.RoleServer)},
		{Key: "peak", Name: "peak memory", Unit: "MB", Value: of(func(_ *bench.Sample, t *Transfer) float64 { return float64(t.PeakBytes) / 1e6 })},
		{Key: "stored", Name: "stored", Unit: "MB", Value: of(func(_ *bench.Sample, t *Transfer) float64 { return float64(t.StoredBytes) / 1e6 })},
		{Key: "squeeze", Name: "times smaller", Unit: "x", Higher: true, Detail: true, Value: of(func(_ *bench.Sample, t *Transfer) float64 {
			if t.StoredBytes == 0 {
				return 0
			}
			return float64(t.PlainBytes) / float64(t.StoredBytes)
		})},
		{Key: "allocated", Name: "allocated", Unit: "B/op", Detail: true, Value: func(s *bench.Sample) (float64, bool) {
			t := Of(s.Parts)
			if t == nil || s.Ops == 0 || t.PeakBytes > 0 {
				return 0, false
			}
			return float64(t.AllocatedBytes) / float64(s.Ops), true
		}},
	}, insideMetrics()...)
}
