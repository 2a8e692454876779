package postgres

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/weirdb/weir/internal/proxy/netloop"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file is the answer to whether the server works. That there are connections
// to it says nothing: a server that hangs keeps them. So it has answered somebody
// just now, or it is asked on a connection for that alone.

const (
	// healthPatience is how long the server may take to answer the question.
	healthPatience = 2 * time.Second
	// healthFresh is how long an answer stands for the next question; one that
	// the server gave to anybody, too.
	healthFresh = time.Second
)

// A health asks the server, for one at a time.
type health struct {
	mu    sync.Mutex
	until time.Duration // guarded by mu: how long err stands
	err   error         // guarded by mu
}

// Healthy reports why the server cannot be used, nil if it can: it has just
// answered somebody, or answers now.
func (s *Server) Healthy(ctx context.Context) error {
	if s.stopping.Load() {
		return netloop.ErrStopped
	}
	alive, err := s.answersNow(ctx)
	if alive || err != nil {
		return err
	}
	h := &s.health
	h.mu.Lock()
	defer h.mu.Unlock()
	if s.monotonic() < h.until {
		return h.err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, healthPatience, fmt.Errorf("no answer within %v: %w", healthPatience, context.DeadlineExceeded))
	defer cancel()
	h.err = s.askHealth(ctx)
	if h.err != nil {
		h.err = fmt.Errorf("the server %s does not answer: %w", s.cfg.Postgres.Address, h.err)
	}
	h.until = s.monotonic() + healthFresh
	return h.err
}

// answersNow tells whether a statement has been answered within the last moment.
func (s *Server) answersNow(ctx context.Context) (alive bool, err error) {
	for _, l := range s.loops {
		if err := l.Call(ctx, func() {
			for _, p := range l.poolList {
				for _, b := range p.backends {
					alive = alive || b.answered > 0 && l.Now-b.answered < healthFresh
				}
			}
		}); err != nil {
			return false, err
		}
		if alive {
			return true, nil
		}
	}
	return false, nil
}

// askHealth begins a login, which needs no password: that the server asks for one,
// or refuses the user, shows that it works.
func (s *Server) askHealth(ctx context.Context) (err error) {
	cfg := s.cfg.Postgres
	cfg.Timeout = healthPatience
	conn, err := pgwire.Open(ctx, cfg)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer func() {
		if !stop() && err != nil {
			err = context.Cause(ctx)
		}
		_ = conn.Close()
	}()
	user := cmp.Or(cfg.User, "postgres")
	out := pgwire.AppendStartup(nil, 3<<16, []pgwire.Param{{Name: "user", Value: user}, {Name: "database", Value: cmp.Or(cfg.Database, user)}})
	if _, err := conn.Write(out); err != nil {
		return err
	}
	var head [pgwire.HeaderLen]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return err
	}
	_, n, _ := pgwire.Peek(head[:])
	if head[0] != pgwire.ServerError || n < pgwire.HeaderLen || n > 64<<10 {
		return nil
	}
	body := make([]byte, n-pgwire.HeaderLen)
	if _, err := io.ReadFull(conn, body); err != nil {
		return err
	}
	e, err := pgwire.ParseError(body)
	if err != nil || e.Code == pgwire.CodeCannotConnectNow {
		return cmp.Or[error](err, e)
	}
	return nil
}
