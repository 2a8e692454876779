package mysql

import (
	"context"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/wire/mywire"
)

func newCredentials(cfg *Config) *core.Credentials[mywire.Secret, mywire.ClientKeys] {
	c := core.NewCredentials(mywire.PasswordKeys, func(k *mywire.ClientKeys) bool { return k.HasPassword }, mywire.ParseSecret)
	c.List(cfg.Users, cfg.MySQL.User, cfg.MySQL.Password)
	return c
}

// SetUsers replaces the user list; see Config.Users. Logins from now on are
// checked against it; sessions that exist stay. Safe for concurrent use.
func (s *Server) SetUsers(users []User) {
	s.creds.List(users, s.cfg().MySQL.User, s.cfg().MySQL.Password)
}

// mayDial tells whether weir can open backends for a pool by itself. It cannot
// for users whose logins it only relays, unless these gave the password away:
// their pools are fed by the logins.
func (s *Server) mayDial(key poolKey) bool {
	return s.cfg().Auth == AuthTrust || s.creds.Keys(key.user) != nil
}

// lookUpSecret runs the auth query as the DSN's user. The secret of a user who
// is not found is the zero one, which fails as a wrong password does.
func (s *Server) lookUpSecret(ctx context.Context, user string) (mywire.Secret, error) {
	cfg := s.cfg().MySQL
	cfg.Timeout = s.cfg().ConnectTimeout
	if cfg.Password == "" {
		cfg.Keys = s.creds.Keys(cfg.User)
	}
	cfg, _, err := s.toHost(ctx, cfg)
	if err != nil {
		return mywire.Secret{}, err
	}
	conn, err := mywire.Connect(ctx, cfg)
	if err != nil {
		return mywire.Secret{}, err
	}
	defer func() { _ = conn.Close() }()
	// In hexadecimal digits no name can be read as SQL, whatever the sql_mode.
	name := "_utf8mb4 X'" + hex.EncodeToString([]byte(user)) + "'"
	rows, err := conn.Query(ctx, strings.ReplaceAll(s.cfg().AuthQuery, "?", name))
	if err != nil || len(rows) == 0 {
		return mywire.Secret{}, err
	}
	if len(rows[0]) != 2 {
		return mywire.Secret{}, fmt.Errorf("the auth query returned %d columns; want name and authentication string", len(rows[0]))
	}
	return mywire.ParseSecret(rows[0][1].String)
}
