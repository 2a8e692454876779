package proxybench

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/google/pprof/profile"

	"github.com/weirdb/weir/internal/ruler/bench/load"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
)

// heap measures how much weir allocates for statements, and whether it keeps any of it.
func (r *run) heap(ctx context.Context, w way, clients int) error {
	h := suite.Heap{Case: w.name}
	var first, last map[string]float64
	var before, after *profile.Profile
	var statements int64
	for i := range suite.HeapLoads + 1 {
		work := r.insert(w.hint)
		if err := r.engine.Setup(ctx, r.direct().dsn, work); err != nil {
			return err
		}
		got, err := r.engine.Run(ctx, load.Config{DSN: w.dsn, Workload: work, Connections: clients, Duration: r.o.Plan.Duration})
		if err != nil {
			return err
		}
		if i > 0 {
			statements += got.TotalOps
		}
		p, err := w.weir.heap(ctx)
		if err != nil {
			return err
		}
		counters, err := w.weir.memory(ctx)
		if err != nil {
			return err
		}
		if i == 0 {
			first, before = counters, p
		}
		last, after = counters, p
		h.Readings = append(h.Readings, suite.HeapReading{Statements: statements, Bytes: counters[heapInUse]})
	}
	h.Bytes, h.Objects = last[heapBytes]-first[heapBytes], last[heapObjects]-first[heapObjects]
	kept, err := bySite(after, "inuse_space")
	if err != nil {
		return err
	}
	made, err := bySite(after, "alloc_space")
	if err != nil {
		return err
	}
	old, err := bySite(before, "alloc_space")
	if err != nil {
		return err
	}
	for f, n := range old {
		made[f] -= n
	}
	h.Kept, h.Made = largest(kept), largest(made)
	r.out.Heaps = append(r.out.Heaps, h)
	return nil
}

// Counters of Go's runtime, by the names of its Prometheus collector.
const (
	heapInUse   = "go_memstats_heap_alloc_bytes"
	heapBytes   = "go_memstats_alloc_bytes_total"
	heapObjects = "go_memstats_mallocs_total"
)

// memory reads the runtime's counters.
func (w *weirProcess) memory(ctx context.Context) (map[string]float64, error) {
	body, err := w.get(ctx, "/metrics")
	if err != nil {
		return nil, fmt.Errorf("read weir's counters: %w", err)
	}
	defer body.Close()
	return memoryOfPage(body)
}

func memoryOfPage(page io.Reader) (map[string]float64, error) {
	out := make(map[string]float64)
	lines := bufio.NewScanner(page)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), " ")
		if name != heapInUse && name != heapBytes && name != heapObjects {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return nil, fmt.Errorf("metric %s: %w", name, err)
		}
		out[name] = v
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read weir's counters: %w", err)
	}
	if len(out) < 3 {
		return nil, fmt.Errorf("the metrics have no memory of the runtime: %v", out)
	}
	return out, nil
}

// heap makes the proxy collect its garbage twice, since pools are emptied in the second
// collection, and takes a profile of the rest.
func (w *weirProcess) heap(ctx context.Context) (p *profile.Profile, err error) {
	for range 2 {
		body, err := w.get(ctx, "/debug/pprof/heap?gc=1")
		if err != nil {
			return nil, fmt.Errorf("profile weir's heap: %w", err)
		}
		p, err = profile.Parse(body)
		_ = body.Close()
		if err != nil {
			return nil, fmt.Errorf("profile weir's heap: %w", err)
		}
	}
	return p, nil
}

// bySite adds up a kind of samples by the innermost function outside the runtime.
func bySite(p *profile.Profile, kind string) (map[string]int64, error) {
	at := slices.IndexFunc(p.SampleType, func(t *profile.ValueType) bool { return t.Type == kind })
	if at < 0 {
		return nil, fmt.Errorf("the heap profile has no %s", kind)
	}
	out := make(map[string]int64)
	for _, s := range p.Sample {
		out[site(s)] += s.Value[at]
	}
	return out, nil
}

func site(s *profile.Sample) string {
	name := "runtime"
	for _, l := range s.Location {
		for _, line := range l.Line {
			if line.Function == nil {
				continue
			}
			if !strings.HasPrefix(line.Function.Name, "runtime.") {
				return strings.TrimPrefix(line.Function.Name, "github.com/weirdb/weir/internal/")
			}
			name = line.Function.Name // the outermost, if there is no other
		}
	}
	return name
}

// mostSites is how many sites are kept.
const mostSites = 8

// largest are the sites with the most bytes, without those that have none.
func largest(by map[string]int64) []suite.HeapSite {
	var out []suite.HeapSite
	for _, f := range slices.Sorted(maps.Keys(by)) {
		if by[f] > 0 {
			out = append(out, suite.HeapSite{Function: f, Bytes: by[f]})
		}
	}
	slices.SortStableFunc(out, func(a, b suite.HeapSite) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return out[:min(len(out), mostSites)]
}
