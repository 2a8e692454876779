package mysql

import (
	"context"
	"database/sql"
	"hash/maphash"
	"sync"
	"time"

	"github.com/weirdb/weir/internal/wire/mywire"
)

// This file notices that somebody has changed what a user may do, or what a session
// begins with, by a connection that weir does not carry. A connection keeps the global
// and the database's privileges that the user had when it was opened, and the settings
// that the server had then; directly anyone who logs in has those of now. So the
// connections that logins open are asked, and where the answer is another than before,
// the user's pools are opened anew, or all.

// grants remembers the privileges of users, as hashes. Safe for concurrent use.
type grants struct {
	seed maphash.Seed
	mu   sync.Mutex
	seen map[string]granted // guarded by mu
	// defaults are those of defaultsOfSessions; known if they were asked for. Both
	// guarded by mu.
	defaults uint64
	known    bool
}

// defaultsOfSessions are the settings of a new session by which its statements mean
// something else, as far as somebody would change them while a server runs. Servers
// leave out those that they do not have.
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
	// grantsKeep is how long an answer holds.
	grantsKeep = time.Second
	// maxGrants bounds what is remembered.
	maxGrants = 1000
)

// checkGrants asks a new connection what its user may do, and has the user's pools
// renewed if that is not what it was. It returns the server's error if the user has
// to change the password first: a server then lets in and refuses everything else,
// which the connections that the pool has would not. changed tells that the accounts of
// that name are not what they were: those that the pools have may be of another one.
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
		delete(g.seen, user) // the next login is asked, too
		g.mu.Unlock()
		return mywire.NewError(mywire.ErrMustChangePassword, "Your password has expired: change it on a connection to the server itself, not by weir")
	}
	if err != nil {
		return nil // what it may do is not known; the server will say
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

// renewUser has the pools of a user opened anew.
func renewUser(s *Server, user string) {
	s.eachPool(nil, func(p *pool) {
		if p.key.user == user {
			p.renew()
		}
	})
}

// checkDefaults asks a new connection what sessions begin with.
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
