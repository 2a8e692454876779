package suite

import (
	"fmt"
	"strconv"

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

// HeapLoads is the number of loads after each of which the heap is read again.
const HeapLoads = 3

// HeapSection shows how much statements allocate, and how much the heap keeps.
func HeapSection(heaps []Heap) report.Section {
	out := report.Section{Title: "Memory of the proxy's heap"}
	t := report.Table{
		Title: "Allocations and growth",
		Columns: report.Columns(":case", "statements", "allocated|B/statement", "objects|/statement", "in use at first|kB", "in use at last|kB",
			"growth|B/statement"),
		Note: fmt.Sprintf("In use after two collections, after each of %d loads that follow one that fills the pools; each uses new connections. Growth below %d B, the smallest object, means that none is kept per statement; this does not show what a run of hours keeps.", HeapLoads, SmallestObject),
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
			sites := report.Table{Title: h.Case + ": " + of.title, Columns: report.Columns(":function", "memory|kB"), Note: "From a profile, which samples one allocation per 512 kB."}
			for _, s := range of.sites {
				sites.Rows = append(sites.Rows, report.Cells(s.Function, fmt.Sprintf("%.0f", float64(s.Bytes)/1e3)))
			}
			out.Tables = append(out.Tables, sites)
		}
	}
	return out
}
