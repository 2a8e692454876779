package amqp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/weirdb/weir/outbox"
)

// link is one connection with its channels, each used by one call at a time. A broken link
// is replaced, not repaired.
type link struct {
	conn *amqp.Connection
	raw  net.Conn

	discards chan *channel // for closeDiscarded

	mu       sync.Mutex
	free     []*channel
	declared map[string]bool
	blocked  string        // why the broker accepts no messages; "" if it does
	changed  chan struct{} // closed and replaced when blocked changes
}

// channel is a channel in confirm mode.
type channel struct {
	*amqp.Channel
	returns chan amqp.Return
	closed  chan *amqp.Error
}

// maxDiscards is the most channels that wait to be closed. With one more, the whole
// connection is closed.
const maxDiscards = 64

// dial connects to the first server that answers within the timeout.
func (s *Sink) dial(ctx context.Context) (*link, error) {
	ctx, cancel := context.WithTimeout(ctx, s.opts.Timeout)
	defer cancel()
	var errs []error
	for _, server := range s.opts.Servers {
		l, err := s.dialOne(ctx, server)
		if err == nil {
			return l, nil
		}
		errs = append(errs, err)
	}
	return nil, outbox.Unavailable(fmt.Errorf("connect to %v: %w", s.opts, errors.Join(errs...)))
}

func (s *Sink) dialOne(ctx context.Context, server string) (*link, error) {
	l := &link{declared: map[string]bool{}, changed: make(chan struct{}), discards: make(chan *channel, maxDiscards)}
	config := amqp.Config{
		SASL:  []amqp.Authentication{&amqp.PlainAuth{Username: s.opts.User, Password: s.opts.Password}},
		Vhost: s.opts.VHost, Heartbeat: 10 * time.Second,
		Properties: amqp.Table{"product": "weir outbox", "connection_name": "weir outbox"},
		Dial: func(network, address string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			l.raw = conn
			deadline, _ := ctx.Deadline()
			return conn, conn.SetDeadline(deadline) // of the handshake; the library lifts it
		},
	}
	scheme := "amqp"
	if s.opts.Secure {
		cfg, err := s.opts.TLS.Config()
		if err != nil {
			return nil, err
		}
		scheme, config.TLSClientConfig = "amqps", cfg
	}
	var err error
	// The address has no login, so errors may quote it.
	if l.conn, err = amqp.DialConfig(scheme+"://"+server+"/", config); err != nil {
		if l.raw != nil {
			_ = l.raw.Close() // the error that counts is the other one
		}
		return nil, hint(err)
	}
	go l.watch(l.conn.NotifyBlocked(make(chan amqp.Blocking, 1)))
	go l.closeDiscarded(l.conn.NotifyClose(make(chan *amqp.Error, 1)))
	return l, nil
}

// hint adds a likely reason to an error of the library.
func hint(err error) error {
	var unknown tls.RecordHeaderError
	if errors.As(err, &unknown) {
		return fmt.Errorf("%w (does the broker expect TLS on this port?)", err)
	}
	return err
}

// watch tracks whether the broker accepts messages; it does not when it is short of memory
// or disk. It ends with the connection.
func (l *link) watch(notes <-chan amqp.Blocking) {
	for n := range notes {
		l.mu.Lock()
		l.blocked = ""
		if n.Active {
			l.blocked = "the broker takes no messages: " + n.Reason
		}
		close(l.changed)
		l.changed = make(chan struct{})
		l.mu.Unlock()
	}
}

// closeDiscarded closes channels that were discarded with messages in flight. It ends with the
// connection.
func (l *link) closeDiscarded(end <-chan *amqp.Error) {
	for {
		select {
		case <-end:
			return
		case c := <-l.discards:
			_ = c.Close() // fails only when the connection does
		}
	}
}

// state returns why the broker accepts no messages, and a channel that is closed when that
// changes.
func (l *link) state() (blocked string, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.blocked, l.changed
}

// channel returns an unused channel.
func (l *link) channel() (*channel, error) {
	l.mu.Lock()
	for len(l.free) > 0 {
		c := l.free[len(l.free)-1]
		l.free = l.free[:len(l.free)-1]
		if !c.IsClosed() {
			l.mu.Unlock()
			return c, nil
		}
	}
	l.mu.Unlock()
	ch, err := l.conn.Channel()
	if err != nil {
		return nil, outbox.Unavailable(fmt.Errorf("amqp: open a channel: %w", err))
	}
	c := &channel{
		Channel: ch,
		returns: ch.NotifyReturn(make(chan amqp.Return, maxRound)),
		closed:  ch.NotifyClose(make(chan *amqp.Error, 1)),
	}
	if err := ch.Confirm(false); err != nil {
		l.discard(c)
		return nil, outbox.Unavailable(fmt.Errorf("amqp: ask for confirmations: %w", err))
	}
	return c, nil
}

// release returns a channel on which every message was answered.
func (l *link) release(c *channel) {
	if c.IsClosed() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.free = append(l.free, c)
}

// discard closes a channel on which answers are still expected.
func (l *link) discard(c *channel) {
	select {
	case l.discards <- c:
	default:
		_ = l.raw.Close() // the library notifies all users
	}
}

// end closes the connection. It waits at most a second for the broker's answer.
func (l *link) end() {
	_ = l.conn.CloseDeadline(time.Now().Add(time.Second)) // closed either way
	_ = l.raw.Close()
}
