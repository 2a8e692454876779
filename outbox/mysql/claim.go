package mysql

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"

	"github.com/weirdb/weir/outbox"
)

// claim is an open transaction that holds locks on its rows.
type claim struct {
	s       *Store
	c       *session // nil: finished or released
	history bool
	parts   bool
	ids     bool // table _parked has column id
	rows    []outbox.Row
}

// Claim implements [outbox.Store].
func (s *Store) Claim(ctx context.Context, req outbox.ClaimRequest) (outbox.Claim, error) {
	c, err := s.session(ctx)
	if err != nil {
		return nil, s.fail("claim rows of", err)
	}
	k := &claim{s: s, c: c}
	err = retry(ctx, func() error { return k.take(ctx, req) })
	if err != nil {
		c.release(err)
		return nil, s.fail("claim rows of", err)
	}
	return k, nil
}

func (k *claim) take(ctx context.Context, req outbox.ClaimRequest) error {
	t, err := k.s.tableInfo(ctx, k.c)
	if err != nil {
		return err
	}
	if k.history, k.parts, k.ids = t.history, t.parts, t.noteIDs; req.Window > 0 && !k.parts {
		return outbox.ErrWindowNeedsPartitions
	}
	if err := k.c.exec(ctx, "START TRANSACTION"); err != nil {
		return err
	}
	err = k.lock(ctx, req)
	if err != nil {
		return errors.Join(err, k.c.rollback())
	}
	return nil
}

// text selects and locks rows. It skips rows that are locked or whose next attempt is not due.
func (k *claim) text(req outbox.ClaimRequest) string {
	index, where := "PRIMARY", ""
	if k.history {
		index, where = "pending", "o.status = 0 AND "
	}
	if req.Window > 0 {
		where += fmt.Sprintf("o.created_at > UTC_TIMESTAMP(6) - INTERVAL %d MICROSECOND AND ", req.Window.Microseconds())
	}
	return k.s.sql("SELECT "+rowColumns("o")+", (SELECT p.attempts FROM {parked} p WHERE "+noteOf(k.ids)+") FROM {outbox} o FORCE INDEX ("+index+") WHERE ") + where +
		k.s.sql("NOT EXISTS (SELECT 1 FROM {parked} p WHERE ") + noteOf(k.ids) + k.s.sql(" AND p.due_at > UTC_TIMESTAMP(6)) ") +
		fmt.Sprintf("ORDER BY o.seq LIMIT %d FOR UPDATE SKIP LOCKED", req.Limit)
}

func (k *claim) lock(ctx context.Context, req outbox.ClaimRequest) error {
	k.rows = nil
	d := decoder{all: true}
	bytes := 0
	return k.c.scan(ctx, k.text(req), func(values []driver.Value) (bool, error) {
		if req.MaxBytes > 0 && bytes >= req.MaxBytes {
			return true, nil // read and drop: ending the statement takes another session, which the pool may not have
		}
		row, _, err := d.row(values)
		if err != nil {
			return false, err
		}
		attempts, _, err := integer(values[rowWidth])
		row.Attempts = int(attempts)
		k.rows = append(k.rows, row)
		bytes += len(row.Payload)
		return true, err
	})
}

// Rows implements [outbox.Claim].
func (k *claim) Rows() []outbox.Row { return k.rows }

// errFinished is the error of a claim that has ended.
var errFinished = errors.New("the claim has ended already")

// Finish implements [outbox.Claim]. If it fails, everything is rolled back.
func (k *claim) Finish(ctx context.Context, acked []int64, parked []outbox.Parking, buried []outbox.Burial) error {
	if k.c == nil {
		return k.s.fail("finish a claim of", errFinished)
	}
	err := k.finish(ctx, acked, parked, buried)
	if err == nil {
		err = k.c.exec(ctx, "COMMIT")
	}
	if err != nil {
		return k.s.fail("finish a claim of", errors.Join(err, k.Release()))
	}
	k.c.release(nil)
	k.c = nil
	return nil
}

func (k *claim) finish(ctx context.Context, acked []int64, parked []outbox.Parking, buried []outbox.Burial) error {
	if len(acked) > 0 {
		d := &deliveries{names: k.s.names, hist: k.history, parts: k.parts, made: map[int64]int64{}}
		d.remember(k.rows)
		for _, text := range d.ackTexts("", "TRUE", refsOf(k.rows, acked)) {
			if err := k.c.exec(ctx, text); err != nil {
				return err
			}
		}
		if err := d.unparkOf(ctx, k.c, k.rows, acked); err != nil {
			return err
		}
	}
	if len(parked) > 0 {
		text, err := k.s.parkSQL("", "TRUE", k.history, k.ids, parked)
		if err != nil {
			return err
		}
		if err := k.c.exec(ctx, text); err != nil {
			return err
		}
	}
	if len(buried) > 0 {
		return k.s.bury(ctx, k.c, k.history, buried)
	}
	return nil
}

// refsOf returns references to the rows with these numbers.
func refsOf(rows []outbox.Row, seqs []int64) []outbox.Ref {
	wanted := make(map[int64]struct{}, len(seqs))
	for _, seq := range seqs {
		wanted[seq] = struct{}{}
	}
	refs := outbox.Refs(rows)
	return slices.DeleteFunc(refs, func(r outbox.Ref) bool { _, ok := wanted[r.Seq]; return !ok })
}

// Release implements [outbox.Claim].
func (k *claim) Release() error {
	if k.c == nil {
		return nil
	}
	c := k.c
	k.c = nil
	err := c.rollback()
	c.release(err)
	if err != nil {
		return k.s.fail("release a claim of", err)
	}
	return nil
}
