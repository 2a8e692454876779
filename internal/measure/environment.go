package measure

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
)

// Environment is the environment of a measurement. A figure means nothing without it: the same
// insert is limited by the disk on one machine and by the processor on another. Every result
// has one, and reports reject a result without.
type Environment struct {
	Time           time.Time `json:"time"`           // when this was noted
	CPU            string    `json:"cpu"`            // model of the processor
	Cores          int       `json:"cores"`          // processors that this process may use
	GOMAXPROCS     int       `json:"gomaxprocs"`     // of this process
	MemoryBytes    int64     `json:"memory_bytes"`   // of the machine
	OS             string    `json:"os"`             // distribution and version
	Kernel         string    `json:"kernel"`         // version
	Virtualisation string    `json:"virtualisation"` // virtual machine, with its maker where that is known, or none seen
	ClockSource    string    `json:"clock_source"`   // of the kernel
	GoVersion      string    `json:"go_version"`     // with which weir was built
	// Commit is the revision that this program was built from, with "+dirty" if the tree had
	// changes; empty if the build did not record it.
	Commit string `json:"commit,omitempty"`
	// Command is the full command line, with passwords removed.
	Command []string `json:"command"`
	// Durability is the guarantee of an acknowledgment, such as "prod" (flushed at commit) or
	// "fast" (not flushed at all).
	Durability string   `json:"durability,omitempty"`
	Servers    []Server `json:"servers,omitempty"` // the servers that took part
	// FsyncBefore is a flush before the run: on a virtual disk the cost of a flush
	// changes by an order of magnitude within minutes.
	FsyncBefore    *Flush   `json:"fsync_before,omitempty"`
	FsyncAfter     *Flush   `json:"fsync_after,omitempty"` // a flush after the run
	PressureBefore Pressure `json:"pressure_before"`       // load of the machine before the run
	PressureAfter  Pressure `json:"pressure_after"`        // load of the machine after the run
}

// Server is a server or proxy that took part in a run.
type Server struct {
	Name    string `json:"name"`    // "PostgreSQL", "PgBouncer"
	Version string `json:"version"` // as the server itself reports it
	// Settings are those that affect what a figure means, such as fsync and synchronous_commit,
	// in the server's own spelling.
	Settings map[string]string `json:"settings,omitempty"`
}

// ReadEnvironment describes this machine and this program. What cannot be determined is
// "unknown". The caller adds servers, durability and flush calibrations.
func ReadEnvironment() Environment {
	cpu, hypervisor := parseCPUInfo(readText("/proc/cpuinfo"))
	return Environment{
		Time:           time.Now().UTC(),
		CPU:            orUnknown(cpu),
		Cores:          runtime.NumCPU(),
		GOMAXPROCS:     runtime.GOMAXPROCS(0),
		MemoryBytes:    Meminfo(readText("/proc/meminfo"), "MemTotal"),
		OS:             orUnknown(parseOSRelease(readText("/etc/os-release"))),
		Kernel:         orUnknown(strings.TrimSpace(readText("/proc/sys/kernel/osrelease"))),
		Virtualisation: virtualisation(hypervisor),
		ClockSource:    orUnknown(strings.TrimSpace(readText("/sys/devices/system/clocksource/clocksource0/current_clocksource"))),
		GoVersion:      runtime.Version(),
		Commit:         commit(),
		Command:        RedactCommand(os.Args),
		PressureBefore: ReadPressure(),
	}
}

// Validate returns why the environment is not sufficient for a result.
func (e *Environment) Validate() error {
	var missing []string
	if e == nil {
		return errors.New("no environment recorded")
	}
	for _, f := range []struct {
		name  string
		there bool
	}{
		{"time", !e.Time.IsZero()},
		{"cpu", e.CPU != ""},
		{"cores", e.Cores > 0},
		{"kernel", e.Kernel != ""},
		{"command", len(e.Command) > 0},
	} {
		if !f.there {
			missing = append(missing, f.name)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("environment lacks %s", strings.Join(missing, ", "))
	}
	return nil
}

var (
	// A password in a URL, and one in a libpq connection string, a flag or an environment
	// assignment.
	urlPassword  = regexp.MustCompile(`(://[^/@:\s]*):[^/\s]*@`)
	wordPassword = regexp.MustCompile(`(?i)((?:password|passwd|pwd|secret|token)[\w.-]*\s*=\s*)('[^']*'|[^\s&]+)`)
	passwordFlag = regexp.MustCompile(`(?i)^--?[\w-]*(?:password|passwd|secret|token)$`)
)

// RedactCommand returns the command line with passwords replaced by "***": those in URLs, those
// written as password=..., and the word after a password flag.
func RedactCommand(args []string) []string {
	out := make([]string, len(args))
	for i, a := range args {
		if i > 0 && passwordFlag.MatchString(args[i-1]) {
			out[i] = "***"
			continue
		}
		a = urlPassword.ReplaceAllString(a, "$1:***@")
		out[i] = wordPassword.ReplaceAllString(a, "$1***")
	}
	return out
}

// parseCPUInfo returns the processor's name and whether it runs under a
// hypervisor that says so.
func parseCPUInfo(s string) (model string, hypervisor bool) {
	for line := range strings.Lines(s) {
		name, value, _ := strings.Cut(line, ":")
		switch strings.TrimSpace(name) {
		case "model name":
			if model == "" {
				model = strings.Join(strings.Fields(value), " ")
			}
		case "flags":
			for f := range strings.FieldsSeq(value) {
				hypervisor = hypervisor || f == "hypervisor"
			}
		}
	}
	return model, hypervisor
}

// Meminfo returns a value of /proc/meminfo in bytes, or 0 if it is not there.
func Meminfo(s, name string) int64 {
	for line := range strings.Lines(s) {
		value, ok := strings.CutPrefix(line, name+":")
		if !ok {
			continue
		}
		kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		if err != nil {
			return 0
		}
		return kb * 1024
	}
	return 0
}

func parseOSRelease(s string) string {
	for line := range strings.Lines(s) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); ok {
			return strings.Trim(v, `"`)
		}
	}
	return ""
}

// virtualisation returns a hint, not a proof: a guest may hide it.
func virtualisation(hypervisor bool) string {
	vendor := strings.TrimSpace(readText("/sys/class/dmi/id/sys_vendor"))
	product := strings.TrimSpace(readText("/sys/class/dmi/id/product_name"))
	name := strings.TrimSpace(vendor + " " + product)
	switch {
	case hypervisor && name != "":
		return "virtual machine (" + name + ")"
	case hypervisor:
		return "virtual machine"
	default:
		return "none seen"
	}
}

func commit() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	var rev, dirty string
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			rev = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "+dirty"
		}
	}
	if rev == "" {
		return ""
	}
	return rev + dirty
}

func readText(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(b)
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}
