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

	"github.com/anishathalye/porcupine"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/kv"
)

var tortureFor = flag.Duration("torture", 3*time.Second, "how long TestTorture kills replicas, per preset")

// TestTorture kills, stops and restarts the processes of a cluster while
// clients work on it, and checks the history: strong operations are
// linearizable per key, counters count every increment that was acknowledged
// and none twice, sessions see their own weak writes.
func TestTorture(t *testing.T) {
	program := labtest.Weir(t)
	for _, preset := range []string{"raft-ht", "curp-ho"} {
		t.Run(preset, func(t *testing.T) {
			r := &torture{t: t, cluster: labtest.KV(t, lab.KVConfig{Program: program, Preset: preset}), start: time.Now()}
			r.run(*tortureFor)
		})
	}
}

type torture struct {
	t       *testing.T
	cluster *lab.KV
	start   time.Time

	mu      sync.Mutex
	history map[string][]porcupine.Operation // by key
	acked   map[string]int64                 // increments by counter
	unknown map[string]int64
	kills   int
	ops     int
}

// registers are what porcupine checks: put and get of one key.
type registerOp struct {
	write bool
	value string
}

var registers = porcupine.Model{
	Init: func() any { return "" },
	Step: func(state, input, output any) (bool, any) {
		op := input.(registerOp)
		if op.write {
			return true, op.value
		}
		return output.(string) == state.(string), state
	},
}

func (r *torture) run(d time.Duration) {
	r.history, r.acked, r.unknown = map[string][]porcupine.Operation{}, map[string]int64{}, map[string]int64{}
	r.storm(d)
	// On a busy machine no operation may end between two kills.
	for deadline := time.Now().Add(labtest.Patience); r.ops == 0 && time.Now().Before(deadline); {
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
			r.put(ctx, c, number, key, fmt.Sprintf("%d.%d", number, i))
		case 1:
			r.increment(ctx, c, fmt.Sprintf("counter/%d", random.IntN(2)))
		case 2:
			r.ownWeak(ctx, c, own, strconv.Itoa(i))
		default:
			r.get(ctx, c, number, key)
		}
	}
}

func (r *torture) note(key string, op porcupine.Operation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ops++
	r.history[key] = append(r.history[key], op)
}

func (r *torture) now() int64 { return int64(time.Since(r.start)) }

func (r *torture) put(ctx context.Context, c *kv.Client, client int, key, value string) {
	call := r.now()
	_, err := c.Put(ctx, key, []byte(value))
	end := r.now()
	var unknown *kv.UnknownError
	switch {
	case errors.As(err, &unknown):
		end = 1 << 62 // it may take effect at any time from now on
	case err != nil:
		return // it was not sent
	}
	r.note(key, porcupine.Operation{ClientId: client, Input: registerOp{true, value}, Call: call, Output: "", Return: end})
}

func (r *torture) get(ctx context.Context, c *kv.Client, client int, key string) {
	call := r.now()
	item, err := c.Get(ctx, key)
	if err != nil && !errors.Is(err, kv.ErrNotFound) {
		return
	}
	r.note(key, porcupine.Operation{ClientId: client, Input: registerOp{}, Call: call, Output: string(item.Value), Return: r.now()})
}

func (r *torture) increment(ctx context.Context, c *kv.Client, key string) {
	_, err := c.Increment(ctx, key, 1)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ops++
	var unknown *kv.UnknownError
	switch {
	case err == nil:
		r.acked[key]++
	case errors.As(err, &unknown):
		r.unknown[key]++
	}
}

func (r *torture) ownWeak(ctx context.Context, c *kv.Client, key, value string) {
	if _, err := c.Put(ctx, key, []byte(value), kv.Weak()); err != nil {
		return
	}
	item, err := c.Get(ctx, key, kv.Weak())
	if err != nil {
		if errors.Is(err, kv.ErrNotFound) {
			r.t.Errorf("own weak write %s of %s is not found", value, key)
		}
		return
	}
	if string(item.Value) != value {
		r.t.Errorf("own weak write %s of %s, then weak read %s", value, key, item.Value)
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
	for key, acked := range r.acked {
		item, err := c.Get(ctx, key)
		if err != nil {
			r.t.Fatal(err)
		}
		got, err := strconv.ParseInt(string(item.Value), 10, 64)
		if err != nil || got < acked || got > acked+r.unknown[key] {
			r.t.Errorf("%s = %s (%v) after %d acknowledged increments and %d of unknown outcome", key, item.Value, err, acked, r.unknown[key])
		}
	}
	for key, ops := range r.history {
		switch porcupine.CheckOperationsTimeout(registers, ops, 20*time.Second) {
		case porcupine.Illegal:
			r.t.Errorf("%s: a history of %d operations is not linearizable", key, len(ops))
		case porcupine.Unknown:
			r.t.Logf("%s: %d operations: undecided after 20 s", key, len(ops))
		}
	}
	r.t.Logf("%d operations, %d kills and pauses", r.ops, r.kills)
	if r.ops == 0 {
		r.t.Error("no operation ended")
	}
}
