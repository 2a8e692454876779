package measure

import "math"

const (
	// steadyWindow is the number of intervals without a trend that count as settled. With the
	// usual interval of 0.1 s a warm-up takes at least 0.6 s.
	steadyWindow = 6
	// steadyDrift is the change over those intervals, relative to their mean, that is
	// tolerated.
	steadyDrift = 0.02
)

// Steady reports whether a run has settled: whether a straight line through the last six values
// rises or falls by less than 2 % of their mean, or by no more than chance explains. The second
// condition lets a noisy machine settle: there, neighboring intervals differ by 20 %, and six
// of them never agree within 2 %. The slope has to be 2.78 of its standard errors away from
// zero to count, which is Student's t at 95 % for four degrees of freedom.
//
// A run at zero has not settled: it waits for something.
func Steady(values []float64) bool {
	if len(values) < steadyWindow {
		return false
	}
	ys := values[len(values)-steadyWindow:]
	const n = float64(steadyWindow)
	var meanX, meanY float64
	for i, y := range ys {
		meanX += float64(i) / n
		meanY += y / n
		if y <= 0 {
			return false
		}
	}
	var sxx, sxy float64
	for i, y := range ys {
		sxx += (float64(i) - meanX) * (float64(i) - meanX)
		sxy += (float64(i) - meanX) * (y - meanY)
	}
	slope := sxy / sxx
	if math.Abs(slope)*(n-1) < steadyDrift*meanY {
		return true
	}
	var residual float64
	for i, y := range ys {
		d := y - meanY - slope*(float64(i)-meanX)
		residual += d * d
	}
	const t = 2.776 // NIST/SEMATECH e-Handbook, table 1.3.6.7.2
	return math.Abs(slope) < t*math.Sqrt(residual/(n-2)/sxx)
}

// SteadySince returns the first interval after which the series had settled, in rate and in
// median latency, or false if it never did.
func (s *Series) SteadySince() (interval int, settled bool) {
	rates := s.Rates()
	medians := make([]float64, len(rates))
	for i, v := range s.Intervals {
		medians[i] = float64(v.P50Ns)
	}
	for n := steadyWindow; n <= len(rates); n++ {
		if Steady(rates[:n]) && Steady(medians[:n]) {
			return n, true
		}
	}
	return 0, false
}
