package sim_test

import (
	"fmt"
	"time"

	"github.com/weirdb/weir/batch/sim"
)

// 64 clients before a disk whose flush takes 2 ms: no window against one of 10 ms.
func ExampleSimulate() {
	for _, policy := range []sim.Policy{sim.Adaptive(1), sim.Fixed(10*time.Millisecond, 1)} {
		r := sim.Simulate(sim.Run{
			Cost:   sim.Cost{Fixed: 2 * time.Millisecond, PerItem: 2 * time.Microsecond, Servers: 1},
			Load:   sim.Load{Clients: 64, Think: 50 * time.Microsecond},
			Policy: policy,
			Warmup: time.Second,
			Length: 10 * time.Second,
			Seed:   1,
		})
		fmt.Printf("%s: %.0f thousand items/s\n", policy.Name, r.Throughput/1000)
	}
	// Output:
	// adaptive: 27 thousand items/s
	// 10ms: 5 thousand items/s
}
