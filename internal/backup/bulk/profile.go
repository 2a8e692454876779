package bulk

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
)

// A Profile says how much of a machine a run may use.
type Profile struct {
	Name string `json:"name"` // for --profile

	// Jobs is how many jobs run concurrently in one database: reading tables or ranges of them,
	// loading chunks, building indexes.
	Jobs int `json:"jobs"`

	// Databases is how many databases of a cluster are processed concurrently, each with its
	// share of Jobs.
	Databases int `json:"databases"`

	// MemoryShare is the fraction of the machine's memory that a restore gives to index builds,
	// over all jobs.
	MemoryShare float64 `json:"memory_share"`
}

// Profiles returns the profiles, beginning with the one that uses least. The numbers of jobs
// are those of the reference report; [Recommend] and [ProfileNamed] limit them to twice the
// number of processors, because on two cores four workers were measured to be slower than two.
func Profiles() []Profile {
	return []Profile{
		{"conservative", 1, 1, 0.05},
		{"balanced", 2, 2, 0.125},
		{"performance", 4, 4, 0.25},
		{"max-performance", 8, 8, 0.25},
		{"turbo", 8, 2, 0.4},
	}
}

// Machine has the properties that a recommendation depends on.
type Machine struct {
	CPUs        int   // available to this process
	MemoryBytes int64 // available memory; 0: unknown
}

// ThisMachine describes this machine: processors as the Go runtime counts them; memory by
// /proc/meminfo, or the limit of the control group if that is lower.
func ThisMachine() Machine {
	m := Machine{CPUs: runtime.GOMAXPROCS(0)}
	if f, err := os.Open("/proc/meminfo"); err == nil {
		defer f.Close()
		for s := bufio.NewScanner(f); s.Scan(); {
			if rest, ok := strings.CutPrefix(s.Text(), "MemAvailable:"); ok {
				kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
				if err == nil {
					m.MemoryBytes = kb << 10
				}
			}
		}
	}
	for _, limit := range []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"} {
		b, err := os.ReadFile(limit)
		if err != nil {
			continue
		}
		if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil && n > 0 && (m.MemoryBytes == 0 || n < m.MemoryBytes) {
			m.MemoryBytes = n
		}
	}
	return m
}

// Recommend returns the profile for a machine: the reference report's rule, with
// a step between two and sixteen processors.
func Recommend(m Machine) Profile {
	all := Profiles()
	switch {
	case m.CPUs <= 1, m.MemoryBytes > 0 && m.MemoryBytes < 1<<30:
		return all[0].fit(m)
	case m.CPUs >= 16 && m.MemoryBytes >= 16<<30:
		return all[3].fit(m)
	case m.CPUs >= 8 && m.MemoryBytes >= 8<<30:
		return all[2].fit(m)
	}
	return all[1].fit(m)
}

// ProfileNamed returns a profile by its name, limited to what fits a machine. "" and "auto"
// select what Recommend returns.
func ProfileNamed(name string, m Machine) (Profile, error) {
	if name == "" || name == "auto" {
		return Recommend(m), nil
	}
	var names []string
	for _, p := range Profiles() {
		if p.Name == name {
			return p.fit(m), nil
		}
		names = append(names, p.Name)
	}
	return Profile{}, fmt.Errorf("profile %q: want auto, %s", name, strings.Join(names, ", "))
}

// fit limits a profile to twice the machine's processors.
func (p Profile) fit(m Machine) Profile {
	if most := 2 * max(1, m.CPUs); p.Jobs > most {
		p.Jobs = most
	}
	p.Databases = min(p.Databases, p.Jobs)
	return p
}

// MaintenanceBytes returns the memory that each of jobs index builds may use: between 16 MiB
// and 2 GiB.
func (p Profile) MaintenanceBytes(m Machine, jobs int) int64 {
	n := int64(p.MemoryShare*float64(m.MemoryBytes)) / int64(max(1, jobs))
	return min(max(n, 16<<20), 2<<30)
}
