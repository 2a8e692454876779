package backupcmd

import (
	"github.com/spf13/pflag"

	"github.com/weirdb/weir/internal/backup/bulk"
)

// addAdapt adds the flags of a number of jobs that follows what there is to gain.
func addAdapt(f *pflag.FlagSet, a *bulk.Adapt) {
	f.IntVar(&a.Max, "max-jobs", 0, "let the number of jobs follow what the server and the storage give, from --jobs on and up to this many (default no change)")
	f.IntVar(&a.Min, "min-jobs", 0, "with --max-jobs: at least this many jobs (default 1)")
	f.DurationVar(&a.Idle, "idle-time", 0, "with --max-jobs: after which time without work a job's connection is let go of (default 5s)")
}

// watched is what --json adds: what a run took of the process.
type watched struct {
	footprint *bulk.Footprint
}

// begin watches the process if asked to. The function that it returns ends that;
// it is told what the buffers of the pipeline hold.
func (w *watched) begin(on bool) (end func(buffers int64)) {
	if !on {
		return func(int64) {}
	}
	stop := bulk.WatchFootprint()
	return func(buffers int64) {
		f := stop(buffers)
		w.footprint = &f
	}
}
