package backupcmd

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/weirdb/weir/internal/backup/notice"
	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/cli/clitest"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
)

// process is weir in a process of its own, to be signalled.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	stderr bytes.Buffer
}

func start(t *testing.T, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: program.Command(t, args...)}
	p.cmd.Stderr = &p.stderr
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.cmd.Process.Kill() }) // if a test has failed before it ended
	return p
}

// end signals the process and returns its exit code, -1 for one that was killed.
func (p *process) end(s os.Signal) int {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatalf("it had ended before: %v\n%s", err, p.stderr.String())
	}
	_ = p.cmd.Wait() // the exit code says it
	return p.cmd.ProcessState.ExitCode()
}

// journalHolds reports whether the journal of a backup lists a chunk of rows.
func journalHolds(repo, id string) func() bool {
	return func() bool {
		text, err := os.ReadFile(filepath.Join(repo, id, "journal-0001.jsonl"))
		return err == nil && bytes.Contains(text, []byte("public.orders"))
	}
}

// slow makes a backup take a minute, so that it is killed while it works.
var slow = []string{"--chunk-size", "64kB", "--jobs", "1", "--rate-limit", "40kB", "--progress", "none"}

func TestBackupThatIsKilledIsResumed(t *testing.T) {
	s := newShop(t)
	for _, c := range []struct {
		signal os.Signal
		code   int
		says   string
		state  string
	}{
		{os.Kill, -1, "", "its writer died"},
		{syscall.SIGTERM, cli.ExitFailed, "--resume=", "it was stopped"},
	} {
		t.Run(c.signal.String(), func(t *testing.T) {
			repo := t.TempDir()
			p := start(t, append([]string{"backup", s.dsn("shop"), "--to", repo}, slow...)...)
			var id string
			testkit.Eventually(t, "a backup has begun", func() bool {
				found, err := filepath.Glob(filepath.Join(repo, "*-shop"))
				if err == nil && len(found) == 1 {
					id = filepath.Base(found[0])
				}
				return id != ""
			})
			testkit.Eventually(t, "a chunk of rows is complete", journalHolds(repo, id))
			if code := p.end(c.signal); code != c.code || !strings.Contains(p.stderr.String(), c.says) {
				t.Errorf("exit code %d, want %d; it says %s", code, c.code, p.stderr.String())
			}
			list := program.Must(t, "backup", "list", repo)
			if !strings.Contains(list, "incomplete") || !strings.Contains(list, c.state) {
				t.Errorf("list: %s", list)
			}
			program.Refuse(t, cli.ExitFailed, []string{"no complete backup"}, "restore", repo, "--to", s.dsn("postgres"), "--create")
			program.Refuse(t, cli.ExitShortfall, []string{"incomplete"}, "backup", "verify", repo, id)
			program.Refuse(t, cli.ExitFailed, []string{"no unfinished backup of other"}, "backup", s.dsn("postgres"), "--to", repo, "--label", "other", "--resume")

			out := clitest.Decode[notice.Outcome](t, program.Must(t, "backup", s.dsn("shop"), "--to", repo, "--resume", "--chunk-size", "64kB", "--json"))
			if out.ID != id || out.Rows != 2500 {
				t.Errorf("resumed %+v, want %s", out, id)
			}
			program.Must(t, "backup", "verify", repo, "--restore")
		})
	}
}

func TestRestoreThatIsKilledIsResumed(t *testing.T) {
	s := newShop(t)
	want := s.print("shop")
	repo := t.TempDir()
	program.Must(t, "backup", s.dsn("shop"), "--to", repo, "-q", "--chunk-size", "64kB")
	s.psql("postgres", "CREATE DATABASE copy")

	// A session locks a table that the restore makes, so that the restore waits for it until it
	// is killed.
	lock := exec.Command(filepath.Join(s.p.BinDir(), "psql"), "-X", "-q", "-d", s.p.DSN("copy"))
	in, err := lock.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := lock.Start(); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(in, `CREATE TABLE marker (i int); BEGIN\; CREATE TABLE orders (id int);`) // both at once: idle in transaction is behind them
	testkit.Eventually(t, "the lock is held", func() bool {
		return s.psql("copy", "SELECT count(*) FROM pg_stat_activity WHERE datname = 'copy' AND state = 'idle in transaction'") == "1"
	})
	s.psql("copy", "DROP TABLE marker")
	p := start(t, "restore", repo, "--to", s.dsn("copy"), "--progress", "none")
	testkit.Eventually(t, "the restore waits", func() bool {
		return s.psql("copy", "SELECT count(*) FROM pg_stat_activity WHERE datname = 'copy' AND wait_event_type = 'Lock'") == "1"
	})
	if code := p.end(os.Kill); code != -1 {
		t.Errorf("exit code %d", code)
	}
	fmt.Fprintln(in, "ROLLBACK;")
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if err := lock.Wait(); err != nil {
		t.Fatal(err)
	}
	// The session of the killed one ends when the server notices.
	testkit.Eventually(t, "its session has ended", func() bool {
		return s.psql("copy", "SELECT count(*) FROM pg_stat_activity WHERE datname = 'copy' AND pid <> pg_backend_pid() AND backend_type = 'client backend'") == "0"
	})
	program.Must(t, "restore", repo, "--to", s.dsn("copy"), "--resume", "--verify")
	if got := s.print("copy"); got != want {
		t.Errorf("copy:\n%s\nwant\n%s", got, want)
	}
}

func TestBackupOntoAFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting a small file system needs root")
	}
	s := newShop(t)
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=512k"); err != nil {
		t.Skipf("mount a tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	repo := filepath.Join(dir, "repo")
	again := []string{"backup", s.dsn("shop"), "--to", repo, "-q"}
	r := program.Call(t, "backup", s.dsn("shop"), "--to", repo, "--progress", "none")
	if r.Code != cli.ExitFailed || !strings.Contains(r.Stderr, "no space left") {
		t.Fatalf("backup onto a full disk: %s", r)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT, "size=64m"); err != nil {
		t.Fatal(err)
	}
	// Whether a chunk was complete before the disk was full is a matter of luck. If one was,
	// it is kept and --resume continues; otherwise nothing is left.
	kept, err := filepath.Glob(filepath.Join(repo, "*", "journal-*"))
	if err != nil {
		t.Fatal(err)
	}
	if said := strings.Contains(r.Stderr, "--resume"); said != (len(kept) > 0) {
		t.Errorf("there is %q, and weir said: %s", kept, r)
	}
	if len(kept) > 0 {
		again = append(again, "--resume")
	} else if err := filepath.WalkDir(repo, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			t.Errorf("nothing was kept, and there is %s", path)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	program.Must(t, again...)
	program.Must(t, "backup", "verify", repo)
}

func TestTwoBackupsAtOnce(t *testing.T) {
	s := newShop(t)
	repo := t.TempDir()
	var results [4]clitest.Result
	var wg sync.WaitGroup
	for i := range results {
		args := []string{"backup", s.dsn("shop"), "--to", repo, "--progress", "none"}
		if i >= 2 {
			args = append(args, "--id", "same")
		}
		wg.Go(func() { results[i] = program.Call(t, args...) })
	}
	wg.Wait()
	for _, r := range results[:2] {
		if r.Code != cli.ExitFine {
			t.Errorf("with an id of its own: %s", r)
		}
	}
	if a, b := results[2], results[3]; a.Code+b.Code != cli.ExitFailed || !regexp.MustCompile(`another process writes|exists already`).MatchString(a.Stderr+b.Stderr) {
		t.Errorf("with one id for both: %s\n%s", a, b)
	}
	c := clitest.Decode[catalogue](t, program.Must(t, "backup", "list", repo, "--json"))
	if len(c.Backups) != 3 {
		t.Fatalf("%d backups", len(c.Backups))
	}
	for _, b := range c.Backups {
		if b.State != "complete" {
			t.Errorf("%s is %s", b.ID, b.State)
		}
		program.Must(t, "backup", "verify", repo, b.ID)
	}
}

func TestWhatIsDamagedIsNamed(t *testing.T) {
	s := newShop(t)
	repo := t.TempDir()
	program.Must(t, "backup", s.dsn("shop"), "--to", repo, "--id", "b", "-q", "--chunk-size", "256kB")
	chunks, err := filepath.Glob(filepath.Join(repo, "b/db/shop/data/public.orders/*"))
	if err != nil || len(chunks) < 2 {
		t.Fatal(chunks, err)
	}
	change := func(name string, f func([]byte) []byte) (undo func()) {
		t.Helper()
		old, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		write := func(b []byte) {
			if err := os.WriteFile(name, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write(f(bytes.Clone(old)))
		return func() { write(old) }
	}
	const chunk = "db/shop/data/public.orders/0001.copy"
	for _, c := range []struct {
		name, says string
		change     func([]byte) []byte
	}{
		{"corrupt", "corrupt", func(b []byte) []byte { b[len(b)/2] ^= 1; return b }},
		{"truncated", "truncated", func(b []byte) []byte { return b[:len(b)-10] }},
		{"swapped", "another chunk", func([]byte) []byte {
			other, err := os.ReadFile(chunks[1])
			if err != nil {
				t.Fatal(err)
			}
			return other
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			defer change(chunks[0], c.change)()
			program.Refuse(t, cli.ExitShortfall, []string{chunk, c.says}, "backup", "verify", repo, "b")
			program.Refuse(t, cli.ExitShortfall, []string{chunk, c.says}, "backup", "cat", repo, "b", chunk)
			r := program.Call(t, "restore", repo, "b", "--to", s.dsn("postgres"), "--create", "--rename", "shop=x_"+c.name,
				"--failed-sql", filepath.Join(t.TempDir(), "left.sql"))
			if r.Code != cli.ExitFailed || !strings.Contains(r.Stderr, c.says) || strings.Count(r.Stderr, "chunk "+chunk) != 1 {
				t.Errorf("restore, which has to name the chunk once: %s", r)
			}
		})
	}
	t.Run("stopped at", func(t *testing.T) {
		defer change(chunks[0], func(b []byte) []byte { return b[:10] })()
		program.Refuse(t, cli.ExitFailed, []string{chunk, "the restore is unfinished; --resume continues it"},
			"restore", repo, "b", "--to", s.dsn("postgres"), "--create", "--rename", "shop=x_stopped", "--keep-going=false")
	})
	t.Run("missing", func(t *testing.T) {
		if err := os.Rename(chunks[0], chunks[0]+".away"); err != nil {
			t.Fatal(err)
		}
		program.Refuse(t, cli.ExitShortfall, []string{chunk, "missing", "unknown"}, "backup", "verify", repo, "b")
		if err := os.Rename(chunks[0]+".away", chunks[0]); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("manifest edited", func(t *testing.T) {
		manifest := filepath.Join(repo, "b/manifest.json")
		defer change(manifest, func(b []byte) []byte { return bytes.Replace(b, []byte(`"rows": 2000`), []byte(`"rows": 1999`), 1) })()
		program.Refuse(t, cli.ExitShortfall, []string{"changed after it was written"}, "backup", "verify", repo, "b")
		program.Refuse(t, cli.ExitFailed, []string{"changed after it was written", "another copy"}, "restore", repo, "b", "--to", s.dsn("postgres"), "--create")
	})
	t.Run("manifest cut", func(t *testing.T) {
		defer change(filepath.Join(repo, "b/manifest.json"), func(b []byte) []byte { return b[:40] })()
		if list := program.Must(t, "backup", "list", repo); !strings.Contains(list, "damaged") {
			t.Errorf("list: %s", list)
		}
		program.Refuse(t, cli.ExitShortfall, []string{"b is damaged"}, "backup", "prune", repo, "--keep-last", "1")
	})
	program.Must(t, "backup", "verify", repo)
}

func TestBackupOfAServerThatDeniesOrIsGone(t *testing.T) {
	s := newOwnShop(t, lab.PostgresConfig{Auth: lab.SCRAM, Password: "right"})
	repo := t.TempDir()
	program.Refuse(t, cli.ExitFailed, []string{"password authentication failed"}, "backup", strings.Replace(s.dsn("shop"), "right", "wrong", 1), "--to", repo)
	program.Refuse(t, cli.ExitFailed, []string{`database "nothing" does not exist`}, "backup", s.dsn("nothing"), "--to", repo)
	s.psql("shop", "CREATE ROLE nobody LOGIN PASSWORD 'nobody'")
	program.Refuse(t, cli.ExitFailed, []string{"permission denied"}, "backup", strings.Replace(strings.Replace(s.dsn("shop"), "right", "nobody", 1), "//postgres:", "//nobody:", 1), "--to", repo)
	relay := labtest.Relay(t, fmt.Sprintf("%s:%d", s.p.Host(), s.p.Port()))
	dsn := strings.Replace(s.dsn("shop"), fmt.Sprintf("%s:%d", s.p.Host(), s.p.Port()), relay.Addr(), 1)
	p := start(t, append([]string{"backup", dsn, "--to", repo, "--id", "cut"}, slow...)...)
	testkit.Eventually(t, "a chunk of rows is complete", journalHolds(repo, "cut"))
	relay.Cut()
	if err := p.cmd.Wait(); err == nil || p.cmd.ProcessState.ExitCode() != cli.ExitFailed || !strings.Contains(p.stderr.String(), "--resume=cut") {
		t.Errorf("cut off: %v, %s", err, p.stderr.String())
	}
	program.Must(t, "backup", s.dsn("shop"), "--to", repo, "--resume=cut", "-q", "--chunk-size", "64kB")
	program.Must(t, "backup", "verify", repo, "cut", "--restore")
	if text := program.Must(t, "backup", "list", repo); strings.Contains(text, "right") {
		t.Errorf("it tells the password: %s", text)
	}
}
