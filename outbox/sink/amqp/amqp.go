// Package amqp publishes messages to RabbitMQ by AMQP 0-9-1, with publisher
// confirms.
//
// By default the topic is the exchange and the key is the routing key. Messages are
// persistent and mandatory: one that is not routed to any queue is a failed attempt, not
// lost. The identity is sent as property message-id, the header "type" as property type,
// the key as header weir-key, and other headers under their names.
//
// Messages of different keys are in flight concurrently; a message is sent after the
// previous one of its key was confirmed. If the broker refuses a message (no such
// exchange, too large), it closes the channel and does not say which message it was: the
// unconfirmed messages of the channel are then sent one by one.
package amqp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/weirdb/weir/outbox"
	"github.com/weirdb/weir/outbox/sink"
)

// maxRound is the most messages in flight on one channel.
const maxRound = 512

// Sink publishes over one connection, and reconnects when it is lost.
type Sink struct {
	opts    Options
	dialing chan struct{} // holds one token: only one dials

	mu     sync.Mutex
	link   *link // the last one; nil before the first
	closed bool
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
	s := &Sink{opts: o, dialing: make(chan struct{}, 1)}
	if _, err := s.connected(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// String returns the address without a login.
func (s *Sink) String() string { return s.opts.String() }

var errClosed = outbox.Unavailable(errors.New("amqp: the sink is closed"))

// Close closes the connection, which ends the calls in flight.
func (s *Sink) Close() error {
	s.mu.Lock()
	l := s.link
	s.closed, s.link = true, nil
	s.mu.Unlock()
	if l != nil {
		l.end()
	}
	return nil
}

// current returns the connection if it is usable.
func (s *Sink) current() (*link, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errClosed
	}
	if s.link == nil || s.link.conn.IsClosed() {
		return nil, nil
	}
	return s.link, nil
}

// connected returns the connection, and connects if necessary.
func (s *Sink) connected(ctx context.Context) (*link, error) {
	if l, err := s.current(); l != nil || err != nil {
		return l, err
	}
	select {
	case s.dialing <- struct{}{}:
		defer func() { <-s.dialing }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if l, err := s.current(); l != nil || err != nil {
		return l, err
	}
	l, err := s.dial(ctx)
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		l.end()
		return nil, errClosed
	}
	s.link = l
	return l, nil
}

// Publish implements [outbox.Sink].
func (s *Sink) Publish(ctx context.Context, msgs []outbox.Message) []error {
	return sink.Waves(ctx, msgs, func(ctx context.Context, wave []int, errs []error) {
		var stop error
		for part := range slices.Chunk(wave, maxRound) {
			if stop != nil {
				for _, i := range part {
					errs[i] = sink.Unsent(stop)
				}
				continue
			}
			s.round(ctx, msgs, part, errs)
			for _, i := range part {
				if outbox.IsUnavailable(errs[i]) {
					stop = errs[i]
				}
			}
		}
	})
}

// errAlone marks a message of a round that must be sent again on its own.
var errAlone = errors.New("amqp: the channel was closed")

// isMissing reports whether the exchange does not exist. It may be created later, so the
// message is not rejected.
func isMissing(refusal error) bool {
	var e *amqp.Error
	return errors.As(refusal, &e) && e.Code == amqp.NotFound
}

// isForbidden reports whether the user may not write to the exchange: a problem of
// permissions rather than of the message.
func isForbidden(refusal error) bool {
	var e *amqp.Error
	return errors.As(refusal, &e) && e.Code == amqp.AccessRefused
}

// isTooLarge reports whether the message exceeds max_message_size.
func isTooLarge(refusal error) bool {
	var e *amqp.Error
	return errors.As(refusal, &e) && e.Code == amqp.PreconditionFailed && strings.Contains(e.Reason, "message size")
}

// remedy returns what to do about a refusal, if that is known.
func remedy(refusal error) string {
	if isMissing(refusal) {
		return " (make the exchange, or have it made by the sink's parameter declare)"
	}
	return ""
}

// round sends up to maxRound messages at once. Messages left unanswered by a closed channel
// are sent again, each in a round of its own; a single one is the one that the channel was
// closed for.
func (s *Sink) round(ctx context.Context, msgs []outbox.Message, part []int, errs []error) {
	refusal := s.try(ctx, msgs, part, errs)
	var stop error // the broker is gone: no use in trying one after the other
	for _, i := range part {
		switch {
		case errs[i] != errAlone:
		case len(part) == 1:
			errs[i] = fmt.Errorf("amqp: %w%s", refusal, remedy(refusal))
			switch {
			case isMissing(refusal):
			case isForbidden(refusal):
				errs[i] = outbox.Doubtful(errs[i])
			case isTooLarge(refusal):
				errs[i] = outbox.Invalid(errs[i])
			default:
				errs[i] = outbox.Reject(errs[i])
			}
		case ctx.Err() != nil:
			errs[i] = ctx.Err()
		case stop != nil:
			errs[i] = sink.Unsent(stop)
		default:
			errs[i] = nil
			s.round(ctx, msgs, []int{i}, errs)
			if outbox.IsUnavailable(errs[i]) {
				stop = errs[i]
			}
		}
	}
}

// try is the first part of round. It returns the error that the channel was closed with;
// the messages left unanswered then have errAlone.
func (s *Sink) try(ctx context.Context, msgs []outbox.Message, part []int, errs []error) error {
	l, err := s.connected(ctx)
	if err != nil {
		setAll(part, errs, err)
		return nil
	}
	blocked, changed := l.state()
	if blocked != "" {
		setAll(part, errs, outbox.Unavailable(errors.New("amqp: "+blocked)))
		return nil
	}
	c, err := l.channel()
	if err == nil && s.opts.Declare != "" {
		c, err = s.declare(l, c, msgs, part)
	}
	if err != nil {
		setAll(part, errs, err)
		return nil
	}
	r := &round{sink: s, link: l, channel: c, msgs: msgs, part: part, errs: errs}
	r.send(ctx)
	r.await(ctx, changed)
	return r.finish()
}

func setAll(part []int, errs []error, err error) {
	for _, i := range part {
		errs[i] = err
	}
}

// exchange returns the name of a message's exchange.
func (s *Sink) exchange(m *outbox.Message) string {
	if s.opts.Exchange == DefaultExchange {
		return ""
	}
	return s.opts.Exchange.Expand(m)
}

// declare declares the exchanges or queues of the messages that this connection has not
// declared yet. Existing ones of another type are left unchanged.
func (s *Sink) declare(l *link, c *channel, msgs []outbox.Message, part []int) (*channel, error) {
	for _, i := range part {
		name := s.exchange(&msgs[i])
		if s.opts.Declare == "queue" {
			name = s.opts.RoutingKey.Expand(&msgs[i])
		}
		if l.isDeclared(name) || len(name) > maxShort {
			continue
		}
		var err error
		if s.opts.Declare == "queue" {
			_, err = c.QueueDeclare(name, true, false, false, false, nil)
		} else {
			err = c.ExchangeDeclare(name, s.opts.Declare, true, false, false, false, nil)
		}
		var refused *amqp.Error
		if errors.As(err, &refused) && refused.Server && !l.conn.IsClosed() {
			// The channel is closed. Publishing shows whether the existing one works.
			if c, err = l.channel(); err != nil {
				return nil, err
			}
		}
		if err != nil {
			return nil, outbox.Unavailable(fmt.Errorf("amqp: declare %q: %w", name, err))
		}
		l.noteDeclared(name)
	}
	return c, nil
}

func (l *link) isDeclared(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.declared[name]
}

func (l *link) noteDeclared(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.declared[name] = true
}

// maxShort is the most bytes of names and properties in AMQP.
const maxShort = 255

// properties converts a message.
func (s *Sink) properties(m *outbox.Message) (amqp.Publishing, error) {
	p := amqp.Publishing{
		Headers: amqp.Table{}, DeliveryMode: amqp.Persistent, MessageId: m.Identity(), Body: m.Payload,
		ContentType: m.Headers[sink.HeaderContentType], Type: m.Headers[sink.HeaderType],
	}
	if at := m.ID.Time(); !at.IsZero() {
		p.Timestamp = at.Truncate(time.Second)
	}
	for name, value := range m.Headers {
		if name == sink.HeaderContentType || name == sink.HeaderType {
			continue
		}
		if len(name) > maxShort {
			return p, outbox.Invalid(fmt.Errorf("amqp: the header %.20q… has a name of %d bytes, at most %d are possible", name, len(name), maxShort))
		}
		p.Headers[name] = value
	}
	if m.Key != "" {
		p.Headers[sink.HeaderKey] = m.Key
	}
	for _, f := range []struct{ name, value string }{
		{"exchange", s.exchange(m)},
		{"routing key", s.opts.RoutingKey.Expand(m)},
		{"message-id", p.MessageId},
		{"content-type", p.ContentType},
		{"type", p.Type},
	} {
		if len(f.value) > maxShort {
			return p, outbox.Invalid(fmt.Errorf("amqp: the %s has %d bytes, at most %d are possible", f.name, len(f.value), maxShort))
		}
	}
	return p, nil
}
