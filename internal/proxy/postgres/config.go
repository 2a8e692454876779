package postgres

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/upstream"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// User is one entry of the user list.
type User = core.User[pgwire.Secret]

// Config says how the proxy listens, whom it lets in, and how it shares. The
// zero value of a field means its default.
type Config struct {
	// Postgres is the server. Its user and password, if given, let weir open
	// backends for that user and look up others (AuthQuery). Required.
	Postgres pgwire.ConnectConfig
	// Hosts are the servers that may take its place, with what each needs to be
	// reached by, among them Postgres itself. Default: Postgres alone.
	Hosts []pgwire.ConnectConfig
	// Target is which of them is wanted. Default: any.
	Target upstream.Target
	// Patroni are base URLs of Patroni's REST API: see upstream.Config.
	Patroni []string
	// Listen is the address for clients: host:port, or the path of a Unix
	// socket. Default: 127.0.0.1:6432.
	Listen string

	// Options say how clients share backends.
	session.Options

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

	// FlushPrefix is the prefix of the empty logical messages by which the solo
	// lane flushes the log; consumers of logical decoding that ask for messages
	// see them. Default: weir.
	FlushPrefix string

	// TrustFunctions are functions, as name or schema.name, of which the
	// configuration says that they leave the session as it is; weir does not look
	// into them.
	TrustFunctions []string

	// Process is what the console asks to reload and to shut down. Default: none,
	// and the console says so.
	Process core.Process

	// ClientTLS, ClientTLSMode: see pgwire.AcceptConfig.
	ClientTLS     *tls.Config
	ClientTLSMode pgwire.TLSMode
}

// AuthRelay leaves authentication to the server.
const AuthRelay = "relay"

// Defaults returns the zero Config with every default filled in.
func Defaults() Config { return Config{}.withDefaults() }

// Validate names the first flag that makes no sense; New checks the same.
func (c Config) Validate() error { return c.withDefaults().validate() }

func (c Config) withDefaults() Config {
	if len(c.Hosts) == 0 {
		c.Hosts = []pgwire.ConnectConfig{c.Postgres}
	}
	c.Target = cmp.Or(c.Target, upstream.TargetAny)
	c.Listen = cmp.Or(c.Listen, "127.0.0.1:6432")
	c.Options = c.Options.WithDefaults()
	c.Auth = cmp.Or(c.Auth, AuthRelay)
	c.FlushPrefix = cmp.Or(c.FlushPrefix, "weir")
	return c
}

// validate names the first flag that makes no sense.
func (c Config) validate() error {
	if c.Postgres.Address == "" {
		return session.ErrNoServer
	}
	if err := c.Options.Validate(); err != nil {
		return err
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

func (c *Config) accept() pgwire.AcceptConfig {
	return pgwire.AcceptConfig{TLS: c.ClientTLS, TLSMode: c.ClientTLSMode, Timeout: c.LoginTimeout}
}
