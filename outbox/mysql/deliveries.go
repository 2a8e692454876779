package mysql

import (
	"context"
	"sync"

	"github.com/weirdb/weir/outbox"
)

// deliveries records which rows were delivered. Of rows that were read and not yet recorded it
// remembers what makes that cheap.
type deliveries struct {
	names
	hist  bool // layout History
	parts bool // and partitioned

	rangeBackoff rangeBackoff // of ranges

	mu     sync.Mutex // guards what follows
	parked map[int64]struct{}
	// made has the creation times of rows that were read and not yet acknowledged,
	// in microseconds since 1970: with it, an acknowledgement searches one
	// partition instead of all. Nil without partitions.
	made map[int64]int64
	// seen are the numbers of rows that were read: they are committed, or gone.
	seen numbers
}

// ackTexts returns the statements that acknowledge rows: one, and another for rows of a
// partitioned table whose creation time is unknown, which searches every partition.
func (d *deliveries) ackTexts(from, fenced string, rows []outbox.Ref) []string {
	// Without the hint MariaDB scans a table that it believes to be nearly empty.
	const forced = " FORCE INDEX (PRIMARY) ON o.seq = d.s AND o.id = UNHEX(d.i)"
	if !d.hist {
		return []string{"DELETE o FROM " + from + refsTable(rows, nil) + d.sql(" STRAIGHT_JOIN {outbox} o") + forced + " WHERE " + fenced}
	}
	known, made, unknown := d.creation(rows)
	var out []string
	add := func(list, join string) {
		out = append(out, "UPDATE "+from+list+d.sql(" STRAIGHT_JOIN {outbox} o")+forced+join+
			" SET o.status = 1, o.done_at = UTC_TIMESTAMP(6) WHERE o.status = 0 AND "+fenced)
	}
	if len(known) > 0 {
		add(refsTable(known, made), " AND o.created_at = d.c")
	}
	if len(unknown) > 0 {
		add(refsTable(unknown, nil), "")
	}
	return out
}

// creation splits the rows into those whose creation time is known and the others.
func (d *deliveries) creation(rows []outbox.Ref) (known []outbox.Ref, made []int64, unknown []outbox.Ref) {
	if !d.parts {
		return nil, nil, rows
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, row := range rows {
		if at, ok := d.made[row.Seq]; ok {
			known, made = append(known, row), append(made, at)
		} else {
			unknown = append(unknown, row)
		}
	}
	return known, made, unknown
}

// forget drops the state of rows that are done, and returns those that have a note.
func (d *deliveries) forget(seqs []int64) (parked []int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.parked) == 0 && len(d.made) == 0 {
		return nil
	}
	for _, seq := range seqs {
		delete(d.made, seq)
		if _, ok := d.parked[seq]; ok {
			parked = append(parked, seq)
			delete(d.parked, seq)
		}
	}
	return parked
}

// unpark deletes the notes of rows that are done. If the relay dies before that, the next leader
// deletes them.
func (d *deliveries) unpark(ctx context.Context, c *session, seqs []int64) error {
	return retry(ctx, func() error {
		return c.exec(ctx, "DELETE p FROM "+numbersTable(seqs)+d.sql(" STRAIGHT_JOIN {parked} p ON p.seq = d.s"))
	})
}

// unparkOf deletes the notes of acknowledged rows.
func (d *deliveries) unparkOf(ctx context.Context, c *session, rows []outbox.Row, acked []int64) error {
	done := make(map[int64]struct{}, len(acked))
	for _, seq := range acked {
		done[seq] = struct{}{}
	}
	var noted []int64
	for i := range rows {
		if _, ok := done[rows[i].Seq]; ok && rows[i].Attempts > 0 {
			noted = append(noted, rows[i].Seq)
		}
	}
	if len(noted) == 0 {
		return nil
	}
	return d.unpark(ctx, c, noted)
}

// remember keeps the numbers and creation times of rows for Ack.
func (d *deliveries) remember(rows []outbox.Row) {
	if !d.hist {
		d.markSeen(rows)
	}
	if !d.parts {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range rows {
		d.made[rows[i].Seq] = rows[i].CreatedAt.UnixMicro()
	}
}

// markSeen adds the numbers of rows that were read.
func (d *deliveries) markSeen(rows []outbox.Row) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range rows {
		d.seen.add(rows[i].Seq)
	}
}
