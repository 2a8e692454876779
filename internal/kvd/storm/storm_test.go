package storm_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/kv"
)

var (
	stormFor  = flag.Duration("storm", 5*time.Second, "how long TestStorm plays")
	stormOld  = flag.String("storm-old", "", "an older weir, which TestStorm mixes in")
	stormSeed = flag.Uint64("storm-seed", 1, "what TestStorm draws its faults from")
)

// TestStorm plays what TestTorture does not: disks that hang, clocks that step,
// election timeouts that differ and change, members that are replaced, and an older
// version beside this one, besides crashes and pauses. Strong operations are
// linearizable per key, increments happen once, sessions see their own weak writes,
// and no key goes before its time or stays.
func TestStorm(t *testing.T) {
	presets := []string{"raft-ht", "curp-ho", "raft", "curp", "curp-ht"}
	end := time.Now().Add(*stormFor)
	totals := &stormTotals{}
	for life := 0; life == 0 || time.Now().Before(end); life++ {
		lasts := min(2*time.Minute, max(time.Until(end), time.Second))
		preset := presets[life%len(presets)]
		mixed := *stormOld != "" && life%2 == 1
		t.Run(fmt.Sprintf("%d-%s-mixed=%v", life, preset, mixed), func(t *testing.T) {
			s := &storm{t: t, random: rand.New(rand.NewPCG(*stormSeed, uint64(life))), totals: totals, preset: preset, mixed: mixed}
			s.cluster = newStormCluster(t, preset, mixed, s.random.Uint64())
			for until := time.Now().Add(lasts); ; {
				s.period(min(20*time.Second, max(time.Until(until), time.Second)))
				if t.Failed() || !time.Now().Before(until) {
					break
				}
				if mixed && time.Until(until) < lasts/2 {
					s.cluster.upgrade()
				}
			}
		})
		fmt.Printf("%s storm: %s\n", time.Now().Format(time.TimeOnly), totals)
		if t.Failed() {
			return
		}
	}
}

// stormTotals count over all clusters.
type stormTotals struct {
	operations, histories, undecided, ttls          atomic.Int64
	kills, pauses, hangs, steps, restarts, replaced atomic.Int64
	slowest, healed                                 longest // strong reads, among faults and after them
}

// longest is the longest of what was waited for.
type longest struct{ nanos atomic.Int64 }

func (l *longest) since(begin time.Time) {
	took := int64(time.Since(begin))
	for old := l.nanos.Load(); took > old && !l.nanos.CompareAndSwap(old, took); old = l.nanos.Load() {
	}
}

func (l *longest) String() string {
	return time.Duration(l.nanos.Load()).Round(time.Millisecond).String()
}

func (n *stormTotals) String() string {
	return fmt.Sprintf("%d operations, %d histories (%d undecided), %d times to live; %d kills, %d pauses, %d hung disks, %d clock steps, %d restarts with other settings or versions, %d members replaced; the slowest strong read %v, once all faults had ended %v",
		n.operations.Load(), n.histories.Load(), n.undecided.Load(), n.ttls.Load(), n.kills.Load(), n.pauses.Load(), n.hangs.Load(), n.steps.Load(), n.restarts.Load(), n.replaced.Load(), &n.slowest, &n.healed)
}

// storm is the load on one cluster, and what it saw.
type storm struct {
	t       *testing.T
	random  *rand.Rand
	cluster *stormCluster
	totals  *stormTotals
	preset  string
	mixed   bool // an older version takes part
	start   time.Time
	periods int

	mu      sync.Mutex
	history map[string][]porcupine.Operation
	acked   map[string]int64
	unknown map[string]int64
	timed   []string // keys that must go by themselves
}

// period lets faults and clients loose for a while, heals, and checks.
func (s *storm) period(d time.Duration) {
	s.periods++
	s.start = time.Now()
	s.history, s.timed = map[string][]porcupine.Operation{}, nil
	if s.acked == nil {
		s.acked, s.unknown = map[string]int64{}, map[string]int64{}
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), d)
	defer cancel()
	var wait sync.WaitGroup
	for i := range 4 {
		wait.Go(func() { s.client(ctx, i, rand.New(rand.NewPCG(uint64(s.periods), uint64(i)))) })
	}
	wait.Go(func() { s.faults(ctx, rand.New(rand.NewPCG(uint64(s.periods), 7))) })
	wait.Go(func() { s.clocks(ctx, rand.New(rand.NewPCG(uint64(s.periods), 8))) })
	wait.Wait()
	s.cluster.heal()
	s.check()
}

// rest waits, or until ctx ends.
func rest(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// clocks steps the wall clock of one replica after the other, and back.
func (s *storm) clocks(ctx context.Context, random *rand.Rand) {
	for ctx.Err() == nil {
		n := s.cluster.pick(random)
		s.totals.steps.Add(1)
		n.ail(func() { n.off = time.Duration(random.Int64N(int64(2*time.Hour))) - time.Hour })
		rest(ctx, time.Duration(random.IntN(2000))*time.Millisecond)
		if random.IntN(3) > 0 {
			n.ail(func() { n.off = 0 })
		}
		rest(ctx, time.Duration(random.IntN(500))*time.Millisecond)
	}
}

func (s *storm) faults(ctx context.Context, random *rand.Rand) {
	c := s.cluster
	for ctx.Err() == nil {
		n := c.pick(random)
		if random.IntN(2) == 0 {
			n = c.leader(n)
		}
		switch random.IntN(9) {
		case 0:
			s.totals.kills.Add(1)
			n.kill()
			rest(ctx, time.Duration(random.IntN(500))*time.Millisecond)
			c.start(n)
		case 1:
			for _, n := range c.members() {
				s.totals.kills.Add(1)
				n.kill()
			}
			for _, n := range c.members() {
				c.start(n)
			}
		case 2, 3:
			s.totals.pauses.Add(1)
			n.pause()
			rest(ctx, time.Duration(random.IntN(1500))*time.Millisecond)
			n.resume()
		case 4, 5:
			s.totals.hangs.Add(1)
			n.ail(func() { n.hangs = true })
			rest(ctx, time.Duration(random.IntN(5000))*time.Millisecond)
			n.ail(func() { n.hangs = false })
		case 6, 7:
			s.totals.restarts.Add(1)
			n.stop()
			c.start(n)
		default:
			if c.replace(ctx, n) {
				s.totals.replaced.Add(1)
			}
		}
		rest(ctx, time.Duration(200+random.IntN(800))*time.Millisecond)
	}
}

func (s *storm) client(ctx context.Context, number int, random *rand.Rand) {
	opening, opened := context.WithTimeout(s.t.Context(), labtest.Patience)
	defer opened()
	c, err := kv.Open(opening, s.cluster.addrs(), kv.Options{Path: kv.PathFast})
	if err != nil {
		s.t.Error(err)
		return
	}
	defer func() {
		if err := c.Close(); err != nil {
			s.t.Error(err)
		}
	}()
	own := fmt.Sprintf("own/%d/%d", s.periods, number)
	for i := 0; ctx.Err() == nil; i++ {
		key := fmt.Sprintf("register/%d/%d/%d", s.periods, int(time.Since(s.start).Seconds()), random.IntN(2))
		switch random.IntN(8) {
		case 0, 1:
			s.put(ctx, c, number, key, fmt.Sprintf("%d.%d", number, i))
		case 2:
			s.increment(ctx, c, fmt.Sprintf("counter/%d", random.IntN(2)))
		case 3:
			s.ownWeak(ctx, c, own, strconv.Itoa(i))
		case 4:
			s.timeToLive(ctx, c, fmt.Sprintf("timed/%d/%d/%d", s.periods, number, i), random)
		default:
			s.get(ctx, c, number, key)
		}
		rest(ctx, time.Duration(random.IntN(4000))*time.Microsecond)
	}
}

func (s *storm) note(key string, op porcupine.Operation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.totals.operations.Add(1)
	s.history[key] = append(s.history[key], op)
}

func (s *storm) now() int64 { return int64(time.Since(s.start)) }

func (s *storm) put(ctx context.Context, c *kv.Client, client int, key, value string) {
	call := s.now()
	_, err := c.Put(ctx, key, []byte(value))
	end := s.now()
	var unknown *kv.UnknownError
	switch {
	case errors.As(err, &unknown):
		end = 1 << 62 // it may take effect at any time from now on
	case err != nil:
		return // it was not sent
	}
	s.note(key, porcupine.Operation{ClientId: client, Input: registerOp{true, value}, Call: call, Output: "", Return: end})
}

func (s *storm) get(ctx context.Context, c *kv.Client, client int, key string) {
	call, begin := s.now(), time.Now()
	item, err := c.Get(ctx, key)
	if err != nil && !errors.Is(err, kv.ErrNotFound) {
		return
	}
	s.totals.slowest.since(begin)
	s.note(key, porcupine.Operation{ClientId: client, Input: registerOp{}, Call: call, Output: string(item.Value), Return: s.now()})
}

func (s *storm) increment(ctx context.Context, c *kv.Client, key string) {
	_, err := c.Increment(ctx, key, 1)
	s.totals.operations.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	var unknown *kv.UnknownError
	switch {
	case err == nil:
		s.acked[key]++
	case errors.As(err, &unknown):
		s.unknown[key]++
	}
}

func (s *storm) ownWeak(ctx context.Context, c *kv.Client, key, value string) {
	if _, err := c.Put(ctx, key, []byte(value), kv.Weak()); err != nil {
		return
	}
	s.totals.operations.Add(1)
	item, err := c.Get(ctx, key, kv.Weak())
	switch {
	case errors.Is(err, kv.ErrNotFound):
		s.t.Errorf("own weak write %s of %s is not found", value, key)
	case err == nil && string(item.Value) != value:
		s.t.Errorf("own weak write %s of %s, then weak read %s", value, key, item.Value)
	}
}

// timeToLive writes a key that lives for a while, and looks for it within that
// while.
func (s *storm) timeToLive(ctx context.Context, c *kv.Client, key string, random *rand.Rand) {
	const lives = 2 * time.Second
	begin := time.Now()
	if _, err := c.Put(ctx, key, []byte("v"), kv.TTL(lives)); err != nil {
		return
	}
	s.mu.Lock()
	s.timed = append(s.timed, key)
	s.mu.Unlock()
	if random.IntN(4) == 0 {
		rest(ctx, time.Duration(random.IntN(1000))*time.Millisecond)
	}
	_, err := c.Get(ctx, key)
	s.totals.ttls.Add(1)
	if s.mixed { // where an older version leads, time is its wall clock, which outages have moved
		return
	}
	if after := time.Since(begin); errors.Is(err, kv.ErrNotFound) && after < lives*9/10 {
		s.t.Errorf("%s is gone %v after it was written to live for %v", key, after, lives)
	}
}

// answer reads a key when all faults have ended: then every strong read is answered.
// Each has its own patience, so that one that is not is told from checks that take long.
func (s *storm) answer(c *kv.Client, key string) (item kv.Item, found bool) {
	ctx, cancel := context.WithTimeout(s.t.Context(), labtest.Patience)
	defer cancel()
	begin := time.Now()
	item, err := c.Get(ctx, key)
	if err != nil && !errors.Is(err, kv.ErrNotFound) {
		up, down := c.Replicas()
		s.t.Fatalf("%s: no answer, though all replicas are ready: %v; connected to %v, not to %v\n%s", key, err, up, down, s.cluster.describe())
	}
	s.totals.healed.since(begin)
	return item, err == nil
}

// check looks at what the period left.
func (s *storm) check() {
	opening, opened := context.WithTimeout(s.t.Context(), labtest.Patience)
	defer opened()
	c, err := kv.Open(opening, s.cluster.addrs(), kv.Options{})
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			s.t.Error(err)
		}
	}()
	for key, acked := range s.acked {
		item, _ := s.answer(c, key)
		got, err := strconv.ParseInt(string(item.Value), 10, 64)
		if err != nil || got < acked || got > acked+s.unknown[key] {
			s.t.Errorf("%s = %s (%v) after %d acknowledged increments and %d of unknown outcome", key, item.Value, err, acked, s.unknown[key])
		}
	}
	for key, ops := range s.history {
		s.totals.histories.Add(1)
		switch porcupine.CheckOperationsTimeout(registers, ops, 20*time.Second) {
		case porcupine.Illegal:
			s.t.Errorf("%s: a history of %d operations is not linearizable", key, len(ops))
		case porcupine.Unknown:
			s.totals.undecided.Add(1)
		}
	}
	// Whatever the clocks did, time goes on.
	late := time.Now().Add(labtest.Patience)
	for left := s.timed; len(left) > 0; {
		left = slices.DeleteFunc(left, func(key string) bool { _, found := s.answer(c, key); return !found })
		if time.Now().After(late) && len(left) > 0 {
			s.t.Fatalf("%d keys with a time to live of 2 s are still there, such as %s\n%s", len(left), left[0], s.cluster.describe())
		}
		rest(s.t.Context(), 50*time.Millisecond)
	}
	s.same()
}

// same compares what all replicas hold.
func (s *storm) same() {
	ctx, cancel := context.WithTimeout(s.t.Context(), labtest.Patience)
	defer cancel()
	for ctx.Err() == nil {
		states := map[string]bool{}
		for _, n := range s.cluster.members() {
			one, err := kv.Open(ctx, []string{n.member.Addr}, kv.Options{})
			if err != nil {
				s.t.Fatal(err)
			}
			items, _, err := one.Range(ctx, "", "", kv.Weak())
			if err := one.Close(); err != nil {
				s.t.Error(err)
			}
			if err != nil {
				s.t.Fatal(err)
			}
			var b strings.Builder
			for _, it := range items {
				fmt.Fprintf(&b, "%s=%s@%d\n", it.Key, it.Value, it.Revision)
			}
			states[b.String()] = true
		}
		if len(states) == 1 {
			return
		}
		rest(ctx, 100*time.Millisecond) // they still catch up
	}
	s.t.Errorf("the replicas do not agree on what is stored\n%s", s.cluster.describe())
}
