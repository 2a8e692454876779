package process_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weirdb/weir/internal/cli/clitest"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
)

// A succession is processes that take over from each other.
type succession struct {
	t      *testing.T
	server string // as a variable of the environment
	args   []string
	now    *proxyChild

	address string
}

// newSuccession starts the first one, listen is the flag of where it listens.
func newSuccession(t *testing.T, server, listen string, more ...string) *succession {
	t.Helper()
	clitest.ClearEnvironment(t)
	addrs := labtest.Addrs(t, 2)
	s := &succession{t: t, server: server, address: addrs[0], args: append([]string{
		listen, addrs[0], "--admin", addrs[1], "--takeover", filepath.Join(t.TempDir(), "takeover"),
	}, more...)}
	s.now = launch(t, server, s.args...)
	return s
}

func newPostgresSuccession(t *testing.T, pg *lab.Postgres, more ...string) *succession {
	t.Helper()
	return newSuccession(t, "WEIR_POSTGRES="+pg.DSN("postgres"), "--listen-postgres", more...)
}

// next starts the next process, and returns the one before.
func (s *succession) next() (before *proxyChild) {
	s.t.Helper()
	before, s.now = s.now, launch(s.t, s.server, s.args...)
	return before
}

// over awaits the end of a hand-over.
func (s *succession) over(before *proxyChild) {
	s.t.Helper()
	before.log.Await("weir proxy has handed its clients over, and ends")
	s.now.log.Await("weir proxy has taken over")
	if err := before.Wait(); err != nil {
		s.t.Errorf("the process before ended with %v; log:\n%s", err, before.log.Seen.String())
	}
}

func (s *succession) connect() *pgx.Conn {
	s.t.Helper()
	return s.connectAs("postgres", "")
}

func (s *succession) connectAs(user, password string) *pgx.Conn {
	s.t.Helper()
	conn, err := pgx.Connect(s.t.Context(), fmt.Sprintf("postgres://%s:%s@%s/postgres?sslmode=disable", user, password, s.address))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// taken awaits sessions that the present process has taken over.
func (s *succession) taken(engine string, n int) {
	s.t.Helper()
	testkit.Eventually(s.t, "sessions that were handed over", func() bool {
		_, body := clitest.Get(s.t, s.now.admin+"metrics")
		return strings.Contains(body, fmt.Sprintf("weir_proxy_sessions_handed_over_total{engine=%q,outcome=\"taken\"} %d\n", engine, n))
	})
}

// A heir is a client that is to notice nothing of hand-overs.
type heir struct {
	conn *pgx.Conn
	pid  uint32
	work func(ctx context.Context, h *heir, id int64) error // one piece of work, which writes id
	did  atomic.Int64

	hastes bool // it never pauses
}

// run works until stop is closed, and returns how often.
func (h *heir) run(ctx context.Context, stop <-chan struct{}, ids *atomic.Int64, done *sync.Map) error {
	for {
		select {
		case <-stop:
			return nil
		default:
		}
		id := ids.Add(1)
		if err := h.work(ctx, h, id); err != nil {
			return err
		}
		done.Store(id, true)
		h.did.Add(1)
		if id%2 == 0 && !h.hastes { // some pieces of work follow on the heels of the one before, but not all
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// The work of clients. Each writes a row with the id.
var heirsWork = map[string]func(ctx context.Context, h *heir, id int64) error{
	"prepared": func(ctx context.Context, h *heir, id int64) error {
		_, err := h.conn.Exec(ctx, "INSERT INTO heirs VALUES ($1)", id)
		return err
	},
	"batch": func(ctx context.Context, h *heir, id int64) error {
		_, err := h.conn.Exec(ctx, "/* batch */ INSERT INTO heirs VALUES ($1)", id)
		return err
	},
	"transaction": func(ctx context.Context, h *heir, id int64) error {
		return pgx.BeginFunc(ctx, h.conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "SELECT pg_sleep(0.01)"); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, "INSERT INTO heirs VALUES ($1)", id)
			return err
		})
	},
	"pipeline": func(ctx context.Context, h *heir, id int64) error {
		p := h.conn.PgConn().StartPipeline(ctx)
		const units = 20
		for i := range units {
			if i == 0 {
				p.SendQueryParams("INSERT INTO heirs VALUES ($1)", [][]byte{fmt.Append(nil, id)}, nil, nil, nil)
			} else {
				p.SendQueryParams("SELECT $1::int", [][]byte{fmt.Append(nil, i)}, nil, nil, nil)
			}
			if err := p.Sync(); err != nil {
				return err
			}
		}
		answers := 0
		for {
			r, err := p.GetResults()
			if err != nil {
				return errors.Join(err, p.Close())
			}
			switch r := r.(type) {
			case *pgconn.ResultReader:
				if res := r.Read(); res.Err != nil {
					return errors.Join(res.Err, p.Close())
				}
			case *pgconn.PipelineSync:
				if answers++; answers == units {
					return p.Close()
				}
			}
		}
	},
	"settings": func(ctx context.Context, h *heir, id int64) error {
		want := fmt.Sprintf("%dkB", 65+id%900)
		if _, err := h.conn.Exec(ctx, "SET work_mem = '"+want+"'"); err != nil {
			return err
		}
		if _, err := h.conn.Exec(ctx, "INSERT INTO heirs VALUES ($1)", id); err != nil {
			return err
		}
		var have string
		if err := h.conn.QueryRow(ctx, "SELECT current_setting('work_mem')").Scan(&have); err != nil || have != want {
			return fmt.Errorf("work_mem is %q, want %q: %w", have, want, err)
		}
		return nil
	},
	"temporary": func(ctx context.Context, h *heir, id int64) error {
		for _, text := range []string{
			"CREATE TEMPORARY TABLE mine (id bigint)", fmt.Sprintf("INSERT INTO mine VALUES (%d)", id),
			"INSERT INTO heirs SELECT id FROM mine", "DROP TABLE mine",
		} {
			if _, err := h.conn.Exec(ctx, text, pgx.QueryExecModeSimpleProtocol); err != nil {
				return fmt.Errorf("%s: %w", text, err)
			}
		}
		return nil
	},
}

// TestTakeover: clients of all kinds go through hand-overs, also from an heir, and notice nothing.
func TestTakeover(t *testing.T) {
	pg := sharedPostgres.Get(t)
	s := newPostgresSuccession(t, pg, "--pool-size", "8")
	ctx, cancel := context.WithTimeout(t.Context(), labtest.Patience)
	defer cancel()
	told := s.connect() // that is the type of a parameter, which becomes another one before the first hand-over
	for _, sql := range []string{"DROP TABLE IF EXISTS heirs, typed", "CREATE TABLE heirs (id bigint)", "CREATE TABLE typed (v bigint)", "INSERT INTO typed VALUES ($1)", "ALTER TABLE typed ALTER v TYPE float8"} {
		var args []any
		if strings.Contains(sql, "$1") {
			args = append(args, int64(5))
		}
		if _, err := told.Exec(ctx, sql, args...); err != nil {
			t.Fatal(err)
		}
	}

	var idle []*pgx.Conn
	for i := range 20 {
		conn := s.connect()
		idle = append(idle, conn)
		if _, err := conn.Exec(ctx, fmt.Sprintf("SET work_mem = '%dkB'", 100+i)); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Prepare(ctx, "mine", fmt.Sprintf("SELECT $1::int + %d", i)); err != nil {
			t.Fatal(err)
		}
	}
	var ids atomic.Int64
	var done sync.Map
	stop := make(chan struct{})
	var heirs []*heir
	failed := make(chan error, 100)
	var running sync.WaitGroup
	for name, work := range heirsWork {
		for i := range 5 {
			conn := s.connect()
			h := &heir{conn: conn, pid: conn.PgConn().PID(), work: work, hastes: i == 0 && (name == "prepared" || name == "pipeline")}
			heirs = append(heirs, h)
			running.Go(func() {
				if err := h.run(ctx, stop, &ids, &done); err != nil {
					failed <- fmt.Errorf("%s: %w", name, err)
				}
			})
		}
	}
	progress := func() {
		t.Helper()
		goals := make([]int64, len(heirs)) // of the same moment: one by one they would be most of the test
		for i, h := range heirs {
			goals[i] = h.did.Load() + 2
		}
		for i, h := range heirs {
			testkit.Eventually(t, "work of every client", func() bool { return h.did.Load() >= goals[i] || len(failed) > 0 })
		}
	}
	for n := range 2 {
		progress()
		before := s.next()
		s.over(before)
		progress()
		for i, conn := range idle {
			var have string
			if err := conn.QueryRow(ctx, "SELECT current_setting('work_mem')").Scan(&have); err != nil || have != fmt.Sprintf("%dkB", 100+i) {
				t.Errorf("hand-over %d, client %d: work_mem is %q, %v", n, i, have, err)
			}
			var sum int
			if err := conn.QueryRow(ctx, "mine", 1000).Scan(&sum); err != nil || sum != 1000+i {
				t.Errorf("hand-over %d, client %d: its statement returns %d, %v", n, i, sum, err)
			}
		}
		var stored float64
		if _, err := told.Exec(ctx, "INSERT INTO typed VALUES ($1)", int64(5)); err != nil {
			t.Errorf("hand-over %d: %v", n, err)
		}
		if err := told.QueryRow(ctx, "SELECT sum(v) FROM typed").Scan(&stored); err != nil || stored != float64(10+5*n) {
			t.Errorf("hand-over %d: the values stored add up to %v, %v", n, stored, err)
		}
		late := s.connect()
		if err := late.Ping(ctx); err != nil {
			t.Errorf("hand-over %d: a new client: %v", n, err)
		}
	}
	close(stop)
	running.Wait()
	close(failed)
	for err := range failed {
		t.Error(err)
	}
	rows, err := s.connect().Query(ctx, "SELECT id, count(*) FROM heirs GROUP BY id")
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[int64]int)
	var id int64
	var count int
	if _, err := pgx.ForEachRow(rows, []any{&id, &count}, func() error { found[id] = count; return nil }); err != nil {
		t.Fatal(err)
	}
	acknowledged := 0
	done.Range(func(id, _ any) bool {
		acknowledged++
		if found[id.(int64)] != 1 {
			t.Errorf("write %d was acknowledged and is there %d times", id, found[id.(int64)])
		}
		return true
	})
	t.Logf("%d acknowledged writes", acknowledged)
}

// TestTakeoverCancels: a request to cancel reaches a client on either side.
func TestTakeoverCancels(t *testing.T) {
	pg := sharedPostgres.Get(t)
	s := newPostgresSuccession(t, pg)
	moves, stays := s.connect(), s.connect()
	if _, err := stays.Exec(t.Context(), "BEGIN"); err != nil {
		t.Fatal(err)
	}
	before := s.next()
	s.taken("postgresql", 1)
	for name, conn := range map[string]*pgx.Conn{"the new process": moves, "the one before": stays} {
		if err := cancelled(t, pg, conn); err != nil {
			t.Fatalf("%s: %v; log of the process before:\n%s\nof the new one:\n%s", name, err, before.log.Seen.String(), s.now.log.Seen.String())
		}
	}
	if _, err := stays.Exec(t.Context(), "ROLLBACK"); err != nil {
		t.Error(err)
	}
	s.over(before)
	if err := stays.Ping(t.Context()); err != nil {
		t.Errorf("a client that was handed over when its transaction had ended: %v", err)
	}
}

// cancelled has a client ask for the end of a statement of its own, and says what came of
// it where that is not the server's error.
func cancelled(t *testing.T, pg *lab.Postgres, conn *pgx.Conn) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), labtest.Patience)
	defer cancel()
	other, err := pgx.Connect(ctx, pg.DSN("postgres"))
	if err != nil {
		return fmt.Errorf("connect to the server: %w", err)
	}
	defer other.Close(ctx)
	ended := make(chan error, 1)
	go func() {
		_, err := conn.Exec(ctx, "SELECT pg_sleep(600)")
		ended <- err
	}()
	testkit.Eventually(t, "a statement under way", func() bool {
		var n int
		return other.QueryRow(ctx, "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%pg_sleep(600)%' AND pid <> pg_backend_pid()").Scan(&n) == nil && n == 1
	})
	if err := conn.PgConn().CancelRequest(ctx); err != nil {
		return fmt.Errorf("ask for the end: %w", err)
	}
	var e *pgconn.PgError
	if err := <-ended; !errors.As(err, &e) || e.Code != "57014" {
		return fmt.Errorf("a cancelled statement ended with %v", err)
	}
	return nil
}

// TestTakeoverOfTheDead kills either process in the middle of a hand-over. Listeners are
// there all the time, and who is with the other process notices nothing.
func TestTakeoverOfTheDead(t *testing.T) {
	pg := sharedPostgres.Get(t)
	for _, which := range []string{"the process before", "the new one"} {
		t.Run(which, func(t *testing.T) {
			s := newPostgresSuccession(t, pg)
			ctx, cancel := context.WithTimeout(t.Context(), labtest.Patience)
			defer cancel()
			moves, stays := s.connect(), s.connect()
			if _, err := stays.Exec(ctx, "BEGIN"); err != nil {
				t.Fatal(err)
			}
			before := s.next()
			s.taken("postgresql", 1)
			dead, left, lives := before, s.now, moves
			if which == "the new one" {
				dead, left, lives = s.now, before, stays
			}
			dead.send(syscall.SIGKILL)
			_ = dead.Wait() // it was killed
			s.connect()     // waits, if it must, until the other accepts
			if _, err := lives.Exec(ctx, "SELECT 1"); err != nil {
				t.Errorf("a client of the process that lives: %v", err)
			}
			if left == before {
				if _, err := stays.Exec(ctx, "COMMIT"); err != nil {
					t.Error(err)
				}
				left.log.Await("the hand-over has failed: this process goes on")
			} else {
				left.log.Await("weir proxy has taken over")
			}
			s.now = left
			s.over(s.next()) // it hands over as any other
			if err := lives.Ping(ctx); err != nil {
				t.Errorf("its client after the next hand-over: %v", err)
			}
		})
	}
}

// TestTakeoverRefusesSessions: what the new configuration no longer admits ends with a
// word, and what cannot be handed over stays until it ends.
func TestTakeoverRefusesSessions(t *testing.T) {
	pg := sharedPostgres.Get(t)
	users := filepath.Join(t.TempDir(), "userlist.txt")
	clitest.Write(t, users, fmt.Sprintf("%q \"own\"\n\"gone\" \"secret\"\n", pg.User()))
	direct, err := pgx.Connect(t.Context(), pg.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := direct.Exec(t.Context(), "DROP ROLE IF EXISTS gone; CREATE ROLE gone LOGIN PASSWORD 'secret'"); err != nil {
		t.Fatal(err)
	}
	_ = direct.Close(t.Context())
	s := newPostgresSuccession(t, pg, "--drain-timeout", "1s", "--auth-file", users)
	gone, pinned, admitted := s.connectAs("gone", "secret"), s.connectAs(pg.User(), "own"), s.connectAs(pg.User(), "own")
	if _, err := pinned.Exec(t.Context(), "LISTEN something"); err != nil {
		t.Fatal(err)
	}
	clitest.Write(t, users, fmt.Sprintf("%q \"own\"\n", pg.User()))
	s.args = append(s.args, "--auth", "scram-sha-256")
	before := s.next()
	s.over(before) // until then it may serve it
	if text := before.log.Seen.String(); !strings.Contains(text, `"ended":2`) {
		t.Errorf("two sessions have ended with the process before: %s", text)
	}
	var e *pgconn.PgError
	if _, err := gone.Exec(t.Context(), "SELECT 1"); !errors.As(err, &e) || e.Code != "57P01" || !strings.Contains(e.Message, "no longer one of weir's") {
		t.Errorf("the session of a user who is listed no more: %v", err)
	}
	if _, err := pinned.Exec(t.Context(), "SELECT 1"); !errors.As(err, &e) || e.Code != "57P01" {
		t.Errorf("a session that could not be handed over: %v", err)
	}
	if err := admitted.Ping(t.Context()); err != nil {
		t.Errorf("a session that could be: %v", err)
	}
}
