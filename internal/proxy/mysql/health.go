package mysql

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/weirdb/weir/internal/proxy/netloop"
	"github.com/weirdb/weir/internal/wire/mywire"
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
	// healthRefused is the same where the server lets nobody in that weir could
	// ask as: each question is a refused login in the server's log.
	healthRefused = 5 * time.Second
)

// A health asks the server, for one at a time.
type health struct {
	mu    sync.Mutex
	conn  *mywire.Server // guarded by mu: the last question's, to be used again; or nil
	asked bool           // guarded by mu
	until time.Duration  // guarded by mu: how long err stands
	err   error          // guarded by mu
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
	if h.asked && s.monotonic() < h.until {
		return h.err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, healthPatience, fmt.Errorf("no answer within %v: %w", healthPatience, context.DeadlineExceeded))
	defer cancel()
	refused, err := h.ask(ctx, s)
	if err != nil {
		err = fmt.Errorf("the server %s does not answer: %w", s.cfg.MySQL.Address, err)
	}
	h.asked, h.err = true, err
	h.until = s.monotonic() + healthFresh
	if refused {
		h.until += healthRefused - healthFresh
	}
	return err
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

// ask asks the server, on the connection of the last question if that still
// exists. refused tells that nobody was let in, which is an answer, too.
func (h *health) ask(ctx context.Context, s *Server) (refused bool, err error) {
	if h.conn != nil {
		_, err := h.conn.Exec(ctx, "DO 0")
		if err == nil {
			return false, nil
		}
		h.close()
		if ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
	}
	conn, err := s.visit(ctx)
	switch code := mywire.CodeOf(err); {
	case err == nil:
		h.conn = conn
	case refusesUser(code):
		return true, nil // alive enough to say so
	case ctx.Err() != nil && errors.Is(err, context.DeadlineExceeded):
		return false, context.Cause(ctx)
	}
	return false, err
}

func (h *health) close() {
	if h.conn != nil {
		_ = h.conn.Close()
		h.conn = nil
	}
}

// endHealth closes the connection for questions.
func (s *Server) endHealth() {
	s.health.mu.Lock()
	defer s.health.mu.Unlock()
	s.health.close()
}
