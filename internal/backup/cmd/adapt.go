package backupcmd

import (
	"github.com/spf13/pflag"

	"github.com/weirdb/weir/internal/backup/bulk"
)

// addAdapt adds the flags of an adaptive number of jobs.
func addAdapt(f *pflag.FlagSet, a *bulk.Adapt) {
	f.IntVar(&a.Max, "max-jobs", 0, "adapt the number of jobs to the throughput of server and storage, from --jobs up to this many (default a fixed number)")
	f.IntVar(&a.Min, "min-jobs", 0, "with --max-jobs: at least this many jobs (default 1)")
	f.DurationVar(&a.Idle, "idle-time", 0, "with --max-jobs: close the connection of a job that has had no work for this long (default 5s)")
}

// watched measures what --json adds: the memory use of a run.
type watched struct {
	footprint *bulk.Footprint
}

// begin starts to measure if on is true. The function that it returns ends that; its argument
// is the size of the pipeline's buffers in bytes.
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
