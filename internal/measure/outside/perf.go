package outside

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Function is a function with its own samples, as perf reports it.
type Function struct {
	Name   string `json:"name"`
	Object string `json:"object"` // the program or library, or "kernel"
	// Samples were taken at equal intervals of CPU time.
	Samples int64 `json:"samples"`
}

// Profile is perf's profile of some processes.
type Profile struct {
	Seconds   float64    `json:"seconds"`
	Hz        int        `json:"hz"`
	Samples   int64      `json:"samples"`
	Functions []Function `json:"functions"` // most samples first
}

// perfHz is the sampling rate, per second of CPU time: a prime, so that it does not coincide
// with a timer.
const perfHz = 199

// kernel is perf's name for the object of kernel functions.
const kernel = "kernel"

// Perf samples processes and their children for d, by CPU time, which works even on hosts that
// hide hardware counters. It does not record stacks: most servers are built without what that
// needs.
func Perf(ctx context.Context, pids []int, d time.Duration) (_ *Profile, err error) {
	path, err := find("perf", "linux-perf")
	if err != nil {
		return nil, err
	}
	if len(pids) == 0 {
		return nil, errors.New("perf: no process to look at")
	}
	dir, err := os.MkdirTemp("", "weir-perf-*")
	if err != nil {
		return nil, fmt.Errorf("perf: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	data := filepath.Join(dir, "perf.data")
	_, said, err := run(ctx, path, "record", "-q", "-e", "cpu-clock", "-F", fmt.Sprint(perfHz), "-o", data, "-p", joined(pids),
		"--", "sleep", fmt.Sprintf("%.3f", d.Seconds()))
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return nil, ctx.Err()
	default:
		return nil, fmt.Errorf("perf record is %w: %w: %s (kernel.perf_event_paranoid and the owner of the process decide)", ErrMissing, err, said)
	}
	out, said, err := run(ctx, path, "script", "-f", "-i", data, "-F", "comm,ip,sym,dso")
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fmt.Errorf("perf script: %w: %s", err, said)
	}
	p := parseScript(out)
	p.Seconds = d.Seconds()
	return p, nil
}

// parseScript adds up the samples in the output of perf script, one per line:
//
//	postgres  55d0c3a0b1c2 hash_search_with_hash_value (/usr/lib/postgresql/15/bin/postgres)
func parseScript(out []byte) *Profile {
	p := &Profile{Hz: perfHz}
	type key struct{ name, object string }
	by := make(map[key]int64)
	for line := range bytes.Lines(out) {
		text := strings.TrimSpace(string(line))
		if strings.HasPrefix(text, "#") || !strings.HasSuffix(text, ")") {
			continue
		}
		open := strings.LastIndex(text, " (")
		if open < 0 {
			continue
		}
		object := text[open+2 : len(text)-1]
		fields := strings.Fields(text[:open])
		at := slices.IndexFunc(fields, isAddress)
		if at < 0 || at == len(fields) {
			continue
		}
		name := strings.Join(fields[at+1:], " ")
		k := key{cmp.Or(strings.Trim(name, "[]"), "unknown"), objectName(object)}
		by[k]++
		p.Samples++
	}
	for k, n := range by {
		p.Functions = append(p.Functions, Function{k.name, k.object, n})
	}
	slices.SortFunc(p.Functions, func(a, b Function) int {
		return cmp.Or(cmp.Compare(b.Samples, a.Samples), cmp.Compare(a.Object, b.Object), cmp.Compare(a.Name, b.Name))
	})
	return p
}

// isAddress distinguishes an instruction's address from the name of a command. A command whose
// name is a hexadecimal number of eight digits is taken for an address.
func isAddress(s string) bool {
	return len(s) >= 6 && strings.Trim(s, "0123456789abcdef") == ""
}

// objectName shortens the path of a program or library.
func objectName(s string) string {
	if strings.HasPrefix(s, "[kernel") || strings.HasPrefix(s, "[guest.kernel") || strings.HasSuffix(s, ".ko") {
		return kernel
	}
	return strings.Trim(filepath.Base(s), "[]")
}

// ByObject adds up the samples of each program and library, most first.
func (p *Profile) ByObject() []Function {
	by := make(map[string]int64)
	for _, f := range p.Functions {
		by[f.Object] += f.Samples
	}
	var out []Function
	for o, n := range by {
		out = append(out, Function{Object: o, Samples: n})
	}
	slices.SortFunc(out, func(a, b Function) int {
		return cmp.Or(cmp.Compare(b.Samples, a.Samples), cmp.Compare(a.Object, b.Object))
	})
	return out
}
