package demo

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/weirdb/weir/internal/admin"
)

// process is a weir process of the demo. After a kill, it is started again with the same
// arguments.
type process struct {
	name   string
	binary string
	args   []string
	admin  string // host:port
	log    string // file

	mu     sync.Mutex
	cmd    *exec.Cmd     // guarded by mu; nil before the start
	done   chan struct{} // guarded by mu: closed when cmd has ended
	starts int           // guarded by mu
}

// patience limits the demo's waits; it is generous for busy machines.
const patience = 2 * time.Minute

func (p *process) start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	defer out.Close() // the process has its own copy
	cmd := exec.Command(p.binary, p.args...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true} // Ctrl-C must only reach the demo
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	done := make(chan struct{})
	p.cmd, p.done = cmd, done
	p.starts++
	go func() {
		_ = cmd.Wait() // its log says how it ended
		close(done)
	}()
	return nil
}

// running returns the PID of the process, and whether it runs.
func (p *process) running() (pid int, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return 0, false
	}
	select {
	case <-p.done:
		return 0, false
	default:
		return p.cmd.Process.Pid, true
	}
}

// end sends a signal and waits for the process to end; after a while it kills it.
func (p *process) end(sig syscall.Signal) {
	p.mu.Lock()
	cmd, done := p.cmd, p.done
	p.mu.Unlock()
	if cmd == nil {
		return
	}
	_ = cmd.Process.Signal(sig) // it may have ended already
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		_ = cmd.Process.Kill()
		<-done
	}
}

// ready waits until the process reports that it can serve.
func (p *process) ready(ctx context.Context) error {
	return await(ctx, p.name+" is ready (its log: "+p.log+")", func() error {
		if _, ok := p.running(); !ok {
			return fmt.Errorf("%s has ended: %s", p.name, tail(p.log))
		}
		return healthy(ctx, "http://"+p.admin+"/readyz")
	})
}

func healthy(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	body, err := admin.Get(ctx, url)
	if err != nil {
		return err
	}
	return body.Close()
}

// await repeats a check until it succeeds.
func await(ctx context.Context, what string, check func() error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := check()
		if err == nil {
			return nil
		}
		if !pause(ctx, 50*time.Millisecond) {
			return fmt.Errorf("wait until %s: %w", what, err)
		}
	}
}

// pause waits for d and reports whether it passed before ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// tail returns the end of a log.
func tail(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-800):])
}

// weir describes a process of this weir binary.
func (s *stack) weir(name, admin string, args ...string) *process {
	return &process{
		name: name, binary: s.cfg.Binary, admin: admin, log: filepath.Join(s.cfg.Out, "logs", name+".log"),
		args: append(args, "--admin", admin),
	}
}
