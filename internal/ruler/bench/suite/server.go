package suite

import (
	"fmt"
	"strconv"

	"github.com/weirdb/weir/internal/measure/outside"
	"github.com/weirdb/weir/internal/ruler/report"
)

// ServerCPU is where the server's CPU time went in one case, by perf.
type ServerCPU struct {
	Case    string           `json:"case"`
	Server  string           `json:"server"`
	Profile *outside.Profile `json:"profile"`
}

// mostServerFunctions is how many functions of a server are listed.
const mostServerFunctions = 20

// table lists the functions of a server, and the share of its time in each program and library,
// including the kernel.
func (s *ServerCPU) table() report.Table {
	t := report.Table{
		Title:   fmt.Sprintf("CPU time of %s by function, %s", s.Server, s.Case),
		Columns: report.Columns(":function", ":of", "itself|%", "samples"),
		Note:    fmt.Sprintf("By perf: %d samples in %.1f s, %d per second of CPU time. Without call stacks: each function only counts its own time.", s.Profile.Samples, s.Profile.Seconds, s.Profile.Hz),
	}
	share := func(n int64) string { return fmt.Sprintf("%.1f", 100*float64(n)/float64(max(1, s.Profile.Samples))) }
	for _, o := range s.Profile.ByObject()[:min(4, len(s.Profile.ByObject()))] {
		t.Rows = append(t.Rows, []report.Cell{{Text: "all of " + o.Object, Strong: true}, {Text: o.Object}, {Text: share(o.Samples), Strong: true}, {Text: strconv.FormatInt(o.Samples, 10)}})
	}
	for _, f := range s.Profile.Functions[:min(mostServerFunctions, len(s.Profile.Functions))] {
		t.Rows = append(t.Rows, report.Cells(f.Name, f.Object, share(f.Samples), strconv.FormatInt(f.Samples, 10)))
	}
	return t
}

// ServerSection shows where the CPU time of servers went; false if nothing was sampled.
func ServerSection(servers []ServerCPU) (report.Section, bool) {
	out := report.Section{Title: "Where the CPU time of the server goes"}
	for i := range servers {
		if servers[i].Profile != nil && servers[i].Profile.Samples > 0 {
			out.Tables = append(out.Tables, servers[i].table())
		}
	}
	return out, len(out.Tables) > 0
}
