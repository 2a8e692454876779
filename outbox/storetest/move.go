package storetest

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/weirdb/weir/outbox"
)

func promote(s *suite) {
	store := s.migrated(outbox.Plan{})
	l := s.lead(store, 0)
	if moved, next, err := store.Promote(s.ctx(), 10); err != nil || moved != 0 || next >= 0 {
		s.Fatalf("promote nothing: %d, %v, %v", moved, next, err)
	}
	now := time.Now()
	msgs := messages(5)
	for i, ago := range []time.Duration{time.Minute, 3 * time.Minute, 2 * time.Minute, -time.Hour, -2 * time.Hour} {
		msgs[i].AvailableAt = now.Add(-ago)
		msgs[i].Headers = map[string]string{"h": "v"}
		msgs[i].DedupKey = "d"
	}
	s.enqueue(msgs...)
	if rows := s.read(l, 0); len(rows) != 0 {
		s.Fatalf("%d scheduled messages are pending", len(rows))
	}
	// The earliest first, whatever the order of the inserts.
	moved, next, err := store.Promote(s.ctx(), 2)
	s.check(err)
	if moved != 2 || next != 0 {
		s.Errorf("promoted %d, next in %v; want 2 and another at once", moved, next)
	}
	sameMessages(s.T, s.read(l, 0), []outbox.Message{msgs[1], msgs[2]})
	moved, next, err = store.Promote(s.ctx(), 100)
	s.check(err)
	if moved != 1 || next < 50*time.Minute || next > 61*time.Minute {
		s.Errorf("promoted %d, next in %v; want 1 and an hour", moved, next)
	}
	rows := s.read(l, 0)
	sameMessages(s.T, rows, []outbox.Message{msgs[1], msgs[2], msgs[0]})
	for _, row := range rows {
		if time.Since(row.CreatedAt).Abs() > time.Hour {
			s.Errorf("created at %v", row.CreatedAt)
		}
	}
	if n := s.count(outbox.DefaultTable + outbox.ScheduledSuffix); n != 2 {
		s.Errorf("%d are still scheduled, want 2", n)
	}
}

// promoteFarAhead schedules a message for a time that is too far away for a time.Duration.
func promoteFarAhead(s *suite) {
	store := s.migrated(outbox.Plan{})
	msgs := messages(2)
	msgs[0].AvailableAt = time.Now().Add(-time.Minute)
	msgs[1].AvailableAt = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)
	s.enqueue(msgs...)
	if moved, next, err := store.Promote(s.ctx(), 10); err != nil || moved != 1 || next < 23*time.Hour || next > 24*time.Hour {
		s.Errorf("promoted %d, next in %v, %v; want 1 and a day", moved, next, err)
	}
}

func promoteTwoAtOnce(s *suite) {
	store, other := s.migrated(outbox.Plan{}), s.Open(s.T, "")
	l := s.lead(store, 0)
	msgs := messages(200)
	for i := range msgs {
		msgs[i].AvailableAt = time.Now().Add(-time.Hour)
	}
	s.enqueue(msgs...)
	var wg sync.WaitGroup
	totals := make([]int, 4)
	for i := range totals {
		st := store
		if i%2 == 1 {
			st = other
		}
		wg.Go(func() {
			for {
				n, next, err := st.Promote(s.ctx(), 7)
				if err != nil {
					s.Error("promote:", err)
					return
				}
				totals[i] += n
				if n == 0 && next < 0 {
					return
				}
			}
		})
	}
	wg.Wait()
	sum := 0
	for _, n := range totals {
		sum += n
	}
	rows := s.read(l, 0)
	ids := map[outbox.ID]bool{}
	for i := range rows {
		ids[rows[i].ID] = true
	}
	if sum != 200 || len(rows) != 200 || len(ids) != 200 {
		s.Errorf("moved %d, pending %d, different ones %d; want 200 each", sum, len(rows), len(ids))
	}
}

// claims reports whether the database supports Claim, and checks the store's error if it does not.
func (s *suite) claims(store outbox.Store) bool {
	s.Helper()
	d, err := store.Describe(s.ctx())
	s.check(err)
	if d.SkipLocks != s.SkipLocked {
		s.Errorf("the description says %v of SKIP LOCKED", d.SkipLocks)
	}
	if s.SkipLocked {
		return true
	}
	if _, err := store.Claim(s.ctx(), outbox.ClaimRequest{Limit: 1}); !errors.Is(err, outbox.ErrNoSkipLocked) {
		s.Errorf("claim: %v, want %v", err, outbox.ErrNoSkipLocked)
	}
	return false
}

func (s *suite) claim(store outbox.Store, limit int) outbox.Claim {
	s.Helper()
	c, err := store.Claim(s.ctx(), outbox.ClaimRequest{Limit: limit})
	if err != nil {
		s.Fatal("claim:", err)
	}
	s.Cleanup(func() { _ = c.Release() })
	return c
}

func claim(s *suite) {
	for _, layout := range s.layouts() {
		store := s.Open(s.T, "claim_"+layout.String())
		_, err := store.Migrate(s.ctx(), outbox.Plan{Layout: layout})
		s.check(err)
		if !s.claims(store) {
			return
		}
		msgs := messages(6)
		s.check(outbox.Enqueue(s.ctx(), s.Tx(s.DB).Table("claim_"+layout.String()), msgs...))
		c := s.claim(store, 100)
		rows := c.Rows()
		sameMessages(s.T, rows, msgs)
		seqs := seqsOf(rows)
		s.check(c.Finish(s.ctx(), seqs[:2],
			[]outbox.Parking{{Seq: seqs[2], ID: msgs[2].ID, Attempts: 1, Delay: 0, Error: "once"}, {Seq: seqs[3], ID: msgs[3].ID, Attempts: 1, Delay: time.Hour, Error: "later"}},
			[]outbox.Burial{{Seq: seqs[4], ID: msgs[4].ID, Attempts: 1, Reason: "rejected", Error: "never"}}))
		s.check(c.Release())

		// The parked row whose delay is over, with its attempts, and the row that Finish did
		// not name.
		c = s.claim(store, 100)
		rows = c.Rows()
		if !slices.Equal(seqsOf(rows), []int64{seqs[2], seqs[5]}) || rows[0].Attempts != 1 || rows[1].Attempts != 0 {
			s.Fatalf("%v: claimed %+v, want numbers %d and %d", layout, rows, seqs[2], seqs[5])
		}
		s.check(c.Finish(s.ctx(), nil, []outbox.Parking{{Seq: seqs[2], ID: msgs[2].ID, Attempts: 2, Error: "twice"}}, nil))
		c = s.claim(store, 1)
		if rows = c.Rows(); len(rows) != 1 || rows[0].Attempts != 2 {
			s.Fatalf("%v: claimed %+v, want one row with 2 attempts", layout, rows)
		}
		s.check(c.Finish(s.ctx(), []int64{seqs[2]}, nil, nil))
		status, err := store.Status(s.ctx())
		s.check(err)
		if status.Dead != 1 || status.Pending != 2 || status.Parked != 1 {
			s.Errorf("%v: status %+v, want 1 dead, 2 pending of which 1 parked", layout, status)
		}
	}
}

// layouts are the layouts to test claims with.
func (s *suite) layouts() []outbox.Layout { return []outbox.Layout{outbox.Queue, outbox.History} }

func claimNeverShares(s *suite) {
	store := s.migrated(outbox.Plan{})
	if !s.claims(store) {
		return
	}
	s.enqueue(messages(10)...)
	a := s.claim(store, 4)
	b := s.claim(s.Open(s.T, ""), 4)
	c := s.claim(store, 4)
	all := slices.Concat(seqsOf(a.Rows()), seqsOf(b.Rows()), seqsOf(c.Rows()))
	slices.Sort(all)
	if len(all) != 10 || len(slices.Compact(all)) != 10 {
		s.Fatalf("claims of 10 rows: %v", all)
	}
	s.check(b.Finish(s.ctx(), seqsOf(b.Rows()), nil, nil))
	s.check(a.Release())
	again := s.claim(store, 10)
	if got := len(again.Rows()); got != 4 {
		s.Errorf("%d rows after one claim was released, want its 4", got)
	}

	// Concurrent claims get every row exactly once.
	s.check(again.Release())
	s.check(c.Release())
	s.enqueue(messages(500)...)
	var mu sync.Mutex
	times := map[int64]int{}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				c, err := store.Claim(s.ctx(), outbox.ClaimRequest{Limit: 13})
				if err != nil {
					s.Error("claim:", err)
					return
				}
				seqs := seqsOf(c.Rows())
				if err := c.Finish(s.ctx(), seqs, nil, nil); err != nil {
					s.Error("finish:", err)
					return
				}
				mu.Lock()
				for _, seq := range seqs {
					times[seq]++
				}
				done := len(times) == 506
				mu.Unlock()
				if done {
					return
				}
			}
		})
	}
	wg.Wait()
	for seq, n := range times {
		if n != 1 {
			s.Errorf("number %d was delivered %d times", seq, n)
		}
	}
}

func claimRollback(s *suite) {
	store := s.migrated(outbox.Plan{})
	if !s.claims(store) {
		return
	}
	if rows := s.claim(store, 5).Rows(); len(rows) != 0 {
		s.Fatalf("claimed %d rows of an empty table", len(rows))
	}
	s.enqueue(messages(5)...)
	c := s.claim(store, 5)
	if len(c.Rows()) != 5 {
		s.Fatalf("claimed %d rows, want 5", len(c.Rows()))
	}
	s.check(c.Release())
	s.check(c.Release())
	if err := c.Finish(s.ctx(), seqsOf(c.Rows()), nil, nil); err == nil {
		s.Error("a claim that was released can be finished")
	}
	if got := len(s.claim(store, 5).Rows()); got != 5 {
		s.Errorf("claimed %d rows after the release, want 5", got)
	}
}

func claimWindow(s *suite) {
	store := s.migrated(outbox.Plan{})
	if !s.claims(store) {
		return
	}
	for _, layout := range s.layouts() {
		flat := s.Open(s.T, "flat_"+layout.String())
		_, err := flat.Migrate(s.ctx(), outbox.Plan{Layout: layout})
		s.check(err)
		if _, err := flat.Claim(s.ctx(), outbox.ClaimRequest{Limit: 1, Window: time.Hour}); !errors.Is(err, outbox.ErrWindowNeedsPartitions) {
			s.Errorf("window on a table without partitions (%v): %v, want %v", layout, err, outbox.ErrWindowNeedsPartitions)
		}
	}
	if !s.Partitions {
		return
	}
	const table = "windowed"
	parted := s.Open(s.T, table)
	_, err := parted.Migrate(s.ctx(), outbox.Plan{Layout: outbox.History, Partition: daily})
	s.check(err)
	s.check(outbox.Enqueue(s.ctx(), s.Tx(s.DB).Table(table), messages(3)...))
	c, err := parted.Claim(s.ctx(), outbox.ClaimRequest{Limit: 10, Window: time.Hour})
	s.check(err)
	if len(c.Rows()) != 3 {
		s.Errorf("%d of 3 rows are inside the window", len(c.Rows()))
	}
	s.check(c.Finish(s.ctx(), seqsOf(c.Rows()), nil, nil))
}

// daily is the usual partition plan.
var daily = outbox.PartitionSpec{Period: outbox.Daily, Ahead: 72 * time.Hour, Lookback: 48 * time.Hour}

func tail(s *suite) {
	store := s.migrated(outbox.Plan{Shards: 2})
	l := s.lead(store, 0)
	follow, err := l.Tail(s.ctx())
	if !s.Tail {
		var refusal *outbox.TailError
		if !errors.As(err, &refusal) || refusal.Reason == "" {
			s.Errorf("tail: %v, want a TailError with its reason", err)
		}
		if d, err := store.Describe(s.ctx()); err != nil || d.CanTail == nil {
			s.Errorf("the description says that the log can be followed (%v)", err)
		}
		return
	}
	s.check(err)
	if d, err := store.Describe(s.ctx()); err != nil || d.CanTail != nil {
		s.Errorf("the description says of following the log: %v, %v", d.CanTail, err)
	}
	defer func() { s.check(follow.Close()) }()
	msgs := messages(100)
	late := s.begin()
	s.enqueueIn(late, msgs[0])
	lost := s.begin()
	s.enqueueIn(lost, message(1000))
	s.enqueue(msgs[1:]...)
	s.check(lost.Rollback())
	s.commit(late)
	want := s.read(l, 0) // by number; the tail has the late one at the end
	if len(want) > 0 && want[0].ID == msgs[0].ID {
		want = append(want[1:], want[0])
	}
	var got []outbox.Row
	for len(got) < len(want) {
		rows, err := follow.Next(s.ctx())
		s.check(err)
		got = append(got, rows...)
	}
	if !slices.Equal(seqsOf(got), seqsOf(want)) {
		s.Fatalf("the tail yields %v, want %v", seqsOf(got), seqsOf(want))
	}
	for i := range got {
		sameMessage(s.T, got[i].Message, want[i].Message)
		if !got[i].CreatedAt.Equal(want[i].CreatedAt) {
			s.Errorf("created at %v, want %v", got[i].CreatedAt, want[i].CreatedAt)
		}
	}
}
