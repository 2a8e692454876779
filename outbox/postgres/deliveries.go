package postgres

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weirdb/weir/outbox"
)

// deliveries remembers of rows that were read, and whose delivery is not recorded yet, what makes
// the record cheap.
type deliveries struct {
	mu      sync.Mutex
	noted   map[int64]struct{}  // rows of this shard with a note of failed attempts
	created map[int64]time.Time // creation times of rows that were read and not yet acked; partitioned tables only
}

// ackHints returns which rows have notes, and the first and last creation time of all rows
// (zero if one of them is unknown).
func (d *deliveries) ackHints(seqs []int64) (noted []int64, from, to time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	known := d.created != nil
	for _, seq := range seqs {
		if len(d.noted) > 0 {
			if _, ok := d.noted[seq]; ok {
				noted = append(noted, seq)
			}
		}
		if !known {
			continue
		}
		at, ok := d.created[seq]
		if known = ok; !ok {
			continue
		}
		if from.IsZero() || at.Before(from) {
			from = at
		}
		if at.After(to) {
			to = at
		}
	}
	if !known {
		return noted, time.Time{}, time.Time{}
	}
	return noted, from, to
}

// forget drops the state of rows that are no longer pending.
func (d *deliveries) forget(seqs []int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, seq := range seqs {
		delete(d.created, seq)
	}
	if len(d.noted) > 0 {
		for _, seq := range seqs {
			delete(d.noted, seq)
		}
	}
}

// remember keeps the creation times of rows that were read, by which their ack finds the
// partition.
func (d *deliveries) remember(rows []outbox.Row) {
	if d.created == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range rows {
		d.created[rows[i].Seq] = rows[i].CreatedAt
	}
}

// Ack implements [outbox.Lease]. Its commit does not wait for the disk: if the server
// crashes, the last acks may be lost and their messages are delivered again.
func (l *lease) Ack(ctx context.Context, rows []outbox.Ref) error {
	if len(rows) == 0 {
		return l.deposed()
	}
	seqs, ids := make([]int64, len(rows)), make([][16]byte, len(rows))
	for i, row := range rows {
		seqs[i], ids[i] = row.Seq, row.ID
	}
	noted, from, to := l.ackHints(seqs)
	err := l.do(ctx, "note deliveries in", &l.write, func(c *pgx.Conn) error {
		if len(noted) > 0 {
			if _, err := c.Exec(ctx, l.sql.unpark, noted); err != nil {
				return err
			}
		}
		var tag pgconn.CommandTag
		var err error
		if !from.IsZero() {
			tag, err = c.Exec(ctx, l.sql.ackBetween, seqs, ids, from, to)
			if err != nil || int(tag.RowsAffected()) == len(seqs) {
				return err
			}
			// Some rows are gone, or their created_at was changed: search all partitions.
		}
		_, err = c.Exec(ctx, l.sql.ack, seqs, ids)
		return err
	})
	if err == nil {
		l.forget(seqs)
	}
	return err
}
