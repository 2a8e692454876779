// Package doctor finds out what can be measured on a machine, tool by tool. It tries each tool
// instead of checking whether it is installed: measurements fail because of a profiler that is
// not permitted, or a counter that a hypervisor does not provide.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/measure/check"
)

// State and Check are those of package check.
type (
	State = check.State
	Check = check.Check
)

// The states of a check.
const (
	Yes     = check.Yes
	Limited = check.Limited
	No      = check.No
)

// Config configures an examination.
type Config struct {
	// Dir is the directory whose disk is measured. Default: the directory for temporary files.
	Dir string
	// Root is the directory with /proc and /sys. Default: "/". Tests use others.
	Root string
	// Patience is the time limit for a single tool. Default: 5 s.
	Patience time.Duration
}

// Examine runs all checks, in an order that reads well. It takes about a second. When ctx ends,
// it returns the checks so far, with ctx's error.
func Examine(ctx context.Context, c Config) ([]Check, error) {
	if c.Dir == "" {
		c.Dir = os.TempDir()
	}
	if c.Root == "" {
		c.Root = "/"
	}
	if c.Patience == 0 {
		c.Patience = 5 * time.Second
	}
	e := &examiner{Config: c}
	var out []Check
	for _, f := range []func(context.Context) Check{
		e.processors, e.memory, e.quota, e.clock, e.timer, e.loopback, e.disk, e.openFiles,
		e.pressure, e.processCounters, e.arrivalTimes,
		e.softwareEvents, e.hardwareEvents, e.tracepoints, e.kprobes, e.typeInformation, e.programs,
		e.perf, e.strace, e.bpftrace, e.namespaces, e.netem,
	} {
		if err := ctx.Err(); err != nil {
			return out, err
		}
		out = append(out, f(ctx))
	}
	return out, nil
}

// examiner makes the checks.
type examiner struct{ Config }

// read returns the content of a file below the root, without surrounding white space.
func (e *examiner) read(path string) (string, error) {
	b, err := os.ReadFile(filepath.Join(e.Root, path))
	return strings.TrimSpace(string(b)), err
}

func (e *examiner) exists(path string) bool {
	_, err := os.Stat(filepath.Join(e.Root, path))
	return err == nil
}

// command runs a tool and returns the last line of its output.
func (e *examiner) command(ctx context.Context, prepare func(*exec.Cmd), name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, e.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.WaitDelay = time.Second
	if prepare != nil {
		prepare(cmd)
	}
	b, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		err = fmt.Errorf("no end within %v", e.Patience)
	}
	return lastLine(string(b)), err
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}

// missing completes the check of a tool that is not installed.
func missing(c Check, err error, hint string) (Check, bool) {
	if !errors.Is(err, exec.ErrNotFound) {
		return c, false
	}
	c.State, c.Detail, c.Hint = No, "not installed", hint
	return c, true
}

// permitted returns the text for the error of a system call.
func permitted(err error) string {
	switch {
	case errors.Is(err, os.ErrPermission):
		return "not permitted"
	case err == nil:
		return "permitted"
	default:
		return err.Error()
	}
}

// micros formats nanoseconds as microseconds or, from a thousand microseconds on, as
// milliseconds.
func micros(ns int64) string {
	if ns >= 999_500 {
		return fmt.Sprintf("%.3g ms", float64(ns)/1e6)
	}
	return fmt.Sprintf("%.3g us", float64(ns)/1e3)
}
