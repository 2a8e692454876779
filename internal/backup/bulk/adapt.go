package bulk

import (
	"errors"
	"fmt"
	"time"
)

// Adapt lets the number of jobs follow the throughput of server and storage. The zero Adapt
// keeps the number fixed.
type Adapt struct {
	// Min and Max limit the number. Max 0: it is fixed. Default of Min: 1.
	Min, Max int

	// Idle is how long a job may have no work before its connection is closed. Default:
	// DefaultIdle.
	Idle time.Duration
}

// Validate returns an error that names the invalid flag.
func (a Adapt) Validate() error {
	switch {
	case a.Min < 0:
		return fmt.Errorf("--min-jobs %d: at least 1 is needed", a.Min)
	case a.Max < 0:
		return fmt.Errorf("--max-jobs %d: at least 1 is needed", a.Max)
	case a.Idle < 0:
		return fmt.Errorf("--idle-time %v: a time of more than 0 is needed", a.Idle)
	case a.Max == 0 && (a.Min > 0 || a.Idle > 0):
		return errors.New("--min-jobs and --idle-time need --max-jobs")
	case a.Min > a.Max:
		return fmt.Errorf("--min-jobs %d is more than --max-jobs %d", a.Min, a.Max)
	}
	return nil
}

// Start returns the number to start with if jobs are requested: jobs, moved within the limits.
// A number below 1 is returned unchanged, for validation to report.
func (a Adapt) Start(jobs int) int {
	if a.Max > 0 && jobs > 0 {
		return max(a.Min, min(jobs, a.Max))
	}
	return jobs
}

// Least returns the smallest number, if jobs are requested at the start.
func (a Adapt) Least(jobs int) int {
	if a.Max > 0 {
		return max(1, a.Min)
	}
	return jobs
}

// Most returns the largest number, if jobs are requested at the start.
func (a Adapt) Most(jobs int) int {
	if a.Max > 0 {
		return a.Max
	}
	return jobs
}

// WorkerPool returns the WorkerPool for each of so many databases that share the jobs.
func (a Adapt) WorkerPool(jobs, databases int) WorkerPool {
	part := func(n int) int { return max(1, n/max(1, databases)) }
	c := WorkerPool{Start: part(jobs), Idle: a.Idle}
	if a.Max > 0 {
		c.Least, c.Most = part(a.Min), part(a.Max)
	}
	return c
}
