// Package archivetest stops backups and restores at a chosen point, in this process or in a
// child process, which it then kills.
package archivetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/backup/archive"
)

// patience limits every wait for something that must happen.
const patience = 4 * time.Minute

// Gate is a storage that blocks at the n-th object whose name contains a text: when it is
// created, or after the first half of it was read. This makes it possible to act in the middle
// of a backup or restore deterministically.
type Gate struct {
	archive.Storage
	part string

	mu      sync.Mutex
	n       int // number of objects that pass before the gate blocks, once
	reached chan struct{}
	open    chan struct{}
}

// NewGate returns the repository behind a gate at the n-th object, counted from 0, whose name
// contains part. It opens at the end of the test at the latest.
func NewGate(t testing.TB, repo *archive.Repository, part string, n int) (*archive.Repository, *Gate) {
	g := &Gate{Storage: repo.Storage(), part: part, n: n, reached: make(chan struct{}), open: make(chan struct{})}
	t.Cleanup(g.Release)
	return archive.NewRepository(g), g
}

// Wait waits until a run has reached the gate.
func (g *Gate) Wait(t testing.TB) {
	t.Helper()
	select {
	case <-g.reached:
	case <-time.After(patience):
		t.Fatalf("no object %q was reached", g.part)
	}
}

// Release opens the gate.
func (g *Gate) Release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.open:
	default:
		close(g.open)
	}
}

// pass blocks at the chosen object.
func (g *Gate) pass(ctx context.Context, name string) error {
	if !strings.Contains(name, g.part) {
		return nil
	}
	g.mu.Lock()
	g.n--
	mine := g.n == -1
	g.mu.Unlock()
	if !mine {
		return nil
	}
	close(g.reached)
	select {
	case <-g.open:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Create implements archive.Storage.
func (g *Gate) Create(ctx context.Context, name string) (archive.ObjectWriter, error) {
	if err := g.pass(ctx, name); err != nil {
		return nil, err
	}
	return g.Storage.Create(ctx, name)
}

// Open implements archive.Storage.
func (g *Gate) Open(ctx context.Context, name string, offset int64) (io.ReadCloser, error) {
	in, err := g.Storage.Open(ctx, name, offset)
	if err != nil || !strings.Contains(name, g.part) {
		return in, err
	}
	info, err := g.Storage.Stat(ctx, name)
	if err != nil {
		return nil, errors.Join(err, in.Close())
	}
	return &gateReader{ReadCloser: in, g: g, ctx: ctx, name: name, half: info.Size / 2}, nil
}

// gateReader blocks in the middle of an object.
type gateReader struct {
	io.ReadCloser
	g    *Gate
	ctx  context.Context
	name string
	half int64
}

func (r *gateReader) Read(p []byte) (int, error) {
	if r.half > 0 {
		p = p[:min(int64(len(p)), r.half)]
	}
	n, err := r.ReadCloser.Read(p)
	if r.half > 0 {
		if r.half -= int64(n); r.half <= 0 {
			if err := r.g.pass(r.ctx, r.name); err != nil {
				return n, err
			}
		}
	}
	return n, err
}

// The environment of a child process that is killed at its gate.
const (
	envWork = "WEIR_TEST_CHILD"
	envDSN  = "WEIR_TEST_DSN"
	envRepo = "WEIR_TEST_REPO"
	envGate = "WEIR_TEST_GATE"
	envPass = "WEIR_TEST_PASS"
)

// KilledID is the id of the backup that a killed child began.
const KilledID = "killed"

// Work is what a child process does until it blocks at its gate.
type Work func(ctx context.Context, dsn string, repo *archive.Repository) error

// RunChild is the body of a test TestChild: in a child process that [KillAt] started it does
// the work of that name, reports that it has reached its gate and waits to be killed. Otherwise
// it skips the test.
func RunChild(t *testing.T, work map[string]Work) {
	name := os.Getenv(envWork)
	if name == "" {
		t.Skip("only run as a child of other tests")
	}
	var n int
	if _, err := fmt.Sscan(os.Getenv(envPass), &n); err != nil {
		t.Fatal(err)
	}
	plain, err := archive.OpenRepository(t.Context(), os.Getenv(envRepo))
	if err != nil {
		t.Fatal(err)
	}
	repo, g := NewGate(t, plain, os.Getenv(envGate), n)
	go func() {
		<-g.reached
		fmt.Println(atGate)
	}()
	fmt.Println("ended without a gate:", work[name](t.Context(), os.Getenv(envDSN), repo))
	os.Exit(3)
}

const atGate = "at the gate"

// KillAt runs the test binary's TestChild up to its gate and kills it there.
func KillAt(t testing.TB, work, dsn, repo, part string, n int) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestChild$", "-test.v")
	cmd.Env = append(os.Environ(), envWork+"="+work, envDSN+"="+dsn, envRepo+"="+repo, envGate+"="+part, fmt.Sprintf("%s=%d", envPass, n))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	buf := make([]byte, 4096)
	for !strings.Contains(said.String(), atGate) {
		n, err := out.Read(buf)
		said.Write(buf[:n])
		if err != nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			t.Fatalf("the child ended: %v\n%s", err, said.String())
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
}
