package mysql

import (
	"context"
	"errors"
	"sync"

	"github.com/weirdb/weir/internal/proxy/upstream"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// Healthy returns why the server cannot be used, or nil if it can: see core.Server.CheckHealth.
func (s *Server) Healthy(ctx context.Context) error {
	return s.CheckHealth(ctx, s.Host(), func(ctx context.Context) (bool, error) { return s.asker.ask(ctx, s) })
}

// A healthChecker checks whether the server works, on a connection that it keeps.
type healthChecker struct {
	mu       sync.Mutex
	conn     *mywire.Server    // guarded by mu: the last question's; or nil
	endpoint upstream.Endpoint // guarded by mu: of the last check; or nil
}

// ask checks the server, on the connection of the last check if that still exists. refused
// reports that the server refused weir's user, which also shows that it works.
func (h *healthChecker) ask(ctx context.Context, s *Server) (refused bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !s.Monitor.Goes(h.endpoint) {
		h.drop() // that server may work, but is not the current one any more
	}
	if h.conn != nil {
		_, err := h.conn.Exec(ctx, "DO 0")
		if err == nil {
			return false, nil
		}
		h.drop()
		if ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
	}
	conn, e, err := s.visit(ctx)
	switch code := mywire.CodeOf(err); {
	case err == nil:
		h.conn, h.endpoint = conn, e
	case refusesUser(code):
		return true, nil // the server is up
	case ctx.Err() != nil && errors.Is(err, context.DeadlineExceeded):
		return false, context.Cause(ctx)
	}
	return false, err
}

// drop closes the connection; h.mu is held.
func (h *healthChecker) drop() {
	if h.conn != nil {
		_ = h.conn.Close()
		h.conn = nil
	}
}

// close closes the connection.
func (h *healthChecker) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.drop()
}
