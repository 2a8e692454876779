package outbox

import (
	"container/heap"
	"sync"
	"time"
)

// lane publishes the messages of some keys, one Publish call at a time, each
// with all that waits (up to Config.Batch): while a call is on its way, the
// next group gathers. One goroutine owns everything but the inbox.
type lane struct {
	*lead

	mu    sync.Mutex
	inbox []item
	bell  chan struct{}

	queue   []item // to be published, in order
	blocked map[string]*blockade
	due     blockades // all blockades that wait, by moment
	broker  broker
	msgs    []Message // scratch
}

// item is a row on its way. A due moment says that it failed before.
type item struct {
	Row
	due time.Time
}

// blockade is a message that waits for another attempt and, if it has a key,
// the later ones of its key behind it, as they came: one that committed late has
// a smaller number than those before it. Only numbers and sizes are kept: the
// rows are read again when the moment comes.
type blockade struct {
	key      string // empty: the message stands alone
	waits    []waiting
	attempts int // of the first
	due      time.Time
}

// waiting is a row that waits, and the bytes of its payload.
type waiting struct {
	seq   int64
	bytes int
}

func newLane(l *lead) *lane {
	return &lane{
		lead: l, bell: make(chan struct{}, 1), blocked: map[string]*blockade{}, broker: newBroker(),
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

// forget takes what this lane still holds out of the gauges. The lane has ended.
func (n *lane) forget() {
	n.broker.forget(n.Relay)
	n.rec.parked.Add(-int64(len(n.due)))
	for _, b := range n.due {
		n.rec.deferred.Add(-int64(len(b.waits) - 1))
	}
}

// run publishes until stop or work ends.
func (n *lane) run() {
	for {
		n.mu.Lock()
		n.queue = append(n.queue, n.inbox...)
		clear(n.inbox)
		n.inbox = n.inbox[:0]
		n.mu.Unlock()
		if n.live.Err() != nil {
			return
		}
		if err := n.step(); err != nil {
			n.fail(err)
			return
		}
	}
}

// step publishes once, or waits for something to publish.
func (n *lane) step() error {
	if len(n.due) > 0 && !time.Now().Before(n.due[0].due) {
		return n.retry(heap.Pop(&n.due).(*blockade))
	}
	batch, err := n.next()
	if err != nil {
		return err
	}
	if len(batch) > 0 {
		return n.publish(batch, nil)
	}
	if len(n.queue) > 0 {
		return nil // all that was taken went elsewhere
	}
	var due <-chan time.Time
	if len(n.due) > 0 {
		t := time.NewTimer(time.Until(n.due[0].due))
		defer t.Stop()
		due = t.C
	}
	select {
	case <-n.bell:
	case <-due:
	case <-n.live.Done():
	}
	return nil
}

// next takes from the queue what may be published now. Rows whose key is
// blocked go behind the blockade, rows that cannot be read are buried.
func (n *lane) next() ([]Row, error) {
	most := n.limit.most(n.cfg.Batch)
	batch := make([]Row, 0, min(most, len(n.queue)))
	taken := 0
	for ; taken < len(n.queue) && len(batch) < most; taken++ {
		it := &n.queue[taken]
		switch {
		case n.blockadeOf(&it.Row) != nil:
			n.postpone(n.blockadeOf(&it.Row), it.Row)
		case it.due.After(time.Now()):
			n.block(it.Row, time.Until(it.due))
		default:
			batch = append(batch, it.Row)
		}
	}
	n.consume(taken)
	batch, buried, gone := unreadable(batch)
	return batch, n.bury(buried, gone)
}

// consume drops the first items of the queue.
func (n *lane) consume(taken int) {
	rest := copy(n.queue, n.queue[taken:])
	clear(n.queue[rest:])
	n.queue = n.queue[:rest]
}

// blockadeOf is the blockade of the row's key.
func (n *lane) blockadeOf(row *Row) *blockade {
	if row.Key == "" || n.cfg.Unordered {
		return nil
	}
	return n.blocked[row.Key]
}

// block makes the row, and later ones of its key, wait.
func (n *lane) block(row Row, d time.Duration) {
	b := &blockade{waits: []waiting{{row.Seq, len(row.Payload)}}, attempts: row.Attempts, due: time.Now().Add(d)}
	if row.Key != "" && !n.cfg.Unordered {
		b.key = row.Key
		n.blocked[b.key] = b
	}
	heap.Push(&n.due, b)
	n.rec.parked.Add(1)
	n.release([]int64{row.Seq}, len(row.Payload), false)
}

// postpone puts a row behind a blockade.
func (n *lane) postpone(b *blockade, row Row) {
	b.waits = append(b.waits, waiting{row.Seq, len(row.Payload)})
	n.rec.deferred.Add(1)
	n.release([]int64{row.Seq}, len(row.Payload), false)
}

// retry publishes what waited, the failed message first.
func (n *lane) retry(b *blockade) error {
	n.rec.parked.Add(-1)
	n.rec.deferred.Add(-int64(len(b.waits) - 1))
	take := n.take(b)
	found, err := n.lease.Fetch(n.work, take)
	if err != nil {
		return err
	}
	n.hold(found)
	rows, gone := inOrder(take, found)
	n.drop(gone) // somebody has removed them
	if len(rows) > 0 && rows[0].Seq == take[0] {
		rows[0].Attempts = b.attempts
	}
	b.waits = b.waits[len(take):]
	rows, buried, unread := unreadable(rows)
	if err := n.bury(buried, unread); err != nil {
		return err
	}
	return n.publish(rows, b)
}

// take is the numbers of the first rows of a blockade: one, and as many more as
// fit into the lane's share of half of the bytes in flight. What is in flight
// beside them is over the bound by no more than that.
func (n *lane) take(b *blockade) []int64 {
	most := min(len(b.waits), n.limit.most(n.cfg.Batch))
	room := n.cfg.MaxInFlightBytes / 2 / len(n.lanes)
	var seqs []int64
	for i, w := range b.waits[:most] {
		if room -= w.bytes; i > 0 && room < 0 {
			break
		}
		seqs = append(seqs, w.seq)
	}
	return seqs
}

// inOrder puts rows in the order of the numbers, and lists those without a row.
func inOrder(seqs []int64, found []Row) (rows []Row, gone []int64) {
	at := make(map[int64]int, len(found))
	for i := range found {
		at[found[i].Seq] = i
	}
	rows = make([]Row, 0, len(found))
	for _, seq := range seqs {
		if i, ok := at[seq]; ok {
			rows = append(rows, found[i])
		} else {
			gone = append(gone, seq)
		}
	}
	return rows, gone
}

// publish gives rows to the sink and sees to what becomes of each. b is the
// blockade that they waited in, without them, or nil.
func (n *lane) publish(rows []Row, b *blockade) error {
	if len(rows) == 0 {
		return n.apply(verdict{}, b)
	}
	if n.limit.wait(n.live, len(rows)) != nil {
		return nil // abandoned: they stay pending
	}
	n.msgs = messages(n.msgs[:0], rows)
	began := time.Now()
	errs := n.sink.Publish(n.work, n.msgs)
	v, err := judge(n.work, n.cfg, rows, errs)
	if err != nil {
		return err
	}
	n.rec.published(time.Since(began), len(rows), v.delivered)
	if err := n.apply(v, b); err != nil {
		return err
	}
	n.pauseForBroker(v.outage)
	return nil
}

// apply notes a verdict in the database and in memory.
func (n *lane) apply(v verdict, b *blockade) error {
	if len(v.delivered) > 0 {
		n.lead.delivered(numbers(v.delivered))
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
	if b != nil {
		n.reblock(b, v)
		return nil
	}
	for i, row := range v.failed {
		n.block(row, v.delays[i])
	}
	n.putBack(v.back)
	return nil
}

// reblock lets a blockade go, or renews it with what is left of it.
func (n *lane) reblock(b *blockade, v verdict) {
	var left []waiting
	b.attempts, b.due = 0, time.Now()
	for _, rows := range [][]Row{v.failed, v.back} { // at most one failed: the rest was held back
		for _, row := range rows {
			left = append(left, waiting{row.Seq, len(row.Payload)})
		}
		seqs, bytes := numbers(rows)
		n.release(seqs, bytes, false)
	}
	if len(v.failed) > 0 {
		b.attempts, b.due = v.failed[0].Attempts, b.due.Add(v.delays[0])
	} else if len(v.back) > 0 {
		b.attempts = v.back[0].Attempts
	}
	b.waits = append(left, b.waits...)
	if len(b.waits) == 0 {
		delete(n.blocked, b.key)
		return
	}
	heap.Push(&n.due, b)
	n.rec.parked.Add(1)
	n.rec.deferred.Add(int64(len(b.waits) - 1))
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

// pauseForBroker waits before the next call when the last one met no broker.
func (n *lane) pauseForBroker(outage error) {
	n.broker.note(n.Relay, n.log, outage)
	if outage != nil {
		n.broker.pause(n.live, outage)
	}
}

// blockades is a heap by moment.
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
