package mysql

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/ldap"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/upstream"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// User is one entry of the user list.
type User = core.User[mywire.Secret]

// Config says how this side of the proxy listens, whom it lets in, and how it
// shares. The zero value of a field means its default.
type Config struct {
	// MySQL is the server. Its user and password, if given, let weir open
	// backends for that user and look up others (AuthQuery). Required.
	MySQL mywire.ConnectConfig
	// Hosts are the servers that may take its place, with what each needs to be
	// reached by, among them MySQL itself. Default: MySQL alone.
	Hosts []mywire.ConnectConfig
	// Target is which of them is wanted. Default: any.
	Target upstream.Target
	// Listen is the address for clients: host:port, or the path of a Unix
	// socket. Default: 127.0.0.1:3307.
	Listen string

	// Sockets are listened on in the place of Listen. Default: none.
	Sockets []core.Socket

	// Options say how clients share backends. NoRowsLane switches multi-row
	// INSERTs off, NoSoloLane transactions of several clients' writes.
	session.Options

	// LocalInfile lets servers ask clients for files (LOAD DATA LOCAL INFILE).
	// Default: off, for a server could ask for any file.
	LocalInfile bool

	// Auth is how clients are authenticated: "auto" (by weir as the server would, where
	// it knows what the server stores, else as relay), "relay" (the server decides
	// about those who are not in Users), "ldap" (LDAP decides about all), or the name of
	// a plugin of mywire, or "trust", against Users, the DSN's own user, or AuthQuery.
	// Default: auto.
	Auth string
	// LDAP is who is asked where Auth is "ldap". Default: none.
	LDAP *ldap.Directory
	// Users are those whose secrets weir knows.
	Users []User
	// AuthQuery is run as the DSN's user to find the secret of another; ? stands
	// for the user's name, and the result is one row of name and
	// authentication string, as in mysql.user. Default: none.
	AuthQuery string
	// AdminUsers may log in to database "weir"; the DSN's user always may.
	AdminUsers []string

	// Peers are the addresses for clients of other weirs, which a KILL of their
	// clients goes to, and PeerSecret is what weirs prove themselves to each other
	// by. Default: none.
	Peers      session.Peers
	PeerSecret string

	// TrustFunctions are stored functions and procedures, as name or schema.name,
	// that leave nothing in a session: whatever their bodies say, or if they are not
	// shown. "*" is all of them, and triggers as well. Default: none.
	TrustFunctions []string

	// Process is what the console asks to reload and to shut down. Default: none,
	// and the console says so.
	Process core.Process

	ownDial bool // MySQL.Dial is Keepalive's
	// firstAnswer is how long a client may take to answer the greeting; 0: see there.
	firstAnswer time.Duration

	// ClientTLS, ClientTLSMode: see mywire.AcceptConfig.
	ClientTLS     *tls.Config
	ClientTLSMode mywire.TLSMode
}

// AuthAuto lets in as the server would, AuthRelay leaves authentication to the server,
// AuthTrust asks for nothing, AuthLDAP asks an LDAP server about the password.
const (
	AuthAuto  = "auto"
	AuthLDAP  = "ldap"
	AuthRelay = "relay"
	AuthTrust = "trust"
)

// relays reports whether users whose secrets weir does not know are for the server to
// check.
func (c *Config) relays() bool { return c.Auth == AuthAuto || c.Auth == AuthRelay }

// Defaults returns the zero Config with every default filled in but MySQL.Dial, which
// follows Keepalive.
func Defaults() Config {
	c := Config{}.withDefaults()
	c.MySQL.Dial, c.ownDial = nil, false
	return c
}

// Renewed returns the server and the hosts of c with the passwords and certificates that
// they have in next. It returns false, and what c has, if next leads elsewhere: the new
// password may be that of the other servers alone.
func (c *Config) Renewed(next *Config) (server mywire.ConnectConfig, hosts []mywire.ConnectConfig, same bool) {
	server, same = c.MySQL.Renewed(next.MySQL)
	hosts, all := core.Renewed(c.Hosts, next.Hosts)
	if !same || !all || c.Target != next.Target {
		return c.MySQL, c.Hosts, false
	}
	return server, hosts, true
}

// Validate names the first flag that makes no sense; New checks the same.
func (c Config) Validate() error { return c.withDefaults().validate() }

func (c Config) withDefaults() Config {
	if len(c.Hosts) == 0 {
		c.Hosts = []mywire.ConnectConfig{c.MySQL}
	}
	c.Target = cmp.Or(c.Target, upstream.TargetAny)
	c.Listen = cmp.Or(c.Listen, "127.0.0.1:3307")
	c.Options = c.Options.WithDefaults()
	if c.MySQL.Dial == nil {
		c.MySQL.Dial, c.ownDial = c.Keepalive.Dial, true
	}
	c.Auth = cmp.Or(c.Auth, AuthAuto)
	return c
}

// validate names the first flag that makes no sense.
func (c Config) validate() error {
	if c.MySQL.Address == "" {
		return session.ErrNoServer
	}
	if err := c.Options.Validate(); err != nil {
		return err
	}
	if err := c.Peers.Check(c.PeerID); err != nil {
		return err
	}
	if len(c.Peers) > 0 && c.PeerSecret == "" {
		return errors.New("--mysql-peers needs --peer-secret, by which weirs prove themselves to each other")
	}
	switch c.Auth {
	case AuthAuto, AuthRelay, AuthTrust, mywire.PluginNative, mywire.PluginSHA2:
	case AuthLDAP:
		if c.LDAP == nil {
			return errors.New("--mysql-auth ldap: add --ldap, which says where the LDAP server is")
		}
		if c.AuthQuery != "" {
			return errors.New("--mysql-auth ldap and --mysql-auth-query exclude each other: each says how passwords are checked")
		}
	default:
		return fmt.Errorf("--mysql-auth %q: want auto, relay, ldap, trust, %s or %s", c.Auth, mywire.PluginNative, mywire.PluginSHA2)
	}
	if c.AuthQuery != "" && c.MySQL.User == "" {
		return errors.New("--mysql-auth-query needs a user in --mysql to run as")
	}
	if err := (mywire.AcceptConfig{TLS: c.ClientTLS, TLSMode: c.ClientTLSMode}).Validate(); err != nil {
		return fmt.Errorf("--client-tls-mode: %w", err)
	}
	return nil
}
