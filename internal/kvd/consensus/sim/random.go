package sim

import (
	"math/bits"
	"time"
)

// random is a small seeded generator (splitmix64). It is part of this package so that a seed
// means the same run with every version of Go.
type random struct{ state uint64 }

func newRandom(seed uint64) *random { return &random{seed} }

// fork returns a separate generator for a part of the world, so that another draw in one part
// does not change the draws of another.
func (r *random) fork(name string) *random {
	h := r.state
	for _, c := range []byte(name) {
		h = (h ^ uint64(c)) * 0x100000001b3
	}
	f := &random{h}
	f.next()
	return f
}

func (r *random) next() uint64 {
	r.state += 0x9e3779b97f4a7c15
	z := r.state
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// below returns a number in [0, n).
func (r *random) below(n int) int {
	hi, _ := bits.Mul64(r.next(), uint64(n))
	return int(hi)
}

// fraction returns a number in [0, 1).
func (r *random) fraction() float64 { return float64(r.next()>>11) / (1 << 53) }

// chance returns true with probability p.
func (r *random) chance(p float64) bool { return p > 0 && r.fraction() < p }

// between returns a duration in [lo, hi), in nanoseconds.
func (r *random) between(lo, hi time.Duration) int64 {
	if hi <= lo {
		return int64(lo)
	}
	return int64(lo) + int64(r.fraction()*float64(hi-lo))
}

// around returns a duration with this median and a long tail: mostly between half and twice the
// median, sometimes ten times as much.
func (r *random) around(median time.Duration) int64 {
	m := float64(median) * (0.5 + r.fraction())
	if r.chance(0.05) {
		m *= 1 + 9*r.fraction()
	}
	return int64(m)
}

// pick returns an element of list.
func pick[T any](r *random, list []T) T { return list[r.below(len(list))] }

// shuffle shuffles list.
func shuffle[T any](r *random, list []T) {
	for i := len(list) - 1; i > 0; i-- {
		j := r.below(i + 1)
		list[i], list[j] = list[j], list[i]
	}
}
