package catalogue

import (
	"fmt"
	"testing"

	"github.com/weirdb/weir/internal/proxy/sqlscan"
)

// What one server's functions do says nothing about another of the same version.
func TestBuiltinsAreKnownByServer(t *testing.T) {
	var known remembered[Server, builtins]
	f := &builtins{effects: map[string]sqlscan.Effect{"1": sqlscan.EffRoutine}}
	key := func(host int, version string) Server {
		return Server{fmt.Sprintf("10.0.0.%d:5432", host), version}
	}
	known.learn(key(1, "15.4"), f)
	for server, want := range map[Server]*builtins{
		key(1, "15.4"): f, key(2, "15.4"): nil, key(1, "16.0"): nil, key(1, ""): nil,
	} {
		if known.of(server) != want {
			t.Errorf("%v: known %v, want %v", server, known.of(server) != nil, want != nil)
		}
	}
	for host := range 1000 {
		known.learn(key(host, "15.4"), f)
	}
	if n := len(known.m); n > maxKnown || known.of(key(999, "15.4")) != f {
		t.Errorf("%d servers are known, at most %d may be", n, maxKnown)
	}
}
