package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// server is the common part of the lab's servers: a directory, a process in it, and the faults
// that can happen to them. Each kind of server embeds it, and says what to prepare and how to
// launch. Its methods are safe for concurrent use.
type server struct {
	title       string         // its name in messages: "PostgreSQL"
	stopSignal  syscall.Signal // requests a clean shutdown that does not wait for clients
	crashSignal syscall.Signal // ends it and its children like a crash; 0: unknown
	portInUse   string         // part of its log message about a port in use
	anyPort     bool           // the port may be any free one
	watch       diskWatch
	logCopy     io.Writer // receives the log as it is written, or nil

	as   *identity
	dir  *runDir
	data string
	sock string // the directory of the Unix socket
	env  []string
	log  *os.File
	tls  *authority
	port int
	held *Ports // reserves port, and others, if they were chosen

	mu      sync.Mutex // guards the fields below, and makes start, stop and kill exclusive
	proc    *process
	paused  []procID // the processes that Pause stopped
	stopped bool

	helpers []*process // helper processes; they end with the run directory at the latest

	launch func(context.Context) error // starts the process and waits until it is ready: calls run
}

// diskWatch says what the preloaded shim does with a server's flushes.
type diskWatch struct {
	latency time.Duration // added to each flush
	count   bool          // count them for Flushes
}

func (w diskWatch) wanted() bool { return w.latency > 0 || w.count }

func (w diskWatch) validate(d Durability) error {
	if w.latency == 0 {
		return nil
	}
	if w.latency < time.Microsecond {
		return fmt.Errorf("fsync latency %v: must be at least 1µs", w.latency)
	}
	if d != Prod {
		return errors.New("fsync latency needs durability prod: a fast server never flushes")
	}
	return nil
}

// bindAttempts limits retries of the race for a free port: after we have chosen it and before
// the server listens, a process outside the lab may take it.
const bindAttempts = 4

// begin makes the run directory, prepares and launches. A failure leaves nothing behind.
func (s *server) begin(ctx context.Context, d Durability, prepare func(context.Context) error) (err error) {
	if s.dir, err = newRunDir(baseDir(d)); err != nil {
		return err
	}
	if err := prepare(ctx); err != nil {
		return errors.Join(fmt.Errorf("prepare %s: %w", s.title, err), s.discard())
	}
	for attempt := 1; ; attempt++ {
		err := s.launch(ctx)
		if err == nil {
			return nil
		}
		if s.anyPort && attempt < bindAttempts && strings.Contains(s.LogTail(20), s.portInUse) {
			continue
		}
		return errors.Join(err, s.discard())
	}
}

// prepareRunDir makes the common content of a run directory. The certificates include one for a
// client called admin.
func (s *server) prepareRunDir(ctx context.Context, mode TLSMode, admin string) (err error) {
	if s.data, err = s.dir.sub("data", s.as, 0o700); err != nil {
		return err
	}
	if s.sock, err = s.dir.sub("s", s.as, 0o755); err != nil {
		return err
	}
	if s.log, err = os.OpenFile(filepath.Join(s.dir.path, "log"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600); err != nil {
		return fmt.Errorf("create log: %w", err)
	}
	if mode != TLSOff {
		if s.tls, err = newAuthority(s.dir.path); err != nil {
			return err
		}
		if err := s.tls.issueServer(s.as); err != nil {
			return err
		}
		if _, err := s.tls.issueClient(admin); err != nil {
			return err
		}
	}
	if s.watch.wanted() {
		env, err := watchDisk(ctx, s.dir.path, s.watch, s.as)
		if err != nil {
			return err
		}
		s.env = append(s.env, env...)
	}
	return nil
}

// place writes a file that only the server can read.
func (s *server) place(path string, content []byte) error {
	if err := os.WriteFile(path, content, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	if err := s.as.chown(path); err != nil {
		return fmt.Errorf("hand over %s: %w", filepath.Base(path), err)
	}
	return nil
}

// choosePort takes a free port at the first start; a restart keeps its port.
func (s *server) choosePort() error {
	if s.anyPort && s.proc == nil {
		if err := s.hold(1); err != nil {
			return err
		}
		s.port = s.held.numbers[0]
	}
	return nil
}

// hold reserves ports until discard, in place of those that it held before.
func (s *server) hold(n int) error {
	before := s.held
	var err error
	s.held, err = ReservePorts(n)
	return errors.Join(err, before.Release())
}

// run starts the server's process and returns when ready is true.
func (s *server) run(ctx context.Context, program string, args []string, ready func(*process) bool) error {
	var out io.Writer = s.log
	if s.logCopy != nil {
		out = io.MultiWriter(s.log, s.logCopy)
	}
	proc, err := startProcess(command{path: program, args: args, dir: s.data, env: s.env, as: s.as, out: out})
	if err != nil {
		return err
	}
	if err := s.dir.register(proc.id); err != nil {
		proc.killTree()
		return err
	}
	if err := awaitReady(ctx, proc, func() bool { return ready(proc) }); err != nil {
		proc.killTree()
		return fmt.Errorf("await %s: %w\n%s", s.title, err, s.LogTail(10))
	}
	s.proc, s.paused = proc, nil
	return nil
}

// awaitReady polls ready until it returns true, the process ends or ctx does.
func awaitReady(ctx context.Context, proc *process, ready func() bool) error {
	err := poll(ctx, func() bool { return !proc.running() || ready() })
	if err != nil {
		return err
	}
	if !proc.running() {
		return fmt.Errorf("server ended while starting: %v", proc.err)
	}
	return nil
}

// startHelper starts a helper process of the server. It runs until stopHelpers or discard.
func (s *server) startHelper(program string, args []string) (*process, error) {
	proc, err := startProcess(command{path: program, args: args, dir: s.data, env: s.env, as: s.as, out: s.log})
	if err != nil {
		return nil, err
	}
	s.helpers = append(s.helpers, proc)
	return proc, s.dir.register(proc.id)
}

// stopHelpers stops the processes that startHelper started.
func (s *server) stopHelpers() {
	for _, helper := range s.helpers {
		helper.killTree()
	}
	s.helpers = nil
}

// discard removes the remains of a failed start.
func (s *server) discard() error {
	s.stopHelpers()
	if s.log != nil {
		_ = s.log.Close()
	}
	return errors.Join(s.dir.remove(), s.held.Release())
}

// Stop stops the server (a clean shutdown that does not wait for its clients) and removes its
// directory. If ctx ends first, it kills the server instead, and still removes the directory. A
// second call does nothing.
func (s *server) Stop(ctx context.Context) error {
	return s.end(ctx, s.stopSignal)
}

// Discard is Stop without the work that only a later start would need: it writes neither pages
// nor a checkpoint, which is a third of the work of a PostgreSQL server in a short test.
// Brokers have no such shutdown, and are stopped.
func (s *server) Discard(ctx context.Context) error {
	return s.end(ctx, cmp.Or(s.crashSignal, s.stopSignal))
}

func (s *server) end(ctx context.Context, by syscall.Signal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return nil
	}
	s.stopped = true
	err := s.shutdown(ctx, by)
	return errors.Join(err, s.discard())
}

func (s *server) shutdown(ctx context.Context, by syscall.Signal) error {
	s.resume()
	defer endStragglers(s.data) // if someone else killed the parent process
	if err := s.proc.signal(by); err != nil {
		return fmt.Errorf("stop %s: %w", s.title, err)
	}
	select {
	case <-s.proc.done:
		return nil
	case <-ctx.Done():
		s.proc.killTree()
		return fmt.Errorf("stop %s: %w (killed instead)", s.title, context.Cause(ctx))
	}
}

// Kill crashes the server: all its processes are stopped, then killed, and gone when Kill
// returns. The data directory stays for Restart.
func (s *server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proc.killTree()
	endStragglers(s.data)
	s.paused = nil
}

// Restart starts the server again on the same port and data directory, which
// after Kill means crash recovery. A server that still runs is shut down first.
func (s *server) Restart(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return fmt.Errorf("restart %s: it was stopped and its directory removed", s.title)
	}
	if err := s.shutdown(ctx, s.stopSignal); err != nil {
		return err
	}
	if err := s.launch(ctx); err != nil {
		return fmt.Errorf("restart %s: %w", s.title, err)
	}
	return nil
}

// Pause stops every process of the server: connections stay open and get no answers. New
// sessions hang, too.
func (s *server) Pause() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.paused == nil && s.proc.running() {
		s.paused = s.proc.tree()
	}
}

// Resume lets a paused server continue.
func (s *server) Resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resume()
}

func (s *server) resume() {
	for _, id := range s.paused {
		_ = id.signal(syscall.SIGCONT)
	}
	s.paused = nil
}

// Done is closed when the current server process has ended, for whatever reason. After Restart
// there is a new channel.
func (s *server) Done() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc.done
}

// PID is the ID of the server's process; for PostgreSQL, the postmaster's.
func (s *server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc.id.pid
}

// Host is the server's address.
func (s *server) Host() string { return "127.0.0.1" }

// Port is the server's TCP port.
func (s *server) Port() int { return s.port }

// Addr is Host and Port for net.Dial.
func (s *server) Addr() string { return net.JoinHostPort(s.Host(), strconv.Itoa(s.port)) }

// SocketDir holds the server's Unix socket.
func (s *server) SocketDir() string { return s.sock }

// DataDir is the server's data directory.
func (s *server) DataDir() string { return s.data }

// LogTail returns the last n lines of the server's log.
func (s *server) LogTail(n int) string { return tailFile(s.log, n) }

// tailWindow limits how much of a log's end is read.
const tailWindow = 256 << 10

func tailFile(f *os.File, n int) string {
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	buf := make([]byte, min(info.Size(), tailWindow))
	got, err := f.ReadAt(buf, info.Size()-int64(len(buf)))
	if err != nil && !errors.Is(err, io.EOF) {
		return ""
	}
	return lastLines(string(buf[:got]), n)
}
