package outbox

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"
)

// memStore is a model of a database: transactions take numbers when they insert, and commit in
// any order; a read sees committed rows.
type memStore struct {
	mu        sync.Mutex
	next      int64
	rows      map[int64]*memRow // committed or not
	open      map[*memTx]struct{}
	dead      []Burial
	deadRows  []Row
	parked    map[int64]memNote
	scheduled []memLater
	leaders   map[int]*memLease
	tails     map[*memTail]struct{}
	shards    int
	noTail    error
	fail      func(op string) error    // injected
	held      map[string]chan struct{} // by operation: it waits until the channel is closed
	longest   int                      // page
	kept      int64                    // bytes of the log, for every tail
	mute      bool                     // the log shows nothing
	join      bool                     // a read treats all gaps as one range
}

type memRow struct {
	Row
	shard     int
	committed bool
	claimed   bool
}

type memNote struct {
	attempts int
	due      time.Time
	err      string
}

type memLater struct {
	msg Message
	due time.Time
}

type memTx struct {
	s    *memStore
	rows []*memRow
}

func newMemStore() *memStore {
	return &memStore{
		rows: map[int64]*memRow{}, open: map[*memTx]struct{}{}, parked: map[int64]memNote{},
		leaders: map[int]*memLease{}, tails: map[*memTail]struct{}{}, shards: 1, noTail: &TailError{"the model was told to have none"},
	}
}

func (s *memStore) begin() *memTx {
	s.mu.Lock()
	defer s.mu.Unlock()
	tx := &memTx{s: s}
	s.open[tx] = struct{}{}
	return tx
}

func (tx *memTx) insert(m Message) int64 {
	tx.s.mu.Lock()
	defer tx.s.mu.Unlock()
	tx.s.next++
	if m.ID.IsZero() {
		m.ID = NewID()
	}
	r := &memRow{Row: Row{Message: m, Seq: tx.s.next, CreatedAt: time.Now()}}
	r.shard = Bucket(m.Key, m.ID) * tx.s.shards / Buckets
	tx.s.rows[r.Seq] = r
	tx.rows = append(tx.rows, r)
	return r.Seq
}

func (tx *memTx) end(commit bool) {
	tx.s.mu.Lock()
	defer tx.s.mu.Unlock()
	delete(tx.s.open, tx)
	byShard := map[int][]Row{}
	for _, r := range tx.rows {
		if commit {
			r.committed = true
			byShard[r.shard] = append(byShard[r.shard], r.Row)
		} else {
			delete(tx.s.rows, r.Seq)
		}
	}
	for t := range tx.s.tails {
		if tx.s.mute {
			continue
		}
		if rows := byShard[t.shard]; len(rows) > 0 {
			t.queue = append(t.queue, rows...)
			ring(t.bell)
		}
	}
}

func (s *memStore) put(msgs ...Message) {
	tx := s.begin()
	for _, m := range msgs {
		tx.insert(m)
	}
	tx.end(true)
}

func (s *memStore) inject(op string) error {
	s.mu.Lock()
	held := s.held[op]
	s.mu.Unlock()
	if held != nil {
		<-held
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail == nil {
		return nil
	}
	return s.fail(op)
}

// buried counts the dead letters.
func (s *memStore) buried() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.dead)
}

// pending counts the committed rows and the scheduled messages. Tests call it each virtual
// millisecond, so it visits only the rows of open transactions.
func (s *memStore) pending() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.scheduled) + len(s.rows)
	for tx := range s.open {
		for _, r := range tx.rows {
			if s.rows[r.Seq] == r {
				n--
			}
		}
	}
	return n
}

func (s *memStore) Name() string                                    { return DefaultTable }
func (s *memStore) Migrate(context.Context, Plan) ([]string, error) { return nil, nil }
func (s *memStore) Status(context.Context) (Status, error)          { return Status{}, nil }
func (s *memStore) List(context.Context, Query) ([]Listed, error)   { return nil, nil }
func (s *memStore) Requeue(context.Context, Query) (int64, error)   { return 0, nil }
func (s *memStore) Purge(context.Context, Query) (int64, error)     { return 0, nil }
func (s *memStore) Close() error                                    { return nil }

func (s *memStore) Describe(context.Context) (Description, error) {
	err := s.inject("describe")
	s.mu.Lock()
	defer s.mu.Unlock()
	return Description{Version: 1, Shards: s.shards, SkipLocks: true, Server: "model"}, err
}

func (s *memStore) Promote(_ context.Context, limit int) (int, time.Duration, error) {
	s.mu.Lock()
	var due []Message
	next := time.Duration(-1)
	slices.SortStableFunc(s.scheduled, func(a, b memLater) int { return a.due.Compare(b.due) })
	for len(s.scheduled) > 0 && len(due) < limit {
		if d := time.Until(s.scheduled[0].due); d > 0 {
			next = d
			break
		}
		due = append(due, s.scheduled[0].msg)
		s.scheduled = s.scheduled[1:]
	}
	s.mu.Unlock()
	if len(due) > 0 {
		s.put(due...)
	}
	return len(due), next, nil
}

func (s *memStore) Lead(_ context.Context, shard int) (Lease, error) {
	if err := s.inject("lead"); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leaders[shard] != nil {
		return nil, ErrHeld
	}
	l := &memLease{s: s, shard: shard, lost: make(chan struct{})}
	s.leaders[shard] = l
	return l, nil
}

// memLease is a leadership in the model.
type memLease struct {
	s     *memStore
	shard int
	lost  chan struct{}
}

// kill ends the session, as a server would.
func (l *memLease) kill() {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	if l.s.leaders[l.shard] == l {
		delete(l.s.leaders, l.shard)
		close(l.lost)
	}
}

func (l *memLease) op(name string) error {
	if err := l.s.inject(name); err != nil {
		return err
	}
	select {
	case <-l.lost:
		return ErrDeposed
	default:
		return nil
	}
}

func (l *memLease) Read(_ context.Context, req ReadRequest) (Page, error) {
	if err := l.op("read"); err != nil {
		return Page{}, err
	}
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	if n := len(req.Gaps); l.s.join && n > 0 {
		req.Gaps = []Range{{req.Gaps[0].First, req.Gaps[n-1].Last}}
	}
	var seqs []int64
	for seq := range l.s.rows {
		if seq > req.After || slices.ContainsFunc(req.Gaps, func(g Range) bool { return g.First <= seq && seq <= g.Last }) {
			seqs = append(seqs, seq)
		}
	}
	slices.Sort(seqs)
	var rows []Row
	more := false
	for _, seq := range seqs {
		r := l.s.rows[seq]
		if !r.committed || r.shard != l.shard {
			continue
		}
		if more = len(rows) == req.Limit; more {
			break
		}
		rows = append(rows, r.Row)
	}
	l.s.longest = max(l.s.longest, len(rows))
	return Page{rows, more}, nil
}

func (l *memLease) Mark(context.Context) (Mark, error) {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	open := make([]*memTx, 0, len(l.s.open))
	for tx := range l.s.open {
		open = append(open, tx)
	}
	return open, nil
}

func (l *memLease) Settled(_ context.Context, m Mark) (bool, error) {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	return !slices.ContainsFunc(m.([]*memTx), func(tx *memTx) bool {
		_, open := l.s.open[tx]
		return open
	}), nil
}

func (l *memLease) Fetch(_ context.Context, seqs []int64) ([]Row, error) {
	if err := l.op("fetch"); err != nil {
		return nil, err
	}
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	var rows []Row
	for _, seq := range seqs {
		if r := l.s.rows[seq]; r != nil && r.committed {
			rows = append(rows, r.Row)
		}
	}
	slices.SortFunc(rows, func(a, b Row) int { return int(a.Seq - b.Seq) })
	return rows, nil
}

func (l *memLease) Pending(_ context.Context, after, last int64, limit int) ([]int64, error) {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	var seqs []int64
	for seq, r := range l.s.rows {
		if seq > after && seq <= last && r.committed && r.shard == l.shard {
			seqs = append(seqs, seq)
		}
	}
	slices.Sort(seqs)
	return seqs[:min(limit, len(seqs))], nil
}

func (l *memLease) Ack(_ context.Context, rows []Ref) error {
	if err := l.op("ack"); err != nil {
		return err
	}
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	for _, row := range rows {
		if r := l.s.rows[row.Seq]; r != nil && r.ID == row.ID {
			delete(l.s.rows, row.Seq)
			delete(l.s.parked, row.Seq)
		}
	}
	return nil
}

func (l *memLease) Park(_ context.Context, ps []Parking) error {
	if err := l.op("park"); err != nil {
		return err
	}
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	for _, p := range ps {
		if r := l.s.rows[p.Seq]; r == nil || r.ID != p.ID {
			continue
		}
		l.s.parked[p.Seq] = memNote{p.Attempts, time.Now().Add(p.Delay), p.Error}
	}
	return nil
}

func (l *memLease) Parked(context.Context) ([]Parking, error) {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	var ps []Parking
	for seq, n := range l.s.parked {
		ps = append(ps, Parking{seq, l.s.rows[seq].ID, n.attempts, time.Until(n.due), n.err})
	}
	return ps, nil
}

func (l *memLease) Bury(_ context.Context, bs []Burial) error {
	if err := l.op("bury"); err != nil {
		return err
	}
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	l.s.buryLocked(bs)
	return nil
}

func (s *memStore) buryLocked(bs []Burial) {
	for _, b := range bs {
		if r := s.rows[b.Seq]; r != nil && r.ID == b.ID {
			s.dead = append(s.dead, b)
			s.deadRows = append(s.deadRows, r.Row)
			delete(s.rows, b.Seq)
			delete(s.parked, b.Seq)
		}
	}
}

func (l *memLease) Lost() <-chan struct{} { return l.lost }

func (l *memLease) Close() error { l.kill(); return nil }

func (l *memLease) Tail(ctx context.Context) (Tail, error) {
	l.s.mu.Lock()
	held := l.s.held["tail"]
	l.s.mu.Unlock()
	if held != nil {
		select {
		case <-held:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if l.s.noTail != nil {
		return nil, l.s.noTail
	}
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	t := &memTail{s: l.s, shard: l.shard, bell: make(chan struct{}, 1), broken: make(chan struct{})}
	l.s.tails[t] = struct{}{}
	return t, nil
}

// memTail yields rows in the order of commits.
type memTail struct {
	s      *memStore
	shard  int
	queue  []Row
	err    error
	bell   chan struct{}
	once   sync.Once
	broken chan struct{}
}

func (t *memTail) Next(ctx context.Context) ([]Row, error) {
	for {
		t.s.mu.Lock()
		rows, err := t.queue, t.err
		t.queue = nil
		t.s.mu.Unlock()
		if len(rows) > 0 || err != nil {
			return rows, err
		}
		select {
		case <-t.bell:
		case <-t.broken:
			return nil, errors.New("the log broke off")
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Kept implements keeper.
func (t *memTail) Kept(context.Context) (int64, error) {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	return t.s.kept, nil
}

func (t *memTail) Close() error {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	delete(t.s.tails, t)
	return nil
}

func (s *memStore) Claim(_ context.Context, req ClaimRequest) (Claim, error) {
	if err := s.inject("claim"); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &memClaim{s: s}
	now := time.Now()
	for _, seq := range slices.Sorted(maps.Keys(s.rows)) {
		if len(c.rows) == req.Limit {
			break
		}
		r := s.rows[seq]
		note, parked := s.parked[seq]
		young := req.Window == 0 || now.Sub(r.CreatedAt) < req.Window
		if !r.committed || r.claimed || !young || parked && now.Before(note.due) {
			continue
		}
		r.claimed = true
		row := r.Row
		row.Attempts = note.attempts
		c.rows = append(c.rows, row)
	}
	return c, nil
}

type memClaim struct {
	s    *memStore
	rows []Row
	done bool
}

func (c *memClaim) Rows() []Row { return c.rows }

func (c *memClaim) Finish(_ context.Context, acked []int64, parked []Parking, buried []Burial) error {
	if err := c.s.inject("finish"); err != nil {
		return err
	}
	c.s.mu.Lock()
	for _, seq := range acked {
		delete(c.s.rows, seq)
		delete(c.s.parked, seq)
	}
	for _, p := range parked {
		c.s.parked[p.Seq] = memNote{p.Attempts, time.Now().Add(p.Delay), p.Error}
	}
	c.s.buryLocked(buried)
	c.s.mu.Unlock()
	return c.Release()
}

func (c *memClaim) Release() error {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if c.done {
		return nil
	}
	c.done = true
	for _, row := range c.rows {
		if r := c.s.rows[row.Seq]; r != nil {
			r.claimed = false
		}
	}
	return nil
}
