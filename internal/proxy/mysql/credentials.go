package mysql

import (
	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/wire/mywire"
)

func newCredentials(cfg *Config) *core.Credentials[mywire.Secret, mywire.ClientKeys] {
	c := core.NewCredentials(mywire.PasswordKeys, func(k *mywire.ClientKeys) bool { return k.HasPassword }, mywire.ParseSecret)
	c.List(cfg.Users, cfg.MySQL.User, cfg.MySQL.Password)
	return c
}

// SetUsers replaces the user list; see Config.Users. It applies to later logins; existing
// sessions stay. Safe for concurrent use.
func (s *Server) SetUsers(users []User) {
	s.creds.List(users, s.cfg().MySQL.User, s.cfg().MySQL.Password)
}

// mayDial reports whether weir can open backends for a pool by itself. It cannot for users
// whose logins it only relays, unless a login revealed the password: their pools get their
// connections from logins.
func (s *Server) mayDial(key poolKey) bool {
	return s.cfg().Auth == AuthTrust || s.creds.Keys(key.user) != nil
}
