package wal

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/bulk/postgres/pgtest"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/internal/wire/pgrepl"
)

// envFetch makes the test binary a restore_command: what it is called with is the
// place, the system, the file and the path.
const envFetch = "WEIR_TEST_FETCH"

func TestMain(m *testing.M) {
	if os.Getenv(envFetch) != "" {
		os.Exit(fetchMain(os.Args[1:]))
	}
	code := m.Run()
	if recovering != nil {
		if err := recovering.Discard(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// fetchMain is a restore_command as `weir wal-fetch` is one.
func fetchMain(args []string) int {
	storage, err := archive.NewLocal(args[0])
	if err != nil {
		return 126
	}
	f, err := os.Create(args[3])
	if err != nil {
		return 126
	}
	err = Fetch(context.Background(), storage, args[1], args[2], archive.ReadOptions{Passphrase: os.Getenv("WEIR_TEST_PASSPHRASE")}, f)
	closing := f.Close()
	switch {
	case errors.Is(err, archive.ErrNotExist):
		return 1
	case err != nil || closing != nil:
		fmt.Fprintln(os.Stderr, err, closing)
		return 126
	}
	return 0
}

// rig is a source server and an archive that a server's user can read.
type rig struct {
	t       *testing.T
	p       *lab.Postgres
	dir     string
	storage *archive.Local
	repo    *archive.Repository
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, p: labtest.Postgres(t, lab.PostgresConfig{
		Durability: lab.Fast, SharedBuffers: "16MB", Preload: []string{},
		Settings: map[string]string{
			"wal_level": "replica", "max_wal_senders": "8", "max_replication_slots": "5", "autovacuum": "off", "synchronous_commit": "on", "wal_keep_size": "0",
			"min_wal_size": "32MB", "max_wal_size": "64MB", "checkpoint_timeout": "1d",
		},
	})}
	// Not t.TempDir, which other users cannot enter.
	dir, err := os.MkdirTemp("/tmp", "weir-wal-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	r.dir = filepath.Join(dir, "archive")
	if r.storage, err = archive.NewLocal(r.dir); err != nil {
		t.Fatal(err)
	}
	r.repo = archive.NewRepository(r.storage)
	r.psql("CREATE TABLE marks (i int PRIMARY KEY, at timestamptz DEFAULT clock_timestamp()); INSERT INTO marks VALUES (0)")
	return r
}

func psql(t *testing.T, p *lab.Postgres, script string) string {
	t.Helper()
	out, err := pgtest.Psql(p, "postgres", script)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (r *rig) psql(script string) string {
	r.t.Helper()
	return psql(r.t, r.p, script)
}

func (r *rig) dsn() string { return r.p.DSN("postgres") }

// base takes a base backup.
func (r *rig) base(opts BaseOptions, a archive.Options) *archive.Manifest {
	r.t.Helper()
	a.Label = "base"
	w, err := archive.Create(r.t.Context(), r.repo, a)
	if err != nil {
		r.t.Fatal(err)
	}
	opts.DSN = r.dsn()
	m, err := TakeBase(r.t.Context(), opts, w)
	if err != nil {
		r.t.Fatal(err)
	}
	return m
}

// catchUp archives all log that the server has.
func (r *rig) catchUp(opts ReceiveOptions) error {
	opts.DSN, opts.UntilNow, opts.Say = r.dsn(), true, r.t.Logf
	return Receive(r.t.Context(), r.storage, opts)
}

func (r *rig) mustCatchUp(opts ReceiveOptions) {
	r.t.Helper()
	if err := r.catchUp(opts); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) open(id string, keys archive.ReadOptions) *archive.Reader {
	r.t.Helper()
	in, err := archive.Open(r.t.Context(), r.repo, id, keys)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		if err := in.Close(); err != nil {
			r.t.Error(err)
		}
	})
	return in
}

// recovering is the server that runs on restored data directories, one after the other.
var recovering *lab.Postgres

// restored starts a server on the data directory that a base backup makes. The server that it
// returned before ends.
func (r *rig) restored(id string, target Target, keys archive.ReadOptions) (*lab.Postgres, error) {
	r.t.Helper()
	if recovering == nil {
		ctx, cancel := context.WithTimeout(r.t.Context(), labtest.Patience)
		defer cancel()
		p, err := lab.StartPostgres(ctx, lab.PostgresConfig{
			Durability: lab.Fast, SharedBuffers: "16MB", Preload: []string{}, BinDir: r.p.BinDir(),
			Settings: map[string]string{"max_wal_senders": "8", "wal_level": "replica", "autovacuum": "off", "synchronous_commit": "on"},
		})
		if err != nil {
			r.t.Fatal(err)
		}
		recovering = p
	}
	p := recovering
	p.Kill()
	var st syscall.Stat_t
	if err := syscall.Stat(p.DataDir(), &st); err != nil {
		r.t.Fatal(err)
	}
	entries, err := os.ReadDir(p.DataDir())
	if err != nil {
		r.t.Fatal(err)
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(p.DataDir(), e.Name())); err != nil {
			r.t.Fatal(err)
		}
	}
	in := r.open(id, keys)
	opts := DirOptions{Dir: p.DataDir(), UID: int(st.Uid), GID: int(st.Gid), Target: target, RestoreCommand: r.fetcher(int(st.Uid), in.Manifest().Server.SystemID, keys.Passphrase)}
	if err := RestoreDir(r.t.Context(), in, opts); err != nil {
		return p, err
	}
	ctx, cancel := context.WithTimeout(r.t.Context(), labtest.Patience)
	defer cancel()
	if err := p.Restart(ctx); err != nil {
		return p, err
	}
	// A server that cannot reach its target ends, and may have let sessions in before.
	ended := false
	testkit.Eventually(r.t, "the recovery has ended", func() bool {
		select {
		case <-p.Done():
			ended = true
			return true
		default:
		}
		state, err := pgtest.Psql(p, "postgres", "SELECT pg_is_in_recovery()")
		return err == nil && state == "f"
	})
	if ended {
		return p, errors.New("the server ended during its recovery")
	}
	return p, nil
}

// fetcher puts a copy of this program where a server's user can run it, gives the
// user the archive, and returns the restore_command.
func (r *rig) fetcher(uid int, system, passphrase string) string {
	r.t.Helper()
	program := filepath.Join(filepath.Dir(r.dir), "fetch")
	if _, err := os.Stat(program); errors.Is(err, fs.ErrNotExist) {
		if err := copyFile(program, os.Args[0]); err != nil {
			r.t.Fatal(err)
		}
	}
	err := filepath.WalkDir(r.dir, func(name string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Chown(name, uid, -1)
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return fmt.Sprintf(`%s=1 WEIR_TEST_PASSPHRASE='%s' %s %s %s "%%f" "%%p"`, envFetch, passphrase, program, r.dir, system)
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Chmod(0o755), out.Close())
}

// receiving runs a receiver until stop is called, which returns its error.
type receiving struct {
	cancel context.CancelFunc
	done   chan error

	mu     sync.Mutex
	status Status
}

func (r *rig) receive(opts ReceiveOptions) *receiving {
	ctx, cancel := context.WithCancel(r.t.Context())
	c := &receiving{cancel: cancel, done: make(chan error, 1)}
	if opts.DSN == "" {
		opts.DSN = r.dsn()
	}
	opts.FlushInterval = 20 * time.Millisecond
	opts.Say = func(format string, args ...any) { r.t.Logf(format, args...) }
	opts.Status = func(s Status) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.status = s
	}
	go func() { c.done <- Receive(ctx, r.storage, opts) }()
	r.t.Cleanup(cancel)
	return c
}

func (c *receiving) now() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status
}

func (c *receiving) stop() error {
	c.cancel()
	return <-c.done
}

// position is where the server's log ends.
func (r *rig) position() pgrepl.LSN {
	r.t.Helper()
	at, err := pgrepl.ParseLSN(r.psql("SELECT pg_current_wal_flush_lsn()"))
	if err != nil {
		r.t.Fatal(err)
	}
	return at
}

// chownLike gives a file the owner of another one.
func (r *rig) chownLike(name string, like fs.FileInfo) {
	r.t.Helper()
	st := like.Sys().(*syscall.Stat_t)
	if err := os.Chown(name, int(st.Uid), int(st.Gid)); err != nil {
		r.t.Fatal(err)
	}
}

func tarHeader(name string, kind byte) *tar.Header { return &tar.Header{Name: name, Typeflag: kind} }
