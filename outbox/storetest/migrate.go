package storetest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weirdb/weir/outbox"
)

func notMigrated(s *suite) {
	store := s.Open(s.T, "")
	calls := map[string]func() error{
		"describe": func() error { _, err := store.Describe(s.ctx()); return err },
		"lead":     func() error { _, err := store.Lead(s.ctx(), 0); return err },
		"promote":  func() error { _, _, err := store.Promote(s.ctx(), 1); return err },
		"status":   func() error { _, err := store.Status(s.ctx()); return err },
		"list":     func() error { _, err := store.List(s.ctx(), outbox.Query{State: outbox.Dead}); return err },
		"requeue":  func() error { _, err := store.Requeue(s.ctx(), outbox.Query{State: outbox.Dead}); return err },
		"purge":    func() error { _, err := store.Purge(s.ctx(), outbox.Query{State: outbox.Dead}); return err },
	}
	if s.SkipLocked {
		calls["claim"] = func() error { _, err := store.Claim(s.ctx(), outbox.ClaimRequest{Limit: 1}); return err }
	}
	for what, call := range calls {
		if err := call(); !errors.Is(err, outbox.ErrNotMigrated) {
			s.Errorf("%s: %v, want %v", what, err, outbox.ErrNotMigrated)
		}
	}
	if store.Name() != outbox.DefaultTable {
		s.Errorf("name %q", store.Name())
	}
}

// described checks the store's description.
func (s *suite) described(store outbox.Store, layout outbox.Layout, shards int, period outbox.Period) {
	s.Helper()
	d, err := store.Describe(s.ctx())
	s.check(err)
	if d.Version < 1 || d.Layout != layout || d.Shards != shards || d.Period != period || d.Server == "" {
		s.Errorf("description %+v, want layout %v, %d shards, period %v", d, layout, shards, period)
	}
}

// plans returns the plans that the database supports.
func (s *suite) plans() []outbox.Plan {
	plans := []outbox.Plan{{}, {Layout: outbox.History}}
	if s.Partitions {
		monthly := daily
		monthly.Period = outbox.Monthly
		plans = append(plans, outbox.Plan{Layout: outbox.History, Partition: daily, Shards: 3},
			outbox.Plan{Layout: outbox.History, Partition: monthly})
	}
	return plans
}

func migrateTwice(s *suite) {
	for i, plan := range s.plans() {
		table := fmt.Sprintf("twice_%d", i)
		store := s.Open(s.T, table)
		first, err := store.Migrate(s.ctx(), plan)
		s.check(err)
		if len(first) == 0 {
			s.Errorf("%+v: nothing was done", plan)
		}
		s.check(outbox.Enqueue(s.ctx(), s.Tx(s.DB).Table(table), messages(3)...))
		again, err := store.Migrate(s.ctx(), plan)
		s.check(err)
		if len(again) != 0 {
			s.Errorf("%+v: the second time it did %q", plan, again)
		}
		s.described(store, plan.Layout, max(1, plan.Shards), plan.Partition.Period)
		if n := s.count(table); n != 3 {
			s.Errorf("%+v: %d rows, want 3", plan, n)
		}
	}
}

func migrateDryRun(s *suite) {
	for i, plan := range s.plans() {
		store := s.Open(s.T, fmt.Sprintf("dry_%d", i))
		plan.DryRun = true
		would, err := store.Migrate(s.ctx(), plan)
		s.check(err)
		if _, err := store.Describe(s.ctx()); !errors.Is(err, outbox.ErrNotMigrated) {
			s.Fatalf("%+v: a dry run has migrated: %v", plan, err)
		}
		plan.DryRun = false
		did, err := store.Migrate(s.ctx(), plan)
		s.check(err)
		if !slices.Equal(would, did) {
			s.Errorf("%+v: the dry run says\n%s\nbut done is\n%s", plan, strings.Join(would, ";\n"), strings.Join(did, ";\n"))
		}
	}
}

func migrateConcurrently(s *suite) {
	for i, plan := range s.plans() {
		table := fmt.Sprintf("at_once_%d", i)
		var wg sync.WaitGroup
		for range 4 {
			store := s.Open(s.T, table)
			wg.Go(func() {
				if _, err := store.Migrate(s.ctx(), plan); err != nil {
					s.Errorf("%+v: %v", plan, err)
				}
			})
		}
		wg.Wait()
		s.check(outbox.Enqueue(s.ctx(), s.Tx(s.DB).Table(table), messages(3)...))
		s.described(s.Open(s.T, table), plan.Layout, max(1, plan.Shards), plan.Partition.Period)
	}
}

// migrateBrokenOff interrupts the migration before each of its statements. The next attempt completes
// it, and until then the tables count as not migrated.
func migrateBrokenOff(s *suite) {
	plan := s.plans()[len(s.plans())-1]
	whole := 0
	store := s.Open(s.T, "")
	for n := 0; s.Harness.Migrate(s.T, plan, n); n++ {
		whole++
		if _, err := store.Describe(s.ctx()); err != nil && !errors.Is(err, outbox.ErrNotMigrated) {
			s.Fatalf("broken off before statement %d: describe: %v", n, err)
		}
	}
	if whole < 3 {
		s.Fatalf("the migration was broken off %d times only", whole)
	}
	store = s.migrated(plan)
	s.described(store, plan.Layout, 1, plan.Partition.Period)
	l := s.lead(store, 0)
	msgs := messages(3)
	s.enqueue(msgs...)
	sameMessages(s.T, s.read(l, 0), msgs)
	if _, err := store.Status(s.ctx()); err != nil {
		s.Error(err)
	}
}

func migrateRefuses(s *suite) {
	store := s.migrated(outbox.Plan{})
	_, err := store.Migrate(s.ctx(), outbox.Plan{Layout: outbox.History})
	if err == nil || !strings.Contains(err.Error(), "layout") {
		s.Errorf("change of layout: %v, want a refusal that names it", err)
	}
	if _, err := store.Migrate(s.ctx(), outbox.Plan{Partition: daily}); err == nil {
		s.Error("a queue can be partitioned")
	}
	if _, err := store.Migrate(s.ctx(), outbox.Plan{Shards: -1}); err == nil {
		s.Error("a table can have -1 shards")
	}
	if _, err := store.Migrate(s.ctx(), outbox.Plan{Shards: outbox.Buckets + 1}); err == nil {
		s.Error("a table can have more shards than buckets")
	}
	history := s.Open(s.T, "history")
	_, err = history.Migrate(s.ctx(), outbox.Plan{Layout: outbox.History})
	s.check(err)
	if _, err := history.Migrate(s.ctx(), outbox.Plan{Layout: outbox.History, Partition: daily}); err == nil {
		s.Error("a table without partitions is partitioned without Convert")
	}
	if !s.Partitions {
		if _, err := history.Migrate(s.ctx(), outbox.Plan{Layout: outbox.History, Partition: daily, Convert: true}); err == nil {
			s.Error("a database without partitions has them")
		}
	}
	if _, err := history.Migrate(s.ctx(), outbox.Plan{Layout: outbox.Queue}); err == nil {
		s.Error("a history becomes a queue")
	}

	s.exec("UPDATE " + s.Quote(outbox.DefaultTable+"_meta") + " SET version = 1000000")
	for what, call := range map[string]func() error{
		"migrate": func() error { _, err := store.Migrate(s.ctx(), outbox.Plan{}); return err },
		"lead":    func() error { _, err := s.Open(s.T, "").Lead(s.ctx(), 0); return err },
	} {
		if err := call(); err == nil || !strings.Contains(err.Error(), "1000000") || !strings.Contains(err.Error(), "newer") {
			s.Errorf("%s of tables of a newer version: %v, want a refusal that names it", what, err)
		}
	}
}

func migrateShards(s *suite) {
	store := s.migrated(outbox.Plan{Shards: 2})
	s.enqueue(messages(20)...)
	l := s.lead(store, 1)
	if _, err := store.Migrate(s.ctx(), outbox.Plan{Shards: 4}); !errors.Is(err, outbox.ErrHeld) {
		s.Errorf("shards change under a leader: %v, want %v", err, outbox.ErrHeld)
	}
	s.described(store, outbox.Queue, 2, outbox.Unpartitioned)
	if done, err := store.Migrate(s.ctx(), outbox.Plan{}); err != nil || len(done) != 0 {
		s.Errorf("zero shards means as it is: did %q, %v", done, err)
	}
	s.check(l.Close())
	for _, n := range []int{4, 1} {
		_, err := store.Migrate(s.ctx(), outbox.Plan{Shards: n})
		s.check(err)
		s.described(store, outbox.Queue, n, outbox.Unpartitioned)
		total := 0
		for i := range n {
			l := s.lead(store, i)
			total += len(s.read(l, 0))
			s.check(l.Close())
		}
		if total != 20 {
			s.Errorf("%d shards hold %d rows, want 20", n, total)
		}
		status, err := store.Status(s.ctx())
		s.check(err)
		if len(status.Leases) != n {
			s.Errorf("%d leases, want %d", len(status.Leases), n)
		}
	}
}

// names: a table may be called anything that the database allows.
func names(s *suite) {
	for i, name := range append(slices.Clone(s.Names), "MixedCase", "select") {
		plans := s.plans()[:len(s.plans())-1]
		if i > 0 { // the first one is the worst
			plans = plans[i%len(plans):][:1]
		}
		for _, plan := range plans {
			table := fmt.Sprintf("%s%d", name, max(1, plan.Shards)*10+int(plan.Layout))
			store := s.Open(s.T, table)
			_, err := store.Migrate(s.ctx(), plan)
			if err != nil {
				s.Errorf("migrate %q: %v", table, err)
				continue
			}
			if store.Name() != table {
				s.Errorf("name %q, want %q", store.Name(), table)
			}
			later := message(9)
			later.AvailableAt = time.Now().Add(-time.Hour)
			s.check(outbox.Enqueue(s.ctx(), s.Tx(s.DB).Table(table), append(messages(3), later)...))
			if moved, _, err := store.Promote(s.ctx(), 10); err != nil || moved != 1 {
				s.Errorf("promote %q: %d, %v", table, moved, err)
			}
			total := 0
			for i := range max(1, plan.Shards) {
				l := s.lead(store, i)
				rows := s.read(l, 0)
				total += len(rows)
				s.settled(l, s.mark(l))
				if len(rows) > 0 {
					s.check(l.Park(s.ctx(), []outbox.Parking{{Seq: rows[0].Seq, ID: rows[0].ID, Attempts: 1, Error: "x"}}))
					bury(s, l, rows[0], "rejected")
					s.check(l.Ack(s.ctx(), outbox.Refs(rows[1:])))
				}
				s.check(l.Close())
			}
			if total != 4 {
				s.Errorf("%q holds %d rows, want 4", table, total)
			}
			if again, err := store.Migrate(s.ctx(), plan); err != nil || len(again) != 0 {
				s.Errorf("migrate %q again: %q, %v", table, again, err)
			}
			if p, ok := store.(outbox.Partitioner); ok && plan.Partition.Period != outbox.Unpartitioned {
				_, err := p.MaintainPartitions(s.ctx(), plan.Partition)
				s.check(err)
			}
			if _, err := store.Purge(s.ctx(), outbox.Query{State: outbox.Dead}); err != nil {
				s.Errorf("purge %q: %v", table, err)
			}
		}
	}
}
