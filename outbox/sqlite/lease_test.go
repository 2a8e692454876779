package sqlite

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/weirdb/weir/outbox"
)

// testPatience bounds every wait. Only a defect reaches it.
const testPatience = 2 * time.Minute

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func migrated(t *testing.T, path string) *Store {
	t.Helper()
	s := open(t, path, Options{})
	_, err := s.Migrate(t.Context(), outbox.Plan{})
	check(t, err)
	return s
}

func leadIt(t *testing.T, s *Store) outbox.Lease {
	t.Helper()
	l, err := s.Lead(t.Context(), 0)
	check(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// leaderEnv makes the test binary a process that leads the outbox at that path
// until it is killed.
const leaderEnv = "WEIR_TEST_SQLITE_LEADER"

func TestMain(m *testing.M) {
	if path := os.Getenv(leaderEnv); path != "" {
		if err := leadForever(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

func leadForever(path string) error {
	s, err := Open(context.Background(), path, Options{})
	if err != nil {
		return err
	}
	if _, err := s.Lead(context.Background(), 0); err != nil {
		return err
	}
	fmt.Println("leading")
	select {}
}

// TestLeadAfterKill: the leadership ends with its process, whose end is SIGKILL.
func TestLeadAfterKill(t *testing.T) {
	path := filepath.Join(t.TempDir(), "app.db")
	s := migrated(t, path)
	leader := exec.CommandContext(t.Context(), os.Args[0])
	leader.Env = append(os.Environ(), leaderEnv+"="+path)
	leader.Stderr = os.Stderr
	out, err := leader.StdoutPipe()
	check(t, err)
	check(t, leader.Start())
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal("the other process does not lead:", err)
	}
	if _, err := s.Lead(t.Context(), 0); !errors.Is(err, outbox.ErrHeld) {
		t.Errorf("lead beside another process: %v, want %v", err, outbox.ErrHeld)
	}
	check(t, leader.Process.Kill())
	_ = leader.Wait() // says that it was killed
	leadIt(t, s)
}

// TestAckWaitsForProducer: in one program, a producer holds the right to write
// while the relay acknowledges, reads and is asked for its status.
func TestAckWaitsForProducer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "app.db")
	s := migrated(t, path)
	l := leadIt(t, s)
	pool := producers(t, path)
	pool.SetMaxOpenConns(1)
	check(t, outbox.Enqueue(t.Context(), outbox.SQLite(pool), outbox.Message{Topic: "t"}, outbox.Message{Topic: "t"}))
	tx, err := pool.BeginTx(t.Context(), nil)
	check(t, err)
	check(t, outbox.Enqueue(t.Context(), outbox.SQLite(tx), outbox.Message{Topic: "late"}))

	// Nothing that reads waits.
	page, err := l.Read(t.Context(), outbox.ReadRequest{Limit: 10, MaxBytes: 1000})
	check(t, err)
	if len(page.Rows) != 2 {
		t.Fatalf("%d rows, want 2", len(page.Rows))
	}
	status, err := s.Status(t.Context())
	check(t, err)
	if status.Pending != 2 {
		t.Errorf("status %+v, want 2 pending", status)
	}
	// A write waits, but no longer than its context.
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := l.Ack(ctx, outbox.Refs(page.Rows[:1])); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("acknowledge while another writes: %v, want the end of the context", err)
	}
	done := make(chan error, 1)
	refs := outbox.Refs(page.Rows)
	go func() { done <- l.Ack(t.Context(), refs) }()
	check(t, tx.Commit())
	select {
	case err := <-done:
		check(t, err)
	case <-time.After(testPatience):
		t.Fatal("the acknowledgement never ends")
	}
	page, err = l.Read(t.Context(), outbox.ReadRequest{Limit: 10, MaxBytes: 1000})
	check(t, err)
	if len(page.Rows) != 1 || page.Rows[0].Topic != "late" {
		t.Errorf("rows %+v, want the late one", page.Rows)
	}
}

// TestBusyTimeout: waiting for the right to write ends with what Options say.
func TestBusyTimeout(t *testing.T) {
	path := filepath.Join(t.TempDir(), "app.db")
	l := leadIt(t, migrated(t, path))
	hasty := open(t, path, Options{BusyTimeout: time.Millisecond})
	pool := producers(t, path)
	tx, err := pool.BeginTx(t.Context(), nil)
	check(t, err)
	check(t, outbox.Enqueue(t.Context(), outbox.SQLite(tx), outbox.Message{Topic: "t"}))
	if _, _, err := hasty.Promote(t.Context(), 1); !isBusy(err) {
		t.Errorf("promote while another writes: %v, want it to be busy", err)
	}
	check(t, tx.Rollback())
	check(t, l.Ack(t.Context(), []outbox.Ref{{Seq: 1}}))
}

// TestNumbersAreGivenBack: what the order of numbers rests on.
func TestNumbersAreGivenBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "app.db")
	l := leadIt(t, migrated(t, path))
	pool := producers(t, path)
	tx, err := pool.BeginTx(t.Context(), nil)
	check(t, err)
	check(t, outbox.Enqueue(t.Context(), outbox.SQLite(tx), outbox.Message{Topic: "lost"}))
	check(t, tx.Rollback())
	check(t, outbox.Enqueue(t.Context(), outbox.SQLite(pool), outbox.Message{Topic: "kept"}))
	page, err := l.Read(t.Context(), outbox.ReadRequest{Limit: 10, MaxBytes: 1000})
	check(t, err)
	if len(page.Rows) != 1 || page.Rows[0].Seq != 1 {
		t.Fatalf("rows %+v, want one with number 1", page.Rows)
	}
	// Numbers of rows that were delivered do not come again.
	check(t, l.Ack(t.Context(), outbox.Refs(page.Rows)))
	check(t, outbox.Enqueue(t.Context(), outbox.SQLite(pool), outbox.Message{Topic: "next"}))
	seqs, err := l.Pending(t.Context(), 0, 1<<60, 10)
	check(t, err)
	if !slices.Equal(seqs, []int64{2}) {
		t.Errorf("numbers %v, want 2", seqs)
	}
}

func TestOpenRefuses(t *testing.T) {
	for _, path := range []string{"", ":memory:", "file::memory:?cache=shared"} {
		if _, err := Open(t.Context(), path, Options{}); err == nil {
			t.Errorf("%q can be opened", path)
		}
	}
	if _, err := Open(t.Context(), filepath.Join(t.TempDir(), "app.db"), Options{Table: "other.outbox"}); err == nil {
		t.Error("a table of another schema can be opened")
	}
	text := filepath.Join(t.TempDir(), "text")
	check(t, os.WriteFile(text, []byte("this is no database, as anybody can see who looks at its first bytes"), 0o600))
	if _, err := Open(t.Context(), text, Options{}); err == nil {
		t.Error("a text file can be opened")
	}
	dir := t.TempDir()
	for path, want := range map[string]error{filepath.Join(dir, "gone", "app.db"): fs.ErrNotExist, dir: syscall.EISDIR} {
		if _, err := Open(t.Context(), path, Options{}); !errors.Is(err, want) {
			t.Errorf("open %s: %v, want %v", path, err, want)
		}
	}
}

// TestAnotherFileIsFollowed checks that a relay whose file was replaced by another one follows
// the new file, and does not keep others from leading while it still has the removed one open.
func TestAnotherFileIsFollowed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "app.db")
	s := migrated(t, path)
	l := leadIt(t, s)
	for _, name := range []string{path, path + "-wal", path + "-shm"} {
		if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
	select {
	case <-l.Lost():
	case <-time.After(testPatience):
		t.Fatal("the lease never learns that its file has gone")
	}
	check(t, l.Close())
	if _, err := s.Lead(t.Context(), 0); !errors.Is(err, errReplaced) {
		t.Errorf("lead without a file: %v, want %v", err, errReplaced)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an empty file was made: %v", err)
	}
	migrated(t, path)
	check(t, outbox.Enqueue(t.Context(), outbox.SQLite(producers(t, path)), outbox.Message{Topic: "new"}))
	page, err := leadIt(t, s).Read(t.Context(), outbox.ReadRequest{Limit: 10, MaxBytes: 1000})
	check(t, err)
	if len(page.Rows) != 1 || page.Rows[0].Topic != "new" {
		t.Errorf("rows %+v, want that of the other file", page.Rows)
	}
}

// TestOneLeaderByAnyPath: two relays of one file, of which one opens it by way of a link,
// do not both lead.
func TestOneLeaderByAnyPath(t *testing.T) {
	path := filepath.Join(t.TempDir(), "app.db")
	leadIt(t, migrated(t, path))
	link := filepath.Join(t.TempDir(), "link.db")
	check(t, os.Symlink(path, link))
	if _, err := open(t, link, Options{}).Lead(t.Context(), 0); !errors.Is(err, outbox.ErrHeld) {
		t.Errorf("lead by way of a link: %v, want %v", err, outbox.ErrHeld)
	}
}

// Numbers that begin again in the same file are noticed, so that messages need not wait for the
// sweep.
func TestNumbersThatBeginAgainAreNoticed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "app.db")
	s := migrated(t, path)
	db := producers(t, path)
	fill := func(n int) {
		for range n {
			_, err := db.Exec("INSERT INTO weir_outbox (topic, payload) VALUES ('t', x'01')")
			check(t, err)
		}
	}
	fill(5)
	l := leadIt(t, s)
	renewed := func(want bool) {
		t.Helper()
		anew, err := l.(outbox.Renewer).Renewed(t.Context())
		check(t, err)
		if anew != want {
			t.Errorf("renewed: %v, want %v", anew, want)
		}
	}
	renewed(false)
	_, err := db.Exec("DELETE FROM weir_outbox")
	check(t, err)
	renewed(false) // what comes next goes on behind them
	fill(2)
	renewed(false)
	_, err = db.Exec("DELETE FROM weir_outbox; DELETE FROM sqlite_sequence WHERE name = 'weir_outbox'")
	check(t, err)
	fill(1)
	renewed(true)
}
