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
	"github.com/weirdb/weir/internal/ruler/report"
)

// Heap is how much a proxy allocated in one case, and how much it kept.
type Heap struct {
	Case string `json:"case"`
	// Readings are the heap in use after a collection: first after a load that fills the pools,
	// then after each further load of the same kind.
	Readings []HeapReading `json:"readings"`
	// Bytes and Objects were allocated between the first and the last reading, as counted by
	// the runtime.
	Bytes   float64 `json:"bytes"`
	Objects float64 `json:"objects"`
	// Kept are the sites that hold most memory at the end, Made those that allocated most
	// between the first and the last reading, by a profile: samples, scaled up.
	Kept []HeapSite `json:"kept,omitempty"`
	Made []HeapSite `json:"made,omitempty"`
}

// HeapReading is the heap after a number of statements.
type HeapReading struct {
	Statements int64   `json:"statements"` // since the first reading
	Bytes      float64 `json:"bytes"`
}

// HeapSite is a function that allocates.
type HeapSite struct {
	Function string `json:"function"`
	Bytes    int64  `json:"bytes"`
}

// Statements is how many were answered between the first and the last reading.
func (h *Heap) Statements() int64 {
	if len(h.Readings) == 0 {
		return 0
	}
	return h.Readings[len(h.Readings)-1].Statements
}

// Growth is how much the heap grew per statement, and whether it grew from each reading to the
// next.
func (h *Heap) Growth() (perStatement float64, always bool) {
	n := h.Statements()
	if n == 0 {
		return 0, false
	}
	always = true
	for i := 1; i < len(h.Readings); i++ {
		always = always && h.Readings[i].Bytes > h.Readings[i-1].Bytes
	}
	return (h.Readings[len(h.Readings)-1].Bytes - h.Readings[0].Bytes) / float64(n), always
}

// heapLoads is the number of loads after each of which the heap is read again.
const heapLoads = 3

// heap measures how much weir allocates for statements, and whether it keeps any of it.
func (r *run) heap(ctx context.Context, w way, clients int) error {
	h := Heap{Case: w.name}
	var first, last map[string]float64
	var before, after *profile.Profile
	var statements int64
	for i := range heapLoads + 1 {
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
		h.Readings = append(h.Readings, HeapReading{statements, counters[heapInUse]})
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
func largest(by map[string]int64) []HeapSite {
	var out []HeapSite
	for _, f := range slices.Sorted(maps.Keys(by)) {
		if by[f] > 0 {
			out = append(out, HeapSite{f, by[f]})
		}
	}
	slices.SortStableFunc(out, func(a, b HeapSite) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return out[:min(len(out), mostSites)]
}

// heapSection shows how much statements allocate, and how much the heap keeps.
func heapSection(heaps []Heap) report.Section {
	out := report.Section{Title: "Memory of the proxy's heap"}
	t := report.Table{
		Title: "Allocations and growth",
		Columns: []report.Column{
			{Name: "case"},
			{Name: "statements", Numeric: true},
			{Name: "allocated", Unit: "B/statement", Numeric: true},
			{Name: "objects", Unit: "/statement", Numeric: true},
			{Name: "in use at first", Unit: "kB", Numeric: true},
			{Name: "in use at last", Unit: "kB", Numeric: true},
			{Name: "growth", Unit: "B/statement", Numeric: true},
		},
		Note: fmt.Sprintf("In use after two collections, after each of %d loads that follow one that fills the pools; each uses new connections. Growth below %d B, the smallest object, means that none is kept per statement; this does not show what a run of hours keeps.", heapLoads, suite.SmallestObject),
	}
	for i := range heaps {
		h := &heaps[i]
		n := h.Statements()
		if n == 0 {
			continue
		}
		growth, _ := h.Growth()
		t.Rows = append(t.Rows, report.Cells(h.Case, strconv.FormatInt(n, 10), fmt.Sprintf("%.0f", h.Bytes/float64(n)), fmt.Sprintf("%.2f", h.Objects/float64(n)),
			fmt.Sprintf("%.0f", h.Readings[0].Bytes/1e3), fmt.Sprintf("%.0f", h.Readings[len(h.Readings)-1].Bytes/1e3), fmt.Sprintf("%.2f", growth)))
	}
	out.Tables = append(out.Tables, t)
	for i := range heaps {
		h := &heaps[i]
		for _, of := range []struct {
			title string
			sites []HeapSite
		}{{"in use at the end, by site", h.Kept}, {"allocated between the readings, by site", h.Made}} {
			if len(of.sites) == 0 {
				continue
			}
			sites := report.Table{Title: h.Case + ": " + of.title, Columns: []report.Column{{Name: "function"}, {Name: "memory", Unit: "kB", Numeric: true}}, Note: "From a profile, which samples one allocation per 512 kB."}
			for _, s := range of.sites {
				sites.Rows = append(sites.Rows, report.Cells(s.Function, fmt.Sprintf("%.0f", float64(s.Bytes)/1e3)))
			}
			out.Tables = append(out.Tables, sites)
		}
	}
	return out
}
