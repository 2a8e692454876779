package kvcmd

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/cli/clitest"
	"github.com/weirdb/weir/internal/kvd/wire"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
)

func TestKVClientCommandLines(t *testing.T) {
	program.Script(t, "testdata/kv-client.txt")
}

// TestKVOneCluster runs the tests that do not change the members of the cluster.
func TestKVOneCluster(t *testing.T) {
	// A large request that timed out is still being executed beside the next attempt, which it
	// slows down: a busy machine needs more time.
	patient := map[string]string{"request-timeout": (labtest.Patience / 2).String()}
	r := newKVRig(t, lab.KVConfig{Durability: lab.Fast, Flags: patient})
	t.Run("keys", kvKeysTest)
	t.Run("conditions", kvConditionsTest)
	t.Run("range", kvRangeTest)
	t.Run("lease", kvLeaseTest)
	t.Run("state", func(t *testing.T) { r.stateTest(t) })
	t.Run("large", func(t *testing.T) { r.largeTest(t) })
	t.Run("missed", func(t *testing.T) { r.missedTest(t) })
	t.Run("garbage", func(t *testing.T) { r.garbageTest(t) })
	t.Run("strangers", kvStrangersTest)
}

func kvKeysTest(t *testing.T) {
	program.Refuse(t, cli.ExitFailed, []string{`get "absent": kv: not found`}, "kv", "get", "absent")
	program.Refuse(t, cli.ExitFailed, []string{"not found"}, "kv", "get", "absent", "--weak", "--json")
	if out := program.Must(t, "kv", "put", "greeting", "hello"); !strings.HasPrefix(out, "revision ") {
		t.Errorf("put prints %q", out)
	}
	if out := program.Must(t, "kv", "get", "greeting"); out != "hello\n" {
		t.Errorf("get prints %q", out)
	}
	put := clitest.Decode[kvItem](t, program.Must(t, "kv", "put", "greeting", "hello again", "--json"))
	want := kvItem{Key: "greeting", Value: "hello again", Revision: put.Revision}
	if diff := cmp.Diff(want, clitest.Decode[kvItem](t, program.Must(t, "kv", "get", "greeting", "--json"))); diff != "" || put.Revision == 0 {
		t.Errorf("get --json (-want +got):\n%s", diff)
	}
	if out := program.Must(t, "kv", "put", "weak", "1", "--weak"); out != "ok\n" && !strings.HasPrefix(out, "revision ") {
		t.Errorf("put --weak prints %q", out)
	}
	// Others see it once it is committed, which the client has not waited for long.
	testkit.Eventually(t, "the weak write of a client that has ended is seen by another", func() bool { return program.Call(t, "kv", "get", "weak").Stdout == "1\n" })
	for want, args := range map[string][]string{"1\n": {"n"}, "-2\n": {"m", "--", "-2"}, `{"value":7}`: {"k", "7", "--json"}} {
		if out := program.Must(t, append([]string{"kv", "incr"}, args...)...); strings.Join(strings.Fields(out), "") != strings.TrimSpace(want) {
			t.Errorf("incr %v prints %q, want %q", args, out, want)
		}
	}
	program.Refuse(t, cli.ExitFailed, []string{"not an integer"}, "kv", "incr", "greeting")
	program.Refuse(t, cli.ExitUsage, []string{`DELTA "many"`}, "kv", "incr", "n", "many")
	if out := program.Must(t, "kv", "del", "n", "m", "absent"); out != "2\n" {
		t.Errorf("del prints %q", out)
	}
	if got := clitest.Decode[map[string]int](t, program.Must(t, "kv", "del", "k", "--json")); got["deleted"] != 1 {
		t.Errorf("del --json: %v", got)
	}
	binary := "\xff\x00\xfe"
	if code, stderr := kvPutInput(t, "binary", binary); code != cli.ExitFine {
		t.Fatalf("put from standard input: %d %s", code, stderr)
	}
	if out := program.Must(t, "kv", "get", "binary"); out != binary+"\n" {
		t.Errorf("binary value: %q", out)
	}
	if got := clitest.Decode[kvItem](t, program.Must(t, "kv", "get", "binary", "--json")); string(got.Base64) != binary {
		t.Errorf("binary value in JSON: %+v", got)
	}
}

// kvPutInput writes what is on standard input.
func kvPutInput(t *testing.T, key, value string) (code int, stderr string) {
	t.Helper()
	root := program.Root()
	root.SetIn(strings.NewReader(value))
	var out, err bytes.Buffer
	code = cli.Execute(t.Context(), root, patiently([]string{"kv", "put", key, "-"}), &out, &err)
	return code, err.String()
}

func kvConditionsTest(t *testing.T) {
	first := clitest.Decode[kvItem](t, program.Must(t, "kv", "put", "lock", "me", "--if-absent", "--json"))
	program.Refuse(t, cli.ExitFailed, []string{"condition not met"}, "kv", "put", "lock", "you", "--if-absent")
	program.Refuse(t, cli.ExitFailed, []string{"condition not met"}, "kv", "put", "lock", "you", "--if-revision", fmt.Sprint(first.Revision+1))
	program.Must(t, "kv", "put", "lock", "you", "--if-revision", fmt.Sprint(first.Revision))
	program.Refuse(t, cli.ExitFailed, []string{"condition not met"}, "kv", "put", "lock", "me", "--if-revision", "0")
	program.Refuse(t, cli.ExitUsage, []string{"--weak"}, "kv", "put", "lock", "me", "--if-absent", "--weak")
	program.Refuse(t, cli.ExitUsage, []string{"not both"}, "kv", "put", "lock", "me", "--if-absent", "--if-revision", "1")
	if out := program.Must(t, "kv", "get", "lock"); out != "you\n" {
		t.Errorf("lock: %q", out)
	}
}

func kvRangeTest(t *testing.T) {
	for i := range 5 {
		program.Must(t, "kv", "put", fmt.Sprintf("list/%d", i), strings.Repeat("v", i))
	}
	r := program.Call(t, "kv", "range", "--prefix", "list/", "--limit", "2")
	if r.Code != cli.ExitFine || r.Stdout != "list/0\t\nlist/1\tv\n" || !strings.Contains(r.Stderr, `after "list/1"`) {
		t.Errorf("range: %s", r)
	}
	if out := program.Must(t, "kv", "range", "list/1", "list/3", "--keys-only"); out != "list/1\nlist/2\n" {
		t.Errorf("range: %q", out)
	}
	testkit.Eventually(t, "the nearest replica knows the list", func() bool {
		return program.Must(t, "kv", "range", "--prefix", "list/", "--reverse", "--keys-only", "--limit", "1", "--weak") == "list/4\n"
	})
	type list struct {
		Items []kvItem
		More  bool
	}
	got := clitest.Decode[list](t, program.Must(t, "kv", "range", "--prefix", "list/", "--limit", "0", "--json"))
	if len(got.Items) != 5 || got.More || got.Items[4].Value != "vvvv" || got.Items[4].Revision <= got.Items[3].Revision {
		t.Errorf("range --json: %+v", got)
	}
	if got = clitest.Decode[list](t, program.Must(t, "kv", "range", "none", "of", "--json")); got.Items == nil || len(got.Items) != 0 {
		t.Errorf("an empty range: %+v", got)
	}
	program.Refuse(t, cli.ExitUsage, []string{"--prefix"}, "kv", "range", "a", "--prefix", "b")
	// More than one answer holds, all of it on request.
	value := strings.Repeat("x", 6<<20)
	for _, key := range []string{"big/1", "big/2", "big/3", "big/4"} {
		if code, stderr := kvPutInput(t, key, value); code != cli.ExitFine {
			t.Fatal(stderr)
		}
	}
	for _, order := range []string{"--reverse=false", "--reverse"} {
		out := program.Must(t, "kv", "range", "--prefix", "big/", "--limit", "0", order)
		if n, lines := len(out), strings.Count(out, "\n"); lines != 4 || n != 4*(len("big/1\t\n")+len(value)) {
			t.Errorf("range of 24 MiB %s: %d bytes in %d lines", order, n, lines)
		}
	}
	program.Must(t, "kv", "del", "big/1", "big/2", "big/3", "big/4")
}

// A key is deleted with its lease, and watchers are notified.
func kvLeaseTest(t *testing.T) {
	program.Refuse(t, cli.ExitUsage, []string{`TTL "soon"`}, "kv", "lease", "grant", "soon")
	program.Refuse(t, cli.ExitUsage, []string{"the number that grant printed"}, "kv", "lease", "keep", "x")
	program.Refuse(t, cli.ExitFailed, []string{"lease 999999999"}, "kv", "lease", "keep", "999999999")
	id := strings.TrimSpace(program.Must(t, "kv", "lease", "grant", "1h"))
	first, err := strconv.ParseUint(id, 10, 64)
	if err != nil {
		t.Errorf("a lease of %q", id)
	}
	put := clitest.Decode[kvItem](t, program.Must(t, "kv", "put", "held/1", "x", "--lease", id, "--json"))
	w := watching(t, "--prefix", "held/", "--since", fmt.Sprint(put.Revision))
	program.Must(t, "kv", "lease", "keep", id)
	if got := clitest.Decode[kvItem](t, program.Must(t, "kv", "get", "held/1", "--json")); fmt.Sprint(got.Lease) != id {
		t.Errorf("lease of a key: %+v, want %s", got, id)
	}
	program.Must(t, "kv", "lease", "revoke", id)
	program.Refuse(t, cli.ExitFailed, []string{"not found"}, "kv", "get", "held/1")
	program.Refuse(t, cli.ExitFailed, []string{"lease " + id}, "kv", "lease", "revoke", id)
	var later uint64
	testkit.Eventually(t, "a key is put before its lease of 2 s has ended", func() bool {
		if later = clitest.Decode[map[string]uint64](t, program.Must(t, "kv", "lease", "grant", "2s", "--json"))["lease"]; later <= first {
			t.Errorf("fencing tokens: %d, then %d", first, later)
		}
		return program.Call(t, "kv", "put", "held/2", "x", "--lease", fmt.Sprint(later)).Code == cli.ExitFine
	})
	testkit.Eventually(t, "the lease that nobody keeps has ended", func() bool { return program.Call(t, "kv", "get", "held/2").Code == cli.ExitFailed })
	program.Refuse(t, cli.ExitFailed, []string{fmt.Sprint("lease ", later)}, "kv", "lease", "keep", fmt.Sprint(later))
	program.Must(t, "kv", "put", "held/3", "x", "--ttl", "50ms")
	testkit.Eventually(t, "a key that lives for 50 ms is gone", func() bool { return program.Call(t, "kv", "get", "held/3").Code == cli.ExitFailed })
	w.tells(t, 6)
	var got []string
	for line := range strings.Lines(w.end(t)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		got = append(got, strings.Join(f[1:], " "))
	}
	if diff := cmp.Diff([]string{"put held/1 x", "delete held/1 ", "put held/2 x", "expire held/2 ", "put held/3 x", "expire held/3 "}, got); diff != "" {
		t.Errorf("watch (-want +got):\n%s", diff)
	}
}

func (r *kvRig) stateTest(t *testing.T) {
	r = r.in(t)
	type status struct {
		Replicas []kvReplica
		Down     map[string]string
	}
	var leader int
	var table, list string
	var s, one status
	var members []kvMember
	testkit.Eventually(t, "nobody is elected while the state is shown", func() bool {
		leader = r.leader(1, 2, 3)
		term := r.report(leader).Term
		table, list = whole(t), program.Must(t, "kv", "member", "list")
		s = clitest.Decode[status](t, whole(t, "--json"))
		members = clitest.Decode[[]kvMember](t, program.Must(t, "kv", "member", "list", "--json"))
		// The flag goes before the environment. Of a new leader the client would learn.
		one = clitest.Decode[status](t, program.Call(t, "kv", "status", "--json", r.alone(leader)).Stdout)
		return r.leader(1, 2, 3) == leader && r.report(leader).Term == term
	})
	if n := strings.Count(table, "follower"); n != 2 || strings.Count(table, "leader") != 1 || !strings.Contains(table, "memory") {
		t.Errorf("status:\n%s", table)
	}
	if len(s.Replicas) != 3 || len(s.Down) != 0 || s.Replicas[leader-1].Role != "leader" || !s.Replicas[0].Ready || s.Replicas[2].ID != 3 {
		t.Errorf("status --json: %+v", s)
	}
	if len(members) != 3 || !members[leader-1].Leader || !members[1].Voter || members[2].Addr != r.PeerAddrs()[2] || members[2].Redis != r.Addrs()[2] {
		t.Errorf("member list --json: %+v", members)
	}
	if strings.Count(list, "yes") != 4 {
		t.Errorf("member list:\n%s", list)
	}
	if len(one.Replicas) != 1 {
		t.Errorf("status of one endpoint: %+v", one)
	}
	t.Setenv("WEIR_KV_ENDPOINTS", "127.0.0.1:1")
	refuseInTime(t, cli.ExitFailed, []string{"no replica answers: dial 127.0.0.1:1: connect: connection refused; context deadline exceeded\n"}, "kv", "get", "greeting")
	refuseInTime(t, cli.ExitShortfall, []string{"no replica answers"}, "kv", "status")
	nobody := program.Call(t, "kv", "status", "--json", "--timeout", "50ms")
	if s := clitest.Decode[status](t, nobody.Stdout); nobody.Code != cli.ExitShortfall || s.Replicas == nil || len(s.Replicas) > 0 || !strings.Contains(s.Down["127.0.0.1:1"], "refused") {
		t.Errorf("status --json where nobody answers: exit code %d, %s", nobody.Code, nobody.Stdout)
	}
	t.Setenv("WEIR_KV_SECRET_FILE", filepath.Join(t.TempDir(), "none"))
	program.Refuse(t, cli.ExitFailed, []string{"read the secret"}, "kv", "get", "greeting")
}

// A request that is too large is refused with a reason, and the next one is answered.
func (r *kvRig) largeTest(t *testing.T) {
	r = r.in(t)
	program.Refuse(t, cli.ExitFailed, []string{"too large"}, "kv", "put", strings.Repeat("k", wire.MaxKey+1), "v")
	code, stderr := kvPutInput(t, "large", strings.Repeat("v", wire.MaxValue+1))
	if code != cli.ExitFailed || !strings.Contains(stderr, "too large") {
		t.Errorf("a value of 8 MiB and 1 byte: %d %s", code, stderr)
	}
	c := redisClient(r.Addrs()[0], "")
	defer c.Close()
	if err := c.Set(t.Context(), strings.Repeat("k", wire.MaxKey+1), "v", 0).Err(); err == nil || !strings.HasPrefix(err.Error(), "ERR") {
		t.Errorf("a key of 64 KiB and 1 byte: %v", err)
	}
	// This one breaks the protocol's bounds, and so its connection: the reply may
	// be lost with it.
	if err := c.Set(t.Context(), "large", strings.Repeat("v", wire.MaxValue+1), 0).Err(); err == nil {
		t.Error("a value of 8 MiB and 1 byte was taken")
	}
	// So much can keep a busy machine from hearing of its leader in time.
	answered(t, "SET of 8 MiB", func() error { return c.Set(t.Context(), "large", strings.Repeat("v", wire.MaxValue), 0).Err() })
	answered(t, "STRLEN", func() error {
		n, err := c.StrLen(t.Context(), "large").Result()
		if err == nil && n != wire.MaxValue {
			t.Errorf("a value of 8 MiB has %d bytes", n)
		}
		return err
	})
	answered(t, "DEL", func() error { return c.Del(t.Context(), "large").Err() })
	program.Refuse(t, cli.ExitFailed, []string{"not found"}, "kv", "get", "large")
}

// A watch from a revision that is no longer known returns an error.
func (r *kvRig) missedTest(t *testing.T) {
	r = r.in(t)
	first := clitest.Decode[kvItem](t, program.Must(t, "kv", "put", "watched", "x", "--json"))
	c := redisClient(r.Addrs()[0], "")
	defer c.Close()
	pairs := make([]any, 0, 80_000)
	for i := range 40_000 {
		pairs = append(pairs, fmt.Sprintf("many/%d", i), "")
	}
	for range 2 {
		answered(t, "MSET", func() error { return c.MSet(t.Context(), pairs...).Err() })
	}
	program.Must(t, "kv", "put", "marker", "x")
	for id := 1; id <= 3; id++ { // one that is behind would know the change still
		testkit.Eventually(t, "all replicas have all changes", func() bool {
			return program.Call(t, "kv", "get", "marker", "--weak", r.alone(id)).Code == cli.ExitFine
		})
	}
	program.Refuse(t, cli.ExitShortfall, []string{"changes were missed", "read what you watch again"}, "kv", "watch", "watched", "--since", fmt.Sprint(first.Revision))
	answered(t, "FLUSHDB", func() error { return c.FlushDB(t.Context()).Err() })
	program.Must(t, "kv", "put", "greeting", "hello")
}

// Garbage ends its connection and affects no other.
func (r *kvRig) garbageTest(t *testing.T) {
	r = r.in(t)
	pids := fmt.Sprint(r.PIDs())
	noise := make([]byte, 256<<10)
	if _, err := rand.Read(noise); err != nil {
		t.Fatal(err)
	}
	pieces := map[string][]byte{
		"noise": noise, "zeros": make([]byte, 64<<10), "HTTP": []byte("GET / HTTP/1.1\r\nHost: weir\r\n\r\n"),
		"TLS": append([]byte{22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3}, noise[:509]...), "RESP": []byte("*1000000000\r\n$4\r\nPING\r\n"),
	}
	for name, bytes := range pieces {
		for _, addr := range []string{r.PeerAddrs()[0], r.Addrs()[0], r.AdminAddrs()[0]} {
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = conn.Write(bytes) // refused midway, mostly
			if err := conn.(*net.TCPConn).CloseWrite(); err == nil {
				_, _ = conn.Read(make([]byte, 1)) // an answer, or the end
			}
			if err := conn.Close(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	testkit.Eventually(t, "the replica answers after garbage", func() bool {
		return program.Call(t, "kv", "get", "greeting", "--weak", r.alone(1)).Stdout == "hello\n"
	})
	program.Must(t, "kv", "incr", "after garbage")
	testkit.Eventually(t, "the replica is ready after garbage", func() bool { return answers("http://"+r.AdminAddrs()[0]+"/readyz") == http.StatusOK })
	if fmt.Sprint(r.PIDs()) != pids {
		t.Errorf("processes %v, before garbage %s", r.PIDs(), pids)
	}
	if _, metrics := r.admin(1, "/metrics"); !strings.Contains(metrics, `weir_kv_refused_connections_total{`) || !strings.Contains(metrics, `reason="malformed"`) {
		t.Error("/metrics does not count the strangers")
	}
}

// A client of another cluster, or one with certificates at a cluster without TLS, gets an error
// at once that says so.
func kvStrangersTest(t *testing.T) {
	program.Refuse(t, cli.ExitFailed, []string{"other cluster", `this is cluster "weir"`}, "kv", "get", "greeting", "--cluster", "another", "--timeout", "1m")
	ca := newKVAuthority(t)
	cert, key := ca.issue("client")
	program.Refuse(t, cli.ExitFailed, []string{"no TLS"}, "kv", "get", "greeting", "--timeout", "1m", "--tls-ca", ca.file, "--tls-cert", cert, "--tls-key", key)
	if out := program.Must(t, "kv", "incr", "counted", "--cluster", "weir"); out != "1\n" {
		t.Errorf("counted: %q", out)
	}
}
