package outboxload

import (
	"context"
	"errors"
	"time"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
)

// Job is one run as it is handed to a program that has an outbox of another make:
// JSON on its standard input. The program answers with an [Outcome] as JSON.
type Job struct {
	Peer string `json:"peer"`
	// DSN is a URL of the database. It holds the password, so it is on no command line.
	DSN string `json:"dsn"`
	// ServerPID is the server's process, 0 if it is not known.
	ServerPID int `json:"server_pid,omitempty"`
	// Records makes it a run of Consume; without, it is one of Produce.
	Records int64 `json:"records,omitempty"`
	Payload int   `json:"payload"`
	// Producers, Rate, Relay, Warmup and Duration are those of ProduceConfig.
	Producers int           `json:"producers,omitempty"`
	Rate      float64       `json:"rate,omitempty"`
	Relay     bool          `json:"relay,omitempty"`
	Warmup    time.Duration `json:"warmup_ns,omitempty"`
	Duration  time.Duration `json:"duration_ns,omitempty"`
	// Patience is how long no message may come before those that are missing are
	// given up.
	Patience time.Duration `json:"patience_ns"`
}

// Peer is what a program tells of an outbox that it has.
type Peer struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	// Schemes are those of the URLs of the databases that it works on.
	Schemes []string `json:"schemes"`
	// Ordered reports whether it promises the order of keys as it is set up here.
	Ordered bool `json:"ordered"`
}

// Run does the job with a subject.
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
