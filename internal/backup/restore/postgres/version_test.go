package postgres

import (
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/restore"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// TestOlderServerIsRefused restores a backup of a server that is to come.
func TestOlderServerIsRefused(t *testing.T) {
	p := labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast})
	cfg, err := pgwire.ParseDSN(p.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	m := &archive.Manifest{}
	m.Engine, m.Server = archive.PostgreSQL, archive.Server{Version: "99.1", Number: 990001}
	r := &runner{opts: restore.Options{Force: false}, cfg: cfg, manifest: m, result: &restore.Result{}}
	if err := r.all(t.Context()); err == nil || !strings.Contains(err.Error(), "99.1") || !strings.Contains(err.Error(), "--force") {
		t.Errorf("error: %v", err)
	}
	r.opts.Force = true // of a backup of no database nothing is left to do
	if err := r.all(t.Context()); err != nil {
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
