package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weirdb/weir/outbox"
)

// shardRows says which rows belong to a shard.
type shardRows struct {
	all         bool // the only shard: buckets make no difference
	first, last int  // bucket
}

// filter selects rows of the shard, and rows that plain SQL inserted without a valid bucket,
// which contains checks.
func (h *shardRows) filter() string {
	if h.all {
		return ""
	}
	return fmt.Sprintf("(o.bucket BETWEEN %d AND %d OR o.bucket IS NULL OR o.bucket NOT BETWEEN 0 AND %d) AND ", h.first, h.last, outbox.Buckets-1)
}

// contains reports whether a row belongs to the shard. Rows inserted by plain SQL have no bucket;
// it is computed as outbox.Enqueue would.
func (h *shardRows) contains(bucket sql.NullInt64, key string, id []byte) bool {
	if h.all {
		return true
	}
	b := bucket.Int64
	if !bucket.Valid || b < 0 || b >= outbox.Buckets {
		var fixed outbox.ID
		copy(fixed[:], id)
		b = int64(outbox.Bucket(key, fixed))
	}
	return int64(h.first) <= b && b <= int64(h.last)
}

// rowColumns are the columns that scanRow reads, of table o.
const rowColumns = "o.seq, o.bucket, o.id, o.topic, o.msg_key, o.payload, o.headers, o.dedup_key, o.created_at"

// scanRow reads a row and further columns.
func (h *shardRows) scanRow(rows *sql.Rows, more ...any) (r outbox.Row, ours bool, err error) {
	var bucket sql.NullInt64
	var id, headers []byte
	var dedup sql.NullString
	var micros int64
	if err = rows.Scan(append([]any{&r.Seq, &bucket, &id, &r.Topic, &r.Key, &r.Payload, &headers, &dedup, &micros}, more...)...); err != nil {
		return r, false, err
	}
	r.DedupKey = dedup.String
	r.CreatedAt = time.UnixMicro(micros).UTC()
	copy(r.ID[:], id)
	if len(headers) > 0 {
		r.Headers, r.Unreadable = outbox.DecodeHeaders(headers)
	}
	return r, h.contains(bucket, r.Key, id), nil
}

func (l *lease) pending() string {
	if l.hist {
		return "o.status = 0 AND "
	}
	return ""
}

// maxRanges is the most gaps of a statement; the rest are merged into one range.
const maxRanges = 100

// readText is one statement: the rows in gaps, then those after req.After.
func (l *lease) readText(req outbox.ReadRequest) string {
	part := func(where string) string {
		return "SELECT * FROM (SELECT " + rowColumns + l.s.sql(" FROM {outbox} o WHERE ") + l.pending() + l.filter() + where + " ORDER BY o.seq)"
	}
	after := part(fmt.Sprintf("o.seq > %d", req.After))
	gaps := req.Gaps
	if len(gaps) == 0 {
		return after
	}
	if n := len(gaps); n > maxRanges {
		gaps = append(slices.Clone(gaps[:maxRanges-1]), outbox.Range{First: gaps[maxRanges-1].First, Last: gaps[n-1].Last})
	}
	ranges := make([]string, len(gaps))
	for i, g := range gaps {
		ranges[i] = fmt.Sprintf("o.seq BETWEEN %d AND %d", g.First, g.Last)
	}
	inside := fmt.Sprintf("o.seq BETWEEN %d AND %d AND (%s)", gaps[0].First, gaps[len(gaps)-1].Last, strings.Join(ranges, " OR "))
	return part(inside) + " UNION ALL " + after
}

// Read implements [outbox.Lease].
func (l *lease) Read(ctx context.Context, req outbox.ReadRequest) (page outbox.Page, err error) {
	err = l.inReadTx(ctx, "read", func(tx *sql.Tx) error {
		page = outbox.Page{Rows: l.rows[:0]}
		rows, err := tx.QueryContext(ctx, l.readText(req))
		if err != nil {
			return err
		}
		defer rows.Close()
		bytes := 0
		for rows.Next() {
			row, ours, err := l.scanRow(rows)
			if err != nil {
				return err
			}
			if !ours {
				continue
			}
			n := len(page.Rows)
			if n > 0 && row.Seq <= page.Rows[n-1].Seq {
				return fmt.Errorf("row %d comes after row %d", row.Seq, page.Rows[n-1].Seq)
			}
			if n == req.Limit || n > 0 && req.MaxBytes > 0 && bytes+len(row.Payload) > req.MaxBytes {
				page.More = true
				break
			}
			bytes += len(row.Payload)
			page.Rows = append(page.Rows, row)
		}
		return rows.Err()
	})
	l.rows = page.Rows
	if err != nil {
		return outbox.Page{}, err
	}
	return page, nil
}

// Pending implements [outbox.Lease].
func (l *lease) Pending(ctx context.Context, after, last int64, limit int) (out []int64, err error) {
	err = l.inReadTx(ctx, "list", func(tx *sql.Tx) error {
		out = nil
		rows, err := tx.QueryContext(ctx, "SELECT o.seq, o.bucket, o.msg_key, o.id"+l.s.sql(" FROM {outbox} o WHERE ")+l.pending()+l.filter()+
			"o.seq > ? AND o.seq <= ? ORDER BY o.seq", after, last)
		if err != nil {
			return err
		}
		defer rows.Close()
		for len(out) < limit && rows.Next() {
			var seq int64
			var bucket sql.NullInt64
			var key string
			var id []byte
			if err := rows.Scan(&seq, &bucket, &key, &id); err != nil {
				return err
			}
			if l.contains(bucket, key, id) {
				out = append(out, seq)
			}
		}
		return rows.Err()
	})
	return out, err
}

// Fetch implements [outbox.Lease].
func (l *lease) Fetch(ctx context.Context, seqs []int64) (out []outbox.Row, err error) {
	if len(seqs) == 0 {
		return nil, l.inReadTx(ctx, "fetch rows of", func(*sql.Tx) error { return nil })
	}
	err = l.inReadTx(ctx, "fetch rows of", func(tx *sql.Tx) error {
		out = nil
		rows, err := tx.QueryContext(ctx, "SELECT "+rowColumns+l.s.sql(" FROM {outbox} o WHERE ")+l.pending()+"o.seq IN "+inList+" ORDER BY o.seq", numbers(seqs))
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			row, ours, err := l.scanRow(rows)
			if err != nil {
				return err
			}
			if ours {
				out = append(out, row)
			}
		}
		return rows.Err()
	})
	return out, err
}
