package outboxbench

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	outboxload "github.com/weirdb/weir/internal/ruler/bench/outbox/load"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
	"github.com/weirdb/weir/outbox"
)

// The groups of experiments, in the order in which they run. Results name their group in the
// factor "phase".
const (
	Screen    = "screen"      // a backlog, workers x batch of each claim mode
	Records   = "records"     // the best of them over the length of the backlog
	Focus     = "focus"       // the best again, with more rounds
	Payload   = "payload"     // the same over payload sizes
	Enqueue   = "enqueue"     // producers alone: with a transaction, without, in groups
	Mixed     = "mixed"       // producers and relay together, closed and open loop
	Grid      = "grid"        // the same with every combination of workers x batch
	OutOfBand = "out-of-band" // payloads in a separate table, and references in the outbox
	Partition = "partition"   // a backlog of months: window and partitions on and off
	Peers     = "peers"       // other outboxes on the same server
)

// Combination is a number of workers and the batch size of each.
type Combination struct{ Workers, Batch int }

// String is "16x200".
func (c Combination) String() string { return fmt.Sprintf("%dx%d", c.Workers, c.Batch) }

// Plan says how much to run.
type Plan struct {
	// Rounds is the number of rounds of each experiment, FocusRounds that of the focus, the
	// mixed load and the peers. Warmup rounds come before and are discarded.
	Rounds, FocusRounds, Warmup int
	// Workers and Batches are the grid of the customary design.
	Workers, Batches []int
	// Publishers and OwnBatches are the settings tried with weir's own claim modes, besides
	// their defaults.
	Publishers, OwnBatches []int
	// Records is the backlog of a round, FocusRecords that of the focus and the peers,
	// LargeRecords that of large payloads.
	//
	// While a relay that follows the log is paused, the server continues to send until the
	// buffers between them, some megabytes, are full. Only a much larger backlog shows how fast
	// the relay follows.
	Records, FocusRecords, LargeRecords int64
	// Lengths are lengths of the backlog, in rows, for the best combination and weir's claim
	// modes: they show the cost of a working set larger than the buffer pool.
	Lengths []int64
	// Payloads and LargePayloads are payload sizes to compare, in bytes; everything else uses
	// 512.
	Payloads, LargePayloads []int
	// Producers are numbers of producers without a relay, MixedProducers of producers with a
	// relay, in a closed loop.
	Producers, MixedProducers []int
	// GridWorkers and GridBatches are the grid with producers, GridProducers the numbers of
	// producers and GridDuration the length of its rounds.
	GridWorkers, GridBatches, GridProducers []int
	GridDuration                            time.Duration
	// GridEnds leaves only the smallest and the largest of both lists.
	GridEnds bool
	// OutOfBand are the payload sizes to keep inside and outside the outbox, and OutOfBandBytes
	// about how many bytes of payload a backlog has.
	OutOfBand      []int
	OutOfBandBytes int64
	// Rates are those of the open loop, in messages per second, OpenProducers the number of
	// connections that it may use.
	Rates         []float64
	OpenProducers int
	// Settle is the warm-up and Duration the window of a round with producers.
	Settle, Duration time.Duration
	// PartitionRecords are spread over PartitionDays; PartitionRounds is the number of rounds
	// of that phase.
	PartitionRecords int64
	PartitionDays    int
	PartitionRounds  int
	// Window is that of the partition phase, whose baseline is the flat table with it. The
	// phase compares Windows and Periods; a window of 0 is none. Default: Window and none, flat
	// and daily.
	Window  time.Duration
	Windows []time.Duration
	Periods []outbox.Period
	// Drain is the time without a delivery after which missing messages count as lost.
	Drain time.Duration
	// Hasty leaves out the calibrations of the disk, which take longer than the rounds of a
	// smoke run.
	Hasty bool
}

// payloadBytes is the payload size of everything that does not sweep it.
const payloadBytes = 512

// Plans are the plans by name.
func Plans() map[string]Plan {
	return map[string]Plan{
		"smoke": {
			Hasty: true, Rounds: 1, FocusRounds: 1,
			Workers: []int{1}, Batches: []int{50}, OwnBatches: []int{100}, Publishers: []int{1},
			Records: 400, FocusRecords: 1000, LargeRecords: 40, Payloads: []int{128}, LargePayloads: []int{16384},
			Producers: []int{2}, MixedProducers: []int{2}, Rates: []float64{100}, OpenProducers: 8,
			GridWorkers: []int{1, 2}, GridBatches: []int{50}, GridProducers: []int{2}, GridDuration: 100 * time.Millisecond,
			OutOfBand: []int{512, 65536}, OutOfBandBytes: 1 << 20,
			Settle: 20 * time.Millisecond, Duration: 150 * time.Millisecond,
			PartitionRecords: 1800, PartitionDays: 90, PartitionRounds: 1, Window: time.Hour, Drain: 10 * time.Second,
		},
		"mini": {
			Rounds: 2, FocusRounds: 3,
			Workers: []int{1, 4}, Batches: []int{50, 200}, Publishers: []int{1}, OwnBatches: []int{200},
			Records: 10_000, FocusRecords: 20_000, LargeRecords: 800, Payloads: []int{128, 512, 4096}, LargePayloads: []int{16384, 131072},
			Producers: []int{1, 8}, MixedProducers: []int{8}, Rates: []float64{500}, OpenProducers: 32,
			GridWorkers: []int{4, 16}, GridBatches: []int{100, 200}, GridProducers: []int{8}, GridDuration: 700 * time.Millisecond, GridEnds: true,
			OutOfBand: []int{512, 65536, 262144}, OutOfBandBytes: 16 << 20,
			Settle: 300 * time.Millisecond, Duration: 2 * time.Second,
			PartitionRecords: 90_000, PartitionDays: 90, PartitionRounds: 1, Window: time.Hour, Drain: 30 * time.Second,
		},
		"full": {
			Rounds: 3, FocusRounds: 6, Warmup: 1,
			Workers: []int{1, 2, 4, 8, 16}, Batches: []int{10, 50, 100, 200}, Publishers: []int{1, 4}, OwnBatches: []int{100, 2000},
			Records: 40_000, FocusRecords: 200_000, LargeRecords: 2000, Payloads: []int{128, 512, 4096}, LargePayloads: []int{16384, 131072},
			Producers: []int{1, 2, 4, 8, 64}, MixedProducers: []int{8, 64}, Rates: []float64{250, 500, 1000, 2000}, OpenProducers: 64,
			GridWorkers: []int{1, 2, 4, 8, 16}, GridBatches: []int{10, 50, 100, 200}, GridProducers: []int{1, 2, 4, 8, 64}, GridDuration: 3 * time.Second,
			OutOfBand: []int{512, 65536, 262144}, OutOfBandBytes: 256 << 20,
			Settle: 500 * time.Millisecond, Duration: 4 * time.Second,
			PartitionRecords: 2_000_000, PartitionDays: 90, PartitionRounds: 1, Window: time.Hour, Drain: 2 * time.Minute,
		},
	}
}

// largePayload is the size from which there are fewer rows.
const largePayload = 16 << 10

// overrides are settings of the command line that override a plan's. Empty ones do not.
type overrides struct {
	workers, batches, payloads, producers []int
	records                               []int64
	windows                               []time.Duration
	partitions                            []string
	rounds, warmup                        int // warmup -1: the plan's
}

// periods are the values of --partitions.
var periods = map[string]outbox.Period{"none": outbox.Unpartitioned, "daily": outbox.Daily}

// with returns the plan with the given overrides. Its error names the flag.
func (p Plan) with(k overrides) (Plan, error) {
	if err := k.validate(); err != nil {
		return p, err
	}
	for list, given := range map[*[]int][]int{&p.Workers: k.workers, &p.Batches: k.batches, &p.Producers: k.producers, &p.MixedProducers: k.producers, &p.GridProducers: k.producers, &p.GridWorkers: k.workers, &p.GridBatches: k.batches} {
		if len(given) > 0 {
			*list = given
		}
	}
	if len(k.payloads) > 0 {
		p.Payloads, p.LargePayloads = nil, nil
		for _, n := range k.payloads {
			if n >= largePayload {
				p.LargePayloads = append(p.LargePayloads, n)
			} else {
				p.Payloads = append(p.Payloads, n)
			}
		}
	}
	if len(k.records) > 0 {
		p.Records, p.FocusRecords = k.records[0], k.records[0]
	}
	if len(k.records) > 1 {
		p.Lengths = k.records
	}
	if k.rounds > 0 {
		p.Rounds, p.FocusRounds, p.PartitionRounds = k.rounds, k.rounds, k.rounds
	}
	if k.warmup >= 0 {
		p.Warmup = k.warmup
	}
	if len(k.windows) > 0 {
		p.Windows = k.windows
		p.Window = slices.Max(k.windows)
	}
	if len(k.partitions) > 0 {
		p.Periods = nil
		for _, name := range k.partitions {
			p.Periods = append(p.Periods, periods[name])
		}
	}
	return p, nil
}

func (k overrides) validate() error {
	err := cmp.Or(suite.CheckNumbers("--workers", k.workers, 1), suite.CheckNumbers("--batch", k.batches, 1),
		suite.CheckNumbers("--payloads", k.payloads, outboxload.MinPayload), suite.CheckNumbers("--producers", k.producers, 1))
	if err != nil {
		return err
	}
	for i, n := range k.records {
		if n < 1 || slices.Contains(k.records[:i], n) {
			return fmt.Errorf("--records %d: want numbers of at least 1, each once", n)
		}
	}
	for i, w := range k.windows {
		if w < 0 || slices.Contains(k.windows[:i], w) {
			return fmt.Errorf("--window %v: want durations of 0 or more, each once", w)
		}
	}
	if len(k.windows) > 0 && slices.Max(k.windows) == 0 {
		return errors.New("--window 0 alone: with no window at all nothing says which rows to wait for; name one more")
	}
	for i, name := range k.partitions {
		if _, ok := periods[name]; !ok || slices.Contains(k.partitions[:i], name) {
			return fmt.Errorf("--partitions %q: want none, daily or both", name)
		}
	}
	if k.rounds < 0 || k.warmup < -1 {
		return errors.New("--rounds and --warmup must not be negative")
	}
	return nil
}
