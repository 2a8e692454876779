package torture

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/outbox/outboxctl"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/outbox"
	"github.com/weirdb/weir/outbox/sink/open"
)

// TestTortureOfBrokers kills real brokers while relays publish to them. What
// they had confirmed they have when they are back.
func TestTortureOfBrokers(t *testing.T) {
	testkit.Long(t, "kills brokers under load")
	for sink, require := range map[string]func(testing.TB){"redis": labtest.RequireRedis, "nats": labtest.RequireNATS} {
		t.Run(sink, func(t *testing.T) {
			labtest.RequirePostgres(t)
			require(t)
			res := tortured(t, Config{
				Engine: "postgres", Sink: sink, Claim: outbox.Poll, Duration: time.Duration(testkit.Rounds(1, 4)) * time.Second,
				Kills: testkit.Rounds(3, 10), BrokerKills: testkit.Rounds(2, 3),
			})
			for _, v := range res.Violations {
				t.Error(v)
			}
			if res.Broker == 0 {
				t.Error("the broker was not killed")
			}
		})
	}
}

// A message that the broker finds too large, and one for which it has no place,
// go to the dead letters with the reason; once the place is there, the second
// can be put back. The messages of their keys go on.
func TestRefusedByRealBroker(t *testing.T) {
	t.Parallel()
	labtest.RequireNATS(t)
	broker := labtest.NATS(t, lab.BrokerConfig{Durability: lab.Fast, Settings: map[string]string{"max_payload": "4096"}})
	eachEngine(t, outbox.Plan{}, func(r *rig) {
		stream := "T" + strings.ReplaceAll(r.db.table, "_", "")
		sink, err := open.Open(r.ctx(), broker.URL()+"?stream="+stream+"&create=true&subjects="+stream+".there.>")
		r.check(err)
		defer sink.Close()
		r.relay(sink, outbox.Config{Retry: outbox.RetryPolicy{MaxAttempts: 3, Base: 10 * time.Millisecond}})
		send := func(subject, payload string) {
			m := outbox.Message{Topic: stream + subject, Key: "k", Payload: []byte(payload)}
			r.check(outbox.Enqueue(r.ctx(), r.db.tx(r.db.pool), m))
		}
		send(".there.1", "first")
		send(".there.1", strings.Repeat("x", 8000))
		send(".missing.1", "homeless")
		send(".there.1", "last")
		r.drained()
		var words []string
		for _, d := range r.dead() {
			words = append(words, d.Topic+" "+d.Reason+": "+d.Error)
		}
		slices.Sort(words)
		if len(words) != 2 || !strings.Contains(words[0], "missing.1 attempts") || !strings.Contains(words[1], "there.1 rejected") ||
			!strings.Contains(words[1], "4096") {
			r.Fatalf("dead letters %q", words)
		}

		nc, err := nats.Connect(broker.URL())
		r.check(err)
		defer nc.Close()
		js, err := jetstream.New(nc)
		r.check(err)
		_, err = js.UpdateStream(r.ctx(), jetstream.StreamConfig{Name: stream, Subjects: []string{stream + ".there.>", stream + ".missing.>"}})
		r.check(err)
		n, err := r.store.Requeue(r.ctx(), outbox.Query{State: outbox.Dead, Topic: stream + ".missing.1"})
		r.check(err)
		if n != 1 {
			r.Errorf("%d messages were put back, want 1", n)
		}
		r.drained()
		s, err := js.Stream(r.ctx(), stream)
		r.check(err)
		var got []string
		for seq := uint64(1); seq <= s.CachedInfo().State.LastSeq; seq++ {
			m, err := s.GetMsg(r.ctx(), seq)
			r.check(err)
			got = append(got, string(m.Data))
		}
		if want := []string{"first", "last", "homeless"}; !slices.Equal(got, want) {
			r.Errorf("the stream has %q, want %q", got, want)
		}
	})
}

// The clock of the database's machine and that of the relay's differ by an hour.
// When a scheduled or failed message is due is a matter of the database's alone.
func TestClocksDiffer(t *testing.T) {
	testkit.Long(t, "initialises the data of servers")
	shim := clockShim(t)
	// To initialise a server's data takes long on a busy machine: each engine does it once,
	// unless make torture runs.
	offsets := map[string][]string{"postgres": {"3600"}, "mariadb": {"-3600"}}
	if testkit.All() {
		offsets = map[string][]string{"postgres": {"3600", "-3600"}, "mariadb": {"3600", "-3600"}}
	}
	for engine, offsets := range offsets {
		for _, offset := range offsets {
			t.Run(engine+" "+offset+" s", func(t *testing.T) {
				t.Parallel()
				requireEngine(t, engine)
				r := rigOf(t, shiftedDatabase(t, engine, shim, offset), outbox.Plan{})
				now := r.databaseTime()
				if d := time.Until(now).Abs(); d < 50*time.Minute {
					t.Fatalf("the database's clock differs by %v only", d)
				}
				later := message(Entry{Chain: "later", N: 1, Attempt: 1})
				later.AvailableAt = now.Add(2 * time.Second)
				never := message(Entry{Chain: "never", N: 1, Attempt: 1})
				never.AvailableAt = now.Add(30 * time.Minute)
				r.check(outbox.Enqueue(r.ctx(), r.db.tx(r.db.pool), later, never))
				failures := 0
				sink := &scripted{ledger: r.ledger, decide: func(e Entry) error {
					if failures++; e.Chain == "k" && failures < 3 {
						return os.ErrDeadlineExceeded
					}
					return nil
				}}
				_, stop := r.relay(sink, outbox.Config{Retry: outbox.RetryPolicy{MaxAttempts: 9, Base: 200 * time.Millisecond, Max: time.Second}})
				r.enqueue("k", 1, 10)
				r.eventually("what failed is tried again", func() bool { return r.ledger.Arrived() >= 10 })
				r.eventually("what was due has come", func() bool { return r.ledger.Arrived() == 11 })
				if late := r.databaseTime().Sub(later.AvailableAt); late < 0 {
					t.Errorf("it came %v too early by the database's clock", -late)
				}
				stop()
				s, err := r.store.Status(r.ctx())
				r.check(err)
				if s.Scheduled != 1 || s.Pending != 0 {
					t.Errorf("status %+v, want the one of next half hour", s)
				}
			})
		}
	}
}

// databaseTime is what the server's clock says.
func (r *rig) databaseTime() time.Time {
	r.Helper()
	text := "SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS bigint)"
	if r.db.Engine == outboxctl.MySQL {
		text = "SELECT CAST(UNIX_TIMESTAMP(SYSDATE(3)) * 1000 AS SIGNED)"
	}
	var milli int64
	r.check(r.db.pool.QueryRowContext(r.ctx(), text).Scan(&milli))
	return time.UnixMilli(milli)
}

// clockSource moves the wall clock of the program that it is loaded into.
const clockSource = `#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
static long off(void) {
	static long o, known;
	if (!known) { const char *s = getenv("TEST_CLOCK_OFFSET"); o = s ? atol(s) : 0; known = 1; }
	return o;
}
int clock_gettime(clockid_t id, struct timespec *ts) {
	static int (*real)(clockid_t, struct timespec *);
	if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
	int r = real(id, ts);
	if (r == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) ts->tv_sec += off();
	return r;
}
int gettimeofday(struct timeval *restrict tv, void *restrict tz) {
	struct timespec ts;
	(void)tz;
	if (clock_gettime(CLOCK_REALTIME, &ts)) return -1;
	tv->tv_sec = ts.tv_sec;
	tv->tv_usec = ts.tv_nsec / 1000;
	return 0;
}
time_t time(time_t *t) {
	struct timespec ts;
	clock_gettime(CLOCK_REALTIME, &ts);
	if (t) *t = ts.tv_sec;
	return ts.tv_sec;
}
`

// clockShim compiles clockSource to where a server's user can read it.
func clockShim(t *testing.T) string {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("there is no C compiler to build a clock with: apt-get install gcc")
	}
	dir := publicDir(t)
	source, shim := filepath.Join(dir, "clock.c"), filepath.Join(dir, "clock.so")
	if err := os.WriteFile(source, []byte(clockSource), 0o644); err != nil { //nolint:gosec // others read it
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), cc, "-shared", "-fPIC", "-o", shim, source, "-ldl").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return shim
}

// publicDir is a directory that every user may read.
func publicDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "weir-torture-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // that is what it is for
		t.Fatal(err)
	}
	return dir
}

// shiftedDatabase starts a server whose programs are scripts that load the shim
// and then the real program, in a directory that looks like the real one.
func shiftedDatabase(t *testing.T, engine, shim, offset string) *database {
	t.Helper()
	var dir, program string
	var err error
	others := []string{"initdb"}
	if engine == "postgres" {
		dir, _, err = lab.FindPostgres(t.Context(), "")
		program = filepath.Join(dir, "postgres")
	} else {
		dir, _, err = lab.FindMySQL(t.Context(), lab.FlavorMariaDB, "")
		program = filepath.Join(dir, "mariadbd")
		others = []string{"../bin/mariadb-install-db", "../bin/my_print_defaults", "../bin/resolveip"}
	}
	if err != nil {
		t.Fatal(err)
	}
	root := publicDir(t)
	bin := filepath.Join(root, filepath.Base(dir))
	place := func(path, text string) {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // others read it
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+` "$@"`+"\n"), 0o755); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
	}
	place(filepath.Join(bin, filepath.Base(program)), "LD_PRELOAD="+shim+" TEST_CLOCK_OFFSET="+offset+" exec "+program)
	for _, name := range others {
		place(filepath.Join(bin, name), "exec "+filepath.Join(dir, name))
	}
	for _, name := range []string{"share", "lib"} {
		if err := os.Symlink(filepath.Join(filepath.Dir(dir), name), filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	return startOwn(t, engine, bin)
}

// startOwn starts a server of programs in a directory, however long a busy
// machine takes to initialise its data.
func startOwn(t *testing.T, engine, dir string) *database {
	t.Helper()
	d, err := &database{}, error(nil)
	dsn := ""
	if engine == "postgres" {
		var pg *lab.Postgres
		pg, err = lab.StartPostgres(t.Context(), lab.PostgresConfig{Durability: lab.Fast, BinDir: dir, Fresh: true})
		if err == nil {
			d.server, dsn = pg, pg.DSN("postgres")
		}
	} else {
		var my *lab.MySQL
		my, err = lab.StartMariaDB(t.Context(), lab.MySQLConfig{Durability: lab.Fast, Light: true, BinDir: dir, Fresh: true})
		if err == nil {
			d.server, dsn = my, my.DSN("weir")
			err = my.Exec(t.Context(), "CREATE DATABASE weir")
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	d.stop = append(d.stop, d.server.Stop)
	if err := d.connect(t.Context(), dsn); err != nil {
		t.Fatal(errors.Join(err, d.Close(context.Background())))
	}
	return d
}

// The database's disk is full for a while. Nothing that was committed before or
// after is lost, and the relay goes on by itself.
func TestDiskFull(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a small disk of its own must be mounted, which takes root")
	}
	for _, engine := range []string{"postgres", "mariadb"} {
		t.Run(engine, func(t *testing.T) {
			requireEngine(t, engine)
			dir := publicDir(t)
			if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=250m,mode=755"); err != nil {
				t.Skipf("a small disk cannot be mounted here: %v", err)
			}
			t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
			t.Setenv("WEIR_LAB_DIR", dir)
			r := newRig(t, engine, outbox.Plan{})
			relay, _ := r.relay(&scripted{ledger: r.ledger}, outbox.Config{})
			r.enqueue("k", 1, 100)
			r.drained()

			ballast := filepath.Join(dir, "ballast")
			fillDisk(t, ballast)
			// Each number is tried until the database has no place for it.
			n, full := 101, false
			for ; n < 2000 && !full; n++ {
				m := message(Entry{Chain: "k", N: n, Attempt: 1})
				m.Headers = map[string]string{"ballast": strings.Repeat("x", 60_000)}
				if err := outbox.Enqueue(r.ctx(), r.db.tx(r.db.pool), m); err != nil {
					t.Logf("message %d: %v", n, err)
					full = true
					n--
					continue
				}
				r.committed("k", n, 1)
			}
			if !full {
				t.Fatal("the disk never was full")
			}
			r.check(os.Remove(ballast))
			// A server that has given up is started again, as its supervisor would.
			r.eventually("the database takes messages again", func() bool {
				_, err := r.db.pool.ExecContext(r.ctx(), "SELECT 1 FROM "+r.db.table+" LIMIT 1")
				if err != nil {
					_ = r.db.server.Restart(r.ctx())
				}
				return err == nil
			})
			r.enqueue("k", n, 100)
			r.drained()
			if v := r.holds(); v.Delivered != n+99 {
				t.Errorf("verdict %+v, want %d delivered; %+v", v, n+99, relay.Stats())
			}
		})
	}
}

// fillDisk writes a file until the disk is full.
func fillDisk(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	block := make([]byte, 64<<10)
	for err == nil {
		_, err = f.Write(block)
	}
	for small := block[:512]; ; {
		if _, err := f.Write(small); err != nil {
			break
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}
