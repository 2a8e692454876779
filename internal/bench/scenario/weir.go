package scenario

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/google/pprof/profile"

	"github.com/weirdb/weir/internal/bench"
	"github.com/weirdb/weir/internal/measure"
)

// weirProcess is a proxy in a process of its own, so that its CPU time and
// memory are not mixed with those of the load generator.
type weirProcess struct {
	cmd    *exec.Cmd
	admin  string
	dsn    string // how clients get to the server's database through it
	stderr bytes.Buffer
	done   chan struct{}
	err    error // how it ended; read after done
}

// startWeir runs this program's own proxy verb against a server of an engine.
func startWeir(ctx context.Context, binary string, e *engine, serverDSN string, args ...string) (*weirProcess, error) {
	listen, err := freePort()
	if err != nil {
		return nil, err
	}
	admin, err := freePort()
	if err != nil {
		return nil, err
	}
	w := &weirProcess{admin: admin, done: make(chan struct{})}
	if w.dsn, err = through(serverDSN, listen); err != nil {
		return nil, err
	}
	flags := append([]string{"proxy", e.listenFlag, listen, "--admin", admin, "--log-level", "warn"}, args...)
	w.cmd = exec.Command(binary, flags...)
	// The DSN may hold a password, and arguments are for all to see. What else
	// is set for weir in the environment is not meant for this one.
	w.cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "WEIR_") }), e.serverEnv+"="+serverDSN)
	w.cmd.Stderr = &w.stderr
	// A group of its own, so that Ctrl-C in a terminal reaches only us and we
	// decide the order in which things end.
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := w.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start weir proxy: %w", err)
	}
	go func() {
		w.err = w.cmd.Wait()
		close(w.done)
	}()
	if err := w.ready(ctx); err != nil {
		_ = w.cmd.Process.Kill()
		<-w.done
		return nil, fmt.Errorf("start weir proxy: %w: %s", err, bytes.TrimSpace(w.stderr.Bytes()))
	}
	return w, nil
}

func (w *weirProcess) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
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
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+w.admin+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		_ = resp.Body.Close()
		return nil, fmt.Errorf("GET %s: %s", path, resp.Status)
	}
	return resp.Body, nil
}

// groups reads what the write lanes have done since the start.
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
		return fmt.Errorf("weir proxy ended by itself: %v: %s", w.err, bytes.TrimSpace(w.stderr.Bytes()))
	default:
	}
	if err := w.cmd.Process.Signal(os.Interrupt); err != nil {
		return fmt.Errorf("stop weir proxy: %w", err)
	}
	select {
	case <-w.done:
		if w.err != nil {
			return fmt.Errorf("stop weir proxy: %w: %s", w.err, bytes.TrimSpace(w.stderr.Bytes()))
		}
		return nil
	case <-time.After(15 * time.Second):
		_ = w.cmd.Process.Kill()
		<-w.done
		return fmt.Errorf("weir proxy did not stop within 15 s: %s", bytes.TrimSpace(w.stderr.Bytes()))
	}
}

// freePort returns a loopback address that was free a moment ago.
func freePort() (string, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	defer ln.Close()
	return ln.Addr().String(), nil
}
