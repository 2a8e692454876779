package proxybench

import (
	"context"
	"fmt"
	"slices"

	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/load"
	"github.com/weirdb/weir/internal/ruler/bench/load/sqlload"
)

// driverExperiment is the name of a driver's experiment.
func driverExperiment(d sqlload.Driver, clients int) string {
	return experimentName("drivers-"+string(d), clients, 0)
}

// drivers repeats the load of reference report 1: through database/sql and a driver, whose CPU
// time is part of the load's profile. Each driver is an experiment.
func (r *run) drivers(ctx context.Context, d sqlload.Driver, clients int) error {
	drive := func(ctx context.Context, c load.Config) (*load.Outcome, error) {
		c.Warmup = min(c.Warmup, c.Duration/2) // all connections are opened before it
		return sqlload.Run(ctx, d, c)
	}
	e := r.experiment("drivers", clients, fmt.Sprintf("Single-row INSERTs by %s over database/sql, %s", d, clientsName(clients)))
	e.Name = driverExperiment(d, clients)
	e.Sweep, e.Adaptive, e.SweepUnit = "window", "auto", "ms"
	e.Factors["driver"], e.Factors["protocol"] = string(d), textProtocol(r.o.Engine)
	ways := append([]way{r.direct()}, r.hinted()...)
	for _, w := range ways {
		s := r.side(w, clients, r.insert(w.hint), true)
		s.Run = func(ctx context.Context, _ int) (bench.Sample, error) {
			return r.sample(ctx, w, clients, r.insert(w.hint), true, drive)
		}
		e.Sides = append(e.Sides, s)
	}
	if err := r.measure(ctx, e); err != nil {
		return err
	}
	auto := ways[slices.IndexFunc(ways, func(w way) bool { return w.name == "weir auto" })]
	if err := r.driverProfile(ctx, auto, d, clients); ctx.Err() != nil {
		return err
	} else if err != nil {
		// Measured rounds stay valid without a profile.
		r.Leave("the CPU profile of %s: %v", d, err)
	}
	return nil
}

// driverProfile shows where the CPU time of a load through a driver goes. The profile of the
// load is that of this process, and named after the driver.
func (r *run) driverProfile(ctx context.Context, w way, d sqlload.Driver, clients int) error {
	work := r.insert(w.hint)
	if err := r.engine.Setup(ctx, r.direct().dsn, work); err != nil {
		return err
	}
	w.name, w.weir = string(d), nil // weir's own profile belongs to the experiment inserts
	return r.profiled(ctx, w, bench.RoleClient, clients, leastProfile, func() error {
		_, err := sqlload.Run(ctx, d, load.Config{
			DSN: w.dsn, Workload: work, Connections: clients, Duration: leastProfile,
		})
		return err
	})
}
