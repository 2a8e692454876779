package kvcmd

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/cli/clitest"
	"github.com/weirdb/weir/internal/kvd/replica"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
)

// TestKVFaults makes replicas crash, hang and restart under load. No operation may fail, and
// the commands of operators must work meanwhile.
func TestKVFaults(t *testing.T) {
	testkit.Long(t, "kills, stops and restarts replicas some thirty times")
	r := newKVRig(t, lab.KVConfig{})
	program.Must(t, "kv", "put", "greeting", "hello")
	w := watching(t, "--prefix", "n/", "--since", "1")
	t.Run("crashes", func(t *testing.T) { r.crashTest(t) })
	t.Run("all crash", func(t *testing.T) { r.blackoutTest(t) })
	t.Run("hangs", func(t *testing.T) { r.hangTest(t) })
	t.Run("rolling restart", func(t *testing.T) { r.rollingTest(t) })
	// One watch saw it all: each change once, in order, of every counter.
	want := 0
	for _, key := range []string{"n/crash", "n/blackout", "n/hang", "n/rolling"} {
		r := program.Call(t, "kv", "get", key)
		n, err := strconv.Atoi(strings.TrimSpace(r.Stdout))
		if err != nil {
			t.Fatalf("%s: %s", key, r)
		}
		want += n
	}
	w.tells(t, want)
	next := map[string]int{}
	var revision uint64
	for line := range strings.Lines(w.end(t)) {
		f := strings.Split(strings.TrimSpace(line), "\t")
		rev, err := strconv.ParseUint(f[0], 10, 64)
		if len(f) != 4 || err != nil || rev <= revision || f[1] != "put" || f[3] != strconv.Itoa(next[f[2]]+1) {
			t.Fatalf("watch: %q after revision %d with counters %v", line, revision, next)
		}
		revision = rev
		next[f[2]]++
	}
}

// Each replica in turn is killed: the command line says so, and works.
func (r *kvRig) crashTest(t *testing.T) {
	r = r.in(t)
	load := r.load("n/crash")
	for id := 1; id <= 3; id++ {
		r.linked()
		r.node(id).Kill()
		load.goesOn(20)
		if out := program.Must(t, "kv", "get", "greeting"); out != "hello\n" {
			t.Errorf("with replica %d dead: %q", id, out)
		}
		refuseInTime(t, cli.ExitShortfall, []string{r.PeerAddrs()[id-1] + " does not answer", "1 of 3 replicas do not answer"}, "kv", "status")
		for other := 1; other <= 3; other++ {
			if other == id {
				continue
			}
			testkit.Eventually(t, "the others are ready", func() bool { return answers("http://"+r.AdminAddrs()[other-1]+"/readyz") == http.StatusOK })
			testkit.Eventually(t, fmt.Sprintf("replica %d says that all but %d are up", other, id), func() bool {
				return !slices.ContainsFunc(r.report(other).Members, func(m replica.MemberReport) bool { return m.Up == (m.ID == uint64(id)) })
			})
			r.logged(other, "replica disconnected", fmt.Sprintf("peer=%d", id))
		}
		r.restart(id)
		r.await()
		whole(t)
	}
	if want, got := load.end()+"\n", program.Must(t, "kv", "get", "n/crash"); got != want {
		t.Errorf("the counter is %q, want %q", got, want)
	}
}

// All replicas are killed at once: none answers, and after the restart nothing is lost.
func (r *kvRig) blackoutTest(t *testing.T) {
	r = r.in(t)
	load := r.load("n/blackout")
	load.goesOn(50)
	for _, n := range r.Nodes() {
		n.Kill()
	}
	refuseInTime(t, cli.ExitShortfall, []string{"no replica answers"}, "kv", "status")
	refuseInTime(t, cli.ExitFailed, []string{"no replica answers"}, "kv", "get", "greeting", "--weak")
	r.restart(2)
	// One of three knows no leader, answers weak reads and says what is wrong.
	if out := program.Must(t, "kv", "get", "greeting", "--weak"); out != "hello\n" {
		t.Errorf("a weak read at the only replica: %q", out)
	}
	program.Refuse(t, cli.ExitShortfall, []string{"no replica that answers leads", "no leader"}, "kv", "status")
	refuseInTime(t, cli.ExitFailed, []string{"outcome unknown"}, "kv", "put", "greeting", "hello")
	if code, body := r.admin(2, "/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "no leader") {
		t.Errorf("/readyz of the only replica: %d %s", code, body)
	}
	r.restart(1)
	r.restart(3)
	r.await()
	load.goesOn(20)
	if want, got := load.end()+"\n", program.Must(t, "kv", "get", "n/blackout"); got != want {
		t.Errorf("the counter is %q, want %q", got, want)
	}
}

// A replica that hangs now and then, even the leader, does not block the others permanently.
func (r *kvRig) hangTest(t *testing.T) {
	r = r.in(t)
	load := r.load("n/hang")
	victim := r.leader(1, 2, 3)
	for range testkit.Rounds(2, 4) {
		n := r.node(victim)
		n.Pause()
		load.goesOn(20)
		refuseInTime(t, cli.ExitShortfall, []string{r.PeerAddrs()[victim-1] + " does not answer", "1 of 3 replicas do not answer"}, "kv", "status")
		n.Resume()
		load.goesOn(5)
		victim = victim%3 + 1
	}
	r.await()
	whole(t)
	if want, got := load.end()+"\n", program.Must(t, "kv", "get", "n/hang"); got != want {
		t.Errorf("the counter is %q, want %q", got, want)
	}
}

// Each replica is stopped by SIGTERM and started again; the leader hands over.
func (r *kvRig) rollingTest(t *testing.T) {
	r = r.in(t)
	load := r.load("n/rolling")
	for range testkit.Rounds(1, 2) {
		for id := 1; id <= 3; id++ {
			r.restart(id)
			r.await()
			load.goesOn(5)
			r.logged(id, "weir kv serve has stopped")
		}
	}
	// One that loses the lead just before it is stopped has nothing to hand over,
	// and one whose heir is too busy does not wait for it for ever.
	testkit.Eventually(t, "a leader that is stopped hands over", func() bool {
		leader := r.leader(1, 2, 3)
		handed := func() int { return strings.Count(r.node(leader).LogTail(10_000), "leadership handed over") }
		before := handed()
		r.restart(leader)
		r.await()
		return handed() > before
	})
	if want, got := load.end()+"\n", program.Must(t, "kv", "get", "n/rolling"); got != want {
		t.Errorf("the counter is %q, want %q", got, want)
	}
}

// TestKVPartition cuts the leader off from the others. It answers nothing that
// needs a majority, and what it knows to weak reads; the others go on; healed,
// all have the same.
func TestKVPartition(t *testing.T) {
	relays := relayedPeers{t: t}
	r := newKVRig(t, lab.KVConfig{Each: relays.between})
	program.Must(t, "kv", "put", "k", "before")
	for id := 1; id <= 3; id++ { // any of them may be cut off
		testkit.Eventually(t, fmt.Sprintf("replica %d has what was put", id), func() bool {
			return program.Call(t, "kv", "get", "k", "--weak", r.alone(id)).Stdout == "before\n"
		})
	}
	old := r.leader(1, 2, 3)
	others := []int{old%3 + 1, (old+1)%3 + 1}
	majority := "--endpoints=" + r.PeerAddrs()[others[0]-1] + "," + r.PeerAddrs()[others[1]-1]
	load := r.load("n")
	load.goesOn(20)
	relays.cut(old)
	testkit.Eventually(t, "the minority is not ready", func() bool {
		return answers("http://"+r.AdminAddrs()[old-1]+"/readyz") == http.StatusServiceUnavailable
	})
	refuseInTime(t, cli.ExitFailed, []string{"outcome unknown"}, "kv", "put", "k", "lost", r.alone(old))
	refuseInTime(t, cli.ExitFailed, []string{"deadline exceeded after ", "weir kv status"}, "kv", "get", "k", r.alone(old))
	if out := program.Must(t, "kv", "get", "k", "--weak", r.alone(old)); out != "before\n" {
		t.Errorf("a weak read at the minority: %q", out)
	}
	program.Refuse(t, cli.ExitShortfall, []string{"no replica that answers leads"}, "kv", "status", r.alone(old))
	r.redisTest(old)
	if next := r.leader(others...); next == old {
		t.Errorf("the majority is led by %d, which is cut off", next)
	}
	program.Must(t, "kv", "put", "other", "after", majority)
	if out := program.Must(t, "kv", "get", "k", majority); out != "before\n" {
		t.Errorf("a strong read at the majority: %q", out)
	}
	load.goesOn(20)
	whole(t, majority)
	relays.heal()
	r.leader(1, 2, 3)
	want := load.end()
	r.await()
	if out := program.Must(t, "kv", "get", "n"); out != want+"\n" {
		t.Errorf("the counter is %q after healing, want %s", out, want)
	}
	// The write whose outcome is not known may have waited at the old leader, but
	// in the end all have the same.
	for id := 1; id <= 3; id++ {
		testkit.Eventually(t, fmt.Sprintf("replica %d has what all have", id), func() bool {
			return cmp.Equal(program.Must(t, "kv", "range", "--json"), program.Must(t, "kv", "range", "--json", "--weak", r.alone(id)))
		})
	}
}

// redisTest looks at a replica without a majority as its Redis clients do.
func (r *kvRig) redisTest(id int) {
	r.t.Helper()
	patient := redisClient(r.Addrs()[id-1], "")
	defer patient.Close()
	c := patient.Conn() // one connection, which READONLY is for
	defer c.Close()
	hasty := redis.NewClient(&redis.Options{Addr: r.Addrs()[id-1], MaxRetries: -1, DisableIdentity: true, ReadTimeout: 300 * time.Millisecond})
	defer hasty.Close()
	// At first a request waits for a leader, longer than this client does.
	testkit.Eventually(r.t, "SET without a majority is refused", func() bool {
		err := hasty.Set(r.t.Context(), "k", "lost", 0).Err()
		if err == nil {
			r.t.Error("SET was acknowledged without a majority")
		}
		return err == nil || strings.HasPrefix(err.Error(), "CLUSTERDOWN") || strings.HasPrefix(err.Error(), "UNCERTAIN")
	})
	if err := c.Get(r.t.Context(), "k").Err(); err == nil || !strings.HasPrefix(err.Error(), "CLUSTERDOWN") {
		r.t.Errorf("GET without a majority: %v", err)
	}
	if err := c.ReadOnly(r.t.Context()).Err(); err != nil {
		r.t.Errorf("READONLY: %v", err)
	}
	if got, err := c.Get(r.t.Context(), "k").Result(); err != nil || got != "before" {
		r.t.Errorf("GET on a READONLY connection without a majority: %q, %v", got, err)
	}
}

// whole waits until weir kv status finds every replica, and returns what it
// prints: one that has just come back may be busy for as long as it likes, and so
// may an election.
func whole(t *testing.T, flags ...string) string {
	t.Helper()
	var r clitest.Result
	testkit.Await(t, func() bool {
		r = program.Call(t, append([]string{"kv", "status"}, flags...)...)
		return r.Code == cli.ExitFine
	}, func() string { return "weir kv status: " + r.String() })
	return r.Stdout
}

// refuseInTime is refuse for what ends for want of time. On a busy machine little
// time may not be enough to come as far as the words, so that it is given more.
func refuseInTime(t *testing.T, code int, words []string, args ...string) {
	t.Helper()
	for timeout := 300 * time.Millisecond; ; timeout *= 2 {
		timed := append(slices.Clone(args), "--timeout", timeout.String())
		if timeout > labtest.Patience/4 {
			program.Refuse(t, code, words, timed...)
			return
		}
		r := program.Call(t, timed...)
		if r.Code == cli.ExitFine {
			t.Errorf("weir %s: %s\nwant exit code %d", strings.Join(timed, " "), r, code)
			return
		}
		if r.Code == code && holdsAll(r.Stdout+r.Stderr, words...) {
			return
		}
	}
}
