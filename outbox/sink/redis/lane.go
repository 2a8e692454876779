package redis

import (
	"context"
	"net"
	"sync"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/weirdb/weir/outbox/sink"
)

// lane is one connection, used by one call of Publish at a time. It is a client
// of its own so that a call whose context ends can close its connection: the
// library waits for an answer until its time is out.
type connection struct {
	client *redis.Client
	// behind: it is not known that replicas have what this connection wrote, or
	// that there are enough of them. One call of Publish at a time looks.
	unconfirmed bool

	mu   sync.Mutex
	conn net.Conn // the last one made
}

// newLane returns a lane that connects when it is used.
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
	// Less than the call has, so that it is this that says what took too long.
	return sink.DialTLS(ctx, s.opts.Timeout*3/4, s.tls, address)
}

// during runs f and closes the connection under it when ctx ends. Nothing of
// this is left when it returns.
func (l *connection) closeOnDone(ctx context.Context, f func()) {
	over := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(over)
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.conn != nil {
			_ = l.conn.Close() // the library closes it again, and tells
		}
	})
	f()
	if !stop() {
		<-over
	}
}
