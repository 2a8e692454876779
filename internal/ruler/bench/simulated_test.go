package bench

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/weirdb/weir/internal/testkit"
)

// The tests here check what verdicts are worth by machines that are made up: with
// a fixed seed, so that they give the same numbers everywhere. A machine's speed
// wanders by 25 % within a run, single rounds are noisy, and some are hit by
// something foreign; figures of a real virtual machine of two cores.

// machine yields pairs of rates measured one after the other.
type machine struct {
	rng    *rand.Rand
	speed  float64 // of the log; wanders
	wander float64 // how much it does from one sample to the next
	noise  float64 // of each sample
	hits   float64 // share of samples that something foreign slows down
}

func (m *machine) sample(factor float64) float64 {
	m.speed = 0.98*m.speed + m.wander*m.rng.NormFloat64()
	x := m.speed + m.noise*m.rng.NormFloat64()
	if m.rng.Float64() < m.hits {
		x -= m.rng.ExpFloat64() * 0.5
	}
	return 10000 * factor * math.Exp(x)
}

// pairs measures both sides n times, the order drawn by lot; b is by factor as
// fast as a.
func (m *machine) pairs(n int, factor float64) (a, b []float64) {
	for range n {
		if m.rng.IntN(2) == 0 {
			x := m.sample(1)
			a, b = append(a, x), append(b, m.sample(factor))
		} else {
			y := m.sample(factor)
			a, b = append(a, m.sample(1)), append(b, y)
		}
	}
	return a, b
}

var machines = []machine{
	{wander: 0.01, noise: 0.02},
	{wander: 0.05, noise: 0.07},
	{wander: 0.05, noise: 0.05, hits: 0.1},
	{wander: 0.12, noise: 0.20, hits: 0.2},
}

// verdictOf is Judge of PairedRatio without the bootstrap where the probability
// already forbids a claim: thousands of bootstraps take minutes.
func verdictOf(a, b []float64) Verdict {
	var logs []float64
	for i := range a {
		logs = append(logs, math.Log(b[i]/a[i]))
	}
	if pairedP(logs) > falseAlarms {
		return CannotTell // or no difference: in any case no alarm
	}
	return Judge(PairedRatio(a, b, defaultConfidence), true, comparisonMargin)
}

func TestSimulatedFalseAlarms(t *testing.T) {
	testkit.Alone(t)
	const trials = 2500
	for _, pairs := range []int{5, 8, 9, 12, 20} {
		alarms := 0
		for i, m := range machines {
			m.rng = rand.New(rand.NewPCG(uint64(i), uint64(pairs)))
			for range trials {
				m.speed = 0
				if v := verdictOf(m.pairs(pairs, 1)); v == Better || v == Worse {
					alarms++
				}
			}
		}
		all := trials * len(machines)
		t.Logf("%d pairs: %d false alarms in %d trials", pairs, alarms, all)
		if alarms > all/100 {
			t.Errorf("%d pairs: %d false alarms in %d trials, more than 1 %%", pairs, alarms, all)
		}
		if alarms == 0 {
			t.Errorf("%d pairs: never an alarm; the machines are not noisy enough to show anything", pairs)
		}
	}
}

func TestSimulatedRegressionIsFound(t *testing.T) {
	testkit.Alone(t)
	for _, tc := range []struct {
		machine, pairs int
		factor         float64
		power          float64 // of trials in which it must be called worse
	}{
		{0, 12, 0.95, 0.95},
		{1, 200, 0.95, 0.95}, // 200 pairs of two times 60 ms: 24 s
		{2, 200, 0.95, 0.95},
		{3, 80, 0.80, 0.90},
		{3, 8, 0.95, 0}, // hopeless: it must say so, and not guess
	} {
		t.Run(fmt.Sprintf("machine %d, %d pairs, %.2f", tc.machine, tc.pairs, tc.factor), func(t *testing.T) {
			m := machines[tc.machine]
			m.rng = rand.New(rand.NewPCG(99, uint64(tc.pairs)))
			const trials = 60
			worse, better := 0, 0
			for range trials {
				m.speed = 0
				switch verdictOf(m.pairs(tc.pairs, tc.factor)) {
				case Worse:
					worse++
				case Better:
					better++
				}
			}
			t.Logf("called worse in %d of %d trials", worse, trials)
			if better > 0 {
				t.Errorf("called better in %d trials", better)
			}
			if float64(worse) < tc.power*trials {
				t.Errorf("called worse in %d of %d trials", worse, trials)
			}
		})
	}
}

// RoundsNeeded promises a number of rounds that would probably decide. Four in
// five are meant, from a first look that is itself uncertain.
func TestSimulatedRoundsNeededKeepsItsPromise(t *testing.T) {
	testkit.Alone(t)
	m := machines[1]
	m.rng = rand.New(rand.NewPCG(5, 5))
	asked, decided := 0, 0
	for range 60 {
		m.speed = 0
		a, b := m.pairs(10, 0.90)
		r := PairedRatio(a, b, defaultConfidence)
		if Judge(r, true, comparisonMargin) != CannotTell {
			continue
		}
		n := RoundsNeeded(r, comparisonMargin)
		if n == 0 || n > 2000 {
			continue
		}
		asked++
		if v := verdictOf(m.pairs(n, 0.90)); v == Worse {
			decided++
		}
	}
	t.Logf("%d of %d were decided by the number of rounds asked for", decided, asked)
	if asked < 20 || decided*5 < asked*3 {
		t.Errorf("%d of %d were decided", decided, asked)
	}
}

func TestSimulatedRunsApart(t *testing.T) {
	testkit.Alone(t)
	// Two runs one after the other, ten rounds each, on a machine that does not
	// wander: the test for samples that are not paired keeps its word, too.
	m := machine{noise: 0.07, hits: 0.1, rng: rand.New(rand.NewPCG(8, 8))}
	run := func(factor float64) []float64 {
		var xs []float64
		for range 10 {
			xs = append(xs, m.sample(factor))
		}
		return xs
	}
	const trials = 1000
	alarms, found := 0, 0
	for range trials {
		if v := Judge(UnpairedRatio(run(1), run(1), defaultConfidence), true, comparisonMargin); v == Better || v == Worse {
			alarms++
		}
		if Judge(UnpairedRatio(run(1), run(0.70), defaultConfidence), true, comparisonMargin) == Worse {
			found++
		}
	}
	t.Logf("%.2f %% false alarms, %.0f %% of 30 %% slower runs found", 100*float64(alarms)/trials, 100*float64(found)/trials)
	if alarms > trials/100 || found < trials*90/100 {
		t.Errorf("%d false alarms and %d found in %d trials", alarms, found, trials)
	}
}
