package kvcmd

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/pflag"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
)

func TestLabKVRunsUntilItIsStopped(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), labtest.Patience)
	defer cancel()
	c := labKV{program: program.Path(t), durability: "disk", preset: "raft-ht", batchDelay: "auto", replicas: 3}
	flags := pflag.NewFlagSet("lab kv", pflag.ContinueOnError)
	c.json.Flag(flags, "")
	if err := flags.Parse([]string{"--json"}); err != nil {
		t.Fatal(err)
	}
	cfg, err := c.config()
	if err != nil {
		t.Fatal(err)
	}
	running, end := context.WithCancel(ctx)
	defer end()
	out, in := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := c.run(running, func() {}, cfg, in)
		_ = in.CloseWithError(errors.Join(io.EOF, err))
		ended <- err
	}()
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		t.Fatalf("read what is printed: %v (%q)", err, line)
	}
	var r labKVReport
	if err := json.Unmarshal(line, &r); err != nil || len(r.Replicas) != 3 || r.Durability != "disk" {
		t.Fatalf("%s: %v", line, err)
	}
	client := redisClient(r.Replicas[1].Redis, "")
	defer client.Close()
	answered(t, "SET", func() error { return client.Set(ctx, "greeting", "hello", 0).Err() })
	end()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(r.Replicas[0].Data); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("data directory after the end: %v, want it gone", err)
	}
}

// A replica that is killed, or that hangs, does not stop the others, and comes back
// with what it missed.
func TestLabKVOutlivesAReplica(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), labtest.Patience)
	defer cancel()
	kv := labtest.KV(t, lab.KVConfig{Program: program.Path(t)})
	nodes := kv.Nodes()
	set := func(key string) {
		t.Helper()
		// At any replica that runs: who leads may change under us.
		client := redis.NewClient(&redis.Options{Addr: nodes[0].Addr(), MaxRetries: 20, MaxRetryBackoff: time.Second})
		defer client.Close()
		if err := client.Set(ctx, key, "value of "+key, 0).Err(); err != nil {
			t.Fatalf("set %s: %v\n%s", key, err, nodes[0].LogTail(20))
		}
	}
	set("one")
	nodes[2].Kill()
	set("two")
	if err := nodes[2].Restart(ctx); err != nil {
		t.Fatal(err)
	}
	if err := kv.Await(ctx); err != nil {
		t.Fatal(err)
	}
	nodes[1].Pause()
	set("three")
	nodes[1].Resume()
	if err := kv.Await(ctx); err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		client := redis.NewClient(&redis.Options{Addr: n.Addr(), MaxRetries: 20, MaxRetryBackoff: time.Second})
		for _, key := range []string{"one", "two", "three"} {
			if got, err := client.Get(ctx, key).Result(); err != nil || got != "value of "+key {
				t.Errorf("replica %d, %s: %q, %v", n.Number(), key, got, err)
			}
		}
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestLabKVRefusesWhatMakesNoSense(t *testing.T) {
	for want, c := range map[string]labKV{
		"--durability":   {durability: "tape", preset: "raft", batchDelay: "auto", replicas: 3},
		"--preset":       {durability: "disk", preset: "paxos", batchDelay: "auto", replicas: 3},
		"--replicas":     {durability: "disk", preset: "raft", batchDelay: "auto", replicas: 2},
		"--batch-delay":  {durability: "disk", preset: "raft", batchDelay: "soon", replicas: 3},
		"--link-latency": {durability: "disk", preset: "raft", batchDelay: "auto", replicas: 3, linkLatency: -1},
	} {
		if _, err := c.config(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want an error that says %s", c, err, want)
		}
	}
}
