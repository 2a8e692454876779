package core

import (
	"context"
	"sync"
	"time"

	"github.com/weirdb/weir/internal/proxy/sight"
)

// statsPeriod is the period over which SHOW STATS averages, by default the same in PgBouncer.
const statsPeriod = time.Minute

// stats are the counts of each database at the ends of the last two periods.
type stats struct {
	mu           sync.Mutex
	before, last map[string]sight.Totals // guarded by mu
	period       time.Duration           // guarded by mu: between them
	at           time.Duration           // guarded by mu: of last
}

// averages returns those of the last whole period; before the first one has ended, those since
// the start.
func (st *stats) averages(now map[string]sight.Totals, at time.Duration) map[string]sight.Totals {
	st.mu.Lock()
	defer st.mu.Unlock()
	end, period := st.last, st.period
	if end == nil {
		end, period = now, at
	}
	out := make(map[string]sight.Totals)
	for db := range now {
		out[db] = end[db].Average(st.before[db], period)
	}
	return out
}

// end records the counts at the end of a period.
func (st *stats) end(now map[string]sight.Totals, at time.Duration) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.before, st.last, st.period, st.at = st.last, now, at-st.at, at
}

// keepAverages records the counts at the end of each period.
func (s *Server[L]) keepAverages(ctx context.Context) {
	tick := time.NewTicker(statsPeriod)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		snap, err := s.Snapshot(ctx)
		if err != nil {
			return // the loops have ended
		}
		s.stats.end(snap.Totals(), s.Monotonic())
	}
}
