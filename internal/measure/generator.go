package measure

// Generator says how well a load generator did its own work, which decides whether its figures
// describe the server or itself. It has no verdict: package bench has the limits.
type Generator struct {
	// TargetRate is the number of operations a second that an open loop was asked
	// to start; 0 in a closed loop.
	TargetRate float64 `json:"target_rate,omitempty"`
	// Intended counts the scheduled starts within the window, and Dropped those that were
	// skipped because too many were waiting already.
	Intended int64 `json:"intended,omitempty"`
	Dropped  int64 `json:"dropped,omitempty"`
	// Answered counts operations that were answered as expected within the window, even if they
	// were due before it. Divided by the window's length it is the rate that the server
	// achieved, even if it could not keep up.
	Answered int64 `json:"answered,omitempty"`
	// Unfinished counts operations without an answer at the end of the run.
	Unfinished int64 `json:"unfinished,omitempty"`
	// MaxBacklog is the largest number of starts that were due and waited for a free worker.
	MaxBacklog int64 `json:"max_backlog,omitempty"`
	// Late is the generator's own lateness: the time from the intended start until an operation
	// was handed out. The time that it then waited for a worker is not included.
	LateP50Ns int64 `json:"late_p50_ns,omitempty"`
	LateP99Ns int64 `json:"late_p99_ns,omitempty"`
	LateMaxNs int64 `json:"late_max_ns,omitempty"`
	// CPUShare is the CPU time of the generator's process divided by that of its processors: 1
	// means that it was saturated.
	CPUShare float64 `json:"cpu_share"`
	// PauseShare is the share of the window in which the garbage collector had stopped all
	// goroutines, and PauseMaxNs an upper bound of the longest pause.
	PauseShare float64 `json:"pause_share"`
	PauseMaxNs int64   `json:"pause_max_ns"`
}
