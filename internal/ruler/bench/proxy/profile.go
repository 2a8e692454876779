package proxybench

import (
	"bytes"
	"context"
	"fmt"
	"runtime/pprof"
	"time"

	"github.com/google/pprof/profile"

	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/load"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
)

// leastProfile is how long a CPU profile is taken at least. The proxy takes a tenth of a
// processor or two where the disk is waited for, and a profile has a hundred samples in a
// second of it: with many clients it is given longProfile, so that its shares can be told.
const (
	leastProfile = 2 * time.Second
	longProfile  = 8 * time.Second
	manyClients  = 64
)

// profile says where the CPU time of the load generator, of the proxy and of the server
// goes.
func (r *run) profile(ctx context.Context, w way, clients int) error {
	work := r.insert(w.hint)
	if err := r.engine.setup(ctx, r.direct().dsn, work); err != nil {
		return err
	}
	d := max(leastProfile, r.o.Plan.Duration)
	if w.weir != nil && clients >= manyClients {
		d = max(longProfile, d)
	}
	if w.weir == nil { // the server does most when every client asks it
		defer r.server(ctx, w, d)()
	}
	return r.profiled(ctx, w, bench.RoleClient, d, func() error {
		_, err := r.engine.run(ctx, load.Config{DSN: w.dsn, Workload: work, Connections: clients, Duration: d})
		return err
	})
}

// profiled takes CPU profiles of this process, which is in the given role, and of the
// proxy while a load runs for d.
func (r *run) profiled(ctx context.Context, w way, role string, d time.Duration, load func() error) error {
	type taken struct {
		p   *profile.Profile
		err error
	}
	proxied := make(chan taken, 1)
	if w.weir != nil {
		go func() {
			p, err := w.weir.profile(ctx, d)
			proxied <- taken{p, err}
		}()
	}
	var own bytes.Buffer
	if err := pprof.StartCPUProfile(&own); err != nil {
		return fmt.Errorf("profile the load: %w", err)
	}
	err := load()
	pprof.StopCPUProfile()
	if err != nil {
		return err
	}
	p, err := profile.Parse(&own)
	if err := r.addProfile(w.name, role, p, err); err != nil {
		return err
	}
	if w.weir == nil {
		return nil
	}
	t := <-proxied
	return r.addProfile(w.name, bench.RoleProxy, t.p, t.err)
}

func (r *run) addProfile(name, role string, p *profile.Profile, err error) error {
	if err != nil {
		return fmt.Errorf("profile of the %s: %w", role, err)
	}
	kept, err := suite.KeepProfile(r.o.Out, name, role, p)
	if err != nil {
		return err
	}
	r.out.Profiles = append(r.out.Profiles, kept)
	return nil
}
