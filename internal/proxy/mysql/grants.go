package mysql

import (
	"context"
	"database/sql"
	"hash/maphash"
	"sync"
	"time"

	"github.com/weirdb/weir/internal/wire/mywire"
)

// This file notices when someone changes a user's privileges, or the settings of new sessions,
// on a connection that does not go through weir. A connection keeps the global and database
// privileges that the user had when it was opened, and the settings that the server had then;
// with a direct connection, a new login gets the current ones. So weir queries both on the
// connections that logins open, and if they have changed it replaces the connections of the
// user's pools, or of all.

// grants remembers the privileges of users, as hashes. Safe for concurrent use.
type grants struct {
	seed maphash.Seed
	mu   sync.Mutex
	seen map[string]granted // guarded by mu
	// defaults is the hash of defaultsOfSessions, valid if known. Both are guarded by mu.
	defaults uint64
	known    bool
}

// defaultsOfSessions queries the settings of a new session that change the meaning of its
// statements, as far as they are likely to change while a server runs. Servers omit those that
// they do not have.
const defaultsOfSessions = "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('autocommit', 'sql_mode', 'time_zone', 'init_connect', 'tx_isolation', 'transaction_isolation'," +
	" 'tx_read_only', 'transaction_read_only', 'innodb_lock_wait_timeout', 'lock_wait_timeout', 'wait_timeout', 'interactive_timeout', 'foreign_key_checks', 'unique_checks'," +
	" 'sql_safe_updates', 'sql_select_limit', 'completion_type', 'group_concat_max_len', 'div_precision_increment', 'max_statement_time', 'max_execution_time'," +
	" 'default_storage_engine', 'explicit_defaults_for_timestamp', 'auto_increment_increment', 'auto_increment_offset', 'binlog_format', 'max_allowed_packet'," +
	" 'character_set_server', 'collation_server', 'lc_time_names', 'default_week_format', 'max_error_count', 'sql_auto_is_null', 'innodb_strict_mode')"

type granted struct {
	hash uint64
	at   time.Duration
}

const (
	// grantsKeep is how long a check is valid.
	grantsKeep = time.Second
	// maxGrants bounds the users that are remembered.
	maxGrants = 1000
)

// checkGrants queries a user's privileges on a new connection, and replaces the connections of
// the user's pools if they have changed. It returns the server's error if the user has to
// change the password first: a server then lets the user in and refuses everything else, which
// the pool's existing connections would not. changed means that the accounts of that name have
// changed: the pool's connections may belong to another one.
func (s *Server) checkGrants(ctx context.Context, user string, conn *mywire.Server, changed bool) *mywire.Error {
	if changed {
		s.Log.Info("accounts have changed; connections are opened anew", "user", user)
		renewUser(s, user)
	}
	g := &s.grants
	now := s.Monotonic()
	g.mu.Lock()
	old, known := g.seen[user]
	g.mu.Unlock()
	if known && now-old.at < grantsKeep && !changed {
		return nil
	}
	rows, err := conn.Query(ctx, "SHOW GRANTS")
	if mywire.CodeOf(err) == mywire.ErrMustChangePassword {
		g.mu.Lock()
		delete(g.seen, user) // the next login is checked, too
		g.mu.Unlock()
		return mywire.NewError(mywire.ErrMustChangePassword, "Your password has expired: change it on a connection to the server itself, not by weir")
	}
	if err != nil {
		return nil // its privileges are not known; the server will enforce them
	}
	is := granted{g.hash(rows), now}
	g.mu.Lock()
	if g.seen == nil || len(g.seen) >= maxGrants {
		g.seen = make(map[string]granted)
	}
	g.seen[user] = is
	g.mu.Unlock()
	if !changed && known && old.hash != is.hash {
		s.Log.Info("privileges have changed; connections are opened anew", "user", user)
		renewUser(s, user)
	}
	s.checkDefaults(ctx, conn)
	return nil
}

// renewUser replaces the connections of a user's pools.
func renewUser(s *Server, user string) {
	s.eachPool(nil, func(p *pool) {
		if p.key.user == user {
			p.renew()
		}
	})
}

// checkDefaults queries the settings of new sessions on a new connection.
func (s *Server) checkDefaults(ctx context.Context, conn *mywire.Server) {
	rows, err := conn.Query(ctx, defaultsOfSessions)
	if err != nil {
		return
	}
	g := &s.grants
	is := g.hash(rows)
	g.mu.Lock()
	changed := g.known && g.defaults != is
	g.defaults, g.known = is, true
	g.mu.Unlock()
	if changed {
		s.Log.Info("the server's settings have changed; connections are opened anew")
		s.renew(nil)
	}
}

func (g *grants) hash(rows [][]sql.NullString) uint64 {
	var h maphash.Hash
	h.SetSeed(g.seed)
	for _, r := range rows {
		for _, v := range r {
			_, _ = h.WriteString(v.String)
			_ = h.WriteByte(0)
		}
	}
	return h.Sum64()
}
