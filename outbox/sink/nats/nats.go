// Package nats publishes messages to NATS JetStream.
//
// The subject is the topic unless [Options.Subject] says otherwise. The
// identity of a message is Nats-Msg-Id, by which its stream drops duplicates
// within its window; the key is the header weir-key; headers are carried under
// their names.
//
// Messages of different keys are in flight concurrently; a message of a key is
// sent when the one before it has been stored. How durable a stored message is
// depends on the server: one that is older than 2.10, or not configured
// otherwise, flushes files to disk some time after it has confirmed.
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

// New connects and checks that the stream of the options exists. An error
// marked by [outbox.Unavailable] may pass by itself.
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

// settings are those of the connection. It is tried for ever to have it again,
// at once the first time and every quarter second then, also when the login is
// refused: anyone who runs the server may be in the middle of changing that. What
// is published meanwhile fails at once.
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

// begin makes the handle of JetStream and checks the stream.
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
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // somebody else was faster
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

// classifyAPI marks what the server may get over by itself.
func (s *Sink) classifyAPI(err error) error {
	var api *jetstream.APIError
	if errors.As(err, &api) && api.Code < 500 {
		return fmt.Errorf("nats: %w", err)
	}
	return outbox.Unavailable(fmt.Errorf("nats: %w", err))
}

// String is the address without a login.
func (s *Sink) String() string { return s.opts.String() }

// Repeats implements [outbox.Repeater].
func (s *Sink) Repeats() uint64 { return s.repeats.Load() }

// Close ends the connection.
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

// send puts one message on its way.
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

// maxSubject leaves room for the rest of the line that carries it, of which
// servers take 4096 bytes (max_control_line) and close the connection for more.
const maxSubject = 3500

// checkSubject refuses what the server would take for something else than a
// place to store a message.
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

// await waits for the confirmation of one message. The server does not answer
// a message that it forbids; that comes as an alarm, and the answers of all
// others will come. before is what refused was when the message left.
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

// classify says what an error of the client library means for its message.
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

// messageTooLarge is more than a stream takes (max_msg_size).
const messageTooLarge jetstream.ErrorCode = 10054

// full are the refusals of a stream that has no room, which are no fault of the
// message although the server answers them with the code of a bad request.
var full = map[jetstream.ErrorCode]bool{
	10047: true, // insufficient storage resources available
	10028: true, // memory resources exceeded for account
	10002: true, // resource limits exceeded for account
	10077: true, // maximum messages or bytes exceeded, discard new
	10109: true, // stream is sealed
	10122: true, // stream is offline
}

// explain finds out, for each subject of which no server answered, whether no
// stream has it, which is the message's own fault, or whether the stream is
// not there at the moment.
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

// noteError looks at what the server says on its own for a forbidden subject:
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

// isDenied reports whether the subject was forbidden after refused was before.
func (s *Sink) isDenied(subject string, before int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.denied[subject] > before
}

// forgive forgets what was forbidden: a new connection has the permissions of
// its own time.
func (s *Sink) clearDenied() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = nil
	clear(s.denied)
}

// whyAway is why there is no connection, as far as that is known. The library
// tells of attempts that reached no server by its callback, of others by the last
// error.
func (s *Sink) connectionError() error {
	if err := s.conn.LastError(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.away
}
