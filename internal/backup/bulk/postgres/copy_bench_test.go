package postgres_test

import (
	"io"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	pg "github.com/weirdb/weir/internal/backup/bulk/postgres"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// BenchmarkCopyOut compares the CPU time that a client spends on a megabyte of
// COPY output: a Session, and pgx, which hands on row by row. Both spend most of
// it in the kernel, since the server sends 8 KiB at a time.
func BenchmarkCopyOut(b *testing.B) {
	p := labtest.Postgres(b, lab.PostgresConfig{Durability: lab.Fast})
	cfg, err := pgwire.ParseDSN(p.DSN("postgres"))
	if err != nil {
		b.Fatal(err)
	}
	s, err := pg.Connect(b.Context(), cfg, "")
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	if err := s.Exec(b.Context(), "CREATE TABLE public.rows AS SELECT g AS id, md5(g::text) AS a, md5((g + 1)::text) AS b, now() AS c FROM generate_series(1, 500000) g"); err != nil {
		b.Fatal(err)
	}
	const sql = "COPY public.rows TO STDOUT"
	b.Run("session", func(b *testing.B) {
		measure(b, func() (n int64) {
			if _, err := s.CopyOut(b.Context(), sql, func(p []byte) error { n += int64(len(p)); return nil }); err != nil {
				b.Fatal(err)
			}
			return n
		})
	})
	b.Run("session with checksum", func(b *testing.B) {
		measure(b, func() (n int64) {
			var sum pg.RowSum
			if _, err := s.CopyOut(b.Context(), sql, func(p []byte) error { n += int64(len(p)); return sum.Write(p) }); err != nil {
				b.Fatal(err)
			}
			return n
		})
	})
	b.Run("pgx", func(b *testing.B) {
		c, err := pgconn.Connect(b.Context(), p.DSN("postgres"))
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close(b.Context())
		measure(b, func() int64 {
			w := &countingWriter{}
			if _, err := c.CopyTo(b.Context(), w, sql); err != nil {
				b.Fatal(err)
			}
			return w.n
		})
	})
}

type countingWriter struct{ n int64 }

func (w *countingWriter) Write(p []byte) (int, error) { w.n += int64(len(p)); return len(p), nil }

var _ io.Writer = (*countingWriter)(nil)

func measure(b *testing.B, f func() int64) {
	var before, after syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &before); err != nil {
		b.Fatal(err)
	}
	var bytes int64
	for b.Loop() {
		n := f()
		b.SetBytes(n)
		bytes += n
	}
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &after); err != nil {
		b.Fatal(err)
	}
	cpu := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
	b.ReportMetric(float64(cpu)/float64(bytes)*1e6, "cpu-ns/MB")
}
