package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Sink takes messages to a broker.
type Sink interface {
	// Publish sends the messages and returns when the broker has confirmed or
	// refused each. The result is nil when all are confirmed; otherwise it has
	// one entry per message, nil for those that are confirmed. Messages of one
	// key are in msgs in their order; Publish never sends one of them before all
	// earlier ones of its key in the same call have been confirmed. For the
	// messages that this holds back it returns ErrHeldBack.
	//
	// There are seven kinds of errors:
	//
	//   - [Invalid]: the message can never be accepted, because of its size or
	//     form. It becomes a dead letter.
	//   - [Reject]: the message was refused for good. It becomes a dead letter,
	//     unless its destination refuses all.
	//   - [Unavailable]: the broker, or the part of it that has the destination,
	//     cannot be reached. No message is to blame: all wait, or only those of
	//     the destination if others are accepted. Messages that were not sent
	//     because of this are held back.
	//   - [Busy]: the destination accepts no messages now. Only its messages wait.
	//   - [Doubtful] and [Broken]: the fault may be the message's or the
	//     destination's. This uses up an attempt if the destination is seen to
	//     accept others.
	//   - Any other error uses up an attempt, unless the destination is seen to
	//     accept none.
	//
	// [RetryAfter] names the wait for any of them.
	//
	// Several goroutines call Publish concurrently, but never for the same key.
	// When ctx ends it returns soon, with ctx's error for messages that are not
	// confirmed. It does not keep msgs or their payloads.
	Publish(ctx context.Context, msgs []Message) []error

	// Close disconnects from the broker. Nothing is published afterwards.
	Close() error
}

// Repeater is a sink whose broker remembers messages that it has had.
type Repeater interface {
	// Repeats is how many messages the broker confirmed and dropped, because it
	// had had them before.
	Repeats() uint64
}

// ErrHeldBack is a sink's error for a message that it did not send, because an
// earlier one of the same key failed in the same call, or so many others did that
// the sink gave up the call.
var ErrHeldBack = errors.New("outbox: held back behind an earlier message of its key")

type rejection struct {
	err    error
	proven bool // whatever the destination is like
}

func (e *rejection) Error() string { return e.err.Error() }
func (e *rejection) Unwrap() error { return e.err }

// Reject marks a refusal that is final for its message. The message goes to the dead
// letters at once; but when three were refused and the destination has taken none
// since, it may be the destination that is set up wrong: the third and later ones wait
// for it and spend no attempt. While a relay has not seen the destination take any, one
// at most is given up, when it was refused three times.
func Reject(err error) error { return &rejection{err, false} }

// Invalid is Reject for a message that is found to be too large or malformed in
// itself, whatever its destination takes. It goes to the dead letters at once.
func Invalid(err error) error { return &rejection{err, true} }

// IsRejected reports whether err was marked by Reject or Invalid.
func IsRejected(err error) bool {
	var e *rejection
	return errors.As(err, &e)
}

// IsInvalid reports whether err was marked by Invalid.
func IsInvalid(err error) bool {
	var e *rejection
	return errors.As(err, &e) && e.proven
}

type unavailability struct{ err error }

func (e *unavailability) Error() string { return e.err.Error() }
func (e *unavailability) Unwrap() error { return e.err }

// Unavailable marks an error as the broker's: it cannot be reached, refuses
// logins, is full or asks to slow down. The relay waits and tries again, and no
// message spends an attempt. Where the broker confirms other messages, it is that
// of the message's destination, as with [Busy]; where those go to the same destination,
// it is that of a part of it, and the message's key alone waits (see [Parter]).
func Unavailable(err error) error { return &unavailability{err} }

// IsUnavailable reports whether err was marked by Unavailable.
func IsUnavailable(err error) bool {
	var e *unavailability
	return errors.As(err, &e)
}

type condition struct {
	err  error
	kind failureKind
	link bool // the connection is gone
}

func (e *condition) Error() string { return e.err.Error() }
func (e *condition) Unwrap() error { return e.err }

// Busy marks an error that concerns the message's destination: a queue or a
// stream is full. Its messages wait without using up an attempt; other
// destinations continue.
func Busy(err error) error { return &condition{err: err, kind: busy} }

// Doubtful marks an error that may be the message's or its destination's: access
// denied, too many requests, service unavailable, a request cut off. It spends an
// attempt only while the destination is seen to take other messages.
func Doubtful(err error) error { return &condition{err: err, kind: doubtful} }

// Broken is Doubtful for all messages that were on their way over one connection
// when it broke. The relay sends them again, by halves and with nothing beside
// them, so that one that breaks the connection each time stands alone.
func Broken(err error) error { return &condition{err: err, kind: doubtful, link: true} }

// IsBroken reports whether err was marked by Broken.
func IsBroken(err error) bool {
	var e *condition
	return errors.As(err, &e) && e.link
}

// IsBusy reports whether err was marked by Busy.
func IsBusy(err error) bool { return kindOf(err) == busy }

// IsDoubtful reports whether err was marked by Doubtful or Broken.
func IsDoubtful(err error) bool { return kindOf(err) == doubtful }

func kindOf(err error) failureKind {
	var e *condition
	switch {
	case IsUnavailable(err):
		return absent
	case IsRejected(err):
		return refused
	case errors.As(err, &e):
		return e.kind
	}
	return faulty
}

type retryAfter struct {
	err error
	d   time.Duration
}

func (e *retryAfter) Error() string { return fmt.Sprintf("%v (retry after %v)", e.err, e.d) }
func (e *retryAfter) Unwrap() error { return e.err }

// RetryAfter is an error that spends an attempt, whose back-off the broker has
// named.
func RetryAfter(err error, d time.Duration) error { return &retryAfter{err, d} }

// retryDelay is what RetryAfter named.
func retryDelay(err error) (time.Duration, bool) {
	var e *retryAfter
	if errors.As(err, &e) {
		return e.d, true
	}
	return 0, false
}
