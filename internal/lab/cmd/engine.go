package labcmd

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"os/exec"
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
	engineNATS     = "nats"
	engineRedis    = "redis"
	engineRabbitMQ = "rabbitmq"
	engineKafka    = "kafka"
	engineS3       = "s3"
	engineEtcd     = "etcd"
)

var (
	databaseEngines = []string{enginePostgres, engineMariaDB, engineMySQL}
	notEtcd         = append(slices.Clone(databaseEngines), engineNATS, engineRedis, engineRabbitMQ, engineKafka, engineS3)
	labEngines      = append(slices.Clone(notEtcd), engineEtcd)
)

// engineFlags are the flags that only some engines use.
var engineFlags = map[string][]string{
	"shared-buffers":     {enginePostgres},
	"pgbouncer":          {enginePostgres},
	"buffer-pool":        {engineMariaDB, engineMySQL},
	"binlog":             {engineMariaDB, engineMySQL},
	"performance-schema": {engineMariaDB, engineMySQL},
	"fsync-latency":      databaseEngines,
	"max-connections":    databaseEngines,
	"tls":                databaseEngines,
	"bin-dir":            databaseEngines,
	"port":               notEtcd,
	"set":                notEtcd,
	"auth":               notEtcd,
}

// labInstance is what the verb needs from a running server of any engine.
type labInstance interface {
	Host() string
	Port() int
	PID() int
	DataDir() string
	Version() string
	Done() <-chan struct{}
	LogTail(lines int) string
	Stop(ctx context.Context) error
}

// labRunning is a running server and its addresses.
type labRunning struct {
	labInstance
	engine string
	dsn    string
	socket string
	caCert string
	env    []string
	client labClient // empty if none is installed
}

// labClient is a command line client for a server.
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
		NoBinlog: !c.binlog, NoPerformanceSchema: !c.performanceSchema,
		TLS: c.tls, BinDir: c.binDir, Port: c.port,
	}
	if lab.Auth(c.auth) == lab.Password {
		cfg.Password = rand.Text()[:16]
	}
	return cfg
}

// brokerConfig is the configuration of a server that is not a database.
func (c *labUp) brokerConfig() lab.BrokerConfig {
	cfg := lab.BrokerConfig{Durability: c.durability, Settings: c.settings, Port: c.port}
	if lab.Auth(c.auth) == lab.Password {
		cfg.Password = rand.Text()[:16]
	}
	return cfg
}

// each returns one configuration per engine: the flags configure the first, and the others, for
// which the flags would be the same, have defaults.
func (c *labUp) each() []*labUp {
	engines := strings.Split(c.engine, ",")
	all := make([]*labUp, len(engines))
	for i, engine := range engines {
		one := labUp{durability: c.durability, binlog: true, performanceSchema: true}
		if i == 0 {
			one = *c
		}
		one.engine = engine
		all[i] = &one
	}
	return all
}

// start starts the server of a single engine.
func (c *labUp) start(ctx context.Context) (labRunning, error) {
	switch c.engine {
	case engineMariaDB:
		return startMySQLLab(ctx, c.engine, lab.StartMariaDB, c.mysqlConfig())
	case engineMySQL:
		return startMySQLLab(ctx, c.engine, lab.StartMySQL, c.mysqlConfig())
	case engineNATS:
		return startBrokerLab(ctx, c.engine, lab.StartNATS, c.brokerConfig())
	case engineRedis:
		r, err := startBrokerLab(ctx, c.engine, lab.StartRedis, c.brokerConfig())
		if cli, e := exec.LookPath("redis-cli"); err == nil && e == nil {
			r.client = labClient{"redis-cli", fmt.Sprintf("%s -u '%s'", cli, r.dsn)}
		}
		return r, err
	case engineRabbitMQ:
		return startBrokerLab(ctx, c.engine, lab.StartRabbitMQ, c.brokerConfig())
	case engineKafka:
		return startBrokerLab(ctx, c.engine, lab.StartKafka, c.brokerConfig())
	case engineS3:
		s, err := lab.StartS3(ctx, c.brokerConfig())
		if err != nil {
			return labRunning{}, err
		}
		return labRunning{labInstance: s, engine: c.engine, dsn: s.URL(), env: s.Environ()}, nil
	case engineEtcd:
		return startEtcdLab(ctx, c.durability)
	}
	p, err := lab.StartPostgres(ctx, c.postgresConfig())
	if err != nil {
		return labRunning{}, err
	}
	dsn := p.DSN("postgres")
	return labRunning{
		labInstance: p, engine: c.engine, dsn: dsn, socket: p.SocketDir(), caCert: p.CACert(),
		client: labClient{"psql", fmt.Sprintf("%s '%s'", filepath.Join(p.BinDir(), "psql"), dsn)},
	}, nil
}

func startBrokerLab[B interface {
	labInstance
	URL() string
}](
	ctx context.Context, engine string, start func(context.Context, lab.BrokerConfig) (B, error), cfg lab.BrokerConfig,
) (labRunning, error) {
	b, err := start(ctx, cfg)
	if err != nil {
		return labRunning{}, err
	}
	return labRunning{labInstance: b, engine: engine, dsn: b.URL()}, nil
}

func startMySQLLab(
	ctx context.Context, engine string, start func(context.Context, lab.MySQLConfig) (*lab.MySQL, error), cfg lab.MySQLConfig,
) (labRunning, error) {
	m, err := start(ctx, cfg)
	if err != nil {
		return labRunning{}, err
	}
	// Servers of the MySQL family start without a database.
	r := labRunning{labInstance: m, engine: engine, dsn: m.DSN(""), socket: m.SocketDir(), caCert: m.CACert()}
	if m.Client() == "" {
		return r, nil
	}
	// Through the Unix socket, so that neither a certificate nor TLS options are needed.
	args := []string{m.Client(), "--no-defaults", "-u", m.User(), "-S", m.Socket()}
	if m.Password() != "" {
		args = append([]string{"MYSQL_PWD=" + m.Password()}, args...)
	}
	r.client = labClient{filepath.Base(m.Client()), strings.Join(args, " ")}
	return r, nil
}

// validateEngines refuses flags that the engines do not have. given reports whether a flag is
// on the command line.
func (c *labUp) validateEngines(given func(flag string) bool) error {
	engines := strings.Split(c.engine, ",")
	for i, engine := range engines {
		if !slices.Contains(labEngines, engine) {
			return fmt.Errorf("--engine %q: must be one of %s", engine, strings.Join(labEngines, ", "))
		}
		if slices.Contains(engines[:i], engine) {
			return fmt.Errorf("--engine %s: %s twice", c.engine, engine)
		}
	}
	first := engines[0]
	for _, flag := range slices.Sorted(maps.Keys(engineFlags)) {
		if able := engineFlags[flag]; given(flag) && !slices.Contains(able, first) {
			return fmt.Errorf("--%s is for --engine %s, not %s", flag, strings.Join(able, " or "), first)
		}
	}
	auth := lab.Auth(c.auth)
	if first != enginePostgres && auth != lab.Trust && auth != lab.Password {
		return fmt.Errorf("--auth %s: --engine %s has trust and password", c.auth, first)
	}
	return nil
}
