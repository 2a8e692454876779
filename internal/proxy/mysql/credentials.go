package mysql

import (
	"context"
	"encoding/hex"
	"fmt"
	"maps"
	"strings"
	"sync"

	"github.com/weirdb/weir/internal/wire/mywire"
)

// credentials are what weir can log in to the server with, by user.
type credentials struct {
	mu      sync.Mutex
	known   map[string]*mywire.ClientKeys // guarded by mu: listed, or learned from logins
	secrets map[string]mywire.Secret      // guarded by mu: from the user list and the DSN
}

func (c *credentials) init(cfg *Config) {
	c.known = make(map[string]*mywire.ClientKeys)
	c.list(cfg.Users, cfg.MySQL)
}

// list makes users, and the DSN's own, those whose secrets weir holds. What it
// knows of users who are listed no more, or with another password, is forgotten.
// Keys learned from a login against a hash stay until the next one brings others:
// without keys a pool could open no backend in between.
func (c *credentials) list(users []User, dsn mywire.ConnectConfig) {
	secrets := make(map[string]mywire.Secret, len(users)+1)
	known := make(map[string]*mywire.ClientKeys)
	for _, u := range users {
		secrets[u.Name] = u.Secret
		if plain, ok := u.Secret.Plain(); ok {
			known[u.Name] = mywire.PasswordKeys(plain)
		}
	}
	if dsn.User != "" && dsn.Password != "" {
		known[dsn.User] = mywire.PasswordKeys(dsn.Password)
		if _, listed := secrets[dsn.User]; !listed {
			if secret, err := mywire.ParseSecret(dsn.Password); err == nil {
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
func (c *credentials) secret(user string) (mywire.Secret, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	secret, ok := c.secrets[user]
	return secret, ok
}

// of returns what weir can log in with as a user, nil if it has nothing.
func (c *credentials) of(user string) *mywire.ClientKeys {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known[user]
}

// learn keeps what a login has revealed.
func (c *credentials) learn(user string, k *mywire.ClientKeys) {
	if k == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if old := c.known[user]; old != nil && old.HasPassword && !k.HasPassword {
		return // a password serves more plugins than keys
	}
	c.known[user] = k
}

// refuted forgets keys that the server has refused: the password has changed.
// Those that weir was given stay, for its operator to correct.
func (c *credentials) refuted(user string, k *mywire.ClientKeys) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, listed := c.secrets[user]; !listed && k != nil && c.known[user] == k {
		delete(c.known, user)
	}
}

// SetUsers replaces the user list; see Config.Users. Logins from now on are
// checked against it; sessions that exist stay. Safe for concurrent use.
func (s *Server) SetUsers(users []User) { s.creds.list(users, s.cfg.MySQL) }

// mayDial tells whether weir can open backends for a pool by itself. It cannot
// for users whose logins it only relays, unless these gave the password away:
// their pools are fed by the logins.
func (s *Server) mayDial(key poolKey) bool {
	return s.cfg.Auth == AuthTrust || s.creds.of(key.user) != nil
}

// lookUpSecret runs the auth query as the DSN's user. The secret of a user who
// is not found is the zero one, which fails as a wrong password does.
func (s *Server) lookUpSecret(ctx context.Context, user string) (mywire.Secret, error) {
	cfg := s.cfg.MySQL
	cfg.Timeout = s.cfg.ConnectTimeout
	if cfg.Password == "" {
		cfg.Keys = s.creds.of(cfg.User)
	}
	conn, err := mywire.Connect(ctx, cfg)
	if err != nil {
		return mywire.Secret{}, err
	}
	defer func() { _ = conn.Close() }()
	// In hexadecimal digits no name can be read as SQL, whatever the sql_mode.
	name := "_utf8mb4 X'" + hex.EncodeToString([]byte(user)) + "'"
	rows, err := conn.Query(ctx, strings.ReplaceAll(s.cfg.AuthQuery, "?", name))
	if err != nil || len(rows) == 0 {
		return mywire.Secret{}, err
	}
	if len(rows[0]) != 2 {
		return mywire.Secret{}, fmt.Errorf("the auth query returned %d columns; want name and authentication string", len(rows[0]))
	}
	return mywire.ParseSecret(rows[0][1].String)
}
