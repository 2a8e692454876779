package kv_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/kvd/kvtest"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/kv"
)

var tortureFor = flag.Duration("torture", time.Second, "how long TestTorture kills replicas, per preset")

// TestTorture kills, stops and restarts the processes of a cluster while
// clients work on it, and checks the history: strong operations are
// linearizable per key, counters count every increment that was acknowledged
// and none twice, sessions see their own weak writes.
func TestTorture(t *testing.T) {
	testkit.Long(t, "kills replicas for seconds")
	weir := program.Path(t)
	for _, preset := range []string{"raft-ht", "curp-ho"} {
		t.Run(preset, func(t *testing.T) {
			r := &torture{t: t, cluster: labtest.KV(t, lab.KVConfig{Program: weir, Preset: preset}), Record: kvtest.NewRecord(t)}
			r.run(*tortureFor)
		})
	}
}

type torture struct {
	t       *testing.T
	cluster *lab.KV
	kills   int
	*kvtest.Record
}

func (r *torture) run(d time.Duration) {
	r.storm(d)
	// On a busy machine no operation may end between two kills.
	for deadline := time.Now().Add(labtest.Patience); r.Operations() == 0 && time.Now().Before(deadline); {
		r.storm(d)
	}
	r.check()
}

func (r *torture) storm(d time.Duration) {
	ctx, cancel := context.WithTimeout(r.t.Context(), d)
	defer cancel()
	var wait sync.WaitGroup
	for i := range 4 {
		wait.Go(func() { r.client(ctx, i) })
	}
	wait.Go(func() { r.killer(ctx) })
	wait.Wait()
}

// killer makes replicas crash or hang, at most as many at a time as a cluster of
// three survives, and now and then all of them.
func (r *torture) killer(ctx context.Context) {
	random := rand.New(rand.NewPCG(1, 2))
	nodes := r.cluster.Nodes()
	for ctx.Err() == nil {
		victims := nodes[random.IntN(3):][:1]
		if random.IntN(4) == 0 {
			victims = nodes
		}
		hang := random.IntN(3) == 0
		for _, n := range victims {
			if hang {
				n.Pause()
			} else {
				n.Kill()
			}
			r.kills++
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(random.IntN(400)) * time.Millisecond):
		}
		for _, n := range victims {
			if hang {
				n.Resume()
			} else if err := n.Restart(r.t.Context()); err != nil {
				r.t.Errorf("restart replica %d: %v\n%s", n.Number(), err, n.LogTail(5))
				return
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(500+random.IntN(500)) * time.Millisecond):
		}
	}
}

func (r *torture) client(ctx context.Context, number int) {
	c, err := kv.Open(r.t.Context(), r.cluster.PeerAddrs(), kv.Options{Path: kv.PathFast})
	if err != nil {
		r.t.Error(err)
		return
	}
	defer func() {
		if err := c.Close(); err != nil {
			r.t.Error(err)
		}
	}()
	random := rand.New(rand.NewPCG(3, uint64(number)))
	own := fmt.Sprintf("own/%d", number)
	for i := 0; ctx.Err() == nil; i++ {
		key := fmt.Sprintf("register/%d", random.IntN(3))
		switch random.IntN(5) {
		case 0:
			r.Put(ctx, c, number, key, fmt.Sprintf("%d.%d", number, i))
		case 1:
			r.Increment(ctx, c, fmt.Sprintf("counter/%d", random.IntN(2)))
		case 2:
			r.OwnWeak(ctx, c, own, strconv.Itoa(i))
		default:
			r.Get(ctx, c, number, key)
		}
	}
}

func (r *torture) check() {
	ctx := within(r.t)
	c, err := kv.Open(ctx, r.cluster.PeerAddrs(), kv.Options{})
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			r.t.Error(err)
		}
	}()
	histories, undecided := r.Check(func(key string) (kv.Item, bool) {
		item, err := c.Get(ctx, key)
		if err != nil && !errors.Is(err, kv.ErrNotFound) {
			r.t.Fatal(err)
		}
		return item, err == nil
	})
	r.t.Logf("%d operations, %d histories (%d undecided after 20 s), %d kills and pauses", r.Operations(), histories, undecided, r.kills)
	if r.Operations() == 0 {
		r.t.Error("no operation ended")
	}
}
