package proxybench

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"golang.org/x/sync/errgroup"

	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
	"github.com/weirdb/weir/internal/ruler/report"
)

// Idle is the memory that weir needed for idle sessions.
type Idle struct {
	Clients  int   `json:"clients"`
	RSSBytes int64 `json:"rss_bytes"`
}

// crowd compares numbers of clients, all through weir.
func (r *run) crowd(ctx context.Context) error {
	counts := r.o.Plan.Crowd
	e := r.experiment("crowd", counts[len(counts)-1], "Key lookups through weir by number of clients, on one pool")
	e.Baseline = clientsName(counts[0])
	delete(e.Factors, "clients")
	for _, n := range counts {
		s := r.side(weirWay(r.weir, clientsName(n), "", bench.NotApplicable), n, r.lookup(), false)
		s.Factors = map[string]string{"clients": strconv.Itoa(n)}
		e.Sides = append(e.Sides, s)
	}
	return r.measure(ctx, e)
}

func clientsName(n int) string { return report.Plural(n, "client", "clients") }

// idle opens sessions through a fresh weir, has each query one row, and reads the proxy's
// memory.
func (r *run) idle(ctx context.Context) (err error) {
	w, err := startWeir(ctx, r.o.Binary, r.engine, r.direct().dsn, "--max-clients", strconv.Itoa(r.o.Plan.Idle+1))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	r.o.Say("%d idle clients", r.o.Plan.Idle)
	sessions := make([]func(context.Context) error, r.o.Plan.Idle) // how to close each
	defer func() {
		for _, end := range sessions {
			if end != nil {
				_ = end(context.WithoutCancel(ctx)) // only their memory mattered
			}
		}
	}()
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(16)
	for i := range sessions {
		g.Go(func() error {
			end, err := r.engine.idle(gctx, w.dsn)
			if err != nil {
				return fmt.Errorf("idle client %d: %w", i, err)
			}
			sessions[i] = end
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	u, err := w.usage()
	if err != nil {
		return err
	}
	r.out.Idle = &Idle{Clients: len(sessions), RSSBytes: u.RSSBytes}
	return nil
}

// crowdTarget compares the largest number of clients with the best of the others.
func crowdTarget(r *bench.Result) (suite.Target, bool) {
	last := len(r.Cases) - 1
	if last < 1 {
		return suite.Target{}, false
	}
	crowd := r.Cases[last].Name
	best := r.Best(func(c *bench.Case) bool { return c.Name != crowd })
	goal := suite.AtLeast(r.Experiment.Name, best.Name, crowd, "rate", 0.9, "lookups by "+crowd+" on one pool, against the peak")
	return goal.Judge(r)
}

// target judges the memory for idle clients.
func (i *Idle) target() suite.Target {
	mb := float64(i.RSSBytes) / 1e6
	limit := 0.03 * float64(i.Clients)
	return suite.Target{
		Claim: fmt.Sprintf("memory of the proxy with %d idle clients", i.Clients), Want: fmt.Sprintf("<= %.3g MB", limit), Unit: "MB",
		Got: bench.Interval{Median: mb, Lo: mb, Hi: mb, N: 1, Method: "one reading"}, Verdict: map[bool]string{true: suite.Met, false: suite.NotMet}[mb <= limit],
		Evidence: "resident set after one query of each",
	}
}
