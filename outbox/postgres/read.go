package postgres

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weirdb/weir/outbox"
)

// maxPartedGaps is the most gaps that one statement reads from a partitioned table: each is
// searched for in every partition.
const maxPartedGaps = 8

// reader is the read path of a lease. It is owned by the goroutine that reads.
type reader struct {
	prepared *pgx.Conn // on which the statements are prepared
	rows     []outbox.Row
	spans    []textSpan
	params   [][]byte
	// large says that a page of full length may exceed its bytes, so the server
	// counts them. That costs a few percent of CPU, but otherwise the server
	// would send rows that are thrown away.
	large bool
	// bytes and text are the sizes of the last page, used to allocate the next.
	bytes, text int
	skipped     int64             // the lowest number that the page left out because of its bytes
	topics      map[string]string // interned; there are few
	started     bool
}

// textSpan is where the parts of one row are in the memory of its page.
type textSpan struct {
	payload, payloadEnd      int // in the bytes
	key, keyEnd, dedupKeyEnd int // in the text
}

// Read implements [outbox.Lease]. A page is one snapshot.
func (l *lease) Read(ctx context.Context, req outbox.ReadRequest) (page outbox.Page, err error) {
	if req.Limit < 1 || req.MaxBytes < 1 {
		return page, fmt.Errorf("outbox: read %s: limits of %d rows and %d bytes: want at least 1", l.store.Name(), req.Limit, req.MaxBytes)
	}
	if l.meta.partitioned() {
		req.Gaps = mergeRanges(req.Gaps, maxPartedGaps)
	}
	err = l.do(ctx, "read", &l.read, func(c *pgx.Conn) error {
		page, err = l.reader.read(ctx, c, &l.sql, req)
		return err
	})
	if err != nil {
		return outbox.Page{}, err
	}
	l.remember(page.Rows)
	return page, nil
}

// mergeRanges merges neighbours until there are at most limit ranges. Neighbours are mostly
// close together, so it does not matter much which are merged.
func mergeRanges(rs []outbox.Range, limit int) []outbox.Range {
	if len(rs) <= limit {
		return rs
	}
	out := make([]outbox.Range, 0, limit)
	for i := range limit {
		first, last := rs[i*len(rs)/limit], rs[(i+1)*len(rs)/limit-1]
		out = append(out, outbox.Range{First: first.First, Last: last.Last})
	}
	return out
}

// Names of the prepared statements of read.
const (
	nameHead        = "weir_head"
	nameGaps        = "weir_gaps"
	nameHeadBounded = "weir_head_bounded"
	nameGapsBounded = "weir_gaps_bounded"
)

func (r *reader) read(ctx context.Context, c *pgx.Conn, sql *statements, req outbox.ReadRequest) (outbox.Page, error) {
	if r.prepared != c {
		for name, text := range map[string]string{
			nameHead: sql.head, nameGaps: sql.gaps, nameHeadBounded: sql.headBounded, nameGapsBounded: sql.gapBounds,
		} {
			if _, err := c.Prepare(ctx, name, text); err != nil {
				return outbox.Page{}, fmt.Errorf("prepare: %w", err)
			}
		}
		r.prepared = c
	}
	if !r.started {
		r.started, r.large, r.topics = true, true, map[string]string{}
	}
	result := c.PgConn().ExecPrepared(ctx, r.bind(req), r.params, nil, binaryFormat)
	page, err := r.collect(result, req)
	if _, closing := result.Close(); err == nil {
		err = closing
	}
	if err != nil {
		return outbox.Page{}, err
	}
	return page, nil
}

// binaryFormat asks for all columns in binary.
var binaryFormat = []int16{1}

// bind sets the parameters and returns the name of the statement.
func (r *reader) bind(req outbox.ReadRequest) (name string) {
	number := func(n int) []byte { return strconv.AppendInt(nil, int64(n), 10) }
	r.params = append(r.params[:0], strconv.AppendInt(nil, req.After, 10), number(req.Limit))
	name = nameHead
	if len(req.Gaps) > 0 {
		name = nameGaps
		first, last := []byte{'{'}, []byte{'{'}
		for i, g := range req.Gaps {
			if i > 0 {
				first, last = append(first, ','), append(last, ',')
			}
			first, last = strconv.AppendInt(first, g.First, 10), strconv.AppendInt(last, g.Last, 10)
		}
		r.params = append(r.params, append(first, '}'), append(last, '}'))
	}
	if r.large {
		name += "_bounded"
		r.params = append(r.params, number(req.MaxBytes))
	}
	return name
}

// collect reads the rows into memory of this page: one allocation for payloads and one for
// text, sized by the last page.
func (r *reader) collect(result *pgconn.ResultReader, req outbox.ReadRequest) (outbox.Page, error) {
	r.rows, r.spans = r.rows[:0], r.spans[:0]
	payloads := make([]byte, 0, r.bytes+r.bytes/8+1024)
	text := make([]byte, 0, r.text+r.text/8+256)
	sent, largest, full, ordered := 0, 0, false, true
	r.skipped = math.MaxInt64
	for result.NextRow() {
		values := result.Values()
		sent++
		row, sp, err := r.decode(values, &text)
		if err != nil {
			return outbox.Page{}, err
		}
		if n := len(r.rows); n > 0 && row.Seq <= r.rows[n-1].Seq {
			ordered = false
		}
		size := len(values[4])
		largest = max(largest, size)
		// When the bytes are full the rest is read and dropped, unless rows turn out not to
		// be in order.
		if full = full || len(r.rows) > 0 && len(payloads)+size > req.MaxBytes; full && ordered {
			r.skipped = min(r.skipped, row.Seq)
			continue
		}
		sp.payload = len(payloads)
		payloads = append(payloads, values[4]...)
		sp.payloadEnd = len(payloads)
		r.rows, r.spans = append(r.rows, row), append(r.spans, sp)
	}
	// The server sends nothing after a first row that is larger than the bytes.
	full = full || len(payloads) > req.MaxBytes
	all := string(text)
	for i := range r.rows {
		r.spans[i].fill(&r.rows[i], payloads, all)
	}
	r.bytes, r.text = len(payloads), len(text)
	more := full || sent >= req.Limit
	if !ordered || len(r.rows) > req.Limit {
		more = r.order(req) || more
	}
	r.large = full || largest > req.MaxBytes/max(1, req.Limit)
	return outbox.Page{Rows: r.rows, More: more}, nil
}

// order sorts the rows and cuts them to the limits.
func (r *reader) order(req outbox.ReadRequest) (cut bool) {
	slices.SortFunc(r.rows, func(a, b outbox.Row) int { return int(min(max(a.Seq-b.Seq, -1), 1)) })
	bytes := 0
	for i := range r.rows {
		bytes += len(r.rows[i].Payload)
		if i == req.Limit || i > 0 && bytes > req.MaxBytes || r.rows[i].Seq > r.skipped {
			r.rows = r.rows[:i]
			return true
		}
	}
	return false
}

// pgEpoch is the epoch of PostgreSQL's binary timestamps, in microseconds since 1970.
var pgEpoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()

var errRow = errors.New("the server sent a row with unexpected columns")

// decode reads the values of rowColumns in binary. It appends strings to text.
func (r *reader) decode(v [][]byte, text *[]byte) (row outbox.Row, sp textSpan, err error) {
	if len(v) != 8 || len(v[0]) != 8 || len(v[1]) != 16 || len(v[7]) != 8 {
		return row, sp, errRow
	}
	row.Seq = int64(binary.BigEndian.Uint64(v[0]))
	copy(row.ID[:], v[1])
	row.Topic = r.topic(v[2])
	row.CreatedAt = time.UnixMicro(int64(binary.BigEndian.Uint64(v[7])) + pgEpoch).UTC()
	t := *text
	sp.key = len(t)
	t = append(t, v[3]...)
	sp.keyEnd = len(t)
	t = append(t, v[6]...)
	sp.dedupKeyEnd = len(t)
	*text = t
	if len(v[5]) > 0 {
		row.Headers, row.Unreadable = outbox.DecodeHeaders(v[5])
	}
	return row, sp, nil
}

// fill sets the row's fields that are in the page's memory.
func (sp *textSpan) fill(row *outbox.Row, payloads []byte, text string) {
	row.Payload = payloads[sp.payload:sp.payloadEnd:sp.payloadEnd]
	row.Key = text[sp.key:sp.keyEnd]
	row.DedupKey = text[sp.keyEnd:sp.dedupKeyEnd]
}

// maxTopics bounds the interned topics.
const maxTopics = 1000

// topic interns a topic.
func (r *reader) topic(b []byte) string {
	if t, ok := r.topics[string(b)]; ok {
		return t
	}
	if len(r.topics) >= maxTopics {
		clear(r.topics)
	}
	t := string(b)
	r.topics[t] = t
	return t
}

// collect reads rows of rowColumns.
func collect(rows pgx.Rows) ([]outbox.Row, error) { return collectWith(rows, false) }

// collectWith reads rows of rowColumns, followed by attempts if withAttempts.
func collectWith(rows pgx.Rows, withAttempts bool) ([]outbox.Row, error) {
	var out []outbox.Row
	defer rows.Close()
	for rows.Next() {
		var row outbox.Row
		var extra []any
		if withAttempts {
			extra = []any{&row.Attempts}
		}
		if err := scanRow(rows, &row, extra...); err != nil {
			return nil, err
		}
		out = append(out, row)
	}
	return out, rows.Err()
}

// scanRow reads rowColumns and further columns.
func scanRow(rows pgx.Rows, row *outbox.Row, extra ...any) error {
	var headers, dedup *string
	into := []any{&row.Seq, (*[16]byte)(&row.ID), &row.Topic, &row.Key, &row.Payload, &headers, &dedup, &row.CreatedAt}
	if err := rows.Scan(append(into, extra...)...); err != nil {
		return err
	}
	row.CreatedAt = row.CreatedAt.UTC()
	if dedup != nil {
		row.DedupKey = *dedup
	}
	if headers != nil {
		row.Headers, row.Unreadable = outbox.DecodeHeaders([]byte(*headers))
	}
	return nil
}

// Fetch implements [outbox.Lease].
func (l *lease) Fetch(ctx context.Context, seqs []int64) (rows []outbox.Row, err error) {
	if len(seqs) == 0 {
		return nil, l.deposed()
	}
	err = l.do(ctx, "fetch from", &l.write, func(c *pgx.Conn) error {
		result, err := c.Query(ctx, l.sql.fetch, seqs)
		if err != nil {
			return err
		}
		rows, err = collect(result)
		return err
	})
	l.remember(rows)
	return rows, err
}

// Pending implements [outbox.Lease].
func (l *lease) Pending(ctx context.Context, after, last int64, limit int) (seqs []int64, err error) {
	err = l.do(ctx, "list pending rows of", &l.write, func(c *pgx.Conn) error {
		rows, err := c.Query(ctx, l.sql.pending, after, last, limit)
		if err != nil {
			return err
		}
		seqs, err = pgx.CollectRows(rows, pgx.RowTo[int64])
		return err
	})
	return seqs, err
}
