package postgres

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/weirdb/weir/internal/wire/pgrepl"
	"github.com/weirdb/weir/outbox"
)

// BenchmarkRead reads a backlog as a relay does, page by page.
func BenchmarkRead(b *testing.B) {
	pg := server(b)
	r := newRig(b, pg)
	s := r.migrated(outbox.Plan{})
	r.exec(`INSERT INTO weir_outbox (bucket, topic, msg_key, payload)
		SELECT i % 32768, 'orders', 'key-' || i % 1000, convert_to(repeat('x', 512), 'UTF8') FROM generate_series(1, 50000) AS i`)
	for _, limit := range []int{100, 1000, 5000} {
		b.Run(fmt.Sprintf("limit=%d", limit), func(b *testing.B) {
			l := r.lead(s)
			defer func() { r.check(l.Close()) }()
			b.ReportAllocs()
			rows := 0
			var after int64
			for b.Loop() {
				page, err := l.Read(b.Context(), outbox.ReadRequest{After: after, Limit: limit, MaxBytes: 64 << 20})
				if err != nil {
					b.Fatal(err)
				}
				rows += len(page.Rows)
				after = page.Rows[len(page.Rows)-1].Seq
				if !page.More || after > 49_000 {
					after = 0
				}
			}
			b.ReportMetric(float64(rows)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}

// The result of a Read does not change when the next one comes.
func TestPagesKeepTheirMemory(t *testing.T) {
	pg := server(t)
	r := newRig(t, pg)
	l := r.lead(r.migrated(outbox.Plan{}))
	msgs := notes(100)
	for i := range msgs {
		msgs[i].DedupKey = fmt.Sprint("dedup", i)
		msgs[i].Headers = map[string]string{"n": fmt.Sprint(i)}
	}
	r.enqueue(msgs...)
	var all []outbox.Row
	var after int64
	for len(all) < len(msgs) {
		page, err := l.Read(r.ctx(), outbox.ReadRequest{After: after, Limit: 7, MaxBytes: 1 << 20})
		r.check(err)
		all = append(all, page.Rows...)
		after = all[len(all)-1].Seq
	}
	for i := range all {
		if got, want := all[i].Message, msgs[i]; got.Key != want.Key || got.DedupKey != want.DedupKey ||
			!bytes.Equal(got.Payload, want.Payload) || got.Headers["n"] != want.Headers["n"] || got.Topic != want.Topic {
			t.Fatalf("row %d is %+v, want %+v", i, got, want)
		}
		if cap(all[i].Payload) != len(all[i].Payload) {
			t.Fatal("appending to a payload would write into the next one")
		}
	}
}

func TestOrderCutsToAPrefix(t *testing.T) {
	row := func(seq int64, size int) outbox.Row {
		return outbox.Row{Seq: seq, Message: outbox.Message{Payload: make([]byte, size)}}
	}
	for name, c := range map[string]struct {
		rows    []outbox.Row
		skipped int64
		want    []int64
		cut     bool
	}{
		"in order":     {[]outbox.Row{row(1, 10), row(2, 10)}, 1 << 60, []int64{1, 2}, false},
		"out of order": {[]outbox.Row{row(7, 10), row(8, 10), row(2, 10), row(3, 10)}, 1 << 60, []int64{2, 3, 7}, true},
		"by bytes":     {[]outbox.Row{row(7, 60), row(2, 60)}, 1 << 60, []int64{2}, true},
		"one too long": {[]outbox.Row{row(7, 60), row(2, 600)}, 1 << 60, []int64{2}, true},
		"with a hole":  {[]outbox.Row{row(7, 10), row(2, 10)}, 6, []int64{2}, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := reader{rows: c.rows, skipped: c.skipped}
			cut := r.order(outbox.ReadRequest{Limit: 3, MaxBytes: 100})
			var got []int64
			for _, row := range r.rows {
				got = append(got, row.Seq)
			}
			if !slices.Equal(got, c.want) || cut != c.cut {
				t.Errorf("%v, cut %v; want %v, %v", got, cut, c.want, c.cut)
			}
		})
	}
}

func TestMergeRanges(t *testing.T) {
	var rs []outbox.Range
	for i := range int64(100) {
		rs = append(rs, outbox.Range{First: 10 * i, Last: 10*i + 3})
	}
	for _, limit := range []int{1, 3, 8, 99, 100, 200} {
		merged := mergeRanges(rs, limit)
		if len(merged) > limit {
			t.Errorf("%d ranges, want at most %d", len(merged), limit)
		}
		for i := 1; i < len(merged); i++ {
			if merged[i].First <= merged[i-1].Last {
				t.Errorf("limit %d: %v touches %v", limit, merged[i], merged[i-1])
			}
		}
		for _, want := range rs {
			if !slices.ContainsFunc(merged, func(m outbox.Range) bool { return m.First <= want.First && want.Last <= m.Last }) {
				t.Errorf("limit %d: %v is not covered", limit, want)
			}
		}
	}
}

func TestClean(t *testing.T) {
	for _, text := range []string{"", "plain", "a\x00b", "\xff\xfe", "ü", strings.Repeat("ü", maxError), "x" + strings.Repeat("ü", maxError), strings.Repeat("\x80", 2*maxError)} {
		got := clean(text)
		if !utf8.ValidString(got) || strings.ContainsRune(got, 0) || len(got) > maxError || strings.ContainsRune(got, utf8.RuneError) {
			t.Errorf("clean(%.10q) = %.10q of %d bytes", text, got, len(got))
		}
	}
}

func TestLiteral(t *testing.T) {
	pg := server(t)
	r := newRig(t, pg)
	for _, setting := range []string{"on", "off"} {
		c := r.conn()
		r.on(c, "SET standard_conforming_strings = "+setting)
		for _, text := range []string{"plain", "it's", `back\slash`, `\'; DROP TABLE x; --`, "ключ"} {
			var got string
			r.check(c.QueryRowContext(r.ctx(), "SELECT "+literal(text)).Scan(&got))
			if got != text {
				t.Errorf("literal(%q) is read as %q", text, got)
			}
		}
	}
}

// FuzzDecode: whatever a server sends as a row, nothing panics, and what is
// accepted has the bytes that were sent.
func FuzzDecode(f *testing.F) {
	seq := binary.BigEndian.AppendUint64(nil, 7)
	id := bytes.Repeat([]byte{1}, 16)
	f.Add(seq, id, "topic", "key", []byte("payload"), []byte(`{"a":"b"}`), "dedup", seq)
	f.Add([]byte{}, []byte{}, "", "", []byte(nil), []byte("{"), "", []byte{1})
	f.Fuzz(func(t *testing.T, seq, id []byte, topic, key string, payload, headers []byte, dedup string, at []byte) {
		r := reader{topics: map[string]string{}}
		values := [][]byte{seq, id, []byte(topic), []byte(key), payload, headers, []byte(dedup), at}
		text := []byte("before")
		row, sp, err := r.decode(values, &text)
		if fits := len(seq) == 8 && len(id) == 16 && len(at) == 8; fits != (err == nil) {
			t.Fatalf("sizes %d, %d, %d: %v", len(seq), len(id), len(at), err)
		}
		if err == nil {
			sp.payloadEnd = len(payload)
			sp.fill(&row, payload, string(text))
			if row.Topic != topic || row.Key != key || row.DedupKey != dedup || !bytes.Equal(row.Payload, payload) {
				t.Fatalf("row %+v", row)
			}
		}
		if _, _, err := r.decode(values[:len(seq)%8], &text); err == nil {
			t.Fatal("a row with columns missing is accepted")
		}

		columns, err := newTailColumns(tailRelation())
		if err != nil {
			t.Fatal(err)
		}
		tailed := make([]pgrepl.Value, len(values)+1)
		for i, v := range append([][]byte{seq[:min(2, len(seq))]}, values...) {
			tailed[i] = pgrepl.Value{Kind: pgrepl.Binary, Data: v}
		}
		tailRow, _, err := columns.row(tailed)
		if fits := len(seq) == 8 && len(id) == 16 && len(at) == 8; fits != (err == nil) {
			t.Fatalf("tail, sizes %d, %d, %d: %v", len(seq), len(id), len(at), err)
		}
		if err == nil && (tailRow.Topic != topic || tailRow.Seq != row.Seq || !tailRow.CreatedAt.Equal(row.CreatedAt) || tailRow.ID != row.ID) {
			t.Fatalf("the log has row %+v, the table %+v", tailRow, row)
		}
		if _, _, err := columns.row(tailed[:len(payload)%4]); err == nil {
			t.Fatal("a row of the log with columns missing is accepted")
		}
	})
}

func tailRelation() *pgrepl.Relation {
	r := &pgrepl.Relation{Namespace: "public", Name: outbox.DefaultTable}
	for _, name := range append([]string{"bucket"}, strings.Split(rowColumns, ", ")...) {
		r.Columns = append(r.Columns, pgrepl.Column{Name: name, TypeOID: pgtype.TextOID})
	}
	return r
}

func TestTailNeedsItsColumns(t *testing.T) {
	r := tailRelation()
	r.Columns = r.Columns[:5]
	if _, err := newTailColumns(r); err == nil {
		t.Error("a table without payload is tailed")
	}
}
