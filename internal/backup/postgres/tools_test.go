package postgres

import (
	"errors"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/backup"
	"github.com/weirdb/weir/internal/backup/bulk"
	pg "github.com/weirdb/weir/internal/backup/bulk/postgres"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// A backup without pg_dump fails before it waits for a lock, behind which others would
// have to wait.
func TestMissingToolsAreToldBeforeLocks(t *testing.T) {
	p := labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast})
	cfg, err := pgwire.ParseDSN(p.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	other, err := pg.Connect(t.Context(), cfg, "")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	for _, sql := range []string{"CREATE TABLE public.held ()", "BEGIN; LOCK TABLE public.held IN ACCESS EXCLUSIVE MODE"} {
		if err := other.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	missing := errors.New("no pg_dump")
	opts := backup.Options{LockWait: time.Millisecond, SchemaOnly: true, Progress: &bulk.Progress{}}.WithDefaults()
	d := &database{runner: &runner{opts: opts, cfg: cfg, result: &backup.Result{}, tools: func() error { return missing }}, name: "postgres"}
	if err := d.once(t.Context()); !errors.Is(err, missing) {
		t.Errorf("the backup says %v, want %v", err, missing)
	}
}
