package bulk

import (
	"errors"
	"fmt"
	"time"
)

// Adapt bounds a number of jobs that follows what the server and the storage give.
// The zero Adapt leaves the number as it is.
type Adapt struct {
	// Min and Max bound the number. Max 0: it does not change. Default of Min: 1.
	Min, Max int

	// Idle is after which time without work a job's connection is let go of.
	// Default: DefaultIdle.
	Idle time.Duration
}

// Validate names the flag that is wrong.
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

// Start is with how many it begins where so many are asked for: as many, within the
// bounds. A number that makes no sense stays one.
func (a Adapt) Start(jobs int) int {
	if a.Max > 0 && jobs > 0 {
		return max(a.Min, min(jobs, a.Max))
	}
	return jobs
}

// Least is how few there can be, where jobs are asked for at the beginning.
func (a Adapt) Least(jobs int) int {
	if a.Max > 0 {
		return max(1, a.Min)
	}
	return jobs
}

// Most is how many there can be, where jobs are asked for at the beginning.
func (a Adapt) Most(jobs int) int {
	if a.Max > 0 {
		return a.Max
	}
	return jobs
}

// Crew is the crew for one of so many databases that share the jobs.
func (a Adapt) Crew(jobs, databases int) Crew {
	part := func(n int) int { return max(1, n/max(1, databases)) }
	c := Crew{Start: part(jobs), Idle: a.Idle}
	if a.Max > 0 {
		c.Least, c.Most = part(a.Min), part(a.Max)
	}
	return c
}
