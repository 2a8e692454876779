package backupcmd

import (
	"context"

	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/lab"
)

// privateServer starts a server that can restore the backup, and returns its DSN.
func (v *verifyVerb) privateServer(ctx context.Context, m *archive.Manifest) (dsn string, stop func() error, err error) {
	if familyOfBackup(m) == familyPostgres {
		p, err := lab.StartPostgres(ctx, lab.PostgresConfig{
			Durability: lab.Fast, BinDir: v.binDir, Auth: lab.SCRAM,
			Settings: map[string]string{"max_locks_per_transaction": "1024", "autovacuum": "off", "full_page_writes": "off"},
		})
		if err != nil {
			return "", nil, err
		}
		return p.DSN("postgres"), func() error { return lab.End(p.Stop) }, nil
	}
	start := lab.StartMariaDB
	if m.Engine == archive.MySQL {
		start = lab.StartMySQL
	}
	s, err := start(ctx, lab.MySQLConfig{Durability: lab.Fast, BinDir: v.binDir, Settings: map[string]string{"local_infile": "1", "event_scheduler": "OFF"}})
	if err != nil {
		return "", nil, err
	}
	return s.DSN(""), func() error { return lab.End(s.Stop) }, nil
}
