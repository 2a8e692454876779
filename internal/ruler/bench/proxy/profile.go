package proxybench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"time"

	"github.com/google/pprof/profile"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/load"
)

// profile says where the CPU time of the load generator and of the proxy goes.
func (r *run) profile(ctx context.Context, w way, clients int) error {
	work := r.insert(w.hint)
	if err := r.engine.setup(ctx, r.direct().dsn, work); err != nil {
		return err
	}
	d := max(2*time.Second, r.o.Plan.Duration)
	base := filepath.Join(r.o.Out, "cpu-"+strings.ReplaceAll(w.name, " ", "-"))
	clientFile, err := os.Create(base + "-client.pb.gz")
	if err != nil {
		return fmt.Errorf("write profile: %w", err)
	}
	defer clientFile.Close()
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
	if err := pprof.StartCPUProfile(clientFile); err != nil {
		return fmt.Errorf("profile the load: %w", err)
	}
	_, err = r.engine.run(ctx, load.Config{DSN: w.dsn, Workload: work, Connections: clients, Duration: d})
	pprof.StopCPUProfile()
	if err != nil {
		return err
	}
	if _, err := clientFile.Seek(0, 0); err != nil {
		return err
	}
	p, err := profile.Parse(clientFile)
	if err := r.addProfile(w.name, bench.RoleClient, p, err); err != nil {
		return err
	}
	if w.weir == nil {
		return nil
	}
	t := <-proxied
	if err := r.addProfile(w.name, bench.RoleProxy, t.p, t.err); err != nil {
		return err
	}
	f, err := os.Create(base + "-proxy.pb.gz")
	if err != nil {
		return fmt.Errorf("write profile: %w", err)
	}
	return errors.Join(t.p.Write(f), f.Close())
}

func (r *run) addProfile(name, role string, p *profile.Profile, err error) error {
	if err != nil {
		return fmt.Errorf("profile of the %s: %w", role, err)
	}
	b, err := measure.DefaultRules().Breakdown(p)
	if err != nil {
		return fmt.Errorf("profile of the %s: %w", role, err)
	}
	r.out.Profiles = append(r.out.Profiles, CPUProfile{Case: name, Role: role, Breakdown: b})
	return nil
}
