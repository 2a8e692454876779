package suite

import (
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/ruler/report"
)

// A heap that keeps an object of each statement is told from one that does not, and from
// one of which too little was read. What happens in the first fifth counts for nothing.
func TestLeakIsJudgedBySlope(t *testing.T) {
	of := func(readings int, each, noise float64) *Leak {
		l := &Leak{Case: "weir auto", Clients: 4, Seconds: float64(readings)}
		for i := range readings {
			n := int64(1000 * i)
			heap := 3e6 + each*float64(n) + noise*float64(i%3-1)
			if i < readings/5 {
				heap = 1e6 // pools are not full yet
			}
			l.Points = append(l.Points, LeakPoint{Seconds: float64(i), Statements: n, Heap: heap, RSS: 5e7})
		}
		l.Judge()
		return l
	}
	for name, tt := range map[string]struct {
		leak *Leak
		want string
	}{
		"leaks":         {of(40, 64, 1000), "something is kept for each"},
		"keeps nothing": {of(40, 0, 1000), "less than an object"},
		"noisy":         {of(40, 4, 1e6), "cannot tell"},
		"short":         {of(6, 0, 1), "readings are too few for a slope"},
		"empty":         {of(0, 0, 0), "0 readings are too few for a slope"},
	} {
		if got := tt.leak.Verdict(); !strings.Contains(got, tt.want) {
			t.Errorf("%s: %s; want %q", name, got, tt.want)
		}
	}
	s := of(40, 0, 1000).Section()
	if len(s.Charts) != 2 || s.Charts[0].Kind != report.TimeSeries || len(s.Charts[0].Series[0].Points) != 40 || len(s.Charts[1].Series[0].Points) != 39 {
		t.Errorf("charts %+v", s.Charts)
	}
}
