package consensus

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// A replica stands for election after one to two timeouts, and no two replicas,
// and no replica twice in a row, wait for the same number of ticks by rule.
func TestElectionTimeouts(t *testing.T) {
	for _, ticks := range []int{10, 30, 31} {
		seen := map[int]int{}
		same := 0
		const draws = 4000
		for seed := range uint64(20) {
			for id := uint64(1); id <= 5; id++ {
				c := assemble(Config{ID: id, Seed: seed, ElectionTicks: ticks}, nil)
				c.engine.term = seed + 3
				last := 0
				for range draws / 100 {
					c.election.elapsed = 99
					c.election.draw()
					d := c.election.timeout
					if d < ticks || d >= 2*ticks || c.election.elapsed != 0 {
						t.Fatalf("%d ticks, seed %d, replica %d: timeout %d after %d", ticks, seed, id, d, c.election.elapsed)
					}
					if d == last {
						same++
					}
					last = d
					seen[d]++
				}
			}
		}
		if len(seen) != ticks {
			t.Errorf("%d ticks: %d different timeouts", ticks, len(seen))
		}
		for d, n := range seen {
			if fair := draws / ticks; n < fair/2 || n > fair*2 {
				t.Errorf("%d ticks: a timeout of %d comes %d times of %d", ticks, d, n, draws)
			}
		}
		if same > draws*3/ticks {
			t.Errorf("%d ticks: the same timeout twice in a row %d times of %d", ticks, same, draws)
		}
	}
}

// The same seed gives the same timeouts: the simulator depends on it.
func TestElectionTimeoutsComeFromTheSeed(t *testing.T) {
	draw := func(seed, id uint64) (out []int) {
		c := assemble(Config{ID: id, Seed: seed, ElectionTicks: 30}, nil)
		for range 20 {
			c.election.draw()
			out = append(out, c.election.timeout)
		}
		return out
	}
	if a, b := fmt.Sprint(draw(1, 1)), fmt.Sprint(draw(1, 1)); a != b {
		t.Errorf("%s and %s", a, b)
	}
	if a, b := fmt.Sprint(draw(1, 1)), fmt.Sprint(draw(2, 1)); a == b {
		t.Errorf("two seeds give %s", a)
	}
	if a, b := fmt.Sprint(draw(1, 1)), fmt.Sprint(draw(1, 2)); a == b {
		t.Errorf("two replicas wait for %s", a)
	}
}

func TestVotesAreWithheldWhilePromised(t *testing.T) {
	ordinary, handedOver := &pb.Message{}, &pb.Message{Context: []byte("CampaignTransfer")}
	c := assemble(Config{ElectionTicks: 30, TickNanos: 10e6}, nil)
	c.now = Clock{Mono: 5e9}
	if !c.election.mayVote(ordinary) {
		t.Error("nothing was promised")
	}
	c.election.heard()
	c.now.Mono += c.election.electionNanos() - 1
	if c.election.mayVote(ordinary) || !c.election.mayVote(handedOver) {
		t.Error("a vote within the promise, or none though the leader asked for it")
	}
	c.now.Mono++
	if !c.election.mayVote(ordinary) {
		t.Error("no vote after the promise")
	}
	// After a restart the silence begins with the first time that is told.
	c.election = election{Core: c, restart: true}
	if c.election.mayVote(ordinary) {
		t.Error("a vote right after the restart")
	}
	c.now.Mono += c.election.electionNanos()
	if !c.election.mayVote(ordinary) {
		t.Error("no vote after the silence")
	}
}

// leads is the leader 1 of a configuration, at a moment.
func leads(now int64, in, out []uint64, echoes map[uint64]int64) *leadership {
	c := assemble(Config{ID: 1, ElectionTicks: 30, TickNanos: 10e6, MaxDrift: 0.1}, nil)
	c.now = Clock{Mono: now}
	c.state.members.conf = &pb.ConfState{Voters: in, VotersOutgoing: out, Learners: []uint64{8, 9}}
	l := &leadership{c: c, knowing: map[uint64]uint64{}, verdicts: map[uint64]verdict{}}
	l.assemble()
	l.lease.echoes = echoes
	return l
}

// Only the newest stamp counts that a majority, the leader among them, has answered; with a
// joint configuration, a majority of each half.
func TestHeardBy(t *testing.T) {
	const now = 1000
	for _, c := range []struct {
		name    string
		in, out []uint64
		echoes  map[uint64]int64
		want    int64
	}{
		{"alone", []uint64{1}, nil, nil, now},
		{"nobody of three", []uint64{1, 2, 3}, nil, nil, -never},
		{"one of three", []uint64{1, 2, 3}, nil, map[uint64]int64{3: 70}, 70},
		{"both of three", []uint64{1, 2, 3}, nil, map[uint64]int64{2: 60, 3: 70}, 70},
		{"two of four", []uint64{1, 2, 3, 4}, nil, map[uint64]int64{2: 60, 3: 70}, 60},
		{"two of five", []uint64{1, 2, 3, 4, 5}, nil, map[uint64]int64{2: 60, 5: 70}, 60},
		{"one of five", []uint64{1, 2, 3, 4, 5}, nil, map[uint64]int64{2: 60}, -never},
		{"all of five", []uint64{1, 2, 3, 4, 5}, nil, map[uint64]int64{2: 60, 3: 50, 4: 90, 5: 70}, 70},
		{"learners and strangers", []uint64{1, 2, 3}, nil, map[uint64]int64{8: 90, 9: 90, 77: 90}, -never},
		{"a leader that is no voter", []uint64{2, 3, 4}, nil, map[uint64]int64{2: 60, 3: 50}, 50},
		{"joint, the new half is slow", []uint64{1, 4, 5}, []uint64{1, 2, 3}, map[uint64]int64{2: 90, 3: 80, 4: 10}, 10},
		{"joint, the old half is slow", []uint64{1, 4, 5}, []uint64{1, 2, 3}, map[uint64]int64{2: 20, 4: 90, 5: 95}, 20},
		{"joint, the old half is silent", []uint64{1, 4, 5}, []uint64{1, 2, 3}, map[uint64]int64{4: 90, 5: 95}, -never},
		{"joint, the leader leaves", []uint64{2, 3, 4}, []uint64{1, 2, 3}, map[uint64]int64{2: 90, 3: 20}, 20},
		{"many voters", []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9}, nil, map[uint64]int64{2: 9, 3: 8, 4: 7, 5: 6, 6: 5}, 6},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := leads(now, c.in, c.out, c.echoes).lease.heardBy(); got != c.want {
				t.Errorf("heard by a majority at %d, want %d", got, c.want)
			}
		})
	}
}

// Whatever has been heard, a majority of each half has confirmed it: counted one
// by one.
func TestHeardByAgainstCounting(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	some := func() (ids []uint64) {
		for id := uint64(1); id <= 7; id++ {
			if r.IntN(2) == 0 {
				ids = append(ids, id)
			}
		}
		return ids
	}
	for range 5000 {
		in, out := some(), some()
		if len(in) == 0 {
			continue
		}
		echoes := map[uint64]int64{}
		for _, id := range some() {
			if id != 1 {
				echoes[id] = int64(r.IntN(20))
			}
		}
		l := leads(100, in, out, echoes)
		confirmed := func(voters []uint64, at int64) bool {
			n := 0
			for _, id := range voters {
				if stamp, ok := echoes[id]; id == 1 || ok && stamp >= at {
					n++
				}
			}
			return 2*n > len(voters)
		}
		want := int64(-never)
		for _, at := range append([]int64{100}, valuesOf(echoes)...) {
			if confirmed(in, at) && (len(out) == 0 || confirmed(out, at)) {
				want = max(want, at)
			}
		}
		if got := l.lease.heardBy(); got != want {
			t.Fatalf("voters %v, outgoing %v, echoes %v: %d, want %d", in, out, echoes, got, want)
		}
	}
}

func valuesOf(m map[uint64]int64) (out []int64) {
	for _, v := range m {
		out = append(out, v)
	}
	return out
}

// A lease ends before the promise that it rests on, also when the voter's clock
// runs faster than the leader's by as much as Config.MaxDrift allows.
func TestLeaseEndsBeforeThePromise(t *testing.T) {
	for _, drift := range []float64{0.01, 0.1, 0.3, 0.5} {
		for _, ticks := range []int{10, 30, 100} {
			c := assemble(Config{ID: 1, ElectionTicks: ticks, TickNanos: int64(10 * time.Millisecond), MaxDrift: drift}, nil)
			c.state.members.conf = &pb.ConfState{Voters: []uint64{1, 2, 3}}
			l := &leadership{c: c, knowing: map[uint64]uint64{}, verdicts: map[uint64]verdict{}}
			l.assemble()
			const stamp = int64(7e9)
			l.lease.echo(2, &wire.Message{Time: stamp, Count: 1, Stable: uint64(c.election.electionNanos())})
			lasts := func(at int64) bool {
				c.now.Mono = at
				return l.lease.held()
			}
			// The voter's promise begins when the stamp arrives, at the earliest
			// when it is sent, and lasts for the election timeout by its clock.
			ends := stamp + int64(float64(c.election.electionNanos())*(1-drift))
			if lasts(ends) {
				t.Errorf("drift %v, %d ticks: the lease outlasts the promise", drift, ticks)
			}
			if lasts(ends - c.cfg.TickNanos) {
				t.Errorf("drift %v, %d ticks: no tick is left between lease and promise", drift, ticks)
			}
			if !lasts(stamp) || !lasts(ends-c.cfg.TickNanos-1000) {
				t.Errorf("drift %v, %d ticks: the lease ends too early", drift, ticks)
			}
			l.lease.successors[3] = stamp
			if lasts(stamp) {
				t.Error("a lease while leadership is being handed over")
			}
		}
	}
}

// An old echo that arrives late takes nothing back, and one of another term is
// of no use.
func TestEchoes(t *testing.T) {
	l := leads(1000, []uint64{1, 2, 3}, nil, map[uint64]int64{})
	c := l.c
	c.lead, c.engine.term = l, 5
	echo := func(view uint64, stamp int64) {
		c.election.lease(2, &wire.Message{Kind: wire.Lease, Flags: wire.FlagYes, View: view, Time: stamp})
	}
	echo(4, 900)
	if got := l.lease.heardBy(); got != -never {
		t.Errorf("an echo of an older term counts: %d", got)
	}
	echo(5, 500)
	echo(5, 300)
	if got := l.lease.heardBy(); got != 500 {
		t.Errorf("heard at %d, want 500", got)
	}
	echo(5, 600)
	if got := l.lease.heardBy(); got != 600 {
		t.Errorf("heard at %d, want 600", got)
	}
}
