package postgres_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	pg "github.com/weirdb/weir/internal/backup/bulk/postgres"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

func connect(t *testing.T, p *lab.Postgres) *pg.Session {
	t.Helper()
	cfg, err := pgwire.ParseDSN(p.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	s, err := pg.Connect(t.Context(), cfg, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// TestSession goes through what a session does on a real server.
func TestSession(t *testing.T) {
	p := labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast})
	s := connect(t, p)

	t.Run("rows and errors", func(t *testing.T) {
		row, err := s.Row(t.Context(), "SELECT 1, NULL, repeat('x', 1000000), current_setting('search_path')")
		if err != nil || row[0] != "1" || row[1] != "" || len(row[2]) != 1000000 || row[3] != "" {
			t.Fatalf("row: %.100q, %v", row, err)
		}
		if err := s.Exec(t.Context(), "SELECT 1/0"); pg.ErrorCode(err) != "22012" {
			t.Errorf("division: %v", err)
		}
		broken := errors.New("enough")
		if err := s.Query(t.Context(), "SELECT generate_series(1, 100000)", func([]string) error { return broken }); !errors.Is(err, broken) {
			t.Errorf("yield: %v", err)
		}
		if tag, err := s.ExecTag(t.Context(), "SELECT 1; SELECT 2"); err != nil || tag != "SELECT 1" {
			t.Errorf("after errors: %q, %v", tag, err)
		}
		if err := s.Exec(t.Context(), "CREATE TABLE public.refused (x int); COPY public.refused FROM STDIN"); err == nil {
			t.Error("a COPY without data succeeds")
		}
		if _, err := s.Row(t.Context(), "SELECT 1 WHERE false"); err == nil {
			t.Error("no row is a row")
		}
	})

	t.Run("starting", func(t *testing.T) {
		front, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer front.Close()
		go func() {
			for n := 0; ; n++ {
				c, err := front.Accept()
				if err != nil {
					return
				}
				if n < 2 {
					_, _ = c.Read(make([]byte, 1024))
					_, _ = c.Write(pgwire.AppendError(nil, pgwire.NewFatal(pgwire.CodeCannotConnectNow, "the database system is starting up")))
					_ = c.Close()
					continue
				}
				up, err := net.Dial("tcp", p.Addr())
				if err != nil {
					return
				}
				go func() { _, _ = io.Copy(up, c) }()
				go func() { _, _ = io.Copy(c, up) }()
			}
		}()
		cfg, err := pgwire.ParseDSN(p.DSN("postgres"))
		if err != nil {
			t.Fatal(err)
		}
		cfg.Network, cfg.Address = "tcp", front.Addr().String()
		again, err := pg.Connect(t.Context(), cfg, "")
		if err != nil {
			t.Fatal(err)
		}
		if err := again.Close(); err != nil {
			t.Error(err)
		}
	})

	t.Run("copy", func(t *testing.T) {
		// Rows from a few bytes to many buffers long.
		if err := s.Exec(t.Context(), `CREATE TABLE public.source AS
SELECT g AS id, repeat(chr(64 + g % 60), CASE WHEN g % 50 = 0 THEN 700000 WHEN g % 7 = 0 THEN 20000 ELSE g % 100 END) AS x FROM generate_series(1, 300) g;
CREATE TABLE public.copy (LIKE public.source)`); err != nil {
			t.Fatal(err)
		}
		for _, format := range []string{"text", "binary"} {
			options := " (FORMAT " + format + ")"
			var stream bytes.Buffer
			sum := pg.RowSum{Binary: format == "binary"}
			rows, err := s.CopyOut(t.Context(), "COPY public.source TO STDOUT"+options, func(p []byte) error {
				stream.Write(p)
				return sum.Write(p)
			})
			if err != nil || rows != 300 || sum.End() != nil || sum.Rows() != 300 {
				t.Fatalf("%s: out: %d rows, %v", format, rows, err)
			}
			if err := s.Exec(t.Context(), "TRUNCATE public.copy"); err != nil {
				t.Fatal(err)
			}
			if rows, err = s.CopyIn(t.Context(), "COPY public.copy FROM STDIN"+options, &stream); err != nil || rows != 300 {
				t.Fatalf("%s: in: %d rows, %v", format, rows, err)
			}
			row, err := s.Row(t.Context(), "SELECT count(*) FROM (TABLE public.source EXCEPT ALL TABLE public.copy) d")
			if err != nil || row[0] != "0" {
				t.Errorf("%s: %v rows differ, %v", format, row, err)
			}
		}
		if _, err := s.CopyOut(t.Context(), "COPY public.absent TO STDOUT", nil); pg.ErrorCode(err) != pgwire.CodeUndefinedTable {
			t.Errorf("out of no table: %v", err)
		}
		if _, err := s.CopyIn(t.Context(), "COPY public.absent FROM STDIN", strings.NewReader("")); pg.ErrorCode(err) != pgwire.CodeUndefinedTable {
			t.Errorf("into no table: %v", err)
		}
	})

	t.Run("copy that fails", func(t *testing.T) {
		// The server refuses the first row of very many.
		endless := io.MultiReader(strings.NewReader("not a number\tx\n"), strings.NewReader(strings.Repeat("1\ty\n", 5<<20)))
		if _, err := s.CopyIn(t.Context(), "COPY public.copy FROM STDIN", endless); pg.ErrorCode(err) != "22P02" {
			t.Errorf("a bad row: %v", err)
		}
		// The source fails in the middle.
		broken := errors.New("broken source")
		source := io.MultiReader(strings.NewReader("1\tx\n"), failing{broken})
		if _, err := s.CopyIn(t.Context(), "COPY public.copy FROM STDIN", source); !errors.Is(err, broken) {
			t.Errorf("a broken source: %v", err)
		}
		if row, err := s.Row(t.Context(), "SELECT count(*) FROM public.copy"); err != nil || row[0] != "300" {
			t.Errorf("the session afterwards: %v, %v", row, err)
		}
	})

	t.Run("interrupted", func(t *testing.T) {
		victim := connect(t, p)
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("the operator wants to go home")
		n := 0
		_, err := victim.CopyOut(ctx, "COPY (SELECT repeat('x', 1000) FROM generate_series(1, 10000000)) TO STDOUT", func([]byte) error {
			if n++; n == 3 {
				cancel(why)
			}
			return nil
		})
		if !errors.Is(err, why) || victim.Broken() == nil {
			t.Errorf("interrupted: %v, broken: %v", err, victim.Broken())
		}
		if err := victim.Exec(t.Context(), "SELECT 1"); err == nil {
			t.Error("a broken session goes on")
		}
		// Its statement ends on the server, too.
		for {
			row, err := s.Row(t.Context(), fmt.Sprintf("SELECT count(*) FROM pg_stat_activity WHERE pid = %d", victim.PID()))
			if err != nil {
				t.Fatal(err)
			}
			if row[0] == "0" {
				break
			}
			_ = victim.Close() // what is left to do with it
		}
	})
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// TestSocketsLeaveNoFiles looks at the directory of a socket: it is gone when a
// program has connected, and one that a killed process left is removed by the next.
func TestSocketsLeaveNoFiles(t *testing.T) {
	s := connect(t, labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast}))
	dir, err := os.MkdirTemp("/tmp", "weir-test-") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	const name = ".s.PGSQL.5432"
	leave := func(own string, age time.Duration, keep bool) {
		t.Helper()
		own = filepath.Join(dir, own)
		if err := os.Mkdir(own, 0o700); err != nil {
			t.Fatal(err)
		}
		l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: filepath.Join(own, name)})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		if keep {
			t.Cleanup(func() { _ = l.Close() })
		} else if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		then := time.Now().Add(-age)
		if err := os.Chtimes(own, then, then); err != nil {
			t.Fatal(err)
		}
	}
	leave("weir-dump-dead", 2*time.Hour, false)
	leave("weir-dump-young", time.Second, false)
	leave("weir-dump-alive", 2*time.Hour, true)
	left := func() string {
		t.Helper()
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return strings.Join(names, " ")
	}

	var mu sync.Mutex
	socket, err := pg.ListenFor(t.Context(), s, &mu, dir)
	if err != nil {
		t.Fatal(err)
	}
	own := strings.TrimSpace(strings.NewReplacer("weir-dump-alive", "", "weir-dump-young", "").Replace(left()))
	if strings.Contains(own, "dead") {
		t.Errorf("there are %s", own)
	}
	conn, err := net.Dial("unix", filepath.Join(dir, own, name))
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the socket's name is gone", func() bool { return left() == "weir-dump-alive weir-dump-young" })
	if err := errors.Join(conn.Close(), socket.Close()); err != nil {
		t.Error(err)
	}
}
