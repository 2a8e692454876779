package outbox

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirdb/weir/batch"
)

// Stats are the counters and the state of a relay.
type Stats struct {
	Read      uint64 // rows taken from the table or the log
	Delivered uint64 // messages that the sink confirmed
	Bytes     uint64 // their payloads
	Acked     uint64 // deliveries recorded in the database
	Retries   uint64 // attempts that failed and will be repeated
	Buried    map[string]uint64
	Outages   uint64 // Publish calls that met no broker
	Stray     uint64 // rows that only the sweep found
	Outside   uint64 // rows found outside the window
	TakeOvers uint64 // leaderships taken
	Rounds    uint64 // reads of the table
	Repeated  uint64 // of those delivered, the ones that the broker said it had before
	LogDrops  uint64 // times that the relay stopped following the log so that the server could remove it

	InFlight      int64 // read and not yet recorded as delivered
	InFlightBytes int64
	Parked        int64 // keys (or messages without one) that wait for another attempt
	Deferred      int64 // messages that wait behind them
	Gaps          int64 // open gaps in the numbers seen
	Leading       int64 // shards led now
	Tailing       int64 // of those, shards that follow the log
	BrokerDown    bool
	Blocked       int    // destinations that take no messages now
	LogKept       int64  // bytes of its log that the server keeps for this relay
	TailReason    string // why the log is not followed, if it was wanted

	// Destinations are by name; see [DestinationStats].
	Destinations []DestinationStats

	// Delivery is the time from insert to confirmation in nanoseconds, by the
	// database's and this machine's clock, and so as exact as they agree.
	// Publish is the duration of Publish calls in nanoseconds, Batches their
	// size in messages, Acks the size of acknowledgements in rows.
	Delivery, Publish, Batches, Acks batch.Histogram
}

// recorder is the counters behind Stats.
type recorder struct {
	read, delivered, bytes, acked, retries, outages, stray, outside, takeOvers, rounds, logDrops atomic.Uint64
	inFlight, inFlightBytes, parked, deferred, gaps, leading, tailing, logKept                   atomic.Int64
	brokersDown                                                                                  atomic.Int64
	failures                                                                                     complaints

	mu                               sync.Mutex
	buried                           map[string]uint64
	tailReason                       string
	delivery, publish, batches, acks batch.Histogram
}

func (r *recorder) stats() Stats {
	s := Stats{
		Read: r.read.Load(), Delivered: r.delivered.Load(), Bytes: r.bytes.Load(), Acked: r.acked.Load(),
		Retries: r.retries.Load(), Outages: r.outages.Load(), Stray: r.stray.Load(), Outside: r.outside.Load(),
		TakeOvers: r.takeOvers.Load(), Rounds: r.rounds.Load(), LogDrops: r.logDrops.Load(), LogKept: r.logKept.Load(),
		InFlight: r.inFlight.Load(), InFlightBytes: r.inFlightBytes.Load(), Parked: r.parked.Load(),
		Deferred: r.deferred.Load(), Gaps: r.gaps.Load(), Leading: r.leading.Load(), Tailing: r.tailing.Load(),
		BrokerDown: r.brokersDown.Load() > 0,
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s.Buried = maps.Clone(r.buried)
	s.TailReason = r.tailReason
	s.Delivery, s.Publish, s.Batches, s.Acks = r.delivery, r.publish, r.batches, r.acks
	return s
}

// published notes one Publish call and the rows that it delivered.
func (r *recorder) published(took time.Duration, size int, delivered []Row) {
	now := time.Now()
	bytes := 0
	r.mu.Lock()
	r.publish.Record(int64(took))
	r.batches.Record(int64(size))
	for i := range delivered {
		bytes += len(delivered[i].Payload)
		if at := delivered[i].CreatedAt; !at.IsZero() {
			r.delivery.Record(max(0, int64(now.Sub(at))))
		}
	}
	r.mu.Unlock()
	r.delivered.Add(uint64(len(delivered)))
	r.bytes.Add(uint64(bytes))
}

func (r *recorder) ackedRows(n int) {
	r.acked.Add(uint64(n))
	r.mu.Lock()
	r.acks.Record(int64(n))
	r.mu.Unlock()
}

func (r *recorder) buriedRows(reason string, n int) {
	r.mu.Lock()
	if r.buried == nil {
		r.buried = map[string]uint64{}
	}
	r.buried[reason] += uint64(n)
	r.mu.Unlock()
}

// setTailReason reports whether the reason is another than before.
func (r *recorder) setTailReason(reason string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	changed := r.tailReason != reason
	r.tailReason = reason
	return changed
}
