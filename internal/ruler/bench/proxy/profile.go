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

// leastProfile is the shortest duration of a CPU profile. A proxy that waits for the disk uses
// a tenth or two of a processor, and a profile has a hundred samples per second of CPU time:
// with many clients it gets longProfile, to have enough samples.
const (
	leastProfile = 2 * time.Second
	longProfile  = 4 * time.Second
	manyClients  = 64
)

// profile shows where the CPU time of the load generator, of the proxy and of the server goes.
func (r *run) profile(ctx context.Context, w way, clients int) error {
	work := r.insert(w.hint)
	if err := r.engine.Setup(ctx, r.direct().dsn, work); err != nil {
		return err
	}
	d := max(leastProfile, r.o.Plan.Duration)
	if w.weir != nil && clients >= manyClients {
		d = max(longProfile, d)
	}
	if w.weir == nil { // the server does most if every client queries it directly
		defer r.server(ctx, w, d)()
	}
	return r.profiled(ctx, w, bench.RoleClient, clients, d, func() error {
		_, err := r.engine.Run(ctx, load.Config{DSN: w.dsn, Workload: work, Connections: clients, Duration: d})
		return err
	})
}

// profileTries is how often a load is run to get a profile with enough samples: on a busy
// machine it may get too little CPU time.
const profileTries = 3

// profiled takes CPU profiles of this process, which has the given role, and of the proxy,
// while a load of that many clients runs for d.
func (r *run) profiled(ctx context.Context, w way, role string, clients int, d time.Duration, load func() error) error {
	tries := 1
	if clients >= manyClients {
		tries = profileTries
	}
	var own, proxy []*profile.Profile
	for range tries {
		o, p, err := profileOnce(ctx, w, d, load)
		if err != nil {
			return err
		}
		own = append(own, o)
		if p != nil {
			proxy = append(proxy, p)
		}
		if samplesOf(own) >= suite.MinSamples && (w.weir == nil || samplesOf(proxy) >= suite.MinSamples) {
			break
		}
	}
	p, err := profile.Merge(own)
	if err := r.addProfile(w.name, role, p, err); err != nil || w.weir == nil {
		return err
	}
	p, err = profile.Merge(proxy)
	return r.addProfile(w.name, bench.RoleProxy, p, err)
}

// samplesOf is the total number of samples of profiles.
func samplesOf(all []*profile.Profile) (n int64) {
	for _, p := range all {
		for _, s := range p.Sample {
			n += s.Value[0]
		}
	}
	return n
}

// profileOnce takes a profile of this process and, if the way leads through weir, of the proxy.
func profileOnce(ctx context.Context, w way, d time.Duration, load func() error) (own, proxy *profile.Profile, err error) {
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
	} else {
		proxied <- taken{}
	}
	var b bytes.Buffer
	if err := pprof.StartCPUProfile(&b); err != nil {
		return nil, nil, fmt.Errorf("profile the load: %w", err)
	}
	err = load()
	pprof.StopCPUProfile()
	if err != nil {
		return nil, nil, err
	}
	if own, err = profile.Parse(&b); err != nil {
		return nil, nil, fmt.Errorf("profile the load: %w", err)
	}
	t := <-proxied
	if t.err != nil {
		return nil, nil, fmt.Errorf("profile of the proxy: %w", t.err)
	}
	return own, t.p, nil
}

func (r *run) addProfile(name, role string, p *profile.Profile, err error) error {
	if err != nil {
		return fmt.Errorf("profile of the %s: %w", role, err)
	}
	kept, err := suite.SaveProfile(r.o.Out, name, role, p)
	if err != nil {
		return err
	}
	r.out.Profiles = append(r.out.Profiles, kept)
	return nil
}
