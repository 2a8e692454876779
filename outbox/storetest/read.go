package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/weirdb/weir/outbox"
)

func readLimits(s *suite) {
	l := s.lead(s.migrated(outbox.Plan{}), 0)
	msgs := messages(30)
	for i := range msgs {
		msgs[i].Payload = make([]byte, 1000)
	}
	msgs[10].Payload = make([]byte, 100_000)
	s.enqueue(msgs...)
	all := s.read(l, 0)
	sameMessages(s.T, all, msgs)
	for _, c := range []struct{ limit, bytes, want int }{
		{1, 1 << 20, 1},
		{7, 1 << 20, 7},
		{29, 1 << 20, 29},
		{30, 1 << 20, 30},
		{31, 1 << 20, 30},
		{100, 1, 1},       // one row may exceed the bytes
		{100, 3000, 3},    // exactly
		{100, 3999, 3},    // not quite a fourth
		{100, 50_000, 10}, // the large one does not fit
		{100, 110_000, 11},
	} {
		// Twice, since a store may have learned from the first.
		for range 2 {
			page, err := l.Read(s.ctx(), outbox.ReadRequest{Limit: c.limit, MaxBytes: c.bytes})
			s.check(err)
			if len(page.Rows) != c.want {
				s.Errorf("limit %d, %d bytes: %d rows, want %d", c.limit, c.bytes, len(page.Rows), c.want)
			}
			if !slices.Equal(seqsOf(page.Rows), seqsOf(all[:len(page.Rows)])) {
				s.Errorf("limit %d, %d bytes: rows %v are no prefix", c.limit, c.bytes, seqsOf(page.Rows))
			}
			if more := c.want < len(all); page.More != more && c.want != c.limit {
				s.Errorf("limit %d, %d bytes: more: %v", c.limit, c.bytes, page.More)
			}
		}
	}
	// The large one alone at the head.
	page, err := l.Read(s.ctx(), outbox.ReadRequest{After: all[9].Seq, Limit: 100, MaxBytes: 50_000})
	s.check(err)
	if len(page.Rows) != 1 || !page.More {
		s.Errorf("a row larger than the limit: %d rows, more: %v; want it alone", len(page.Rows), page.More)
	}
	// A limit counts the rows of gaps, too, and cuts behind them.
	gaps := []outbox.Range{{First: all[2].Seq, Last: all[3].Seq}, {First: all[6].Seq, Last: all[6].Seq}}
	for limit, want := range map[int][]int64{
		2: {all[2].Seq, all[3].Seq},
		4: {all[2].Seq, all[3].Seq, all[6].Seq, all[21].Seq},
	} {
		page, err := l.Read(s.ctx(), outbox.ReadRequest{After: all[20].Seq, Gaps: gaps, Limit: limit, MaxBytes: 1 << 20})
		s.check(err)
		var got []int64
		for _, row := range page.Rows {
			if row.Seq < all[4].Seq || row.Seq == all[6].Seq || row.Seq > all[20].Seq {
				got = append(got, row.Seq)
			}
		}
		if !page.More {
			s.Errorf("gaps with limit %d: no more", limit)
		}
		if len(page.Rows) > limit || len(got) == limit && !slices.Equal(got, want) {
			s.Errorf("gaps with limit %d: rows %v, want %v", limit, got, want)
		}
	}
}

func readGaps(s *suite) {
	l := s.lead(s.migrated(outbox.Plan{}), 0)
	s.enqueue(messages(50)...)
	all := s.read(l, 0)
	wanted := func(rows []outbox.Row, want []int64) {
		s.Helper()
		got := seqsOf(rows)
		for _, seq := range want {
			if !slices.Contains(got, seq) {
				s.Errorf("number %d is missing in %v", seq, got)
			}
		}
	}
	r := func(i, j int) outbox.Range { return outbox.Range{First: all[i].Seq, Last: all[j].Seq} }
	wanted(s.read(l, all[40].Seq, r(0, 0)), []int64{all[0].Seq, all[41].Seq, all[49].Seq})
	wanted(s.read(l, all[49].Seq, r(3, 5), r(9, 9), r(48, 49)),
		[]int64{all[3].Seq, all[4].Seq, all[5].Seq, all[9].Seq, all[48].Seq, all[49].Seq})
	rows := s.read(l, all[49].Seq+100, outbox.Range{First: all[49].Seq + 1, Last: all[49].Seq + 50})
	if len(rows) != 0 {
		s.Errorf("an empty gap yields %v", seqsOf(rows))
	}
	// Rows before the first gap that are not after it are not returned.
	for _, row := range s.read(l, all[30].Seq, r(10, 12), r(20, 20)) {
		if row.Seq < all[10].Seq || row.Seq > all[20].Seq && row.Seq <= all[30].Seq {
			s.Errorf("number %d is neither after nor between gaps", row.Seq)
		}
	}
}

// readManyGaps reads more gaps than a statement lists.
func readManyGaps(s *suite) {
	l := s.lead(s.migrated(outbox.Plan{}), 0)
	s.enqueue(messages(2000)...)
	all := s.read(l, 0)
	var gaps []outbox.Range
	want := map[int64]bool{}
	for i := 0; i < 1500; i += 3 {
		gaps = append(gaps, outbox.Range{First: all[i].Seq, Last: all[i].Seq})
		want[all[i].Seq] = true
	}
	rows := s.read(l, all[1989].Seq, gaps...)
	for _, row := range rows {
		delete(want, row.Seq)
	}
	if len(want) != 0 {
		s.Errorf("%d of the rows in gaps are missing", len(want))
	}
	if got := rows[len(rows)-1].Seq; got != all[1999].Seq {
		s.Errorf("the last row is %d, want %d", got, all[1999].Seq)
	}
}

// lateCommit tests the classic defect of cursors:
//
//	tx 1   insert 1 ............................ commit
//	tx 2            insert 2, commit
//	relay                            reads 2          reads 1
func lateCommit(s *suite) {
	if s.OneWriter {
		s.oneWriter()
		return
	}
	l := s.lead(s.migrated(outbox.Plan{}), 0)
	early, late := message(1), message(2)
	tx1, tx2 := s.begin(), s.begin()
	s.enqueueIn(tx1, late)
	s.enqueueIn(tx2, early)
	s.commit(tx2)

	rows := s.read(l, 0)
	sameMessages(s.T, rows, []outbox.Message{early})
	after := rows[0].Seq
	mark := s.mark(l)
	s.unsettled(l, mark, "while the transaction of the gap is open")
	s.unsettled(l, mark, "when asked again")
	s.commit(tx1)
	s.settled(l, mark)

	gap := outbox.Range{First: 1, Last: after - 1}
	rows = s.read(l, after, gap)
	sameMessages(s.T, rows, []outbox.Message{late})
	if rows[0].Seq >= after {
		s.Errorf("the late row has number %d, after that of the early one, %d", rows[0].Seq, after)
	}
}

// oneWriter checks databases with one writer: numbers ascend in the order of commits, and a mark is
// settled when no transaction writes.
func (s *suite) oneWriter() {
	s.Helper()
	l := s.lead(s.migrated(outbox.Plan{}), 0)
	var last int64
	for n := range 5 {
		tx := s.begin()
		s.enqueueIn(tx, message(n))
		s.check(tx.Rollback())
		s.enqueue(message(n))
		rows := s.read(l, last)
		if len(rows) != 1 {
			s.Fatalf("%d rows after one commit", len(rows))
		}
		last = rows[0].Seq
		s.settled(l, s.mark(l))
	}
}

func rolledBackGap(s *suite) {
	l := s.lead(s.migrated(outbox.Plan{}), 0)
	if !s.OneWriter {
		tx := s.begin()
		s.enqueueIn(tx, message(1))
		s.enqueue(message(2))
		rows := s.read(l, 0)
		mark := s.mark(l)
		s.unsettled(l, mark, "while the transaction of the gap is open")
		s.check(tx.Rollback())
		s.settled(l, mark)
		if again := s.read(l, rows[0].Seq, outbox.Range{First: 1, Last: rows[0].Seq - 1}); len(again) != 0 {
			s.Fatalf("rows %v of a transaction that was rolled back", seqsOf(again))
		}
	}
	// Part of a transaction is rolled back, the rest commits.
	kept := message(3)
	tx := s.begin()
	_, err := tx.ExecContext(s.ctx(), "SAVEPOINT a")
	s.check(err)
	s.enqueueIn(tx, message(4))
	_, err = tx.ExecContext(s.ctx(), "ROLLBACK TO SAVEPOINT a")
	s.check(err)
	s.enqueueIn(tx, kept)
	var mark outbox.Mark
	if !s.OneWriter {
		mark = s.mark(l)
		s.unsettled(l, mark, "after a savepoint was rolled back, while its transaction is open")
	}
	s.commit(tx)
	if s.OneWriter {
		mark = s.mark(l)
	}
	s.settled(l, mark)
	rows := s.read(l, 0)
	if last := rows[len(rows)-1]; last.ID != kept.ID {
		s.Errorf("the last row is %v, want %v", last.ID, kept.ID)
	}
}

// settledNotOfLaterOnes: a mark includes only the transactions of its time; later ones do not delay
// it.
func settledNotOfLaterOnes(s *suite) {
	if s.OneWriter {
		s.oneWriter()
		return
	}
	l := s.lead(s.migrated(outbox.Plan{}), 0)
	first := s.begin()
	s.enqueueIn(first, message(1))
	mark := s.mark(l)
	second := s.begin()
	s.enqueueIn(second, message(2))
	s.commit(first)
	s.settled(l, mark)
	s.commit(second)
	s.settled(l, s.mark(l))
}

func (s *suite) mark(l outbox.Lease) outbox.Mark {
	s.Helper()
	m, err := l.Mark(s.ctx())
	s.check(err)
	return m
}

func (s *suite) unsettled(l outbox.Lease, m outbox.Mark, when string) {
	s.Helper()
	ok, err := l.Settled(s.ctx(), m)
	s.check(err)
	if ok {
		s.Errorf("settled %s", when)
	}
}

// settled waits until the mark is settled: some databases show that only some time after the commit.
func (s *suite) settled(l outbox.Lease, m outbox.Mark) {
	s.Helper()
	for deadline := time.Now().Add(patience); ; {
		ok, err := l.Settled(s.ctx(), m)
		s.check(err)
		if ok {
			return
		}
		if time.Now().After(deadline) {
			s.Fatal("the mark is never settled")
		}
		time.Sleep(time.Millisecond)
	}
}

// oneSnapshot runs producers that insert pairs of a key, the second message in a later transaction
// than the first. No page that includes all gaps may have the second without the first.
func oneSnapshot(s *suite) {
	l := s.lead(s.migrated(outbox.Plan{}), 0)
	const producers, pairs = 4, 60
	ctx, cancel := context.WithCancel(s.ctx())
	defer cancel()
	var wg sync.WaitGroup
	errs := make(chan error, producers)
	for p := range producers {
		wg.Go(func() {
			for n := range pairs {
				key := fmt.Sprintf("%d-%d", p, n)
				for _, half := range []string{"first", "second"} {
					err := outbox.Enqueue(ctx, s.Tx(s.DB), outbox.Message{Topic: half, Key: key})
					if err != nil {
						errs <- err
						return
					}
				}
			}
		})
	}
	go func() { wg.Wait(); close(errs) }()

	seen := map[string]bool{}
	known := map[int64]bool{}
	var after int64
	for running := true; running || len(known) < 2*producers*pairs; {
		select {
		case err, open := <-errs:
			if open {
				s.Fatal("enqueue:", err)
			}
			running, errs = false, nil
		default:
		}
		var gaps []outbox.Range
		for seq := int64(1); seq <= after; seq++ {
			if known[seq] {
				continue
			}
			if n := len(gaps); n > 0 && gaps[n-1].Last == seq-1 {
				gaps[n-1].Last = seq
			} else {
				gaps = append(gaps, outbox.Range{First: seq, Last: seq})
			}
		}
		for _, row := range s.read(l, after, gaps...) {
			if known[row.Seq] {
				continue
			}
			known[row.Seq] = true
			after = max(after, row.Seq)
			if row.Topic == "second" && !seen[row.Key] {
				s.Fatalf("the second message of key %s (number %d) came before the first", row.Key, row.Seq)
			}
			seen[row.Key] = true
		}
	}
}

func shards(s *suite) {
	for _, n := range []int{2, 5} {
		store := s.Open(s.T, "")
		_, err := store.Migrate(s.ctx(), outbox.Plan{Shards: n})
		s.check(err)
		msgs := messages(200)
		for i := range 20 {
			msgs[i].Key = "" // by id
		}
		s.enqueue(msgs...)
		owner := map[outbox.ID]int{}
		var leases []outbox.Lease
		for i := range n {
			l, err := store.Lead(s.ctx(), i)
			s.check(err)
			leases = append(leases, l)
			rows := s.read(l, 0)
			if len(rows) < 200/n/4 {
				s.Errorf("shard %d of %d has %d rows only", i, n, len(rows))
			}
			for _, row := range rows {
				if other, twice := owner[row.ID]; twice {
					s.Errorf("a row is in shards %d and %d of %d", other, i, n)
				}
				owner[row.ID] = i
			}
			// A limit counts the rows of the shard.
			page, err := l.Read(s.ctx(), outbox.ReadRequest{Limit: 5, MaxBytes: 1 << 20})
			s.check(err)
			if !slices.Equal(seqsOf(page.Rows), seqsOf(rows[:5])) || !page.More {
				s.Errorf("five rows of shard %d: %v, more %v", i, seqsOf(page.Rows), page.More)
			}
			s.check(l.Ack(s.ctx(), outbox.Refs(rows)))
		}
		if len(owner) != 200 {
			s.Errorf("%d shards hold %d rows, want 200", n, len(owner))
		}
		for _, l := range leases {
			s.check(l.Close())
		}
		if _, err := store.Lead(s.ctx(), n); err == nil || errors.Is(err, outbox.ErrHeld) {
			s.Errorf("shard %d of %d: %v, want a refusal", n, n, err)
		}
		if _, err := store.Lead(s.ctx(), -1); err == nil {
			s.Error("shard -1 can be led")
		}
	}
}
