package kv_test

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
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirdb/weir/internal/kvd/kvtest"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/kv"
)

var (
	partitionsFor  = flag.Duration("partitions", time.Second, "how long TestPartitions plays, per preset")
	partitionsSeed = flag.Uint64("partitions-seed", 1, "what TestPartitions draws its faults from")
)

// TestPartitions cuts, slows and resets the connections between the processes of a
// cluster, in one direction or both, of one replica or one pair, while replicas are also
// killed and stopped. Clients of package kv and of Redis work on all of them: strong
// operations are linearizable per key, increments happen once, weak reads of a session
// never go back, and a watch tells of every write once and in order.
func TestPartitions(t *testing.T) {
	testkit.Long(t, "separates replicas for seconds")
	redis.SetLogger(silence{}) // replicas that are down are no news
	weir := program.Path(t)
	for i, preset := range []string{"raft-ht", "curp-ho", "curp", "curp-ht", "raft"} {
		t.Run(preset, func(t *testing.T) {
			p := &partitions{t: t, relays: map[[2]int]*lab.Relay{}, Record: kvtest.NewRecord(t), random: rand.New(rand.NewPCG(*partitionsSeed, uint64(i)))}
			replicas := 3
			if i%2 == 1 {
				replicas = 5
			}
			p.cluster = labtest.KV(t, lab.KVConfig{Program: weir, Preset: preset, Replicas: replicas, Each: p.between, Flags: map[string]string{"request-timeout": "2s"}})
			p.run(*partitionsFor)
		})
	}
}

type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

type partitions struct {
	t       *testing.T
	cluster *lab.KV
	random  *rand.Rand
	faults  map[string]int
	periods int
	watched int // writes
	*kvtest.Record

	mu     sync.Mutex // guards what follows
	relays map[[2]int]*lab.Relay
	acked  map[string]bool // key and value of writes that were begun behind a watch, and answered
}

// between puts a relay into the way of a replica to each other one.
func (p *partitions) between(number int, flags map[string]string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	peers := strings.Split(flags["peers"], ",")
	for i, peer := range peers {
		id, where, _ := strings.Cut(peer, "=")
		addr, client, _ := strings.Cut(where, "/")
		to, err := strconv.Atoi(id)
		if err != nil {
			p.t.Errorf("peers %s: %v", flags["peers"], err)
			return
		}
		if to == number {
			continue
		}
		ends := [2]int{number, to}
		if p.relays[ends] == nil {
			p.relays[ends] = labtest.Relay(p.t, addr)
		}
		peers[i] = id + "=" + p.relays[ends].Addr() + "/" + client
	}
	flags["peers"] = strings.Join(peers, ",")
}

func (p *partitions) run(d time.Duration) {
	p.faults, p.acked = map[string]int{}, map[string]bool{}
	for end := time.Now().Add(d); ; {
		p.Forget()
		p.period(min(20*time.Second, d))
		if p.t.Failed() || !time.Now().Before(end) && p.Operations() > 0 {
			break
		}
	}
	p.t.Logf("%d operations, %d writes watched, faults: %v", p.Operations(), p.watched, p.faults)
}

// period lets faults loose, heals, and judges.
func (p *partitions) period(d time.Duration) {
	p.periods++
	ctx, cancel := context.WithTimeout(p.t.Context(), d)
	defer cancel()
	watching, watched := context.WithCancel(p.t.Context())
	var watcher, wait sync.WaitGroup
	seen := newWatched()
	watcher.Go(func() { p.watch(watching, seen) })
	for i := range 4 {
		random := rand.New(rand.NewPCG(p.random.Uint64(), uint64(i)))
		wait.Go(func() { p.client(ctx, i, random, seen) })
	}
	for i := range 2 {
		random := rand.New(rand.NewPCG(p.random.Uint64(), uint64(i)))
		wait.Go(func() { p.redis(ctx, 10+i, random) })
	}
	for ctx.Err() == nil {
		p.fault(ctx)
	}
	wait.Wait()
	p.judge(seen)
	watched()
	watcher.Wait()
}

// fault makes one, waits, and heals it.
func (p *partitions) fault(ctx context.Context) {
	nodes := p.cluster.Nodes()
	one := p.random.IntN(len(nodes)) + 1
	other := (one+p.random.IntN(len(nodes)-1))%len(nodes) + 1
	p.mu.Lock()
	relays := make(map[[2]int]*lab.Relay, len(p.relays))
	for ends, r := range p.relays {
		relays[ends] = r
	}
	p.mu.Unlock()
	of := func(ends [2]int) bool { return ends[0] == one || ends[1] == one }
	// away is the direction from one: those who connect to it are answered the other way.
	away := func(ends [2]int) lab.Direction {
		if ends[0] == one {
			return lab.ToServer
		}
		return lab.ToClient
	}
	toward := func(ends [2]int) lab.Direction {
		if ends[0] == one {
			return lab.ToClient
		}
		return lab.ToServer
	}
	each := func(which func([2]int) bool, do func([2]int, *lab.Relay)) {
		for ends, r := range relays {
			if which(ends) {
				do(ends, r)
			}
		}
	}
	pair := func(ends [2]int) bool { return of(ends) && (ends[0] == other || ends[1] == other) }
	lasts := time.Duration(p.random.IntN(2500)) * time.Millisecond
	var restart []*lab.Node
	name := ""
	for range 1 + p.random.IntN(2) {
		kind := p.random.IntN(9)
		name = []string{"isolated", "mute", "deaf", "pair", "pair one way", "slow", "reset", "stopped", "killed"}[kind]
		switch kind {
		case 0:
			each(of, func(_ [2]int, r *lab.Relay) { r.Stall() })
		case 1:
			each(of, func(e [2]int, r *lab.Relay) { r.Stall(away(e)) })
		case 2:
			each(of, func(e [2]int, r *lab.Relay) { r.Stall(toward(e)) })
		case 3:
			each(pair, func(_ [2]int, r *lab.Relay) { r.Stall() })
		case 4:
			each(pair, func(e [2]int, r *lab.Relay) { r.Stall(away(e)) })
		case 5:
			delay := time.Duration(p.random.IntN(400)) * time.Millisecond
			each(of, func(_ [2]int, r *lab.Relay) { r.SetDelay(delay) })
		case 6:
			each(of, func(_ [2]int, r *lab.Relay) { r.Cut() })
		case 7:
			nodes[other-1].Pause()
		case 8:
			n := nodes[other-1]
			if !slices.Contains(restart, n) {
				n.Kill()
				restart = append(restart, n)
			}
		}
		p.faults[name]++
		rest(ctx, time.Duration(p.random.IntN(300))*time.Millisecond)
	}
	rest(ctx, lasts)
	for _, r := range relays {
		r.SetDelay(0)
		r.Heal()
	}
	nodes[other-1].Resume()
	for _, n := range restart {
		if err := n.Restart(p.t.Context()); err != nil {
			p.t.Errorf("restart replica %d: %v\n%s", n.Number(), err, n.LogTail(5))
			return
		}
	}
	rest(ctx, time.Duration(p.random.IntN(900))*time.Millisecond)
}

// key is one of a few, others in each period: of these no writes are forgotten.
func (p *partitions) key(random *rand.Rand) string {
	return fmt.Sprintf("register/%d/%d", p.periods, random.IntN(3))
}

func rest(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (p *partitions) client(ctx context.Context, number int, random *rand.Rand, seen *watched) {
	c, err := kv.Open(p.t.Context(), p.cluster.PeerAddrs(), kv.Options{Path: kv.PathFast})
	if err != nil {
		p.t.Error(err)
		return
	}
	defer c.Close()
	own, last := fmt.Sprintf("own/%d", number), int64(0)
	for i := 0; ctx.Err() == nil; i++ {
		one, cancel := context.WithTimeout(ctx, time.Duration(100+random.IntN(3000))*time.Millisecond)
		key := p.key(random)
		switch random.IntN(7) {
		case 0, 1:
			value := fmt.Sprintf("%d.%d.%d", number, time.Now().UnixNano(), i)
			p.Write(number, key, value, func() (answered, unknown bool) {
				seen.mu.Lock()
				behind := seen.first > 0
				seen.mu.Unlock()
				_, err := c.Put(one, key, []byte(value))
				if err == nil && behind {
					p.mu.Lock()
					p.acked[key+"="+value] = true
					p.mu.Unlock()
				}
				var u *kv.UnknownError
				return err == nil, errors.As(err, &u)
			})
		case 2:
			p.Increment(one, c, "counter/0")
		case 3:
			p.OwnWeak(one, c, own, strconv.Itoa(i))
		case 4: // weak reads of a counter never go back
			item, err := c.Get(one, "counter/0", kv.Weak())
			if err == nil {
				n, err := strconv.ParseInt(string(item.Value), 10, 64)
				if err != nil || n < last {
					p.t.Errorf("a weak read of the session shows %s after %d", item.Value, last)
				}
				last = n
			}
		default:
			p.Get(one, c, number, key)
		}
		cancel()
	}
}

// redis works on one replica after the other as a Redis client does.
func (p *partitions) redis(ctx context.Context, number int, random *rand.Rand) {
	var clients []*redis.Client
	for _, n := range p.cluster.Nodes() {
		c := redis.NewClient(&redis.Options{Addr: n.Addr(), MaxRetries: -1, DialTimeout: time.Second, ReadTimeout: 4 * time.Second, WriteTimeout: 4 * time.Second, DisableIdentity: true})
		defer c.Close()
		clients = append(clients, c)
	}
	for i := 0; ctx.Err() == nil; i++ {
		c := clients[random.IntN(len(clients))]
		key := p.key(random)
		if random.IntN(2) == 0 {
			value := fmt.Sprintf("%d.%d.%d", number, time.Now().UnixNano(), i)
			p.Write(number, key, value, func() (answered, unknown bool) {
				err := c.Set(ctx, key, value, 0).Err()
				return err == nil, err != nil && !strings.HasPrefix(err.Error(), "CLUSTERDOWN")
			})
			continue
		}
		p.Read(number, key, func() (string, bool) {
			value, err := c.Get(ctx, key).Result()
			return value, err == nil || errors.Is(err, redis.Nil)
		})
	}
}

// watched is what a watch has told.
type watched struct {
	mu     sync.Mutex
	told   map[string]bool // keys and values
	first  uint64          // revision, 0 before it begins
	last   uint64
	missed bool
}

func newWatched() *watched { return &watched{told: map[string]bool{}} }

func (p *partitions) watch(ctx context.Context, seen *watched) {
	c, err := kv.Open(p.t.Context(), p.cluster.PeerAddrs(), kv.Options{})
	if err != nil {
		p.t.Error(err)
		return
	}
	defer c.Close()
	first, err := c.Put(p.t.Context(), "register/first", nil)
	if err != nil {
		p.t.Error(err)
		return
	}
	seen.mu.Lock()
	seen.first = first
	seen.mu.Unlock()
	for next := first; ctx.Err() == nil; {
		w, err := c.Watch("register/", kv.PrefixEnd("register/"), next)
		if err != nil {
			p.t.Error(err)
			return
		}
		for {
			changes, err := w.Next(ctx)
			if errors.Is(err, kv.ErrCutOff) {
				break
			}
			if errors.Is(err, kv.ErrMissed) {
				seen.mu.Lock()
				seen.missed = true
				seen.mu.Unlock()
				continue
			}
			if err != nil {
				if ctx.Err() == nil {
					p.t.Errorf("watch: %v", err)
				}
				_ = w.Close() // its connection may be gone
				return
			}
			seen.mu.Lock()
			for _, ch := range changes {
				if ch.Revision <= seen.last {
					p.t.Errorf("the watch tells of revision %d behind %d", ch.Revision, seen.last)
				}
				seen.last = ch.Revision
				seen.told[ch.Key+"="+string(ch.Value)] = true
				next = ch.Revision + 1
			}
			seen.mu.Unlock()
		}
		_ = w.Close()
	}
}

// judge compares what was told with what was answered, once all is whole again.
func (p *partitions) judge(seen *watched) {
	ctx := within(p.t)
	c, err := kv.Open(ctx, p.cluster.PeerAddrs(), kv.Options{})
	if err != nil {
		p.t.Fatal(err)
	}
	defer c.Close()
	_, undecided := p.Check(func(key string) (kv.Item, bool) {
		item, err := c.Get(ctx, key)
		if err != nil && !errors.Is(err, kv.ErrNotFound) {
			p.t.Fatal(err)
		}
		return item, err == nil
	})
	if undecided > 0 {
		p.t.Logf("%d histories are undecided", undecided)
	}
	end, err := c.Put(ctx, "register/end", nil)
	if err != nil {
		p.t.Fatal(err)
	}
	for {
		seen.mu.Lock()
		last, missed := seen.last, seen.missed
		seen.mu.Unlock()
		if last >= end || missed {
			break
		}
		if ctx.Err() != nil {
			p.t.Fatalf("the watch stands at revision %d, %d was written", last, end)
		}
		rest(ctx, 10*time.Millisecond)
	}
	seen.mu.Lock()
	defer seen.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	for what := range p.acked {
		if !seen.told[what] && !seen.missed {
			p.t.Errorf("%s was answered, and the watch has not told of it", what)
		}
	}
	p.watched += len(p.acked)
	clear(p.acked)
}
