package postgres

import (
	"context"
	"errors"
	"sync"

	"github.com/jackc/pgx/v5"
)

var errClosed = errors.New("the lease is closed")

// session is one connection, used by one caller at a time and reopened when it broke.
type session struct {
	open func(ctx context.Context) (*pgx.Conn, error)

	mu     sync.Mutex
	conn   *pgx.Conn
	closed bool
}

// use runs f on the connection.
func (s *session) use(ctx context.Context, f func(*pgx.Conn) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed
	}
	if s.conn == nil || s.conn.IsClosed() {
		c, err := s.open(ctx)
		if err != nil {
			return err
		}
		s.conn = c
	}
	return f(s.conn)
}

func (s *session) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.conn != nil {
		closeConn(s.conn)
	}
}
