package storetest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/weirdb/weir/outbox"
)

func enqueueIsTransactional(s *suite) {
	l := s.lead(s.migrated(outbox.Plan{}), 0)
	kept, lost := message(1), message(2)

	tx := s.begin()
	s.enqueueIn(tx, lost)
	s.check(tx.Rollback())
	if rows := s.read(l, 0); len(rows) != 0 {
		s.Fatalf("%d rows after a rollback", len(rows))
	}

	tx = s.begin()
	s.enqueueIn(tx, kept)
	if !s.OneWriter {
		if rows := s.read(l, 0); len(rows) != 0 {
			s.Fatalf("%d rows before the commit", len(rows))
		}
	}
	s.commit(tx)
	sameMessages(s.T, s.read(l, 0), []outbox.Message{kept})
}

func enqueueKeepsEveryByte(s *suite) {
	l := s.lead(s.migrated(outbox.Plan{}), 0)
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	random := rand.NewChaCha8([32]byte{1})
	var msgs []outbox.Message
	for _, size := range []int{0, 1, 255, 4096, 65_535, 65_536, 1 << 20, 16 << 20} {
		payload := make([]byte, size)
		_, _ = random.Read(payload) // it never fails
		m := message(size)
		m.Payload = payload
		msgs = append(msgs, m)
	}
	for i, text := range []string{
		"ключ", "鍵", "🔑", "a'b\"c`d\\e;--", " leading and trailing ", "e\u0301", "\u00e9", "%_?$1", "\t\n\r",
		strings.Repeat("ü", outbox.MaxKey/2),
	} {
		msgs = append(msgs, outbox.Message{
			ID: outbox.NewID(), Topic: text, Key: text, DedupKey: text,
			Payload: every, Headers: map[string]string{text: text, "n": fmt.Sprint(i), "empty": ""},
		})
	}
	upper, lower := message(0), message(0)
	upper.Key, lower.Key = "CASE", "case"
	msgs = append(msgs, upper, lower)
	for i := range msgs {
		s.enqueue(msgs[i])
	}
	sameMessages(s.T, s.read(l, 0), msgs)
}

func enqueueInBatches(s *suite) {
	l := s.lead(s.migrated(outbox.Plan{}), 0)
	var all []outbox.Message
	for _, n := range []int{1, 2, 3, 255, 256, 257, 600} {
		batch := messages(n)
		s.enqueue(batch...)
		all = append(all, batch...)
	}
	rows := s.read(l, 0)
	sameMessages(s.T, rows, all)
	for i := range rows {
		if rows[i].CreatedAt.IsZero() || time.Since(rows[i].CreatedAt).Abs() > time.Hour {
			s.Fatalf("row %d was created at %v", i, rows[i].CreatedAt)
		}
	}
}

// plainSQL inserts messages by plain SQL.
func plainSQL(s *suite) {
	l := s.lead(s.migrated(outbox.Plan{}), 0)
	table := s.Quote(outbox.DefaultTable)
	s.exec("INSERT INTO " + table + " (topic, msg_key, payload) VALUES ('orders', 'k', 'first')")
	s.exec("INSERT INTO " + table + " (topic, payload) VALUES ('orders', 'second')")
	s.exec("INSERT INTO " + table + " (topic, payload, headers) VALUES ('orders', 'third', '{\"a\":\"b\",\"n\":1}')")
	s.exec("INSERT INTO " + table + " (topic, payload, headers) VALUES ('orders', 'fourth', '{}')")
	rows := s.read(l, 0)
	if got := payloadsOf(rows); got != "first,second,third,fourth" {
		s.Fatalf("payloads %q", got)
	}
	if rows[0].Key != "k" || rows[1].Key != "" {
		s.Errorf("keys %q and %q", rows[0].Key, rows[1].Key)
	}
	if h := rows[2].Headers; len(h) != 2 || h["a"] != "b" || h["n"] != "1" {
		s.Errorf("headers %q", h)
	}
	ids := map[outbox.ID]bool{}
	for i := range rows {
		if rows[i].Unreadable != nil {
			s.Errorf("row %d: %v", i, rows[i].Unreadable)
		}
		ids[rows[i].ID] = true
	}
	if len(ids) != len(rows) || ids[outbox.ID{}] {
		s.Errorf("ids %v are not one for each row", ids)
	}
}

// plainSQLSharesShards: messages of one key belong to one shard, whether they were inserted with a
// bucket, without one, or with an invalid one. Otherwise two relays would reorder them.
func plainSQLSharesShards(s *suite) {
	const shards = 3
	store := s.migrated(outbox.Plan{Shards: shards})
	const keys = 40
	for n := range keys {
		m := message(n)
		m.Payload = []byte("go")
		s.enqueue(m)
		bucket := "" // or one that there is not
		if n%2 == 1 {
			bucket = ", bucket"
		}
		s.exec(fmt.Sprintf("INSERT INTO %s (topic, msg_key, payload%s) VALUES ('orders', '%s', 'sql'%s)", s.Quote(outbox.DefaultTable), bucket, m.Key,
			strings.Replace(bucket, "bucket", "-1", 1)))
	}
	s.exec("INSERT INTO " + s.Quote(outbox.DefaultTable) + " (topic, payload) VALUES ('orders', 'no key')")
	shardOf := map[string]int{}
	total := 0
	for i := range shards {
		l := s.lead(store, i)
		rows := s.read(l, 0)
		pending, err := l.Pending(s.ctx(), 0, 1<<60, 1000)
		s.check(err)
		if got, want := fmt.Sprint(pending), fmt.Sprint(seqsOf(rows)); got != want {
			s.Errorf("shard %d: Pending lists %s, Read %s", i, got, want)
		}
		for _, row := range rows {
			total++
			if first, seen := shardOf[row.Key]; seen && first != i {
				s.Errorf("key %q is in shards %d and %d", row.Key, first, i)
			}
			shardOf[row.Key] = i
		}
	}
	if total != 2*keys+1 {
		s.Errorf("the shards hold %d rows, want %d", total, 2*keys+1)
	}
}

func unreadableHeaders(s *suite) {
	l := s.lead(s.migrated(outbox.Plan{}), 0)
	for _, headers := range []string{"not JSON", "[1,2]", `"text"`, `{"a":`, "7"} {
		s.exec("INSERT INTO " + s.Quote(outbox.DefaultTable) +
			" (topic, msg_key, payload, headers) VALUES ('orders', 'k', 'p', '" + headers + "')")
	}
	s.enqueue(message(1))
	rows := s.read(l, 0)
	if len(rows) != 6 {
		s.Fatalf("%d rows, want 6", len(rows))
	}
	for i, row := range rows {
		if unreadable := row.Unreadable != nil; unreadable != (i < 5) {
			s.Errorf("row %d: unreadable: %v", i, row.Unreadable)
		}
		if i < 5 && (row.Topic != "orders" || row.Key != "k" || !bytes.Equal(row.Payload, []byte("p"))) {
			s.Errorf("row %d has lost what is readable: %+v", i, row.Message)
		}
	}
	// It can be buried and requeued, and is unchanged.
	bury(s, l, rows[0], "unreadable")
	n, err := s.Open(s.T, "").Requeue(s.ctx(), outbox.Query{State: outbox.Dead})
	s.check(err)
	if n != 1 {
		s.Fatalf("requeued %d, want 1", n)
	}
	back := s.read(l, rows[5].Seq)
	if len(back) != 1 || back[0].ID != rows[0].ID || back[0].Unreadable == nil {
		s.Fatalf("requeued: %+v", back)
	}
}

// oddTimeZone: times do not depend on the session's time zone.
func oddTimeZone(s *suite) {
	store := s.migrated(outbox.Plan{})
	l := s.lead(store, 0)
	for _, set := range s.OddZone {
		s.DB.SetMaxOpenConns(1)
		s.exec(set)
		due, later := message(1), message(2)
		due.AvailableAt = time.Now().Add(-2 * time.Minute)
		later.AvailableAt = time.Now().Add(10 * time.Minute)
		s.enqueue(due, later, message(3))
		moved, next, err := store.Promote(s.ctx(), 100)
		s.check(err)
		if moved != 1 || next < 5*time.Minute || next > 11*time.Minute {
			s.Fatalf("%s: promoted %d, next in %v; want 1 and about 10m", set, moved, next)
		}
		rows := s.read(l, 0)
		if len(rows) != 2 {
			s.Fatalf("%s: %d rows, want 2", set, len(rows))
		}
		for _, row := range rows {
			if age := time.Since(row.CreatedAt); age.Abs() > 5*time.Minute {
				s.Errorf("%s: a row that was just inserted is %v old", set, age)
			}
		}
		listed, err := store.List(s.ctx(), outbox.Query{State: outbox.Scheduled})
		s.check(err)
		if len(listed) != 1 || listed[0].DueAt.Sub(later.AvailableAt).Abs() > time.Millisecond {
			s.Errorf("%s: scheduled: %+v, want it due at %v", set, listed, later.AvailableAt)
		}
		s.check(l.Ack(s.ctx(), outbox.Refs(rows)))
		if n, err := store.Status(s.ctx()); err != nil || n.Oldest < 0 || n.Oldest > time.Hour {
			s.Errorf("%s: oldest %v, %v", set, n.Oldest, err)
		}
		s.exec("DELETE FROM " + s.Quote(outbox.DefaultTable+outbox.ScheduledSuffix))
	}
}
