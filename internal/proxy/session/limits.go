package session

import (
	"cmp"
	"errors"
	"fmt"
	"time"
)

// DefaultPoolSize is the default of PoolSize, and the initial size of pools that size
// themselves, which is the default of the commands.
const DefaultPoolSize = 20

// Limits are the options that can be set per user and database. The zero value of a
// field means its default.
type Limits struct {
	// PoolSize is the most backends per user and database. From 8 on, clients hold at
	// most all but one of them, so that long transactions do not stop reads and
	// the preparation of statements; unless ReadLanes is off, or each session keeps a
	// backend (ModeSession, and servers that do not report changes of sessions).
	// Default: 20.
	PoolSize int
	// AutoPool lets a pool start with PoolSize, or MinPoolSize if that is more, and grow
	// while that increases the server's throughput. Default: false.
	AutoPool bool
	// MinPoolSize is how many backends stay open although idle, once a client has
	// logged in. Default: 0.
	MinPoolSize int
	// ReservePoolSize is how many more backends a pool may have while a client has waited
	// for ReservePoolTimeout. Defaults: 0 and 5 s.
	ReservePoolSize    int
	ReservePoolTimeout time.Duration
	// MaxDBConnections and MaxUserConnections bound the backends of all pools of a
	// database, and of a user. Default: 0, no bound beyond the pools'.
	MaxDBConnections, MaxUserConnections int
	// MaxDBClients and MaxUserClients bound the sessions of a database, and of a
	// user. Default: 0, no bound beyond MaxClients.
	MaxDBClients, MaxUserClients int
	// MaxWaiting bounds the statements that wait for a backend in one pool.
	// Default: 0, no bound.
	MaxWaiting int
	// QueueTimeout bounds the wait for a backend. Default: 30 s.
	QueueTimeout time.Duration
	// QueryTimeout ends statements that run for longer. Default: 0, never.
	QueryTimeout time.Duration
	// TransactionTimeout disconnects clients whose transaction takes longer.
	// Default: 0, never.
	TransactionTimeout time.Duration
	// IdleInTransactionTimeout disconnects clients that are idle in a transaction.
	// Default: 0, never.
	IdleInTransactionTimeout time.Duration
	// ClientIdleTimeout disconnects clients that do nothing. Default: 0, never.
	ClientIdleTimeout time.Duration
	// ServerIdleTimeout closes backends that were idle for this long. Default: 10 min.
	ServerIdleTimeout time.Duration
	// ServerLifetime closes backends after this age. Default: 1 h.
	ServerLifetime time.Duration
}

func (l Limits) withDefaults() Limits {
	l.PoolSize = cmp.Or(l.PoolSize, DefaultPoolSize)
	if l.AutoPool {
		l.PoolSize = max(l.PoolSize, l.MinPoolSize)
	}
	l.ReservePoolTimeout = cmp.Or(l.ReservePoolTimeout, 5*time.Second)
	l.QueueTimeout = cmp.Or(l.QueueTimeout, 30*time.Second)
	l.ServerIdleTimeout = cmp.Or(l.ServerIdleTimeout, 10*time.Minute)
	l.ServerLifetime = cmp.Or(l.ServerLifetime, time.Hour)
	return l
}

// SizeOfPool returns the pool size as configured: PoolSize or "auto".
func (l *Limits) SizeOfPool() any {
	if l.AutoPool {
		return "auto"
	}
	return l.PoolSize
}

// validate returns an error that names the first invalid flag.
func (l *Limits) validate() error {
	if l.PoolSize < 1 {
		return fmt.Errorf("--pool-size %d: want at least 1", l.PoolSize)
	}
	for _, f := range []struct {
		flag string
		v    int
	}{
		{"--min-pool-size", l.MinPoolSize},
		{"--reserve-pool-size", l.ReservePoolSize},
		{"--max-db-connections", l.MaxDBConnections},
		{"--max-user-connections", l.MaxUserConnections},
		{"--max-db-client-connections", l.MaxDBClients},
		{"--max-user-client-connections", l.MaxUserClients},
		{"--max-waiting", l.MaxWaiting},
	} {
		if f.v < 0 {
			return fmt.Errorf("%s %d: is negative", f.flag, f.v)
		}
	}
	for _, f := range []struct {
		flag string
		v    time.Duration
	}{
		{"--reserve-pool-timeout", l.ReservePoolTimeout},
		{"--queue-timeout", l.QueueTimeout},
		{"--query-timeout", l.QueryTimeout},
		{"--transaction-timeout", l.TransactionTimeout},
		{"--idle-in-transaction-timeout", l.IdleInTransactionTimeout},
		{"--client-idle-timeout", l.ClientIdleTimeout},
		{"--server-idle-timeout", l.ServerIdleTimeout},
		{"--server-lifetime", l.ServerLifetime},
	} {
		if f.v < 0 {
			return fmt.Errorf("%s %s: is negative", f.flag, f.v)
		}
	}
	if l.MinPoolSize > l.PoolSize {
		return fmt.Errorf("--min-pool-size %d is more than --pool-size %d", l.MinPoolSize, l.PoolSize)
	}
	return nil
}

// Crowded reports whether no more statements may wait in a pool.
func (l *Limits) Crowded(waiting int) bool { return l.MaxWaiting > 0 && waiting >= l.MaxWaiting }

// A LimitRule gives other limits to the sessions of a database, of a user, or of both.
// An empty Database or User means any.
type LimitRule struct {
	Database, User string
	// Set sets the limits that the rule has.
	Set func(l *Limits)
	// Text is the rule as it was written.
	Text string
}

// A rule that names a user cannot bound the total of a database, nor the other way round.
var (
	errRuleOfDatabase = errors.New("max_db_connections and max_db_client_connections are of all users: their rule names a database alone")
	errRuleOfUser     = errors.New("max_user_connections and max_user_client_connections are of all databases: their rule names a user alone")
)

// Check returns an error if the rule is invalid.
func (r *LimitRule) Check() error {
	const none = -1 // no rule sets this
	l := Limits{MaxDBConnections: none, MaxDBClients: none, MaxUserConnections: none, MaxUserClients: none}
	r.Set(&l)
	switch {
	case r.User != "" && (l.MaxDBConnections != none || l.MaxDBClients != none):
		return errRuleOfDatabase
	case r.Database != "" && (l.MaxUserConnections != none || l.MaxUserClients != none):
		return errRuleOfUser
	}
	return nil
}

// LimitsOf returns the limits of a user in a database. If several matching rules set the
// same limit, the first one applies.
func (o *Options) LimitsOf(database, user string) Limits {
	l := o.Limits
	if len(o.LimitRules) > 0 { // called at each login; without rules nothing is allocated
		l = o.limitsByRules(database, user)
	}
	if l.AutoPool {
		l.PoolSize = max(l.PoolSize, l.MinPoolSize)
	}
	l.MinPoolSize = min(l.MinPoolSize, l.PoolSize)
	return l
}

func (o *Options) limitsByRules(database, user string) Limits {
	l := o.Limits
	for i := len(o.LimitRules) - 1; i >= 0; i-- {
		if r := &o.LimitRules[i]; (r.Database == "" || r.Database == database) && (r.User == "" || r.User == user) {
			r.Set(&l)
		}
	}
	return l
}

// LimitsOfDatabase returns the limits for all users of a database together.
func (o *Options) LimitsOfDatabase(name string) Limits { return o.LimitsOf(name, "") }

// LimitsOfUser returns the limits for a user in all databases together.
func (o *Options) LimitsOfUser(name string) Limits { return o.LimitsOf("", name) }

// ReadLanesOf returns how many backends of a pool of some size may pipeline reads.
func (o *Options) ReadLanesOf(size int) int {
	if o.ReadLanes <= 0 || size >= o.PoolSize {
		return o.ReadLanes
	}
	return max(1, min(o.ReadLanes, size/2))
}
