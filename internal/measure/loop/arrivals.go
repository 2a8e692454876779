package loop

import (
	"fmt"
	"math/rand/v2"
)

// Arrivals is a schedule of intended starts. It reads no clock, so any load generator can
// follow it. It is used by one goroutine at a time.
type Arrivals interface {
	// Next returns the next intended start, in nanoseconds since the beginning of the run. It
	// never decreases.
	Next() int64
	// Rate is the mean number of starts a second.
	Rate() float64
}

// maxRate keeps starts at least a nanosecond apart.
const maxRate = 1e9

func checkRate(rate float64) error {
	if !(rate > 0) || rate > maxRate {
		return fmt.Errorf("rate %v: want more than 0 and at most %.0f a second", rate, maxRate)
	}
	return nil
}

// Constant returns starts at equal intervals: the i-th is at i/rate, so that rounding errors do
// not add up.
func Constant(rate float64) (Arrivals, error) {
	if err := checkRate(rate); err != nil {
		return nil, err
	}
	return &constant{rate: rate}, nil
}

type constant struct {
	rate float64
	n    int64
}

func (c *constant) Next() int64 {
	at := int64(float64(c.n) / c.rate * 1e9)
	c.n++
	return at
}

func (c *constant) Rate() float64 { return c.rate }

// Poisson returns starts at random intervals, as those of many independent users. The same seed
// gives the same starts.
func Poisson(rate float64, seed uint64) (Arrivals, error) {
	if err := checkRate(rate); err != nil {
		return nil, err
	}
	return &poisson{rate: rate, rng: rand.New(rand.NewPCG(seed, 0))}, nil
}

type poisson struct {
	rate float64
	at   float64 // nanoseconds
	rng  *rand.Rand
}

func (p *poisson) Next() int64 {
	p.at += p.rng.ExpFloat64() / p.rate * 1e9
	return int64(p.at)
}

func (p *poisson) Rate() float64 { return p.rate }
