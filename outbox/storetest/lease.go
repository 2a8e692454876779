package storetest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weirdb/weir/outbox"
)

func ackIsIdempotent(s *suite) {
	l := s.lead(s.migrated(outbox.Plan{}), 0)
	s.enqueue(messages(300)...)
	rows := s.read(l, 0)
	seqs, refs := seqsOf(rows), outbox.Refs(rows)
	s.check(l.Ack(s.ctx(), nil))
	s.check(l.Ack(s.ctx(), refs[:200]))
	s.check(l.Ack(s.ctx(), refs[:200]))
	s.check(l.Ack(s.ctx(), append([]outbox.Ref{{Seq: 1 << 40}, refs[250]}, refs[100:210]...)))
	want := append(slices.Clone(seqs[210:250]), seqs[251:]...)
	if got := seqsOf(s.read(l, 0)); !slices.Equal(got, want) {
		s.Errorf("left are %v, want %v", got, want)
	}
	// An ack takes the note of earlier attempts along.
	s.check(l.Park(s.ctx(), []outbox.Parking{{Seq: want[0], ID: refs[210].ID, Attempts: 1, Delay: time.Hour, Error: "no"}}))
	s.check(l.Ack(s.ctx(), refs[210:211]))
	if notes, err := l.Parked(s.ctx()); err != nil || len(notes) != 0 {
		s.Errorf("notes %+v of a row that was delivered, %v", notes, err)
	}
	// None of this takes rows that are in a transaction.
	if !s.OneWriter {
		tx := s.begin()
		s.enqueueIn(tx, message(1))
		all := s.read(l, 0)
		s.check(l.Ack(s.ctx(), outbox.Refs(all)))
		s.commit(tx)
		if left := s.read(l, 0); len(left) != 1 {
			s.Errorf("%d rows left, want the one that was not committed at the time of the ack", len(left))
		}
	}
}

// ackMatchesIDs: numbers may be reused after the table was emptied. An ack of an earlier message does
// not remove a row that has its number now.
func ackMatchesIDs(layout outbox.Layout) func(s *suite) {
	return func(s *suite) {
		l := s.lead(s.migrated(outbox.Plan{Layout: layout}), 0)
		s.enqueue(messages(3)...)
		rows := s.read(l, 0)
		seqs := seqsOf(rows)
		others := outbox.Refs(rows)
		for i := range others {
			others[i].ID = outbox.NewID()
		}
		s.check(l.Ack(s.ctx(), others))
		if left := seqsOf(s.read(l, 0)); !slices.Equal(left, seqs) {
			s.Errorf("rows %v are left of %v after others of their numbers were delivered", left, seqs)
		}
		others[1] = outbox.Refs(rows)[1]
		s.check(l.Ack(s.ctx(), others))
		if left, want := seqsOf(s.read(l, 0)), []int64{seqs[0], seqs[2]}; !slices.Equal(left, want) {
			s.Errorf("rows %v are left, want %v", left, want)
		}
	}
}

// notesMatchIDs: nor does Park or Bury of an earlier message affect the row that has its number now.
func notesMatchIDs(layout outbox.Layout) func(s *suite) {
	return func(s *suite) {
		store := s.migrated(outbox.Plan{Layout: layout})
		l := s.lead(store, 0)
		s.enqueue(messages(3)...)
		rows := s.read(l, 0)
		for i, row := range rows {
			row.ID = outbox.NewID()
			s.check(l.Park(s.ctx(), []outbox.Parking{
				{Seq: row.Seq, ID: row.ID, Attempts: 1 + i, Delay: time.Hour, Error: "another's"},
			}))
			s.check(l.Bury(s.ctx(), []outbox.Burial{{Seq: row.Seq, ID: row.ID, Attempts: 1, Reason: "rejected", Error: "another's"}}))
		}
		status, err := store.Status(s.ctx())
		s.check(err)
		if status.Pending != 3 || status.Parked != 0 || status.Dead != 0 {
			s.Errorf("after others of their numbers were parked and buried: %+v, want 3 pending and nothing else", status)
		}
		s.check(l.Park(s.ctx(), []outbox.Parking{{Seq: rows[0].Seq, ID: rows[0].ID, Attempts: 1, Delay: time.Hour, Error: "its own"}}))
		bury(s, l, rows[1], "rejected")
		notes, err := l.Parked(s.ctx())
		s.check(err)
		if len(notes) != 1 || notes[0].ID != rows[0].ID {
			s.Errorf("notes %+v, want one of message %v", notes, rows[0].ID)
		}
		if left, want := seqsOf(s.read(l, 0)), []int64{rows[0].Seq, rows[2].Seq}; !slices.Equal(left, want) {
			s.Errorf("rows %v are left, want %v", left, want)
		}
	}
}

// notesOfReusedNumbers: a row does not take over the attempts of an earlier row with its number.
func notesOfReusedNumbers(s *suite) {
	store := s.migrated(outbox.Plan{})
	l := s.lead(store, 0)
	s.enqueue(messages(3)...)
	rows := s.read(l, 0)
	for _, row := range rows[:2] {
		s.check(l.Park(s.ctx(), []outbox.Parking{{Seq: row.Seq, ID: row.ID, Attempts: 9, Delay: time.Hour, Error: "its own"}}))
	}
	table := s.Quote(outbox.DefaultTable)
	s.exec(fmt.Sprintf("DELETE FROM %s WHERE seq = %d", table, rows[0].Seq))
	s.exec(fmt.Sprintf("INSERT INTO %s (seq, topic, payload) VALUES (%d, 't', 'p')", table, rows[0].Seq))
	notes, err := l.Parked(s.ctx())
	s.check(err)
	if len(notes) != 1 || notes[0].ID != rows[1].ID || notes[0].Attempts != 9 {
		s.Errorf("notes %+v, want one of message %v", notes, rows[1].ID)
	}
	status, err := store.Status(s.ctx())
	s.check(err)
	listed, err := store.List(s.ctx(), outbox.Query{State: outbox.Pending})
	s.check(err)
	if status.Parked != 1 || len(listed) != 3 || listed[0].Attempts != 0 || listed[0].Error != "" || listed[1].Attempts != 9 {
		s.Errorf("%d parked, listed %+v: want the attempts of message %v alone", status.Parked, listed, rows[1].ID)
	}
	now := s.read(l, 0)[0]
	s.check(l.Park(s.ctx(), []outbox.Parking{{Seq: now.Seq, ID: now.ID, Attempts: 1, Error: "the other's"}}))
	if notes, err = l.Parked(s.ctx()); err != nil || len(notes) != 2 || notes[0].ID != now.ID || notes[0].Attempts != 1 {
		s.Errorf("notes %+v, %v, want another of message %v", notes, err, now.ID)
	}
}

// notesInOlderTables: tables of an older weir, whose notes have only the number, work until they are
// migrated, and a relay that started before continues afterwards.
func notesInOlderTables(s *suite) {
	store := s.migrated(outbox.Plan{})
	s.exec("ALTER TABLE " + s.Quote(outbox.DefaultTable+"_parked") + " DROP COLUMN id")
	s.enqueue(messages(6)...)
	l := s.lead(store, 0)
	rows := s.read(l, 0)
	try := func(step string, l outbox.Lease, rows []outbox.Row, want int) {
		s.Helper()
		for i := range rows[:2] {
			s.check(l.Park(s.ctx(), []outbox.Parking{{Seq: rows[i].Seq, ID: rows[i].ID, Attempts: 1, Error: step}}))
		}
		if notes, err := l.Parked(s.ctx()); err != nil || len(notes) != want {
			s.Errorf("%s: notes %+v, %v, want %d", step, notes, err, want)
		}
		s.check(l.Ack(s.ctx(), outbox.Refs(rows[:1])))
		if notes, err := l.Parked(s.ctx()); err != nil || len(notes) != want-1 {
			s.Errorf("%s: notes %+v, %v, want %d", step, notes, err, want-1)
		}
	}
	try("before", l, rows, 2)
	other := s.Open(s.T, "")
	done, err := other.Migrate(s.ctx(), outbox.Plan{})
	s.check(err)
	if len(done) != 1 || !strings.Contains(done[0], "_parked") {
		s.Errorf("migrate did %q", done)
	}
	try("while it is migrated", l, rows[2:], 3)
	s.check(l.Close())
	try("after", s.lead(other, 0), rows[4:], 4)
	if done, err = other.Migrate(s.ctx(), outbox.Plan{}); err != nil || len(done) > 0 {
		s.Errorf("migrate did %q, %v the second time", done, err)
	}
}

func fetchAndPending(s *suite) {
	l := s.lead(s.migrated(outbox.Plan{}), 0)
	msgs := messages(40)
	s.enqueue(msgs...)
	all := s.read(l, 0)
	seqs := seqsOf(all)
	s.check(l.Ack(s.ctx(), outbox.Refs(all[10:20])))

	rows, err := l.Fetch(s.ctx(), []int64{seqs[30], seqs[5], 1 << 40, seqs[15], seqs[0]})
	s.check(err)
	sameMessages(s.T, rows, []outbox.Message{msgs[0], msgs[5], msgs[30]})
	if rows, err = l.Fetch(s.ctx(), nil); err != nil || len(rows) != 0 {
		s.Errorf("fetch nothing: %d rows, %v", len(rows), err)
	}

	pending := func(after, last int64, limit int, want []int64) {
		s.Helper()
		got, err := l.Pending(s.ctx(), after, last, limit)
		s.check(err)
		if !slices.Equal(got, want) {
			s.Errorf("pending after %d to %d, at most %d: %v, want %v", after, last, limit, got, want)
		}
	}
	pending(0, 1<<62, 100, append(slices.Clone(seqs[:10]), seqs[20:]...))
	pending(seqs[4], seqs[21], 100, append(slices.Clone(seqs[5:10]), seqs[20:22]...))
	pending(seqs[4], seqs[21], 3, seqs[5:8])
	pending(seqs[39], 1<<62, 10, nil)
}

func parkedOutlivesLease(s *suite) {
	store := s.migrated(outbox.Plan{Shards: 2})
	s.enqueue(messages(40)...)
	l := s.lead(store, 0)
	rows := s.read(l, 0)
	a, b, c := rows[0].Seq, rows[1].Seq, rows[2].Seq
	long := strings.Repeat("ü", 100_000)
	s.check(l.Park(s.ctx(), nil))
	s.check(l.Park(s.ctx(), []outbox.Parking{
		{Seq: a, ID: rows[0].ID, Attempts: 1, Delay: time.Hour, Error: "first"},
		{Seq: b, ID: rows[1].ID, Attempts: 3, Delay: 0, Error: "due"},
		{Seq: c, ID: rows[2].ID, Attempts: 1, Delay: 48 * time.Hour, Error: long},
	}))
	s.check(l.Park(s.ctx(), []outbox.Parking{{Seq: a, ID: rows[0].ID, Attempts: 2, Delay: 2 * time.Hour, Error: "second"}}))
	if got := s.read(l, 0); len(got) != len(rows) {
		s.Errorf("%d of %d rows are pending after some were parked", len(got), len(rows))
	}
	s.check(l.Close())

	other := s.lead(s.Open(s.T, ""), 1)
	if notes, err := other.Parked(s.ctx()); err != nil || len(notes) != 0 {
		s.Errorf("the other shard has notes %+v, %v", notes, err)
	}
	l = s.lead(s.Open(s.T, ""), 0)
	notes, err := l.Parked(s.ctx())
	s.check(err)
	bySeq := map[int64]outbox.Parking{}
	for _, n := range notes {
		bySeq[n.Seq] = n
	}
	if len(notes) != 3 {
		s.Fatalf("%d notes, want 3", len(notes))
	}
	if n := bySeq[a]; n.Attempts != 2 || n.Error != "second" || n.Delay < 110*time.Minute || n.Delay > 2*time.Hour {
		s.Errorf("note %+v", n)
	}
	if n := bySeq[b]; n.Attempts != 3 || n.Error != "due" || n.Delay > 0 {
		s.Errorf("note %+v", n)
	}
	if n := bySeq[c]; n.Attempts != 1 || !strings.HasPrefix(n.Error, "üü") || strings.ContainsRune(n.Error, '\uFFFD') {
		s.Errorf("the note with a long error has %d attempts, error %.20q", n.Attempts, n.Error)
	}
	status, err := store.Status(s.ctx())
	s.check(err)
	if status.Parked != 3 || status.Pending != 40 {
		s.Errorf("status %+v, want 3 parked of 40 pending", status)
	}
	// A note of a row that is gone is none.
	s.check(l.Ack(s.ctx(), outbox.Refs(rows[:1])))
	s.check(l.Park(s.ctx(), []outbox.Parking{{Seq: a, ID: rows[0].ID, Attempts: 3, Error: "too late"}}))
	if notes, err = l.Parked(s.ctx()); err != nil || len(notes) != 2 {
		s.Errorf("notes %+v, %v after one row was delivered", notes, err)
	}
}

// bury moves one row to the dead letters.
func bury(s *suite, l outbox.Lease, row outbox.Row, reason string) {
	s.Helper()
	s.check(l.Bury(s.ctx(), []outbox.Burial{{Seq: row.Seq, ID: row.ID, Attempts: 4, Reason: reason, Error: "the broker said no: 'nö'"}}))
}

func buryAndRequeue(s *suite) {
	store := s.migrated(outbox.Plan{})
	l := s.lead(store, 0)
	msgs := messages(4)
	msgs[1].Headers = map[string]string{"ключ": "значение", "a": ""}
	msgs[1].DedupKey = "dedup"
	msgs[1].Payload = []byte{0, 1, 2, 0xff, 0xfe, '\'', '"', '\\', 0}
	s.enqueue(msgs...)
	rows := s.read(l, 0)
	s.check(l.Park(s.ctx(), []outbox.Parking{{Seq: rows[1].Seq, ID: rows[1].ID, Attempts: 3, Error: "x"}}))
	s.check(l.Bury(s.ctx(), nil))
	bury(s, l, rows[1], "rejected")
	bury(s, l, rows[1], "rejected") // gone already: no error
	bury(s, l, rows[2], "attempts")
	if notes, err := l.Parked(s.ctx()); err != nil || len(notes) != 0 {
		s.Errorf("notes %+v of a row that is dead, %v", notes, err)
	}
	sameMessages(s.T, s.read(l, 0), []outbox.Message{msgs[0], msgs[3]})

	dead, err := store.List(s.ctx(), outbox.Query{State: outbox.Dead})
	s.check(err)
	if len(dead) != 2 {
		s.Fatalf("%d dead, want 2", len(dead))
	}
	sameMessage(s.T, dead[0].Message, msgs[1])
	sameMessage(s.T, dead[1].Message, msgs[2])
	if d := dead[0]; d.State != outbox.Dead || d.Reason != "rejected" || d.Error != "the broker said no: 'nö'" ||
		d.Attempts != 4 || d.Seq != rows[1].Seq || time.Since(d.EndedAt).Abs() > time.Hour ||
		!d.CreatedAt.Equal(rows[1].CreatedAt) {
		s.Errorf("dead: %+v", d)
	}

	after := rows[3].Seq
	n, err := store.Requeue(s.ctx(), outbox.Query{State: outbox.Dead, IDs: []outbox.ID{msgs[1].ID, outbox.NewID()}})
	s.check(err)
	if n != 1 {
		s.Errorf("requeued %d, want 1", n)
	}
	// It comes back as if enqueued now, where a cursor finds it.
	back := s.read(l, after)
	sameMessages(s.T, back, []outbox.Message{msgs[1]})
	if notes, err := l.Parked(s.ctx()); err != nil || len(notes) != 0 {
		s.Errorf("notes %+v of a row that was requeued, %v", notes, err)
	}
	status, err := store.Status(s.ctx())
	s.check(err)
	if status.Dead != 1 || status.Pending != 3 {
		s.Errorf("status %+v, want 1 dead and 3 pending", status)
	}
	// With another identity, for brokers that remember the one they have had.
	bury(s, l, rows[3], "rejected")
	if n, err := store.Requeue(s.ctx(), outbox.Query{State: outbox.Dead, IDs: []outbox.ID{msgs[3].ID}, NewIdentity: true}); err != nil || n != 1 {
		s.Fatalf("requeue %d with another identity, %v", n, err)
	}
	all := s.read(l, 0)
	if last := all[len(all)-1]; last.ID != msgs[3].ID || len(last.DedupKey) < 32 {
		s.Errorf("requeued with id %v and dedup key %q, want id %v and a key of its own", last.ID, last.DedupKey, msgs[3].ID)
	}
	if _, err := store.Requeue(s.ctx(), outbox.Query{State: outbox.Pending}); err == nil {
		s.Error("pending messages can be requeued")
	}
}

func leadIsExclusive(s *suite) {
	store := s.migrated(outbox.Plan{Shards: 2})
	other := s.Open(s.T, "")
	first := s.lead(store, 0)
	for _, st := range []outbox.Store{store, other} {
		if _, err := st.Lead(s.ctx(), 0); !errors.Is(err, outbox.ErrHeld) {
			s.Errorf("second leader: %v, want %v", err, outbox.ErrHeld)
		}
	}
	second := s.lead(other, 1)
	status, err := store.Status(s.ctx())
	s.check(err)
	if len(status.Leases) != 2 || !status.Leases[0].Held || !status.Leases[1].Held || status.Leases[0].Owner == "" {
		s.Errorf("leases %+v, want both held", status.Leases)
	}
	s.check(first.Close())
	s.check(first.Close()) // again
	third := s.lead(other, 0)
	after, err := store.Status(s.ctx())
	s.check(err)
	if got, was := after.Leases[0].Epoch, status.Leases[0].Epoch; got <= was {
		s.Errorf("epoch %d after a change of leaders, before %d", got, was)
	}
	select {
	case <-second.Lost():
		s.Error("a lease that nobody took is lost")
	default:
	}
	s.check(second.Close())
	s.check(third.Close())
	after, err = store.Status(s.ctx())
	s.check(err)
	for _, l := range after.Leases {
		if l.Held {
			s.Errorf("shard %d is held after all gave up", l.Shard)
		}
	}
}

// take retries Lead until it succeeds: a server releases the locks of a dead session with a delay.
func (s *suite) take(store outbox.Store, shard int) outbox.Lease {
	s.Helper()
	for deadline := time.Now().Add(patience); ; {
		l, err := store.Lead(s.ctx(), shard)
		if err == nil {
			s.Cleanup(func() { _ = l.Close() })
			return l
		}
		if !errors.Is(err, outbox.ErrHeld) || time.Now().After(deadline) {
			s.Fatal("lead:", err)
		}
		time.Sleep(time.Millisecond)
	}
}

// lost waits until the lease is known to be lost.
func (s *suite) lost(l outbox.Lease) {
	s.Helper()
	select {
	case <-l.Lost():
	case <-s.ctx().Done():
		s.Fatal("the lease never learns that its session has ended")
	}
}

func leadAfterCut(s *suite) {
	store := s.migrated(outbox.Plan{})
	s.enqueue(messages(10)...)
	l := s.lead(store, 0)
	rows := s.read(l, 0)
	s.check(l.Park(s.ctx(), []outbox.Parking{{Seq: rows[4].Seq, ID: rows[4].ID, Attempts: 2, Delay: time.Hour, Error: "x"}}))
	s.CutLease(s.T, 0)
	s.lost(l)

	next := s.take(s.Open(s.T, ""), 0)
	if got := s.read(next, 0); len(got) != 10 {
		s.Errorf("the next leader reads %d rows, want 10", len(got))
	}
	if notes, err := next.Parked(s.ctx()); err != nil || len(notes) != 1 || notes[0].Attempts != 2 {
		s.Errorf("the next leader has notes %+v, %v", notes, err)
	}
	s.check(next.Ack(s.ctx(), outbox.Refs(rows)))
	_ = l.Close() // says what it will; it does not hang
	if _, err := store.Lead(s.ctx(), 0); !errors.Is(err, outbox.ErrHeld) {
		s.Errorf("closing a lease that was lost takes the next one's: %v", err)
	}
}

// deposedUnaware: the epoch stops a leader that does not know yet that it is deposed. All stores keep
// it in column epoch of table _lease.
func deposedUnaware(s *suite) {
	l := s.lead(s.migrated(outbox.Plan{}), 0)
	s.enqueue(messages(2)...)
	rows := s.read(l, 0)
	s.exec("UPDATE " + s.Quote(outbox.DefaultTable+"_lease") + " SET epoch = epoch + 1 WHERE shard = 0")
	for what, err := range map[string]error{
		"Park": l.Park(s.ctx(), []outbox.Parking{{Seq: rows[0].Seq, ID: rows[0].ID, Attempts: 1, Error: "x"}}),
		"Bury": l.Bury(s.ctx(), []outbox.Burial{{Seq: rows[1].Seq, ID: rows[1].ID, Attempts: 1, Reason: "rejected", Error: "x"}}),
	} {
		if !errors.Is(err, outbox.ErrDeposed) {
			s.Errorf("%s of a leader whose epoch has passed: %v, want %v", what, err, outbox.ErrDeposed)
		}
	}
	status, err := s.Open(s.T, "").Status(s.ctx())
	s.check(err)
	if status.Pending != 2 || status.Parked != 0 || status.Dead != 0 {
		s.Errorf("a deposed leader has changed something: %+v", status)
	}
}

func deposedDoesNothing(s *suite) {
	store := s.migrated(outbox.Plan{})
	s.enqueue(messages(3)...)
	l := s.lead(store, 0)
	rows := s.read(l, 0)
	s.CutLease(s.T, 0)
	next := s.take(s.Open(s.T, ""), 0)
	// Whether or not l knows yet.
	parked := l.Park(s.ctx(), []outbox.Parking{{Seq: rows[0].Seq, ID: rows[0].ID, Attempts: 1, Error: "x"}})
	buried := l.Bury(s.ctx(), []outbox.Burial{{Seq: rows[1].Seq, ID: rows[1].ID, Attempts: 1, Reason: "rejected", Error: "x"}})
	s.lost(l)
	for what, err := range map[string]error{
		"Park": parked, "Bury": buried,
		"Park, knowing": l.Park(s.ctx(), []outbox.Parking{{Seq: rows[0].Seq, ID: rows[0].ID, Attempts: 1, Error: "x"}}),
		"Bury, knowing": l.Bury(s.ctx(), []outbox.Burial{{Seq: rows[1].Seq, ID: rows[1].ID, Attempts: 1, Reason: "rejected", Error: "x"}}),
		"Ack, knowing":  l.Ack(s.ctx(), outbox.Refs([]outbox.Row{rows[2]})),
		"Read, knowing": func() error {
			_, err := l.Read(s.ctx(), outbox.ReadRequest{Limit: 1, MaxBytes: 1})
			return err
		}(),
		"Mark, knowing": func() error { _, err := l.Mark(s.ctx()); return err }(),
	} {
		if !errors.Is(err, outbox.ErrDeposed) {
			s.Errorf("%s of a deposed leader: %v, want %v", what, err, outbox.ErrDeposed)
		}
	}
	if notes, err := next.Parked(s.ctx()); err != nil || len(notes) != 0 {
		s.Errorf("a deposed leader has parked: %+v, %v", notes, err)
	}
	if got := s.read(next, 0); len(got) != 3 {
		s.Errorf("%d rows are left, want 3", len(got))
	}
}
