package postgres

import (
	"context"
	"net"
	"time"

	"github.com/weirdb/weir/internal/proxy/upstream"
)

// Scans is how many texts of clients were read.
func (s *Server) Scans(ctx context.Context) (n uint64) {
	for _, l := range s.Loops {
		_ = l.Call(ctx, func() { n += l.scans.n })
	}
	return n
}

// LongestRead is the length of the longest text that a loop itself has read.
func (s *Server) LongestRead(ctx context.Context) (n int) {
	for _, l := range s.Loops {
		_ = l.Call(ctx, func() { n = max(n, l.scans.longest) })
	}
	return n
}

// CancelUnread cancels the statement of a client, if its text is being read away from the loop,
// and reports whether it was.
func (s *Server) CancelUnread(ctx context.Context, id uint32) (did bool) {
	for _, l := range s.Loops {
		_ = l.Call(ctx, func() {
			if c := l.Clients[id]; c != nil && c.texts.long != nil && !c.texts.long.done {
				did = true
				c.cancel(func() {})
			}
		})
	}
	return did
}

// Donate gives a pool a connection that a login opened to e, and reports whether the
// pool has it then.
func (s *Server) Donate(ctx context.Context, database, user string, e upstream.Endpoint) (kept bool, err error) {
	key := poolKey{database: database, user: user}
	conn, err := s.dialBackend(ctx, key)
	if err != nil {
		return false, err
	}
	conn.endpoint = e
	err = s.Loops[0].Call(ctx, func() {
		p := s.Loops[0].pool(key)
		before := len(p.Backends)
		p.Adopt(conn)
		kept = len(p.Backends) > before
	})
	return kept, err
}

// TableSQL asks what is known of a table.
func TableSQL(name string) string { return tableSQL(name) }

// MetOnLoops is how many logins came to their good end on an event loop alone.
func (s *Server) MetOnLoops(ctx context.Context) (n uint64) {
	for _, l := range s.Loops {
		_ = l.Call(ctx, func() { n += l.met })
	}
	return n
}

// Restless has the channels of clients that listen move after each statement.
func (c *Config) Restless() { c.restless = true }

// Dial connects as to the server.
func (s *Server) Dial(ctx context.Context, address string) (net.Conn, error) {
	return s.cfg().Postgres.Dial(ctx, "tcp", address)
}

// ReadTimeout reads a setting in milliseconds.
func ReadTimeout(value string) (time.Duration, bool) { return readTimeout(value) }

// Hold keeps the loops from their work until release is called.
func (s *Server) Hold() (release func()) {
	free := make(chan struct{})
	for _, l := range s.Loops {
		held := make(chan struct{})
		if l.Post(func() { close(held); <-free }) {
			<-held
		}
	}
	return func() { close(free) }
}
