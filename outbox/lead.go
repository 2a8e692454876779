package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirdb/weir/batch"
)

// Constants of a leader, which do not need tuning.
const (
	readLimit  = 2000                   // rows of one page
	readBytes  = 8 << 20                // payload of one page: the next page is read while it is published
	maxRanges  = 64                     // gaps in one statement
	manyRanges = 4096                   // the same, if joining gaps would return pages of rows that were already read
	proofEvery = 50 * time.Millisecond  // between steps of proving that gaps are dead
	tailSoon   = time.Second            // pause after the log could not be followed, doubled each time
	tailLate   = 30 * time.Second       // maximum of that pause
	longTail   = time.Minute            // after following the log for this long, the pause begins at tailSoon again
	keptEvery  = time.Second            // between checks of how much log the server keeps
	anewEvery  = 20                     // sweeps between two restarts of the leadership while rows are dropped
	renewEvery = time.Second            // between checks whether the table was recreated
	tailProof  = time.Second            // between steps of proving that gaps are dead, while following the log
	sweepPage  = 10_000                 // numbers of one page of the sweep
	strayPage  = 100                    // rows that a sweep found, read at once
	quietTail  = 200 * time.Millisecond // without rows, before checking what else is due
	quietLog   = time.Second            // without rows: then the log may be missing what the table has
)

// lead is the leadership of one shard: one goroutine reads, lanes publish, and the
// batcher of acknowledgements records what was delivered.
type lead struct {
	*Relay
	cfg        Config // with one shard's part of the bounds
	lease      Lease
	unrecorded *unrecorded
	log        *slog.Logger

	stop context.Context // ends: read no more, pass nothing more to the sink
	work context.Context // ends: drop everything
	live context.Context // ends with either
	fail context.CancelCauseFunc

	lanes []*lane
	acks  *batch.Batcher[struct{}, ack, struct{}]
	turn  uint32 // distributes messages without a key over the lanes

	// Of the goroutine that reads.
	front     frontier
	stuck     bool          // the last page was full and had nothing new
	dense     bool          // nor had one with more ranges: see leap
	rest      time.Duration // pause after a leap
	mark      Mark
	markRound int // round that mark covers; -1 none
	proven    int // round whose gaps the next full read may bury; -1 none
	proofAt   time.Time
	notes     map[int64]note
	suspects  map[int64]struct{} // of the last sweep
	sweepAt   time.Time
	renewAt   time.Time
	tail      *tailing
	roundAt   time.Time // while the log is followed: the table is not read before this
	heardAt   time.Time // when the log last had rows
	silent    bool      // it had none for a while, but the table had
	opening   *opening  // a tail that is being opened
	joining   *tailing  // opened, but not followed yet
	tailAt    time.Time // the log is not tried again before this
	tailWait  backoff

	waits  atomic.Int64 // rows that wait in blockades
	slow   atomic.Int64 // rows of calls that no longer count: see stream
	spills atomic.Int64 // rows that were dropped because too many waited
	closes uint64       // of the circuits, when the leadership began
	anewAt time.Time    // when the leadership must begin again if rows were dropped

	mu    sync.Mutex
	out   map[int64]struct{} // read, and neither recorded as delivered nor buried
	rows  int                // of those, rows whose payload is in memory
	bytes int
	room  chan struct{} // receives when rows or bytes shrink
}

// ack is a delivery to be recorded: the rows of one Publish call.
type ack struct {
	rows  []Ref
	bytes int
}

// note is what an earlier leader recorded about a row that failed.
type note struct {
	id       ID
	attempts int
	due      time.Time
}

// lead works until stop ends or the leadership is lost, and returns why.
func (r *Relay) lead(stop context.Context, lease Lease, shard int, owed *unrecorded, log *slog.Logger) error {
	work, fail := context.WithCancelCause(context.WithoutCancel(stop))
	defer fail(nil)
	live, leave := context.WithCancel(stop)
	defer leave()
	defer context.AfterFunc(work, leave)()
	l := &lead{
		Relay: r, cfg: r.cfg.shared(int(max(1, r.shards.Load()))), lease: lease, unrecorded: owed, log: log, stop: stop, work: work, live: live, fail: fail,
		markRound: -1, proven: -1, sweepAt: time.Now().Add(r.cfg.SweepEvery),
		renewAt:  time.Now().Add(renewEvery),
		closes:   r.circuits.closes.Load(),
		anewAt:   time.Now().Add(anewEvery * r.cfg.SweepEvery),
		tailWait: backoff{least: tailSoon, most: tailLate},
		out:      map[int64]struct{}{}, room: make(chan struct{}, 1),
	}
	var watch sync.WaitGroup
	defer watch.Wait()
	defer fail(nil)
	watch.Go(func() { l.watch() })
	if err := owed.record(work, lease); err != nil {
		return err
	}
	if err := l.loadNotes(); err != nil {
		return err
	}
	r.rec.leading.Add(1)
	defer r.rec.leading.Add(-1)
	defer l.forget()

	l.acks = batch.New(batch.Options[ack]{
		Config: ackConfig(l.cfg),
		Size:   func(a ack) int { return len(a.rows) },
	}, l.acknowledge)
	var group sync.WaitGroup
	for range r.cfg.Publishers {
		n := newLane(l)
		l.lanes = append(l.lanes, n)
		group.Go(n.run)
	}
	if shard == 0 {
		group.Go(func() { r.promote(live) })
	}
	err := l.read()
	switch {
	case errors.Is(err, ErrRecreated):
		fail(err) // what the sink was given cannot be recorded any more
	case errors.Is(err, errAfresh):
		leave() // what the sink was given is recorded; the next leadership reads the rest
	case err != nil:
		fail(err)
	}
	for _, n := range l.lanes {
		n.wake()
	}
	group.Wait()
	_ = l.acks.Close() // its flushes report through fail
	l.circuits.cancelTries()
	if cause := context.Cause(work); cause != nil {
		return cause
	}
	return err
}

// ackConfig gathers deliveries for AckDelay, or until a quarter of what may be
// in flight waits, with one statement at a time. Sizes are rows.
func ackConfig(cfg Config) batch.Config {
	c := batch.Config{MaxItems: 1 << 20, MaxBytes: max(1, min(cfg.MaxInFlight/4, 5000)), Lanes: 1, NoHold: true, Capacity: 1 << 20}
	if cfg.AckDelay > 0 {
		c.Window = cfg.AckDelay
	}
	return c
}

// watch ends the work when the leadership is lost or draining takes too long.
func (l *lead) watch() {
	stopped := l.stop.Done()
	var late <-chan time.Time
	for {
		select {
		case <-l.lease.Lost():
			l.fail(fmt.Errorf("%w: its session ended", ErrDeposed))
			return
		case <-stopped:
			stopped, late = nil, time.After(l.cfg.DrainTimeout)
		case <-late:
			l.fail(fmt.Errorf("outbox: what was in flight took longer than %v to drain", l.cfg.DrainTimeout))
			return
		case <-l.work.Done():
			return
		}
	}
}

func (l *lead) loadNotes() error {
	parked, err := l.lease.Parked(l.work)
	if err != nil {
		return err
	}
	l.notes = make(map[int64]note, len(parked))
	now := time.Now()
	for _, p := range parked {
		l.notes[p.Seq] = note{p.ID, p.Attempts, now.Add(p.Delay)}
	}
	return nil
}

// forget subtracts what this leadership still holds from the gauges.
func (l *lead) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rec.inFlight.Add(-int64(l.rows))
	l.rec.inFlightBytes.Add(-int64(l.bytes))
	for _, n := range l.lanes {
		n.forget()
	}
	l.rec.gaps.Store(0)
}

// errAfresh ends a leadership, so that the next one, which begins at once, reads
// the table from its first pending row.
var errAfresh = errors.New("outbox: the table is read from its beginning")

// refill ends the leadership if rows were dropped and there is a reason to read
// them again: half of the waiting messages are done, or a destination takes messages
// again. Otherwise it does so from time to time, since some may only have waited for room.
func (l *lead) refill() error {
	closes := l.circuits.closes.Load()
	if l.spills.Load() == 0 {
		l.closes = closes
		return nil
	}
	if l.waits.Load() > int64(l.cfg.MaxWaiting/2) && closes == l.closes && time.Now().Before(l.anewAt) {
		return nil
	}
	return fmt.Errorf("%w: messages that had to wait can be taken now", errAfresh)
}

// renewed ends the leadership if the table was recreated: its numbers begin
// below those that were seen, and the log that is followed is that of the old table.
func (l *lead) renewed() error {
	w, ok := l.lease.(Renewer)
	if !ok || time.Now().Before(l.renewAt) {
		return nil
	}
	anew, err := w.Renewed(l.work)
	l.renewAt = time.Now().Add(renewEvery)
	if err == nil && anew {
		err = fmt.Errorf("%w: %w", errAfresh, ErrRecreated)
	}
	return err
}

// tailEnd is closed when the tail has ended.
func (l *lead) tailEnd() <-chan struct{} {
	if l.tail == nil {
		return nil
	}
	return l.tail.ended
}

// read finds rows and passes them to the lanes until stop or work ends. It
// returns nil for stop.
func (l *lead) read() error {
	rings, leave := l.bell.listen()
	defer leave()
	defer l.endTail(nil)
	pause := l.cfg.MinPoll
	for {
		if l.stop.Err() != nil {
			return nil
		}
		if l.work.Err() != nil {
			return context.Cause(l.work)
		}
		if err := l.gate.wait(l.live); err != nil {
			continue
		}
		if l.tail != nil && closed(l.tail.ended) {
			err := l.tail.err
			if l.endTail(err); errors.Is(err, ErrRecreated) {
				return fmt.Errorf("%w: %w", errAfresh, err)
			}
		}
		if err := l.renewed(); err != nil {
			return err
		}
		if err := l.refill(); err != nil {
			return err
		}
		rows, bytes, ok := l.waitRoom(l.tailEnd())
		if !ok {
			continue
		}
		if l.tail != nil {
			if err := l.follow(rows, bytes); err != nil {
				return err
			}
			continue
		}
		if err := l.prove(proofEvery); err != nil {
			return err
		}
		more, fresh, err := l.round(rows, bytes)
		if err != nil {
			return err
		}
		if err := l.sweep(); err != nil {
			return err
		}
		if more {
			continue
		}
		if caughtUp, err := l.beginTail(); err != nil || caughtUp {
			if err != nil {
				return err
			}
			continue
		}
		if fresh > 0 {
			pause = l.cfg.MinPoll
		}
		timer := time.NewTimer(max(pause, l.rest))
		select {
		case <-rings:
			pause = l.cfg.MinPoll
		case <-timer.C:
			pause = min(2*pause, l.cfg.MaxPoll)
		case <-l.live.Done():
		}
		timer.Stop()
	}
}

// round reads once and passes on the new rows. more says that there are rows
// that did not fit the page.
func (l *lead) round(rows, bytes int) (more bool, fresh int, err error) {
	l.front.begin()
	if l.dense {
		return l.leap(rows)
	}
	ranges := maxRanges
	if l.stuck {
		ranges = manyRanges
	}
	page, err := l.lease.Read(l.work, ReadRequest{
		After: l.front.after, Gaps: l.front.ranges(ranges),
		Limit: min(rows, readLimit), MaxBytes: min(bytes, readBytes),
	})
	l.rec.rounds.Add(1)
	if err != nil {
		return false, 0, err
	}
	covered := int64(1<<63 - 1)
	if page.More {
		covered = 0
		if n := len(page.Rows); n > 0 {
			covered = page.Rows[n-1].Seq
		}
	}
	fresh = l.accept(page.Rows)
	full := page.More && fresh == 0
	l.dense, l.stuck = l.stuck && full, full
	l.learn(covered, page.More)
	return page.More, fresh, nil
}

// learn records that every existing row up to a number was read.
func (l *lead) learn(covered int64, more bool) {
	if l.proven >= 0 {
		l.front.bury(l.proven, covered)
		if !more {
			l.proven = -1
		}
	}
	l.rec.gaps.Store(int64(len(l.front.gaps)))
}

// accept passes the new rows to the lanes, in their order.
func (l *lead) accept(rows []Row) int {
	fresh := rows[:0]
	for i := range rows {
		if l.front.accept(rows[i].Seq) {
			fresh = append(fresh, rows[i])
		}
	}
	if len(fresh) > 0 {
		l.dispatch(fresh)
	}
	return len(fresh)
}

func (l *lead) dispatch(rows []Row) {
	bytes := 0
	l.mu.Lock()
	for i := range rows {
		l.out[rows[i].Seq] = struct{}{}
		bytes += len(rows[i].Payload)
	}
	l.rows += len(rows)
	l.bytes += bytes
	l.mu.Unlock()
	l.rec.read.Add(uint64(len(rows)))
	l.rec.inFlight.Add(int64(len(rows)))
	l.rec.inFlightBytes.Add(int64(bytes))

	split := make([][]item, len(l.lanes))
	for i := range rows {
		it := item{Row: rows[i]}
		if len(l.notes) > 0 {
			if n, ok := l.notes[it.Seq]; ok {
				if n.id == it.ID { // else it belongs to an earlier table
					it.Attempts, it.due = n.attempts, n.due
				}
				delete(l.notes, it.Seq)
			}
		}
		lane := l.laneOf(&it.Message)
		split[lane] = append(split[lane], it)
	}
	for i, items := range split {
		if len(items) > 0 {
			l.lanes[i].push(items)
		}
	}
}

// laneOf assigns a key to a lane (FNV-1a), and messages without a key in turn.
func (l *lead) laneOf(m *Message) int {
	if m.Key == "" {
		l.turn++
		return int(l.turn % uint32(len(l.lanes)))
	}
	h := uint32(2166136261)
	for i := range len(m.Key) {
		h = (h ^ uint32(m.Key[i])) * 16777619
	}
	return int(h % uint32(len(l.lanes)))
}

// waitRoom waits until there is room for a good part of what may be in flight: pages of
// a few rows would waste round trips. It gives up when over is closed.
func (l *lead) waitRoom(over <-chan struct{}) (rows, bytes int, ok bool) {
	for {
		if rows, bytes, ok = l.freeRoom(); ok {
			return rows, bytes, true
		}
		select {
		case <-l.room:
		case <-over:
			return 0, 0, false
		case <-l.live.Done():
			return 0, 0, false
		}
	}
}

// freeRoom is the free room, and whether it is worth a page.
func (l *lead) freeRoom() (rows, bytes int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	rows, bytes = l.cfg.MaxInFlight-l.rows, l.cfg.MaxInFlightBytes-l.bytes
	return rows, bytes, rows >= min(l.cfg.MaxInFlight, max(1, min(l.cfg.MaxInFlight/8, readLimit))) && bytes > l.cfg.MaxInFlightBytes/8
}

func (l *lead) hasRoom() bool {
	_, _, ok := l.freeRoom()
	return ok
}

// release frees the room of rows whose payload is dropped, and forgets the numbers of rows
// that are finished.
func (l *lead) release(seqs []int64, bytes int, done bool) {
	l.mu.Lock()
	l.rows -= len(seqs)
	l.bytes -= bytes
	if done {
		for _, seq := range seqs {
			delete(l.out, seq)
		}
	}
	l.mu.Unlock()
	l.rec.inFlight.Add(-int64(len(seqs)))
	l.rec.inFlightBytes.Add(-int64(bytes))
	ring(l.room)
}

// reserve takes room for up to most rows that will be read again, and returns for
// how many there was room.
func (l *lead) reserve(most int) int {
	l.mu.Lock()
	most = max(0, min(most, l.cfg.MaxInFlight-l.rows))
	l.rows += most
	l.mu.Unlock()
	l.rec.inFlight.Add(int64(most))
	return most
}

// unreserve frees room that was not needed.
func (l *lead) unreserve(rows int) {
	l.mu.Lock()
	l.rows -= rows
	l.mu.Unlock()
	l.rec.inFlight.Add(-int64(rows))
	ring(l.room)
}

// hold takes room for the bytes of rows that were reserved, beyond the bound if
// necessary.
func (l *lead) hold(bytes int) {
	l.mu.Lock()
	l.bytes += bytes
	l.mu.Unlock()
	l.rec.inFlightBytes.Add(int64(bytes))
}

// drop forgets numbers of rows that have vanished from the table.
func (l *lead) drop(seqs []int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, seq := range seqs {
		delete(l.out, seq)
	}
}

// acknowledge is the flush of acks.
func (l *lead) acknowledge(_ struct{}, items []ack, _ []batch.Result[struct{}]) error {
	var rows []Ref
	bytes := 0
	for _, a := range items {
		rows = append(rows, a.rows...)
		bytes += a.bytes
	}
	if l.work.Err() != nil {
		return context.Cause(l.work)
	}
	if err := l.lease.Ack(l.work, rows); err != nil {
		err = fmt.Errorf("note %d deliveries: %w", len(rows), err)
		l.fail(err)
		return err
	}
	l.rec.ackedRows(len(rows))
	seqs := make([]int64, len(rows))
	for i := range rows {
		seqs[i] = rows[i].Seq
	}
	l.release(seqs, bytes, true)
	return nil
}

// delivered passes deliveries to the batcher of acknowledgements. What could not be
// recorded is left to the next leadership.
func (l *lead) delivered(rows []Row) {
	_, bytes := numbers(rows)
	refs := Refs(rows)
	err := l.acks.Go(l.work, struct{}{}, ack{refs, bytes}, func(_ struct{}, err error) {
		if err != nil {
			l.unrecorded.add(refs)
		}
	})
	if err == nil {
		return
	}
	l.unrecorded.add(refs)
	if l.work.Err() == nil {
		l.fail(fmt.Errorf("outbox: hand over deliveries to be recorded: %w", err))
	}
}

// unrecorded is what was delivered but could not be recorded, because the database refused
// the statement. It is recorded before anything else is delivered: otherwise a relay that
// can publish but not record, because it lacks a privilege, would deliver the same messages
// again and again.
type unrecorded struct {
	mu   sync.Mutex
	rows []Ref
}

func (o *unrecorded) add(rows []Ref) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.rows = append(o.rows, rows...)
}

// settlePage is how many rows one statement names: a server refuses a statement that is too
// large (max_allowed_packet), and would refuse it every time.
const settlePage = 5000

// settle records them.
func (o *unrecorded) record(ctx context.Context, lease Lease) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.rows) > 0 {
		page := o.rows[:min(len(o.rows), settlePage)]
		if err := lease.Ack(ctx, page); err != nil {
			return fmt.Errorf("note %d of %d earlier deliveries: %w", len(page), len(o.rows), err)
		}
		o.rows = o.rows[len(page):]
	}
	o.rows = nil
	return nil
}
