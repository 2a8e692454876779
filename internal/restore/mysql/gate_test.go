package mysql_test

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

	"github.com/weirdb/weir/internal/archive"
	"github.com/weirdb/weir/internal/backup"
	dump "github.com/weirdb/weir/internal/backup/mysql"
	"github.com/weirdb/weir/internal/restore"
	load "github.com/weirdb/weir/internal/restore/mysql"
)

// gate is a storage that stops at the n-th object whose name contains a text:
// when it is created, or after the first half of it has been read. Things can
// then be done in the middle of a backup or restore, without luck.
type gate struct {
	archive.Storage
	part string

	mu      sync.Mutex
	n       int // how many pass before the gate closes, once
	reached chan struct{}
	open    chan struct{}
}

func newGate(t *testing.T, repo *archive.Repository, part string, n int) (*archive.Repository, *gate) {
	g := &gate{Storage: repo.Storage(), part: part, n: n, reached: make(chan struct{}), open: make(chan struct{})}
	t.Cleanup(g.release)
	return archive.NewRepository(g), g
}

// wait waits until somebody stands before the gate.
func (g *gate) wait(t *testing.T) {
	t.Helper()
	select {
	case <-g.reached:
	case <-time.After(patience):
		t.Fatalf("nobody came to %q", g.part)
	}
}

func (g *gate) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.open:
	default:
		close(g.open)
	}
}

// pass stops whoever is the one to stop.
func (g *gate) pass(ctx context.Context, name string) error {
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

func (g *gate) Create(ctx context.Context, name string) (archive.ObjectWriter, error) {
	if err := g.pass(ctx, name); err != nil {
		return nil, err
	}
	return g.Storage.Create(ctx, name)
}

func (g *gate) Open(ctx context.Context, name string, offset int64) (io.ReadCloser, error) {
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

// gateReader stops in the middle of an object.
type gateReader struct {
	io.ReadCloser
	g    *gate
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

// The environment of a child that backs up or restores and is killed.
const (
	envChild = "WEIR_TEST_CHILD" // "backup" or "restore"
	envDSN   = "WEIR_TEST_DSN"
	envRepo  = "WEIR_TEST_REPO"
	envGate  = "WEIR_TEST_GATE"
	envPass  = "WEIR_TEST_PASS"
)

// TestChild is no test: it is what runs in a child process, until it stands at
// its gate, says so and waits to be killed.
func TestChild(t *testing.T) {
	what := os.Getenv(envChild)
	if what == "" {
		t.Skip("only run as a child of other tests")
	}
	var n int
	if _, err := fmt.Sscan(os.Getenv(envPass), &n); err != nil {
		t.Fatal(err)
	}
	repo, g := newGate(t, openRepo(t, os.Getenv(envRepo)), os.Getenv(envGate), n)
	go func() {
		<-g.reached
		fmt.Println("at the gate")
	}()
	var err error
	switch what {
	case "backup":
		err = childBackup(t.Context(), repo)
	case "restore":
		err = childRestore(t.Context(), repo)
	}
	fmt.Println("ended without a gate:", err)
	os.Exit(3)
}

const childID = "killed"

func childBackup(ctx context.Context, repo *archive.Repository) error {
	w, err := archive.Create(ctx, repo, archive.Options{ID: childID, Parallel: 4})
	if err != nil {
		return err
	}
	_, err = dump.Run(ctx, backup.Options{DSN: os.Getenv(envDSN), ChunkBytes: backup.MinChunkBytes, Jobs: 2, Checksums: true}, w)
	return err
}

func childRestore(ctx context.Context, repo *archive.Repository) error {
	r, err := archive.Open(ctx, repo, archive.Latest, archive.ReadOptions{})
	if err != nil {
		return err
	}
	_, err = load.Run(ctx, restore.Options{DSN: os.Getenv(envDSN), Jobs: 2}, r)
	return err
}

// killAt runs a child up to its gate and kills it there.
func (r *rig) killAt(what, dsn, repo, part string, n int) {
	r.t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestChild$", "-test.v")
	cmd.Env = append(os.Environ(), envChild+"="+what, envDSN+"="+dsn, envRepo+"="+repo, envGate+"="+part, fmt.Sprintf("%s=%d", envPass, n))
	out, err := cmd.StdoutPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	var said strings.Builder
	buf := make([]byte, 4096)
	for !strings.Contains(said.String(), "at the gate") {
		n, err := out.Read(buf)
		said.Write(buf[:n])
		if err != nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			r.t.Fatalf("the child ended: %v\n%s", err, said.String())
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		r.t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
}
