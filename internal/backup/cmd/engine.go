package backupcmd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/backup"
	"github.com/weirdb/weir/internal/backup/archive"
	dumpmy "github.com/weirdb/weir/internal/backup/mysql"
	dumppg "github.com/weirdb/weir/internal/backup/postgres"
	"github.com/weirdb/weir/internal/backup/restore"
	loadmy "github.com/weirdb/weir/internal/backup/restore/mysql"
	loadpg "github.com/weirdb/weir/internal/backup/restore/postgres"
	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/wire/mywire"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// family is the kind of server that a DSN or a backup refers to. MariaDB and MySQL share a
// protocol, and the server itself says which of them it is.
type family string

const (
	familyPostgres family = "PostgreSQL"
	familyMySQL    family = "MySQL or MariaDB"
)

// familyOf returns the family of a DSN. A DSN without a scheme is libpq's.
func familyOf(dsn string) family {
	scheme, _, _ := strings.Cut(dsn, "://")
	if scheme == "mysql" || scheme == "mariadb" {
		return familyMySQL
	}
	return familyPostgres
}

// familyOfBackup returns the family of a backup, by its manifest.
func familyOfBackup(m *archive.Manifest) family {
	if m.Engine == archive.PostgreSQL {
		return familyPostgres
	}
	return familyMySQL
}

// dsnSchemes are the schemes of DSNs that are URLs.
var dsnSchemes = []string{"postgres", "postgresql", "mysql", "mariadb"}

// databaseOf returns the name of the database in a DSN, or "".
func databaseOf(dsn string) (string, error) {
	if scheme, _, ok := strings.Cut(dsn, "://"); ok && !slices.Contains(dsnSchemes, scheme) && !strings.ContainsAny(scheme, "= ") {
		return "", errors.New("unknown kind of database: want a DSN that begins with postgres://, mysql:// or mariadb://")
	}
	if familyOf(dsn) == familyMySQL {
		cfg, err := mywire.ParseClientDSN(dsn)
		return cfg.Database, err
	}
	cfg, err := pgwire.ParseDSN(dsn)
	if cfg.Database == "" {
		return cfg.User, err
	}
	return cfg.Database, err
}

// runBackup backs up the database or server that the DSN names.
func runBackup(ctx context.Context, o backup.Options, w *archive.Writer) (*backup.Result, error) {
	if familyOf(o.DSN) == familyMySQL {
		return dumpmy.Run(ctx, o, w)
	}
	return dumppg.Run(ctx, o, w)
}

// runRestore restores a backup into a server of its family.
func runRestore(ctx context.Context, o restore.Options, r *archive.Reader) (*restore.Result, error) {
	to, from := familyOf(o.DSN), familyOfBackup(r.Manifest())
	switch {
	case to != from:
		return nil, cli.UsageError(fmt.Errorf("backup %s is of %s, and --to names a server of %s", r.Manifest().ID, from, to))
	case to == familyMySQL:
		return loadmy.Run(ctx, o, r)
	}
	return loadpg.Run(ctx, o, r)
}

// differs reports whether a restored table differs from the backup.
func differs(err error) bool {
	return errors.Is(err, loadpg.ErrDiffers) || errors.Is(err, loadmy.ErrDiffers)
}
