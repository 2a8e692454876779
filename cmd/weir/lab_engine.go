package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/lab"
)

// The engines that `weir lab up` starts.
const (
	enginePostgres = "postgres"
	engineMariaDB  = string(lab.FlavorMariaDB)
	engineMySQL    = string(lab.FlavorMySQL)
)

var labEngines = []string{enginePostgres, engineMariaDB, engineMySQL}

// engineFlags names the flags that mean something to some engines only.
var engineFlags = map[string][]string{
	"shared-buffers":     {enginePostgres},
	"pgbouncer":          {enginePostgres},
	"buffer-pool":        {engineMariaDB, engineMySQL},
	"binlog":             {engineMariaDB, engineMySQL},
	"performance-schema": {engineMariaDB, engineMySQL},
}

// labDatabase is what the verb needs of a server, whatever its engine.
type labDatabase interface {
	Host() string
	Port() int
	PID() int
	SocketDir() string
	DataDir() string
	CACert() string
	Version() string
	DSN(db string) string
	Done() <-chan struct{}
	LogTail(lines int) string
	Stop(ctx context.Context) error
}

// labClient is the command line by which a person gets to a server.
type labClient struct {
	name    string // "psql"
	command string
}

// postgresConfig is the configuration of a PostgreSQL server.
func (c *labUp) postgresConfig() lab.PostgresConfig {
	return lab.PostgresConfig{
		Durability: c.durability, FsyncLatency: c.fsyncLatency, Settings: c.settings,
		MaxConnections: c.maxConnections, SharedBuffers: c.sharedBuffers, Auth: lab.Auth(c.auth),
		TLS: c.tls, BinDir: c.binDir, Port: c.port,
	}
}

// mysqlConfig is the configuration of a MariaDB or MySQL server.
func (c *labUp) mysqlConfig() lab.MySQLConfig {
	cfg := lab.MySQLConfig{
		Durability: c.durability, FsyncLatency: c.fsyncLatency, Settings: c.settings,
		MaxConnections: c.maxConnections, BufferPool: c.bufferPool,
		Binlog: c.binlog, PerformanceSchema: c.performanceSchema,
		TLS: c.tls, BinDir: c.binDir, Port: c.port,
	}
	if lab.Auth(c.auth) == lab.Password {
		cfg.Password = rand.Text()[:16]
	}
	return cfg
}

// start starts the server that --engine names. The client is empty where none
// is installed.
func (c *labUp) start(ctx context.Context) (labDatabase, labClient, error) {
	switch c.engine {
	case engineMariaDB:
		return startMySQLLab(ctx, lab.StartMariaDB, c.mysqlConfig())
	case engineMySQL:
		return startMySQLLab(ctx, lab.StartMySQL, c.mysqlConfig())
	}
	p, err := lab.StartPostgres(ctx, c.postgresConfig())
	if err != nil {
		return nil, labClient{}, err
	}
	return p, labClient{"psql", fmt.Sprintf("%s '%s'", filepath.Join(p.BinDir(), "psql"), p.DSN("postgres"))}, nil
}

func startMySQLLab(
	ctx context.Context, start func(context.Context, lab.MySQLConfig) (*lab.MySQL, error), cfg lab.MySQLConfig,
) (labDatabase, labClient, error) {
	m, err := start(ctx, cfg)
	if err != nil {
		return nil, labClient{}, err
	}
	if m.Client() == "" {
		return m, labClient{}, nil
	}
	// By the Unix socket: neither a certificate nor TLS's many spellings are needed.
	args := []string{m.Client(), "--no-defaults", "-u", m.User(), "-S", m.Socket()}
	if m.Password() != "" {
		args = append([]string{"MYSQL_PWD=" + m.Password()}, args...)
	}
	return m, labClient{filepath.Base(m.Client()), strings.Join(args, " ")}, nil
}

// database is the one that a DSN names: MySQL's family starts with none.
func (c *labUp) database() string {
	if c.engine == enginePostgres {
		return "postgres"
	}
	return ""
}

// validateEngine refuses what the engine does not have. given reports whether a
// flag is on the command line.
func (c *labUp) validateEngine(given func(flag string) bool) error {
	if !slices.Contains(labEngines, c.engine) {
		return fmt.Errorf("--engine %q: must be one of %s", c.engine, strings.Join(labEngines, ", "))
	}
	for _, flag := range slices.Sorted(maps.Keys(engineFlags)) {
		if engines := engineFlags[flag]; given(flag) && !slices.Contains(engines, c.engine) {
			return fmt.Errorf("--%s is for --engine %s, not %s", flag, strings.Join(engines, " or "), c.engine)
		}
	}
	auth := lab.Auth(c.auth)
	if c.engine != enginePostgres && auth != lab.Trust && auth != lab.Password {
		return fmt.Errorf("--auth %s: --engine %s has trust and password", c.auth, c.engine)
	}
	return nil
}
