package proxybench

import (
	"context"
	"time"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/measure/outside"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
)

// settle is how long the server may take to start the processes of new sessions: perf only
// observes processes that exist when it starts.
const settle = 300 * time.Millisecond

// server lets perf sample the server while a load of duration d runs. It returns a function
// that waits for perf. Without perf, only this is left out.
func (r *run) server(ctx context.Context, w way, d time.Duration) func() {
	pid := r.db.PID()
	if pid == 0 {
		r.Leave("the CPU time of the server by function: it is not a private server")
		return func() {}
	}
	type taken struct {
		p   *outside.Profile
		err error
	}
	done := make(chan taken, 1)
	go func() {
		select {
		case <-ctx.Done():
			done <- taken{err: ctx.Err()}
			return
		case <-time.After(settle):
		}
		pids, err := measure.Pids(pid)
		if err != nil {
			done <- taken{err: err}
			return
		}
		p, err := outside.Perf(ctx, pids, d-settle)
		done <- taken{p, err}
	}()
	return func() {
		t := <-done
		switch {
		case ctx.Err() != nil:
		case t.err != nil:
			r.Leave("the CPU time of the server by function: %v", t.err)
		default:
			r.out.Servers = append(r.out.Servers, suite.ServerCPU{Case: w.name, Server: r.info.Name, Profile: t.p})
		}
	}
}
