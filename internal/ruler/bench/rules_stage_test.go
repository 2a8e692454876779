package bench

import (
	"strings"
	"testing"
)

// A backup that tells of its inside is judged by what its readers wait for.
func TestStageThatIsTheLimit(t *testing.T) {
	of := func(server, own, compressor, storage float64) *Result {
		return result(testCase("weir", "", 1, 1, func(s *Sample) {
			s.Ops = 1
			s.Transfer = &Transfer{PlainBytes: 1e6, Verified: "yes", Inside: map[string]float64{
				InsideServer: server, InsideOwn: own, InsideCompressor: compressor, InsideStorage: storage,
			}}
		}))
	}
	for id, r := range map[string]*Result{
		"limit-server": of(80, 5, 10, 5), "limit-reader": of(20, 60, 10, 10), "limit-compressor": of(10, 10, 70, 10),
		"limit-storage": of(10, 10, 10, 70), "limit-none": of(40, 20, 20, 20),
	} {
		got := claims(r, id)
		if got == "" {
			t.Errorf("%s is not found", id)
		}
		for _, other := range []string{"limit-server", "limit-reader", "limit-compressor", "limit-storage", "limit-none"} {
			if other != id && claims(r, other) != "" {
				t.Errorf("%s: %s is said, too", id, other)
			}
		}
		if id == "limit-server" && !strings.Contains(got, "readers wait for the server 80 %") {
			t.Errorf("evidence: %s", got)
		}
	}
	if got := claims(result(testCase("pg_dump", "", 1, 1, func(s *Sample) { s.Transfer = &Transfer{PlainBytes: 1} })), "limit-none"); got != "" {
		t.Errorf("of a tool that tells nothing: %s", got)
	}
}
