package bench

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
)

const (
	// defaultConfidence is that of all intervals unless another one is requested.
	defaultConfidence = 0.95
	resamples         = 4000
	bootstrapSeed     = 20260218 // any fixed number: the same samples give the same interval
	// falseAlarms is how often "better" or "worse" may be said of two equal sides. It is
	// stricter than the intervals, because a run compares a dozen metrics, and one false alarm
	// in twenty would be one in most runs.
	falseAlarms = 0.01
)

// Interval is an estimate and the range that contains its true value with the given confidence.
type Interval struct {
	Median     float64 `json:"median"`     // the estimate
	Lo         float64 `json:"lo"`         // lower end of the interval
	Hi         float64 `json:"hi"`         // upper end of the interval
	N          int     `json:"n"`          // number of samples, or of pairs
	Confidence float64 `json:"confidence"` // as achieved, which with few samples is less than wanted
	Method     string  `json:"method"`     // by which it was computed
	// P, of a ratio, is the probability of a ratio at least as far from 1 if there was no
	// difference: by the signed-rank and the sign test for nine pairs or more, by Student's t
	// for fewer, and by the Mann-Whitney test for samples that are not paired.
	P float64 `json:"p,omitempty"`
}

// Range formats the two ends, "[1.48, 1.57]", or says that one round has none.
func (i Interval) Range(write func(float64) string) string {
	if i.N < 2 {
		return "(one round)"
	}
	return fmt.Sprintf("[%s, %s]", write(i.Lo), write(i.Hi))
}

// rounds formats the two ends and the number of rounds.
func (i Interval) rounds(write func(float64) string) string {
	if i.N < 2 {
		return i.Range(write)
	}
	return fmt.Sprintf("%s, n=%d", i.Range(write), i.N)
}

// twoPlaces formats a ratio for tables.
func twoPlaces(v float64) string { return strconv.FormatFloat(v, 'f', 2, 64) }

// Overlaps reports whether the two ranges have a value in common.
func (i Interval) Overlaps(o Interval) bool { return i.Lo <= o.Hi && o.Lo <= i.Hi }

// Median returns the median, which is the mean of the middle two for an even number, and NaN
// for no values.
func Median(xs []float64) float64 {
	if len(xs) == 0 {
		return math.NaN()
	}
	s := slices.Sorted(slices.Values(xs))
	return sortedMedian(s)
}

func sortedMedian(s []float64) float64 {
	m := len(s) / 2
	if len(s)%2 == 1 {
		return s[m]
	}
	return (s[m-1] + s[m]) / 2
}

// MedianInterval returns the median with its order-statistic interval, which assumes nothing
// about the distribution: each sample is above the true median with probability 1/2, so the
// k-th smallest and k-th largest of n enclose it with probability 1 - 2 P[Binomial(n, 1/2) <
// k]. With fewer than six samples even the smallest and the largest fall short of 95 %; they
// are returned with the confidence that they achieve.
func MedianInterval(xs []float64, confidence float64) Interval {
	n := len(xs)
	if n == 0 {
		return Interval{Median: math.NaN(), Lo: math.NaN(), Hi: math.NaN(), Method: "none"}
	}
	s := slices.Sorted(slices.Values(xs))
	k, achieved := 1, 1-2*binomialBelow(1, n)
	for k+1 <= (n+1)/2 {
		next := 1 - 2*binomialBelow(k+1, n)
		if next < confidence {
			break
		}
		k, achieved = k+1, next
	}
	return Interval{
		Median: sortedMedian(s), Lo: s[k-1], Hi: s[n-k], N: n,
		Confidence: max(achieved, 0), Method: "order statistics",
	}
}

// binomialBelow returns P[X < k] for X of Binomial(n, 1/2).
func binomialBelow(k, n int) float64 {
	p := math.Exp2(-float64(n)) // P[X = 0]; there are tens of rounds, so no underflow
	sum := 0.0
	for i := range k {
		sum += p
		p *= float64(n-i) / float64(i+1)
	}
	return sum
}

// PairedRatio estimates the ratio b/a from rounds in which both were measured: the median of
// log(b/a) over the pairs, so that slowness of the machine during a round affects both sides
// and cancels out. From six pairs on the interval is a bootstrap of that median (4000
// resamples, fixed seed). A bootstrap of fewer pairs cannot reach 95 %, so below six the
// interval is Student's t on the logs, which is wide and assumes that they are normal. Pairs
// with a value that is not positive are left out. With fewer than two pairs there is no
// interval: Lo is 0 and Hi infinite.
func PairedRatio(a, b []float64, confidence float64) Interval {
	var logs []float64
	for i := range min(len(a), len(b)) {
		if a[i] > 0 && b[i] > 0 {
			logs = append(logs, math.Log(b[i]/a[i]))
		}
	}
	n := len(logs)
	out := Interval{N: n, Confidence: confidence}
	switch {
	case n == 0:
		return Interval{Median: math.NaN(), Lo: 0, Hi: math.Inf(1), P: 1, Method: "none"}
	case n == 1:
		return Interval{Median: math.Exp(logs[0]), Lo: 0, Hi: math.Inf(1), N: 1, P: 1, Method: "none"}
	case n < 6:
		mean, sd := meanSD(logs)
		half := studentT(n-1, confidence) * sd / math.Sqrt(float64(n))
		out.Median, out.Lo, out.Hi = mean, mean-half, mean+half
		out.Method = "Student's t of log ratios"
	default:
		out.Median = Median(logs)
		out.Lo, out.Hi = bootstrapMedian(logs, confidence)
		out.Method = "bootstrap of the median log ratio"
	}
	out.P = pairedP(logs)
	out.Median, out.Lo, out.Hi = finiteExp(out.Median), finiteExp(out.Lo), finiteExp(out.Hi)
	return out
}

// Slope estimates how much y grows per unit of x, by least squares, with an interval of
// Student's t. It assumes that residuals are independent; readings that drift together make the
// interval too narrow. It needs three points.
func Slope(xs, ys []float64, confidence float64) Interval {
	n := min(len(xs), len(ys))
	out := Interval{N: n, Confidence: confidence, Method: "least squares, Student's t"}
	if n < 3 {
		return Interval{Median: math.NaN(), Lo: math.Inf(-1), Hi: math.Inf(1), N: n, P: 1, Method: "none"}
	}
	mx, _ := meanSD(xs[:n])
	my, _ := meanSD(ys[:n])
	var sxx, sxy float64
	for i := range n {
		sxx += (xs[i] - mx) * (xs[i] - mx)
		sxy += (xs[i] - mx) * (ys[i] - my)
	}
	if sxx == 0 {
		return Interval{Median: math.NaN(), Lo: math.Inf(-1), Hi: math.Inf(1), N: n, P: 1, Method: "none"}
	}
	slope := sxy / sxx
	var residual float64
	for i := range n {
		d := ys[i] - my - slope*(xs[i]-mx)
		residual += d * d
	}
	se := math.Sqrt(residual / float64(n-2) / sxx)
	half := studentT(n-2, confidence) * se
	out.Median, out.Lo, out.Hi = slope, slope-half, slope+half
	out.P = studentP(slope, se, n-2)
	return out
}

// UnpairedRatio estimates the ratio b/a from samples that were not taken in turn, such as those
// of two runs. From four samples per side on it assumes only that all samples of a run are
// alike (see shift); below, it uses Welch's t on the logs. N is the number of samples of the
// smaller side.
//
// It cannot know how much the machine changed between the two runs: use the noise floor of an
// A/A run for that.
func UnpairedRatio(a, b []float64, confidence float64) Interval {
	xs, ys := positiveLogs(a), positiveLogs(b)
	n := min(len(xs), len(ys))
	out := Interval{N: n, Confidence: confidence}
	switch {
	case n == 0:
		return Interval{Median: math.NaN(), Lo: 0, Hi: math.Inf(1), P: 1, Method: "none"}
	case n == 1:
		return Interval{Median: math.Exp(Median(ys) - Median(xs)), Lo: 0, Hi: math.Inf(1), N: 1, P: 1, Method: "none"}
	case n < 4:
		mx, sx := meanSD(xs)
		my, sy := meanSD(ys)
		vx, vy := sx*sx/float64(len(xs)), sy*sy/float64(len(ys))
		df := 1 // by Welch and Satterthwaite, rounded down
		if v := vx*vx/float64(len(xs)-1) + vy*vy/float64(len(ys)-1); v > 0 {
			df = max(1, int((vx+vy)*(vx+vy)/v))
		}
		half := studentT(df, confidence) * math.Sqrt(vx+vy)
		out.Median, out.Lo, out.Hi = my-mx, my-mx-half, my-mx+half
		out.P = studentP(my-mx, math.Sqrt(vx+vy), df)
		out.Method = "Welch's t of logs"
	default:
		out.Median, out.Lo, out.Hi, out.P = shift(xs, ys, confidence)
		out.Method = "Hodges-Lehmann shift of logs"
	}
	out.Median, out.Lo, out.Hi = finiteExp(out.Median), finiteExp(out.Lo), finiteExp(out.Hi)
	return out
}

// finiteExp is math.Exp limited to finite values: an interval that wide says nothing, and JSON
// has no infinity.
func finiteExp(x float64) float64 { return min(math.Exp(x), math.MaxFloat64) }

func positiveLogs(xs []float64) []float64 {
	var out []float64
	for _, x := range xs {
		if x > 0 {
			out = append(out, math.Log(x))
		}
	}
	return out
}

// bootstrapMedian draws indexes of the sorted samples and counts them, so that it finds the
// median of a draw by walking the counts instead of sorting.
func bootstrapMedian(xs []float64, confidence float64) (lo, hi float64) {
	n := len(xs)
	sorted := slices.Sorted(slices.Values(xs))
	rng := rand.New(rand.NewPCG(bootstrapSeed, uint64(n)))
	medians := make([]float64, resamples)
	drawn := make([]int, n)
	for i := range medians {
		clear(drawn)
		for range n {
			drawn[rng.IntN(n)]++
		}
		// The values at ranks (n-1)/2 and n/2, which are the same if n is odd.
		at, seen := 0, drawn[0]
		for seen <= (n-1)/2 {
			at++
			seen += drawn[at]
		}
		lower := sorted[at]
		for seen <= n/2 {
			at++
			seen += drawn[at]
		}
		medians[i] = (lower + sorted[at]) / 2
	}
	slices.Sort(medians)
	tail := (1 - confidence) / 2
	at := func(q float64) float64 { return medians[min(int(q*resamples), resamples-1)] }
	return at(tail), at(1 - tail)
}

func meanSD(xs []float64) (mean, sd float64) {
	for _, x := range xs {
		mean += x
	}
	mean /= float64(len(xs))
	for _, x := range xs {
		sd += (x - mean) * (x - mean)
	}
	return mean, math.Sqrt(sd / float64(len(xs)-1))
}

// Verdict is the conclusion of a comparison.
type Verdict string

// The four verdicts. NoDifference is a positive claim: the interval lies within the margin.
// CannotTell means that more rounds are needed.
const (
	Better       Verdict = "better"
	Worse        Verdict = "worse"
	NoDifference Verdict = "no difference"
	CannotTell   Verdict = "cannot tell"
)

// Judge converts the interval of a ratio to a verdict. Ratios between 1-margin and 1/(1-margin)
// are too small to matter: an interval within them means no difference, even if it excludes 1.
// Better and worse need an interval on one side of 1 and a probability below 1 % that it is
// chance.
func Judge(ratio Interval, higherIsBetter bool, margin float64) Verdict {
	switch {
	case ratio.N < 2 || math.IsNaN(ratio.Median):
		return CannotTell
	case ratio.Lo >= 1-margin && ratio.Hi <= 1/(1-margin):
		return NoDifference
	case ratio.P > falseAlarms:
		return CannotTell
	case ratio.Lo > 1 && higherIsBetter, ratio.Hi < 1 && !higherIsBetter:
		return Better
	case ratio.Lo > 1, ratio.Hi < 1:
		return Worse
	default:
		return CannotTell
	}
}

// RoundsNeeded estimates how many rounds would turn "cannot tell" into a verdict, in four of
// five runs. An interval shrinks with the square root of their number. To show a difference of
// the observed size, the interval must become so narrow that the 99 % quantile, and the bad
// luck of the fifth run, fit into the difference; to show that there is none, the 95 % quantile
// and that bad luck must fit into the margin. It returns the smaller of the two, and 0 if it
// cannot estimate.
//
// The observed size is itself uncertain, the more so the fewer rounds there were.
func RoundsNeeded(ratio Interval, margin float64) int {
	if ratio.N < 2 || ratio.Lo <= 0 || ratio.Hi >= math.MaxFloat64 {
		return 0
	}
	const z95, z99, luck = 1.960, 2.576, 0.842 // quantiles of the normal distribution; luck is its 80th percentile
	half := (math.Log(ratio.Hi) - math.Log(ratio.Lo)) / 2
	effect, limit := math.Abs(math.Log(ratio.Median)), -math.Log(1-margin)
	shrink := math.Inf(1) // how many times narrower the interval must become
	if effect > 0 {
		shrink = half * (z99 + luck) / z95 / effect
	}
	if effect < limit {
		shrink = min(shrink, half*(z95+luck)/z95/(limit-effect))
	}
	n := math.Ceil(float64(ratio.N) * shrink * shrink)
	if math.IsNaN(n) || n > 1e6 {
		return 0 // more rounds than anyone would wait for
	}
	return max(int(n), ratio.N+1, rankMin)
}
