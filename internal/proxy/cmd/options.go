//go:build linux

package proxycmd

import (
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/mywire"
	"github.com/weirdb/weir/internal/wire/pgwire"
	"github.com/weirdb/weir/internal/wire/proxyproto"
)

// The groups of options, in the order of the help.
const (
	groupServer  = "Server and clients"
	groupSharing = "Sharing"
	groupWrites  = "Writes in groups"
	groupCache   = "Caching reads"
	groupLimits  = "Limits"
	groupAuth    = "Authentication"
	groupTLS     = "TLS for clients"
	groupSight   = "Slow statements, traces, audit"
)

var proxyGroups = []string{groupServer, groupSharing, groupWrites, groupCache, groupLimits, groupAuth, groupTLS, groupSight, cli.GroupOperation}

// proxyOptions lists every option of `weir proxy`.
func proxyOptions() []cli.Option[proxyConfig] {
	return slices.Concat(generalOptions(), cacheOptions(), limitOptions())
}

// generalOptions lists those that hold for all users and databases alike.
func generalOptions() []cli.Option[proxyConfig] {
	return []cli.Option[proxyConfig]{
		{
			Group: groupServer, Name: "postgres", Arg: "DSN", Secret: true,
			Help: "the PostgreSQL server, as a URL or key=value pairs, with several hosts if one may take over from another; the rest comes from PG* variables and the password file",
			Set:  func(c *proxyConfig, v string) error { c.pgDSN.text = v; return nil },
		},
		{
			Group: groupServer, Name: "mysql", Arg: "DSN", Secret: true,
			Help: "the MySQL or MariaDB server, as a URL or in the format of go-sql-driver, with several hosts if one may take over from another; the rest comes from MYSQL_* variables",
			Set:  func(c *proxyConfig, v string) error { c.myDSN.text = v; return nil },
		},
		{
			Group: groupServer, Name: "patroni", Arg: "URLS",
			Help: "Patroni's REST API, such as http://db1:8008, on one host or several, separated by commas: weir asks it for the hosts of PostgreSQL and which one leads",
			Set: func(c *proxyConfig, v string) error {
				c.pg.Patroni = nil
				for one := range strings.SplitSeq(v, ",") {
					u, err := url.Parse(strings.TrimSpace(one))
					if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
						return errors.New("want URLs such as http://db1:8008")
					}
					c.pg.Patroni = append(c.pg.Patroni, u.String())
				}
				return nil
			},
		},
		{
			Group: groupServer, Name: "listen-postgres", Arg: "ADDRESS", Default: "127.0.0.1:6432",
			Help: "where clients of PostgreSQL connect: host:port, the path of a Unix socket, or fd:NAME, a socket of systemd's",
			Set:  listenAddress(func(c *proxyConfig) *string { return &c.pg.Listen }),
		},
		{
			Group: groupServer, Name: "listen-mysql", Arg: "ADDRESS", Default: "127.0.0.1:3307",
			Help: "where clients of MySQL connect: host:port, the path of a Unix socket, or fd:NAME, a socket of systemd's",
			Set:  listenAddress(func(c *proxyConfig) *string { return &c.my.Listen }),
		},
		{
			Group: groupServer, Name: "reuse-port",
			Help: "let several weirs listen on one TCP address (SO_REUSEPORT), so that a new one can start before the old one ends",
			Set:  boolean(func(c *proxyConfig) *bool { return &c.shared.ReusePort }),
		},
		{
			Group: groupServer, Name: "takeover", Arg: "SOCKET",
			Help: "Unix socket for restarts without interruption: a weir that already serves there hands its listening sockets and idle clients to this one, which then serves there for the next",
			Set: func(c *proxyConfig, v string) error {
				if c.takeover = v; v != "" && !filepath.IsAbs(v) {
					return errors.New("want an absolute path")
				}
				return nil
			},
		},
		{
			Group: groupServer, Name: "proxy-protocol-from", Arg: "NETWORKS", Reload: true,
			Help: "balancers whose connections begin with a header of the PROXY protocol (version 1 or 2): addresses or networks such as 10.0.0.0/8, or unix, separated by commas; weir takes the client's address from the header, and never treats such clients as local",
			Set: func(c *proxyConfig, v string) (err error) {
				c.shared.ProxyProtocol, err = proxyproto.ParseTrusted(v)
				return err
			},
		},
		{
			Group: groupServer, Name: "peer-id", Arg: "N",
			Help: "this weir's number among several behind one address, 1 to 63",
			Set:  cli.Number(1, func(c *proxyConfig) *int { return &c.shared.PeerID }),
		},
		{
			Group: groupServer, Name: "peers", Arg: "N=ADDRESS", Reload: true,
			Help: "the other weirs by number, each with its own address for clients of PostgreSQL, separated by commas: cancel requests are forwarded to the weir that has the client",
			Set:  peers(func(c *proxyConfig) *session.Peers { return &c.pg.Peers }),
		},
		{
			Group: groupServer, Name: "mysql-peers", Arg: "N=ADDRESS", Reload: true,
			Help: "the same for clients of MySQL, and KILL",
			Set:  peers(func(c *proxyConfig) *session.Peers { return &c.my.Peers }),
		},
		{
			Group: groupServer, Name: "peer-secret", Arg: "TEXT", Secret: true, Reload: true,
			Help: "secret with which the weirs of --mysql-peers authenticate to each other, for KILL; the same for all",
			Set:  func(c *proxyConfig, v string) error { c.my.PeerSecret = v; return nil },
		},
		{
			Group: groupServer, Name: "admin", Arg: "ADDRESS", Default: "127.0.0.1:9187",
			Help: "where the live page, /metrics, /healthz and /readyz are served; off for nowhere",
			Set: func(c *proxyConfig, v string) error {
				if c.admin = v; v == "" || v == "off" {
					c.admin = ""
					return nil
				}
				return cli.CheckHostPort(v)
			},
		},

		{
			Group: groupSharing, Name: "mode", Arg: "MODE", Default: "auto",
			Help: "how long a client keeps a server connection: auto, session, transaction or statement",
			Set: cli.OneOf(func(c *proxyConfig, v string) { c.shared.Mode = session.Mode(v) },
				string(session.ModeAuto), string(session.ModeSession), string(session.ModeTransaction), string(session.ModeStatement)),
		},
		{
			Group: groupSharing, Name: "read-lanes", Arg: "N", Default: "auto", Reload: true,
			Help: "maximum server connections of a pool that pipeline reads of several clients; auto is 4, at most half of the pool; off shares no reads",
			Set: func(c *proxyConfig, v string) error {
				switch v {
				case "auto":
					c.shared.ReadLanes = 0
					return nil
				case "off", "0":
					c.shared.ReadLanes = -1
					return nil
				}
				return cli.Number(1, func(c *proxyConfig) *int { return &c.shared.ReadLanes })(c, v)
			},
		},
		{
			Group: groupSharing, Name: "trust-functions", Arg: "NAMES",
			Help: "functions of PostgreSQL, as name or schema.name and separated by commas, that weir assumes not to change the session, whatever it finds in them",
			Set:  names(func(c *proxyConfig) *[]string { return &c.pg.TrustFunctions }),
		},
		{
			Group: groupSharing, Name: "no-shared-listen", Reload: true,
			Help: "let each PostgreSQL client that listens (LISTEN) keep a server connection, instead of sharing one among all clients of a user and database",
			Set:  boolean(func(c *proxyConfig) *bool { return &c.pg.NoSharedListen }),
		},
		{
			Group: groupSharing, Name: "loops", Arg: "N", Default: "auto",
			Help: "event loops, each a thread with its own pools; auto is one for every four processors",
			Set: func(c *proxyConfig, v string) error {
				if v == "auto" {
					c.shared.Loops = 0
					return nil
				}
				return cli.Number(1, func(c *proxyConfig) *int { return &c.shared.Loops })(c, v)
			},
		},

		{
			Group: groupWrites, Name: "batch", Arg: "off|auto|DURATION", Words: []string{"off", "auto"}, Default: "off", SetList: listBatch, Reload: true,
			Help: "whether writes without a hint join a group: off, auto, or the longest wait for other writes, such as 2ms; in the file also a list of rules",
			Set: func(c *proxyConfig, v string) error {
				r, err := parseBatch(v)
				c.shared.Batch = nil
				if r.Batch {
					c.shared.Batch = []session.BatchRule{r}
				}
				return err
			},
		},
		{
			Group: groupWrites, Name: "write-lanes", Arg: "N", Default: "2",
			Help: "maximum groups of one lane in flight",
			Set:  cli.Number(1, func(c *proxyConfig) *int { return &c.shared.WriteLanes }),
		},
		{
			Group: groupWrites, Name: "group-limit", Arg: "N", Default: "256",
			Help: "maximum writes in one group",
			Set:  cli.Number(1, func(c *proxyConfig) *int { return &c.shared.GroupLimit }),
		},
		{
			Group: groupWrites, Name: "no-rows-lane", Reload: true,
			Help: "do not combine INSERTs of one shape into a multi-row INSERT; for PostgreSQL, also do not run several UPDATEs and DELETEs in one transaction",
			Set:  boolean(func(c *proxyConfig) *bool { return &c.shared.NoRowsLane }),
		},
		{
			Group: groupWrites, Name: "no-solo-lane", Reload: true,
			Help: "do not acknowledge several transactions with one flush of the log; for MySQL, do not run writes of several clients in one transaction",
			Set:  boolean(func(c *proxyConfig) *bool { return &c.shared.NoSoloLane }),
		},
		{
			Group: groupWrites, Name: "flush-prefix", Arg: "TEXT", Default: "weir", Reload: true,
			Help: "prefix of the empty logical messages by which the solo lane flushes PostgreSQL's log",
			Set: func(c *proxyConfig, v string) error {
				c.pg.FlushPrefix = v
				return nil
			},
		},

		{
			Group: groupLimits, Name: "max-clients", Arg: "N", Default: "10000", Reload: true,
			Help: "maximum client sessions",
			Set:  cli.Number(1, func(c *proxyConfig) *int { return &c.shared.MaxClients }),
		},
		{
			Group: groupLimits, Name: "limits", Arg: "RULES", SetList: listLimits, Reload: true,
			Help: "limits for certain users and databases, such as user=importer pool_size=5; database=shop max_db_connections=60; in the file a list of rules",
			Set: func(c *proxyConfig, v string) (err error) {
				c.shared.LimitRules, err = parseLimits(v)
				return err
			},
		},
		{
			Group: groupLimits, Name: "max-message", Arg: "SIZE", Default: "1GB", Reload: true,
			Help: "longest message of a client, with unit B, kB, MB or GB (of 1024)",
			Set: func(c *proxyConfig, v string) error {
				n, err := cli.ParseSize(v)
				if err == nil && n > 1<<30 {
					err = errors.New("servers take no more than 1GB")
				}
				c.shared.MaxMessage = n
				return err
			},
		},
		{
			Group: groupLimits, Name: "connect-timeout", Arg: "DURATION", Default: "15s", Reload: true,
			Help: "how long opening a server connection may take",
			Set:  duration(func(c *proxyConfig) *time.Duration { return &c.shared.ConnectTimeout }),
		},
		{
			Group: groupLimits, Name: "connect-patience", Arg: "DURATION", Default: "5s", Reload: true,
			Help: "how long statements wait while the server cannot be reached, for example because it restarts",
			Set:  duration(func(c *proxyConfig) *time.Duration { return &c.shared.ConnectPatience }),
		},
		{
			Group: groupLimits, Name: "failover-timeout", Arg: "DURATION", Default: "30s", Reload: true,
			Help: "the same if there are several hosts, one of which may be promoted in the meantime",
			Set:  duration(func(c *proxyConfig) *time.Duration { return &c.shared.FailoverTimeout }),
		},
		{
			Group: groupLimits, Name: "login-timeout", Arg: "DURATION", Default: "1m", Reload: true,
			Help: "how long a client's login may take",
			Set:  duration(func(c *proxyConfig) *time.Duration { return &c.shared.LoginTimeout }),
		},
		{
			Group: groupLimits, Name: "login-check-interval", Arg: "DURATION", Default: "1s", Reload: true,
			Help: "how long logins reuse what the server said about their role or account (whether it may log in, and its session settings), except to check the password; none asks at each login",
			Set: func(c *proxyConfig, v string) error {
				if cli.IsNone(v) {
					c.shared.LoginCheckInterval = -1
					return nil
				}
				return duration(func(c *proxyConfig) *time.Duration { return &c.shared.LoginCheckInterval })(c, v)
			},
		},
		{
			Group: groupLimits, Name: "client-write-timeout", Arg: "DURATION", Default: "20s", Reload: true,
			Help: "disconnect clients that stop reading a long answer for this long while others wait for their server connection",
			Set:  duration(func(c *proxyConfig) *time.Duration { return &c.shared.ClientWriteTimeout }),
		},
		{
			Group: groupLimits, Name: "tcp-keepalive", Arg: "on|off", Default: "on", Reload: true,
			Help: "probe silent TCP connections, of clients and to servers, and close those whose peer has vanished",
			Set: func(c *proxyConfig, v string) error {
				var on bool
				if boolean(func(*proxyConfig) *bool { return &on })(c, v) != nil {
					return errors.New("want on or off")
				}
				c.shared.Keepalive.Off = !on
				return nil
			},
		},
		{
			Group: groupLimits, Name: "tcp-keepidle", Arg: "DURATION", Default: "15s", Reload: true,
			Help: "how long a connection is silent before it is probed",
			Set:  duration(func(c *proxyConfig) *time.Duration { return &c.shared.Keepalive.Idle }),
		},
		{
			Group: groupLimits, Name: "tcp-keepintvl", Arg: "DURATION", Default: "15s", Reload: true,
			Help: "time between two probes",
			Set:  duration(func(c *proxyConfig) *time.Duration { return &c.shared.Keepalive.Interval }),
		},
		{
			Group: groupLimits, Name: "tcp-keepcnt", Arg: "N", Default: "9", Reload: true,
			Help: "probes without an answer until a connection is closed",
			Set:  cli.Number(1, func(c *proxyConfig) *int { return &c.shared.Keepalive.Count }),
		},
		{
			Group: groupLimits, Name: "tcp-user-timeout", Arg: "DURATION", Default: cli.None, Reload: true,
			Help: "close TCP connections, of clients and to servers, whose peer has not acknowledged sent data for this long, even if it is alive but does not read",
			Set:  durationOrNone(func(c *proxyConfig) *time.Duration { return &c.shared.Keepalive.UserTimeout }),
		},
		{
			Group: groupLimits, Name: "drain-timeout", Arg: "DURATION", Default: "10s", Reload: true,
			Help: "how long a stop waits for open transactions",
			Set:  duration(func(c *proxyConfig) *time.Duration { return &c.shared.DrainTimeout }),
		},
		{
			Group: groupLimits, Name: "shutdown-delay", Arg: "DURATION", Default: cli.None, Reload: true,
			Help: "how long weir continues to serve before it stops, while /readyz fails, so that a balancer sends no more clients",
			Set: func(c *proxyConfig, v string) error {
				if cli.IsNone(v) {
					c.shutdownDelay = 0
					return nil
				}
				return duration(func(c *proxyConfig) *time.Duration { return &c.shutdownDelay })(c, v)
			},
		},

		{
			Group: groupAuth, Name: "auth", Arg: "METHOD", Default: postgres.AuthAuto, Reload: true,
			Help: "how clients of PostgreSQL authenticate: auto (by the server's own rules, applied by weir if the DSN's user may read what the server stores, otherwise by the server), relay (to the server), ldap (to an LDAP server), scram-sha-256, md5, password, cert or trust",
			Set: cli.OneOf(func(c *proxyConfig, v string) { c.pg.Auth = v }, postgres.AuthAuto, postgres.AuthRelay, postgres.AuthLDAP, string(pgwire.AuthSCRAM),
				string(pgwire.AuthMD5), string(pgwire.AuthPassword), string(pgwire.AuthCert), string(pgwire.AuthTrust)),
		},
		{
			Group: groupAuth, Name: "auth-file", Arg: cli.ArgFile, Reload: true,
			Help: `users and secrets that weir checks itself, in lines of the form "user" "secret" (PgBouncer's userlist.txt)`,
			Set:  func(c *proxyConfig, v string) error { c.pgUsers = v; return nil },
		},
		{
			Group: groupAuth, Name: "auth-query", Arg: "SQL", Reload: true,
			Help: "query for the secret of a user who is not in the file; $1 is the name, the result is name and secret; qualify functions with their schema",
			Set:  func(c *proxyConfig, v string) error { c.pg.AuthQuery = v; return nil },
		},
		{
			Group: groupAuth, Name: "auth-user", Arg: "NAME", Reload: true,
			Help: "user that weir connects to PostgreSQL as to look up users who log in, with or without --auth-query; its password is in --auth-file; default the DSN's user",
			Set:  func(c *proxyConfig, v string) error { c.pg.AuthUser = v; return nil },
		},
		{
			Group: groupAuth, Name: "auth-dbname", Arg: "NAME", Reload: true,
			Help: "database in which weir looks up users; default the DSN's",
			Set:  func(c *proxyConfig, v string) error { c.pg.AuthDatabase = v; return nil },
		},
		{
			Group: groupAuth, Name: "ldap", Arg: "OPTIONS", Secret: true, Reload: true,
			Help: `the LDAP server of --auth ldap and --mysql-auth ldap, and how users are found there, as in pg_hba.conf: ldapserver=ldap.example.com ldaptls=1 ldapbasedn="ou=people,dc=example,dc=com"`,
			Set:  func(c *proxyConfig, v string) error { c.ldap.options = v; return nil },
		},
		{
			Group: groupAuth, Name: "ldap-ca", Arg: cli.ArgFile, Reload: true,
			Help: "certificate authorities for the LDAP server's certificate, PEM; default those of OpenLDAP's ldap.conf, otherwise the system's",
			Set:  func(c *proxyConfig, v string) error { c.ldap.ca = v; return nil },
		},
		{
			Group: groupAuth, Name: "ldap-timeout", Arg: "DURATION", Default: "5s", Reload: true,
			Help: "how long weir waits for the answer of each LDAP server",
			Set:  duration(func(c *proxyConfig) *time.Duration { return &c.ldap.timeout }),
		},
		{
			Group: groupAuth, Name: "trust-loopback", Reload: true,
			Help: "if a server asks weir's host for no password, accept everyone who connects to weir over a loopback address or a Unix socket, also on the console; otherwise only weir's own user and root over a Unix socket",
			Set:  boolean(func(c *proxyConfig) *bool { return &c.shared.TrustLoopback }),
		},
		{
			Group: groupAuth, Name: "mysql-auth", Arg: "METHOD", Default: mysql.AuthAuto, Reload: true,
			Help: "how clients of MySQL authenticate: auto (by the server's own rules, applied by weir if the DSN's user may read what the server stores, otherwise by the server), relay (to the server), ldap (to an LDAP server; needs TLS), mysql_native_password, caching_sha2_password or trust",
			Set: cli.OneOf(func(c *proxyConfig, v string) { c.my.Auth = v }, mysql.AuthAuto, mysql.AuthRelay, mysql.AuthLDAP, mywire.PluginNative,
				mywire.PluginSHA2, mysql.AuthTrust),
		},
		{
			Group: groupAuth, Name: "mysql-auth-file", Arg: cli.ArgFile, Reload: true,
			Help: "the same as --auth-file for MySQL; a secret is a password or what mysql.user holds",
			Set:  func(c *proxyConfig, v string) error { c.myUsers = v; return nil },
		},
		{
			Group: groupAuth, Name: "mysql-auth-query", Arg: "SQL", Reload: true,
			Help: "the same as --auth-query for MySQL; ? is the name, the result is name and authentication string",
			Set:  func(c *proxyConfig, v string) error { c.my.AuthQuery = v; return nil },
		},
		{
			Group: groupSharing, Name: "mysql-trust-functions", Arg: "NAMES",
			Help: "functions and procedures of MySQL, as name or schema.name and separated by commas, that weir assumes not to change the session, whatever it finds in them; * for all, and for triggers",
			Set:  names(func(c *proxyConfig) *[]string { return &c.my.TrustFunctions }),
		},
		{
			Group: groupAuth, Name: "local-infile", Reload: true,
			Help: "let MySQL servers ask clients for files (LOAD DATA LOCAL INFILE); a server could ask for any file",
			Set:  boolean(func(c *proxyConfig) *bool { return &c.my.LocalInfile }),
		},
		{
			Group: groupAuth, Name: "admin-users", Arg: "NAMES", SetList: listAdmins, Reload: true,
			Help: "users who may open the admin console in addition to the DSN's, separated by commas",
			Set:  names(func(c *proxyConfig) *[]string { return &c.admins }),
		},

		{
			Group: groupTLS, Name: "client-tls-mode", Arg: "MODE", Reload: true,
			Words: []string{"disable", "allow", "prefer", "require", "verify-ca", "verify-full"},
			Help:  "TLS for clients: disable, allow, prefer, require, verify-ca or verify-full (default prefer with a certificate, else disable)",
			Set: func(c *proxyConfig, v string) (err error) {
				if c.pg.ClientTLSMode, err = pgwire.ParseTLSMode(v); err != nil {
					return err
				}
				c.my.ClientTLSMode, err = mywire.ParseTLSMode(v)
				return err
			},
		},
		{
			Group: groupTLS, Name: "client-tls-cert", Arg: cli.ArgFile, Reload: true,
			Help: "weir's certificate, PEM, followed by intermediate ones",
			Set:  func(c *proxyConfig, v string) error { c.tls.cert = v; return nil },
		},
		{
			Group: groupTLS, Name: "client-tls-key", Arg: cli.ArgFile, Reload: true,
			Help: "its private key, PEM",
			Set:  func(c *proxyConfig, v string) error { c.tls.key = v; return nil },
		},
		{
			Group: groupTLS, Name: "client-tls-ca", Arg: cli.ArgFile, Reload: true,
			Help: "authorities of client certificates, PEM",
			Set:  func(c *proxyConfig, v string) error { c.tls.ca = v; return nil },
		},

		{
			Group: groupSight, Name: "slow-log", Arg: "DURATION", Default: cli.None, Reload: true,
			Help: "log statements that took this long, including waits, with user, waits, and text without literals",
			Set:  durationOrNone(func(c *proxyConfig) *time.Duration { return &c.shared.SlowLog }),
		},
		{
			Group: groupSight, Name: "statement-text", Reload: true,
			Help: "include statements as sent, with literals and up to 4 kB each, in the slow log and in spans",
			Set:  boolean(func(c *proxyConfig) *bool { return &c.shared.TellText }),
		},
		{
			Group: groupSight, Name: "otlp-endpoint", Arg: "URL",
			Help: "where to send a span of each statement that carries a sampled traceparent: an OTLP/HTTP receiver such as http://collector:4318",
			Set: func(c *proxyConfig, v string) error {
				c.shared.OTLP.Endpoint = v
				return c.shared.OTLP.Validate()
			},
		},
		{
			Group: groupSight, Name: "otlp-headers", Arg: "NAME=VALUE", Secret: true,
			Help: "headers of those requests, separated by commas",
			Set: func(c *proxyConfig, v string) error {
				c.shared.OTLP.Headers = make(map[string]string)
				for one := range strings.SplitSeq(v, ",") {
					name, value, ok := strings.Cut(one, "=")
					if name = strings.TrimSpace(name); !ok || name == "" {
						return errors.New("want NAME=VALUE, several of them separated by commas")
					}
					c.shared.OTLP.Headers[name] = strings.TrimSpace(value)
				}
				return nil
			},
		},
		{
			Group: groupSight, Name: "audit-log", Arg: "FILE|stderr",
			Help: "where logins and the commands of the admin console are written, a line of JSON each; a reload reopens the file",
			Set:  func(c *proxyConfig, v string) error { c.audit = v; return nil },
		},
		{
			Group: cli.GroupOperation, Name: "log-level", Arg: "LEVEL", Default: "info", Reload: true,
			Help: "debug, info, warn or error",
			Set: cli.OneOf(func(c *proxyConfig, v string) { _ = c.logLevel.UnmarshalText([]byte(v)) },
				"debug", "info", "warn", "error"),
		},
		{
			Group: cli.GroupOperation, Name: "log-format", Arg: "FORMAT", Default: "auto",
			Help: "text, json, or auto: text on a terminal, JSON elsewhere",
			Set:  cli.OneOf(func(c *proxyConfig, v string) { c.logFormat = v }, "auto", "text", "json"),
		},
	}
}

// proxyConfig is what the options add up to.
type proxyConfig struct {
	// pg and my are the two sides. Both have shared as their options.
	pg     postgres.Config
	my     mysql.Config
	shared session.Options

	pgDSN, myDSN     dsn
	pgUsers, myUsers string   // paths of their user lists
	admins           []string // who may open the console of either
	admin            string   // address; "": no admin server
	tls              tlsFiles
	ldap             ldapSource
	shutdownDelay    time.Duration
	takeover         string // path of a Unix socket; "": none
	// found is what the options were given, for reload to compare.
	found     cli.Found
	logLevel  slog.Level
	logFormat string
	audit     string // --audit-log
}

// dsn names the server of one side.
type dsn struct {
	text string
	// source is where it was found, "" if it was not.
	source string
	// wanted: there is such a server, and so such a side.
	wanted bool
	// visible: the password is on the command line, for all to see.
	visible bool
}

type setter = func(c *proxyConfig, value string) error

func listenAddress(field func(*proxyConfig) *string) setter {
	return func(c *proxyConfig, v string) error {
		*field(c) = v
		if strings.HasPrefix(v, "/") || strings.HasPrefix(v, "fd:") {
			return nil
		}
		return cli.CheckHostPort(v)
	}
}

func peers(field func(*proxyConfig) *session.Peers) setter {
	return func(c *proxyConfig, v string) (err error) {
		*field(c), err = session.ParsePeers(v)
		return err
	}
}

// names takes a list with commas between them.
func names(field func(*proxyConfig) *[]string) setter {
	return func(c *proxyConfig, v string) error {
		*field(c) = nil
		for name := range strings.SplitSeq(v, ",") {
			if name = strings.TrimSpace(name); name != "" {
				*field(c) = append(*field(c), name)
			}
		}
		return nil
	}
}

func boolean(field func(*proxyConfig) *bool) setter {
	return func(c *proxyConfig, v string) error {
		switch strings.ToLower(v) {
		case "true", "yes", "on", "1":
			*field(c) = true
		case "false", "no", "off", "0":
			*field(c) = false
		default:
			return errors.New("want true or false")
		}
		return nil
	}
}

// duration takes what time.ParseDuration does, above zero: a zero in
// session.Options means the default, which is not what 0 looks like.
func duration(field func(*proxyConfig) *time.Duration) setter {
	return func(c *proxyConfig, v string) error {
		d, err := time.ParseDuration(v)
		if err != nil || d <= 0 {
			return errors.New("want a duration above zero such as 250ms, 30s or 1h30m")
		}
		*field(c) = d
		return nil
	}
}

func durationOrNone(field func(*proxyConfig) *time.Duration) setter {
	return func(c *proxyConfig, v string) error {
		if cli.IsNone(v) {
			*field(c) = 0
			return nil
		}
		if err := duration(field)(c, v); err != nil {
			return fmt.Errorf("%w, or none", err)
		}
		return nil
	}
}

// maxBatchWindow is the bound of the hint batch:N: a client that would wait longer for
// other writes is mistaken about the unit.
const maxBatchWindow = time.Second

// parseBatch reads off, auto or a window as a rule for all clients.
func parseBatch(v string) (session.BatchRule, error) {
	switch v {
	case "off":
		return session.BatchRule{}, nil
	case "auto":
		return session.BatchRule{Batch: true}, nil
	}
	d, err := time.ParseDuration(v)
	if err != nil || d <= 0 || d > maxBatchWindow {
		return session.BatchRule{}, fmt.Errorf("want off, auto, or a wait of at most %s such as 2ms", maxBatchWindow)
	}
	return session.BatchRule{Batch: true, Window: d}, nil
}
