package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirdb/weir/outbox"
)

// loadNotes removes notes of rows that are gone, and remembers which rows have one. With many
// notes that takes long, so only the heartbeat bounds it.
func (l *lease) loadNotes(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-l.lost:
			cancel()
		case <-ctx.Done():
		}
	}()
	err := l.do(ctx, "load notes of attempts in", &l.write, func(c *pgx.Conn) error {
		if _, err := c.Exec(ctx, l.sql.forget); err != nil {
			return fmt.Errorf("remove notes of rows that are gone: %w", err)
		}
		notes, err := readNotes(ctx, c, l.sql.parked)
		for _, p := range notes {
			l.noted[p.Seq] = struct{}{}
		}
		return err
	})
	if errors.Is(err, outbox.ErrDeposed) {
		err = fmt.Errorf("%w: the server ended its session, or has not answered within %v", err, l.store.opts.LeaseTimeout)
	}
	return err
}

// Park implements [outbox.Lease]. It is fenced by the epoch.
func (l *lease) Park(ctx context.Context, p []outbox.Parking) error {
	if len(p) == 0 {
		return l.deposed()
	}
	c := parkingColumns(p)
	// Before the note is written: a later ack must delete it.
	l.mu.Lock()
	for _, seq := range c.seqs {
		l.noted[seq] = struct{}{}
	}
	l.mu.Unlock()
	return l.do(ctx, "park in", &l.write, func(conn *pgx.Conn) error {
		return l.fenced(conn.QueryRow(ctx, l.sql.park, c.seqs, c.ids, c.attempts, c.delays, c.errors, l.shard, l.epoch))
	})
}

// Bury implements [outbox.Lease]. It is fenced by the epoch.
func (l *lease) Bury(ctx context.Context, b []outbox.Burial) error {
	if len(b) == 0 {
		return l.deposed()
	}
	c := burialColumns(b)
	err := l.do(ctx, "bury in", &l.write, func(conn *pgx.Conn) error {
		return l.fenced(conn.QueryRow(ctx, l.sql.bury, c.seqs, c.ids, c.attempts, c.reasons, c.errors, l.shard, l.epoch))
	})
	if err == nil {
		l.forget(c.seqs)
	}
	return err
}

// Parked implements [outbox.Lease].
func (l *lease) Parked(ctx context.Context) (notes []outbox.Parking, err error) {
	err = l.do(ctx, "read what is parked in", &l.write, func(c *pgx.Conn) (err error) {
		notes, err = readNotes(ctx, c, l.sql.parked)
		return err
	})
	return notes, err
}

func readNotes(ctx context.Context, q querier, sql string) ([]outbox.Parking, error) {
	rows, err := q.Query(ctx, sql)
	if err != nil {
		return nil, fmt.Errorf("read notes of attempts: %w", err)
	}
	var notes []outbox.Parking
	var p outbox.Parking
	var micros int64
	_, err = pgx.ForEachRow(rows, []any{&p.Seq, (*[16]byte)(&p.ID), &p.Attempts, &micros, &p.Error}, func() error {
		p.Delay = time.Duration(micros) * time.Microsecond
		notes = append(notes, p)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read notes of attempts: %w", err)
	}
	return notes, nil
}
