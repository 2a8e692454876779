package postgres

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"time"

	"github.com/weirdb/weir/internal/pgwire"
)

// Mode says for how long a client keeps a backend.
type Mode string

// The modes.
const (
	// ModeAuto shares every statement and pins a session to its backend by
	// itself, while it holds state that cannot be replayed.
	ModeAuto Mode = "auto"
	// ModeSession keeps one backend for the whole session.
	ModeSession Mode = "session"
	// ModeTransaction shares between transactions and ignores session state,
	// as PgBouncer does; settings are still replayed.
	ModeTransaction Mode = "transaction"
	// ModeStatement is ModeTransaction without transactions.
	ModeStatement Mode = "statement"
)

// BatchRule says which writes without a hint join a group. An empty Database or
// User means any.
type BatchRule struct {
	Database string        `yaml:"database"`
	User     string        `yaml:"user"`
	Batch    bool          `yaml:"batch"`
	Window   time.Duration `yaml:"window"` // 0: adaptive
}

// User is one entry of the user list.
type User struct {
	Name   string
	Secret pgwire.Secret
}

// Config says how the proxy listens, whom it lets in, and how it shares. The
// zero value of a field means its default.
type Config struct {
	// Postgres is the server. Its user and password, if given, let weir open
	// backends for that user and look up others (AuthQuery). Required.
	Postgres pgwire.ConnectConfig
	// Listen is the address for clients: host:port, or the path of a Unix
	// socket. Default: 127.0.0.1:6432.
	Listen string

	// Mode is how long a client keeps a backend. Default: auto.
	Mode Mode
	// PoolSize is the most backends per user and database. From 8 on, and unless
	// ReadLanes is off, clients hold at most all but one of them, so that reads
	// and the preparing of statements go on behind long transactions.
	// Default: 20.
	PoolSize int
	// ReadLanes is the most backends that pipeline reads of several clients.
	// More than the server's processors gain nothing. 0 is the default, less
	// than 0 switches the sharing of reads off. Default: 4, at most half of
	// PoolSize.
	ReadLanes int
	// WriteLanes is the most groups of one lane in flight. Default: 2.
	WriteLanes int
	// NoRowsLane and NoSoloLane switch a lane off.
	NoRowsLane, NoSoloLane bool
	// RowsLane and SoloLane are set by withDefaults.
	RowsLane, SoloLane bool
	// Batch lists which writes without a hint join a group; the first rule
	// that fits decides. Default: none do.
	Batch []BatchRule
	// Loops is the number of event loops, each on one thread with pools of its
	// own. Default: one for each four processors, at least one.
	Loops int

	// MaxClients bounds the sessions. Default: 10000.
	MaxClients int
	// MaxWaiting bounds the statements that wait for a backend in one pool.
	// Default: 0, none.
	MaxWaiting int
	// MaxMessage bounds one message of a client, in bytes. Default: 1 GiB, the
	// server's own limit.
	MaxMessage int
	// QueueTimeout bounds the wait for a backend. Default: 30 s.
	QueueTimeout time.Duration
	// ConnectTimeout bounds the opening of a backend. Default: 15 s.
	ConnectTimeout time.Duration
	// ConnectPatience is how long statements wait while the server cannot be
	// reached, for instance because it restarts. Default: 5 s.
	ConnectPatience time.Duration
	// LoginTimeout bounds a client's login. Default: 60 s.
	LoginTimeout time.Duration
	// IdleInTransactionTimeout disconnects clients that sit in a transaction.
	// Default: 0, never.
	IdleInTransactionTimeout time.Duration
	// ClientIdleTimeout disconnects clients that do nothing. Default: 0, never.
	ClientIdleTimeout time.Duration
	// ServerIdleTimeout closes backends that nobody needed. Default: 10 min.
	ServerIdleTimeout time.Duration
	// ServerLifetime closes backends after this age. Default: 1 h.
	ServerLifetime time.Duration
	// DrainTimeout is how long a stop waits for transactions under way.
	// Default: 10 s.
	DrainTimeout time.Duration

	// Auth is how clients are authenticated: "relay" (the server decides),
	// or a method of pgwire against Users, the DSN's own user, or AuthQuery.
	// Default: relay.
	Auth string
	// Users are those whose secrets weir knows.
	Users []User
	// AuthQuery is run as the DSN's user to find the secret of another:
	// $1 is the user's name; the result is name and secret, as in pg_shadow.
	// Default: none.
	AuthQuery string
	// AdminUsers may log in to database "weir"; the DSN's user always may.
	AdminUsers []string

	// ClientTLS, ClientTLSMode: see pgwire.AcceptConfig.
	ClientTLS     *tls.Config
	ClientTLSMode pgwire.TLSMode

	// Log receives the proxy's log. Default: slog.Default().
	Log *slog.Logger
}

// AuthRelay leaves authentication to the server.
const AuthRelay = "relay"

// Defaults returns the zero Config with every default filled in.
func Defaults() Config { return Config{}.withDefaults() }

// Validate names the first flag that makes no sense; New checks the same.
func (c Config) Validate() error { return c.withDefaults().validate() }

func (c Config) withDefaults() Config {
	c.Listen = cmp.Or(c.Listen, "127.0.0.1:6432")
	c.Mode = cmp.Or(c.Mode, ModeAuto)
	c.PoolSize = cmp.Or(c.PoolSize, 20)
	switch {
	case c.ReadLanes < 0:
		c.ReadLanes = 0
	case c.ReadLanes == 0:
		c.ReadLanes = max(1, min(4, c.PoolSize/2))
	}
	c.WriteLanes = cmp.Or(c.WriteLanes, 2)
	c.RowsLane, c.SoloLane = !c.NoRowsLane, !c.NoSoloLane
	c.Loops = cmp.Or(c.Loops, max(1, runtime.NumCPU()/4))
	c.MaxClients = cmp.Or(c.MaxClients, 10000)
	c.MaxMessage = cmp.Or(c.MaxMessage, 1<<30)
	c.QueueTimeout = cmp.Or(c.QueueTimeout, 30*time.Second)
	c.ConnectTimeout = cmp.Or(c.ConnectTimeout, 15*time.Second)
	c.ConnectPatience = cmp.Or(c.ConnectPatience, 5*time.Second)
	c.LoginTimeout = cmp.Or(c.LoginTimeout, time.Minute)
	c.ServerIdleTimeout = cmp.Or(c.ServerIdleTimeout, 10*time.Minute)
	c.ServerLifetime = cmp.Or(c.ServerLifetime, time.Hour)
	c.DrainTimeout = cmp.Or(c.DrainTimeout, 10*time.Second)
	c.Auth = cmp.Or(c.Auth, AuthRelay)
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return c
}

// validate names the first flag that makes no sense.
func (c Config) validate() error {
	if c.Postgres.Address == "" {
		return errors.New("no server: give --postgres a connection string")
	}
	switch c.Mode {
	case ModeAuto, ModeSession, ModeTransaction, ModeStatement:
	default:
		return fmt.Errorf("--mode %q: want auto, session, transaction or statement", c.Mode)
	}
	for _, f := range []struct {
		flag string
		v    int
	}{
		{"--pool-size", c.PoolSize},
		{"--write-lanes", c.WriteLanes},
		{"--loops", c.Loops},
		{"--max-clients", c.MaxClients},
		{"--max-message", c.MaxMessage},
	} {
		if f.v < 1 {
			return fmt.Errorf("%s %d: want at least 1", f.flag, f.v)
		}
	}
	for _, f := range []struct {
		flag string
		v    time.Duration
	}{
		{"--queue-timeout", c.QueueTimeout},
		{"--connect-timeout", c.ConnectTimeout},
		{"--connect-patience", c.ConnectPatience},
		{"--login-timeout", c.LoginTimeout},
		{"--idle-in-transaction-timeout", c.IdleInTransactionTimeout},
		{"--client-idle-timeout", c.ClientIdleTimeout},
		{"--server-idle-timeout", c.ServerIdleTimeout},
		{"--server-lifetime", c.ServerLifetime},
		{"--drain-timeout", c.DrainTimeout},
	} {
		if f.v < 0 {
			return fmt.Errorf("%s %s: is negative", f.flag, f.v)
		}
	}
	if c.MaxWaiting < 0 {
		return fmt.Errorf("--max-waiting %d: is negative", c.MaxWaiting)
	}
	if c.Auth != AuthRelay {
		if _, err := pgwire.ParseAuthMethod(c.Auth); err != nil {
			return fmt.Errorf("--auth: %w, or relay", err)
		}
	}
	if c.AuthQuery != "" && c.Postgres.User == "" {
		return errors.New("--auth-query needs a user in --postgres to run as")
	}
	if err := c.accept().Validate(); err != nil {
		return fmt.Errorf("--client-tls: %w", err)
	}
	return nil
}

func (c *Config) mode() Mode { return c.Mode }

func (c *Config) accept() pgwire.AcceptConfig {
	return pgwire.AcceptConfig{TLS: c.ClientTLS, TLSMode: c.ClientTLSMode, Timeout: c.LoginTimeout}
}

// batchDefault is what the rules say of a write without a hint.
func (c *Config) batchDefault(database, user string) (time.Duration, bool) {
	for _, r := range c.Batch {
		if (r.Database == "" || r.Database == database) && (r.User == "" || r.User == user) {
			return r.Window, r.Batch
		}
	}
	return 0, false
}
