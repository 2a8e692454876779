package measure

// Generator is how well a load generator did its own work, which decides whether
// its figures describe the server or itself. It holds no verdict: package bench
// has the limits.
type Generator struct {
	// TargetRate is the number of operations a second that an open loop was asked
	// to start; 0 in a closed loop.
	TargetRate float64 `json:"target_rate,omitempty"`
	// Intended counts the starts that the schedule had within the window, and
	// Dropped those that were given up because too many were waiting already.
	Intended int64 `json:"intended,omitempty"`
	Dropped  int64 `json:"dropped,omitempty"`
	// Answered counts operations that were answered as expected within the window,
	// whenever they had been due. Over the window's length it is the rate that the
	// server reached, also when it could not keep up.
	Answered int64 `json:"answered,omitempty"`
	// Unfinished counts operations that had no answer when the run ended.
	Unfinished int64 `json:"unfinished,omitempty"`
	// MaxBacklog is the largest number of starts that were due and waited for a
	// worker to come free.
	MaxBacklog int64 `json:"max_backlog,omitempty"`
	// Late is the generator's own lateness: how long after its intended start an
	// operation was handed out. What it then waited for a worker is not in it.
	LateP50Ns int64 `json:"late_p50_ns,omitempty"`
	LateP99Ns int64 `json:"late_p99_ns,omitempty"`
	LateMaxNs int64 `json:"late_max_ns,omitempty"`
	// CPUShare is the CPU time of the generator's process over the time that its
	// processors had: 1 means that it had nothing left.
	CPUShare float64 `json:"cpu_share"`
	// PauseShare is the part of the window in which the garbage collector had
	// stopped all goroutines, and PauseMaxNs an upper bound of the longest stop.
	PauseShare float64 `json:"pause_share"`
	PauseMaxNs int64   `json:"pause_max_ns"`
}
