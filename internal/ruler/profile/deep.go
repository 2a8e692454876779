package profile

import (
	"os"
	"strconv"
	"strings"

	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/profile/residence"
)

// deepWatch observes a server on this machine from inside the kernel.
type deepWatch struct {
	target  *Target
	watch   *residence.Watch
	open    residence.Totals
	shut    residence.Totals
	missing []string
}

// startDeep starts to observe. What prevents it is reported at the end.
func (t *Target) startDeep() *deepWatch {
	d := &deepWatch{target: t}
	if t.local.pid == 0 {
		d.miss("the server is not on this machine, or not visible to this process")
		return d
	}
	w, err := residence.Start(t.processes())
	if err != nil {
		d.miss(oneLine(err.Error()))
		return d
	}
	d.watch = w
	return d
}

func (d *deepWatch) miss(why string) {
	d.missing = append(d.missing, "inside the server by eBPF: "+why)
}

// ServerPIDs are the processes that serve clients on this machine; none if the server is
// elsewhere, or hidden from this process.
func (t *Target) ServerPIDs() []int {
	if t.local.pid == 0 {
		return nil
	}
	return t.processes()
}

// processes are the processes that serve clients: the server itself, or all below it.
func (t *Target) processes() []int {
	if !t.local.tree {
		return []int{t.local.pid}
	}
	var out []int
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if name, parent := processName(pid); parent == t.local.pid && strings.HasPrefix(name, "postgres") {
			out = append(out, pid)
		}
	}
	return out
}

// windowOpens includes the connections that were opened since startDeep. Connections opened
// later are not observed.
func (d *deepWatch) windowOpens() {
	if d.watch == nil {
		return
	}
	err := d.watch.Add(d.target.processes())
	if err == nil {
		d.open, err = d.watch.Read()
	}
	if err != nil {
		d.miss(oneLine(err.Error()))
	}
}

func (d *deepWatch) windowCloses() {
	if d.watch == nil {
		return
	}
	var err error
	if d.shut, err = d.watch.Read(); err != nil {
		d.miss(oneLine(err.Error()))
	}
}

// report divides the observed times by the number of operations.
func (d *deepWatch) report(ops int64) ([]bench.ServerPart, []string) {
	s := d.shut.Since(d.open)
	if d.watch == nil || len(d.missing) > 0 || ops == 0 {
		return nil, d.missing
	}
	if s.Requests == 0 {
		return nil, []string{"inside the server by eBPF: no request was seen"}
	}
	var out []bench.ServerPart
	add := func(name string, ns int64) {
		if ns > 0 {
			out = append(out, bench.ServerPart{Name: name, MeanNs: float64(ns) / float64(ops), Source: "eBPF"})
		}
	}
	add("waiting for a processor, before the request is read", s.Before)
	add("on a processor", s.CPU())
	add("waiting for a processor, during the request", s.RunQueue)
	add("flushing files", s.Flush)
	add("writing files", s.Write)
	add("reading files", s.Read)
	add("waiting for another session (futex)", s.Lock)
	add("waiting for an event (poll)", s.Wait)
	return out, nil
}

func (d *deepWatch) close() error {
	if d.watch == nil {
		return nil
	}
	return d.watch.Close()
}
