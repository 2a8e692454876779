package outbox

import (
	"container/heap"
	"sync"
	"time"
)

// lane publishes the messages of some keys. New messages, retries, and messages for a part of
// the broker that is away are three streams of Publish calls, which do not wait for each
// other: see stream. A call takes all waiting messages (up to Config.Batch); while it is in
// flight, the next group gathers. One goroutine owns everything but the inbox and the work of
// a flight.
type lane struct {
	*lead

	mu    sync.Mutex
	inbox []item
	bell  chan struct{}

	queue   []item // to be published, in order
	blocked map[string]*blockade
	fresh   stream // of the queue
	again   stream // of blockades: retries
	gone    stream // of blockades for which there is no broker while other messages are taken
	flying  int    // calls in flight
	landed  chan *flight
	usual   time.Duration // usual duration of a call
	spare   []*courier
	broker  *broker
	away    away
	opened  uint64 // number of closed circuits that was last seen
	lit     uint64 // number of times that the broker came back, likewise

	spilled *sieve // keys of rows that were dropped; nil: none
}

// item is a row in a lane. A due time means that it failed before.
type item struct {
	Row
	due time.Time
}

// blockade is a message that waits for another attempt and, if it has a key,
// the later ones of its key behind it, in order of arrival: one that committed late has
// a smaller number than those before it. Only names and sizes are kept: the rows
// are read again when they are due.
type blockade struct {
	key      string // empty: the blockade has one message
	waits    []waiting
	attempts int // of the first message
	due      time.Time
	held     bool   // the destination takes nothing
	away     bool   // the destination, or the part that the first message goes to, cannot be reached
	past     past   // if away: of the first message
	waiting  bool   // it is in the heap of its stream, and counted
	dest     string // of the first message, if known
	alone    bool   // the first message breaks connections: it is sent alone
	head     int64  // without a key: its one message
}

// waiting is a row that waits, and the size of its payload.
type waiting struct {
	Ref
	bytes int
}

func waitingOf(row *Row) waiting { return waiting{Ref{row.Seq, row.ID}, len(row.Payload)} }

func newLane(l *lead) *lane {
	return &lane{
		lead: l, bell: make(chan struct{}, 1), blocked: map[string]*blockade{},
		landed: make(chan *flight, mostFlights), broker: newBroker(),
		fresh: newStream(), again: newStream(), gone: newStream(),
	}
}

// push adds items behind those that wait.
func (n *lane) push(items []item) {
	n.mu.Lock()
	n.inbox = append(n.inbox, items...)
	n.mu.Unlock()
	ring(n.bell)
}

func (n *lane) wake() { ring(n.bell) }

// forget subtracts what this lane still holds from the gauges. The lane has ended.
func (n *lane) forget() {
	n.broker.forget(n.Relay)
	n.dests.forget()
	for _, s := range n.streams() {
		for _, b := range s.due {
			n.count(b, -1)
		}
	}
}

// run publishes until stop or work ends.
func (n *lane) run() {
	defer n.await()
	changed, leave := n.circuits.changed.listen()
	defer leave()
	for {
		n.mu.Lock()
		n.queue = append(n.queue, n.inbox...)
		clear(n.inbox)
		n.inbox = n.inbox[:0]
		n.mu.Unlock()
		if n.live.Err() != nil {
			return
		}
		if err := n.step(changed); err != nil {
			n.fail(err)
			return
		}
	}
}

// step publishes what may be published, or waits for something to do.
func (n *lane) step(changed <-chan struct{}) error {
	n.unhold()
	now := time.Now()
	n.letGo(now)
	before := n.flying
	for _, s := range []*stream{&n.again, &n.gone} {
		if s.ready(now) && len(s.due) > 0 && !now.Before(s.due[0].due) {
			if err := n.retry(s, now); err != nil {
				return err
			}
		}
	}
	if n.fresh.ready(now) && len(n.queue) > 0 {
		batch, err := n.next(now)
		if err != nil {
			return err
		}
		n.publish(&n.fresh, batch, nil, nil)
		if len(batch) == 0 && len(n.queue) > 0 {
			return nil // all of them were moved elsewhere
		}
	}
	if n.flying > before {
		return nil
	}
	var due <-chan time.Time
	if at := n.nextStep(now); !at.IsZero() {
		t := time.NewTimer(time.Until(at))
		defer t.Stop()
		due = t.C
	}
	select {
	case f := <-n.landed:
		return n.land(f)
	case <-n.bell:
	case <-changed:
	case <-due:
	case <-n.live.Done():
	}
	return nil
}

// unhold makes blockades due whose destination takes messages again, or may do so
// because the broker does.
func (n *lane) unhold() {
	closes, lit := n.circuits.closes.Load(), n.circuits.lit.Load()
	if closes == n.opened && lit == n.lit {
		return
	}
	back := lit != n.lit
	n.opened, n.lit = closes, lit
	now := time.Now()
	all := append(n.again.due, n.gone.due...)
	n.again.due, n.gone.due = nil, nil
	for _, b := range all {
		switch {
		case b.held && !n.circuits.isOpen(b.dest):
			b.held, b.away, b.due = false, false, now
		case back && (b.held || b.away): // retry asks the circuit
			b.due = now
		}
		s := n.streamOf(b)
		s.due = append(s.due, b)
	}
	heap.Init(&n.again.due)
	heap.Init(&n.gone.due)
}

// next takes the rows from the queue that may be published now. Rows whose key is
// blocked move behind its blockade, those whose destination takes nothing wait for
// it, and rows that cannot be read are buried.
func (n *lane) next(now time.Time) ([]Row, error) {
	n.queue = awayLast(n.Relay, &n.away, n.queue, func(it *item) *Row { return &it.Row }, probes)
	most := n.limit.most(n.cfg.Batch)
	batch := make([]Row, 0, min(most, len(n.queue)))
	taken := 0
	var keys map[string]bool // in the batch, once one of them may have to wait
	for ; taken < len(n.queue) && len(batch) < most; taken++ {
		it := &n.queue[taken]
		b := n.blockadeOf(&it.Row)
		spilled := b == nil && n.hasSpilled(&it.Row)
		ok, until, dest := b == nil && !spilled, now, ""
		failed := it.due.After(now)
		if ok && !failed && n.circuits.waiting() > 0 && it.fault() == nil { // only for what is sent: tries are few
			ok, until, dest = n.circuits.admit(&it.Message, now)
		}
		if b == nil && !spilled && (failed || !ok) && it.Key != "" && !n.cfg.Unordered {
			if keys == nil {
				keys = keysOf(batch)
			}
			if keys[it.Key] {
				break // one of its key goes before it, so it waits its turn
			}
		}
		switch {
		case b != nil:
			n.postpone(b, it.Row)
		case spilled:
			n.spill(it.Row)
		case failed:
			n.block(it.Row, it.due.Sub(now), nil)
		case !ok:
			n.block(it.Row, until.Sub(now), &hold{destination: dest})
		default:
			batch = append(batch, it.Row)
			if keys != nil {
				keys[it.Key] = true
			}
		}
	}
	n.consume(taken)
	batch, buried, gone := unreadable(batch)
	return batch, n.bury(buried, gone)
}

func keysOf(rows []Row) map[string]bool {
	keys := make(map[string]bool, len(rows))
	for i := range rows {
		keys[rows[i].Key] = true
	}
	return keys
}

// consume drops the first items of the queue.
func (n *lane) consume(taken int) {
	rest := copy(n.queue, n.queue[taken:])
	clear(n.queue[rest:])
	n.queue = n.queue[:rest]
}

// blockadeOf is the blockade of the row's key, or nil.
func (n *lane) blockadeOf(row *Row) *blockade {
	if row.Key == "" || n.cfg.Unordered {
		return nil
	}
	return n.blocked[row.Key]
}

// block makes the row, and later ones of its key, wait. h is set if the row has
// spent no attempt.
func (n *lane) block(row Row, d time.Duration, h *hold) {
	away := h != nil && IsUnavailable(h.err)
	if h != nil && !away {
		_, away = n.circuits.state(h.destination)
	}
	if n.crowded(away) {
		n.spill(row)
		return
	}
	b := &blockade{waits: []waiting{waitingOf(&row)}, attempts: row.Attempts, due: time.Now().Add(d)}
	b.head = row.Seq
	b.heldFor(n, h)
	if row.Key != "" && !n.cfg.Unordered {
		b.key = row.Key
		n.blocked[b.key] = b
	}
	n.enlist(b)
	n.waits.Add(1)
	n.release([]int64{row.Seq}, len(row.Payload), false)
}

// heldFor records what a blockade waits for.
func (b *blockade) heldFor(n *lane, h *hold) {
	b.held, b.away, b.alone, b.past = false, false, false, past{}
	if h != nil {
		b.dest, b.alone, b.past = h.destination, IsBroken(h.err), h.past
		b.held, b.away = n.circuits.state(h.destination)
		b.away = b.away || IsUnavailable(h.err)
	}
}

// postpone puts a row behind a blockade.
func (n *lane) postpone(b *blockade, row Row) {
	if n.hasSpilled(&row) || n.crowded(b.away) {
		n.spill(row)
		return
	}
	b.waits = append(b.waits, waitingOf(&row))
	if b.waiting {
		n.rec.deferred.Add(1)
	}
	n.waits.Add(1)
	n.release([]int64{row.Seq}, len(row.Payload), false)
}

// retry publishes the rows of a stream that are due, the first message of each blockade
// first. Rows for which there is no room among the messages in flight continue to wait.
func (n *lane) retry(s *stream, now time.Time) error {
	scout := s == &n.gone && n.gone.scout
	most := n.limit.most(n.cfg.Batch)
	if scout {
		most = min(most, probes)
	}
	if most = n.reserve(most); most == 0 {
		s.delay(now.Add(retryPause))
		return nil
	}
	room := n.cfg.MaxInFlightBytes / 2 / len(n.lanes)
	var bs []*blockade
	var refs []Ref
	heads := map[int64]*blockade{}
	for len(s.due) > 0 && !s.due[0].due.After(now) && len(refs) < most && (room > 0 || len(refs) == 0) {
		b := s.due[0]
		if b.alone && len(bs) > 0 {
			break
		}
		if b.dest != "" || b.held {
			if ok, until := n.circuits.admitTo(b.dest, now); !ok {
				s.delay(until.Add(time.Millisecond))
				continue
			}
		}
		heap.Pop(&s.due)
		n.count(b, -1)
		some := most - len(refs)
		if scout {
			some = 1
		}
		part := b.take(some, &room)
		heads[part[0].Seq] = b
		refs = append(refs, part...)
		b.waits = b.waits[len(part):]
		bs = append(bs, b)
		if b.alone {
			break
		}
	}
	n.waits.Add(-int64(len(refs)))
	n.unreserve(most - len(refs))
	if len(refs) == 0 {
		return nil
	}
	found, err := n.lease.Fetch(n.work, numbersOf(refs))
	if err != nil {
		return err
	}
	rows, gone := inOrder(refs, found)
	n.unreserve(len(gone)) // they were removed from the table
	n.drop(gone)
	_, bytes := numbers(rows)
	n.hold(bytes)
	pasts := map[int64]past{}
	for i := range rows {
		if b := heads[rows[i].Seq]; b != nil {
			rows[i].Attempts = b.attempts
			pasts[rows[i].Seq] = b.past
		}
	}
	rows, buried, unread := unreadable(rows)
	if err := n.bury(buried, unread); err != nil {
		return err
	}
	if len(rows) == 0 {
		return n.apply(verdict{}, nil, bs)
	}
	n.publish(s, awayLast(n.Relay, &n.away, rows, theRow, len(rows)), bs, pasts)
	return nil
}

// take returns the first rows of a blockade: up to most of them, and as
// many as there is room for their bytes, but at least one.
func (b *blockade) take(most int, room *int) []Ref {
	if b.alone {
		most = 1
	}
	var refs []Ref
	for _, w := range b.waits[:min(len(b.waits), most)] {
		if *room -= w.bytes; len(refs) > 0 && *room < 0 {
			break
		}
		refs = append(refs, w.Ref)
	}
	return refs
}

func numbersOf(refs []Ref) []int64 {
	seqs := make([]int64, len(refs))
	for i := range refs {
		seqs[i] = refs[i].Seq
	}
	return seqs
}

// inOrder sorts rows in the order of their refs, and lists the numbers without a
// row. A row of which only the number matches belongs to a table that was recreated since, and
// does not count.
func inOrder(refs []Ref, found []Row) (rows []Row, gone []int64) {
	at := make(map[int64]int, len(found))
	for i := range found {
		at[found[i].Seq] = i
	}
	rows = make([]Row, 0, len(found))
	for _, ref := range refs {
		if i, ok := at[ref.Seq]; ok && found[i].ID == ref.ID {
			rows = append(rows, found[i])
		} else {
			gone = append(gone, ref.Seq)
		}
	}
	return rows, gone
}

// apply records a verdict on the rows in the database and in memory.
func (n *lane) apply(v verdict, rows []Row, bs []*blockade) error {
	if len(v.delivered) > 0 {
		n.lead.delivered(v.delivered)
	}
	if err := n.bury(v.buried, v.gone); err != nil {
		return err
	}
	if len(v.parked) > 0 {
		if err := n.lease.Park(n.work, v.parked); err != nil {
			return err
		}
		n.rec.retries.Add(uint64(len(v.parked)))
	}
	if bs != nil {
		n.reblock(v, rows, bs)
		return nil
	}
	for i, row := range v.failed {
		n.block(row, v.delays[i], nil)
	}
	for i, row := range v.held {
		n.block(row, v.holds[i].delay, &v.holds[i])
	}
	n.putBack(v.back)
	return nil
}

// reblock removes blockades, or renews them with the rows that remain.
func (n *lane) reblock(v verdict, rows []Row, bs []*blockade) {
	type outcome struct {
		attempts int
		delay    time.Duration
		hold     *hold
		back     bool
	}
	left := make(map[int64]outcome, len(v.failed)+len(v.held)+len(v.back))
	for i, row := range v.failed {
		left[row.Seq] = outcome{row.Attempts, v.delays[i], nil, false}
	}
	for i, row := range v.held {
		left[row.Seq] = outcome{row.Attempts, v.holds[i].delay, &v.holds[i], false}
	}
	for _, row := range v.back {
		left[row.Seq] = outcome{attempts: row.Attempts, back: true}
	}
	again := map[*blockade][]waiting{}
	first := map[*blockade]outcome{}
	owner := n.ownerOf(bs)
	var alone []Row // back, and in no blockade: a slow call returned them
	for i := range rows {
		o, ok := left[rows[i].Seq]
		if !ok {
			continue
		}
		b := owner(&rows[i])
		if b == nil {
			row := rows[i]
			row.Attempts = o.attempts
			if o.back {
				alone = append(alone, row)
			} else {
				n.block(row, o.delay, o.hold)
			}
			continue
		}
		if len(again[b]) == 0 {
			first[b] = o
		}
		again[b] = append(again[b], waitingOf(&rows[i]))
		n.release([]int64{rows[i].Seq}, len(rows[i].Payload), false)
	}
	now := time.Now()
	for _, b := range bs {
		o := first[b]
		n.waits.Add(int64(len(again[b])))
		b.waits = append(again[b], b.waits...)
		b.attempts, b.due = o.attempts, now.Add(o.delay)
		away, past := b.away, b.past
		if b.heldFor(n, o.hold); o.hold == nil {
			b.dest = ""
		}
		if o.back { // unchanged
			b.away, b.past = away, past
		}
		if len(b.waits) == 0 {
			delete(n.blocked, b.key)
			continue
		}
		n.enlist(b)
	}
	n.putBack(alone)
}

// enlist adds a blockade to its stream.
func (n *lane) enlist(b *blockade) {
	heap.Push(&n.streamOf(b).due, b)
	n.count(b, 1)
}

// count adds a blockade to the gauges, or subtracts it.
func (n *lane) count(b *blockade, by int64) {
	b.waiting = by > 0
	n.rec.parked.Add(by)
	n.rec.deferred.Add(by * int64(len(b.waits)-1))
}

// ownerOf finds the blockade of a row: that of its key, or the one that holds only that
// row.
func (n *lane) ownerOf(bs []*blockade) func(*Row) *blockade {
	alone := map[int64]*blockade{}
	for _, b := range bs {
		if b.key == "" {
			alone[b.head] = b
		}
	}
	return func(row *Row) *blockade {
		if b := alone[row.Seq]; b != nil {
			return b
		}
		return n.blocked[row.Key]
	}
}

// putBack puts rows at the head of the queue, or behind the blockade of their
// key.
func (n *lane) putBack(rows []Row) {
	var head []item
	for _, row := range rows {
		if b := n.blockadeOf(&row); b != nil {
			n.postpone(b, row)
		} else {
			head = append(head, item{Row: row})
		}
	}
	if len(head) > 0 {
		n.queue = append(head, n.queue...)
	}
}

// bury moves rows to the dead letters.
func (n *lane) bury(burials []Burial, rows []Row) error {
	if len(burials) == 0 {
		return nil
	}
	if err := n.lease.Bury(n.work, burials); err != nil {
		return err
	}
	seqs, bytes := numbers(rows)
	n.logBuried(n.log, burials, rows)
	n.release(seqs, bytes, true)
	return nil
}

// retryPause is the pause before due rows that found no room are tried again.
const retryPause = 5 * time.Millisecond

// blockades is a heap by due time.
type blockades []*blockade

func (h blockades) Len() int           { return len(h) }
func (h blockades) Less(i, j int) bool { return h[i].due.Before(h[j].due) }
func (h blockades) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *blockades) Push(x any)        { *h = append(*h, x.(*blockade)) }

func (h *blockades) Pop() any {
	old := *h
	b := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return b
}
