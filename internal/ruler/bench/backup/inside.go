package backupbench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/bulk"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/subject/moves"
	"github.com/weirdb/weir/internal/ruler/report"
)

// insideOf parses what weir backup --json and weir restore --json report about themselves, by
// the keys of the metrics of moves.
func insideOf(said []byte) (map[string]float64, error) {
	var told struct {
		Workers   []bulk.WorkerPoolStats `json:"workers"`
		Pipeline  *archive.Pipeline      `json:"pipeline"`
		Limit     archive.Shares         `json:"limit"`
		Footprint *bulk.Footprint        `json:"footprint"`
	}
	if err := json.Unmarshal(said, &told); err != nil {
		return nil, fmt.Errorf("read weir's report about itself: %w", err)
	}
	out := make(map[string]float64)
	for _, w := range told.Workers {
		out["workers_peak"] = max(out["workers_peak"], float64(w.Peak))
		out["workers_busy"] = max(out["workers_busy"], w.Busy)
		out["workers_grown"] += float64(w.Grown)
		out["workers_shrunk"] += float64(w.Shrunk)
		out["workers_idled"] += float64(w.Idled)
		out["jobs_completed"] += float64(w.Completed)
	}
	if p := told.Pipeline; p != nil && p.Chunks > 0 {
		out[moves.InsideServer], out[moves.InsideOwn] = 100*told.Limit.Server, 100*told.Limit.Own
		out[moves.InsideCompressor], out[moves.InsideStorage] = 100*told.Limit.Compressor, 100*told.Limit.Storage
		for name, s := range map[string]archive.Stage{"read": p.Read, "compress": p.Compress, "store": p.Store} {
			out[name+"_busy"], out[name+"_input"], out[name+"_output"] = s.Busy.Seconds(), s.Input.Seconds(), s.Output.Seconds()
		}
		for name, d := range map[string]time.Duration{"hash": p.Hash, "encrypt": p.Encrypt, "write": p.Write, "commit": p.Commit} {
			out[name] = d.Seconds()
		}
	}
	if f := told.Footprint; f != nil {
		out["goroutines"] = float64(f.Goroutines)
		for name, bytes := range map[string]int64{
			"buffers": f.Buffers, "sessions": f.Sessions, "compressors": f.Compressors, "lists": f.Lists, "rest": f.Rest,
			"stacks": f.Stacks, "runtime": f.Runtime, "program": f.Program, "garbage": f.Garbage, "peak": f.Peak,
		} {
			out["mem_"+name] = float64(bytes) / 1e6
		}
	}
	return out, nil
}

// listening makes a pipeline's last program report in JSON what it did.
func listening(p pipeline) (pipeline, *bytes.Buffer) {
	said := &bytes.Buffer{}
	p.said = said
	return p, said
}

// insideTables show which stage waited for which, and what memory was used for, in the cases
// that reported it.
func insideTables(r *bench.Result) []report.Table {
	var out []report.Table
	for _, of := range []struct {
		title string
		keys  []string
	}{
		{"What readers spend their time on", []string{moves.InsideServer, moves.InsideOwn, moves.InsideCompressor, moves.InsideStorage}},
		{"Stages, in seconds of all chunks together", []string{
			"read_busy", "read_input", "read_output", "compress_busy", "compress_input", "compress_output", "store_busy", "store_input", "hash", "encrypt", "write", "commit",
		}},
		{"Workers and goroutines", []string{"goroutines", "workers_peak", "workers_busy", "workers_grown", "workers_shrunk", "workers_idled", "jobs_completed"}},
		{"Memory by component", []string{
			"mem_buffers", "mem_sessions", "mem_compressors", "mem_lists", "mem_rest", "mem_stacks", "mem_runtime", "mem_program", "mem_garbage", "mem_peak",
		}},
		{"Page cache", []string{"cached"}},
	} {
		out = append(out, bench.MetricTable(r, of.title, of.keys...)...)
	}
	return out
}
