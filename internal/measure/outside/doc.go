// Package outside looks at processes with programs that are made for it: perf, which says
// in which functions they spend their CPU time, whatever they are written in, and strace,
// which counts their system calls. Both are optional: where one is missing, or not
// permitted to this user, functions return an error that matches ErrMissing, and the
// other measurements go on without it.
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

// ErrMissing is matched by the error of a tool that is not here, or may not be used.
var ErrMissing = errors.New("not available here")

// find looks a tool up.
func find(name, pack string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%s is %w: install it with: apt-get install %s", name, ErrMissing, pack)
	}
	return path, nil
}

// patience is how long a tool may take to end after it was told to.
const patience = 30 * time.Second

// run runs a tool and returns what it wrote. said is the end of what it complained of.
func run(ctx context.Context, path string, args ...string) (out []byte, said string, err error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.WaitDelay = patience
	err = cmd.Run()
	return stdout.Bytes(), lastLine(stderr.String()), err
}

// lastLine is the last line that says something.
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
