package replica

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirdb/weir/internal/kvd/consensus"
	"github.com/weirdb/weir/internal/kvd/wal"
)

const (
	// roundBytes is the maximum that one round on the disk gathers: a longer round of the log would
	// only delay its acknowledgements.
	roundBytes = 8 << 20
	// rollPause is the pause after a failed attempt to begin a new segment. Meanwhile the log
	// continues in the old one.
	rollPause = time.Second
	// keptSnapshots is how many snapshots are kept, with the log after the oldest of
	// them: if the newest is damaged, the one before and that log
	// give the same state.
	keptSnapshots = 2
)

// An order is a request of the core goroutine to the disk.
type order struct {
	records []consensus.Record
	ticket  uint64
	sync    bool
	busy    bool // much other input has arrived since the last order
	roll    bool // begin a new segment; records are its beginning
	tidy    bool // a snapshot was saved: older log may be removed
}

// A disk writes what the core goroutine passes to it, in order, on a goroutine of
// its own: everything that waits, with one sync.
type disk struct {
	log   *wal.Log
	inbox *inbox
	out   *slog.Logger
	stats diskStats
	last  atomic.Pointer[position] // what is durable

	mu     sync.Mutex // guards orders and closed
	orders []order
	closed bool
	wake   chan struct{}

	// steps counts the beginnings and ends of operations of the disk goroutine that may block:
	// it is odd while one is in progress.
	steps atomic.Uint64
	wants atomic.Uint64 // how many times the log has asked for a roll

	// Of the disk goroutine alone.
	busy    bool      // the processors have other work
	asked   bool      // a roll was requested
	retry   time.Time // the next request is not made before this
	scratch []wal.Record
	spare   sync.WaitGroup // makes a segment in advance

	preparing  atomic.Bool // it is doing so
	unprepared atomic.Bool // it failed: the next roll makes its segment itself
}

// position is a place in the log.
type position struct{ term, index uint64 }

// diskStats are counted by the disk goroutine and read by others.
type diskStats struct {
	syncs, records, rolls, failedRolls atomic.Uint64
	bytes, aside, segments             atomic.Uint64 // as the log counts them
	seconds                            histogram     // of one sync
	rounds                             histogram     // records of one sync
}

func newDisk(log *wal.Log, in *inbox, out *slog.Logger) *disk {
	d := &disk{
		log: log, inbox: in, out: out, wake: make(chan struct{}, 1),
		stats: diskStats{seconds: newHistogram(secondsBounds), rounds: newHistogram(sizeBounds)},
	}
	d.note()
	return d
}

// put queues an order. It never waits: the core bounds what is in flight.
func (d *disk) put(o order) {
	d.mu.Lock()
	d.orders = append(d.orders, o)
	d.mu.Unlock()
	d.poke()
}

// stop makes run return once all orders are executed.
func (d *disk) stop() {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.poke()
}

func (d *disk) poke() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// run executes orders until stop, or until the disk fails, which is final:
// after a failed sync the contents of the disk are unknown. It closes the log.
func (d *disk) run() error {
	err := d.serve()
	d.spare.Wait()
	if closing := d.log.Close(); err == nil && closing != nil {
		err = failed("close the log", closing)
	}
	return err
}

func (d *disk) serve() error {
	var spent []order
	for {
		<-d.wake
		d.mu.Lock()
		orders, closed := d.orders, d.closed
		d.orders = spent[:0]
		d.mu.Unlock()
		d.steps.Add(1)
		if err := d.carryOut(orders); err != nil {
			return err
		}
		d.steps.Add(1)
		clear(orders)
		spent = orders
		if closed {
			return nil
		}
	}
}

func (d *disk) carryOut(orders []order) error {
	var ticket uint64
	sync, tidy := false, false
	d.busy = false
	for i := range orders {
		o := &orders[i]
		if o.roll {
			if err := d.roll(o.records); err != nil {
				return err
			}
			continue
		}
		if err := d.append(o.records); err != nil {
			return err
		}
		ticket = max(ticket, o.ticket)
		tidy = tidy || o.tidy
		sync = sync || o.sync
		d.busy = d.busy || o.busy
	}
	if sync {
		if err := d.flush(); err != nil {
			return err
		}
		d.inbox.persisted(ticket)
	}
	if d.log.HalfFull() && d.log.Stats().Spares == 0 && !d.asked && !d.preparing.Load() && !d.unprepared.Load() {
		d.prepare()
	}
	// While a segment is being made, the old one grows: waiting would hold up every client.
	if !d.asked && d.log.Full() && !d.preparing.Load() && time.Now().After(d.retry) {
		d.asked = true
		d.wants.Add(1)
		d.inbox.poke() // the next turn passes the beginning of the new segment
	}
	if tidy {
		return d.tidy()
	}
	return nil
}

// kinds are the log's names for the core's kinds of records.
var kinds = [...]wal.Kind{
	consensus.RecordEntry:   wal.Entry,
	consensus.RecordHard:    wal.Hard,
	consensus.RecordView:    wal.View,
	consensus.RecordWitness: wal.Witness,
	consensus.RecordIntent:  wal.Intent,
	consensus.RecordReset:   wal.Reset,
	consensus.RecordPromise: wal.Other,
}

// walRecords translates records. The slice is valid until the next call.
func (d *disk) walRecords(records []consensus.Record) []wal.Record {
	d.scratch = d.scratch[:0]
	for i := range records {
		r := &records[i]
		d.scratch = append(d.scratch, wal.Record{Kind: kinds[r.Kind], Term: r.Term, Index: r.Index, Data: r.Data})
	}
	return d.scratch
}

// append gathers records, and writes them in several pieces if there are many: a
// follower that catches up may get the whole log in one turn.
func (d *disk) append(records []consensus.Record) error {
	out := d.walRecords(records)
	defer clear(out)
	for i := range out {
		if d.log.Pending() > 0 && d.log.Pending()+len(out[i].Data) > roundBytes {
			if err := d.flush(); err != nil {
				return err
			}
		}
		if err := d.log.Append(out[i : i+1]...); err != nil {
			return failed("write the log", err)
		}
	}
	return nil
}

func (d *disk) flush() error {
	before := d.log.Stats()
	begin := time.Now()
	sync := d.log.Sync
	if d.busy {
		sync = d.log.SyncAside
	}
	if err := sync(); err != nil {
		return failed("flush the log", err)
	}
	d.steps.Add(2)
	if n := d.log.Stats().Records - before.Records; n > 0 {
		d.stats.syncs.Add(1)
		d.stats.records.Add(n)
		d.stats.seconds.observe(time.Since(begin).Seconds())
		d.stats.rounds.observe(float64(n))
	}
	d.note()
	return nil
}

// note publishes what is durable.
func (d *disk) note() {
	index, term := d.log.Last()
	d.last.Store(&position{term, index})
	d.count()
}

// count publishes the log's own counters.
func (d *disk) count() {
	s := d.log.Stats()
	d.stats.bytes.Store(s.Bytes)
	d.stats.segments.Store(uint64(s.Segments))
	d.stats.aside.Store(s.Aside)
}

// pretend advances the position of a log that is not written. The core goroutine
// calls it in a replica whose disk goroutine has nothing to write.
func (d *disk) pretend(records []consensus.Record) {
	for i := range records {
		if r := &records[i]; r.Kind == consensus.RecordEntry || r.Kind == consensus.RecordReset {
			d.last.Store(&position{r.Term, r.Index})
		}
	}
}

// roll begins a new segment. If there is no space for it, the log continues in
// the old one.
func (d *disk) roll(carry []consensus.Record) error {
	if err := d.flush(); err != nil {
		return err
	}
	d.asked = false
	out := d.walRecords(carry)
	defer clear(out)
	if err := d.log.Roll(out); err != nil {
		d.stats.failedRolls.Add(1)
		d.retry = time.Now().Add(rollPause)
		d.out.Warn("no new segment of the log could be begun; the old one grows", "error", err)
		return nil
	}
	d.stats.rolls.Add(1)
	d.unprepared.Store(false)
	return nil
}

// prepare makes the next segment of the log in the background: writing a whole segment of
// zeros takes time.
func (d *disk) prepare() {
	d.preparing.Store(true)
	d.spare.Go(func() {
		defer d.preparing.Store(false)
		if err := d.log.Prepare(); err != nil {
			d.unprepared.Store(true) // before preparing says that none is being made
			d.out.Warn("no segment of the log could be made in advance", "error", err)
		}
	})
}

// tidy removes old snapshots, and log that is older than the remaining ones.
func (d *disk) tidy() error {
	s := d.log.Snapshots()
	if err := s.Prune(keptSnapshots); err != nil {
		return failed("drop old snapshots", err)
	}
	kept := s.List()
	if len(kept) == 0 {
		return nil
	}
	if err := d.log.Release(kept[0].Index); err != nil {
		return failed("recycle the log", err)
	}
	d.count()
	return nil
}

// DiskError is why a replica stopped: its disk failed, and the contents of the disk are
// uncertain. Nothing was acknowledged after that.
type DiskError struct {
	Step string
	Err  error
}

func failed(step string, err error) error {
	var known *DiskError
	if errors.As(err, &known) {
		return err
	}
	return &DiskError{Step: step, Err: err}
}

func (e *DiskError) Error() string {
	return fmt.Sprintf("%s: %v (the replica stops: it acknowledges nothing that is not on the disk)", e.Step, e.Err)
}

func (e *DiskError) Unwrap() error { return e.Err }
