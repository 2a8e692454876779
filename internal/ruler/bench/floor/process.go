// Package floor helps benchmarks to measure a lower bound: programs that do only what the work
// requires, so that nothing on this machine can cost less. Each is a hidden verb of weir in its
// own process, with one thread that waits, reads and writes. It makes system calls without Go's
// scheduler and never collects garbage, so that it costs what the kernel does.
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

// Process is a running floor program.
type Process struct {
	Addr string // where it listens
	cmd  *exec.Cmd
}

// Start runs a verb of the program binary, which must write its address to standard output, and
// exit when its standard input ends, and so at the latest with this process.
func Start(ctx context.Context, binary string, args ...string) (*Process, error) {
	p := &Process{cmd: exec.Command(binary, args...)}
	// In its own process group: it ends when we stop it, not at Ctrl-C.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// There is no garbage, and nothing else to run on its threads.
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

// PID is its process ID.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Stop kills it. It has nothing to clean up.
func (p *Process) Stop() error {
	err := p.cmd.Process.Kill()
	_ = p.cmd.Wait() // says that it was killed
	if err != nil {
		return fmt.Errorf("stop the floor: it ended by itself: %w", err)
	}
	return nil
}
