package bouncer

import (
	"time"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/pgbouncer"
	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// once is the lifetime of a connection that is to be used only once.
const once = time.Second

// modes are weir's modes by pool_mode. transaction is weir's mode auto: it shares as much,
// and a session whose state PgBouncer would lose keeps its connection.
var modes = map[string]session.Mode{
	"session": session.ModeSession, "transaction": session.ModeAuto, "statement": session.ModeStatement,
}

// poolMode returns the pool_mode of a user in a database: the user's own, else the
// database's, else the global one.
func (st *state) poolMode(db *pgbouncer.Database, user string) string {
	if u := st.Users[user]; u != nil && u.Mode != "" {
		return u.Mode
	}
	if db != nil && db.Mode != "" {
		return db.Mode
	}
	return st.Text("pool_mode")
}

func (st *state) mode(db *pgbouncer.Database, user string) session.Mode {
	return modes[st.poolMode(db, user)]
}

// maxClients returns the most clients of a database, nil for the console; 0: no limit.
func (st *state) maxClients(db *pgbouncer.Database) int {
	if db != nil && db.MaxClients >= 0 {
		return db.MaxClients
	}
	return st.Number("max_db_client_connections")
}

// maxUserClients returns the same for a user.
func (st *state) maxUserClients(name string) int {
	if u := st.Users[name]; u != nil && u.MaxClients >= 0 {
		return u.MaxClients
	}
	return st.Number("max_user_client_connections")
}

// orOnce converts a time whose 0 means "at once" in PgBouncer and the default in weir.
func orOnce(d time.Duration) time.Duration {
	if d == 0 {
		return once
	}
	return d
}

// config returns the configuration as one of weir.
func (b *Bouncer) config(st *state) postgres.Config {
	var c postgres.Config
	c.Authenticator, c.Process, c.Log = b.auth, b, b.log
	c.Postgres = st.first()
	c.Auth = string(pgwire.AuthTrust)
	c.WaitNotice = time.Duration(st.Number("query_wait_notify")) * time.Second
	c.MaxPrepared = st.Number("max_prepared_statements")
	for name, secret := range st.users {
		if !secret.IsZero() {
			c.Users = append(c.Users, postgres.User{Name: name, Secret: secret})
		}
	}
	c.ClientTLS, c.ClientTLSMode = st.client.config, st.client.mode
	c.Options = st.options()
	c.Options.Log = b.log
	return c
}

// first returns the server whose availability is checked: that of the first database.
func (st *state) first() pgwire.ConnectConfig {
	var first *pgbouncer.Database
	for _, db := range st.Databases {
		if first == nil || db.Line < first.Line {
			first = db
		}
	}
	if first == nil {
		first = st.Auto
	}
	if first == nil {
		return pgwire.ConnectConfig{Address: pgbouncer.Address("127.0.0.1", 5432)}
	}
	return st.hosts(first)[0]
}

// options returns the options of sharing and the limits.
func (st *state) options() session.Options {
	o := session.Options{
		Mode: session.ModeAuto, Loops: 1, MaxClients: 1 << 30, ReusePort: st.On("so_reuseport"),
		MaxMessage:      min(st.Number("max_packet_size"), 1<<30),
		ConnectTimeout:  never(st.Time("server_connect_timeout")),
		ConnectPatience: never(st.Time("query_wait_timeout")),
		LoginTimeout:    never(st.Time("client_login_timeout")),
		Keepalive:       st.Keepalive(),
	}
	st.limit(&o)
	return o
}

// never converts a time whose 0 means no bound.
func never(d time.Duration) time.Duration {
	if d == 0 {
		return forever
	}
	return d
}

// forever stands for no bound.
const forever = 100 * 365 * 24 * time.Hour

var _ core.Process = (*Bouncer)(nil)
