package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// procID identifies a process uniquely: a PID alone is reused.
type procID struct {
	pid   int
	start uint64 // field 22 of /proc/PID/stat: clock ticks since boot
}

// procStat is the part of /proc/PID/stat that the lab needs.
type procStat struct {
	id    procID
	ppid  int
	state byte // R S D T t Z X ...
}

// parseStat parses a line of /proc/PID/stat. The command name is in parentheses and may contain
// blanks and parentheses, so fields count from the last one.
func parseStat(line string) (procStat, error) {
	open, end := strings.IndexByte(line, '('), strings.LastIndexByte(line, ')')
	if open < 1 || end < open {
		return procStat{}, errors.New("parse process state: no command name")
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line[:open]))
	if err != nil {
		return procStat{}, fmt.Errorf("parse process state: %w", err)
	}
	f := strings.Fields(line[end+1:])
	if len(f) < 20 || f[0] == "" {
		return procStat{}, errors.New("parse process state: too few fields")
	}
	ppid, err := strconv.Atoi(f[1])
	if err != nil {
		return procStat{}, fmt.Errorf("parse process state: %w", err)
	}
	start, err := strconv.ParseUint(f[19], 10, 64)
	if err != nil {
		return procStat{}, fmt.Errorf("parse process state: %w", err)
	}
	return procStat{procID{pid, start}, ppid, f[0][0]}, nil
}

func readStat(pid int) (procStat, error) {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return procStat{}, err
	}
	return parseStat(string(line))
}

// alive reports whether the process still runs. A zombie does not: it has no memory, no files
// and no locks.
func (id procID) alive() bool {
	st, err := readStat(id.pid)
	return err == nil && st.id == id && st.state != 'Z' && st.state != 'X'
}

// signal sends sig unless the process has ended.
func (id procID) signal(sig syscall.Signal) error {
	if !id.alive() {
		return nil
	}
	if err := syscall.Kill(id.pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}

// descendants lists all living processes below root, parents before children.
func descendants(root int) []procID {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	children := make(map[int][]procID)
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if st, err := readStat(pid); err == nil && st.state != 'Z' && st.state != 'X' {
			children[st.ppid] = append(children[st.ppid], st.id)
		}
	}
	var all []procID
	for queue := []int{root}; len(queue) > 0; queue = queue[1:] {
		for _, c := range children[queue[0]] {
			all = append(all, c)
			queue = append(queue, c.pid)
		}
	}
	return all
}

// poll calls ok every few milliseconds, later every 20, until it returns true or ctx ends: some
// conditions read all of /proc.
func poll(ctx context.Context, ok func() bool) error {
	for pause := 3 * time.Millisecond; !ok(); pause = min(pause*3/2, 20*time.Millisecond) {
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			t.Stop()
			return context.Cause(ctx)
		case <-t.C:
		}
	}
	return nil
}

// command is one program to run inside the lab.
type command struct {
	path  string
	args  []string
	dir   string
	env   []string // added to the lab's minimal environment
	as    *identity
	stdin io.Reader
	out   io.Writer // stdout and stderr together
}

// process is a started command. Its methods are safe for concurrent use.
type process struct {
	id   procID
	done chan struct{} // closed when the process was reaped
	err  error         // how it ended; read only after done is closed
}

// StartCommand starts cmd in its own process group, so that a terminal's Ctrl-C only reaches
// weir, and makes the kernel kill it when this process dies.
func StartCommand(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid, cmd.SysProcAttr.Pdeathsig = true, syscall.SIGKILL
	return onSpawnThread(cmd.Start)
}

// startProcess starts c by StartCommand.
func startProcess(c command) (*process, error) {
	cmd := exec.Command(c.path, c.args...)
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = c.dir, c.stdin, c.out, c.out
	// The environment is not inherited: a PGHOST or LC_ALL of the caller must not affect a lab
	// server.
	cmd.Env = append([]string{
		"PATH=" + filepath.Dir(c.path) + ":/usr/bin:/bin", "LC_ALL=C.UTF-8", "TZ=UTC", "HOME=" + c.dir,
	}, c.env...)
	if c.as != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: c.as.credential()}
	}
	// A grandchild that inherited our pipe must not keep Wait from returning.
	cmd.WaitDelay = time.Second
	if err := StartCommand(cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", filepath.Base(c.path), err)
	}
	pid := cmd.Process.Pid
	raiseFileLimit(pid)
	p := &process{done: make(chan struct{})}
	// Not reaped yet, so the PID still belongs to this process, dead or alive.
	if st, err := readStat(pid); err == nil {
		p.id = st.id
	} else {
		p.id = procID{pid: pid}
	}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// runCommand runs c to its end and returns its output. If ctx is cancelled, it is killed with
// all its children.
func runCommand(ctx context.Context, c command) (string, error) {
	var out bytes.Buffer
	c.out = &out
	p, err := startProcess(c)
	if err != nil {
		return "", err
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		p.killTree()
		return out.String(), context.Cause(ctx)
	}
	if p.err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s", filepath.Base(c.path), p.err, lastLines(out.String(), 5))
	}
	return out.String(), nil
}

func (p *process) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

func (p *process) signal(sig syscall.Signal) error {
	if !p.running() {
		return nil
	}
	return p.id.signal(sig)
}

// tree stops the process and everything below it, and returns them all. Only stopped processes
// cannot fork, so only then is the list complete.
//
// Each of PostgreSQL's children has its own session: a signal to the process group would only
// reach the postmaster.
func (p *process) tree() []procID {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	seen := map[procID]bool{}
	var all []procID
	for found := []procID{p.id}; len(found) > 0; {
		for _, id := range found {
			seen[id] = true
			all = append(all, id)
			_ = id.signal(syscall.SIGSTOP)
		}
		for _, id := range found {
			// A process in an uninterruptible wait stops late, but does not fork in the
			// meantime either, so the deadline is harmless.
			_ = poll(ctx, func() bool {
				st, err := readStat(id.pid)
				return err != nil || st.id != id || strings.IndexByte("TtZX", st.state) >= 0
			})
		}
		found = nil
		for _, id := range descendants(p.id.pid) {
			if !seen[id] {
				found = append(found, id)
			}
		}
	}
	return all
}

// killTree stops the whole tree, then kills it: as close to a power failure of one server as
// signals come. It returns when all processes are gone.
func (p *process) killTree() {
	if !p.running() {
		return
	}
	ids := p.tree()
	for _, id := range ids {
		_ = id.signal(syscall.SIGKILL)
	}
	<-p.done
	waitGone(ids)
}

// waitGone waits until none of ids runs. They have received SIGKILL, so only a process inside
// an uninterruptible system call takes time.
func waitGone(ids []procID) {
	for _, id := range ids {
		_ = poll(context.Background(), func() bool { return !id.alive() })
	}
}

// onSpawnThread runs f on the one operating system thread that starts all lab processes. Linux
// sends the parent-death signal when the starting *thread* ends, not the process, and Go may
// end threads: so that thread belongs to a goroutine that never returns.
func onSpawnThread(f func() error) error {
	result := make(chan error, 1)
	spawnThread() <- func() { result <- f() }
	return <-result
}

var spawnThread = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work { // never closed: lives as long as the process
			f()
		}
	}()
	return work
})

// raiseFileLimit lets a server open as many files as the hard limit allows. Go gives its
// children the soft limit that it was started with, often 1024, which a pooler with 1000
// clients exceeds. A server whose limit cannot be raised reports the problem itself.
func raiseFileLimit(pid int) {
	var lim unix.Rlimit
	if unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &lim) == nil {
		lim.Cur = lim.Max
		_ = unix.Prlimit(pid, unix.RLIMIT_NOFILE, &lim, nil)
	}
}

// identity is the user that root's servers run as.
type identity struct {
	name     string
	uid, gid uint32
}

func (i *identity) credential() *syscall.Credential {
	return &syscall.Credential{Uid: i.uid, Gid: i.gid}
}

// unprivileged returns the first of names that exists, else nobody; nil if this process is not
// root and so runs its servers as itself.
func unprivileged(names ...string) (*identity, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range append(names, "nobody") {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("user %s: %w", name, err)
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("user %s: %w", name, err)
		}
		return &identity{name, uint32(uid), uint32(gid)}, nil
	}
	return nil, fmt.Errorf("no unprivileged user to run servers as: none of %s, nobody exists", strings.Join(names, ", "))
}

// chown changes the owner of path to the identity; a nil identity leaves it as it is.
func (i *identity) chown(path string) error {
	if i == nil {
		return nil
	}
	return os.Lchown(path, int(i.uid), int(i.gid))
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
