package outboxload

import (
	"context"
	"errors"
	"time"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
)

// Job is a run as passed to a program with another outbox: JSON on its standard input. The
// program answers with an [Outcome] as JSON.
type Job struct {
	Peer string `json:"peer"`
	// DSN is a URL of the database. It contains the password, so it is on no command line.
	DSN string `json:"dsn"`
	// ServerPID is the server's process ID, 0 if unknown.
	ServerPID int `json:"server_pid,omitempty"`
	// Records selects a run of Consume; if it is 0, the run is one of Produce.
	Records int64 `json:"records,omitempty"`
	Payload int   `json:"payload"`
	// Producers, Rate, Relay, Warmup and Duration are as in ProduceConfig.
	Producers int           `json:"producers,omitempty"`
	Rate      float64       `json:"rate,omitempty"`
	Relay     bool          `json:"relay,omitempty"`
	Warmup    time.Duration `json:"warmup_ns,omitempty"`
	Duration  time.Duration `json:"duration_ns,omitempty"`
	// Patience is the time without a delivery after which missing messages are given up.
	Patience time.Duration `json:"patience_ns"`
}

// Peer describes an outbox of another program.
type Peer struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	// Schemes are the URL schemes of the databases that it supports.
	Schemes []string `json:"schemes"`
	// Ordered reports whether it promises the order of keys in this set-up.
	Ordered bool `json:"ordered"`
}

// Run runs the job with a subject.
func (j Job) Run(ctx context.Context, s Subject) (*Outcome, error) {
	var watch Watch
	if j.ServerPID != 0 {
		watch = Watch{bench.RoleServer: func() (measure.Usage, error) { return measure.Tree(j.ServerPID) }}
	}
	switch {
	case j.Records > 0:
		return Consume(ctx, s, ConsumeConfig{Records: j.Records, Payload: j.Payload, Patience: j.Patience, Watch: watch})
	case j.Producers > 0 && j.Duration > 0:
		return Produce(ctx, s, ProduceConfig{
			Producers: j.Producers, Rate: j.Rate, Relay: j.Relay, Payload: j.Payload,
			Warmup: j.Warmup, Duration: j.Duration, Drain: j.Patience, Watch: watch,
		})
	default:
		return nil, errors.New("a job needs records, or producers and a duration")
	}
}
