package proxybench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/weirdb/weir/internal/ruler/bench"
)

// settings compares weir with itself at several values of one setting, with inserts that ask
// for grouping at the first number of clients. Each value has its own weir, all in front of the
// same server.
func (r *run) settings(ctx context.Context, name, factor, flag, unit string, values []int) (err error) {
	clients := r.o.Plan.Inserts[0]
	e := r.experiment(name, clients, fmt.Sprintf("Grouped INSERTs of %s by weir's %s", clientsName(clients), flag))
	e.Name, e.Baseline, e.Sweep = name, "", factor
	for _, n := range values {
		args := append(slices.Clone(r.o.Plan.always()), flag, strconv.Itoa(n))
		var w *weirProcess
		if w, err = startWeir(ctx, r.o.Binary, r.engine, r.direct().dsn, args...); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, w.stop()) }()
		s := r.side(weirWay(w, fmt.Sprintf("%d %s", n, unit), "/* batch */", "auto"), clients, r.insert("/* batch */"), false)
		s.Factors = map[string]string{factor: strconv.Itoa(n)}
		e.Sides = append(e.Sides, s)
	}
	return r.measure(ctx, e)
}

// pools compares work that does not ask for grouping by the size of weir's pool, including the
// size that weir finds by itself. side makes the sides of an experiment.
func (r *run) pools(ctx context.Context, e bench.Experiment, side func(way) bench.Side) (err error) {
	ways := []way{r.direct()}
	sizes := []string{"auto"}
	for _, n := range r.o.Plan.PoolSizes {
		sizes = append(sizes, strconv.Itoa(n))
	}
	for _, size := range sizes {
		var w *weirProcess
		if w, err = startWeir(ctx, r.o.Binary, r.engine, r.direct().dsn, "--pool-size", size); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, w.stop()) }()
		ways = append(ways, weirWay(w, "pool "+size, "", bench.NotApplicable))
	}
	for _, w := range ways {
		e.Sides = append(e.Sides, side(w))
	}
	return r.measure(ctx, e)
}

func (r *run) poolsInserts(ctx context.Context, clients int) error {
	e := r.experiment("pools", clients, fmt.Sprintf("INSERTs without a hint of %s by weir's --pool-size", clientsName(clients)))
	return r.pools(ctx, e, func(w way) bench.Side { return r.side(w, clients, r.insert(""), false) })
}

func (r *run) poolsReads(ctx context.Context, clients int) error {
	e := r.experiment("pools-reads", clients, fmt.Sprintf("Key lookups, prepared protocol, of %s by weir's --pool-size", clientsName(clients)))
	return r.pools(ctx, e, func(w way) bench.Side { return r.side(w, clients, r.lookup(), false) })
}

func (r *run) poolsTransactions(ctx context.Context, clients int) error {
	side, err := r.pgbenchSide(ctx, clients)
	if side == nil {
		return err
	}
	e := r.experiment("pools-transactions", clients, fmt.Sprintf("pgbench -N -M prepared, transactions per second, %s by weir's --pool-size", clientsName(clients)))
	return r.pools(ctx, e, side)
}
