package kvload

import (
	"math"
	"math/rand/v2"
)

// maxSkew limits exponents, so that the arithmetic stays far from overflow.
const maxSkew = 8

// zipf returns numbers from 0 to n-1, k in proportion to (k+1)^-s, for any s > 0: the standard
// library's generator needs s > 1, and most benchmarks of stores use less. The method is
// rejection-inversion (W. Hörmann, G. Derflinger, "Rejection-inversion to generate variates
// from monotone discrete distributions", 1996): constant time, no tables, and about 1.1 draws
// per value.
type zipf struct {
	n        float64
	s        float64
	hX1, hN  float64
	shortcut float64
}

func newZipf(n int, s float64) *zipf {
	z := &zipf{n: float64(n), s: s}
	z.hX1 = z.integral(1.5) - 1
	z.hN = z.integral(z.n + 0.5)
	z.shortcut = 2 - z.inverse(z.integral(2.5)-z.density(2))
	return z
}

func (z *zipf) draw(rng *rand.Rand) int {
	for {
		u := z.hN + rng.Float64()*(z.hX1-z.hN)
		x := z.inverse(u)
		k := min(max(math.Floor(x+0.5), 1), z.n)
		if k-x <= z.shortcut || u >= z.integral(k+0.5)-z.density(k) {
			return int(k) - 1
		}
	}
}

func (z *zipf) density(x float64) float64 { return math.Exp(-z.s * math.Log(x)) }

// integral is the integral of the density from 1 to x: (x^(1-s) - 1) / (1-s), and log x for s =
// 1.
func (z *zipf) integral(x float64) float64 {
	l := math.Log(x)
	return expm1Over((1-z.s)*l) * l
}

func (z *zipf) inverse(x float64) float64 {
	t := max(x*(1-z.s), -1)
	return math.Exp(log1pOver(t) * x)
}

// expm1Over is (e^x - 1) / x, log1pOver is log(1+x) / x, both with their limits at 0.
func expm1Over(x float64) float64 {
	if math.Abs(x) > 1e-8 {
		return math.Expm1(x) / x
	}
	return 1 + x/2*(1+x/3)
}

func log1pOver(x float64) float64 {
	if math.Abs(x) > 1e-8 {
		return math.Log1p(x) / x
	}
	return 1 - x*(0.5-x/3)
}
