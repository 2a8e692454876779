package bouncer

import (
	"maps"
	"slices"

	"github.com/weirdb/weir/internal/proxy/pgbouncer"
	"github.com/weirdb/weir/internal/proxy/session"
)

// limit sets the limits of pools, and of clients by their pool. A user's own limits
// override the database's, as in PgBouncer. The authenticator limits the number
// of clients, since it counts the console as well.
func (st *state) limit(o *session.Options) {
	l := &o.Limits
	o.PoolKeep = never(st.Time("autodb_idle_timeout"))
	l.PoolSize = max(1, st.Number("default_pool_size"))
	l.MinPoolSize, l.ReservePoolSize = st.Number("min_pool_size"), st.Number("reserve_pool_size")
	l.ReservePoolTimeout = st.Time("reserve_pool_timeout")
	l.MaxDBConnections, l.MaxUserConnections = st.Number("max_db_connections"), st.Number("max_user_connections")
	l.QueueTimeout = never(st.Time("query_wait_timeout"))
	l.QueryTimeout, l.TransactionTimeout = st.Time("query_timeout"), st.Time("transaction_timeout")
	l.IdleInTransactionTimeout, l.ClientIdleTimeout = st.Time("idle_transaction_timeout"), st.Time("client_idle_timeout")
	l.ServerIdleTimeout, l.ServerLifetime = never(st.Time("server_idle_timeout")), orOnce(st.Time("server_lifetime"))
	for _, name := range slices.Sorted(maps.Keys(st.Users)) {
		o.LimitRules = append(o.LimitRules, session.LimitRule{User: name, Set: ofUser(st.Users[name])})
	}
	for _, name := range slices.Sorted(maps.Keys(st.Databases)) {
		o.LimitRules = append(o.LimitRules, session.LimitRule{Database: name, Set: ofDatabase(st.Databases[name])})
	}
	if st.Auto != nil {
		// For all that no line names; the rules of named ones reset what they do not set.
		general := *l
		ofDatabase(st.Auto)(l)
		for i := range o.LimitRules {
			if r := &o.LimitRules[i]; r.Database != "" {
				of := ofDatabase(st.Databases[r.Database])
				r.Set = func(l *session.Limits) {
					was := *l
					*l = general
					of(l)
					l.MaxUserConnections, l.MaxUserClients = was.MaxUserConnections, was.MaxUserClients
					l.MaxDBClients = was.MaxDBClients
				}
			}
		}
	}
}

func ofUser(u *pgbouncer.User) func(*session.Limits) {
	return func(l *session.Limits) {
		l.PoolSize = max(1, given(u.PoolSize, l.PoolSize))
		l.ReservePoolSize = given(u.ReservePoolSize, l.ReservePoolSize)
		if u.MaxConnections >= 0 {
			l.MaxUserConnections = u.MaxConnections
		}
		if u.TransactionTimeout > 0 {
			l.TransactionTimeout = u.TransactionTimeout
		}
		if u.IdleTransactionTimeout > 0 {
			l.IdleInTransactionTimeout = u.IdleTransactionTimeout
		}
		if u.QueryTimeout > 0 {
			l.QueryTimeout = u.QueryTimeout
		}
		if u.ClientIdleTimeout > 0 {
			l.ClientIdleTimeout = u.ClientIdleTimeout
		}
		if u.QueryWaitTimeout >= 0 {
			l.QueueTimeout = never(u.QueryWaitTimeout)
		}
	}
}

func ofDatabase(d *pgbouncer.Database) func(*session.Limits) {
	return func(l *session.Limits) {
		l.PoolSize = max(1, given(d.PoolSize, l.PoolSize))
		l.MinPoolSize = given(d.MinPoolSize, l.MinPoolSize)
		l.ReservePoolSize = given(d.ReservePoolSize, l.ReservePoolSize)
		if d.MaxConnections >= 0 {
			l.MaxDBConnections = d.MaxConnections
		}
		if d.QueryWaitTimeout >= 0 {
			l.QueueTimeout = never(d.QueryWaitTimeout)
		}
		if d.ServerLifetime > 0 {
			l.ServerLifetime = d.ServerLifetime
		}
	}
}
