package measure

import (
	"math"
	"testing"
)

func TestUsageOfOneThreadIsExact(t *testing.T) {
	for _, tt := range []struct {
		name         string
		m            member
		user, system float64
	}{
		{"ticks alone", member{stat: procStat{user: 3, system: 1}, status: procStatus{threads: 1}}, 0.03, 0.01},
		{"below a tick", member{status: procStatus{threads: 1}, ranNs: 4_000_000}, 0.002, 0.002},
		{"ticks give the split", member{stat: procStat{user: 3, system: 1}, status: procStatus{threads: 1}, ranNs: 44_000_000}, 0.033, 0.011},
		{"several threads", member{stat: procStat{user: 3, system: 1}, status: procStatus{threads: 2}, ranNs: 44_000_000}, 0.03, 0.01},
	} {
		t.Run(tt.name, func(t *testing.T) {
			u := tt.m.usage()
			if math.Abs(u.UserSeconds-tt.user) > 1e-9 || math.Abs(u.SystemSeconds-tt.system) > 1e-9 {
				t.Errorf("%v user, %v system; want %v, %v", u.UserSeconds, u.SystemSeconds, tt.user, tt.system)
			}
		})
	}
}
