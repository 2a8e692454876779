package measure

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// procStat is the part of /proc/PID/stat that is used; times are in clock ticks.
type procStat struct {
	parent                 int
	user, system           int64
	childUser, childSystem int64 // of children that ended and were waited for
}

func (s procStat) childTicks() int64 { return s.childUser + s.childSystem }

// parseStat parses /proc/PID/stat. The second field is the name in parentheses, which may
// contain spaces and parentheses: fields are counted from the last parenthesis.
func parseStat(b []byte) (procStat, error) {
	end := bytes.LastIndexByte(b, ')')
	if end < 0 {
		return procStat{}, errors.New("no process name")
	}
	f := strings.Fields(string(b[end+1:]))
	// f[0] is field 3 of proc(5), the state.
	const parent, utime, fields = 4 - 3, 14 - 3, 17 - 3 + 1
	if len(f) < fields {
		return procStat{}, fmt.Errorf("%d fields after the name, want at least %d", len(f), fields)
	}
	var st procStat
	var err error
	if st.parent, err = strconv.Atoi(f[parent]); err != nil {
		return procStat{}, fmt.Errorf("parent: %w", err)
	}
	for i, p := range []*int64{&st.user, &st.system, &st.childUser, &st.childSystem} {
		if *p, err = strconv.ParseInt(f[utime+i], 10, 64); err != nil {
			return procStat{}, fmt.Errorf("CPU time: %w", err)
		}
	}
	return st, nil
}

// procStatus is the part of /proc/PID/status that is used; memory is in bytes. Kernel threads
// and zombies have no memory lines: 0.
type procStatus struct {
	rss, rssAnon, peak     int64
	threads                int
	voluntary, involuntary int64
}

func parseStatus(b []byte) (procStatus, error) {
	var s procStatus
	var threads int64
	err := eachField(b, func(name, value string) error {
		var p *int64
		unit := int64(1)
		switch name {
		case "VmRSS":
			p, unit = &s.rss, 1024
		case "RssAnon":
			p, unit = &s.rssAnon, 1024
		case "VmHWM":
			p, unit = &s.peak, 1024
		case "Threads":
			p = &threads
		case "voluntary_ctxt_switches":
			p = &s.voluntary
		case "nonvoluntary_ctxt_switches":
			p = &s.involuntary
		default:
			return nil
		}
		n, err := strconv.ParseInt(strings.TrimSuffix(value, " kB"), 10, 64)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		*p = n * unit
		return nil
	})
	s.threads = int(threads)
	return s, err
}

// procIO is the part of /proc/PID/io that is used.
type procIO struct{ reads, writes int64 }

func parseIO(b []byte) (procIO, error) {
	var io procIO
	err := eachField(b, func(name, value string) error {
		var p *int64
		switch name {
		case "syscr":
			p = &io.reads
		case "syscw":
			p = &io.writes
		default:
			return nil
		}
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		*p = n
		return nil
	})
	return io, err
}

// eachField calls f for each "name: value" line.
func eachField(b []byte, f func(name, value string) error) error {
	for line := range strings.Lines(string(b)) {
		name, value, ok := strings.Cut(line, ":")
		if !ok {
			continue
		}
		if err := f(strings.TrimSpace(name), strings.TrimSpace(value)); err != nil {
			return err
		}
	}
	return nil
}
