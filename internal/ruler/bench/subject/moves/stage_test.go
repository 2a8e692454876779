package moves

import (
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/benchtest"
)

// A backup that tells of its inside is judged by what its readers wait for.
func TestStageThatIsTheLimit(t *testing.T) {
	of := func(server, own, compressor, storage float64) *bench.Result {
		return benchtest.Result("", benchtest.Case("weir", "", 1, 1, func(s *bench.Sample) {
			s.Ops = 1
			s.Parts = []bench.Part{&Transfer{PlainBytes: 1e6, Verified: "yes", Inside: map[string]float64{
				InsideServer: server, InsideOwn: own, InsideCompressor: compressor, InsideStorage: storage,
			}}}
		}))
	}
	for id, r := range map[string]*bench.Result{
		"limit-server": of(80, 5, 10, 5), "limit-reader": of(20, 60, 10, 10), "limit-compressor": of(10, 10, 70, 10),
		"limit-storage": of(10, 10, 10, 70), "limit-none": of(40, 20, 20, 20),
	} {
		got := benchtest.Claims(r.Findings, id)
		if got == "" {
			t.Errorf("%s is not found", id)
		}
		for _, other := range []string{"limit-server", "limit-reader", "limit-compressor", "limit-storage", "limit-none"} {
			if other != id && benchtest.Claims(r.Findings, other) != "" {
				t.Errorf("%s: %s is said, too", id, other)
			}
		}
		if id == "limit-server" && !strings.Contains(got, "readers wait for the server 80 %") {
			t.Errorf("evidence: %s", got)
		}
	}
	if got := benchtest.Claims(benchtest.Result("", benchtest.Case("pg_dump", "", 1, 1, func(s *bench.Sample) { s.Parts = []bench.Part{&Transfer{PlainBytes: 1}} })).Findings, "limit-none"); got != "" {
		t.Errorf("of a tool that tells nothing: %s", got)
	}
}
