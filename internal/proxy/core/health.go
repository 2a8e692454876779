package core

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/weirdb/weir/internal/proxy/netloop"
)

// This file finds out whether the database server works. Open connections prove nothing,
// since a server that hangs keeps them. So either it has just answered a client, or weir asks
// it on a connection of its own.

const (
	// HealthPatience is how long the server may take to answer the question.
	HealthPatience = 2 * time.Second
	// healthFresh is how long an answer counts as current; one to a client's statement, too.
	healthFresh = time.Second
	// healthRefused is the same if the server refuses every user that weir could ask as: each
	// question is then a refused login in the server's log.
	healthRefused = 5 * time.Second
)

// A health is the last answer of the server; one question is asked at a time.
type health struct {
	mu    sync.Mutex
	asked bool          // guarded by mu
	until time.Duration // guarded by mu: until when err counts as current
	err   error         // guarded by mu
}

// CheckHealth returns why the server at address cannot be used, or nil if it has just
// answered a client or answers ask now. Calls of ask do not overlap. ask returns
// refused if the server answered by refusing the login.
func (s *Server[L]) CheckHealth(ctx context.Context, address string, ask func(context.Context) (refused bool, err error)) error {
	if s.Stopping() {
		return netloop.ErrStopped
	}
	alive, err := s.answersNow(ctx)
	if alive || err != nil {
		return err
	}
	h := &s.health
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.asked && s.Monotonic() < h.until {
		return h.err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, HealthPatience, fmt.Errorf("no answer within %v: %w", HealthPatience, context.DeadlineExceeded))
	defer cancel()
	refused, err := ask(ctx)
	if err != nil {
		err = fmt.Errorf("the server %s does not answer: %w", address, err)
	}
	h.asked, h.err = true, err
	h.until = s.Monotonic() + healthFresh
	if refused {
		h.until += healthRefused - healthFresh
	}
	return err
}

// answersNow reports whether a statement has been answered within the last moment.
func (s *Server[L]) answersNow(ctx context.Context) (alive bool, err error) {
	for _, l := range s.Loops {
		if err := l.Call(ctx, func() {
			ago, ok := l.LastAnswer()
			alive = ok && ago < healthFresh
		}); err != nil {
			return false, err
		}
		if alive {
			return true, nil
		}
	}
	return false, nil
}
