package study

import (
	"context"
	"fmt"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/ruler/profile"
)

// LabConfig is how a private server for a study is started.
type LabConfig struct {
	Durability   lab.Durability
	FsyncLatency time.Duration
	// Connections is how many connections the study needs at the same time.
	Connections int
}

// LabServer is a private server that belongs to this process.
type LabServer struct {
	DSN     string
	DataDir string
	stop    func(context.Context) error
}

// LabEngines lists the engines for which StartLab can start a server.
func LabEngines() []string {
	return []string{profile.EnginePostgres, profile.EngineMariaDB, profile.EngineMySQL}
}

// spareConnections are for administration, by weir and by a user who watches.
const spareConnections = 20

// StartLab starts a private server that collects all the statistics that a study can read.
func StartLab(ctx context.Context, engine string, c LabConfig) (*LabServer, error) {
	limit := max(c.Connections+spareConnections, 100)
	switch engine {
	case profile.EnginePostgres:
		settings := map[string]string{"track_wal_io_timing": "on", "pg_stat_statements.track_planning": "on"}
		p, err := lab.StartPostgres(ctx, lab.PostgresConfig{
			Durability: c.Durability, FsyncLatency: c.FsyncLatency, MaxConnections: limit, Settings: settings,
		})
		if err != nil {
			return nil, err
		}
		return &LabServer{p.DSN("postgres"), p.DataDir(), p.Stop}, nil
	case profile.EngineMariaDB, profile.EngineMySQL:
		start := lab.StartMariaDB
		if engine == profile.EngineMySQL {
			start = lab.StartMySQL
		}
		m, err := start(ctx, lab.MySQLConfig{
			Durability: c.Durability, FsyncLatency: c.FsyncLatency, MaxConnections: limit,
		})
		if err != nil {
			return nil, err
		}
		return &LabServer{m.DSN(""), m.DataDir(), m.Stop}, nil
	default:
		return nil, fmt.Errorf("the lab has no %q server", engine)
	}
}

// Stop ends the server and removes its files.
func (s *LabServer) Stop(ctx context.Context) error { return s.stop(ctx) }
