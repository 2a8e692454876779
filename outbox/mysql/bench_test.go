package mysql

import (
	"testing"

	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/outbox"
)

// BenchmarkRead reads pages of 1000 rows with 512 bytes of payload.
func BenchmarkRead(b *testing.B) {
	const rows, page = 20_000, 1000
	m := labtest.MariaDB(b, config)
	if err := m.Exec(b.Context(), "CREATE DATABASE bench"); err != nil {
		b.Fatal(err)
	}
	s, err := Open(b.Context(), m.DSN("bench"), Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Migrate(b.Context(), outbox.Plan{}); err != nil {
		b.Fatal(err)
	}
	msgs := make([]outbox.Message, rows)
	for i := range msgs {
		msgs[i] = outbox.Message{Topic: "orders", Key: "order-42", Payload: make([]byte, 512)}
	}
	if err := outbox.Enqueue(b.Context(), outbox.MySQL(s.db), msgs...); err != nil {
		b.Fatal(err)
	}
	l, err := s.Lead(b.Context(), 0)
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	read := 0
	for after := int64(0); b.Loop(); {
		p, err := l.Read(b.Context(), outbox.ReadRequest{After: after, Limit: page, MaxBytes: 1 << 30})
		if err != nil || len(p.Rows) != page {
			b.Fatalf("%d rows, %v", len(p.Rows), err)
		}
		read += page
		if after = p.Rows[page-1].Seq; !p.More {
			after = 0
		}
		if read%rows == 0 {
			after = 0
		}
	}
	b.ReportMetric(float64(read)/b.Elapsed().Seconds(), "rows/s")
	b.ReportAllocs()
}
