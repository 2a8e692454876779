package storetest

import (
	"fmt"
	"slices"
	"time"

	"github.com/weirdb/weir/outbox"
)

func status(s *suite) {
	store := s.migrated(outbox.Plan{})
	l := s.lead(store, 0)
	empty, err := store.Status(s.ctx())
	s.check(err)
	if empty.Pending+empty.Scheduled+empty.Parked+empty.Dead+empty.Delivered != 0 || empty.Oldest != 0 {
		s.Errorf("status of empty tables: %+v", empty)
	}
	later := message(9)
	later.AvailableAt = time.Now().Add(time.Hour)
	s.enqueue(append(messages(7), later)...)
	rows := s.read(l, 0)
	s.check(l.Park(s.ctx(), []outbox.Parking{{Seq: rows[0].Seq, ID: rows[0].ID, Attempts: 1, Delay: time.Hour, Error: "x"}}))
	bury(s, l, rows[1], "rejected")
	s.check(l.Ack(s.ctx(), outbox.Refs(rows[2:4])))
	got, err := store.Status(s.ctx())
	s.check(err)
	if got.Pending != 4 || got.Scheduled != 1 || got.Parked != 1 || got.Dead != 1 || got.Delivered != 0 ||
		got.Oldest <= 0 || got.Oldest > time.Hour {
		s.Errorf("status %+v", got)
	}
}

func list(s *suite) {
	store := s.migrated(outbox.Plan{})
	l := s.lead(store, 0)
	msgs := messages(10)
	for i := range msgs {
		if i%2 == 1 {
			msgs[i].Topic = "invoices"
		}
	}
	due := time.Now().Add(time.Hour).Truncate(time.Microsecond)
	later := message(99)
	later.AvailableAt = due
	s.enqueue(append(slices.Clone(msgs), later)...)
	rows := s.read(l, 0)
	s.check(l.Park(s.ctx(), []outbox.Parking{{Seq: rows[2].Seq, ID: rows[2].ID, Attempts: 3, Delay: time.Hour, Error: "no route"}}))

	keys := func(q outbox.Query) string {
		s.Helper()
		listed, err := store.List(s.ctx(), q)
		s.check(err)
		var out []string
		for _, m := range listed {
			if m.State != q.State {
				s.Errorf("%v message in the list of %v ones", m.State, q.State)
			}
			out = append(out, m.Key)
		}
		return fmt.Sprint(out)
	}
	for _, c := range []struct {
		q    outbox.Query
		want string
	}{
		{outbox.Query{State: outbox.Pending, Limit: 3}, "[key-0 key-1 key-2]"},
		{outbox.Query{State: outbox.Pending, Topic: "invoices"}, "[key-1 key-3 key-5 key-7 key-9]"},
		{outbox.Query{State: outbox.Pending, Key: "key-4"}, "[key-4]"},
		{outbox.Query{State: outbox.Pending, Key: "key-4", Topic: "invoices"}, "[]"},
		{outbox.Query{State: outbox.Pending, IDs: []outbox.ID{msgs[8].ID, msgs[1].ID}}, "[key-1 key-8]"},
		{outbox.Query{State: outbox.Pending, Since: time.Now().Add(time.Hour)}, "[]"},
		{outbox.Query{State: outbox.Pending, Before: rows[2].CreatedAt.Add(-time.Hour)}, "[]"},
		{outbox.Query{State: outbox.Scheduled}, "[key-99]"},
		{outbox.Query{State: outbox.Dead}, "[]"},
		{outbox.Query{State: outbox.Delivered}, "[]"},
	} {
		if got := keys(c.q); got != c.want {
			s.Errorf("%+v: %s, want %s", c.q, got, c.want)
		}
	}
	all, err := store.List(s.ctx(), outbox.Query{State: outbox.Pending, Since: time.Now().Add(-time.Hour), Before: time.Now().Add(time.Hour)})
	s.check(err)
	if len(all) != 10 {
		s.Fatalf("%d pending, want 10", len(all))
	}
	for i := range all {
		sameMessage(s.T, all[i].Message, msgs[i])
	}
	if p := all[2]; p.Attempts != 3 || p.Error != "no route" || time.Until(p.DueAt) < 50*time.Minute {
		s.Errorf("parked: %+v", p)
	}
	scheduled, err := store.List(s.ctx(), outbox.Query{State: outbox.Scheduled})
	s.check(err)
	if len(scheduled) != 1 || !scheduled[0].DueAt.Equal(due) {
		s.Errorf("scheduled: %+v, want due at %v", scheduled, due)
	}
	if _, err := store.List(s.ctx(), outbox.Query{State: "lost"}); err == nil {
		s.Error("messages of an unknown state can be listed")
	}
}

func purge(s *suite) {
	store := s.migrated(outbox.Plan{})
	l := s.lead(store, 0)
	s.enqueue(messages(30)...)
	rows := s.read(l, 0)
	var b []outbox.Burial
	for _, row := range rows[:25] {
		b = append(b, outbox.Burial{Seq: row.Seq, ID: row.ID, Attempts: 1, Reason: "rejected", Error: "x"})
	}
	s.check(l.Bury(s.ctx(), b))
	want := func(q outbox.Query, want int64) {
		s.Helper()
		n, err := store.Purge(s.ctx(), q)
		s.check(err)
		if n != want {
			s.Errorf("purge %+v: %d, want %d", q, n, want)
		}
	}
	want(outbox.Query{State: outbox.Dead, Before: time.Now().Add(-time.Hour)}, 0)
	want(outbox.Query{State: outbox.Dead, OlderThan: time.Hour}, 0)
	for old := int64(0); old == 0; { // as soon as the database's clock has moved on
		var err error
		old, err = store.Purge(s.ctx(), outbox.Query{State: outbox.Dead, OlderThan: time.Microsecond, Key: "key-6"})
		s.check(err)
	}
	want(outbox.Query{State: outbox.Dead, Limit: 4}, 4)
	want(outbox.Query{State: outbox.Dead, Key: "key-7"}, 1)
	want(outbox.Query{State: outbox.Dead, IDs: []outbox.ID{rows[8].ID, rows[28].ID}}, 1)
	want(outbox.Query{State: outbox.Dead}, 18)
	want(outbox.Query{State: outbox.Delivered}, 0)
	for _, state := range []outbox.State{outbox.Pending, outbox.Scheduled, "", "lost"} {
		if n, err := store.Purge(s.ctx(), outbox.Query{State: state}); err == nil || n != 0 {
			s.Errorf("purge of %q messages: %d, %v; want a refusal", state, n, err)
		}
	}
	if got := s.read(l, 0); len(got) != 5 {
		s.Errorf("%d pending, want 5", len(got))
	}
}

func historyKeepsDelivered(s *suite) {
	plan := outbox.Plan{Layout: outbox.History}
	if s.Partitions {
		plan.Partition = daily
	}
	store := s.migrated(plan)
	l := s.lead(store, 0)
	msgs := messages(20)
	s.enqueue(msgs...)
	rows := s.read(l, 0)
	sameMessages(s.T, rows, msgs)
	s.check(l.Ack(s.ctx(), outbox.Refs(rows[:10])))
	s.check(l.Ack(s.ctx(), outbox.Refs(rows[:10])))
	bury(s, l, rows[10], "rejected")
	sameMessages(s.T, s.read(l, 0), msgs[11:])
	if fetched, err := l.Fetch(s.ctx(), seqsOf(rows[8:13])); err != nil || len(fetched) != 2 {
		s.Errorf("fetch: %d rows, %v; want the 2 that are pending", len(fetched), err)
	}
	got, err := store.Status(s.ctx())
	s.check(err)
	if got.Pending != 9 || got.Delivered != 10 || got.Dead != 1 {
		s.Errorf("status %+v", got)
	}
	listed, err := store.List(s.ctx(), outbox.Query{State: outbox.Delivered})
	s.check(err)
	if len(listed) != 10 {
		s.Fatalf("%d delivered, want 10", len(listed))
	}
	for i := range listed {
		sameMessage(s.T, listed[i].Message, msgs[i])
		if time.Since(listed[i].EndedAt).Abs() > time.Hour {
			s.Errorf("delivered at %v", listed[i].EndedAt)
		}
	}
	// Replay: it comes as new, where a cursor finds it, with its old id.
	n, err := store.Requeue(s.ctx(), outbox.Query{State: outbox.Delivered, Key: "key-3"})
	s.check(err)
	if n != 1 {
		s.Errorf("requeued %d, want 1", n)
	}
	sameMessages(s.T, s.read(l, rows[19].Seq), msgs[3:4])
	n, err = store.Requeue(s.ctx(), outbox.Query{State: outbox.Dead})
	s.check(err)
	if n != 1 {
		s.Errorf("requeued %d dead, want 1", n)
	}
	n, err = store.Purge(s.ctx(), outbox.Query{State: outbox.Delivered, Limit: 2})
	s.check(err)
	if n != 2 {
		s.Errorf("purged %d, want 2", n)
	}
	if _, err = store.Purge(s.ctx(), outbox.Query{State: outbox.Delivered}); err != nil {
		s.Error(err)
	}
	if left := s.read(l, 0); len(left) != 11 {
		s.Errorf("%d pending after the purge, want 11", len(left))
	}
}
