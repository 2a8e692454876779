package killtest_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
)

// Faults of weir and its server.
const (
	killWeir   = "kills of weir"
	killServer = "kills of the server"
	killBoth   = "kills of both at once"
	pauseBoth  = "pauses"
	cut        = "cut connections"

	rollWeir = "restarts of weir, one after the other behind a balancer"

	promoteKilled = "kills of the primary, whose standby is promoted"
	promoteHung   = "primaries that hang, and come back when the standby is promoted"
)

// bag has the faults of each period, which are shuffled and repeated. Three of them are kills.
// heirs is the same for a server with a standby, whose kills are promotions.
var (
	bag   = []string{killWeir, killServer, killBoth, pauseBoth, cut}
	heirs = []string{promoteKilled, killWeir, promoteHung, cut}
)

const (
	killsOfBag     = 3
	bagsOfPeriod   = 8
	clients        = 16
	defaultKills   = killsOfBag
	weirLogBytes   = 64 << 10
	restPauseMilli = 200
)

// TestKills kills weir and the server while clients write, and compares the answers with the
// tables. WEIR_KILLS is the number of kills for each engine; WEIR_KILLS_TABLE names a file for
// the table of results.
func TestKills(t *testing.T) {
	kills, seed := defaultKills, uint64(time.Now().UnixNano())
	for name, into := range map[string]any{"WEIR_KILLS": &kills, "WEIR_KILLS_SEED": &seed} {
		if text := os.Getenv(name); text != "" {
			if _, err := fmt.Sscan(text, into); err != nil {
				t.Fatalf("%s=%s: %v", name, text, err)
			}
		}
	}
	for i := range engines {
		e := &engines[i]
		t.Run(e.name, func(t *testing.T) {
			if kills == defaultKills {
				t.Parallel()
			}
			s := newStorm(t, e, seed)
			for s.kills() < kills && !t.Failed() {
				s.period(kills - s.kills())
			}
			r := newResult("kills", e.name)
			s.judge(r)
			publish(t, r)
		})
	}
}

// A storm is one server, one weir in front of it, and the faults of both.
type storm struct {
	t       *testing.T
	engine  *engine
	random  *rand.Rand
	seed    uint64
	server  mortal
	weir    *weir
	front   *lab.Relay // from clients to weir
	back    *lab.Relay // from weir to the server; of the primary, where there is a standby
	bag     []string
	line    *succession // nil without a standby
	faults  map[string]int
	grounds []*ground
	errs    census
	done    pulse                      // acknowledged writes
	gaps    map[string][]time.Duration // times without an acknowledged write, by the fault before
	last    string                     // the last fault
}

func newStorm(t *testing.T, e *engine, seed uint64) *storm {
	t.Helper()
	s := &storm{t: t, engine: e, seed: seed, random: rand.New(rand.NewPCG(seed, 0)), faults: map[string]int{}, gaps: map[string][]time.Duration{}, bag: bag}
	s.server = e.start(t)
	s.back = labtest.Relay(t, s.server.Addr())
	addrs := labtest.Addrs(t, 2)
	s.weir = &weir{
		path: program.Path(t), admin: addrs[1], lanes: map[string]int{},
		args: append([]string{"proxy", "--trust-loopback", "--pool-size", "8", "--admin", addrs[1]}, e.flags(s.server, s.back.Addr(), addrs[0])...),
	}
	s.front = labtest.Relay(t, addrs[0])
	s.must(s.weir.launch())
	t.Cleanup(s.weir.kill)
	return s
}

func (s *storm) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *storm) kills() (n int) {
	for _, kind := range []string{killWeir, killServer, killBoth, promoteKilled, promoteHung} {
		n += s.faults[kind]
	}
	return n
}

// direct opens a session on the server itself.
func (s *storm) direct(ctx context.Context) session {
	s.t.Helper()
	d, err := s.engine.dial(ctx, s.server.Addr(), false)
	s.must(err)
	return d
}

// period lets clients write into tables of its own until at most kills have
// happened, and checks these tables.
func (s *storm) period(kills int) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), labtest.Patience)
	defer cancel()
	g := &ground{engine: s.engine, ledger: &ledger{}, number: len(s.grounds), errs: &s.errs, done: &s.done}
	d := s.direct(ctx)
	defer d.close()
	s.must(g.make(ctx, d))
	s.grounds = append(s.grounds, g)

	s.done.rest()
	stop := make(chan struct{})
	var writers sync.WaitGroup
	for i := range clients {
		c := &client{ground: g, address: s.front.Addr(), random: rand.New(rand.NewPCG(s.seed, uint64(g.number*clients+i+1)))}
		writers.Go(func() { c.run(stop) })
	}
	func() {
		defer writers.Wait()
		defer close(stop)
		for bags, before := 0, s.kills(); bags < bagsOfPeriod && s.kills()-before < kills; bags++ {
			for _, i := range s.random.Perm(len(s.bag)) {
				s.fault(s.bag[i])
			}
		}
		s.progress("the last fault")
		s.note("")
		s.weir.scrape()
	}()
	v := s.check(g)
	s.t.Logf("%s %s, so far %v; in this period %s", time.Now().Format(time.TimeOnly), s.engine.name, s.faults, &v)
}

// progress waits until clients are answered, so that the next fault meets writes.
func (s *storm) progress(after string) {
	s.t.Helper()
	goal := s.done.count() + 10 + s.random.Int64N(200)
	testkit.Await(s.t, func() bool { return s.done.count() >= goal || s.weir.ended() != "" }, func() string {
		return fmt.Sprintf("acknowledged writes after %s; errors: %s; weir:\n%s", after, &s.errs, s.weir.log.String())
	})
	if how := s.weir.ended(); how != "" {
		s.t.Fatalf("weir ended by itself: %s\n%s", how, s.weir.log.String())
	}
}

// rest waits for a random time.
func (s *storm) rest() { time.Sleep(time.Duration(s.random.IntN(restPauseMilli)) * time.Millisecond) }

// note records for how long no write was acknowledged after the last fault.
func (s *storm) note(next string) {
	if gap := s.done.take(); s.last != "" {
		s.gaps[s.last] = append(s.gaps[s.last], gap)
	}
	s.last = next
}

func (s *storm) fault(kind string) {
	s.t.Helper()
	s.progress("what was before " + kind)
	s.note(kind)
	s.faults[kind]++
	switch kind {
	case killWeir:
		s.weir.scrape()
		s.weir.kill()
		s.must(s.weir.launch())
	case killServer:
		s.server.Kill()
		s.rest()
		s.restart()
	case killBoth:
		s.weir.scrape()
		var both sync.WaitGroup
		both.Go(s.weir.kill)
		both.Go(s.server.Kill)
		both.Wait()
		s.must(s.weir.launch())
		s.restart()
	case promoteKilled:
		old := s.server
		old.Kill()
		s.rest()
		s.promote()
		s.bury(old)
	case promoteHung:
		old := s.server
		old.Pause()
		s.promote()
		s.progress("a promotion beside a primary that hangs")
		old.Resume()
		s.progress("the return of the former primary")
		old.Kill()
		s.bury(old)
	case pauseBoth:
		s.must(s.weir.signal(syscall.SIGSTOP))
		s.rest()
		s.server.Pause()
		s.must(s.weir.signal(syscall.SIGCONT))
		s.rest()
		s.server.Resume()
	case cut:
		for n := s.random.IntN(8); ; n-- {
			s.cut()
			if n == 0 {
				break
			}
			s.progress("a cut")
			s.faults[kind]++
		}
	}
}

// cut ends connections, mostly in the middle of a message. Usually the server's answers are
// lost, and their statements have taken effect.
func (s *storm) cut() {
	relay, way := s.back, lab.ToClient
	if s.random.IntN(3) == 0 || relay == nil {
		relay = s.front
	}
	if s.random.IntN(3) == 0 {
		way = lab.ToServer
	}
	if s.random.IntN(5) == 0 {
		relay.Cut()
		return
	}
	relay.CutAfter(way, s.random.Int64N(1500))
}

func (s *storm) restart() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), labtest.Patience)
	defer cancel()
	err := s.server.Restart(ctx)
	for again := 0; err != nil && again < 2; again++ {
		// Once in hundreds of kills MariaDB 10.11 aborts in its recovery; a service manager
		// would start it again, as is done here.
		s.t.Logf("the server did not start: %v\n%s", err, s.server.LogTail(60))
		err = s.server.Restart(ctx)
	}
	s.must(err)
}

// check compares the tables of a ground with its ledger, while no client writes.
func (s *storm) check(g *ground) verdict {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), labtest.Patience)
	defer cancel()
	d := s.direct(ctx)
	defer d.close()
	found, bad, err := g.read(ctx, d)
	s.must(err)
	v := g.ledger.verdict(found)
	for _, b := range bad {
		v.say(&v.wrong, "%s", b)
	}
	if v.breaches() > 0 {
		s.t.Errorf("period %d, seed %d: %s\n%s\nweir:\n%s\nserver:\n%s",
			g.number, s.seed, &v, strings.Join(v.examples, "\n"), s.weir.log.String(), s.server.LogTail(30))
	}
	if ended := s.weir.ended(); ended != "" {
		s.t.Errorf("period %d, seed %d: weir ended by itself: %s\n%s", g.number, s.seed, ended, s.weir.log.String())
	}
	return v
}

// judge checks everything once more, after all kills, and sums up.
func (s *storm) judge(r *result) {
	s.t.Helper()
	var sum verdict
	for _, g := range s.grounds {
		v := s.check(g)
		sum.add(&v)
	}
	r.add(s, &sum)
	s.t.Logf("%s, seed %d: %v; %s; writes in lanes at least %v; errors: %s", s.engine.name, s.seed, s.faults, &sum, s.weir.lanes, &s.errs)
	for _, lane := range s.engine.lanes {
		if s.weir.lanes[lane] == 0 {
			s.t.Errorf("no write took the lane %q", lane)
		}
	}
}

// weir is the process of the proxy, and those that are started after it.
type weir struct {
	path, admin string
	args        []string
	log         tail
	lanes       map[string]int // statements by lane, as last scraped

	cmd    *exec.Cmd
	killed atomic.Bool
	done   chan struct{}

	mu   sync.Mutex
	died string
}

func (w *weir) launch() error {
	cmd := exec.Command(w.path, w.args...)
	cmd.Stdout, cmd.Stderr = &w.log, &w.log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start weir: %w", err)
	}
	done := make(chan struct{})
	w.cmd, w.done = cmd, done
	w.killed.Store(false)
	go func() {
		defer close(done)
		if err := cmd.Wait(); !w.killed.Load() {
			w.mu.Lock()
			w.died = fmt.Sprint(err)
			w.mu.Unlock()
		}
	}()
	return nil
}

// kill ends the process, stopped or not, and returns when it is gone.
func (w *weir) kill() {
	w.killed.Store(true)
	_ = w.cmd.Process.Kill() // it may have ended by itself: see ended
	<-w.done
}

func (w *weir) signal(sig syscall.Signal) error {
	if err := w.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("send weir %v: %w", sig, err)
	}
	return nil
}

// ended says how weir ended if it was not killed.
func (w *weir) ended() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.died
}

var laneStatements = regexp.MustCompile(`^weir_proxy_lane_statements_total\{.*kind="(\w+)".*\} (\d+)`)

// scrape adds up the statements in each lane, just before weir is killed. A process that does
// not answer yet has had none.
func (w *weir) scrape() {
	c := http.Client{Timeout: labtest.Patience}
	defer c.CloseIdleConnections()
	resp, err := c.Get("http://" + w.admin + "/metrics")
	if err != nil {
		return
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if m := laneStatements.FindStringSubmatch(lines.Text()); m != nil {
			if n, err := strconv.Atoi(m[2]); err == nil {
				w.lanes[m[1]] += n
			}
		}
	}
}

// A tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	text bytes.Buffer
}

var _ io.Writer = (*tail)(nil)

func (l *tail) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.text.Len() > weirLogBytes {
		l.text.Next(l.text.Len() - weirLogBytes/2)
	}
	return l.text.Write(p)
}

func (l *tail) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// A census counts errors by their codes.
type census struct {
	mu sync.Mutex
	of map[string]int
}

// errorCode is the server's or weir's code of an error, "lost" if there is none.
func errorCode(err error) string {
	var pg *pgconn.PgError
	var my *mysql.MySQLError
	switch {
	case errors.As(err, &pg):
		return pg.Code
	case errors.As(err, &my):
		return strconv.Itoa(int(my.Number))
	}
	return "lost"
}

func (c *census) count(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[string]int{}
	}
	c.of[errorCode(err)]++
}

func (c *census) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []string
	for code, n := range c.of {
		all = append(all, fmt.Sprintf("%s: %d", code, n))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}
