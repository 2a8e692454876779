// Package guard converts panics of a backup's or restore's jobs to errors, so that one job fails
// and not the process.
package guard

import (
	"fmt"
	"runtime/debug"
)

// A PanicError says that a job panicked.
type PanicError struct {
	Job   string
	Value any
	Stack []byte
}

// Error names the job, and asks the user to report the bug.
func (e *PanicError) Error() string {
	return fmt.Sprintf("%s: weir panicked: %v; this is an error in weir, please report it with this stack:\n%s", e.Job, e.Value, e.Stack)
}

// Run runs f. If f panics, it returns a [*PanicError] with the name of the job.
func Run(job string, f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{job, v, debug.Stack()}
		}
	}()
	return f()
}
