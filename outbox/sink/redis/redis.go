// Package redis publishes messages to Redis Streams (and other servers that
// speak the Redis protocol).
//
// A topic's stream has its name, after [Options.StreamPrefix]. An entry has the
// fields id (the identity), key (unless empty), payload, and header:NAME for
// each header. Redis keeps no list of identities: a message that is sent again
// after a crash is stored twice, and consumers recognize it by id.
//
// A script adds up to 512 messages in one round trip, and skips messages of a key after one that
// was refused. It declares all its streams as keys, so a cluster accepts it only if they are in
// one slot.
//
// How durable a confirmed message is depends on the server's settings: with
// appendfsync everysec a crash of the machine loses up to a second of entries.
package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/weirdb/weir/outbox"
	"github.com/weirdb/weir/outbox/sink"
)

// Limits of one script. The server does nothing else while it runs.
const (
	maxScript      = 512
	maxScriptBytes = 8 << 20
)

// maxHeaders keeps an entry's fields within what Lua can pass to a command.
const maxHeaders = 1000

// defaultBulk is the default of proto-max-bulk-len, the longest field.
const defaultBulk = 512 << 20

// FieldHeader is the prefix of a header's field.
const FieldHeader = "header:"

// Sink publishes to streams over a few connections, which it opens on demand.
type Sink struct {
	opts    Options
	tls     *tls.Config
	bulk    atomic.Int64
	lanes   chan *connection // those that are free; nil stands for one not made yet
	closing chan struct{}
	once    sync.Once
}

// Open is New with the options of an address: see [ParseURL].
func Open(ctx context.Context, address string) (*Sink, error) {
	o, err := ParseURL(address)
	if err != nil {
		return nil, err
	}
	return New(ctx, o)
}

// New connects. After an error marked by [outbox.Unavailable] it may be called again.
func New(ctx context.Context, o Options) (*Sink, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Sink{opts: o, lanes: make(chan *connection, o.Connections), closing: make(chan struct{})}
	s.bulk.Store(defaultBulk)
	if o.Secure {
		if s.tls, err = o.TLS.Config(); err != nil {
			return nil, fmt.Errorf("redis: %w", err)
		}
	}
	first := s.newConnection()
	first.closeOnDone(ctx, func() { err = first.client.Ping(ctx).Err() })
	if err != nil {
		_ = first.client.Close() // the error that counts is the other one
		if errors.Is(err, io.EOF) && !o.Secure {
			err = fmt.Errorf("%w (does the server expect TLS on this port?)", err)
		}
		return nil, outbox.Unavailable(fmt.Errorf("connect to %v: %w", o, err))
	}
	s.lanes <- first
	for range o.Connections - 1 {
		s.lanes <- nil
	}
	return s, nil
}

// readBulkLimit reads the server's proto-max-bulk-len. If it cannot be read, the limit is
// defaultBulk.
func (s *Sink) readBulkLimit(ctx context.Context, conn *redis.Conn) error {
	const name = "proto-max-bulk-len"
	got, err := conn.ConfigGet(ctx, name).Result()
	var refused redis.Error
	if err != nil && !errors.As(err, &refused) {
		return err
	}
	bulk, err := strconv.ParseInt(got[name], 10, 64)
	if err != nil || bulk <= 0 {
		bulk = defaultBulk
	}
	s.bulk.Store(bulk)
	return nil
}

// String returns the address without a login.
func (s *Sink) String() string { return s.opts.String() }

var errClosed = outbox.Unavailable(errors.New("redis: the sink is closed"))

// Close waits for the calls in flight and closes the connections.
func (s *Sink) Close() error {
	var err error
	s.once.Do(func() {
		close(s.closing)
		for range s.opts.Connections {
			if l := <-s.lanes; l != nil {
				err = errors.Join(err, l.client.Close())
			}
		}
	})
	return err
}

// Publish implements [outbox.Sink].
func (s *Sink) Publish(ctx context.Context, msgs []outbox.Message) []error {
	if len(msgs) == 0 {
		return nil
	}
	l, err := s.acquire(ctx)
	if err != nil {
		return sink.All(len(msgs), err)
	}
	defer func() { s.lanes <- l }()
	b := &batch{sink: s, msgs: msgs, errs: make([]error, len(msgs)), failed: map[string]bool{}, most: maxScript}
	l.closeOnDone(ctx, func() {
		for b.next < len(msgs) && b.stop == nil {
			b.run(ctx, l)
		}
	})
	for i := b.next; i < len(msgs); i++ {
		b.errs[i] = sink.Unsent(b.stop)
	}
	return sink.Result(b.errs)
}

// acquire waits for a free connection.
func (s *Sink) acquire(ctx context.Context) (*connection, error) {
	select {
	case <-s.closing:
		return nil, errClosed
	default:
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-s.closing:
		return nil, errClosed
	case l := <-s.lanes:
		if l == nil {
			l = s.newConnection()
		}
		return l, nil
	}
}

// classify converts an error of the server or of the connection to the error of a message. A
// server's error begins with a word in capitals.
func classify(err error) error {
	wrapped := fmt.Errorf("redis: %w", err)
	var refused redis.Error
	if !errors.As(err, &refused) {
		var op *net.OpError
		cut := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &op) && op.Op != "dial" && !op.Timeout()
		if cut {
			return outbox.Broken(wrapped)
		}
		return outbox.Unavailable(wrapped) // there was no connection
	}
	text := refused.Error()
	if strings.HasPrefix(text, "@user_script") { // a script of a server before 7: "@user_script: 17: -OOM ..."
		if _, said, ok := strings.Cut(text, ": -"); ok {
			text = said
		}
	}
	switch word, _, _ := strings.Cut(strings.TrimPrefix(text, "-"), " "); word {
	case "WRONGTYPE":
		return outbox.Reject(wrapped)
	case "NOPERM": // a list of access: rather not the message
		return outbox.Doubtful(wrapped)
	case "NOAUTH", "WRONGPASS", "OOM", "LOADING", "MASTERDOWN", "READONLY", "MISCONF", "BUSY", "NOREPLICAS",
		"CLUSTERDOWN", "TRYAGAIN", "UNKILLABLE":
		return outbox.Unavailable(wrapped)
	}
	if strings.Contains(refused.Error(), "max number of clients") {
		return outbox.Unavailable(wrapped)
	}
	return wrapped
}
