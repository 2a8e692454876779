package postgres

import (
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/restore"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
)

// TestOlderServerIsRefused restores a backup of a server that is to come.
func TestOlderServerIsRefused(t *testing.T) {
	p := labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast})
	ctx, dir := t.Context(), t.TempDir()
	repo, err := archive.OpenRepository(ctx, dir)
	if err != nil {
		t.Fatal(err)
	}
	w, err := archive.Create(ctx, repo, archive.Options{})
	if err != nil {
		t.Fatal(err)
	}
	m := archive.Manifest{}
	m.Engine, m.Server = archive.PostgreSQL, archive.Server{Version: "99.1", Number: 990001}
	if _, err := w.Finish(ctx, m); err != nil {
		t.Fatal(err)
	}
	r, err := archive.Open(ctx, repo, archive.Latest, archive.ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	opts := restore.Options{DSN: p.DSN("postgres")}
	if _, err := Run(ctx, opts, r); err == nil || !strings.Contains(err.Error(), "99.1") || !strings.Contains(err.Error(), "--force") {
		t.Errorf("error: %v", err)
	}
	opts.Force = true // of a backup of no database nothing is left to do
	if _, err := Run(ctx, opts, r); err != nil {
		t.Errorf("with --force: %v", err)
	}
}

func TestRenameDatabase(t *testing.T) {
	for in, want := range map[string]string{
		"CREATE DATABASE shop WITH TEMPLATE = template0;\n\n":                                  `CREATE DATABASE "x" WITH TEMPLATE = template0`,
		"CREATE DATABASE \"Shop \"\"; y\" WITH TEMPLATE = template0;":                          `CREATE DATABASE "x" WITH TEMPLATE = template0`,
		"ALTER DATABASE shop SET a TO 'ALTER DATABASE shop; x';\nALTER DATABASE shop SET b=1;": "ALTER DATABASE \"x\" SET a TO 'ALTER DATABASE shop; x';\nALTER DATABASE \"x\" SET b=1",
		"COMMENT ON DATABASE shop IS 'shop';":                                                  `COMMENT ON DATABASE "x" IS 'shop'`,
		"REVOKE ALL ON DATABASE shop FROM PUBLIC;\nGRANT CONNECT ON DATABASE shop TO shop;":    "REVOKE ALL ON DATABASE \"x\" FROM PUBLIC;\nGRANT CONNECT ON DATABASE \"x\" TO shop",
		"ALTER ROLE \"a IN DATABASE b\" IN DATABASE shop SET c TO 'shop';":                     `ALTER ROLE "a IN DATABASE b" IN DATABASE "x" SET c TO 'shop'`,
	} {
		if got := renameDatabase(in, "x"); got != want {
			t.Errorf("%s:\n got %s\nwant %s", in, got, want)
		}
	}
}
