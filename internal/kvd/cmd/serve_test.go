package kvcmd

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/cli/clitest"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
)

func TestKVCommandLines(t *testing.T) {
	program.Script(t, "testdata/kv.txt")
}

func TestKVConfiguration(t *testing.T) {
	clitest.ClearEnvironment(t)
	file := filepath.Join(t.TempDir(), "kv.yaml")
	text := "id: 2\npeers: 1=127.0.0.1:7001,2=127.0.0.1:7002/6379\ndata: d\npreset: curp\nmax_value: 1kB\njoin: true\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("WEIR_KV_PRESET", "curp-ho")
	t.Setenv("WEIR_KV_BATCH_DELAY", "150us")
	loader := kvLoader()
	loader.Flags, loader.File = map[string]string{"max-value": "2kB"}, file
	c, err := loadKV(loader)
	if err != nil {
		t.Fatal(err)
	}
	r := &c.replica
	got := fmt.Sprint(r.ID, r.Preset, r.MaxValue, r.BatchDelay, r.Redis, r.Switches.Fast, r.Join, r.Election)
	if want := "2curp-ho2048 150µs127.0.0.1:6379true true 300ms"; got != want {
		t.Errorf("configuration %s, want %s", got, want)
	}
}

// served is a `weir kv serve` that runs.
type served struct {
	admin, redis string
	stop         context.CancelFunc
	code         chan int
	mu           sync.Mutex
	out          bytes.Buffer
}

func (s *served) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.Write(p)
}

func (s *served) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.String()
}

func (s *served) get(t *testing.T, path string) (int, string) {
	t.Helper()
	res, err := http.Get("http://" + s.admin + path)
	if err != nil {
		t.Fatalf("%v\n%s", err, s)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(body)
}

func TestKVServe(t *testing.T) {
	clitest.ClearEnvironment(t)
	addrs := labtest.Addrs(t, 9)
	var peers []string
	for i := range 3 {
		_, port, _ := net.SplitHostPort(addrs[3+i])
		peers = append(peers, fmt.Sprintf("%d=%s/%s", i+1, addrs[i], port))
	}
	dir := t.TempDir()
	secret, passwords := filepath.Join(dir, "secret"), filepath.Join(dir, "passwords")
	for file, text := range map[string]string{secret: "a secret that is long enough\n", passwords: "geheim\n"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var all []*served
	for i := range 3 {
		ctx, stop := context.WithCancel(t.Context())
		s := &served{admin: addrs[6+i], redis: addrs[3+i], stop: stop, code: make(chan int, 1)}
		all = append(all, s)
		args := []string{
			"kv", "serve", "--id", fmt.Sprint(i + 1), "--peers", strings.Join(peers, ","), "--data", filepath.Join(dir, fmt.Sprint(i)),
			"--admin", s.admin, "--secret-file", secret, "--resp-password-file", passwords, "--log-format", "json",
		}
		go func() { s.code <- program.Execute(ctx, args, s, s) }()
		defer stop()
	}
	for i, s := range all {
		testkit.Await(t, func() bool {
			res, err := http.Get("http://" + s.admin + "/readyz")
			if err != nil {
				return false
			}
			_ = res.Body.Close()
			return res.StatusCode == http.StatusOK
		}, func() string { return fmt.Sprintf("replica %d is not ready:\n%s", i+1, s) })
	}
	for i, s := range all {
		stranger := redisClient(s.redis, "")
		if err := stranger.Ping(t.Context()).Err(); err == nil || !strings.Contains(err.Error(), "NOAUTH") {
			t.Errorf("without a password: %v", err)
		}
		client := redisClient(s.redis, "geheim")
		answered(t, fmt.Sprintf("INCR at replica %d", i+1), func() error { return client.Incr(t.Context(), "n").Err() })
		_, _ = stranger.Close(), client.Close()
	}
	checkAdmin(t, all[0])
	for i, s := range all {
		s.stop()
		if code := testkit.Receive(t, "the replica ends", s.code); code != cli.ExitFine {
			t.Errorf("replica %d ended with %d:\n%s", i+1, code, s)
		}
		if strings.Contains(s.String(), "geheim") || strings.Contains(s.String(), "a secret") {
			t.Errorf("the log of replica %d says a password:\n%s", i+1, s)
		}
	}
}

func checkAdmin(t *testing.T, s *served) {
	t.Helper()
	var report struct {
		ID, Revision uint64
		Ready        bool
		Members      []struct{ Up bool }
	}
	const connected = `weir_kv_peer_up{cluster="weir",peer="2",replica="1"} 1`
	var metrics string
	// A replica may be ready without all connections, and an election may be in progress.
	testkit.Eventually(t, "the replica is ready and connected with all others", func() bool {
		code, body := s.get(t, "/status.json")
		if err := json.Unmarshal([]byte(body), &report); err != nil || code != http.StatusOK || report.ID != 1 || len(report.Members) != 3 {
			t.Fatalf("/status.json: %d %v\n%s", code, err, body)
		}
		_, metrics = s.get(t, "/metrics")
		return report.Ready && report.Members[0].Up && report.Members[1].Up && report.Members[2].Up && strings.Contains(metrics, connected)
	})
	for _, name := range []string{
		"weir_kv_term", "weir_kv_is_leader", "weir_kv_commit_index", "weir_kv_applied_index", "weir_kv_operations_total", "weir_kv_fsync_seconds_bucket",
		"weir_kv_fsync_records_bucket", "weir_kv_turn_messages_bucket", "weir_kv_votes_yes_total",
		"weir_kv_sessions", "weir_kv_keys", "weir_kv_bytes", "weir_kv_weak_pending", "weir_kv_weak_lost_total", "weir_kv_snapshots_saved_total",
		"weir_kv_elections_total", "weir_build_info", "go_goroutines",
	} {
		if !strings.Contains(metrics, name) {
			t.Errorf("/metrics lacks %s", name)
		}
	}
	if _, body := s.get(t, "/"); !strings.Contains(body, "replica 1 of cluster weir") || !strings.Contains(body, "leader") {
		t.Errorf("/:\n%s", body)
	}
	if code, _ := s.get(t, "/healthz"); code != http.StatusOK {
		t.Errorf("/healthz: %d", code)
	}
	checkPeerDelay(t, s)
}

// checkPeerDelay changes the delay of writes to other replicas while the replica runs.
func checkPeerDelay(t *testing.T, s *served) {
	t.Helper()
	put := func(body string) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://"+s.admin+"/peer-delay", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		return res.StatusCode
	}
	for _, step := range []struct {
		body string
		code int
		then string
	}{{"150us\n", http.StatusOK, "150µs"}, {"1s", http.StatusBadRequest, "150µs"}, {"soon", http.StatusBadRequest, "150µs"}, {"-1us", http.StatusBadRequest, "150µs"}, {"0", http.StatusOK, "0s"}} {
		code := put(step.body)
		if _, now := s.get(t, "/peer-delay"); code != step.code || strings.TrimSpace(now) != step.then {
			t.Errorf("PUT %q: %d, and the delay is %s; want %d and %s", step.body, code, now, step.code, step.then)
		}
	}
	if _, metrics := s.get(t, "/metrics"); !strings.Contains(metrics, "weir_kv_peer_delay_seconds") || !strings.Contains(metrics, "weir_kv_client_sent_writes_total") || !strings.Contains(metrics, "weir_kv_redis_writes_total") {
		t.Errorf("/metrics lacks what counts writes")
	}
}
