package postgres

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

// maxLookups bounds the connections on which secrets are looked up at a time.
// Anyone who can reach weir can ask for a secret to be looked up, before having
// proved anything.
const maxLookups = 4

// lookupKeep is how long a connection for lookups is kept after its last one.
const lookupKeep = 30 * time.Second

// lookups runs the auth query, over few connections that are used again. Safe for
// concurrent use.
type lookups struct {
	slots chan struct{} // one for each lookup under way

	mu     sync.Mutex
	idle   *pgwire.Backend // guarded by mu: at most one, kept for the next lookup
	since  time.Time       // guarded by mu: since when it is idle
	closed bool            // guarded by mu
}

func (l *lookups) init() { l.slots = make(chan struct{}, maxLookups) }

// take returns the idle connection, nil if there is none that is young enough.
func (l *lookups) take() *pgwire.Backend {
	l.mu.Lock()
	defer l.mu.Unlock()
	be := l.idle
	l.idle = nil
	if be != nil && time.Since(l.since) > lookupKeep {
		_ = be.Conn.Close()
		return nil
	}
	return be
}

func (l *lookups) keep(be *pgwire.Backend) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.idle != nil || l.closed {
		_ = be.Conn.Close()
		return
	}
	l.idle, l.since = be, time.Now()
}

// letGo ends the idle connection.
func (l *lookups) letGo() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.idle != nil {
		_ = l.idle.Conn.Close()
		l.idle = nil
	}
}

// close ends the idle connection; none is kept any more.
func (l *lookups) close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.letGo()
}

// lookUpSecret runs the auth query as the DSN's user. The secret of a user who
// is not found is the zero one, which fails as a wrong password does.
func (s *Server) lookUpSecret(ctx context.Context, user string) (pgwire.Secret, error) {
	select {
	case s.lookups.slots <- struct{}{}:
		defer func() { <-s.lookups.slots }()
	case <-ctx.Done():
		return pgwire.Secret{}, fmt.Errorf("wait for one of %d lookups to end: %w", maxLookups, ctx.Err())
	}
	if be := s.lookups.take(); be != nil {
		secret, err := s.askSecret(ctx, be, user)
		if err == nil || pgwire.CodeOf(err) != "" || ctx.Err() != nil {
			return secret, err
		}
		// The connection was lost while it was idle.
	}
	cfg := s.cfg().Postgres
	if cfg.Password == "" {
		cfg.Password, cfg.Keys = s.creds.of(cfg.User)
	}
	var be *pgwire.Backend
	if err := s.patiently(ctx, func() (err error) {
		be, _, err = s.connect(ctx, cfg)
		return err
	}); err != nil {
		return pgwire.Secret{}, err
	}
	return s.askSecret(ctx, be, user)
}

// askSecret runs the auth query on a connection, which it uses up or keeps.
func (s *Server) askSecret(ctx context.Context, be *pgwire.Backend, user string) (pgwire.Secret, error) {
	row, err := queryOne(ctx, be.Conn, s.cfg().AuthQuery, user)
	if err != nil {
		_ = be.Conn.Close()
		return pgwire.Secret{}, err
	}
	s.lookups.keep(be)
	if row == nil {
		return pgwire.Secret{}, nil
	}
	if len(row) != 2 {
		return pgwire.Secret{}, fmt.Errorf("the auth query returned %d columns; want name and secret", len(row))
	}
	return pgwire.ParseSecret(string(row[1]))
}
