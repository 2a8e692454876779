package bench

import (
	"time"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/measure/loop"
)

// Sample is one round of one side.
type Sample struct {
	Round   int       `json:"round"`
	Started time.Time `json:"started"`
	// Seconds is the length of the measured window, without warm-up.
	Seconds float64 `json:"seconds"`
	// Ops counts operations answered as expected within the window, and Errors the others by
	// class: an SQLSTATE, or words such as "connection lost".
	Ops    int64            `json:"ops"`
	Errors map[string]int64 `json:"errors,omitempty"`
	// InFlight is the constant number of operations in flight of a closed loop; 0 if it is not
	// constant.
	InFlight int `json:"in_flight,omitempty"`
	// MeanInFlight is the mean number in flight within the window, counted and not set:
	// Little's law is checked against it in an open loop. 0 if it was not counted.
	MeanInFlight float64 `json:"mean_in_flight,omitempty"`
	// Latency holds the operations in Ops. In an open loop it counts from the intended start,
	// so that it includes the time that an operation waited for its turn, as its user would.
	Latency *measure.Hist `json:"latency,omitempty"`
	// Service counts the same operations from their actual start. Nil in a closed loop, where
	// the two are the same.
	Service *measure.Hist `json:"service,omitempty"`
	// FailedLatency holds the operations in Errors. No percentile includes them: a refusal is
	// fast and a timeout slow, and neither is an answer.
	FailedLatency *measure.Hist `json:"failed_latency,omitempty"`
	// Boundary divides Latency into segments.
	Boundary *Boundary       `json:"boundary,omitempty"`
	Series   *measure.Series `json:"series,omitempty"`
	// Cold is the time before the window, if it was measured.
	Cold      *Cold              `json:"cold,omitempty"`
	Generator *measure.Generator `json:"generator,omitempty"`
	// Rates holds the operations per second of each kind, if a case does several kinds of work
	// at once, such as "enqueue" and "consume". The cases that such a case is compared with
	// have the one kind that they do.
	Rates map[string]float64 `json:"rates,omitempty"`
	// Processes holds the usage of each role within the window.
	Processes map[string]measure.Usage `json:"processes,omitempty"`
	// Machine is the activity of the whole machine within the window.
	Machine *measure.Activity `json:"machine,omitempty"`
	Server  *ServerCounters   `json:"server,omitempty"`
	Groups  *Groups           `json:"groups,omitempty"`
	// Parts is what the sample holds about its subjects, mostly one. In JSON each stands at
	// the end, under the key of its subject.
	Parts    []Part           `json:"-"`
	Pressure measure.Pressure `json:"pressure"`
	// FsyncBefore and FsyncAfter are calibrations of the disk around the round.
	FsyncBefore *measure.Flush `json:"fsync_before,omitempty"`
	FsyncAfter  *measure.Flush `json:"fsync_after,omitempty"`
	// Disturbed says why the round must not be taken at face value. It is computed each time a
	// result is evaluated.
	Disturbed []string `json:"disturbed,omitempty"`
	// Invalid says which promises were broken in the round. Its figures are those of something
	// that does not work.
	Invalid  []string `json:"invalid,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
}

// Cold is the phase before the measured window: connections are opened, caches filled,
// statements planned. It is kept apart because a run of a few hundred operations consists of
// little else.
type Cold struct {
	Seconds float64       `json:"seconds"`
	Ops     int64         `json:"ops"`
	Latency *measure.Hist `json:"latency,omitempty"`
	// Boundary splits Latency as it does in Sample.
	Boundary *Boundary `json:"boundary,omitempty"`
	// Steady is set if the rate had settled when the window began. Otherwise the limit on the
	// warm-up ended it.
	Steady bool `json:"steady"`
}

// ServerCounters is what a database server counted for Ops operations, which may be more than
// Sample.Ops, since it can include the warm-up.
type ServerCounters struct {
	Ops        int64 `json:"ops"`
	Fsyncs     int64 `json:"fsyncs"`
	LogWrites  int64 `json:"log_writes"`
	LogBytes   int64 `json:"log_bytes"`
	LogRecords int64 `json:"log_records"`
	Commits    int64 `json:"commits"`
	Rollbacks  int64 `json:"rollbacks"`
	// PageRequests counts pages requested from the server's cache, PageReads those that were
	// not there and had to be read.
	PageRequests int64 `json:"page_requests,omitempty"`
	PageReads    int64 `json:"page_reads,omitempty"`
}

// Since returns the difference from an earlier reading, for a number of operations.
func (c ServerCounters) Since(before ServerCounters, ops int64) *ServerCounters {
	return &ServerCounters{
		Ops:        ops,
		Fsyncs:     c.Fsyncs - before.Fsyncs,
		LogWrites:  c.LogWrites - before.LogWrites,
		LogBytes:   c.LogBytes - before.LogBytes,
		LogRecords: c.LogRecords - before.LogRecords,
		Commits:    c.Commits - before.Commits,
		Rollbacks:  c.Rollbacks - before.Rollbacks,

		PageRequests: c.PageRequests - before.PageRequests,
		PageReads:    c.PageReads - before.PageReads,
	}
}

// Groups is how many operations were grouped, and how.
type Groups struct {
	Flushes int64 `json:"flushes"`
	Items   int64 `json:"items"`
	Largest int64 `json:"largest,omitempty"`
}

// Failed returns how many operations did not end as expected.
func (s *Sample) Failed() int64 {
	var n int64
	for _, c := range s.Errors {
		n += c
	}
	return n
}

// open reports whether the sample is of an open loop, by the settings of its generator.
func (s *Sample) open() bool { return s.Generator != nil && s.Generator.TargetRate > 0 }

// SampleOf converts the outcome of a loop to a sample. The caller adds what only it knows:
// server counters, groups, boundary.
func SampleOf(o *loop.Outcome) Sample {
	s := Sample{
		Started: o.Started, Seconds: o.Seconds, Ops: o.Ops, MeanInFlight: o.MeanInFlight,
		Latency: o.Latency, Service: o.Service, Series: o.Series,
		Generator: &o.Generator, Processes: o.Processes, Machine: &o.Machine,
	}
	if len(o.Errors) > 0 {
		s.Errors, s.FailedLatency = o.Errors, o.FailedLatency
	}
	if o.Cold != nil {
		s.Cold = &Cold{Seconds: o.Cold.Seconds, Ops: o.Cold.Ops, Latency: o.Cold.Latency, Steady: o.Cold.Steady}
	}
	if o.Interrupted {
		s.Warnings = append(s.Warnings, "interrupted before its time")
	}
	return s
}
