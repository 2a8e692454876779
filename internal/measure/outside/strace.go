package outside

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Call is a system call with strace's counts.
type Call struct {
	Name   string `json:"name"`
	Calls  int64  `json:"calls"`
	Errors int64  `json:"errors,omitempty"`
	// Seconds is the kernel's CPU time, as strace counts it. It includes strace's own stops, so
	// it only ranks calls and does not measure them.
	Seconds float64 `json:"seconds"`
}

// Trace is a running strace.
type Trace struct {
	path  string
	dir   string
	cmd   *exec.Cmd
	said  bytes.Buffer
	ended chan struct{}
	err   error // read after ended
}

// Strace starts to count the system calls of processes and all their threads, and returns when
// it is attached. It stops them twice for every call, which slows them down severalfold. The
// caller stops it.
func Strace(ctx context.Context, pids ...int) (_ *Trace, err error) {
	path, err := find("strace", "strace")
	if err != nil {
		return nil, err
	}
	if len(pids) == 0 {
		return nil, errors.New("strace: no process to look at")
	}
	t := &Trace{path: path, ended: make(chan struct{})}
	if t.dir, err = os.MkdirTemp("", "weir-strace-*"); err != nil {
		return nil, fmt.Errorf("strace: %w", err)
	}
	permitTracing()
	t.cmd = exec.Command(path, "-c", "-f", "-o", t.summary(), "-p", joined(pids))
	// A process group of its own, so that only weir gets a Ctrl-C in a terminal.
	t.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	attached := &watcher{want: "attached", seen: make(chan struct{}), into: &t.said}
	t.cmd.Stderr = attached
	if err := t.cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("strace: %w", err), os.RemoveAll(t.dir))
	}
	go func() {
		t.err = t.cmd.Wait()
		close(t.ended)
	}()
	select {
	case <-attached.seen:
		return t, nil
	case <-t.ended:
		return nil, errors.Join(fmt.Errorf("strace is %w: %s (kernel.yama.ptrace_scope and the owner of the process decide)", ErrMissing, lastLine(t.said.String())), os.RemoveAll(t.dir))
	case <-ctx.Done():
		_, err := t.Stop()
		return nil, errors.Join(ctx.Err(), err)
	}
}

func (t *Trace) summary() string { return filepath.Join(t.dir, "summary") }

// Stop detaches, and returns the calls, those with the most time first.
func (t *Trace) Stop() (calls []Call, err error) {
	defer func() { err = errors.Join(err, os.RemoveAll(t.dir)) }()
	if err := t.cmd.Process.Signal(syscall.SIGINT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return nil, fmt.Errorf("stop strace: %w", err)
	}
	select {
	case <-t.ended:
	case <-time.After(patience):
		// The traced process continues without it.
		_ = t.cmd.Process.Kill()
		<-t.ended
		return nil, fmt.Errorf("strace did not end within %v", patience)
	}
	b, err := os.ReadFile(t.summary())
	if err != nil {
		return nil, fmt.Errorf("read what strace counted: %w", err)
	}
	return parseSummary(b)
}

// watcher waits for a word in the output of a process, which it keeps.
type watcher struct {
	want string
	seen chan struct{}
	done bool
	into *bytes.Buffer
}

func (w *watcher) Write(b []byte) (int, error) {
	w.into.Write(b)
	if !w.done && bytes.Contains(w.into.Bytes(), []byte(w.want)) {
		w.done = true
		close(w.seen)
	}
	return len(b), nil
}

// parseSummary parses the table of strace -c:
//
//	% time     seconds  usecs/call     calls    errors syscall
//	------ ----------- ----------- --------- --------- ----------------
//	 52.10    0.010420          10      1042        12 futex
func parseSummary(b []byte) ([]Call, error) {
	var out []Call
	for line := range bytes.Lines(b) {
		f := strings.Fields(string(line))
		if len(f) != 5 && len(f) != 6 || f[len(f)-1] == "total" || strings.HasPrefix(f[0], "-") || f[0] == "%" {
			continue
		}
		var c Call
		var err1, err2, err3 error
		c.Name = f[len(f)-1]
		c.Seconds, err1 = strconv.ParseFloat(f[1], 64)
		c.Calls, err2 = strconv.ParseInt(f[3], 10, 64)
		if len(f) == 6 {
			c.Errors, err3 = strconv.ParseInt(f[4], 10, 64)
		}
		if err := errors.Join(err1, err2, err3); err != nil {
			return nil, fmt.Errorf("read what strace counted: %q: %w", strings.TrimSpace(string(line)), err)
		}
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b Call) int {
		return cmp.Or(cmp.Compare(b.Seconds, a.Seconds), cmp.Compare(b.Calls, a.Calls), cmp.Compare(a.Name, b.Name))
	})
	return out, nil
}
