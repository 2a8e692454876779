package archive

import (
	"context"
	"net"
	"time"
)

type dialer func(ctx context.Context, network, addr string) (net.Conn, error)

// dialIdleTimeout dials connections on which a Read or Write times out if no byte moves for the
// given time.
func dialIdleTimeout(dial dialer, patience time.Duration) dialer {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return idleTimeoutConn{conn, patience}, nil
	}
}

type idleTimeoutConn struct {
	net.Conn
	patience time.Duration
}

func (c idleTimeoutConn) Read(p []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(c.patience)); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

// Write also extends the deadline of a concurrent Read that waits for the response.
func (c idleTimeoutConn) Write(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		if err := c.SetDeadline(time.Now().Add(c.patience)); err != nil {
			return n, err
		}
		var took int
		took, err = c.Conn.Write(p[n:min(len(p), n+64<<10)])
		n += took
	}
	return n, err
}
