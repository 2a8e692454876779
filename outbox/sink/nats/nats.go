// Package nats publishes messages to NATS JetStream.
//
// By default the subject is the topic: see [Options.Subject]. The identity of a message is sent
// as Nats-Msg-Id, by which the stream drops duplicates within its window, the key as header
// weir-key, and headers under their names.
//
// Messages of different keys are in flight concurrently; a message is sent after the previous
// one of its key was stored. How durable a stored message is depends on the server: by default
// it flushes files to disk some time after it has confirmed.
package nats

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirdb/weir/outbox"
	"github.com/weirdb/weir/outbox/sink"
)

// Sink publishes to JetStream over one connection, and reconnects when it is
// lost.
type Sink struct {
	opts Options
	conn *nats.Conn
	js   jetstream.JetStream

	repeats atomic.Uint64 // messages that their stream had had before

	mu      sync.Mutex
	refused int            // how often the server forbade a subject
	away    error          // why the last attempt to have the connection again failed
	denied  map[string]int // refused, when it forbade this subject last on this connection
	alarm   chan struct{}  // closed and replaced when refused grows
}

// Open is New with the options of an address: see [ParseURL].
func Open(ctx context.Context, address string) (*Sink, error) {
	o, err := ParseURL(address)
	if err != nil {
		return nil, err
	}
	return New(ctx, o)
}

// New connects and checks that the stream of the options exists. After an error marked by
// [outbox.Unavailable] it may be called again.
func New(ctx context.Context, o Options) (*Sink, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Sink{opts: o, denied: map[string]int{}, alarm: make(chan struct{})}
	settings, err := s.settings(ctx)
	if err != nil {
		return nil, err
	}
	if s.conn, err = settings.Connect(); err != nil {
		return nil, outbox.Unavailable(fmt.Errorf("connect to %v: %w", o, err))
	}
	if err := s.openStream(ctx); err != nil {
		s.conn.Close()
		return nil, err
	}
	return s, nil
}

// settings returns the options of the connection. It reconnects forever, first at once and then
// every quarter second, even if the login is refused: an operator may be changing it. Publishing
// meanwhile fails at once.
func (s *Sink) settings(ctx context.Context) (nats.Options, error) {
	o := nats.GetDefaultOptions()
	o.Servers = make([]string, len(s.opts.Servers))
	for i, server := range s.opts.Servers {
		o.Servers[i] = "nats://" + server
	}
	o.Name = "weir outbox"
	o.Timeout = s.opts.Timeout
	if deadline, ok := ctx.Deadline(); ok {
		o.Timeout = min(o.Timeout, max(time.Until(deadline), time.Millisecond))
	}
	o.MaxReconnect = -1
	o.ReconnectWait = 250 * time.Millisecond
	o.ReconnectJitter = 100 * time.Millisecond
	o.ReconnectBufSize = -1
	o.IgnoreAuthErrorAbort = true
	o.AsyncErrorCB = func(_ *nats.Conn, _ *nats.Subscription, err error) { s.noteError(err) }
	o.ReconnectedCB = func(*nats.Conn) { s.clearDenied() }
	o.ReconnectErrCB = func(_ *nats.Conn, err error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.away = err
	}
	switch {
	case s.opts.CredentialsFile != "":
		if err := nats.UserCredentials(s.opts.CredentialsFile)(&o); err != nil {
			return o, fmt.Errorf("nats: read credentials: %w", err)
		}
	case s.opts.User != "" && s.opts.Password == "":
		o.Token = s.opts.User
	default:
		o.User, o.Password = s.opts.User, s.opts.Password
	}
	if s.opts.Secure {
		cfg, err := s.opts.TLS.Config()
		if err != nil {
			return o, fmt.Errorf("nats: %w", err)
		}
		o.Secure, o.TLSConfig = true, cfg
	}
	return o, nil
}

// openStream sets up JetStream and checks or creates the stream.
func (s *Sink) openStream(ctx context.Context) (err error) {
	more := []jetstream.JetStreamOpt{
		jetstream.WithPublishAsyncTimeout(s.opts.Timeout),
		jetstream.WithPublishAsyncMaxPending(1 << 20), // the relay bounds what is in flight
	}
	if s.opts.Domain != "" {
		s.js, err = jetstream.NewWithDomain(s.conn, s.opts.Domain, more...)
	} else {
		s.js, err = jetstream.New(s.conn, more...)
	}
	if err != nil {
		return fmt.Errorf("nats: %w", err)
	}
	if s.opts.Stream == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.opts.Timeout)
	defer cancel()
	_, err = s.js.Stream(ctx, s.opts.Stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		if !s.opts.Create {
			return fmt.Errorf("nats: stream %q does not exist: create it, or add create=true", s.opts.Stream)
		}
		_, err = s.js.CreateStream(ctx, jetstream.StreamConfig{
			Name: s.opts.Stream, Subjects: s.opts.Subjects, Storage: jetstream.FileStorage,
			Replicas: s.opts.Replicas, Duplicates: s.opts.DedupWindow,
		})
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another client was faster
			err = nil
		}
		if err != nil {
			return s.classifyAPI(fmt.Errorf("create stream %q: %w", s.opts.Stream, err))
		}
	}
	if err != nil {
		return s.classifyAPI(fmt.Errorf("look for stream %q: %w", s.opts.Stream, err))
	}
	return nil
}

// classifyAPI marks temporary errors of the JetStream API as unavailable.
func (s *Sink) classifyAPI(err error) error {
	var api *jetstream.APIError
	if errors.As(err, &api) && api.Code < 500 {
		return fmt.Errorf("nats: %w", err)
	}
	return outbox.Unavailable(fmt.Errorf("nats: %w", err))
}

// String returns the address without a login.
func (s *Sink) String() string { return s.opts.String() }

// Repeats implements [outbox.Repeater].
func (s *Sink) Repeats() uint64 { return s.repeats.Load() }

// Close closes the connection.
func (s *Sink) Close() error {
	s.conn.Close()
	s.js.CleanupPublisher()
	return nil
}

// Publish implements [outbox.Sink].
func (s *Sink) Publish(ctx context.Context, msgs []outbox.Message) []error {
	return sink.Waves(ctx, msgs, func(ctx context.Context, wave []int, errs []error) {
		before, alarm := s.alarmed()
		acks := make([]jetstream.PubAckFuture, len(wave))
		for n, i := range wave {
			acks[n], errs[i] = s.send(&msgs[i])
		}
		for n, i := range wave {
			if errs[i] == nil {
				errs[i] = s.await(ctx, acks[n], before, &alarm)
			}
		}
		s.explain(ctx, msgs, wave, errs)
	})
}

// send sends one message.
func (s *Sink) send(m *outbox.Message) (jetstream.PubAckFuture, error) {
	subject := s.opts.Subject.Expand(m)
	if err := checkSubject(subject); err != nil {
		return nil, err
	}
	msg := &nats.Msg{Subject: subject, Data: m.Payload, Header: nats.Header{}}
	set := func(name, value string) error {
		if err := sink.CheckHeader(name, value); err != nil {
			return err
		}
		msg.Header[name] = []string{value}
		return nil
	}
	for name, value := range m.Headers {
		if err := set(name, value); err != nil {
			return nil, err
		}
	}
	if err := set(nats.MsgIdHdr, m.Identity()); err != nil {
		return nil, err
	}
	if m.Key != "" {
		if err := set(sink.HeaderKey, m.Key); err != nil {
			return nil, err
		}
	}
	if s.opts.Stream != "" {
		msg.Header[nats.ExpectedStreamHdr] = []string{s.opts.Stream}
	}
	ack, err := s.js.PublishMsgAsync(msg, jetstream.WithRetryAttempts(0))
	return ack, s.classify(err)
}

// maxSubject leaves room for the rest of the protocol line. Servers close the connection for
// lines of more than 4096 bytes (max_control_line).
const maxSubject = 3500

// checkSubject returns an error for subjects that cannot be published to.
func checkSubject(subject string) error {
	if len(subject) > maxSubject {
		return outbox.Invalid(fmt.Errorf("nats: the subject has %d bytes, at most %d are possible", len(subject), maxSubject))
	}
	valid := subject != "" && subject[0] != '$' && !strings.ContainsAny(subject, " \t\r\n\x00")
	for token := range strings.SplitSeq(subject, ".") {
		valid = valid && token != "" && token != "*" && token != ">"
	}
	if !valid {
		return outbox.Invalid(fmt.Errorf("nats: %q cannot be a subject of a message", subject))
	}
	return nil
}

// await waits for the confirmation of one message. The server does not answer a message to a
// forbidden subject; it reports that separately, as alarm says, and answers all others. before
// is the value of refused when the message was sent.
func (s *Sink) await(ctx context.Context, ack jetstream.PubAckFuture, before int, alarm *<-chan struct{}) error {
	for {
		if subject := ack.Msg().Subject; s.isDenied(subject, before) {
			return outbox.Doubtful(fmt.Errorf("nats: publishing to %q is not allowed", subject))
		}
		select {
		case stored := <-ack.Ok():
			if stored != nil && stored.Duplicate {
				s.repeats.Add(1)
			}
			return nil
		case err := <-ack.Err():
			if errors.Is(err, nats.ErrDisconnected) || errors.Is(err, nats.ErrConnectionClosed) {
				return outbox.Broken(fmt.Errorf("nats: the connection was lost before the answer: %w", err))
			}
			return s.classify(err)
		case <-ctx.Done():
			return ctx.Err()
		case <-*alarm:
			_, *alarm = s.alarmed()
		}
	}
}

// classify converts an error of the client library to the error of its message.
func (s *Sink) classify(err error) error {
	if err == nil {
		return nil
	}
	wrapped := fmt.Errorf("nats: publish: %w", err)
	var api *jetstream.APIError
	switch {
	case errors.Is(err, nats.ErrReconnectBufExceeded): // there is no connection, and nothing is kept for one
		if why := s.connectionError(); why != nil {
			return outbox.Unavailable(fmt.Errorf("nats: publish: there is no connection: %w", why))
		}
	case errors.Is(err, jetstream.ErrNoStreamResponse):
		return wrapped // see explain
	case errors.Is(err, nats.ErrMaxPayload), errors.Is(err, nats.ErrBadSubject), errors.Is(err, nats.ErrInvalidMsg),
		errors.Is(err, nats.ErrBadHeaderMsg):
		return outbox.Invalid(fmt.Errorf("%w (the server takes %d bytes)", wrapped, s.conn.MaxPayload()))
	case errors.As(err, &api) && full[api.ErrorCode]:
		return outbox.Busy(wrapped)
	case errors.As(err, &api) && api.ErrorCode == messageTooLarge:
		return outbox.Invalid(wrapped)
	case errors.As(err, &api) && api.Code >= 400 && api.Code < 500:
		return outbox.Reject(wrapped)
	}
	return outbox.Unavailable(wrapped)
}

// messageTooLarge is the error for messages above a stream's max_msg_size.
const messageTooLarge jetstream.ErrorCode = 10054

// full are the errors of a stream that is full. The message is not the reason, although the
// server answers with the code of a bad request.
var full = map[jetstream.ErrorCode]bool{
	10047: true, // insufficient storage resources available
	10028: true, // memory resources exceeded for account
	10002: true, // resource limits exceeded for account
	10077: true, // maximum messages or bytes exceeded, discard new
	10109: true, // stream is sealed
	10122: true, // stream is offline
}

// explain finds out, for each subject that got no answer, whether no stream has the subject, or
// its stream is unavailable.
func (s *Sink) explain(ctx context.Context, msgs []outbox.Message, wave []int, errs []error) {
	known := map[string]error{}
	for _, i := range wave {
		if !errors.Is(errs[i], jetstream.ErrNoStreamResponse) {
			continue
		}
		subject := s.opts.Subject.Expand(&msgs[i])
		if _, ok := known[subject]; !ok {
			known[subject] = s.whyNoStream(ctx, subject)
		}
		errs[i] = known[subject]
	}
}

func (s *Sink) whyNoStream(ctx context.Context, subject string) error {
	ask, cancel := context.WithTimeout(ctx, s.opts.Timeout)
	defer cancel()
	stream, err := s.js.StreamNameBySubject(ask, subject)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return fmt.Errorf("nats: no stream has the subject %q", subject)
	case err != nil:
		return outbox.Unavailable(fmt.Errorf("nats: look for the stream of %q: %w", subject, err))
	}
	return outbox.Unavailable(fmt.Errorf("nats: stream %q does not answer", stream))
}

// noteError looks in asynchronous errors for forbidden subjects:
//
//	nats: permissions violation: Permissions Violation for Publish to "orders"
func (s *Sink) noteError(err error) {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return
	}
	_, rest, ok := strings.Cut(err.Error(), `Publish to "`)
	subject, _, closed := strings.Cut(rest, `"`)
	if !ok || !closed {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused++
	s.denied[subject] = s.refused
	close(s.alarm)
	s.alarm = make(chan struct{})
}

func (s *Sink) alarmed() (refused int, alarm <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refused, s.alarm
}

// isDenied reports whether the subject was forbidden after refused had the value before.
func (s *Sink) isDenied(subject string, before int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.denied[subject] > before
}

// clearDenied forgets forbidden subjects: a new connection may have other permissions.
func (s *Sink) clearDenied() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = nil
	clear(s.denied)
}

// connectionError returns why there is no connection, if that is known. The library reports attempts
// that reached no server by a callback, and others by LastError.
func (s *Sink) connectionError() error {
	if err := s.conn.LastError(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.away
}
