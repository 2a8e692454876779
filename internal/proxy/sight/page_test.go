package sight

import (
	"reflect"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirdb/weir/internal/cli/clitest"
	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/proxy/cache"
)

// The page of metrics has all of a proxy that has something to say of each.
func TestMetricsPage(t *testing.T) {
	t.Parallel()
	s := Snapshot{
		Engine:     "postgresql",
		Checks:     []CheckStatus{{Method: "scram-sha-256", Way: "pooled", Count: 1}},
		Hosts:      []HostStatus{{Host: "h", Address: "a", Role: "standby", LagKnown: true}},
		Databases:  []DatabaseStatus{{Name: "d"}},
		Lanes:      []LaneStatus{{Database: "d", User: "u", Kind: "rows", Text: "INSERT"}},
		Shapes:     []ShapeStatus{{Verb: "SELECT", Text: "SELECT", Runs: 1, Cost: time.Millisecond}},
		LoginTimes: map[string]*measure.Hist{"d": new(measure.Hist)},
		Caches:     []cache.Stats{{Database: "d", Skipped: map[string]uint64{"transaction": 1}}},
	}
	p := s.PoolOf("d", "u")
	p.Pins["listen"], p.Limited["pool_size"], p.Hubs = 1, 1, 1
	c := Collector(oneSnapshot{s})
	metrics := clitest.MetricsOf(t, c)
	fields, want := reflect.TypeOf(c).Elem(), 0
	for i := range fields.NumField() {
		if fields.Field(i).Type == reflect.TypeFor[*prometheus.Desc]() {
			want++
		}
	}
	if len(metrics) != want {
		t.Errorf("%d metrics of %d were gathered", len(metrics), want)
	}
	clitest.MetricsPage(t, "proxy", metrics)
}
