package storetest

import (
	"strconv"
	"strings"
	"time"

	"github.com/weirdb/weir/outbox"
)

func partitions(s *suite) {
	if !s.Partitions {
		if _, ok := s.Open(s.T, "").(outbox.Partitioner); ok {
			s.Error("a store without partitions says that it has them")
		}
		_, err := s.Open(s.T, "").Migrate(s.ctx(), outbox.Plan{Layout: outbox.History, Partition: daily})
		if err == nil || !strings.Contains(err.Error(), "partition") {
			s.Errorf("partitioned history: %v, want a refusal that names it", err)
		}
		return
	}
	store := s.migrated(outbox.Plan{Layout: outbox.History, Partition: daily})
	p, ok := store.(outbox.Partitioner)
	if !ok {
		s.Fatal("the store is no Partitioner")
	}
	parts, err := p.Partitions(s.ctx())
	s.check(err)
	today := outbox.Daily.Start(time.Now())
	checkPartitions(s, parts, today.AddDate(0, 0, -2), today.AddDate(0, 0, 4))

	// Nothing to do.
	report, err := p.MaintainPartitions(s.ctx(), daily)
	s.check(err)
	if len(report.Created)+len(report.Dropped)+len(report.Kept) != 0 || report.CatchAllRows != 0 {
		s.Errorf("nothing was to be done, but: %+v", report)
	}
	// Further ahead.
	wide := daily
	wide.Ahead += 48 * time.Hour
	report, err = p.MaintainPartitions(s.ctx(), wide)
	s.check(err)
	if len(report.Created) != 2 {
		s.Errorf("created %v, want 2", report.Created)
	}

	// One before yesterday is old; it is dropped unless something in it is pending.
	l := s.lead(store, 0)
	msgs := messages(4)
	s.enqueue(msgs...)
	rows := s.read(l, 0)
	s.age(rows[0].Seq, today.AddDate(0, 0, -2).Add(time.Hour))
	s.age(rows[1].Seq, today.AddDate(0, 0, -1).Add(time.Hour))
	// Far outside all partitions: the catch-all has it, and it is not lost.
	s.age(rows[2].Seq, today.AddDate(0, 0, -10))
	sameMessages(s.T, s.read(l, 0), msgs)
	s.check(l.Ack(s.ctx(), outbox.Refs([]outbox.Row{rows[1]})))
	parts, err = p.Partitions(s.ctx())
	s.check(err)
	if last := parts[len(parts)-1]; !last.CatchAll || last.Rows != 1 {
		s.Errorf("catch-all: %+v, want one row", last)
	}
	keep := outbox.PartitionSpec{Period: outbox.Daily, Ahead: daily.Ahead, Keep: time.Nanosecond} // what has ended by midnight goes
	report, err = p.MaintainPartitions(s.ctx(), keep)
	s.check(err)
	if len(report.Dropped) != 1 || len(report.Kept) != 1 || report.CatchAllRows != 1 {
		s.Errorf("report %+v, want one dropped, one kept, one row in the catch-all", report)
	}
	sameMessages(s.T, s.read(l, 0), []outbox.Message{msgs[0], msgs[2], msgs[3]})

	// A look back that reaches it takes the row out of the catch-all.
	back := outbox.PartitionSpec{Period: outbox.Daily, Ahead: daily.Ahead, Lookback: 12 * 24 * time.Hour}
	report, err = p.MaintainPartitions(s.ctx(), back)
	s.check(err)
	if len(report.Created) < 9 || report.CatchAllRows != 0 {
		s.Errorf("created %d, %d rows in the catch-all; want at least 9 and none", len(report.Created), report.CatchAllRows)
	}
	sameMessages(s.T, s.read(l, 0), []outbox.Message{msgs[0], msgs[2], msgs[3]})
	s.check(l.Ack(s.ctx(), outbox.Refs(s.read(l, 0))))
	report, err = p.MaintainPartitions(s.ctx(), keep)
	s.check(err)
	if len(report.Dropped) < 9 || len(report.Kept) != 0 {
		s.Errorf("dropped %d, kept %v; want all old ones gone", len(report.Dropped), report.Kept)
	}
	if n := s.count(outbox.DefaultTable); n != 1 {
		s.Errorf("%d rows are left, want today's one", n)
	}
	convert(s)
}

// age sets a row's creation time.
func (s *suite) age(seq int64, at time.Time) {
	s.Helper()
	s.ageIn(outbox.DefaultTable, seq, at)
}

func (s *suite) ageIn(table string, seq int64, at time.Time) {
	s.Helper()
	res, err := s.DB.ExecContext(s.ctx(), "UPDATE "+s.Quote(table)+" SET created_at = '"+
		at.UTC().Format("2006-01-02 15:04:05")+s.Zone+"' WHERE seq = "+strconv.FormatInt(seq, 10))
	s.check(err)
	if n, err := res.RowsAffected(); err != nil || n != 1 {
		s.Fatalf("age row %d: %d rows, %v", seq, n, err)
	}
}

func checkPartitions(s *suite, parts []outbox.Partition, from, to time.Time) {
	s.Helper()
	if len(parts) < 2 || !parts[len(parts)-1].CatchAll {
		s.Fatalf("partitions %+v, want some and a catch-all at the end", parts)
	}
	at := parts[0].From
	if at.After(from) {
		s.Errorf("the first partition begins at %v, want %v", at, from)
	}
	for _, p := range parts[:len(parts)-1] {
		if !p.From.Equal(at) || !p.To.After(p.From) || p.CatchAll {
			s.Errorf("partition %+v does not continue at %v", p, at)
		}
		at = p.To
	}
	if at.Before(to) {
		s.Errorf("the last partition ends at %v, want %v", at, to)
	}
}

// convert rebuilds a history without partitions.
func convert(s *suite) {
	const table = "grown"
	store := s.Open(s.T, table)
	_, err := store.Migrate(s.ctx(), outbox.Plan{Layout: outbox.History})
	s.check(err)
	msgs := messages(50)
	s.check(outbox.Enqueue(s.ctx(), s.Tx(s.DB).Table(table), msgs...))
	l := s.lead(store, 0)
	rows := s.read(l, 0)
	today := outbox.Daily.Start(time.Now())
	for i, row := range rows {
		s.ageIn(table, row.Seq, today.AddDate(0, 0, -i%20))
	}
	s.check(l.Ack(s.ctx(), outbox.Refs(rows[:30])))
	s.check(l.Close())

	monthly := daily
	monthly.Period = outbox.Monthly
	for _, spec := range []outbox.PartitionSpec{daily, monthly} {
		plan := outbox.Plan{Layout: outbox.History, Partition: spec, Convert: true}
		_, err = store.Migrate(s.ctx(), plan)
		s.check(err)
		again, err := store.Migrate(s.ctx(), plan)
		s.check(err)
		if len(again) != 0 {
			s.Errorf("converted again: %q", again)
		}
		s.described(store, outbox.History, 1, spec.Period)
		parts, err := store.(outbox.Partitioner).Partitions(s.ctx())
		s.check(err)
		checkPartitions(s, parts, spec.Period.Start(today.AddDate(0, 0, -19)), today)
		if last := parts[len(parts)-1]; last.Rows != 0 {
			s.Errorf("%v: %d rows in the catch-all", spec.Period, last.Rows)
		}
		l := s.lead(store, 0)
		sameMessages(s.T, s.read(l, 0), msgs[30:])
		status, err := store.Status(s.ctx())
		s.check(err)
		if status.Delivered != 30 || status.Pending != 20 {
			s.Errorf("%v: status %+v, want 30 delivered and 20 pending", spec.Period, status)
		}
		s.check(l.Close())
	}
	extra := message(1000)
	s.check(outbox.Enqueue(s.ctx(), s.Tx(s.DB).Table(table), extra))
	l = s.lead(store, 0)
	sameMessages(s.T, s.read(l, rows[49].Seq), []outbox.Message{extra})
}
