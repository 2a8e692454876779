package postgres

import (
	"maps"
	"sync"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

// credentials are what weir can log in to the server with, by user.
type credentials struct {
	mu      sync.Mutex
	known   map[string]pgwire.ClientKeys // guarded by mu
	open    map[string]bool              // guarded by mu: the server asks these users nothing
	secrets map[string]pgwire.Secret     // guarded by mu: from the user list and the DSN
}

func (c *credentials) init(cfg *Config) {
	c.known = make(map[string]pgwire.ClientKeys)
	c.open = make(map[string]bool)
	c.list(cfg.Users, cfg.Postgres)
}

// list makes users, and the DSN's own, those whose secrets weir holds. What
// it knows of users who are listed no more, or with another password, is
// forgotten. Keys learned from a SCRAM login stay until the next one brings
// others: without keys a pool could open no backend in between.
func (c *credentials) list(users []User, dsn pgwire.ConnectConfig) {
	secrets := make(map[string]pgwire.Secret, len(users)+1)
	known := make(map[string]pgwire.ClientKeys)
	for _, u := range users {
		secrets[u.Name] = u.Secret
		if plain, ok := u.Secret.Plain(); ok {
			known[u.Name] = pgwire.ClientKeys{Password: plain}
		}
	}
	if dsn.User != "" && dsn.Password != "" {
		known[dsn.User] = pgwire.ClientKeys{Password: dsn.Password}
		if _, listed := secrets[dsn.User]; !listed {
			if secret, err := pgwire.ParseSecret(dsn.Password); err == nil {
				secrets[dsn.User] = secret
			}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for user, old := range c.secrets {
		now, listed := secrets[user]
		was, wasPlain := old.Plain()
		is, isPlain := now.Plain()
		if !listed || wasPlain != isPlain || (isPlain && was != is) {
			delete(c.known, user)
		}
	}
	maps.Copy(c.known, known)
	c.secrets = secrets
}

// secret returns what weir holds of a user's password by itself.
func (c *credentials) secret(user string) (pgwire.Secret, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	secret, ok := c.secrets[user]
	return secret, ok
}

// SetUsers replaces the user list; see Config.Users. Logins from now on are
// checked against it; sessions that exist stay. Safe for concurrent use.
func (s *Server) SetUsers(users []User) { s.creds.list(users, s.cfg.Postgres) }

func (c *credentials) of(user string) (string, *pgwire.ClientKeys) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k, ok := c.known[user]; ok {
		return k.Password, &k
	}
	return "", nil
}

func (c *credentials) learn(user string, k *pgwire.ClientKeys) {
	if k == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if old, ok := c.known[user]; ok && old.Password != "" && k.Password == "" {
		return // a password serves more methods than keys
	}
	c.known[user] = *k
}

func (c *credentials) learnOpen(user string, open bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open[user] = open
}

// mayDial tells whether weir can open backends for a pool by itself. It cannot
// for users whose logins it only relays by SCRAM or md5: their pools are fed by
// the logins.
func (s *Server) mayDial(key poolKey) bool {
	c := &s.creds
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.known[key.user]; ok {
		return true
	}
	return c.open[key.user] || s.cfg.Auth == string(pgwire.AuthTrust) || s.cfg.Auth == string(pgwire.AuthCert)
}
