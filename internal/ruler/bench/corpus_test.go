package bench

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/testkit"
)

// Tables that others have published, put into the form of a result. What their
// authors concluded is not repeated here; what the rules find in them is.

// published makes a case of a published row: a rate, a mean latency in
// milliseconds and the number in flight that follows from both.
func published(name, window string, rate int64, latencyMs float64) *Case {
	return testCase(name, window, rate, int(float64(rate)*latencyMs/1e3+0.5), func(s *Sample) {
		s.Latency = &measure.Hist{}
		s.Latency.RecordN(int64(latencyMs*1e6), uint64(s.Ops))
		s.InFlight = int(float64(s.Ops)*latencyMs/1e3 + 0.5)
	})
}

// A batching proxy: 10 ms is said to be the best window, by 94 %. Rate times
// latency shows that the number of clients grew with the window, 100, 998, 4899.
func TestPublishedSweepIsConfounded(t *testing.T) {
	r := result(
		published("no window", "0", 42_600, 2.35),
		published("10 ms", "10", 82_600, 12.08),
		published("100 ms", "100", 58_700, 83.45),
	)
	got := claims(r, "confounded")
	for _, want := range []string{"10 ms against no window: window, and 998 instead of 100 in flight", "100 ms against no window: window, and 4,899 instead of 100 in flight"} {
		if !strings.Contains(got, want) {
			t.Errorf("confounded = %q, want %q", got, want)
		}
	}
}

// A boundary profiler: 100 workers, a pool of 100, 2000 operations. 69 of 82 ms are
// said to be pool contention. The pool began with one connection and opened the
// others meanwhile, so what was measured is opening them.
func TestPublishedProfileIsOfAColdPool(t *testing.T) {
	shares := map[string]float64{SegmentConnect: 60, SegmentQueue: 24, SegmentServer: 16}
	r := result(withPool("pool 100", 100, 1018, split(100, shares, func(b *Boundary) { b.Connects, b.Cold = 99, true })))
	if got := claims(r, "cold-pool"); !strings.Contains(got, "up to 84 % of the time is the cost of a cold pool") {
		t.Errorf("cold-pool = %q", got)
	}
	if got := claims(r, "pool-small") + claims(r, "pool-wait"); got != "" {
		t.Errorf("a pool as large as the number of workers is said to be too small: %s", got)
	}
}

// The same with a pool of 5: 210 of 220 ms are the wait for a connection, at 451
// instead of 1018 operations a second. There the pool is too small indeed.
func TestPublishedProfileOfASmallPool(t *testing.T) {
	waits := map[string]float64{SegmentQueue: 95, SegmentServer: 5}
	serves := map[string]float64{SegmentServer: 100}
	r := result(withPool("pool 5", 5, 451, split(5, waits)), withPool("pool 100", 100, 1018, split(100, serves)))
	if got := claims(r, "pool-small"); !strings.Contains(got, "The pool of 5 is too small: pool 100 reaches 2.26x") {
		t.Errorf("pool-small = %q", got)
	}
}

// An outbox relay: 32,000 messages a second alone, and 207 beside producers that enqueue 195.
// The relay did not collapse; there was no more to deliver.
func TestPublishedCollapseIsStarvation(t *testing.T) {
	kinds := func(name string, rates map[string]float64) *Case {
		return testCase(name, "-", 1000, 8, func(s *Sample) { s.Rates = rates })
	}
	r := result(kinds("relay", map[string]float64{"relay": 32_000}), kinds("mixed", map[string]float64{"relay": 207, "enqueue": 195}))
	if got := claims(r, "mixed-fed"); !strings.Contains(got, "relay keeps pace with enqueue") {
		t.Errorf("mixed-fed = %q", got)
	}
	if got := claims(r, "mixed-collapse"); got != "" {
		t.Errorf("mixed-collapse = %q", got)
	}
}

// A sweep of a batching delay: 100 us is said to be worse than 75, by a mean of
// three runs inside the spread of the author's own five at 150 us. The single runs
// are made up to fit the means and spreads that are published.
func TestPublishedDegradationCannotBeTold(t *testing.T) {
	delay := func(name, us string, rates ...int64) *Case {
		c := &Case{Name: name, Factors: map[string]string{"window": us}}
		for round, rate := range rates {
			s := fixed(rate, 8)
			s.Round = round
			c.Samples = append(c.Samples, s)
		}
		return c
	}
	r := result(delay("75 us", "75", 20_100, 21_900, 22_400), delay("100 us", "100", 18_800, 19_700, 21_200), delay("150 us", "150", 18_800, 20_400, 21_600, 22_700, 23_000))
	if got := claims(r, "degradation"); got != "" {
		t.Errorf("degradation = %q", got)
	}
	if got := claims(r, "plateau"); !strings.Contains(got, "cannot be told apart") {
		t.Errorf("plateau = %q", got)
	}
}

// The fastest case of a sweep breaks a limit that was set beforehand, the next one a
// promise: neither is called best, and no sentence recommends one of them.
func TestNoBestAmongInvalidCases(t *testing.T) {
	limit := 2.0
	at := func(ms int64) func(*Sample) {
		return func(s *Sample) {
			s.Latency = &measure.Hist{}
			s.Latency.RecordN(ms*1e6, uint64(s.Ops))
		}
	}
	r := result(
		testCase("0 us", "0", 16_000, 60, at(1)),
		testCase("50 us", "50", 22_000, 60, at(1)),
		testCase("100 us", "100", 30_000, 60, at(1), func(s *Sample) { s.Invalid = []string{"3 answers are wrong"} }),
		testCase("150 us", "150", 40_000, 60, at(9)))
	r.Experiment.Constraints = []Constraint{{Metric: "p50", Max: &limit}}
	r.Evaluate()
	if got := claims(r, "constraint"); !strings.Contains(got, "1 of ") {
		t.Errorf("constraint = %q", got)
	}
	if got := claims(r, "sweet-spot"); !strings.Contains(got, "50") || strings.Contains(got, "100 us is") || strings.Contains(got, "150 us is") {
		t.Errorf("sweet-spot = %q; want 50 us", got)
	}
	for _, f := range r.Findings {
		if strings.Contains(f.Claim, "is best") && !strings.HasPrefix(f.Claim, "50 ms") {
			t.Errorf("%s: %s", f.ID, f.Claim)
		}
	}
}

// Of levels that are all alike, seen through noise, hardly ever one is called better than
// another: a sentence says no more than its interval.
func TestLevelsThatAreAlikeAreNotRanked(t *testing.T) {
	testkit.Alone(t)
	rng := rand.New(rand.NewPCG(7, 11))
	const sweeps = 80
	ranked := 0
	for range sweeps {
		var cases []*Case
		for _, us := range []string{"0", "25", "50", "75", "100", "150"} {
			c := &Case{Name: us + " us", Factors: map[string]string{"window": us}}
			for round := range 6 {
				s := fixed(int64(20_000*math.Exp(.08*rng.NormFloat64())), 60)
				s.Round = round
				c.Samples = append(c.Samples, s)
			}
			cases = append(cases, c)
		}
		r := result(cases...)
		for _, f := range r.Findings {
			if f.ID == "sweet-spot" || f.ID == "degradation" || f.ID == "cliff" {
				ranked++
				break
			}
		}
	}
	if most := sweeps * 5 / 100; ranked > most {
		t.Errorf("%d of %d sweeps of levels that are alike rank them; want at most %d", ranked, sweeps, most)
	}
}

// One round a level has no interval: however far levels lie apart, no sentence ranks them.
func TestOneRoundRanksNothing(t *testing.T) {
	once := func(name, ms string, rate int64) *Case {
		c := testCase(name, ms, rate, 8)
		c.Samples = c.Samples[:1]
		return c
	}
	r := result(once("0 ms", "0", 10_000), once("1 ms", "1", 40_000), once("10 ms", "10", 900), once("100 ms", "100", 90))
	for _, id := range []string{"sweet-spot", "degradation", "cliff", "adaptive"} {
		if got := claims(r, id); got != "" {
			t.Errorf("%s = %q", id, got)
		}
	}
	if got := claims(r, "no-best"); !strings.Contains(got, "Cannot tell which level") {
		t.Errorf("no-best = %q", got)
	}
}
