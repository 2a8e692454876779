package mysql

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/weirdb/weir/outbox"
)

// Rows with adjacent numbers are deleted by a range of the primary key instead of one look-up
// each, which takes the server a fraction of the time. But a range locks every row in it and
// the one after its end, and waits for rows of producers that have not committed. So ranges
// contain only numbers whose rows this lease has seen: they are committed or gone.
//
//	numbers     ... 17 18 19 20 21 22 23 ...
//	seen         ---------------------         (23 is a producer's)
//	delivered       18 19    21 22
//	by a range      [18 ... 21]                22 is after its end, and looked up
const (
	fewRows   = 256  // up to so many are looked up one by one: a range takes a transaction of four statements
	thinRange = 4    // the most numbers for each row of a range
	maxSeen   = 1024 // ranges of numbers that a lease remembers, the highest
	maxLooks  = 64   // the most ranges of one plain read

	// rangeBackoffTime is for how long rows are looked up one by one after a range had to wait
	// for a locked row: while it waits, it holds the locks of its other rows.
	rangeBackoffTime = 30 * time.Second
)

// numbers is a set of numbers: ascending ranges that do not touch.
type numbers []outbox.Range

// add adds a number. It is cheap for numbers close to the highest.
func (n *numbers) add(seq int64) {
	s := *n
	i := len(s)
	for i > 0 && s[i-1].First > seq {
		i-- // few numbers are out of order, and not by much
	}
	switch {
	case i > 0 && seq <= s[i-1].Last:
	case i > 0 && seq == s[i-1].Last+1:
		s[i-1].Last = seq
		if i < len(s) && s[i].First == seq+1 {
			s[i-1].Last = s[i].Last
			s = slices.Delete(s, i, i+1)
		}
	case i < len(s) && s[i].First == seq+1:
		s[i].First = seq
	default:
		if s = slices.Insert(s, i, outbox.Range{First: seq, Last: seq}); len(s) > maxSeen {
			s = slices.Delete(s, 0, len(s)-maxSeen/2)
		}
	}
	*n = s
}

// rangeOf returns the range that contains a number.
func (n numbers) rangeOf(seq int64) (outbox.Range, bool) {
	i, found := slices.BinarySearchFunc(n, seq, func(r outbox.Range, seq int64) int { return cmp.Compare(r.First, seq) })
	if !found {
		i--
	}
	if i < 0 || seq > n[i].Last {
		return outbox.Range{}, false
	}
	return n[i], true
}

// ranges sorts rows by number and splits them into ranges and rows to look up.
func (d *deliveries) ranges(rows []outbox.Ref) (ranges [][]outbox.Ref, rest []outbox.Ref) {
	slices.SortFunc(rows, func(a, b outbox.Ref) int { return cmp.Compare(a.Seq, b.Seq) })
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(rows) > 0 {
		n := 1
		if seen, ok := d.seen.rangeOf(rows[0].Seq); ok {
			for n < len(rows) && rows[n].Seq <= seen.Last && rows[n].Seq > rows[n-1].Seq && rows[n].Seq-rows[n-1].Seq <= 16*thinRange {
				n++
			}
		}
		// The last row is the one after the end of the range.
		if m := n - 1; m >= fewRows && rows[m-1].Seq-rows[0].Seq < int64(m*thinRange) {
			ranges, rest = append(ranges, rows[:m]), append(rest, rows[m])
		} else {
			rest = append(rest, rows[:n]...)
		}
		rows = rows[n:]
	}
	return ranges, rest
}

// rangeText deletes rows, which are sorted by number, by a range. The statement has a table with
// a place for each number: a 1 and the id for rows to delete, zeros for others, which no row
// matches.
func (d *deliveries) rangeText(from, fenced string, rows []outbox.Ref) string {
	first, last := rows[0].Seq, rows[len(rows)-1].Seq
	const place = 1 + len(outbox.ID{})
	ids := make([]byte, int(last-first+1)*place)
	for i := range rows {
		at := int(rows[i].Seq-first) * place
		ids[at] = 1
		copy(ids[at+1:], rows[i].ID[:])
	}
	b := make([]byte, 0, 256+2*len(ids))
	b = append(b, "DELETE o FROM "...)
	b = append(b, from...)
	b = append(b, d.sql("{outbox} o FORCE INDEX (PRIMARY) WHERE o.seq BETWEEN ")...)
	b = strconv.AppendInt(b, first, 10)
	b = append(b, " AND "...)
	b = strconv.AppendInt(b, last, 10)
	b = append(b, " AND CONCAT(X'01', o.id) = SUBSTR(X'"...)
	b = hex.AppendEncode(b, ids)
	b = append(b, "', (o.seq - "...)
	b = strconv.AppendInt(b, first, 10)
	b = append(b, ") * 17 + 1, 17) AND "...)
	return string(append(b, fenced...))
}

// rangeBackoff disables ranges for a while. It is safe for concurrent use.
type rangeBackoff struct{ until atomic.Int64 } // nanoseconds since 1970

// start disables ranges for rangeBackoffTime.
func (h *rangeBackoff) start() { h.until.Store(time.Now().Add(rangeBackoffTime).UnixNano()) }

// over reports whether ranges may be used.
func (h *rangeBackoff) over() bool { return time.Now().UnixNano() > h.until.Load() }

// ackRanges deletes rows by ranges and the rest by look-ups, in one transaction. If it fails to
// get a lock, it rolls back.
func (d *deliveries) ackRanges(ctx context.Context, c *session, from, fenced string, ranges [][]outbox.Ref, rest []outbox.Ref) (hit int64, err error) {
	texts := make([]string, 0, len(ranges)+1)
	for _, rows := range ranges {
		texts = append(texts, d.rangeText(from, fenced, rows))
	}
	texts = append(texts, d.ackTexts(from, fenced, rest)...)
	if err := c.exec(ctx, "START TRANSACTION"); err != nil {
		return 0, err
	}
	for _, text := range texts {
		n, err := c.affected(ctx, text)
		if err != nil {
			return 0, rolledBack(c, err)
		}
		hit += n
	}
	if err := c.exec(ctx, "COMMIT"); err != nil {
		return 0, rolledBack(c, err)
	}
	return hit, nil
}

// rolledBack rolls back a transaction that failed with err, and returns err.
func rolledBack(c *session, err error) error {
	if e := c.rollback(); e != nil {
		return fmt.Errorf("%w (and to roll back: %w)", err, e)
	}
	return err
}
