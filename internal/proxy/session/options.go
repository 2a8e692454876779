package session

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"time"

	"github.com/weirdb/weir/internal/wire/proxyproto"
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

// Options say how clients share backends, whatever their protocol. The zero
// value of a field means its default.
type Options struct {
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
	// NoRowsLane and NoSoloLane switch a lane off: that of multi-row INSERTs,
	// and that of any other write.
	NoRowsLane, NoSoloLane bool
	// Batch lists which writes without a hint join a group; the first rule
	// that fits decides. Default: none do.
	Batch []BatchRule
	// Loops is the number of event loops, each on one thread with pools of its
	// own. Default: one for each four processors, at least one.
	Loops int

	// TrustLoopback lets clients that come from a loopback address, or over a Unix
	// socket from any user, have what the server grants weir without a password.
	// A balancer, tunnel or sidecar on weir's host hands that on to everybody who
	// can reach it. Default: only processes of weir's own user and of root, over
	// a Unix socket.
	TrustLoopback bool

	// ReusePort has several processes listen on one TCP address. Default: not.
	ReusePort bool

	// ProxyProtocol are the balancers whose connections begin with a header of the
	// PROXY protocol, which says whose they are. Default: none.
	ProxyProtocol proxyproto.Trusted

	// MaxClients bounds the sessions. Default: 10000.
	MaxClients int
	// MaxWaiting bounds the statements that wait for a backend in one pool.
	// Default: 0, none.
	MaxWaiting int
	// MaxMessage bounds one message of a client, in bytes. Default: 1 GiB, the
	// servers' own limit.
	MaxMessage int
	// QueueTimeout bounds the wait for a backend. Default: 30 s.
	QueueTimeout time.Duration
	// ConnectTimeout bounds the opening of a backend. Default: 15 s.
	ConnectTimeout time.Duration
	// ConnectPatience is how long statements wait while the server cannot be
	// reached, for instance because it restarts. Default: 5 s.
	ConnectPatience time.Duration
	// FailoverTimeout is ConnectPatience where there are several hosts: one of them
	// may be promoted meanwhile. Default: 30 s.
	FailoverTimeout time.Duration
	// LoginTimeout bounds a client's login. Default: 60 s.
	LoginTimeout time.Duration
	// ClientWriteTimeout disconnects a client that takes nothing of a long answer
	// for this long while others wait for the backend that it holds by that.
	// Default: 20 s; less than 0 is never.
	ClientWriteTimeout time.Duration
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

	// Log receives the proxy's log. Default: slog.Default().
	Log *slog.Logger
}

// WithDefaults returns the options with every default filled in.
func (o Options) WithDefaults() Options {
	o.Mode = cmp.Or(o.Mode, ModeAuto)
	o.PoolSize = cmp.Or(o.PoolSize, 20)
	switch {
	case o.ReadLanes < 0:
		o.ReadLanes = 0
	case o.ReadLanes == 0:
		o.ReadLanes = max(1, min(4, o.PoolSize/2))
	}
	o.WriteLanes = cmp.Or(o.WriteLanes, 2)
	o.Loops = cmp.Or(o.Loops, max(1, runtime.NumCPU()/4))
	o.MaxClients = cmp.Or(o.MaxClients, 10000)
	o.MaxMessage = cmp.Or(o.MaxMessage, 1<<30)
	o.QueueTimeout = cmp.Or(o.QueueTimeout, 30*time.Second)
	o.ConnectTimeout = cmp.Or(o.ConnectTimeout, 15*time.Second)
	o.ConnectPatience = cmp.Or(o.ConnectPatience, 5*time.Second)
	o.FailoverTimeout = cmp.Or(o.FailoverTimeout, 30*time.Second)
	o.LoginTimeout = cmp.Or(o.LoginTimeout, time.Minute)
	o.ClientWriteTimeout = cmp.Or(o.ClientWriteTimeout, 20*time.Second)
	o.ServerIdleTimeout = cmp.Or(o.ServerIdleTimeout, 10*time.Minute)
	o.ServerLifetime = cmp.Or(o.ServerLifetime, time.Hour)
	o.DrainTimeout = cmp.Or(o.DrainTimeout, 10*time.Second)
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return o
}

// Reload returns the options that hold when o takes the place of old in a running
// process: some can only be chosen at the start.
func (o Options) Reload(old Options) Options {
	o = o.WithDefaults()
	o.Mode, o.Loops, o.WriteLanes, o.Log = old.Mode, old.Loops, old.WriteLanes, old.Log
	o.ReusePort = old.ReusePort
	return o
}

// Validate names the first flag that makes no sense.
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
		{"--pool-size", o.PoolSize},
		{"--write-lanes", o.WriteLanes},
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
		{"--queue-timeout", o.QueueTimeout},
		{"--connect-timeout", o.ConnectTimeout},
		{"--connect-patience", o.ConnectPatience},
		{"--failover-timeout", o.FailoverTimeout},
		{"--login-timeout", o.LoginTimeout},
		{"--idle-in-transaction-timeout", o.IdleInTransactionTimeout},
		{"--client-idle-timeout", o.ClientIdleTimeout},
		{"--server-idle-timeout", o.ServerIdleTimeout},
		{"--server-lifetime", o.ServerLifetime},
		{"--drain-timeout", o.DrainTimeout},
	} {
		if f.v < 0 {
			return fmt.Errorf("%s %s: is negative", f.flag, f.v)
		}
	}
	if o.MaxWaiting < 0 {
		return fmt.Errorf("--max-waiting %d: is negative", o.MaxWaiting)
	}
	return nil
}

// ErrNoServer is the error of a proxy without a server.
var ErrNoServer = errors.New("no server: give --postgres or --mysql a connection string")

// BatchDefault is what the rules say of a write without a hint: whether it joins
// a group, and the most that it may wait for company.
func (o *Options) BatchDefault(database, user string) (time.Duration, bool) {
	for _, r := range o.Batch {
		if (r.Database == "" || r.Database == database) && (r.User == "" || r.User == user) {
			return r.Window, r.Batch
		}
	}
	return 0, false
}
