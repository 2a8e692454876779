package kvcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/cli/clitest"
	"github.com/weirdb/weir/internal/kvd/replica"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/kv"
)

// kvRig is a cluster of processes as seen by an operator: through the command line, the admin
// addresses and the logs.
type kvRig struct {
	*lab.KV
	t *testing.T
}

// newKVRig starts a cluster that logs what an operator reads.
func newKVRig(t *testing.T, cfg lab.KVConfig) *kvRig {
	t.Helper()
	clitest.ClearEnvironment(t)
	cfg.Program = program.Path(t)
	if cfg.Flags == nil {
		cfg.Flags = map[string]string{}
	}
	cfg.Flags["log-level"] = "info"
	r := &kvRig{KV: labtest.KV(t, cfg), t: t}
	t.Setenv("WEIR_KV_ENDPOINTS", strings.Join(r.PeerAddrs(), ","))
	return r
}

// in is the same cluster for a subtest.
func (r *kvRig) in(t *testing.T) *kvRig {
	sub := *r
	sub.t = t
	return &sub
}

// node returns a replica's process by the replica's id.
func (r *kvRig) node(id int) *lab.Node { return r.Nodes()[id-1] }

// alone are the flags that make a client talk to one replica only.
func (r *kvRig) alone(id int) string { return "--endpoints=" + r.PeerAddrs()[id-1] }

// within returns a context with a timeout for one step of the test. The test as a whole has
// none, since a busy machine may take long.
func (r *kvRig) within() (context.Context, context.CancelFunc) {
	return context.WithTimeout(r.t.Context(), labtest.Patience)
}

func (r *kvRig) restart(id int) {
	r.t.Helper()
	ctx, cancel := r.within()
	defer cancel()
	if err := r.node(id).Restart(ctx); err != nil {
		r.t.Fatalf("restart replica %d: %v\n%s", id, err, r.node(id).LogTail(20))
	}
}

// await waits until every replica that runs is ready.
func (r *kvRig) await() {
	r.t.Helper()
	ctx, cancel := r.within()
	defer cancel()
	if err := r.Await(ctx); err != nil {
		r.t.Fatal(err)
	}
}

// linked waits until every replica is connected with every other one, which
// readiness does not need.
func (r *kvRig) linked() {
	r.t.Helper()
	testkit.Eventually(r.t, "all replicas are connected with each other", func() bool {
		for id := range r.Nodes() {
			if slices.ContainsFunc(r.report(id+1).Members, func(m replica.MemberReport) bool { return !m.Up }) {
				return false
			}
		}
		return true
	})
}

// logged waits until a replica has logged some words.
func (r *kvRig) logged(id int, words ...string) {
	r.t.Helper()
	testkit.Eventually(r.t, fmt.Sprintf("replica %d logs %q", id, words), func() bool { return holdsAll(r.node(id).LogTail(10_000), words...) })
}

func holdsAll(text string, words ...string) bool {
	for _, w := range words {
		if !strings.Contains(text, w) {
			return false
		}
	}
	return true
}

// report is what a replica says at /status.json.
func (r *kvRig) report(id int) replica.Report {
	r.t.Helper()
	_, body := r.admin(id, "/status.json")
	return clitest.Decode[replica.Report](r.t, body)
}

func (r *kvRig) admin(id int, path string) (int, string) {
	r.t.Helper()
	return clitest.Get(r.t, "http://"+r.AdminAddrs()[id-1]+path)
}

// leader waits until a replica leads and is open, according to all replicas that are asked.
func (r *kvRig) leader(ids ...int) int {
	r.t.Helper()
	var leader uint64
	testkit.Eventually(r.t, fmt.Sprintf("replicas %v know their leader", ids), func() bool {
		leader = 0
		for _, id := range ids {
			s := r.report(id)
			if !s.Ready || leader != 0 && leader != s.Leader {
				return false
			}
			leader = s.Leader
		}
		return true
	})
	return int(leader)
}

// command is the command line that a replica runs with, without the program.
func (r *kvRig) command(id int) []string {
	r.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", r.node(id).PID()))
	if err != nil {
		r.t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00")[1:]
}

// strayKV is a weir process beside those of the lab.
type strayKV struct {
	t    *testing.T
	cmd  *exec.Cmd
	out  syncText
	done chan struct{}
}

// syncText is what a process has printed so far.
type syncText struct {
	mu sync.Mutex
	b  strings.Builder
}

func (s *syncText) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncText) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// strayed starts weir in a process, for the length of t at most.
func strayed(t *testing.T, args ...string) *strayKV {
	t.Helper()
	p := &strayKV{t: t, cmd: program.Command(t, args...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait() // the exit code says it
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // unless it has ended by itself
		<-p.done
	})
	return p
}

// says waits until the process has printed some words.
func (p *strayKV) says(words ...string) {
	p.t.Helper()
	testkit.Await(p.t, func() bool {
		select {
		case <-p.done:
			if !holdsAll(p.out.String(), words...) {
				p.t.Fatalf("weir has ended with %d and did not say %q:\n%s", p.cmd.ProcessState.ExitCode(), words, &p.out)
			}
		default:
		}
		return holdsAll(p.out.String(), words...)
	}, func() string { return fmt.Sprintf("weir says %q:\n%s", words, &p.out) })
}

// saysItIsNoMember waits until a replica that was removed says so: it ends if it
// has heard of it, and is refused by the others if not.
func (p *strayKV) saysItIsNoMember(id int) {
	p.t.Helper()
	testkit.Await(p.t, func() bool {
		out := p.out.String()
		return strings.Contains(out, fmt.Sprintf("replica %d is not a member of this cluster", id)) ||
			strings.Contains(out, fmt.Sprintf("replica %d was removed from the cluster", id))
	}, p.out.String)
}

// ends waits for the end of the process, and for its exit code and words.
func (p *strayKV) ends(code int, words ...string) {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(labtest.Patience):
		p.t.Fatalf("weir does not end:\n%s", &p.out)
	}
	if got := p.cmd.ProcessState.ExitCode(); got != code || !holdsAll(p.out.String(), words...) {
		p.t.Errorf("weir ended with %d, want %d and the words %q:\n%s", got, code, words, &p.out)
	}
}

// kvLoad is a client that increments a counter, again and again, with a pause after each
// acknowledgement. No operation may fail. It knows the replicas of the rig, and those at more
// addresses.
type kvLoad struct {
	t     *testing.T
	key   string
	acked atomic.Int64
	stop  func()
	done  chan struct{}
}

// loadPause is the pause between two operations of a kvLoad. Without it the load would use all
// processors.
const loadPause = 2 * time.Millisecond

func (r *kvRig) load(key string, more ...string) *kvLoad {
	r.t.Helper()
	opening, opened := r.within()
	defer opened()
	c, err := kv.Open(opening, append(r.PeerAddrs(), more...), kv.Options{})
	if err != nil {
		r.t.Fatal(err)
	}
	stop := make(chan struct{})
	ctx, cancel := context.WithCancel(r.t.Context())
	l := &kvLoad{t: r.t, key: key, stop: sync.OnceFunc(func() { close(stop) }), done: make(chan struct{})}
	go func() {
		defer close(l.done)
		defer func() {
			if err := c.Close(); err != nil {
				r.t.Error(err)
			}
		}()
		for {
			select {
			case <-stop:
				return
			case <-time.After(loadPause):
			}
			n, err := c.Increment(ctx, key, 1)
			if ctx.Err() != nil {
				return // the test has failed before
			}
			if err != nil || n != l.acked.Load()+1 {
				r.t.Errorf("increment number %d of %s: %d, %v", l.acked.Load()+1, key, n, err)
				return
			}
			l.acked.Store(n)
		}
	}()
	r.t.Cleanup(func() {
		cancel()
		<-l.done
	})
	return l
}

// goesOn waits until n more operations were acknowledged.
func (l *kvLoad) goesOn(n int64) {
	l.t.Helper()
	want := l.acked.Load() + n
	testkit.Eventually(l.t, fmt.Sprintf("%s reaches %d", l.key, want), func() bool { return l.ended() || l.acked.Load() >= want })
	if l.ended() {
		l.t.FailNow()
	}
}

func (l *kvLoad) ended() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// end stops the client and returns what the counter must be.
func (l *kvLoad) end() string {
	l.stop()
	testkit.Receive(l.t, "the client of "+l.key+" ends", l.done)
	return strconv.FormatInt(l.acked.Load(), 10)
}

// kvWatching is `weir kv watch`, which prints while the test does other things.
type kvWatching struct {
	out   syncText
	err   syncText
	stop  context.CancelFunc
	ended chan struct{} // closed, once code is known
	code  int
}

// watching starts a watch. If its only replica has no leader for half a minute, as may happen
// on a busy machine, the watch ends with an error. It is then continued, as a user would, after
// the last revision that it has printed.
func watching(t *testing.T, args ...string) *kvWatching {
	ctx, stop := context.WithCancel(t.Context())
	w := &kvWatching{stop: stop, ended: make(chan struct{})}
	t.Cleanup(stop)
	args = patiently(append([]string{"kv", "watch"}, args...))
	go func() {
		defer close(w.ended)
		for {
			var err syncText
			w.code = program.Execute(ctx, args, &w.out, &err)
			if w.code == cli.ExitFine || !strings.Contains(err.String(), kv.ErrCutOff.Error()) {
				_, _ = io.WriteString(&w.err, err.String()) // it is text
				return
			}
			if revision, ok := w.last(); ok {
				args = append(args, "--since", strconv.FormatUint(revision+1, 10))
			}
		}
	}()
	return w
}

// last is the last revision that was printed.
func (w *kvWatching) last() (revision uint64, ok bool) {
	out := strings.TrimSuffix(w.out.String(), "\n")
	line := out[strings.LastIndexByte(out, '\n')+1:]
	text, _, _ := strings.Cut(line, "\t")
	revision, err := strconv.ParseUint(text, 10, 64)
	return revision, err == nil
}

// tells waits until this many changes were printed.
func (w *kvWatching) tells(t *testing.T, changes int) {
	t.Helper()
	told := func() int { return strings.Count(w.out.String(), "\n") }
	testkit.Await(t, func() bool {
		select {
		case <-w.ended:
			if told() < changes {
				t.Fatalf("weir kv watch ended with %d after %d of %d changes: %s", w.code, told(), changes, &w.err)
			}
		default:
		}
		return told() >= changes
	}, func() string { return fmt.Sprintf("the watch has told of %d of %d changes", told(), changes) })
}

// end interrupts it, and returns what it printed.
func (w *kvWatching) end(t *testing.T) string {
	t.Helper()
	w.stop()
	testkit.Receive(t, "weir kv watch ends", w.ended)
	if w.code != cli.ExitFine {
		t.Errorf("weir kv watch ended with %d: %s", w.code, &w.err)
	}
	return w.out.String()
}

// redisClient makes a client that tries once, and waits for an answer for as long
// as a busy machine may need.
func redisClient(addr, password string) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: addr, Password: password, MaxRetries: -1, DisableIdentity: true,
		DialTimeout: labtest.Patience, ReadTimeout: labtest.Patience, WriteTimeout: labtest.Patience,
	})
}

// answered repeats a request to a Redis server while the answer is that there is no leader.
func answered(t *testing.T, what string, ask func() error) {
	t.Helper()
	testkit.Eventually(t, what+" is answered", func() bool {
		err := ask()
		if err != nil && !strings.HasPrefix(err.Error(), "CLUSTERDOWN") && !strings.HasPrefix(err.Error(), "UNCERTAIN") {
			t.Fatalf("%s: %v", what, err)
		}
		return err == nil
	})
}

// patiently gives a command of weir kv more time than an operator would, unless it has a
// timeout: a busy machine may need it.
func patiently(args []string) []string {
	verb := 0
	switch {
	case len(args) < 2 || args[0] != "kv" || slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "--timeout") }):
	case slices.Contains([]string{"get", "put", "del", "incr", "range", "watch", "status", "export", "import"}, args[1]):
		verb = 2
	case slices.Contains([]string{"lease", "member"}, args[1]) && len(args) > 2:
		verb = 3
	}
	if verb == 0 {
		return args
	}
	return slices.Insert(slices.Clone(args), verb, "--timeout="+labtest.Patience.String())
}

// answers reports the status code of a URL, 0 for none.
func answers(url string) int {
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Get(url)
	if err != nil {
		return 0
	}
	_, err = io.Copy(io.Discard, res.Body)
	if errors.Join(err, res.Body.Close()) != nil {
		return 0
	}
	return res.StatusCode
}
