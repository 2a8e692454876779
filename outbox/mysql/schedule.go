package mysql

import (
	"context"
	"database/sql/driver"
	"fmt"
	"time"
)

// Promote implements [outbox.Store].
func (s *Store) Promote(ctx context.Context, limit int) (moved int, next time.Duration, err error) {
	err = s.inTx(ctx, func(c *session) error {
		seqs, err := c.numbers(ctx, s.sql(fmt.Sprintf(
			"SELECT seq FROM {scheduled} FORCE INDEX (due) WHERE available_at <= UTC_TIMESTAMP(6) ORDER BY available_at, seq LIMIT %d FOR UPDATE SKIP LOCKED", limit)))
		if err != nil {
			return err
		}
		if moved = len(seqs); moved == 0 {
			return nil
		}
		// ORDER BY makes the new numbers ascend in the order of due times.
		for _, text := range []string{
			"INSERT INTO {outbox} (" + messageColumns + ") SELECT " + messageColumnsOf("s") + " FROM " + numbersTable(seqs) +
				" STRAIGHT_JOIN {scheduled} s ON s.seq = d.s ORDER BY s.available_at, s.seq",
			"DELETE s FROM " + numbersTable(seqs) + " STRAIGHT_JOIN {scheduled} s ON s.seq = d.s",
		} {
			if err := c.exec(ctx, s.sql(text)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return 0, 0, s.fail("promote scheduled rows of", err)
	}
	if next, err = s.nextDue(ctx); err != nil {
		return moved, 0, s.fail("look at scheduled rows of", err)
	}
	return moved, next, nil
}

// nextDue returns how long until the next scheduled row is due; negative if there is none.
func (s *Store) nextDue(ctx context.Context) (time.Duration, error) {
	next := time.Duration(-1)
	err := s.with(ctx, func(c *session) error {
		var micros *int64
		text := s.sql("SELECT TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), MIN(available_at)) FROM {scheduled}")
		if err := c.QueryRowContext(ctx, text).Scan(&micros); err != nil {
			return err
		}
		if micros != nil {
			next = time.Duration(min(max(0, *micros), 24*time.Hour.Microseconds())) * time.Microsecond
		}
		return nil
	})
	return next, err
}

// numbers runs a query with one numeric column.
func (c *session) numbers(ctx context.Context, query string) ([]int64, error) {
	var out []int64
	err := c.scan(ctx, query, func(values []driver.Value) (bool, error) {
		n, _, err := integer(values[0])
		out = append(out, n)
		return true, err
	})
	return out, err
}
