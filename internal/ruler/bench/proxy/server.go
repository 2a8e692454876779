package proxybench

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/measure/outside"
	"github.com/weirdb/weir/internal/ruler/report"
)

// ServerCPU is where the CPU time of the server went in one case, by perf.
type ServerCPU struct {
	Case    string           `json:"case"`
	Server  string           `json:"server"`
	Profile *outside.Profile `json:"profile"`
}

// settle is how long sessions may take until the server has started all that serves
// them: perf looks at the processes that are there when it begins.
const settle = 300 * time.Millisecond

// server has perf look at the server while a load of d runs. The function that it
// returns waits for it. A machine without perf has this left out, and nothing else.
func (r *run) server(ctx context.Context, w way, d time.Duration) func() {
	pid := r.db.PID()
	if pid == 0 {
		r.Leave("the CPU time of the server by function: it is not of our own")
		return func() {}
	}
	type taken struct {
		p   *outside.Profile
		err error
	}
	done := make(chan taken, 1)
	go func() {
		select {
		case <-ctx.Done():
			done <- taken{err: ctx.Err()}
			return
		case <-time.After(settle):
		}
		pids, err := measure.Pids(pid)
		if err != nil {
			done <- taken{err: err}
			return
		}
		p, err := outside.Perf(ctx, pids, d-settle)
		done <- taken{p, err}
	}()
	return func() {
		t := <-done
		switch {
		case ctx.Err() != nil:
		case t.err != nil:
			r.Leave("the CPU time of the server by function: %v", t.err)
		default:
			r.out.Servers = append(r.out.Servers, ServerCPU{w.name, r.info.Name, t.p})
		}
	}
}

// mostServerFunctions is how many functions of a server are listed.
const mostServerFunctions = 20

// table lists the functions of a server, and how much of its time each program and
// library took, the kernel among them.
func (s *ServerCPU) table() report.Table {
	t := report.Table{
		Title: fmt.Sprintf("CPU time of %s by function, %s", s.Server, s.Case),
		Columns: []report.Column{
			{Name: "function"},
			{Name: "of"},
			{Name: "itself", Unit: "%", Numeric: true},
			{Name: "samples", Numeric: true},
		},
		Note: fmt.Sprintf("By perf: %d samples in %.1f s, %d in a second of CPU time. Stacks are not followed: each function is counted for itself.", s.Profile.Samples, s.Profile.Seconds, s.Profile.Hz),
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

// ServerSection shows where the CPU time of servers went; false when nothing was seen.
func ServerSection(servers []ServerCPU) (report.Section, bool) {
	out := report.Section{Title: "Where the CPU time of the server goes"}
	for i := range servers {
		if servers[i].Profile != nil && servers[i].Profile.Samples > 0 {
			out.Tables = append(out.Tables, servers[i].table())
		}
	}
	return out, len(out.Tables) > 0
}
