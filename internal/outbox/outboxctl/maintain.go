package outboxctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weirdb/weir/outbox"
)

// Maintenance is what the leading relay does to the tables.
type Maintenance struct {
	// Partitions to create and drop. Its Period must be the table's, or zero.
	// Ignored for tables without partitions.
	Partitions outbox.PartitionSpec

	// PurgeDelivered deletes delivered messages of layout History that are older,
	// PurgeDead dead ones. Zero: never.
	PurgeDelivered, PurgeDead time.Duration

	// Every is the time between two runs. Default: 10 min.
	Every time.Duration
}

// maintainRetry is the pause after a failed run, leaderPoll the pause between checks whether this
// relay leads.
const (
	maintainRetry = time.Minute
	leaderPoll    = time.Second
)

// maintain runs maintenance until ctx ends. It returns an error if the tables do not allow it, and
// calls allowed if they do.
func (s *Service) maintain(ctx context.Context, allowed func()) error {
	desc, err := s.awaitDescription(ctx)
	switch {
	case ctx.Err() != nil:
		return nil
	case err != nil:
		return err // the relay may have been told of older tables
	}
	m := s.cfg.Maintenance
	if err := m.check(desc); err != nil {
		return err
	}
	allowed()
	m.Partitions.Period = desc.Period
	if desc.Period == outbox.Unpartitioned && m.PurgeDelivered == 0 && m.PurgeDead == 0 {
		return nil
	}
	for {
		pause := cmp.Or(m.Every, 10*time.Minute)
		switch {
		case s.cfg.Relay.Claim != outbox.SkipLocked && s.relay.Stats().Leading == 0:
			pause = leaderPoll
		default:
			if err := s.maintainOnce(ctx, m); err != nil && ctx.Err() == nil {
				s.cfg.Log.Warn("maintenance failed, trying again", "table", s.store.Name(), "error", err)
				pause = min(pause, maintainRetry)
			}
		}
		if !sleep(ctx, pause) {
			return nil
		}
	}
}

// awaitDescription returns the description of the tables, and retries while the database is away.
func (s *Service) awaitDescription(ctx context.Context) (outbox.Description, error) {
	for {
		desc, err := s.store.Describe(ctx)
		if err == nil || errors.Is(err, outbox.ErrNotMigrated) || errors.Is(err, outbox.ErrNewer) || !sleep(ctx, leaderPoll) {
			return desc, err
		}
	}
}

func (m Maintenance) check(desc outbox.Description) error {
	if want := m.Partitions.Period; want != outbox.Unpartitioned && want != desc.Period {
		return fmt.Errorf("--partition-period %s: the table's is %s: `weir outbox migrate --partition %s --convert` changes it", want, desc.Period, want)
	}
	if m.PurgeDelivered > 0 && desc.Layout != outbox.History {
		return fmt.Errorf("--purge-after: layout %s keeps nothing that was delivered", desc.Layout)
	}
	return nil
}

// maintainOnce runs all maintenance once.
func (s *Service) maintainOnce(ctx context.Context, m Maintenance) error {
	var errs []error
	if p, ok := s.store.(outbox.Partitioner); ok && m.Partitions.Period != outbox.Unpartitioned {
		report, err := p.MaintainPartitions(ctx, m.Partitions)
		errs = append(errs, err)
		s.logPartitions(report)
	}
	for _, kind := range []struct {
		state outbox.State
		age   time.Duration
	}{{outbox.Delivered, m.PurgeDelivered}, {outbox.Dead, m.PurgeDead}} {
		if kind.age == 0 {
			continue
		}
		n, err := s.store.Purge(ctx, outbox.Query{State: kind.state, OlderThan: kind.age})
		errs = append(errs, err)
		if n > 0 {
			s.cfg.Log.Info("purged messages", "table", s.store.Name(), "state", string(kind.state), "messages", n)
		}
	}
	return errors.Join(errs...)
}

func (s *Service) logPartitions(r outbox.PartitionReport) {
	if len(r.Created)+len(r.Dropped) > 0 {
		s.cfg.Log.Info("partitions maintained", "table", s.store.Name(), "created", r.Created, "dropped", r.Dropped)
	}
	if len(r.Kept) > 0 {
		s.cfg.Log.Warn("partitions are due to be dropped and hold pending messages", "table", s.store.Name(), "partitions", r.Kept)
	}
	if r.CatchAllRows > 0 {
		s.cfg.Log.Warn("rows lie in the catch-all partition: none was there for their time", "table", s.store.Name(), "rows", r.CatchAllRows)
	}
}
