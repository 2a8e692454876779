package redis

import (
	"context"
	"net"
	"sync"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/weirdb/weir/outbox/sink"
)

// connection is one connection, used by one call of Publish at a time. Each has its own client, so
// that a call whose context ends can close it: the library would wait for the answer until its
// timeout.
type connection struct {
	client *redis.Client
	// unconfirmed says that replicas may not have what this connection wrote.
	unconfirmed bool

	mu   sync.Mutex
	conn net.Conn // the last one made
}

// newConnection returns a connection that is established when it is used.
func (s *Sink) newConnection() *connection {
	l := &connection{unconfirmed: true}
	l.client = redis.NewClient(&redis.Options{
		Addr: s.opts.Server, Username: s.opts.User, Password: s.opts.Password, DB: s.opts.DB,
		ClientName: "weir-outbox",
		PoolSize:   1, MaxRetries: -1, DialerRetries: 1,
		DialTimeout: s.opts.Timeout, PoolTimeout: s.opts.Timeout,
		ReadTimeout: 2 * s.opts.Timeout, WriteTimeout: s.opts.Timeout, // WAIT takes up to one Timeout
		ContextTimeoutEnabled:    true,
		DisableIdentity:          true,
		Protocol:                 2,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		Dialer: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := s.dial(ctx, network, address)
			if err == nil {
				l.mu.Lock()
				l.conn = conn
				l.mu.Unlock()
			}
			return conn, err
		},
		OnConnect: s.readBulkLimit,
	})
	return l
}

func (s *Sink) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if s.tls == nil {
		return (&net.Dialer{Timeout: s.opts.Timeout}).DialContext(ctx, network, address)
	}
	// Shorter than the timeout of the call, for an error that names the handshake.
	return sink.DialTLS(ctx, s.opts.Timeout*3/4, s.tls, address)
}

// closeOnDone runs f and closes the connection if ctx ends meanwhile.
func (l *connection) closeOnDone(ctx context.Context, f func()) {
	over := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(over)
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.conn != nil {
			_ = l.conn.Close() // the library closes it again
		}
	})
	f()
	if !stop() {
		<-over
	}
}
