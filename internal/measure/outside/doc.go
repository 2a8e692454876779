// Package outside examines processes with two programs: perf, which finds out in which
// functions they spend their CPU time, whatever language they are written in, and strace, which
// counts their system calls. Both are optional: if one is not installed, or not permitted for
// this user, functions return an error that matches ErrMissing, and other measurements continue
// without it.
package outside

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// ErrMissing says that a tool is not installed, or not permitted.
var ErrMissing = errors.New("not available here")

// find looks for a tool in PATH.
func find(name, pack string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%s is %w: install it with: apt-get install %s", name, ErrMissing, pack)
	}
	return path, nil
}

// patience is how long a tool may take to end after it was told to.
const patience = 30 * time.Second

// run runs a tool and returns its output. said is the last line of its standard error.
func run(ctx context.Context, path string, args ...string) (out []byte, said string, err error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.WaitDelay = patience
	err = cmd.Run()
	return stdout.Bytes(), lastLine(stderr.String()), err
}

// lastLine returns the last line that is not empty.
func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}

func joined(pids []int) string {
	out := make([]string, len(pids))
	for i, pid := range pids {
		out[i] = strconv.Itoa(pid)
	}
	return strings.Join(out, ",")
}
