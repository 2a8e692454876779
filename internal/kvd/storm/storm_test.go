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

	"github.com/weirdb/weir/internal/kvd/kvtest"
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
			s := &storm{t: t, random: rand.New(rand.NewPCG(*stormSeed, uint64(life))), totals: totals, preset: preset, record: kvtest.NewRecord(t)}
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
	start   time.Time
	periods int

	record *kvtest.Record
	before int // its operations that the totals have

	mu    sync.Mutex
	timed []string // keys that must go by themselves
}

// period lets faults and clients loose for a while, heals, and checks.
func (s *storm) period(d time.Duration) {
	s.periods++
	s.start = time.Now()
	s.timed = nil
	s.record.Forget()
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
			s.record.Put(ctx, c, number, key, fmt.Sprintf("%d.%d", number, i))
		case 2:
			s.record.Increment(ctx, c, fmt.Sprintf("counter/%d", random.IntN(2)))
		case 3:
			s.record.OwnWeak(ctx, c, own, strconv.Itoa(i))
		case 4:
			s.timeToLive(ctx, c, fmt.Sprintf("timed/%d/%d/%d", s.periods, number, i), random)
		default:
			if begin := time.Now(); s.record.Get(ctx, c, number, key) {
				s.totals.slowest.since(begin)
			}
		}
		rest(ctx, time.Duration(random.IntN(4000))*time.Microsecond)
	}
}

// timeToLive writes a key with a time to live, and looks for it within that time. The key is not
// written again, so once it is gone it must stay gone. While an older version may lead, whose
// time is its wall clock, neither can be checked; it can once all replicas have been upgraded.
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
	if !errors.Is(err, kv.ErrNotFound) || s.cluster.mixed {
		return
	}
	if after := time.Since(begin); after < lives*9/10 {
		s.t.Errorf("%s is gone %v after it was written to live for %v", key, after, lives)
	}
	if item, err := c.Get(ctx, key); err == nil {
		s.t.Errorf("%s was gone and is back: %s", key, item.Value)
	}
}

// answer reads a key after all faults have ended: then every strong read is answered. Each has
// its own timeout, so that a read without answer can be distinguished from checks that take
// long.
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
	histories, undecided := s.record.Check(func(key string) (kv.Item, bool) { return s.answer(c, key) })
	s.totals.histories.Add(int64(histories))
	s.totals.undecided.Add(int64(undecided))
	s.totals.operations.Add(int64(s.record.Operations() - s.before))
	s.before = s.record.Operations()
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
