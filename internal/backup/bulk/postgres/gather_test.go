package postgres_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
)

// TestLongCopy reads COPYs that are long enough for reads to gather, of which some then pause
// and some are interrupted in a pause.
func TestLongCopy(t *testing.T) {
	s := connect(t, labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast}))
	for _, sql := range []string{
		"COPY (SELECT repeat('x', 1000) FROM generate_series(1, 15000)) TO STDOUT",
		"COPY (SELECT pg_sleep(CASE g % 5000 WHEN 0 THEN 0.02 ELSE 0 END), repeat('x', 1000) FROM generate_series(1, 15000) g) TO STDOUT",
	} {
		bytes := 0
		rows, err := s.CopyOut(t.Context(), sql, func(p []byte) error {
			bytes += len(p)
			return nil
		})
		if err != nil || rows != 15000 || bytes < 15000*1001 {
			t.Fatalf("%d rows, %d bytes, %v", rows, bytes, err)
		}
		if row, err := s.Row(t.Context(), "SELECT pg_sleep(0.01), 7"); err != nil || row[1] != "7" {
			t.Fatalf("a statement behind it: %v, %v", row, err)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the operator wants to go home")
	bytes := 0
	_, err := s.CopyOut(ctx, "COPY (SELECT pg_sleep(CASE g WHEN 10000 THEN 600 ELSE 0 END), repeat('x', 1000) FROM generate_series(1, 15000) g) TO STDOUT", func(p []byte) error {
		if bytes += len(p); bytes > 8<<20 {
			time.AfterFunc(20*time.Millisecond, func() { cancel(why) })
		}
		return nil
	})
	if !errors.Is(err, why) || s.Broken() == nil {
		t.Errorf("interrupted: %v, broken: %v", err, s.Broken())
	}
}
