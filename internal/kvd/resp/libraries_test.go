package resp_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/weirdb/weir/internal/kvd/resp"
	"github.com/weirdb/weir/internal/testkit"
)

// TestGoRedis uses what applications use, in both protocols.
func TestGoRedis(t *testing.T) {
	_, addr := serveFake(t, resp.Config{Users: []resp.User{{Name: "app", Password: "secret"}}})
	for _, proto := range []int{2, 3} {
		t.Run(fmt.Sprint("RESP", proto), func(t *testing.T) {
			c := goredis.NewClient(&goredis.Options{
				Addr: addr, Protocol: proto, Username: "app", Password: "secret", ClientName: "test",
				MaxRetries: -1, DialTimeout: patience, ReadTimeout: patience, WriteTimeout: patience, // nothing twice
			})
			defer c.Close()
			exerciseGoRedis(t, c)
		})
	}
}

func exerciseGoRedis(t *testing.T, c goredis.UniversalClient) {
	t.Helper()
	ctx := t.Context()
	ok := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	ok("flush", c.FlushAll(ctx).Err())
	ok("set", c.Set(ctx, "a", "1", time.Hour).Err())
	if v, err := c.Get(ctx, "a").Result(); err != nil || v != "1" {
		t.Fatal(v, err)
	}
	if _, err := c.Get(ctx, "nothing").Result(); !errors.Is(err, goredis.Nil) {
		t.Fatal(err)
	}
	if d, err := c.TTL(ctx, "a").Result(); err != nil || d < 59*time.Minute || d > time.Hour {
		t.Fatal(d, err)
	}
	if took, err := c.SetNX(ctx, "a", "2", 0).Result(); err != nil || took {
		t.Fatal(took, err)
	}
	if old, err := c.SetArgs(ctx, "a", "2", goredis.SetArgs{Get: true, KeepTTL: true}).Result(); err != nil || old != "1" {
		t.Fatal(old, err)
	}
	results, err := c.Pipelined(ctx, func(p goredis.Pipeliner) error {
		for i := range 100 {
			p.IncrBy(ctx, "n", int64(i))
		}
		return nil
	})
	if last := results[99].(*goredis.IntCmd).Val(); err != nil || last != 4950 {
		t.Fatal(last, err)
	}
	results, err = c.TxPipelined(ctx, func(p goredis.Pipeliner) error {
		p.Set(ctx, "{t}x", "1", 0)
		p.Get(ctx, "{t}x")
		p.MGet(ctx, "{t}x", "{t}y")
		return nil
	})
	if got := results[1].(*goredis.StringCmd).Val(); err != nil || got != "1" {
		t.Fatal(got, err)
	}
	incrementByWatch(t, c)
	for i := range 25 {
		ok("set", c.Set(ctx, fmt.Sprint("scan:", i), "1", 0).Err())
	}
	n := 0
	for it := c.Scan(ctx, 0, "scan:*", 7).Iterator(); it.Next(ctx); n++ {
	}
	if n != 25 {
		t.Fatalf("a scan finds %d keys", n)
	}
	if deleted, err := c.Del(ctx, "{t}x", "{t}y").Result(); err != nil || deleted != 1 {
		t.Fatal(deleted, err)
	}
	if cas, err := c.Do(ctx, "WEIR.CAS", "cas", 0, "v").Int(); err != nil || cas == 0 {
		t.Fatal(cas, err)
	}
}

// incrementByWatch lets transactions that begin with a read collide.
func incrementByWatch(t *testing.T, c goredis.UniversalClient) {
	t.Helper()
	ctx := t.Context()
	failures := 0
	add := func(tx *goredis.Tx) error {
		n, err := tx.Get(ctx, "counter").Int()
		if err != nil && !errors.Is(err, goredis.Nil) {
			return err
		}
		if failures == 0 { // somebody else is faster, once
			failures++
			if err := c.Incr(ctx, "counter").Err(); err != nil {
				return err
			}
		}
		_, err = tx.TxPipelined(ctx, func(p goredis.Pipeliner) error {
			p.Set(ctx, "counter", n+1, 0)
			return nil
		})
		return err
	}
	if err := c.Watch(ctx, add, "counter"); !errors.Is(err, goredis.TxFailedErr) {
		t.Fatalf("a transaction whose key was changed: %v", err)
	}
	if err := c.Watch(ctx, add, "counter"); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Get(ctx, "counter").Int(); err != nil || n != 2 {
		t.Fatal(n, err)
	}
}

// member is a replica of a cluster that shares one store.
type member struct {
	*fakeStore
	status *resp.Status
}

func (m *member) Status() *resp.Status { return m.status }

// TestClusterClients: clients of Redis clusters find the leader, whichever
// replica they ask first.
func TestClusterClients(t *testing.T) {
	store := newFakeStore()
	members := []*member{{store, &resp.Status{ID: 1, Leader: 2}}, {store, &resp.Status{ID: 2, Leader: 2}}}
	var list []resp.Member
	for i, m := range members {
		_, addr := serve(t, m, resp.Config{})
		list = append(list, resp.Member{ID: uint64(i + 1), Resp: addr, Up: true, Voter: true})
	}
	for _, m := range members {
		m.status.Members = list
	}
	follower := list[0].Resp
	options := func() *goredis.ClusterOptions {
		return &goredis.ClusterOptions{
			Addrs: []string{follower}, MaxRetries: -1, DialTimeout: patience, ReadTimeout: patience, WriteTimeout: patience,
		}
	}
	c := goredis.NewClusterClient(options())
	defer c.Close()
	exerciseGoRedis(t, c)
	anywhere := options()
	anywhere.ReadOnly, anywhere.RouteRandomly = true, true
	reader := goredis.NewClusterClient(anywhere)
	defer reader.Close()
	for range 20 {
		if n, err := reader.Get(t.Context(), "counter").Int(); err != nil || n != 2 {
			t.Fatal(n, err)
		}
	}
}

// runTool runs a program of Redis against addr.
func runTool(t *testing.T, input, tool, addr string, args ...string) string {
	t.Helper()
	path, err := exec.LookPath(tool)
	if err != nil {
		t.Skip(err, "(apt-get install redis-tools)")
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), path, append([]string{"-h", host, "-p", port}, args...)...)
	cmd.Stdin = strings.NewReader(input)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s", tool, err, out.String())
	}
	return out.String()
}

func TestRedisCLI(t *testing.T) {
	var addr string
	const script = "SET greeting \"hello world\"\nGET greeting\nINCR n\nMGET greeting nothing n\nLPUSH l 1\nMULTI\nINCR n\nEXEC\n" +
		"SET a\nWEIR.GET greeting\nTTL greeting\n"
	want := `OK
hello world
1
hello world

1
ERR unknown command 'LPUSH', with args beginning with: 'l' '1' (weir holds strings only: no lists, sets, hashes, sorted sets or streams)

OK
QUEUED
2
ERR wrong number of arguments for 'set' command

hello world
1
-1
`
	for _, proto := range []string{"-2", "-3"} {
		_, addr = serveFake(t, resp.Config{})
		if got := runTool(t, script, "redis-cli", addr, proto); got != want {
			t.Errorf("redis-cli %s answers\n%s\nnot\n%s", proto, got, want)
		}
	}
	if got := runTool(t, "", "redis-cli", addr, "--scan", "--pattern", "g*"); got != "greeting\n" {
		t.Errorf("--scan answers %q", got)
	}
	if got := runTool(t, "SET via pipe\r\n", "redis-cli", addr, "--pipe"); !strings.Contains(got, "errors: 0, replies: 1") {
		t.Errorf("--pipe answers %q", got)
	}
	if got := runTool(t, "", "redis-cli", addr, "-r", "2", "PING"); got != "PONG\nPONG\n" {
		t.Errorf("PING answers %q", got)
	}
}

func TestRedisBenchmark(t *testing.T) {
	testkit.Long(t, "runs redis-benchmark")
	_, addr := serveFake(t, resp.Config{})
	for _, pipeline := range []string{"1", "16", "64"} {
		out := runTool(t, "", "redis-benchmark", addr, "-t", "ping,set,get,incr,mset", "-n", "2000", "-c", "20", "-P", pipeline, "-q", "-r", "1000")
		if strings.Count(out, "requests per second") != 6 || strings.Contains(out, "rror") { // PING is sent inline too
			t.Errorf("-P %s:\n%s", pipeline, out)
		}
	}
}
