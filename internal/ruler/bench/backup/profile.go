package backupbench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strconv"
)

// profile runs weir's backup and restore once more, in this process, to see where the CPU time
// goes.
func (r *rig) profile(ctx context.Context, src *source) error {
	if r.o.Verb == nil {
		return nil
	}
	r.o.Say("Where weir's CPU time goes")
	jobs := "--jobs=" + strconv.Itoa(r.jobs)
	return r.intoEmpty(way{name: "profiled"}, func(dir string) error {
		from, to := r.engine.place(sourceDatabase), r.engine.place(copyDatabase)
		if from.secret {
			r.Leave("a CPU profile: weir would need the password on a command line")
			return nil
		}
		if err := r.profiled(ctx, "backup", "backup", from.dsn, "--to", dir, "--quiet", "--compress=zstd:1", jobs); err != nil {
			return err
		}
		if err := r.engine.recreate(ctx, copyDatabase); err != nil {
			return err
		}
		if err := r.profiled(ctx, "restore", "restore", dir, "--to", to.dsn, "--quiet", jobs); err != nil {
			return err
		}
		got, err := r.engine.sums(ctx, copyDatabase)
		if err != nil {
			return err
		}
		if d := src.sums.differs(got); d != "" {
			return fmt.Errorf("the restored database differs from its source: %s", d)
		}
		return r.engine.drop(ctx, copyDatabase)
	})
}

// profiled runs one command line of weir under the profiler.
func (r *rig) profiled(ctx context.Context, name string, args ...string) (err error) {
	file := "cpu-weir-" + name + ".pb.gz"
	f, err := os.Create(filepath.Join(r.o.Out, file))
	if err != nil {
		return fmt.Errorf("write profile: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := pprof.StartCPUProfile(f); err != nil {
		return fmt.Errorf("profile weir %s: %w", name, err)
	}
	err = r.o.Verb(ctx, args)
	pprof.StopCPUProfile()
	if err != nil {
		return fmt.Errorf("profile weir %s: %w", name, err)
	}
	r.out.Profiles = append(r.out.Profiles, file)
	return nil
}
