package measure

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// MachineCounters are the kernel's counters for the whole machine since it started. Read them
// before and after; their difference is an Activity.
type MachineCounters struct {
	at int64 // of the package's clock
	// busy and steal are ticks over all processors.
	busy, steal int64
	cpuKnown    bool
	// Waiting time in microseconds: during which some task, or all tasks, waited for the
	// resource.
	some, full    [3]int64 // cpu, io, memory
	pressureKnown bool
}

// Activity is what the whole machine did between two readings. Unlike Pressure, which covers
// about ten seconds chosen by the kernel, it covers exactly the time between them.
type Activity struct {
	Seconds float64 `json:"seconds"`
	// BusySeconds is CPU time that all processes used, counted in ticks; StealSeconds is what a
	// hypervisor gave to other machines while tasks wanted to run. Valid if CPUKnown.
	BusySeconds  float64 `json:"busy_s"`
	StealSeconds float64 `json:"steal_s"`
	CPUKnown     bool    `json:"cpu_known"`
	// The share of the time, in [0, 1], in which some task waited for a processor, for the
	// disk, or for memory; and in which all tasks that were not idle waited for the disk. Valid
	// if PressureKnown.
	CPUWait       float64 `json:"cpu_wait"`
	IOWait        float64 `json:"io_wait"`
	IOWaitAll     float64 `json:"io_wait_all"`
	MemoryWait    float64 `json:"memory_wait"`
	PressureKnown bool    `json:"pressure_known"`
}

var readings = NewClock()

// ReadMachine reads the current counters. What the machine does not offer is marked as unknown.
func ReadMachine() MachineCounters { return procFS("/proc").machine() }

func (p procFS) machine() MachineCounters {
	m := MachineCounters{at: readings.Now()}
	if b, err := os.ReadFile(filepath.Join(string(p), "stat")); err == nil {
		if c, err := parseCPUTicks(string(b)); err == nil {
			m.busy, m.steal, m.cpuKnown = c.busy, c.steal, true
		}
	}
	known := 0
	for i, file := range []string{"cpu", "io", "memory"} {
		b, err := os.ReadFile(filepath.Join(string(p), "pressure", file))
		if err != nil {
			continue
		}
		some, full, err := parseStalls(string(b))
		if err != nil {
			continue
		}
		m.some[i], m.full[i] = some, full
		known++
	}
	m.pressureKnown = known == 3
	return m
}

// Since returns what the machine did between an earlier reading and m.
func (m MachineCounters) Since(earlier MachineCounters) Activity {
	a := Activity{
		Seconds:       float64(m.at-earlier.at) / 1e9,
		CPUKnown:      m.cpuKnown && earlier.cpuKnown,
		PressureKnown: m.pressureKnown && earlier.pressureKnown,
	}
	if a.Seconds <= 0 {
		return Activity{}
	}
	if a.CPUKnown {
		a.BusySeconds = ticks(max(m.busy-earlier.busy, 0))
		a.StealSeconds = ticks(max(m.steal-earlier.steal, 0))
	}
	if a.PressureKnown {
		// The kernel updates the totals when they are read, so they may cover slightly more
		// than the time between the two readings.
		share := func(later, earlier int64) float64 {
			return min(max(float64(later-earlier)/1e6/a.Seconds, 0), 1)
		}
		a.CPUWait = share(m.some[0], earlier.some[0])
		a.IOWait = share(m.some[1], earlier.some[1])
		a.IOWaitAll = share(m.full[1], earlier.full[1])
		a.MemoryWait = share(m.some[2], earlier.some[2])
	}
	return a
}

// cpuTicks are the totals of /proc/stat, in clock ticks.
type cpuTicks struct{ busy, steal int64 }

// parseCPUTicks parses the line for all processors in /proc/stat. The kernel counts guest time
// as user time, too.
func parseCPUTicks(s string) (cpuTicks, error) {
	line, _, _ := strings.Cut(s, "\n")
	f := strings.Fields(line)
	const user, nice, system, irq, softirq, steal = 0, 1, 2, 5, 6, 7 // 3 and 4 are idle
	if len(f) < 1+steal+1 || f[0] != "cpu" {
		return cpuTicks{}, fmt.Errorf("no processor times in %q", line)
	}
	var v [steal + 1]int64
	for i := range v {
		var err error
		if v[i], err = strconv.ParseInt(f[1+i], 10, 64); err != nil {
			return cpuTicks{}, fmt.Errorf("processor times: %w", err)
		}
	}
	return cpuTicks{busy: v[user] + v[nice] + v[system] + v[irq] + v[softirq], steal: v[steal]}, nil
}

// parseStalls returns the total waiting times in a pressure file, in microseconds. Older
// kernels have no "full" line for the processor: 0.
func parseStalls(s string) (some, full int64, err error) {
	found := false
	for line := range strings.Lines(s) {
		kind, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		at := strings.LastIndex(rest, "total=")
		if at < 0 {
			continue
		}
		n, err := strconv.ParseInt(rest[at+len("total="):], 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("waiting time: %w", err)
		}
		switch kind {
		case "some":
			some, found = n, true
		case "full":
			full = n
		}
	}
	if !found {
		return 0, 0, fmt.Errorf("no waiting time in %q", s)
	}
	return some, full, nil
}
