package core

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sight"
)

// This file shows the configuration on the console.

// databaseLimits are those of SHOW DATABASES.
func databaseLimits(o *session.Options, name string) sight.DatabaseLimits {
	l := o.LimitsOfDatabase(name)
	return sight.DatabaseLimits{
		PoolSize: l.PoolSize, MinPoolSize: l.MinPoolSize, ReservePoolSize: l.ReservePoolSize,
		MaxConnections: l.MaxDBConnections, MaxClients: cmp.Or(l.MaxDBClients, o.MaxClients), Lifetime: l.ServerLifetime,
	}
}

// userLimits are those of SHOW USERS.
func userLimits(o *session.Options, name string) sight.UserLimits {
	l := o.LimitsOfUser(name)
	own := func(v, general int) string {
		if v == general {
			return ""
		}
		return strconv.Itoa(v)
	}
	return sight.UserLimits{
		PoolSize: own(l.PoolSize, o.PoolSize), ReservePoolSize: own(l.ReservePoolSize, o.ReservePoolSize),
		MaxConnections: l.MaxUserConnections, MaxClients: l.MaxUserClients,
	}
}

// limitSettings are the limits in SHOW CONFIG, and the rules as one further setting.
func limitSettings(o, d *session.Options) []Setting {
	var rules []string
	for i := range o.LimitRules {
		rules = append(rules, o.LimitRules[i].Text)
	}
	return []Setting{
		{Key: "pool_size", Value: o.SizeOfPool(), Default: "auto"},
		{Key: "min_pool_size", Value: o.MinPoolSize, Default: d.MinPoolSize},
		{Key: "reserve_pool_size", Value: o.ReservePoolSize, Default: d.ReservePoolSize},
		{Key: "reserve_pool_timeout", Value: o.ReservePoolTimeout.String(), Default: d.ReservePoolTimeout.String()},
		{Key: "max_db_connections", Value: o.MaxDBConnections, Default: d.MaxDBConnections},
		{Key: "max_user_connections", Value: o.MaxUserConnections, Default: d.MaxUserConnections},
		{Key: "max_db_client_connections", Value: o.MaxDBClients, Default: d.MaxDBClients},
		{Key: "max_user_client_connections", Value: o.MaxUserClients, Default: d.MaxUserClients},
		{Key: "max_waiting", Value: o.MaxWaiting, Default: d.MaxWaiting},
		{Key: "queue_timeout", Value: o.QueueTimeout.String(), Default: d.QueueTimeout.String()},
		{Key: "query_timeout", Value: o.QueryTimeout.String(), Default: d.QueryTimeout.String()},
		{Key: "transaction_timeout", Value: o.TransactionTimeout.String(), Default: d.TransactionTimeout.String()},
		{Key: "idle_in_transaction_timeout", Value: o.IdleInTransactionTimeout.String(), Default: d.IdleInTransactionTimeout.String()},
		{Key: "client_idle_timeout", Value: o.ClientIdleTimeout.String(), Default: d.ClientIdleTimeout.String()},
		{Key: "server_idle_timeout", Value: o.ServerIdleTimeout.String(), Default: d.ServerIdleTimeout.String()},
		{Key: "server_lifetime", Value: o.ServerLifetime.String(), Default: d.ServerLifetime.String()},
		{Key: "limits", Value: strings.Join(rules, "; ")},
	}
}

// configTable answers SHOW CONFIG. After weir's own names come those by which PgBouncer's
// exporters look for two of the settings.
func (s *Server[L]) configTable() sight.Table {
	o, d := s.side.Options(), session.Options{}.WithDefaults()
	list := append(s.side.Settings(),
		Setting{Key: "listen", Value: s.Addr(), Fixed: true},
		Setting{Key: "mode", Value: o.Mode, Default: d.Mode, Fixed: true},
		Setting{Key: "read_lanes", Value: o.ReadLanes, Default: d.ReadLanes},
		Setting{Key: "write_lanes", Value: o.WriteLanes, Default: d.WriteLanes, Fixed: true},
		Setting{Key: "group_limit", Value: o.GroupLimit, Default: d.GroupLimit, Fixed: true},
		Setting{Key: "rows_lane", Value: !o.NoRowsLane, Default: true},
		Setting{Key: "solo_lane", Value: !o.NoSoloLane, Default: true},
		Setting{Key: "cache_size", Value: max(0, o.CacheSize), Default: d.CacheSize},
		Setting{Key: "cache_max_answer", Value: o.CacheMaxAnswer, Default: d.CacheMaxAnswer},
		Setting{Key: "loops", Value: o.Loops, Default: d.Loops, Fixed: true},
		Setting{Key: "max_clients", Value: o.MaxClients, Default: d.MaxClients},
		Setting{Key: "max_message", Value: o.MaxMessage, Default: d.MaxMessage},
		Setting{Key: "connect_timeout", Value: o.ConnectTimeout.String(), Default: d.ConnectTimeout.String()},
		Setting{Key: "connect_patience", Value: o.ConnectPatience.String(), Default: d.ConnectPatience.String()},
		Setting{Key: "failover_timeout", Value: o.FailoverTimeout.String(), Default: d.FailoverTimeout.String()},
		Setting{Key: "login_timeout", Value: o.LoginTimeout.String(), Default: d.LoginTimeout.String()},
		Setting{Key: "login_check_interval", Value: max(0, o.LoginCheckInterval).String(), Default: d.LoginCheckInterval.String()},
		Setting{Key: "client_write_timeout", Value: o.ClientWriteTimeout.String(), Default: d.ClientWriteTimeout.String()},
		Setting{Key: "drain_timeout", Value: o.DrainTimeout.String(), Default: d.DrainTimeout.String()},
		Setting{Key: "tcp_keepalive", Value: !o.Keepalive.Off, Default: !d.Keepalive.Off},
		Setting{Key: "tcp_keepidle", Value: o.Keepalive.Idle.String(), Default: d.Keepalive.Idle.String()},
		Setting{Key: "tcp_keepintvl", Value: o.Keepalive.Interval.String(), Default: d.Keepalive.Interval.String()},
		Setting{Key: "tcp_keepcnt", Value: o.Keepalive.Count, Default: d.Keepalive.Count},
		Setting{Key: "tcp_user_timeout", Value: o.Keepalive.UserTimeout.String(), Default: d.Keepalive.UserTimeout.String()},
	)
	list = append(list, limitSettings(o, &d)...)
	list = append(list,
		Setting{Key: "max_client_conn", Value: o.MaxClients, Default: d.MaxClients},
		Setting{Key: "default_pool_size", Value: o.PoolSize, Default: d.PoolSize},
	)
	t := sight.Table{Cols: []string{"key", "value", "default", "changeable"}}
	for _, c := range list {
		changeable := "yes"
		if c.Fixed {
			changeable = "no"
		}
		if c.Default == nil {
			c.Default = ""
		}
		t.Add(c.Key, c.Value, c.Default, changeable)
	}
	return t
}
