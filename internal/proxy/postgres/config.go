package postgres

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/ldap"
	"github.com/weirdb/weir/internal/proxy/postgres/catalogue"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/upstream"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// User is one entry of the user list.
type User = core.User[pgwire.Secret]

// Config says how the proxy listens, which clients may log in, and how they share backends. The
// zero value of a field means its default.
type Config struct {
	// Postgres is the server. Its user and password, if given, let weir open
	// backends for that user and look up others (AuthQuery). Required.
	Postgres pgwire.ConnectConfig
	// Hosts are the servers that may replace each other, with the parameters to reach each one;
	// Postgres is among them. Default: Postgres alone.
	Hosts []pgwire.ConnectConfig
	// Target is the wanted role. Default: any.
	Target upstream.Target
	// Patroni are base URLs of Patroni's REST API: see upstream.Config.
	Patroni []string
	// Listen is the address for clients: host:port, or the path of a Unix
	// socket. Default: 127.0.0.1:6432.
	Listen string

	// Options say how clients share backends.
	session.Options

	// Auth is how clients are authenticated: "auto" (by weir as the server would, if
	// it knows what the server stores, else as relay), "relay" (by the server,
	// except for Users), "ldap" (by LDAP), or a method of
	// pgwire against Users, the DSN's own user, or AuthQuery. Default: auto.
	Auth string
	// LDAP is the directory if Auth is "ldap". Default: none.
	LDAP *ldap.Directory
	// Users are those whose secrets weir knows.
	Users []User
	// AuthQuery is run to find the secret of a user: $1 is the name; the result is name
	// and secret, as in pg_shadow. Default: none.
	AuthQuery string
	// AuthUser and AuthDatabase are the user and the database for looking up users who log in,
	// with or without AuthQuery. Default: the DSN's.
	AuthUser, AuthDatabase string
	// Peers are the addresses of other weirs for clients, to which weir forwards cancel requests for
	// their clients. Default: none.
	Peers session.Peers
	// AdminUsers may log in to database "weir"; the DSN's user always may.
	AdminUsers []string

	// FlushPrefix is the prefix of the empty logical messages by which the solo
	// lane flushes the log; consumers of logical decoding that ask for messages
	// see them. Default: weir.
	FlushPrefix string

	// TrustFunctions are functions, as name or schema.name, that the
	// configuration declares to leave the session unchanged; weir does not read
	// them.
	TrustFunctions []string

	// NoSharedListen makes each client that listens keep a backend.
	NoSharedListen bool
	// restless makes tests move channels whenever they can.
	restless bool
	// known has the tests' proxies share what they know of the server.
	known *catalogue.Known
	// lookups are connections on which the tests' proxies look up users, one after the other.
	lookups *core.Lookups[*lookup]

	// Process executes the console's reload and shutdown. Default: none,
	// and the console refuses them.
	Process core.Process

	// MaxPrepared bounds the statements that are prepared on one backend.
	// Default: 1000.
	MaxPrepared int
	// WaitNotice is how long a statement waits for a backend before its client gets a notice
	// about that. Default: 0, no notice.
	WaitNotice time.Duration
	// Sockets are used instead of Listen. Default: none.
	Sockets []core.Socket
	// Authenticator decides about clients and where their connections go, instead of the
	// fields here. Default: none.
	Authenticator Authenticator

	ownDial bool // Postgres.Dial is Keepalive's

	// ClientTLS, ClientTLSMode: see pgwire.AcceptConfig.
	ClientTLS     *tls.Config
	ClientTLSMode pgwire.TLSMode
}

// AuthAuto lets in as the server would, AuthRelay leaves authentication to the server,
// AuthLDAP asks an LDAP server about the password.
const (
	AuthAuto  = "auto"
	AuthRelay = "relay"
	AuthLDAP  = "ldap"
)

// relays reports whether the server checks users whose secrets weir does not
// know.
func (c *Config) relays() bool { return c.Auth == AuthAuto || c.Auth == AuthRelay }

// checksSecrets reports whether weir checks clients by secrets that it holds or looks up.
func (c *Config) checksSecrets() bool {
	switch c.Auth {
	case AuthLDAP, string(pgwire.AuthTrust), string(pgwire.AuthCert):
		return false
	}
	return true
}

// authUser is the user for looking up users who log in.
func (c *Config) authUser() string { return cmp.Or(c.AuthUser, c.Postgres.User) }

// Defaults returns a Config with every default filled in, except for Postgres.Dial, which
// depends on Keepalive.
func Defaults() Config {
	c := Config{}.withDefaults()
	c.Postgres.Dial, c.ownDial = nil, false
	return c
}

// Several reports whether connections go to one of several hosts.
func (c *Config) Several() bool { return len(c.Hosts) > 1 || len(c.Patroni) > 0 }

// Renewed returns the server and the hosts of c with the passwords and certificates that
// they have in next. If next has other servers, it returns what c has, and false: the new
// password may only be for those.
func (c *Config) Renewed(next *Config) (server pgwire.ConnectConfig, hosts []pgwire.ConnectConfig, same bool) {
	server, same = c.Postgres.Renewed(next.Postgres)
	hosts, all := core.Renewed(c.Hosts, next.Hosts)
	if !same || !all || c.Target != next.Target || !slices.Equal(c.Patroni, next.Patroni) {
		return c.Postgres, c.Hosts, false
	}
	return server, hosts, true
}

// Validate returns an error that names the first invalid flag; New checks the same.
func (c Config) Validate() error { return c.withDefaults().validate() }

func (c Config) withDefaults() Config {
	if len(c.Hosts) == 0 {
		c.Hosts = []pgwire.ConnectConfig{c.Postgres}
	}
	c.Target = cmp.Or(c.Target, upstream.TargetAny)
	c.Listen = cmp.Or(c.Listen, "127.0.0.1:6432")
	c.Options = c.Options.WithDefaults()
	if c.Postgres.Dial == nil {
		c.Postgres.Dial, c.ownDial = c.Keepalive.Dial, true
	}
	c.Auth = cmp.Or(c.Auth, AuthAuto)
	c.FlushPrefix = cmp.Or(c.FlushPrefix, "weir")
	return c
}

// validate returns an error that names the first invalid flag.
func (c Config) validate() error {
	if c.Postgres.Address == "" {
		return session.ErrNoServer
	}
	if err := c.Options.Validate(); err != nil {
		return err
	}
	switch {
	case c.relays():
	case c.Auth == AuthLDAP && c.LDAP == nil:
		return errors.New("--auth ldap: add --ldap, which says where the LDAP server is")
	case c.Auth == AuthLDAP && c.AuthQuery != "":
		return errors.New("--auth ldap and --auth-query exclude each other: each says how passwords are checked")
	case c.Auth == AuthLDAP:
	default:
		if _, err := pgwire.ParseAuthMethod(c.Auth); err != nil {
			return fmt.Errorf("--auth: %w, auto, relay or ldap", err)
		}
	}
	if err := c.Peers.Check(c.PeerID); err != nil {
		return err
	}
	if c.AuthQuery != "" && c.authUser() == "" {
		return errors.New("--auth-query needs a user to run as, in --postgres or by --auth-user")
	}
	if err := c.accept().Validate(); err != nil {
		return fmt.Errorf("--client-tls-mode: %w", err)
	}
	return nil
}

func (c *Config) accept() pgwire.AcceptConfig {
	return pgwire.AcceptConfig{TLS: c.ClientTLS, TLSMode: c.ClientTLSMode, Timeout: c.LoginTimeout}
}
