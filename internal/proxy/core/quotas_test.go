package core_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/session"
)

// A simPool is a pool whose statements take one step each.
type simPool struct {
	name    string
	quota   *core.PoolQuota
	conns   int
	waiting int // statements
	done    int
	owed    int
	turn    int // statements until it pays
	asked   bool
	idle    bool // lends what nobody uses
}

// A simulation has pools that share places.
type simulation struct {
	places core.ConnQuotas
	now    time.Duration
	pools  []*simPool
}

func (s *simulation) pool(o *session.Options, database, user string) *simPool {
	p := &simPool{name: user + "@" + database, asked: true}
	p.quota = s.places.Register(o, database, user, func() { p.asked = false }, func(afterTurn bool) {
		if p.owed++; afterTurn && p.owed == 1 {
			p.turn = 16
		}
	}, func() { p.idle = true })
	s.pools = append(s.pools, p)
	return p
}

// step has each connection answer one statement.
func (s *simulation) step() {
	s.now += time.Millisecond
	for _, p := range s.pools {
		p.seatAsks(s.now)
		for range p.conns {
			if p.waiting > 0 {
				p.waiting--
				p.done++
				p.turn--
			}
			if p.owed > 0 && (p.turn <= 0 || p.waiting == 0) || p.idle && p.waiting == 0 {
				p.idle = false
				p.owed = max(0, p.owed-1)
				p.conns--
				p.quota.Holds(p.conns)
			}
		}
	}
}

func (p *simPool) seatAsks(now time.Duration) {
	for p.conns < p.waiting {
		if !p.quota.Ask(p.waiting-p.conns, now) {
			return
		}
		p.conns++
	}
	p.quota.Withdraw()
}

func (s *simulation) held() (n int) {
	for _, p := range s.pools {
		n += p.conns
	}
	return n
}

func limited(database, user int) *session.Options {
	return &session.Options{Limits: session.Limits{MaxDBConnections: database, MaxUserConnections: user}}
}

// A user with a thousand statements that wait does not keep others from the database:
// how long they wait is bounded by the statements of his that are answered meanwhile.
func TestPlacesAreShared(t *testing.T) {
	t.Parallel()
	for _, users := range []int{1, 2, 3, 7, 20} {
		t.Run(fmt.Sprint(users), func(t *testing.T) {
			t.Parallel()
			const places = 8
			s := new(simulation)
			o := limited(places, 0)
			greedy := s.pool(o, "d", "greedy")
			greedy.waiting = 100_000
			for range 10 {
				s.step()
			}
			if greedy.conns != places {
				t.Fatalf("alone it has %d places", greedy.conns)
			}
			var others []*simPool
			for i := range users {
				p := s.pool(o, "d", fmt.Sprint("u", i))
				p.waiting = 1
				others = append(others, p)
			}
			before := greedy.done
			for _, p := range others {
				for p.done == 0 {
					s.step()
					if s.held() > places {
						t.Fatalf("%d places are held, of %d", s.held(), places)
					}
					// A turn of each place for each who wants one.
					if n := greedy.done - before; n > 16*places*(users+2) {
						t.Fatalf("%s waits though %d statements of the other were answered", p.name, n)
					}
				}
			}
			for _, p := range others {
				p.waiting = 100_000
			}
			for range 2000 {
				s.step()
			}
			fair := 0
			for _, p := range s.pools {
				p.done = 0
			}
			for range 4000 {
				s.step()
			}
			for _, p := range s.pools {
				fair += p.done
			}
			fair /= len(s.pools)
			for _, p := range s.pools {
				if p.done < fair/2 || p.done > 2*fair {
					t.Errorf("%s was answered %d statements where each has %d", p.name, p.done, fair)
				}
			}
		})
	}
}

// Unused places are lent, and a limit of the user holds beside that of the database.
func TestPlacesOfTwoAccounts(t *testing.T) {
	t.Parallel()
	s := new(simulation)
	o := limited(10, 4)
	a1, a2, b1 := s.pool(o, "d1", "a"), s.pool(o, "d2", "a"), s.pool(o, "d1", "b")
	for _, p := range s.pools {
		p.waiting = 1 << 20
	}
	for range 500 {
		s.step()
	}
	if a1.conns+a2.conns != 4 || a1.conns != 2 || b1.conns != 4 {
		t.Errorf("a has %d and %d, b %d; want 2, 2 and 4", a1.conns, a2.conns, b1.conns)
	}
	a2.waiting = 0
	for range 500 {
		s.step()
	}
	if a1.conns != 4 || a2.conns != 0 {
		t.Errorf("a has %d and, where it wants none, %d; want 4 and 0", a1.conns, a2.conns)
	}
	s.places.Apply(limited(3, 0))
	for range 500 {
		s.step()
	}
	if n := a1.conns + b1.conns; n != 3 {
		t.Errorf("with a limit of 3 there are %d", n)
	}
	s.places.Apply(limited(0, 0))
	b1.waiting = 100
	s.step()
	if b1.conns < 99 { // it still owed one
		t.Errorf("without a limit there are %d, want 100", b1.conns)
	}
}

// A pool that cannot give up what it has is not waited for.
func TestPlacesThatAreKept(t *testing.T) {
	t.Parallel()
	var places core.ConnQuotas
	o := limited(2, 0)
	var asked []string
	quota := func(user string) *core.PoolQuota {
		return places.Register(o, "d", user, func() { asked = append(asked, "wake "+user) }, func(bool) { asked = append(asked, user) }, func() {})
	}
	a, b, c := quota("a"), quota("b"), quota("c")
	if !a.Ask(1, 0) || !b.Ask(1, 0) || c.Ask(1, 0) {
		t.Fatal("two places of two")
	}
	if len(asked) != 1 || asked[0] != "a" {
		t.Fatalf("asked to give up: %v", asked)
	}
	a.Keeps()
	if c.Ask(1, 0) || asked[len(asked)-1] != "b" {
		t.Errorf("asked to give up: %v", asked)
	}
	b.Holds(0)
	if b.Ask(1, 0) {
		t.Error("b goes before c, for whom it gave up its place")
	}
	if !c.Ask(1, 0) {
		t.Error("c is not given the place that b gave up")
	}
	if d := quota("d"); d.Keep(false) || !d.Keep(true) {
		t.Error("a connection that need not be kept has a place, or one that must has none")
	}
}

// A reload puts limits in force before each loop has heard of them: a pool that such a loop
// makes has the new ones.
func TestLimitsOfAPoolThatIsMadeDuringAReload(t *testing.T) {
	var places core.ConnQuotas
	before := limited(2, 0)
	places.Apply(limited(1, 0))
	s := places.Register(before, "d", "u", func() {}, func(bool) {}, func() {})
	if !s.Ask(2, 0) {
		t.Error("there is no place")
	}
	if s.Ask(1, 0) {
		t.Error("there are as many places as before the reload")
	}
}

// Pools of one user and database are dropped together, when none is in use.
func TestIdlePoolsLeaveTogether(t *testing.T) {
	var places core.ConnQuotas
	quota := func(user string) *core.PoolQuota {
		return places.Register(limited(1, 0), "d", user, func() {}, func(bool) {}, func() {})
	}
	a, twin, other := quota("a"), quota("a"), quota("b")
	check := func(what string, got, want bool) {
		t.Helper()
		if got != want {
			t.Errorf("%s: it leaves: %v", what, got)
		}
	}
	check("one of two", a.Idle(true), false)
	check("one that is used", twin.Idle(false), false)
	check("one of two", a.Idle(true), false)
	check("alone", other.Idle(true), true)
	check("the second of two", twin.Idle(true), true)
	check("then the first", a.Idle(true), true)
	check("used once more", a.Idle(false), false)
	check("the second, as the first is used", twin.Idle(true), false)
	check("none is used", a.Idle(true), true)
	for _, s := range []*core.PoolQuota{a, twin, other} {
		if !places.Leaving() {
			t.Error("there are none that leave")
		}
		s.Leave()
	}
	if places.Leaving() {
		t.Error("some leave though all have left")
	}
}

// Pools that are gone have no part in what is shared, and leave nothing behind.
func TestPoolsThatLeaveGiveUpTheirPlaces(t *testing.T) {
	o := limited(1, 0)
	var places core.ConnQuotas
	quota := func(user string) *core.PoolQuota {
		return places.Register(o, "d", user, func() {}, func(bool) {}, func() {})
	}
	first, second := quota("a"), quota("b")
	if !first.Ask(1, 0) || second.Ask(1, 0) {
		t.Fatal("there is not one place")
	}
	first.Holds(0)
	first.Leave()
	if !second.Ask(1, 0) {
		t.Error("the place of a pool that is gone is lost")
	}
	second.Holds(0)
	second.Leave()
	if again := quota("a"); !again.Ask(1, 0) {
		t.Error("the place of all that are gone is lost")
	}
	if n := places.Accounts(); n != 2 {
		t.Errorf("%d accounts are kept", n)
	}
	for i := range 1000 {
		quota(fmt.Sprint(i)).Leave()
	}
	if n := places.Accounts(); n != 2 {
		t.Errorf("%d accounts are kept of users that are gone", n)
	}
}
