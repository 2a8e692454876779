package profile

import (
	"context"
	"testing"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/lab/labtest/pgtrap"
)

// weir's own queries, which often run as a superuser, call nothing that others have put into the
// search path of a database.
func TestSearchPathOfOthers(t *testing.T) {
	pg := labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast, Settings: map[string]string{"track_wal_io_timing": "on"}})
	before := connected(t, pg.DSN("postgres"))
	if err := before.PrepareLab(t.Context()); err != nil {
		t.Fatal(err)
	}
	caught := pgtrap.SearchPath(t, pg.DSN("postgres"))
	target := connected(t, pg.DSN("postgres"))
	if _, err := target.counters(t.Context()); err != nil {
		t.Error(err)
	}
	if s, err := target.statementTimes(t.Context()); err != nil || s.calls == 0 {
		t.Errorf("%d calls: %v", s.calls, err)
	}
	w, err := target.Prepare(t.Context(), "tpcb", 100)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Drop(context.Background()); err != nil {
		t.Error(err)
	}
	if by := caught(); by != "" {
		t.Errorf("called: %s", by)
	}
}
