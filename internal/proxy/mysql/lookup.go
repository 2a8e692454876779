package mysql

import (
	"context"
	"database/sql"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/mysql/accounts"
	"github.com/weirdb/weir/internal/proxy/upstream"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// This file has the connections on which weir looks up the accounts of those who log in.

const (
	// maxLookups bounds these connections. Anyone who can connect to weir can cause lookups,
	// without having proved anything.
	maxLookups = 4
	// lookupPause is how long weir makes no lookups after the server has refused one.
	lookupPause = time.Minute
)

// lookups are those connections. Safe for concurrent use.
type lookups struct {
	srv   *Server
	slots chan struct{} // one for each lookup in progress
	idle  *core.Lookups[*lookup]

	mu      sync.Mutex
	refused time.Time // when the server last refused a lookup
}

// A lookup is one connection for lookups.
type lookup struct {
	*mywire.Server
	endpoint upstream.Endpoint
	born     time.Time
}

func newLookups(srv *Server) *lookups {
	return &lookups{
		srv: srv, slots: make(chan struct{}, maxLookups),
		idle: core.NewLookups(func(lk *lookup) { _ = lk.Close() }),
	}
}

// barred reports whether the server has refused a lookup recently.
func (l *lookups) barred() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Since(l.refused) < lookupPause
}

// bar records that the server refuses lookups, and reports whether it is the first time.
func (l *lookups) bar() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	news := l.refused.IsZero()
	l.refused = time.Now()
	return news
}

// ask runs a query as the DSN's user. Every ? in it stands for a name.
func (l *lookups) ask(ctx context.Context, query, name string) ([][]sql.NullString, error) {
	select {
	case l.slots <- struct{}{}:
		defer func() { <-l.slots }()
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for one of %d lookups to end: %w", maxLookups, ctx.Err())
	}
	// In hexadecimal digits no name can be read as SQL, whatever the sql_mode.
	query = strings.ReplaceAll(query, "?", "_utf8mb4 X'"+hex.EncodeToString([]byte(name))+"'")
	if lk := l.idle.Take(l.srv.Monitor.Goes); lk != nil {
		rows, err := l.askOn(ctx, lk, query)
		if err == nil || mywire.CodeOf(err) != 0 || ctx.Err() != nil {
			return rows, err
		}
		// The connection was lost while it was idle.
	}
	cfg := l.srv.cfg().MySQL
	cfg.Timeout = l.srv.cfg().ConnectTimeout
	if cfg.Password == "" {
		cfg.Keys = l.srv.creds.Keys(cfg.User)
	}
	cfg, e, err := l.srv.toHost(ctx, cfg)
	if err != nil {
		return nil, err
	}
	conn, err := mywire.Connect(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return l.askOn(ctx, &lookup{Server: conn, endpoint: e, born: time.Now()}, query)
}

// askOn runs a query on a connection, which it closes or keeps afterwards.
func (l *lookups) askOn(ctx context.Context, lk *lookup, query string) ([][]sql.NullString, error) {
	here, cancel := l.srv.Monitor.While(ctx, lk.endpoint)
	defer cancel()
	rows, err := lk.Query(here, query)
	if err != nil && mywire.CodeOf(err) == 0 {
		_ = lk.Close()
		return nil, err
	}
	l.idle.Keep(lk, lk.endpoint, lk.born)
	return rows, err
}

// accounts queries the accounts that a name may mean; it returns none if weir may not.
func (l *lookups) accounts(ctx context.Context, name string) [][]sql.NullString {
	s := l.srv
	if s.cfg().MySQL.User == "" || l.barred() {
		return nil
	}
	g := s.known.get()
	if g == nil {
		return nil // not connected yet
	}
	ctx, cancel := s.awaitServer(ctx)
	defer cancel()
	rows, err := l.ask(ctx, accounts.Query(g.IsMariaDB(), versionID(g.Version)), name)
	if err == nil {
		return rows
	}
	switch code := mywire.CodeOf(err); {
	case code == 0 || !l.bar():
	case code == mywire.ErrAccessDenied:
		s.Log.Warn("the server refuses weir's own login: check the user and the password that weir was given", "user", s.cfg().MySQL.User, "error", err)
	default: // it may not read the table
		s.Log.Info("logins are relayed to the server: weir's user may not read there what is stored of accounts", "user", s.cfg().MySQL.User, "error", err)
	}
	return nil
}

// secret runs the auth query. If it finds no user, it returns the zero secret, which fails as a
// wrong password does.
func (l *lookups) secret(ctx context.Context, user string) (mywire.Secret, error) {
	rows, err := l.ask(ctx, l.srv.cfg().AuthQuery, user)
	if err != nil || len(rows) == 0 {
		return mywire.Secret{}, err
	}
	if len(rows[0]) != 2 {
		return mywire.Secret{}, fmt.Errorf("the auth query returned %d columns; want name and authentication string", len(rows[0]))
	}
	return mywire.ParseSecret(rows[0][1].String)
}
