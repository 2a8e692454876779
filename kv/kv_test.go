package kv_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/kv"
)

// open connects to a cluster for the length of t.
func open(t *testing.T, c *lab.KV, o kv.Options) *kv.Client {
	t.Helper()
	client, err := kv.Open(t.Context(), c.PeerAddrs(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})
	return client
}

// within bounds a test's operations: it is there to end what hangs, and says
// nothing about speed.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), labtest.Patience)
	t.Cleanup(cancel)
	return ctx
}

// check fails unless err is want (nil included).
func check(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) || want == nil && err != nil {
		t.Fatalf("error %v, want %v", err, want)
	}
}

func TestOperations(t *testing.T) {
	weir := program.Path(t)
	for _, preset := range []string{"raft", "raft-ht", "curp", "curp-ht", "curp-ho"} {
		t.Run(preset, func(t *testing.T) {
			if preset != "raft" && preset != "curp-ho" { // which have the least and the most of weir's own
				testkit.Long(t, "starts a cluster for each preset")
			}
			t.Parallel()
			cluster := labtest.KV(t, lab.KVConfig{Program: weir, Preset: preset, Durability: lab.Fast})
			c := open(t, cluster, kv.Options{Path: kv.PathFast})
			ctx := within(t)
			operations(ctx, t, c)
			weak(ctx, t, c)
			leases(ctx, t, c)
			watch(ctx, t, c)
		})
	}
}

func operations(ctx context.Context, t *testing.T, c *kv.Client) {
	t.Helper()
	_, err := c.Get(ctx, "absent")
	check(t, err, kv.ErrNotFound)
	_, err = c.Put(ctx, "a", []byte("1"))
	check(t, err, nil)
	item, err := c.Get(ctx, "a")
	check(t, err, nil)
	if string(item.Value) != "1" || item.Revision == 0 {
		t.Fatalf("a = %+v", item)
	}
	_, err = c.CompareAndSwap(ctx, "a", item.Revision+1, []byte("2"))
	check(t, err, kv.ErrConflict)
	_, err = c.CompareAndSwap(ctx, "a", item.Revision, []byte("2"))
	check(t, err, nil)
	_, err = c.Put(ctx, "a", []byte("3"), kv.IfAbsent())
	check(t, err, kv.ErrConflict)
	_, err = c.Put(ctx, "b", []byte("3"), kv.IfPresent())
	check(t, err, kv.ErrConflict)
	for want := int64(5); want <= 15; want += 5 {
		got, err := c.Increment(ctx, "n", 5)
		check(t, err, nil)
		if got != want {
			t.Fatalf("n = %d, want %d", got, want)
		}
	}
	_, err = c.Put(ctx, "word", []byte("x"))
	check(t, err, nil)
	_, err = c.Increment(ctx, "word", 1)
	check(t, err, kv.ErrType)
	for i := range 10 {
		_, err = c.Put(ctx, fmt.Sprintf("list/%d", i), []byte{byte(i)})
		check(t, err, nil)
	}
	items, more, err := c.Range(ctx, "list/", kv.PrefixEnd("list/"), kv.Limit(3), kv.Reverse())
	check(t, err, nil)
	if len(items) != 3 || !more || items[0].Key != "list/9" || items[2].Value[0] != 7 {
		t.Fatalf("range: %+v, more %v", items, more)
	}
	existed, err := c.Delete(ctx, "list/9")
	check(t, err, nil)
	again, err := c.Delete(ctx, "list/9")
	check(t, err, nil)
	if !existed || again {
		t.Fatalf("deleted: %v, again %v", existed, again)
	}
	_, err = c.Put(ctx, string(make([]byte, 70_000)), nil)
	if err == nil {
		t.Fatal("a key of 70000 bytes was taken")
	}
	large := 4 << 20
	if testing.Short() {
		large = 1 << 20
	}
	_, err = c.Put(ctx, "large", make([]byte, 9<<20))
	if err == nil {
		t.Fatal("a value of 9 MiB was taken")
	}
	_, err = c.Put(ctx, "large", make([]byte, large))
	check(t, err, nil)
	if item, err = c.Get(ctx, "large"); err != nil || len(item.Value) != large {
		t.Fatalf("large value: %d bytes, %v", len(item.Value), err)
	}
}

func weak(ctx context.Context, t *testing.T, c *kv.Client) {
	t.Helper()
	for i := range 50 {
		value := fmt.Sprint(i)
		_, err := c.Put(ctx, "weak", []byte(value), kv.Weak())
		check(t, err, nil)
		item, err := c.Get(ctx, "weak", kv.Weak())
		check(t, err, nil)
		if string(item.Value) != value {
			t.Fatalf("own weak write %s, then weak read %s", value, item.Value)
		}
		if i%5 == 0 {
			item, err = c.Get(ctx, "weak")
			check(t, err, nil)
			if string(item.Value) != value {
				t.Fatalf("own weak write %s, then strong read %s", value, item.Value)
			}
		}
	}
	check(t, c.Wait(ctx), nil)
	other := c.NewSession()
	item, err := other.Get(ctx, "weak")
	check(t, err, nil)
	if string(item.Value) != "49" {
		t.Fatalf("after Wait another session reads %s", item.Value)
	}
	_, err = c.Put(ctx, "weak", []byte("x"), kv.Weak(), kv.IfAbsent())
	if err == nil {
		t.Fatal("a weak write with a condition was taken")
	}
}

func leases(ctx context.Context, t *testing.T, c *kv.Client) {
	t.Helper()
	first, err := c.Grant(ctx, time.Hour)
	check(t, err, nil)
	second, err := c.Grant(ctx, time.Hour)
	check(t, err, nil)
	if second <= first {
		t.Fatalf("fencing tokens %d, then %d", first, second)
	}
	_, err = c.Put(ctx, "held", []byte("x"), kv.WithLease(first))
	check(t, err, nil)
	check(t, c.Keep(ctx, first), nil)
	check(t, c.Revoke(ctx, first), nil)
	check(t, c.Keep(ctx, first), kv.ErrNotFound)
	_, err = c.Get(ctx, "held")
	check(t, err, kv.ErrNotFound)
	_, err = c.Put(ctx, "short", []byte("x"), kv.TTL(50*time.Millisecond))
	check(t, err, nil)
	for {
		_, err := c.Get(ctx, "short")
		if errors.Is(err, kv.ErrNotFound) {
			return
		}
		check(t, err, nil)
	}
}

func watch(ctx context.Context, t *testing.T, c *kv.Client) {
	t.Helper()
	rev, err := c.Put(ctx, "watched/0", []byte("0"))
	check(t, err, nil)
	if rev == 0 { // completed on votes, which do not tell the revision
		item, err := c.Get(ctx, "watched/0")
		check(t, err, nil)
		rev = item.Revision
	}
	w, err := c.Watch("watched/", kv.PrefixEnd("watched/"), rev)
	check(t, err, nil)
	for i := 1; i < 5; i++ {
		_, err = c.Put(ctx, fmt.Sprintf("watched/%d", i), nil)
		check(t, err, nil)
	}
	_, err = c.Delete(ctx, "watched/2")
	check(t, err, nil)
	var got []string
	for len(got) < 6 {
		changes, err := w.Next(ctx)
		check(t, err, nil)
		for _, g := range changes {
			got = append(got, fmt.Sprint(g.Kind == kv.Deleted, " ", g.Key))
		}
	}
	want := []string{"false watched/0", "false watched/1", "false watched/2", "false watched/3", "false watched/4", "true watched/2"}
	if !slices.Equal(got, want) {
		t.Fatalf("changes %q, want %q", got, want)
	}
	check(t, w.Close(), nil)
}

// clusterTest is a test that leaves a cluster usable, unless it is the last one.
type clusterTest struct {
	name string
	test func(*testing.T, *lab.KV)
}

// TestOneCluster has tests share a cluster.
func TestOneCluster(t *testing.T) {
	shareCluster(t, 3, []clusterTest{
		{"session close ends behind", testSessionCloseEndsBehind}, // first: it counts the sessions
		{"one endpoint is enough", testOneEndpointIsEnough},
		{"what is not begun", testWhatIsNotBegun},
		{"member changes may be repeated", testMemberChangesMayBeRepeated}, // replica 3 leaves
		{"session close without a cluster", testSessionCloseWithoutACluster},
	})
}

// TestOneReplica has tests share a cluster of one replica.
func TestOneReplica(t *testing.T) {
	shareCluster(t, 1, []clusterTest{
		{"wrong cluster", testWrongCluster},
		{"a second address is enough", testASecondAddressIsEnough},
		{"refused watch", testRefusedWatch},
	})
}

func shareCluster(t *testing.T, replicas int, tests []clusterTest) {
	t.Parallel()
	cluster := labtest.KV(t, lab.KVConfig{Program: program.Path(t), Replicas: replicas, Durability: lab.Fast})
	for _, tc := range tests {
		if !t.Run(tc.name, func(t *testing.T) { tc.test(t, cluster) }) {
			return
		}
	}
}

func TestNobodyAnswers(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := kv.Open(ctx, []string{"127.0.0.1:1"}, kv.Options{}); err == nil {
		t.Fatal("connected to nobody")
	}
	if _, err := kv.Open(ctx, nil, kv.Options{}); err == nil {
		t.Fatal("connected to no address")
	}
}

func testWrongCluster(t *testing.T, cluster *lab.KV) {
	_, err := kv.Open(within(t), cluster.PeerAddrs(), kv.Options{Cluster: "another"})
	if err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("error %v: want a refusal at once", err)
	}
}

func TestContextEndsFirst(t *testing.T) {
	t.Parallel()
	cluster := labtest.KV(t, lab.KVConfig{Program: program.Path(t), Preset: "curp-ho"})
	c := open(t, cluster, kv.Options{})
	ctx := within(t)
	_, err := c.Increment(ctx, "n", 1)
	check(t, err, nil)
	dead, hung := cluster.Nodes()[0], cluster.Nodes()[1]
	dead.Kill()
	hung.Pause()
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	var unknown *kv.UnknownError
	if _, err := c.Increment(short, "n", 1); !errors.As(err, &unknown) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("error %v: want an UnknownError of the deadline", err)
	}
	hung.Resume()
	check(t, dead.Restart(ctx), nil)
	// The session goes on, and the increment happens once.
	got, err := c.Increment(ctx, "n", 1)
	check(t, err, nil)
	if got != 3 {
		t.Fatalf("n = %d after three increments", got)
	}
}

// A watch that the cluster refuses ends with an error, because it would never get a change.
func testRefusedWatch(t *testing.T, cluster *lab.KV) {
	c := open(t, cluster, kv.Options{})
	ctx := within(t)
	const most = 4096
	var last *kv.Watcher
	for range most + 1 {
		w, err := c.Watch("k", "", 0)
		check(t, err, nil)
		last = w
	}
	if _, err := last.Next(ctx); err == nil || !strings.Contains(err.Error(), "too many watches") {
		t.Errorf("the watch that is one too many: %v", err)
	}
}
