// Package process runs weir proxy as a process, from a finished configuration: it opens the
// listeners, the servers of both sides, the admin endpoint and the audit log, takes the place
// of another process (--takeover) and hands its own to the next, reloads, and shuts down. It
// knows nothing of how the configuration was written: internal/proxy/cmd reads flags, the
// environment and the file. weir pgbouncer has a process of its own, in internal/proxy/bouncer,
// with PgBouncer's signals, log and console.
//
//	process.go    starts and ends: the order in which all this is opened, served and closed
//	reload.go     what changes while clients are served
//	takeover.go   the process before this one, and the one after it
//	page.go       what the live page and /metrics show of both sides
package process

import (
	"crypto/tls"
	"io"
	"log/slog"
	"time"

	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/proxy/session"
)

// Config says what a process serves.
type Config struct {
	// Postgres and MySQL are the sides; nil means that there is no such side. At least one is
	// required. Both have the same session.Options and ClientTLS. The process sets Log, Process,
	// Audit and Sockets.
	Postgres *postgres.Config
	MySQL    *mysql.Config

	// Admin is the address of the live page, metrics and health checks. Default: none.
	Admin string
	// Takeover is the path of the Unix socket by which a process takes the place of the one
	// before it. Default: none.
	Takeover string
	// ShutdownDelay is how long the process continues to serve, but is not ready, before it
	// stops. Default: 0.
	ShutdownDelay time.Duration
	// AuditLog is the path of a file, stderr or off. Default: off.
	AuditLog string
	// LogLevel is the lowest level of lines in the log. Default: info.
	LogLevel slog.Level
	// Warnings are about the configuration, and are logged at the start. Default: none.
	Warnings []string
}

// Environment is what a process needs in addition to its configuration. All of it is required.
type Environment struct {
	// Load reads the configuration again. It also returns the options that have changed since
	// the start and only have an effect after a restart.
	Load func() (now Config, later []string, err error)
	// Log returns the handler of the log, which asks level for the lowest level.
	Log func(level slog.Leveler) slog.Handler
	// Stderr receives the audit log if AuditLog is stderr.
	Stderr io.Writer
}

// options are the same for both sides.
func (c *Config) options() *session.Options {
	if c.Postgres != nil {
		return &c.Postgres.Options
	}
	return &c.MySQL.Options
}

// clientTLS is the same for both sides; nil without a certificate.
func (c *Config) clientTLS() *tls.Config {
	if c.Postgres != nil {
		return c.Postgres.ClientTLS
	}
	return c.MySQL.ClientTLS
}

// several reports whether connections go to one of several hosts.
func (c *Config) several() bool {
	return c.Postgres != nil && c.Postgres.Several() || c.MySQL != nil && c.MySQL.Several()
}
