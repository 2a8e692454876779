package session

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"time"

	"github.com/weirdb/weir/internal/proxy/netloop"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/wire/proxyproto"
)

// Mode says for how long a client keeps a backend.
type Mode string

// The modes.
const (
	// ModeAuto shares backends between statements, and pins a session to its backend while
	// it has state that cannot be replayed.
	ModeAuto Mode = "auto"
	// ModeSession keeps one backend for the whole session.
	ModeSession Mode = "session"
	// ModeTransaction shares between transactions and ignores session state,
	// as PgBouncer does; settings are still replayed.
	ModeTransaction Mode = "transaction"
	// ModeStatement is ModeTransaction without transactions.
	ModeStatement Mode = "statement"
)

// A BatchRule selects writes without a hint that join a group. An empty Database or
// User means any.
type BatchRule struct {
	Database string        `yaml:"database"`
	User     string        `yaml:"user"`
	Batch    bool          `yaml:"batch"`
	Window   time.Duration `yaml:"window"` // 0: adaptive
}

// MaxGroup is the most members of one group. Gains flatten beyond it (reference
// measurements: 64 rows 10x, 256 rows 15x, 1000 rows 19x) while the latency of a group
// grows in proportion.
const MaxGroup = 256

// Options configure how clients share backends, for either protocol. The zero
// value of a field means its default.
type Options struct {
	// Mode is how long a client keeps a backend. Default: auto.
	Mode Mode
	// Limits apply where no rule sets others.
	Limits
	// LimitRules are limits of certain users and databases.
	LimitRules []LimitRule
	// ReadLanes is the most backends that pipeline reads of several clients.
	// More than the server has processors gain nothing. Less than 0 switches the
	// sharing of reads off. Default: 4, at most half of PoolSize.
	ReadLanes int
	// WriteLanes is the most groups of one lane in flight. Default: 2.
	WriteLanes int
	// GroupLimit is the most members of one group, at most MaxGroup. Default: MaxGroup.
	GroupLimit int
	// NoRowsLane and NoSoloLane switch off the lane of multi-row INSERTs, and
	// that of all other writes.
	NoRowsLane, NoSoloLane bool
	// Batch lists which writes without a hint join a group; the first rule
	// that matches decides. Default: none.
	Batch []BatchRule
	// CacheSize is the size of the cache for answers to reads that ask for it, in bytes.
	// Default: 64 MiB; less than 0: no cache.
	CacheSize int64
	// CacheMaxAnswer is the largest answer that is cached. Default: 1 MiB, at most CacheSize.
	CacheMaxAnswer int64
	// PoolKeep is how long a pool without clients and server connections is kept.
	// Default: 1 h; less than 0: for ever.
	PoolKeep time.Duration
	// Loops is the number of event loops, each on one thread with pools of its
	// own. Default: one for each four processors, at least one.
	Loops int

	// TrustLoopback lets clients that come from a loopback address, or over a Unix
	// socket from any user, log in without a password where the server lets weir do
	// so. A balancer, tunnel or sidecar on weir's host gives that to all who can reach
	// it. Default: only processes of weir's own user and of root, over a Unix socket.
	TrustLoopback bool

	// ReusePort lets several processes listen on one TCP address (SO_REUSEPORT).
	ReusePort bool

	// ProxyProtocol are the balancers whose connections begin with a header of the
	// PROXY protocol, which has the client's address. Default: none.
	ProxyProtocol proxyproto.Trusted

	// MaxClients bounds the sessions. Default: 10000.
	MaxClients int
	// MaxMessage is the largest message of a client, in bytes. Default: 1 GiB, the
	// servers' own limit.
	MaxMessage int
	// ConnectTimeout bounds the opening of a backend. Default: 15 s.
	ConnectTimeout time.Duration
	// ConnectPatience is how long statements wait while the server cannot be
	// reached, for instance because it restarts. Default: 5 s.
	ConnectPatience time.Duration
	// FailoverTimeout replaces ConnectPatience if there are several hosts: one of them
	// may be promoted meanwhile. Default: 30 s.
	FailoverTimeout time.Duration
	// LoginTimeout bounds a client's login. Default: 60 s.
	LoginTimeout time.Duration
	// LoginCheckInterval is how long what the server has reported about a role or about
	// accounts at one login may be used for others, if nothing else about them depends on
	// it. Default: 1 s; less than 0: weir asks the server at each login.
	LoginCheckInterval time.Duration
	// ClientWriteTimeout disconnects a client that reads nothing of a long answer for
	// this long while others wait for the backend that it occupies.
	// Default: 20 s; less than 0: never.
	ClientWriteTimeout time.Duration
	// DrainTimeout is how long a shutdown waits for open transactions.
	// Default: 10 s.
	DrainTimeout time.Duration
	// Keepalive is how connections of clients and to servers detect a peer that has
	// disappeared.
	Keepalive netloop.Keepalive

	// PeerID is this weir's number among several, 1 to MaxPeer. Default: 0, none.
	PeerID int

	// SlowLog is the time, including the wait for a backend, from which a statement is
	// logged as slow.
	// Default: 0, never.
	SlowLog time.Duration
	// TellText puts statements with their literals, as sent, into the slow log and spans.
	// Default: without literals.
	TellText bool
	// OTLP is where spans of traced statements go. Default: nowhere.
	OTLP sight.OTLP
	// Audit receives logins and commands of the console. Default: nil, none.
	Audit *sight.Audit

	// Log receives the proxy's log. Default: slog.Default().
	Log *slog.Logger
}

// WithDefaults returns the options with every default filled in.
func (o Options) WithDefaults() Options {
	o.Mode = cmp.Or(o.Mode, ModeAuto)
	o.Limits = o.withDefaults()
	switch {
	case o.ReadLanes < 0:
		o.ReadLanes = 0
	case o.ReadLanes == 0:
		o.ReadLanes = max(1, min(4, o.PoolSize/2))
	}
	o.WriteLanes = cmp.Or(o.WriteLanes, 2)
	o.GroupLimit = cmp.Or(o.GroupLimit, MaxGroup)
	o.CacheSize = cmp.Or(o.CacheSize, 64<<20)
	o.CacheMaxAnswer = min(cmp.Or(o.CacheMaxAnswer, 1<<20), max(o.CacheSize, 1))
	o.PoolKeep = cmp.Or(o.PoolKeep, time.Hour)
	o.Loops = cmp.Or(o.Loops, max(1, runtime.NumCPU()/4))
	o.MaxClients = cmp.Or(o.MaxClients, 10000)
	o.MaxMessage = cmp.Or(o.MaxMessage, 1<<30)
	o.ConnectTimeout = cmp.Or(o.ConnectTimeout, 15*time.Second)
	o.ConnectPatience = cmp.Or(o.ConnectPatience, 5*time.Second)
	o.FailoverTimeout = cmp.Or(o.FailoverTimeout, 30*time.Second)
	o.LoginTimeout = cmp.Or(o.LoginTimeout, time.Minute)
	o.LoginCheckInterval = cmp.Or(o.LoginCheckInterval, time.Second)
	o.ClientWriteTimeout = cmp.Or(o.ClientWriteTimeout, 20*time.Second)
	o.DrainTimeout = cmp.Or(o.DrainTimeout, 10*time.Second)
	o.Keepalive = o.Keepalive.WithDefaults()
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return o
}

// Reload returns the options for a running process in which o replaces old: some cannot
// change after the start.
func (o Options) Reload(old Options) Options {
	o = o.WithDefaults()
	o.Mode, o.Loops, o.WriteLanes, o.GroupLimit, o.Log = old.Mode, old.Loops, old.WriteLanes, old.GroupLimit, old.Log
	o.ReusePort, o.OTLP, o.Audit, o.PeerID = old.ReusePort, old.OTLP, old.Audit, old.PeerID
	return o
}

// Validate returns an error that names the first invalid flag.
func (o *Options) Validate() error {
	switch o.Mode {
	case ModeAuto, ModeSession, ModeTransaction, ModeStatement:
	default:
		return fmt.Errorf("--mode %q: want auto, session, transaction or statement", o.Mode)
	}
	for _, f := range []struct {
		flag string
		v    int
	}{
		{"--write-lanes", o.WriteLanes},
		{"--group-limit", o.GroupLimit},
		{"--loops", o.Loops},
		{"--max-clients", o.MaxClients},
		{"--max-message", o.MaxMessage},
	} {
		if f.v < 1 {
			return fmt.Errorf("%s %d: want at least 1", f.flag, f.v)
		}
	}
	for _, f := range []struct {
		flag string
		v    time.Duration
	}{
		{"--connect-timeout", o.ConnectTimeout},
		{"--connect-patience", o.ConnectPatience},
		{"--failover-timeout", o.FailoverTimeout},
		{"--login-timeout", o.LoginTimeout},
		{"--drain-timeout", o.DrainTimeout},
		{"--slow-log", o.SlowLog},
	} {
		if f.v < 0 {
			return fmt.Errorf("%s %s: is negative", f.flag, f.v)
		}
	}
	if o.GroupLimit > MaxGroup {
		return fmt.Errorf("--group-limit %d: want at most %d", o.GroupLimit, MaxGroup)
	}
	if err := o.Keepalive.Validate(); err != nil {
		return err
	}
	for i := range o.LimitRules {
		if err := o.LimitRules[i].Check(); err != nil {
			return fmt.Errorf("limits: %w", err)
		}
	}
	if err := o.validate(); err != nil {
		return err
	}
	return o.OTLP.Validate()
}

// ErrNoServer is the error of a proxy without a server.
var ErrNoServer = errors.New("no server: give --postgres or --mysql a connection string")

// BatchDefault returns what the rules say about a write without a hint: whether it joins
// a group, and how long it may wait for others.
func (o *Options) BatchDefault(database, user string) (time.Duration, bool) {
	for _, r := range o.Batch {
		if (r.Database == "" || r.Database == database) && (r.User == "" || r.User == user) {
			return r.Window, r.Batch
		}
	}
	return 0, false
}
