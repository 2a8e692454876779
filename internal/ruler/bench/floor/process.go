// Package floor has what benchmarks use to measure a lower bound: programs that do only
// what the work needs, so that nothing on this machine can cost less. Each is a hidden
// verb of weir in a process of its own, with one thread that waits, reads and writes. It
// calls the kernel past Go's scheduler and never collects its memory, so that it costs
// what the kernel does.
package floor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
)

// Process is a floor that runs.
type Process struct {
	Addr string // where it listens
	cmd  *exec.Cmd
}

// Start runs a verb of the program binary, which must write where it listens to its
// standard output and end when its input does, and so with this process in any case.
func Start(ctx context.Context, binary string, args ...string) (*Process, error) {
	p := &Process{cmd: exec.Command(binary, args...)}
	// A group of its own: it ends when we say so, not at Ctrl-C.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// No garbage is made, and nothing else is to run on its threads.
	p.cmd.Env = append(p.cmd.Environ(), "GODEBUG=asyncpreemptoff=1")
	_, err := p.cmd.StdinPipe()
	out, outErr := p.cmd.StdoutPipe()
	var said strings.Builder
	p.cmd.Stderr = &said
	if err = errors.Join(err, outErr); err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("start the floor: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = p.cmd.Process.Kill() })
	defer stop()
	addr, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		_ = p.Stop()
		return nil, fmt.Errorf("start the floor: %w: %s", err, strings.TrimSpace(said.String()))
	}
	p.Addr = strings.TrimSpace(addr)
	return p, nil
}

// PID is its number.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Stop ends it. It has nothing to put in order.
func (p *Process) Stop() error {
	err := p.cmd.Process.Kill()
	_ = p.cmd.Wait() // says that it was killed
	if err != nil {
		return fmt.Errorf("stop the floor: it ended by itself: %w", err)
	}
	return nil
}
