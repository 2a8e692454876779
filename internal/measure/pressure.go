package measure

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Pressure says how busy the machine was, whichever process caused it: it reveals other load
// during a measurement. Shares are percentages of the last ten seconds in which some task had
// to wait for the resource.
type Pressure struct {
	// Known is false if the kernel has no pressure figures; then only Load1 is valid.
	Known    bool    `json:"known"`
	CPUSome  float64 `json:"cpu_some_percent"`    // time in which something waited for a processor
	IOSome   float64 `json:"io_some_percent"`     // time in which something waited for a disk
	MemSome  float64 `json:"memory_some_percent"` // time in which something waited for memory
	Load1    float64 `json:"load1"`               // load average of one minute
	Runnable int     `json:"runnable"`            // threads that run or could run
}

// ReadPressure reads the current pressure and load average. What the machine does not offer is
// left out.
func ReadPressure() Pressure { return procFS("/proc").pressure() }

func (p procFS) pressure() Pressure {
	var out Pressure
	if b, err := os.ReadFile(filepath.Join(string(p), "loadavg")); err == nil {
		if load, running, err := parseLoadavg(string(b)); err == nil {
			out.Load1, out.Runnable = load, running
		}
	}
	known := 0
	for _, r := range []struct {
		file string
		into *float64
	}{{"cpu", &out.CPUSome}, {"io", &out.IOSome}, {"memory", &out.MemSome}} {
		b, err := os.ReadFile(filepath.Join(string(p), "pressure", r.file))
		if err != nil {
			continue
		}
		if v, err := parsePressure(string(b)); err == nil {
			*r.into = v
			known++
		}
	}
	out.Known = known == 3
	return out
}

// parsePressure returns avg10 of the "some" line in a pressure file.
func parsePressure(s string) (float64, error) {
	for line := range strings.Lines(s) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "some" {
			continue
		}
		v, ok := strings.CutPrefix(f[1], "avg10=")
		if !ok {
			break
		}
		return strconv.ParseFloat(v, 64)
	}
	return 0, fmt.Errorf("no average over ten seconds in %q", s)
}

// parseLoadavg returns the load average of one minute and the number of runnable tasks.
func parseLoadavg(s string) (load1 float64, runnable int, err error) {
	f := strings.Fields(s)
	if len(f) < 4 {
		return 0, 0, fmt.Errorf("load average has %d fields", len(f))
	}
	if load1, err = strconv.ParseFloat(f[0], 64); err != nil {
		return 0, 0, fmt.Errorf("load average: %w", err)
	}
	running, _, _ := strings.Cut(f[3], "/")
	if runnable, err = strconv.Atoi(running); err != nil {
		return 0, 0, fmt.Errorf("runnable tasks: %w", err)
	}
	return load1, runnable, nil
}
