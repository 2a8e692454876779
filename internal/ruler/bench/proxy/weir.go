package proxybench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/pprof/profile"

	"github.com/weirdb/weir/internal/admin"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
)

// weirProcess is a proxy in its own process, so that its CPU time and memory are separate from
// the load generator's.
type weirProcess struct {
	cmd   *exec.Cmd
	admin string // URL of the admin server
	dsn   string // of the server's database, through the proxy
	log   weirLog
	done  chan struct{}
	err   error // how it ended; read after done
}

// startWeir runs this program's proxy verb against a server of an engine. The system chooses
// the port, and the proxy logs it: a port found free beforehand could be taken by then.
func startWeir(ctx context.Context, binary string, e *engine, serverDSN string, args ...string) (*weirProcess, error) {
	w := &weirProcess{done: make(chan struct{})}
	const anyPort = "127.0.0.1:0"
	// The lab's servers trust this machine, and so does the load.
	flags := append([]string{"proxy", e.listenFlag, anyPort, "--admin", anyPort, "--log-format", "json", "--trust-loopback"}, args...)
	w.cmd = exec.Command(binary, flags...)
	// The DSN may contain a password, and arguments are visible to all users. Other WEIR_
	// variables of the environment are not meant for this process.
	w.cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "WEIR_") }), e.serverEnv+"="+serverDSN)
	stderr, err := w.cmd.StderrPipe()
	if err != nil {
		return nil, fmt.Errorf("start weir proxy: %w", err)
	}
	if err := lab.StartCommand(w.cmd); err != nil {
		return nil, fmt.Errorf("start weir proxy: %w", err)
	}
	listens := make(chan weirAddress, 1)
	go func() {
		w.log.follow(stderr, listens)
		w.err = w.cmd.Wait()
		close(w.done)
	}()
	if err := w.ready(ctx, serverDSN, listens); err != nil {
		_ = w.cmd.Process.Kill()
		<-w.done
		return nil, fmt.Errorf("start weir proxy: %w: %s", err, w.log.text())
	}
	return w, nil
}

// weirAddress is the entry of a proxy's log with its address.
type weirAddress struct {
	Message string `json:"msg"`
	Address string `json:"address"`
	Admin   string `json:"admin"`
}

// weirLog keeps the log of a proxy. It is safe for concurrent use.
type weirLog struct {
	mu   sync.Mutex
	said bytes.Buffer // guarded by mu
}

// follow reads the log to its end. It sends the proxy's address once, if the proxy logs it.
func (l *weirLog) follow(r io.Reader, listens chan<- weirAddress) {
	for lines := bufio.NewReader(r); ; {
		line, err := lines.ReadBytes('\n')
		l.mu.Lock()
		l.said.Write(line)
		l.mu.Unlock()
		var entry weirAddress
		if listens != nil && json.Unmarshal(line, &entry) == nil && entry.Message == "weir proxy listens" {
			listens <- entry
			listens = nil
		}
		if err != nil {
			return // the process has ended
		}
	}
}

func (l *weirLog) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(bytes.TrimSpace(l.said.Bytes()))
}

// patience is how long a proxy may take to start, and to end.
const patience = time.Minute

// ready waits until the proxy serves, and finds out its addresses.
func (w *weirProcess) ready(ctx context.Context, serverDSN string, listens <-chan weirAddress) (err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case at := <-listens:
		w.admin = strings.TrimSuffix(at.Admin, "/")
		if w.dsn, err = through(serverDSN, at.Address); err != nil {
			return err
		}
	case <-w.done:
		return fmt.Errorf("it ended: %v", w.err)
	case <-ctx.Done():
		return fmt.Errorf("wait until it listens: %w", ctx.Err())
	}
	for {
		resp, err := w.get(ctx, "/readyz")
		if err == nil {
			return resp.Close()
		}
		select {
		case <-w.done:
			return fmt.Errorf("it ended: %v", w.err)
		case <-ctx.Done():
			return err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (w *weirProcess) get(ctx context.Context, path string) (io.ReadCloser, error) {
	return admin.Get(ctx, w.admin+path)
}

// groups reads the counters of the write lanes since the start.
func (w *weirProcess) groups(ctx context.Context) (bench.Groups, error) {
	body, err := w.get(ctx, "/snapshot.json")
	if err != nil {
		return bench.Groups{}, fmt.Errorf("read weir's counters: %w", err)
	}
	defer body.Close()
	var snap struct {
		Lanes []struct{ Groups, Members int64 }
	}
	if err := json.NewDecoder(body).Decode(&snap); err != nil {
		return bench.Groups{}, fmt.Errorf("read weir's counters: %w", err)
	}
	var g bench.Groups
	for _, l := range snap.Lanes {
		g.Flushes += l.Groups
		g.Items += l.Members
	}
	return g, nil
}

// profile takes a CPU profile of the proxy.
func (w *weirProcess) profile(ctx context.Context, d time.Duration) (*profile.Profile, error) {
	body, err := w.get(ctx, "/debug/pprof/profile?seconds="+strconv.Itoa(max(1, int(d.Seconds()))))
	if err != nil {
		return nil, fmt.Errorf("profile weir: %w", err)
	}
	defer body.Close()
	return profile.Parse(body)
}

func (w *weirProcess) usage() (measure.Usage, error) { return measure.Process(w.cmd.Process.Pid) }

// stop asks the proxy to end and waits for it.
func (w *weirProcess) stop() error {
	select {
	case <-w.done:
		return fmt.Errorf("weir proxy ended by itself: %v: %s", w.err, w.log.text())
	default:
	}
	if err := w.cmd.Process.Signal(os.Interrupt); err != nil {
		return fmt.Errorf("stop weir proxy: %w", err)
	}
	select {
	case <-w.done:
		if w.err != nil {
			return fmt.Errorf("stop weir proxy: %w: %s", w.err, w.log.text())
		}
		return nil
	case <-time.After(patience):
		_ = w.cmd.Process.Kill()
		<-w.done
		return fmt.Errorf("weir proxy did not stop within %v: %s", patience, w.log.text())
	}
}
