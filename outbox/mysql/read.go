package mysql

import (
	"cmp"
	"context"
	"database/sql/driver"
	"fmt"
	"slices"
	"strings"

	"github.com/weirdb/weir/outbox"
)

// source returns "FROM <outbox> o WHERE <pending> AND <of the shard> AND ", with the index
// that is ordered by number: with stale statistics the optimizer might scan the table.
func (l *lease) source() string {
	index, where := "PRIMARY", ""
	if l.hist {
		index, where = "pending", "o.status = 0 AND "
	}
	return l.s.sql("FROM {outbox} o FORCE INDEX ("+index+") WHERE ") + where + l.shardFilter()
}

// shardFilter selects rows of the shard, and rows that plain SQL inserted without a valid
// bucket, which the decoder checks.
func (l *lease) shardFilter() string {
	if l.all {
		return ""
	}
	return fmt.Sprintf("(o.bucket BETWEEN %d AND %d OR o.bucket IS NULL OR o.bucket < 0) AND ", l.first, l.last)
}

// readText is one statement, and so one snapshot. The parts of a UNION ALL are returned one
// after the other, each ordered by number, without a temporary table.
func (l *lease) readText(req outbox.ReadRequest, limit int) string {
	var b strings.Builder
	part := func() {
		b.WriteString("(SELECT ")
		b.WriteString(rowColumns("o"))
		b.WriteByte(' ')
		b.WriteString(l.source())
	}
	if n := len(req.Gaps); n > 0 {
		part()
		fmt.Fprintf(&b, "o.seq BETWEEN %d AND %d AND (", req.Gaps[0].First, req.Gaps[n-1].Last)
		for i, g := range req.Gaps {
			if i > 0 {
				b.WriteString(" OR ")
			}
			fmt.Fprintf(&b, "o.seq BETWEEN %d AND %d", g.First, g.Last)
		}
		fmt.Fprintf(&b, ") ORDER BY o.seq LIMIT %d) UNION ALL ", limit)
	}
	part()
	fmt.Fprintf(&b, "o.seq > %d ORDER BY o.seq LIMIT %d)", req.After, limit)
	if len(req.Gaps) > 0 {
		fmt.Fprintf(&b, " LIMIT %d", limit)
	}
	return b.String()
}

// Read implements [outbox.Lease].
func (l *lease) Read(ctx context.Context, req outbox.ReadRequest) (outbox.Page, error) {
	var page outbox.Page
	err := l.inSession(func(c *session) (err error) {
		page, err = l.read(ctx, c, req)
		return err
	})
	if err != nil {
		return outbox.Page{}, l.fail("read", err)
	}
	l.remember(page.Rows)
	return page, nil
}

// read repeats the query with a higher limit if the rows include some of other shards, so that
// the page has as many rows of this shard as without them.
func (l *lease) read(ctx context.Context, c *session, req outbox.ReadRequest) (outbox.Page, error) {
	for limit := req.Limit; ; limit *= 4 {
		p := pageBuilder{decoder: &l.decoder, req: req, rows: l.rows[:0]}
		err := c.scan(ctx, l.readText(req, limit), p.add)
		l.rows = p.rows
		if err != nil {
			return outbox.Page{}, err
		}
		if full := p.full || len(p.rows) == req.Limit; full || p.seen < limit {
			return outbox.Page{Rows: p.rows, More: full || p.seen == limit}, nil
		}
	}
}

// pageBuilder collects rows until the page is full.
type pageBuilder struct {
	decoder *decoder
	req     outbox.ReadRequest
	rows    []outbox.Row
	bytes   int  // of payload
	seen    int  // rows, including other shards'
	full    bool // a row did not fit
	wasted  int  // payload bytes of rows that did not fit
}

// maxWaste is how many payload bytes after the end of a page are read and dropped before the
// statement is stopped.
const maxWaste = 1 << 20

func (p *pageBuilder) add(values []driver.Value) (more bool, err error) {
	p.seen++
	if p.full {
		payload, err := text(values[5])
		p.wasted += len(payload)
		return p.wasted <= maxWaste, err
	}
	row, ours, err := p.decoder.row(values)
	if err != nil {
		return false, fmt.Errorf("%w: %w", errContent, err)
	}
	if !ours {
		return true, nil
	}
	n := len(p.rows)
	if n > 0 && row.Seq <= p.rows[n-1].Seq {
		return false, fmt.Errorf("%w: row %d comes after row %d", errContent, row.Seq, p.rows[n-1].Seq)
	}
	if n == p.req.Limit || n > 0 && p.req.MaxBytes > 0 && p.bytes+len(row.Payload) > p.req.MaxBytes {
		p.full = true
		p.wasted = len(row.Payload)
		return p.wasted <= maxWaste, nil
	}
	p.bytes += len(row.Payload)
	p.rows = append(p.rows, row)
	return true, nil
}

// Pending implements [outbox.Lease].
func (l *lease) Pending(ctx context.Context, after, last int64, limit int) ([]int64, error) {
	if err := l.deposed(); err != nil {
		return nil, l.fail("list", err)
	}
	var out []int64
	d := decoder{first: l.first, last: l.last, all: l.all}
	within := l.with
	if !l.all { // the limit includes other shards' rows: there may be several statements
		within = l.inSnapshot
	}
	err := within(ctx, func(c *session) error {
		for more := true; more && len(out) < limit; {
			n := 0
			text := fmt.Sprintf("SELECT o.seq, o.bucket, o.msg_key, o.id %so.seq > %d AND o.seq <= %d ORDER BY o.seq LIMIT %d", l.source(), after, last, limit)
			err := c.scan(ctx, text, func(values []driver.Value) (bool, error) {
				n++
				seq, ours, err := d.number(values)
				if err == nil && ours && len(out) < limit {
					out = append(out, seq)
				}
				after = seq
				return true, err
			})
			if err != nil {
				return err
			}
			more = n == limit
		}
		return nil
	})
	if err != nil {
		return nil, l.fail("list", err)
	}
	return out, nil
}

// number decodes seq, bucket, msg_key and id to a row's number and whether it belongs to the
// shard.
func (d *decoder) number(values []driver.Value) (seq int64, ours bool, err error) {
	if seq, _, err = integer(values[0]); err != nil {
		return 0, false, err
	}
	key, err := text(values[2])
	if err != nil {
		return 0, false, err
	}
	id, err := text(values[3])
	if err != nil {
		return 0, false, err
	}
	ours, err = d.inShard(values[1], key, id)
	return seq, ours, err
}

// Fetch implements [outbox.Lease].
func (l *lease) Fetch(ctx context.Context, seqs []int64) ([]outbox.Row, error) {
	if err := l.deposed(); err != nil {
		return nil, l.fail("fetch rows of", err)
	}
	if len(seqs) == 0 {
		return nil, nil
	}
	pending := ""
	if l.hist {
		pending = " AND o.status = 0"
	}
	out := make([]outbox.Row, 0, len(seqs))
	d := decoder{first: l.first, last: l.last, all: l.all}
	err := l.with(ctx, func(c *session) error {
		query := "SELECT " + rowColumns("o") + " FROM " + numbersTable(seqs) + l.s.sql(" STRAIGHT_JOIN {outbox} o ON o.seq = d.s") + pending
		return c.scan(ctx, query, func(values []driver.Value) (bool, error) {
			row, ok, err := d.row(values)
			if ok {
				out = append(out, row)
			}
			return true, err
		})
	})
	if err != nil {
		return nil, l.fail("fetch rows of", err)
	}
	slices.SortFunc(out, func(a, b outbox.Row) int { return cmp.Compare(a.Seq, b.Seq) })
	l.remember(out)
	return out, nil
}
