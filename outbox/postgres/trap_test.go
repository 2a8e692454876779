package postgres

import (
	"context"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab/labtest/pgtrap"
	"github.com/weirdb/weir/outbox"
)

// TestSearchPathOfOthers: the owner of a database may set its search path, and those who may create
// something in a schema there can put operators, functions and types beside the server's own.
// Nothing of them is run with the rights of the relay.
func TestSearchPathOfOthers(t *testing.T) {
	r := newOwnRig(t, server(t))
	caught := pgtrap.SearchPath(t, r.dsn)
	producer := rigOf(t, r.dsn+"&search_path=public") // its statements are its own
	must := func(what string, err error) {
		t.Helper()
		if by := caught(); by != "" || err != nil {
			t.Fatalf("%s: called %q: %v", what, by, err)
		}
	}
	for table, plan := range map[string]outbox.Plan{
		"weir_outbox": {Layout: outbox.History, Partition: outbox.PartitionSpec{Period: outbox.Daily, Ahead: 48 * time.Hour}},
		"other":       {Shards: 2},
	} {
		_, err := r.open(t, Options{Table: "public." + table, Notify: true}).Migrate(r.ctx(), plan)
		must("migrate", err)
		s := r.open(t, Options{Table: table})
		_, err = s.Migrate(r.ctx(), plan)
		must("migrate again", err)
		if n, err := s.tables(r.ctx()); err != nil || n.schema != "public" {
			t.Errorf("table %s was found in schema %q: %v", table, n.schema, err)
		}
		producer.exec("INSERT INTO " + table + " (topic) SELECT 't' FROM generate_series(1, 50)")
		producer.exec("INSERT INTO " + table + "_scheduled (topic, available_at) VALUES ('t', now())")
		must("produce", nil)
		must("check", s.Check(r.ctx()))
		_, _, err = s.Promote(r.ctx(), 10)
		must("promote", err)
		led, err := s.Lead(r.ctx(), 0)
		must("lead", err)
		l := led.(*lease)
		rows := r.read(l)
		if len(rows) < 3 {
			t.Fatalf("%d rows", len(rows))
		}
		ref := func(i int) outbox.Ref { return outbox.Refs(rows)[i] }
		must("park", l.Park(r.ctx(), []outbox.Parking{{Seq: rows[0].Seq, ID: rows[0].ID, Attempts: 1, Error: "x"}}))
		must("bury", l.Bury(r.ctx(), []outbox.Burial{{Seq: rows[1].Seq, ID: rows[1].ID, Reason: "rejected"}}))
		must("ack", l.Ack(r.ctx(), []outbox.Ref{ref(2)}))
		_, err = l.Parked(r.ctx())
		must("parked", err)
		_, err = l.Fetch(r.ctx(), []int64{rows[0].Seq})
		must("fetch", err)
		_, err = l.Pending(r.ctx(), 0, 100, 10)
		must("pending", err)
		_, err = l.Read(r.ctx(), outbox.ReadRequest{Limit: 10, MaxBytes: 1 << 20, Gaps: []outbox.Range{{First: 1, Last: 2}}})
		must("read gaps", err)
		_, err = l.Settled(r.ctx(), r.mark(l))
		must("mark", err)
		follows, err := l.Tail(r.ctx())
		must("tail", err)
		_, err = l.Renewed(r.ctx())
		must("renewed", err)
		must("close", follows.Close())
		for _, state := range []outbox.State{outbox.Pending, outbox.Dead, outbox.Scheduled} {
			_, err = s.List(r.ctx(), outbox.Query{State: state, Topic: "t", OlderThan: time.Nanosecond, Limit: 10})
			must("list", err)
		}
		_, err = s.Requeue(r.ctx(), outbox.Query{State: outbox.Dead, Limit: 10, NewIdentity: true})
		must("requeue", err)
		_, err = s.Status(r.ctx())
		must("status", err)
		_, err = s.Describe(r.ctx())
		must("describe", err)
		must("give up", l.Close())
		ctx, cancel := context.WithCancel(r.ctx())
		woken, err := s.Wake(ctx)
		must("wake", err)
		cancel()
		for range woken {
		}
		p, err := s.Announce(r.ctx())
		must("announce", err)
		must("leave", p.Close())
		c, err := s.Claim(r.ctx(), outbox.ClaimRequest{Limit: 1, MaxBytes: 1 << 20})
		must("claim", err)
		must("finish", c.Finish(r.ctx(), []int64{c.Rows()[0].Seq}, nil, nil))
		if plan.Layout == outbox.History {
			_, err = s.MaintainPartitions(r.ctx(), plan.Partition)
			must("maintain partitions", err)
			_, err = s.Partitions(r.ctx())
			must("list partitions", err)
		}
		_, err = s.Purge(r.ctx(), outbox.Query{State: outbox.Dead, OlderThan: time.Nanosecond, Limit: 10})
		must("purge", err)
	}
}
