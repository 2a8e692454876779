package postgres

import (
	"maps"
	"sync"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// credentials are what weir can log in to the server with, by user.
type credentials struct {
	*core.Credentials[pgwire.Secret, pgwire.ClientKeys]

	mu   sync.Mutex
	open map[string]bool // guarded by mu: the server asks these users nothing
}

func (c *credentials) init(cfg *Config) {
	c.Credentials = core.NewCredentials(
		func(password string) *pgwire.ClientKeys { return &pgwire.ClientKeys{Password: password} },
		func(k *pgwire.ClientKeys) bool { return k.Password != "" }, pgwire.ParseSecret)
	c.open = make(map[string]bool)
	c.List(cfg.Users, cfg.Postgres.User, cfg.Postgres.Password)
}

// SetUsers replaces the user list; see Config.Users. Logins from now on are
// checked against it; sessions that exist stay. Safe for concurrent use.
func (s *Server) SetUsers(users []User) {
	s.creds.List(users, s.cfg().Postgres.User, s.cfg().Postgres.Password)
}

// of returns what weir can log in with as a user: "" and nil if it has nothing.
func (c *credentials) of(user string) (string, *pgwire.ClientKeys) {
	k := c.Keys(user)
	if k == nil {
		return "", nil
	}
	return k.Password, k
}

func (c *credentials) learnOpen(user string, open bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open[user] = open
}

// allOpen returns whom the server asks nothing.
func (c *credentials) allOpen() map[string]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.open)
}

// mayDial reports whether weir can open backends for a pool by itself. It cannot
// for users whose logins it only relays by SCRAM or md5: their pools are fed by
// the logins.
func (s *Server) mayDial(key poolKey) bool {
	c := &s.creds
	if s.cfg().Authenticator != nil || c.Keys(key.user) != nil {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open[key.user] || s.cfg().Auth == string(pgwire.AuthTrust) || s.cfg().Auth == string(pgwire.AuthCert)
}
