package core

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// A sizedServer is a server and its clients, simulated: all in use answer together, after a
// time that depends on how many they are.
type sizedServer struct {
	z       *sizer
	rnd     *rand.Rand
	clients int
	took    func(busy int) time.Duration // to answer one statement on each of so many
	noise   float64                      // standard deviation of ln(took)

	now     time.Duration
	open    int
	opened  int // connections, all in all
	largest int
	answers int
	sized   float64 // sum of the sizes over time, for the mean
}

func newSizedServer(clients, base, most int, noise float64, took func(busy int) time.Duration) *sizedServer {
	s := &sizedServer{z: new(sizer), rnd: rand.New(rand.NewPCG(1, uint64(clients))), clients: clients, took: took, noise: noise}
	s.z.limit(true, base, most)
	return s
}

// run has the clients ask for so long, and returns the answers per second.
func (s *sizedServer) run(d time.Duration) float64 {
	from, until := s.answers, s.now+d
	began := s.now
	tick := s.now
	for s.now < until {
		busy := min(s.clients, s.z.size)
		if busy > s.open { // each takes a millisecond of the server's
			s.opened += busy - s.open
			s.now += time.Duration(busy-s.open) * time.Millisecond
			s.open = busy
		}
		s.largest = max(s.largest, s.z.size)
		if busy == 0 {
			s.now += 100 * time.Millisecond
		} else {
			d := time.Duration(float64(s.took(busy)) * math.Exp(s.noise*s.rnd.NormFloat64()-s.noise*s.noise/2))
			s.now += d
			s.sized += float64(s.z.size) * d.Seconds()
		}
		for i := range busy {
			s.z.answered(s.now, busy-i, s.clients-busy, s.open)
		}
		s.answers += busy
		if s.now-tick >= 100*time.Millisecond {
			tick = s.now
			s.z.tick(s.now, busy, s.clients-busy)
		}
	}
	return float64(s.answers-from) / (s.now - began).Seconds()
}

// best is the best rate that a fixed size would have.
func (s *sizedServer) best(base, most int) (size int, rate float64) {
	for n := base; n <= most; n++ {
		busy := min(n, s.clients)
		if r := float64(busy) / s.took(busy).Seconds(); r > 1.005*rate {
			size, rate = n, r
		}
	}
	return size, rate
}

// groupCommit is a server that flushes its log once for all that commit.
func groupCommit(busy int) time.Duration {
	return 600*time.Microsecond + time.Duration(busy)*50*time.Microsecond
}

// cpuBound is a server that has as much to do for each statement, and more to switch
// between with each connection.
func cpuBound(busy int) time.Duration {
	return time.Duration(busy) * (50*time.Microsecond + time.Duration(busy)*50*time.Nanosecond)
}

func TestSizerFindsTheBestSize(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		took    func(busy int) time.Duration
		clients int
		least   float64 // of the best rate, once it has learned
	}{
		{"group commit, 16 clients", groupCommit, 16, 0.97},
		{"group commit, 64 clients", groupCommit, 64, 0.97},
		{"group commit, 256 clients", groupCommit, 256, 0.96},
		{"processors, 64 clients", cpuBound, 64, 0.97},
		{"processors, 1000 clients", cpuBound, 1000, 0.97},
		{"clients that think in transactions", func(int) time.Duration { return 5 * time.Millisecond }, 100, 0.97},
		{"a lock that all wait for", func(busy int) time.Duration { return time.Duration(busy) * time.Millisecond }, 100, 0.96},
		{"best at 60", func(busy int) time.Duration {
			return time.Millisecond*2 + time.Duration(busy)*time.Duration(max(20, busy-40))*time.Microsecond
		}, 500, 0.93},
	} {
		for _, noise := range []float64{0, 0.1, 0.3} {
			s := newSizedServer(c.clients, 20, 256, noise, c.took)
			early := s.run(2 * time.Second)
			s.run(20 * time.Second)
			rate := s.run(60 * time.Second)
			size, best := s.best(20, 256)
			t.Logf("%s, noise %.1f: %.3f of the best, that of %d; size %d, %.3f in the first 2 s; %d comparisons, %d moves, %d opened, largest %d, mean %.0f", c.name, noise,
				rate/best, size, s.z.held, early/best, s.z.probes, s.z.moves, s.opened, s.largest, s.sized/s.now.Seconds())
			if s.z.moves > 12 { // by chance
				t.Errorf("%s, noise %.1f: %d moves", c.name, noise, s.z.moves)
			}
			if rate < c.least*best {
				t.Errorf("%s, noise %.1f: %.3f of the best rate", c.name, noise, rate/best)
			}
		}
	}
}

// A load that goes leaves the pool as it was at first, whatever was being compared.
func TestSizerWithoutLoad(t *testing.T) {
	t.Parallel()
	for after := 150 * time.Millisecond; after < 2*time.Second; after += 70 * time.Millisecond {
		s := newSizedServer(256, 20, 256, 0, groupCommit)
		s.run(after)
		if s.largest == 20 {
			t.Fatalf("nothing was compared within %v", after)
		}
		s.clients = 0
		s.run(10 * time.Second)
		if s.z.size != 20 || s.z.rival != 0 {
			t.Errorf("gone after %v: size %d, compared with %d", after, s.z.size, s.z.rival)
		}
		s.clients = 10 // whom the connections suffice
		s.run(10 * time.Second)
		if s.z.size != 20 || s.z.rival != 0 {
			t.Errorf("10 clients: size %d, compared with %d", s.z.size, s.z.rival)
		}
		s.clients = 256
		s.run(5 * time.Second)
		if s.z.held < 128 {
			t.Errorf("the load is back, and the size is %d", s.z.held)
		}
	}
}

// A load that comes back gets what it had at once; one that is served by fewer, fewer again.
func TestSizerRegains(t *testing.T) {
	t.Parallel()
	s := newSizedServer(256, 20, 256, 0, groupCommit)
	s.run(20 * time.Second)
	learned := s.z.held
	for range 3 {
		s.clients = 0
		s.run(10 * time.Second)
		if s.z.size != 20 {
			t.Fatalf("without a load: size %d", s.z.size)
		}
		probes := s.z.probes
		s.clients = 256
		s.run(60 * time.Millisecond)
		if s.z.held != learned || s.z.probes != probes {
			t.Errorf("the load is back: size %d after %d comparisons, before it was %d", s.z.held, s.z.probes-probes, learned)
		}
		s.run(20 * time.Second)
		learned = s.z.held
	}
	s.clients = 0
	s.run(10 * time.Second)
	s.clients, s.took = 256, func(busy int) time.Duration { // of which fewer answer much more
		return time.Duration(busy*busy) * time.Microsecond
	}
	s.run(5 * time.Second)
	if s.z.held > 30 {
		t.Errorf("another load that wants few: size %d", s.z.held)
	}
	s.took = groupCommit
	s.run(20 * time.Second)
	s.clients = 0
	s.run(10 * time.Second)
	s.z.yield()
	s.clients = 256
	s.run(60 * time.Millisecond)
	if s.z.held != 20 {
		t.Errorf("the server has refused a connection meanwhile: size %d", s.z.held)
	}
}

// Fewer clients leave what they do not use, and more clients are noticed.
func TestSizerFollowsTheClients(t *testing.T) {
	t.Parallel()
	s := newSizedServer(256, 20, 256, 0.1, groupCommit)
	for _, c := range []struct{ clients, least, most int }{{256, 160, 256}, {64, 60, 75}, {30, 28, 40}, {10, 20, 20}, {100, 80, 115}, {256, 160, 256}} {
		s.clients = c.clients
		s.run(10 * time.Second)
		if s.z.held < c.least || s.z.held > c.most {
			t.Errorf("%d clients: size %d, want %d to %d", c.clients, s.z.held, c.least, c.most)
		}
	}
}

// No more connections are asked for than there may be; those that cannot be had are not
// waited for.
func TestSizerBounds(t *testing.T) {
	t.Parallel()
	s := newSizedServer(256, 20, 50, 0, groupCommit)
	s.run(20 * time.Second)
	if s.largest != 50 || s.z.held != 50 {
		t.Errorf("at most 50: size %d, largest %d", s.z.held, s.largest)
	}
	s = newSizedServer(256, 20, 256, 0, groupCommit)
	s.z.spare = func() int { return 70 - s.open }
	s.run(20 * time.Second)
	if s.largest > 70 || s.z.held < 60 {
		t.Errorf("at most 70 that the server has: size %d, largest %d", s.z.held, s.largest)
	}
	s.z.limit(true, 20, 30)
	if s.z.size != 30 {
		t.Errorf("at most 30 from now on: size %d", s.z.size)
	}
	s.z.limit(true, 25, 300)
	if s.z.size != 25 {
		t.Errorf("it begins with 25 from now on: size %d", s.z.size)
	}
	s.z.limit(false, 8, 8)
	s.run(5 * time.Second)
	if s.z.size != 8 || s.z.rival != 0 {
		t.Errorf("8 fixed: size %d", s.z.size)
	}

	z := new(sizer) // of which nobody opens more than 20
	z.limit(true, 20, 256)
	for now := time.Duration(0); now < 20*time.Second; now += time.Millisecond {
		for range 20 {
			z.answered(now, 20, 100, 20)
		}
	}
	if z.held != 20 || z.probes == 0 || z.probes > 10 {
		t.Errorf("no more can be opened: size %d, %d comparisons", z.held, z.probes)
	}
}
