package main

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/mywire"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// option is one thing about the proxy that can be set: as a flag --pool-size,
// in the environment as WEIR_POOL_SIZE, in the file as pool_size. Its value is
// text wherever it comes from and is read by set, so that all three places
// accept the same and complain alike.
type option struct {
	group string
	name  string // of the flag
	arg   string // stands for the value in the help; "" is a switch
	def   string // shown as the default; read by set like any other value
	help  string
	// secret values are never repeated in an error.
	secret bool
	// reload marks what SIGHUP applies to a running proxy.
	reload bool
	set    func(c *proxyConfig, value string) error
}

func (o *option) key() string { return strings.ReplaceAll(o.name, "-", "_") }
func (o *option) env() string { return "WEIR_" + strings.ToUpper(o.key()) }

// argFile stands for the path of a file.
const argFile = "FILE"

// The groups of options, in the order of the help.
const (
	groupServer  = "Server and clients"
	groupSharing = "Sharing"
	groupWrites  = "Writes in groups"
	groupLimits  = "Limits"
	groupAuth    = "Authentication"
	groupTLS     = "TLS for clients"
	groupOps     = "Operation"
)

var proxyGroups = []string{groupServer, groupSharing, groupWrites, groupLimits, groupAuth, groupTLS, groupOps}

// proxyOptions lists every option of `weir proxy`.
func proxyOptions() []option {
	return []option{
		{
			group: groupServer, name: "postgres", arg: "DSN", secret: true,
			help: "the PostgreSQL server, as a URL or key=value pairs; what it leaves open comes from PG* variables and the password file",
			set:  func(c *proxyConfig, v string) error { c.pgDSN.text = v; return nil },
		},
		{
			group: groupServer, name: "mysql", arg: "DSN", secret: true,
			help: "the MySQL or MariaDB server, as a URL or as go-sql-driver has it; what it leaves open comes from MYSQL_* variables",
			set:  func(c *proxyConfig, v string) error { c.myDSN.text = v; return nil },
		},
		{
			group: groupServer, name: "listen-postgres", arg: "ADDRESS", def: "127.0.0.1:6432",
			help: "where clients of PostgreSQL connect: host:port, or the path of a Unix socket",
			set:  listenAddress(func(c *proxyConfig) *string { return &c.pg.Listen }),
		},
		{
			group: groupServer, name: "listen-mysql", arg: "ADDRESS", def: "127.0.0.1:3307",
			help: "where clients of MySQL connect: host:port, or the path of a Unix socket",
			set:  listenAddress(func(c *proxyConfig) *string { return &c.my.Listen }),
		},
		{
			group: groupServer, name: "admin", arg: "ADDRESS", def: "127.0.0.1:9187",
			help: "where the live page, /metrics, /healthz and /readyz are served; off for nowhere",
			set: func(c *proxyConfig, v string) error {
				if c.admin = v; v == "" || v == "off" {
					c.admin = ""
					return nil
				}
				return checkHostPort(v)
			},
		},

		{
			group: groupSharing, name: "mode", arg: "MODE", def: "auto",
			help: "for how long a client keeps a server connection: auto, session, transaction or statement",
			set: oneOf(func(c *proxyConfig, v string) { c.shared.Mode = session.Mode(v) },
				string(session.ModeAuto), string(session.ModeSession), string(session.ModeTransaction), string(session.ModeStatement)),
		},
		{
			group: groupSharing, name: "pool-size", arg: "N", def: "20",
			help: "most server connections per user and database",
			set:  number(1, func(c *proxyConfig) *int { return &c.shared.PoolSize }),
		},
		{
			group: groupSharing, name: "read-lanes", arg: "N", def: "auto",
			help: "most of them that pipeline reads of several clients; auto is 4, at most half of the pool; off shares no reads",
			set: func(c *proxyConfig, v string) error {
				switch v {
				case "auto":
					c.shared.ReadLanes = 0
					return nil
				case "off", "0":
					c.shared.ReadLanes = -1
					return nil
				}
				return number(1, func(c *proxyConfig) *int { return &c.shared.ReadLanes })(c, v)
			},
		},
		{
			group: groupSharing, name: "trust-functions", arg: "NAMES",
			help: "functions of PostgreSQL, as name or schema.name and separated by commas, that leave the session as it is, whatever weir makes of them",
			set: func(c *proxyConfig, v string) error {
				c.pg.TrustFunctions = nil
				for name := range strings.SplitSeq(v, ",") {
					if name = strings.TrimSpace(name); name != "" {
						c.pg.TrustFunctions = append(c.pg.TrustFunctions, name)
					}
				}
				return nil
			},
		},
		{
			group: groupSharing, name: "loops", arg: "N", def: "auto",
			help: "event loops, each a thread with pools of its own; auto is one for each four processors",
			set: func(c *proxyConfig, v string) error {
				if v == "auto" {
					c.shared.Loops = 0
					return nil
				}
				return number(1, func(c *proxyConfig) *int { return &c.shared.Loops })(c, v)
			},
		},

		{
			group: groupWrites, name: "batch", arg: "off|auto|DURATION", def: "off",
			help: "whether writes without a hint join a group: off, auto, or the longest wait for company such as 2ms; in the file also a list of rules",
			set: func(c *proxyConfig, v string) error {
				r, err := parseBatch(v)
				c.shared.Batch = nil
				if r.Batch {
					c.shared.Batch = []session.BatchRule{r}
				}
				return err
			},
		},
		{
			group: groupWrites, name: "write-lanes", arg: "N", def: "2",
			help: "most groups of one lane under way at a time",
			set:  number(1, func(c *proxyConfig) *int { return &c.shared.WriteLanes }),
		},
		{
			group: groupWrites, name: "no-rows-lane",
			help: "do not join INSERTs of one shape into one multi-row INSERT",
			set:  boolean(func(c *proxyConfig) *bool { return &c.shared.NoRowsLane }),
		},
		{
			group: groupWrites, name: "no-solo-lane",
			help: "do not acknowledge several transactions by one flush of the log; for MySQL, do not run writes of several clients in one transaction",
			set:  boolean(func(c *proxyConfig) *bool { return &c.shared.NoSoloLane }),
		},
		{
			group: groupWrites, name: "flush-prefix", arg: "TEXT", def: "weir",
			help: "prefix of the empty logical messages by which the solo lane flushes PostgreSQL's log",
			set: func(c *proxyConfig, v string) error {
				c.pg.FlushPrefix = v
				return nil
			},
		},

		{
			group: groupLimits, name: "max-clients", arg: "N", def: "10000",
			help: "most client sessions",
			set:  number(1, func(c *proxyConfig) *int { return &c.shared.MaxClients }),
		},
		{
			group: groupLimits, name: "max-waiting", arg: "N", def: "none",
			help: "most statements that wait for a server connection in one pool; more are refused",
			set: func(c *proxyConfig, v string) error {
				if v == "none" || v == "0" {
					c.shared.MaxWaiting = 0
					return nil
				}
				return number(1, func(c *proxyConfig) *int { return &c.shared.MaxWaiting })(c, v)
			},
		},
		{
			group: groupLimits, name: "max-message", arg: "SIZE", def: "1GB",
			help: "longest message of a client, with unit B, kB, MB or GB (of 1024)",
			set: func(c *proxyConfig, v string) error {
				n, err := parseSize(v)
				if err == nil && n > 1<<30 {
					err = errors.New("servers take no more than 1GB")
				}
				c.shared.MaxMessage = n
				return err
			},
		},
		{
			group: groupLimits, name: "queue-timeout", arg: "DURATION", def: "30s",
			help: "longest wait of a statement for a server connection",
			set:  duration(func(c *proxyConfig) *time.Duration { return &c.shared.QueueTimeout }),
		},
		{
			group: groupLimits, name: "connect-timeout", arg: "DURATION", def: "15s",
			help: "longest opening of a server connection",
			set:  duration(func(c *proxyConfig) *time.Duration { return &c.shared.ConnectTimeout }),
		},
		{
			group: groupLimits, name: "connect-patience", arg: "DURATION", def: "5s",
			help: "how long statements wait while the server cannot be reached, because it restarts for instance",
			set:  duration(func(c *proxyConfig) *time.Duration { return &c.shared.ConnectPatience }),
		},
		{
			group: groupLimits, name: "login-timeout", arg: "DURATION", def: "1m",
			help: "longest login of a client",
			set:  duration(func(c *proxyConfig) *time.Duration { return &c.shared.LoginTimeout }),
		},
		{
			group: groupLimits, name: "client-write-timeout", arg: "DURATION", def: "20s",
			help: "disconnect clients that read nothing of a long answer for this long while others wait for their server connection",
			set:  duration(func(c *proxyConfig) *time.Duration { return &c.shared.ClientWriteTimeout }),
		},
		{
			group: groupLimits, name: "idle-in-transaction-timeout", arg: "DURATION", def: "never",
			help: "disconnect clients that do nothing for this long within a transaction",
			set:  durationOrNever(func(c *proxyConfig) *time.Duration { return &c.shared.IdleInTransactionTimeout }),
		},
		{
			group: groupLimits, name: "client-idle-timeout", arg: "DURATION", def: "never",
			help: "disconnect clients that do nothing for this long",
			set:  durationOrNever(func(c *proxyConfig) *time.Duration { return &c.shared.ClientIdleTimeout }),
		},
		{
			group: groupLimits, name: "server-idle-timeout", arg: "DURATION", def: "10m",
			help: "close server connections that nobody needed for this long",
			set:  duration(func(c *proxyConfig) *time.Duration { return &c.shared.ServerIdleTimeout }),
		},
		{
			group: groupLimits, name: "server-lifetime", arg: "DURATION", def: "1h",
			help: "close server connections of this age, once they are free",
			set:  duration(func(c *proxyConfig) *time.Duration { return &c.shared.ServerLifetime }),
		},
		{
			group: groupLimits, name: "drain-timeout", arg: "DURATION", def: "10s",
			help: "how long a stop waits for transactions under way",
			set:  duration(func(c *proxyConfig) *time.Duration { return &c.shared.DrainTimeout }),
		},

		{
			group: groupAuth, name: "auth", arg: "METHOD", def: postgres.AuthRelay,
			help: "how clients of PostgreSQL prove who they are: relay (to the server), scram-sha-256, md5, password, cert or trust",
			set: oneOf(func(c *proxyConfig, v string) { c.pg.Auth = v }, postgres.AuthRelay, string(pgwire.AuthSCRAM),
				string(pgwire.AuthMD5), string(pgwire.AuthPassword), string(pgwire.AuthCert), string(pgwire.AuthTrust)),
		},
		{
			group: groupAuth, name: "auth-file", arg: argFile, reload: true,
			help: `users and secrets that weir checks itself, in lines of the form "user" "secret" (PgBouncer's userlist.txt)`,
			set:  func(c *proxyConfig, v string) error { c.pgUsers = v; return nil },
		},
		{
			group: groupAuth, name: "auth-query", arg: "SQL",
			help: "finds the secret of a user who is not in the file, run as the DSN's user; $1 is the name, the result is name and secret",
			set:  func(c *proxyConfig, v string) error { c.pg.AuthQuery = v; return nil },
		},
		{
			group: groupAuth, name: "trust-loopback",
			help: "where a server asks weir's host for no password, let in anyone who reaches weir over a loopback address or a Unix socket, the console included; otherwise only weir's own user and root over a Unix socket",
			set:  boolean(func(c *proxyConfig) *bool { return &c.shared.TrustLoopback }),
		},
		{
			group: groupAuth, name: "mysql-auth", arg: "METHOD", def: mysql.AuthRelay,
			help: "how clients of MySQL prove who they are: relay (to the server), mysql_native_password, caching_sha2_password or trust",
			set: oneOf(func(c *proxyConfig, v string) { c.my.Auth = v }, mysql.AuthRelay, mywire.PluginNative,
				mywire.PluginSHA2, mysql.AuthTrust),
		},
		{
			group: groupAuth, name: "mysql-auth-file", arg: argFile, reload: true,
			help: "the same as --auth-file for MySQL; a secret is a password or what mysql.user holds",
			set:  func(c *proxyConfig, v string) error { c.myUsers = v; return nil },
		},
		{
			group: groupAuth, name: "mysql-auth-query", arg: "SQL",
			help: "the same as --auth-query for MySQL; ? is the name, the result is name and authentication string",
			set:  func(c *proxyConfig, v string) error { c.my.AuthQuery = v; return nil },
		},
		{
			group: groupSharing, name: "mysql-trust-functions", arg: "NAMES",
			help: "functions and procedures of MySQL, as name or schema.name and separated by commas, that leave nothing in a session, whatever weir makes of them; * for all, and for triggers",
			set: func(c *proxyConfig, v string) error {
				c.my.TrustFunctions = nil
				for name := range strings.SplitSeq(v, ",") {
					if name = strings.TrimSpace(name); name != "" {
						c.my.TrustFunctions = append(c.my.TrustFunctions, name)
					}
				}
				return nil
			},
		},
		{
			group: groupAuth, name: "local-infile",
			help: "let MySQL servers ask clients for files (LOAD DATA LOCAL INFILE): a server could ask for any",
			set:  boolean(func(c *proxyConfig) *bool { return &c.my.LocalInfile }),
		},
		{
			group: groupAuth, name: "admin-users", arg: "NAMES",
			help: "who may open the admin console beside the DSN's user, separated by commas",
			set: func(c *proxyConfig, v string) error {
				c.admins = nil
				for name := range strings.SplitSeq(v, ",") {
					if name = strings.TrimSpace(name); name != "" {
						c.admins = append(c.admins, name)
					}
				}
				return nil
			},
		},

		{
			group: groupTLS, name: "client-tls-mode", arg: "MODE",
			help: "what is demanded of clients: disable, allow, prefer, require, verify-ca or verify-full (default prefer with a certificate, else disable)",
			set: func(c *proxyConfig, v string) (err error) {
				if c.pg.ClientTLSMode, err = pgwire.ParseTLSMode(v); err != nil {
					return err
				}
				c.my.ClientTLSMode, err = mywire.ParseTLSMode(v)
				return err
			},
		},
		{
			group: groupTLS, name: "client-tls-cert", arg: argFile, reload: true,
			help: "weir's certificate, PEM, intermediates behind it",
			set:  func(c *proxyConfig, v string) error { c.tls.cert = v; return nil },
		},
		{
			group: groupTLS, name: "client-tls-key", arg: argFile, reload: true,
			help: "its private key, PEM",
			set:  func(c *proxyConfig, v string) error { c.tls.key = v; return nil },
		},
		{
			group: groupTLS, name: "client-tls-ca", arg: argFile, reload: true,
			help: "authorities whose client certificates are believed, PEM",
			set:  func(c *proxyConfig, v string) error { c.tls.ca = v; return nil },
		},

		{
			group: groupOps, name: "log-level", arg: "LEVEL", def: "info", reload: true,
			help: "debug, info, warn or error",
			set: oneOf(func(c *proxyConfig, v string) { _ = c.logLevel.UnmarshalText([]byte(v)) },
				"debug", "info", "warn", "error"),
		},
		{
			group: groupOps, name: "log-format", arg: "FORMAT", def: "auto",
			help: "text, json, or auto: text on a terminal, JSON elsewhere",
			set:  oneOf(func(c *proxyConfig, v string) { c.logFormat = v }, "auto", "text", "json"),
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
	// texts holds each option's value as it was found, for reload to compare.
	texts     map[string]string
	logLevel  slog.Level
	logFormat string
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

func oneOf(put func(*proxyConfig, string), names ...string) setter {
	return func(c *proxyConfig, v string) error {
		if !slices.Contains(names, v) {
			last := len(names) - 1
			return fmt.Errorf("want %s or %s", strings.Join(names[:last], ", "), names[last])
		}
		put(c, v)
		return nil
	}
}

func listenAddress(field func(*proxyConfig) *string) setter {
	return func(c *proxyConfig, v string) error {
		*field(c) = v
		if strings.HasPrefix(v, "/") {
			return nil
		}
		return checkHostPort(v)
	}
}

func number(least int, field func(*proxyConfig) *int) setter {
	return func(c *proxyConfig, v string) error {
		n, err := strconv.Atoi(v)
		if err != nil || n < least || n > math.MaxInt32 {
			return fmt.Errorf("want a whole number, at least %d", least)
		}
		*field(c) = n
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

func durationOrNever(field func(*proxyConfig) *time.Duration) setter {
	return func(c *proxyConfig, v string) error {
		if v == "never" || v == "off" || v == "0" {
			*field(c) = 0
			return nil
		}
		if err := duration(field)(c, v); err != nil {
			return fmt.Errorf("%w, or never", err)
		}
		return nil
	}
}

// maxBatchWindow is the bound of the hint batch:N: a client that would wait longer for
// company is mistaken about the unit.
const maxBatchWindow = time.Second

// parseBatch reads off, auto or a window as a rule for everybody.
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

// parseSize reads a size as PostgreSQL does: units are powers of 1024.
func parseSize(v string) (int, error) {
	digits := strings.TrimRight(v, "kKMGiBb ")
	shift, ok := map[string]uint{
		"": 0, "b": 0, "k": 10, "kb": 10, "kib": 10, "m": 20, "mb": 20, "mib": 20, "g": 30, "gb": 30, "gib": 30,
	}[strings.ToLower(strings.TrimSpace(v[len(digits):]))]
	n, err := strconv.ParseInt(digits, 10, 64)
	if !ok || err != nil || n < 1 || n > math.MaxInt64>>shift {
		return 0, errors.New("want a size such as 64kB, 16MB or 1GB")
	}
	return int(n << shift), nil
}

func checkHostPort(v string) error {
	_, port, err := net.SplitHostPort(v)
	if err != nil {
		return errors.New("want host:port")
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("port %q is not a number from 0 (any free one) to 65535", port)
	}
	return nil
}
