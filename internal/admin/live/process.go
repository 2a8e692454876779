package live

import (
	"runtime/metrics"
	"syscall"
)

// withProcess adds the charts that every process has.
func (p Page) withProcess() Page {
	p.Series = append(p.Series[:len(p.Series):len(p.Series)], Series{Key: "process_cpu"}, Series{Key: "process_memory"}, Series{Key: "process_heap"},
		Series{Key: "process_goroutines"})
	p.Charts = append(p.Charts[:len(p.Charts):len(p.Charts)],
		Chart{Title: "CPU", Unit: "processors busy with this process", Format: Count, Lines: []Line{{"process_cpu", "in use", 3}}},
		Chart{Title: "Memory", Unit: "of this process", Format: Bytes, Lines: []Line{{"process_memory", "from the system", 5}, {"process_heap", "live objects", 1}}})
	return p
}

// process sets the values of this process.
func process(s *Sample) {
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) == nil {
		s.Rate("process_cpu", float64(r.Utime.Nano()+r.Stime.Nano())/1e9)
	}
	read := []metrics.Sample{
		{Name: "/memory/classes/total:bytes"},
		{Name: "/memory/classes/heap/released:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/sched/goroutines:goroutines"},
	}
	metrics.Read(read)
	value := func(i int) float64 {
		if read[i].Value.Kind() != metrics.KindUint64 {
			return 0
		}
		return float64(read[i].Value.Uint64())
	}
	s.Level("process_memory", value(0)-value(1))
	s.Level("process_heap", value(2))
	s.Level("process_goroutines", value(3))
}
