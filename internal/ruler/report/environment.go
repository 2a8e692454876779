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

// provenance is a paragraph on the machine that the figures were measured on, and what to know
// about it.
func provenance(e *measure.Environment) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Measured on %s at %s UTC on %s of %s", e.Time.UTC().Format("2 January 2006"), e.Time.UTC().Format("15:04"), Plural(e.Cores, "core", "cores"), e.CPU)
	if e.Virtualisation != "" && e.Virtualisation != "none" {
		fmt.Fprintf(&b, " (%s)", e.Virtualisation)
	}
	if system := strings.Trim(e.OS+", Linux "+e.Kernel, ", "); system != "" {
		b.WriteString(", " + system)
	}
	for i, s := range e.Servers {
		sep := ", "
		switch {
		case i == 0:
			sep = "; with "
		case i == len(e.Servers)-1:
			sep = " and "
		}
		b.WriteString(strings.TrimRight(sep+s.Name+" "+s.Version, " "))
	}
	b.WriteString(".")
	if e.Durability != "" {
		fmt.Fprintf(&b, " Durability: %s.", strings.TrimSuffix(e.Durability, "."))
	}
	if f, g := e.FsyncBefore, e.FsyncAfter; f != nil && g != nil && f.P50Ns > 0 && g.P50Ns > 0 {
		fmt.Fprintf(&b, " A flush took %s at the median before the run and %s after it", microseconds(f.P50Ns), microseconds(g.P50Ns))
		if max(f.P50Ns, g.P50Ns) > 2*min(f.P50Ns, g.P50Ns) {
			b.WriteString(", so figures that depend on the disk varied during the measurement")
		}
		b.WriteString(".")
	}
	return b.String()
}

func microseconds(ns int64) string {
	if ns >= 1e6 {
		return digits(float64(ns)/1e6) + " ms"
	}
	return digits(float64(ns)/1e3) + " us"
}

// commandLine quotes the words of a command for a shell.
func commandLine(words []string) string {
	out := make([]string, len(words))
	for i, w := range words {
		if w == "" || strings.ContainsAny(w, " \t\n'\"\\$&|;<>()*?[]#~`!{}") {
			w = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
		out[i] = w
	}
	return strings.Join(out, " ")
}

func flush(f *measure.Flush) string {
	if f == nil {
		return ""
	}
	return fmt.Sprintf("%d KiB write and fdatasync: p50 %.0f us, p99 %.0f us (%d times)", f.Bytes/1024, float64(f.P50Ns)/1e3, float64(f.P99Ns)/1e3, f.Count)
}
