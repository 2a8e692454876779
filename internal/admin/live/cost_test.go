package live

import "testing"

// BenchmarkSample measures a sample beside the source's own work: 40 values, and three
// histograms of 300 buckets in use.
//
//	go test -run '^$' -bench Sample ./internal/admin/live
func BenchmarkSample(b *testing.B) {
	series := make([]Series, 40)
	for i := range series {
		series[i].Key = string(rune('A' + i))
	}
	s := newSample(series)
	r := NewRing(series)
	var pairs []float64
	for i := range 300 {
		pairs = append(pairs, float64(i)/1000, float64(i))
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		s.begin(start)
		for k := range series[:37] {
			s.Rate(series[k].Key, float64(i))
		}
		for k := range 3 {
			s.Quantiles(counts(pairs...), Quantile{series[37+k].Key, 0.99})
		}
		r.Add(start, s.values)
	}
}
