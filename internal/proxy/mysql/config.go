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

// Config says how this side of the proxy listens, which clients it lets in, and how it shares
// connections. The zero value of a field means its default.
type Config struct {
	// MySQL is the server. Its user and password, if given, let weir open
	// backends for that user and look up others (AuthQuery). Required.
	MySQL mywire.ConnectConfig
	// Hosts are the servers that may take its place, MySQL itself among them, with what is
	// needed to reach each. Default: MySQL alone.
	Hosts []mywire.ConnectConfig
	// Target is the kind of host that is wanted. Default: any.
	Target upstream.Target
	// Listen is the address for clients: host:port, or the path of a Unix
	// socket. Default: 127.0.0.1:3307.
	Listen string

	// Sockets replace Listen: weir accepts clients on them. Default: none.
	Sockets []core.Socket

	// Options say how clients share backends. NoRowsLane switches off multi-row INSERTs,
	// NoSoloLane transactions of several clients' writes.
	session.Options

	// LocalInfile lets servers request files from clients (LOAD DATA LOCAL INFILE). Default:
	// off, since a server could request any file.
	LocalInfile bool

	// Auth is how clients are authenticated: "auto" (weir checks them as the server would if it
	// knows what the server stores, otherwise as relay), "relay" (the server checks users that
	// are not in Users), "ldap" (LDAP checks all), the name of a plugin of mywire, or "trust".
	// weir's own checks use Users, the DSN's user, or AuthQuery. Default: auto.
	Auth string
	// LDAP is the directory that checks passwords if Auth is "ldap". Default: none.
	LDAP *ldap.Directory
	// Users are the users whose secrets weir holds.
	Users []User
	// AuthQuery is run as the DSN's user to find the secret of another; ? stands
	// for the user's name, and the result is one row of name and
	// authentication string, as in mysql.user. Default: none.
	AuthQuery string
	// AdminUsers may log in to database "weir"; the DSN's user always may.
	AdminUsers []string

	// Peers are the addresses for clients of other weirs, to which weir forwards a KILL of one
	// of their clients. PeerSecret is the secret by which weirs authenticate to each other.
	// Default: none.
	Peers      session.Peers
	PeerSecret string

	// TrustFunctions names stored functions and procedures, as name or schema.name, that leave
	// no state in a session, whatever their bodies say and even if weir cannot read them. "*"
	// means all of them, and triggers as well. Default: none.
	TrustFunctions []string

	// Process carries out the console's RELOAD and SHUTDOWN. Default: none, and the console
	// says so.
	Process core.Process

	ownDial bool // MySQL.Dial is Keepalive's
	// firstAnswer is how long a client may take to answer the greeting; 0 means the constant of
	// that name.
	firstAnswer time.Duration
	// held and sharedOut stand for maxHeld and maxSharedOut.
	held, sharedOut int

	// ClientTLS, ClientTLSMode: see mywire.AcceptConfig.
	ClientTLS     *tls.Config
	ClientTLSMode mywire.TLSMode
}

// AuthAuto checks clients as the server would, AuthRelay leaves the check to the server,
// AuthTrust checks nothing, AuthLDAP has an LDAP server check the password.
const (
	AuthAuto  = "auto"
	AuthLDAP  = "ldap"
	AuthRelay = "relay"
	AuthTrust = "trust"
)

// relays reports whether the server checks users whose secrets weir does not know.
func (c *Config) relays() bool { return c.Auth == AuthAuto || c.Auth == AuthRelay }

// Defaults returns the zero Config with every default filled in but MySQL.Dial, which
// follows Keepalive.
func Defaults() Config {
	c := Config{}.withDefaults()
	c.MySQL.Dial, c.ownDial = nil, false
	c.held, c.sharedOut = 0, 0 // of tests
	return c
}

// Several reports whether connections go to one of several hosts.
func (c *Config) Several() bool { return len(c.Hosts) > 1 }

// Renewed returns the server and the hosts of c with the passwords and certificates that they
// have in next. If next names other servers, it returns those of c and false: the new password
// may be meant for the other servers only.
func (c *Config) Renewed(next *Config) (server mywire.ConnectConfig, hosts []mywire.ConnectConfig, same bool) {
	server, same = c.MySQL.Renewed(next.MySQL)
	hosts, all := core.Renewed(c.Hosts, next.Hosts)
	if !same || !all || c.Target != next.Target {
		return c.MySQL, c.Hosts, false
	}
	return server, hosts, true
}

// Validate returns an error that names the first invalid flag. New checks the same.
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
	c.held, c.sharedOut = cmp.Or(c.held, maxHeld), cmp.Or(c.sharedOut, maxSharedOut)
	return c
}

// validate returns an error that names the first invalid flag.
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
