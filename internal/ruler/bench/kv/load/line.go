package kvload

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
)

// line is the connection of a stream.
type line struct {
	conn   net.Conn
	closed atomic.Bool
}

func dial(ctx context.Context, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return conn, nil
}

// lost converts an error of the connection to the one that the stream gets.
func (l *line) lost(err error) error {
	switch {
	case err == nil:
		return nil
	case l.closed.Load():
		return ErrClosed
	default:
		return fmt.Errorf("connection lost: %w", err)
	}
}

// Close implements Client.
func (l *line) Close() error {
	if l.closed.Swap(true) {
		return nil
	}
	return l.conn.Close()
}
