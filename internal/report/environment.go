package report

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/measure"
)

// environmentRows lists the environment as pairs of name and value.
func environmentRows(e *measure.Environment) [][2]string {
	rows := [][2]string{
		{"Time", e.Time.UTC().Format("2006-01-02 15:04:05 UTC")},
		{"Processor", fmt.Sprintf("%s, %d cores", e.CPU, e.Cores)},
	}
	add := func(name, value string) {
		if value != "" {
			rows = append(rows, [2]string{name, value})
		}
	}
	if e.MemoryBytes > 0 {
		add("Memory", fmt.Sprintf("%.1f GiB", float64(e.MemoryBytes)/(1<<30)))
	}
	add("System", strings.Trim(e.OS+", Linux "+e.Kernel, ", "))
	add("Virtualisation", e.Virtualisation)
	add("Clock source", e.ClockSource)
	add("Durability", e.Durability)
	for _, s := range e.Servers {
		add(s.Name, s.Version)
		var set []string
		for _, k := range slices.Sorted(maps.Keys(s.Settings)) {
			set = append(set, k+"="+s.Settings[k])
		}
		add(s.Name+" settings", strings.Join(set, ", "))
	}
	add("Flush before", flush(e.FsyncBefore))
	add("Flush after", flush(e.FsyncAfter))
	add("Load before, after", fmt.Sprintf("%.2f, %.2f", e.PressureBefore.Load1, e.PressureAfter.Load1))
	if e.PressureBefore.Known && e.PressureAfter.Known {
		add("CPU pressure before, after", fmt.Sprintf("%.1f %%, %.1f %%", e.PressureBefore.CPUSome, e.PressureAfter.CPUSome))
	}
	add("Built with", strings.TrimSuffix(e.GoVersion+", commit "+e.Commit, ", commit "))
	add("Command", strings.Join(e.Command, " "))
	return rows
}

func flush(f *measure.Flush) string {
	if f == nil {
		return ""
	}
	return fmt.Sprintf("%d KiB write and fdatasync: p50 %.0f us, p99 %.0f us (%d times)", f.Bytes/1024, float64(f.P50Ns)/1e3, float64(f.P99Ns)/1e3, f.Count)
}
