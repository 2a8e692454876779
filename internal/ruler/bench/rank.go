package bench

import (
	"cmp"
	"math"
	"slices"
)

// Rank tests and Student's t: how surprising a difference would be if there was none. They
// decide whether there is a verdict at all; the interval says how large the difference is.

// rankMin is the number of pairs from which rank tests can reach a probability of 1 %: if all
// nine point the same way, both tests give 2 / 2^9, and twice that is 0.8 %. With fewer pairs,
// Student's t is used, which assumes that log ratios are normal.
const rankMin = 9

// pairedP returns the two-sided probability of log ratios at least as one-sided as these if
// neither side was better.
//
// From rankMin pairs on it is twice the smaller result of two tests. Wilcoxon's finds small
// differences if all rounds are alike. But it gives the largest ranks to rounds that were
// disturbed, and twenty of those among eighty hide a difference that the other sixty show
// without exception. The sign test, which only counts, finds it there. Doubling pays for
// testing twice.
func pairedP(logs []float64) float64 {
	if len(logs) >= rankMin {
		return min(2*min(signedRankP(logs), signP(logs)), 1)
	}
	if len(logs) < 2 {
		return 1
	}
	mean, sd := meanSD(logs)
	return studentP(mean, sd/math.Sqrt(float64(len(logs))), len(logs)-1)
}

// signP is the sign test: how probable it is that at least so many of the values that are not 0
// have the same sign, if both signs are equally likely.
func signP(xs []float64) float64 {
	above, below := 0, 0
	for _, x := range xs {
		switch {
		case x > 0:
			above++
		case x < 0:
			below++
		}
	}
	n, few := above+below, min(above, below)
	if n > 1000 { // 2^-1000 is about the smallest value that the exact sum can start with
		return math.Erfc((float64(n)/2 - float64(few) - 0.5) / math.Sqrt(float64(n)/4) / math.Sqrt2)
	}
	return min(2*binomialBelow(few+1, n), 1)
}

// studentP is the two-sided probability of a mean at that distance from 0.
func studentP(mean, standardError float64, df int) float64 {
	switch {
	case mean == 0:
		return 1
	case standardError == 0:
		return 0
	default:
		return 1 - studentWithin(math.Abs(mean)/standardError, df)
	}
}

// signedRankP is Wilcoxon's signed-rank test, exact even with ties: the share of the 2^n ways
// to give signs to the ranks whose sum is at least as far from its mean (F. Wilcoxon,
// Biometrics Bulletin 1(6), 1945). It assumes only that a log ratio is as likely to be +x as
// -x, which holds by construction if the two sides do the same and their order is random.
func signedRankP(xs []float64) float64 {
	xs = slices.DeleteFunc(slices.Clone(xs), func(x float64) bool { return x == 0 })
	n := len(xs)
	if n == 0 {
		return 1
	}
	slices.SortFunc(xs, func(a, b float64) int { return cmp.Compare(math.Abs(a), math.Abs(b)) })
	ranks := doubledRanks(n, func(i int) bool { return math.Abs(xs[i]) == math.Abs(xs[i-1]) })
	total, positive := 0, 0
	for i, r := range ranks {
		total += r
		if xs[i] > 0 {
			positive += r
		}
	}
	far := max(positive, total-positive)
	if n > 60 { // the sum is nearly normal, and the table below grows with n^3
		var squares float64
		for _, r := range ranks {
			squares += float64(r) * float64(r)
		}
		return math.Erfc((float64(far) - float64(total)/2) / math.Sqrt(squares/4) / math.Sqrt2)
	}
	ways := make([]float64, total+1) // by the sum of the positive ranks
	ways[0] = 1
	for _, r := range ranks {
		for s := total; s >= r; s-- {
			ways[s] += ways[s-r]
		}
	}
	tail := 0.0
	for _, w := range ways[far:] {
		tail += w
	}
	return min(2*tail/math.Exp2(float64(n)), 1)
}

// doubledRanks returns twice the rank of each of n sorted values, so that the mean rank of
// equal values is a whole number, too.
func doubledRanks(n int, sameAsBefore func(i int) bool) []int {
	ranks := make([]int, n)
	for i := 0; i < n; {
		j := i + 1
		for j < n && sameAsBefore(j) {
			j++
		}
		for k := i; k < j; k++ {
			ranks[k] = i + 1 + j // ranks i+1 to j: their mean, doubled
		}
		i = j
	}
	return ranks
}

// shift is how far ys lie above xs, whatever the distribution: the median of all differences,
// with the interval that belongs to the Mann-Whitney test, and that test's two-sided
// probability (J. Hodges and E. Lehmann, Annals of Mathematical Statistics 34(2), 1963). The
// interval reaches 95 % from four samples per side on.
func shift(xs, ys []float64, confidence float64) (median, lo, hi, p float64) {
	var ds []float64
	above := 0.0 // the U statistic: ties count half
	for _, x := range xs {
		for _, y := range ys {
			ds = append(ds, y-x)
			switch {
			case y > x:
				above++
			case y == x:
				above += 0.5
			}
		}
	}
	slices.Sort(ds)
	n, m := len(xs), len(ys)
	below := mannWhitneyBelow(n, m)
	// The k-th smallest and k-th largest difference enclose the shift with
	// probability 1 - 2 P[U < k].
	k := 1
	for k < len(ds)/2 && 2*below(k+1) <= 1-confidence {
		k++
	}
	far := math.Floor(min(above, float64(n*m)-above))
	return sortedMedian(ds), ds[k-1], ds[len(ds)-k], min(2*below(int(far)+1), 1)
}

// mannWhitneyBelow returns the function P[U < k] for samples of n and m.
func mannWhitneyBelow(n, m int) func(k int) float64 {
	if n*m > 1600 { // 40 per side; the normal distribution is close by then
		mean, sd := float64(n*m)/2, math.Sqrt(float64(n)*float64(m)*float64(n+m+1)/12)
		return func(k int) float64 { return math.Erfc((mean-float64(k)+0.5)/sd/math.Sqrt2) / 2 }
	}
	// The number of ways to choose n of the ranks so that U is u is the
	// coefficient of q^u in the Gaussian binomial (n+m over n): the product of
	// (1 - q^(m+i)) / (1 - q^i) for i from 1 to n.
	ways := make([]float64, n*m+1)
	ways[0] = 1
	for i := 1; i <= n; i++ {
		for u := n * m; u >= m+i; u-- {
			ways[u] -= ways[u-m-i]
		}
		for u := i; u <= n*m; u++ {
			ways[u] += ways[u-i]
		}
	}
	total := 0.0
	for _, w := range ways {
		total += w
	}
	return func(k int) float64 {
		sum := 0.0
		for u := 0; u < min(k, len(ways)); u++ {
			sum += ways[u]
		}
		return sum / total
	}
}

// studentWithin returns P[
// T
// < t] for Student's t with a whole number of degrees of freedom (M. Abramowitz and I. Stegun,
// Handbook of Mathematical Functions, 26.7.3 and 26.7.4).
func studentWithin(t float64, df int) float64 {
	theta := math.Atan(t / math.Sqrt(float64(df)))
	sin, cos := math.Sin(theta), math.Cos(theta)
	first := 1 // 26.7.4: 1 + cos^2 / 2 + (1 3)/(2 4) cos^4 ..., up to cos^(df-2)
	term := 1.0
	if df%2 == 1 {
		first, term = 2, cos // 26.7.3: cos + 2/3 cos^3 + ..., up to cos^(df-2)
	}
	sum := 0.0
	for i := first; i < df; i += 2 {
		sum += term
		term *= cos * cos * float64(i) / float64(i+1)
	}
	if df%2 == 0 {
		return sin * sum
	}
	return 2 / math.Pi * (theta + sin*sum)
}

// studentT returns the two-sided critical value of Student's t.
func studentT(df int, confidence float64) float64 {
	lo, hi := 0.0, 1.0
	for studentWithin(hi, df) < confidence {
		lo, hi = hi, hi*2
	}
	for range 60 {
		mid := (lo + hi) / 2
		if studentWithin(mid, df) < confidence {
			lo = mid
		} else {
			hi = mid
		}
	}
	return (lo + hi) / 2
}
