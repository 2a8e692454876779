// Package amqp publishes messages to RabbitMQ by AMQP 0-9-1, with publisher
// confirms.
//
// The exchange is the topic and the routing key the key, unless the options say
// otherwise. Messages are persistent and mandatory: one that no queue takes is
// a failed attempt, not lost. The identity is the property message-id, a header
// "type" the property type, the key the header weir-key; other headers are
// carried under their names.
//
// Messages of different keys are in flight concurrently; a message of a key is
// sent when the one before it was confirmed. The broker closes a channel for a
// message that it refuses (no such exchange, too large), and does not say which
// it was: those of the channel that were not confirmed are then sent one by
// one.
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

// maxRound is how many messages are on their way at once in one channel.
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

// New connects. An error marked by [outbox.Unavailable] may pass by itself.
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

// String is the address without a login.
func (s *Sink) String() string { return s.opts.String() }

var errClosed = outbox.Unavailable(errors.New("amqp: the sink is closed"))

// Close ends the connection, and with it the calls in flight.
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

// current is the connection if it works.
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

// connected is the connection, made if need be.
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

// errAlone marks, within a round, a message that is to be tried alone.
var errAlone = errors.New("amqp: the channel was closed")

// isMissing reports a refusal because the exchange does not exist. Somebody may
// still make it, so the message is not to blame.
func isMissing(refusal error) bool {
	var e *amqp.Error
	return errors.As(refusal, &e) && e.Code == amqp.NotFound
}

// isForbidden reports a refusal because the login may not write there: that is
// rather the permissions than the message.
func isForbidden(refusal error) bool {
	var e *amqp.Error
	return errors.As(refusal, &e) && e.Code == amqp.AccessRefused
}

// isTooLarge reports a refusal for the size of the message (max_message_size).
func isTooLarge(refusal error) bool {
	var e *amqp.Error
	return errors.As(refusal, &e) && e.Code == amqp.PreconditionFailed && strings.Contains(e.Reason, "message size")
}

// remedy says what helps against a refusal, where that is known.
func remedy(refusal error) string {
	if isMissing(refusal) {
		return " (make the exchange, or have it made by the sink's parameter declare)"
	}
	return ""
}

// round sends up to maxRound messages at once. Those that a closed channel left
// open are sent again, each in a round of its own; when there is only one, it is
// the one that the channel was closed for.
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

// try is the first part of round. The error that it returns is what a channel
// was closed with; errAlone then marks the messages that it leaves open.
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

// exchange is the name of a message's exchange.
func (s *Sink) exchange(m *outbox.Message) string {
	if s.opts.Exchange == DefaultExchange {
		return ""
	}
	return s.opts.Exchange.Expand(m)
}

// declare makes what the messages need and this connection has not made yet. A
// name that exists in another form is left as it is.
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
			// The channel is gone. Whether the name will do, publishing tells.
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

// maxShort is the length of names and properties in AMQP.
const maxShort = 255

// properties is the message as AMQP has it.
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
