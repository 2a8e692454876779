package backupcmd

import (
	"github.com/spf13/pflag"

	"github.com/weirdb/weir/internal/backup/bulk"
)

// addAdapt adds the flags of a number of jobs that follows what there is to gain.
func addAdapt(f *pflag.FlagSet, a *bulk.Adapt) {
	f.IntVar(&a.Max, "max-jobs", 0, "adapt the number of jobs to the throughput of server and storage, from --jobs up to this many (default a fixed number)")
	f.IntVar(&a.Min, "min-jobs", 0, "with --max-jobs: at least this many jobs (default 1)")
	f.DurationVar(&a.Idle, "idle-time", 0, "with --max-jobs: close the connection of a job that has had no work for this long (default 5s)")
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
