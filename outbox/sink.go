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
	// key lie in msgs in their order; Publish never lets one of them reach the
	// broker when an earlier one of its key and the same call has not been
	// confirmed (for the ones held back by this it returns ErrHeldBack).
	//
	// An error is of one of four kinds: [Reject] (this message will never be
	// taken: it goes to the dead letters), [Unavailable] (the broker cannot be
	// reached or is overloaded: the message is not to blame, no attempt is
	// spent), [RetryAfter], and any other (one attempt is spent, the message is
	// tried again after a back-off).
	//
	// It is called from several goroutines at once, never for one key at the
	// same time. When ctx ends it returns soon, with ctx's error for what is not
	// confirmed. It does not keep msgs or their payloads.
	Publish(ctx context.Context, msgs []Message) []error

	// Close lets go of the broker. Nothing is published afterwards.
	Close() error
}

// ErrHeldBack is a sink's answer for a message that it did not send because an
// earlier one of the same key failed in the same call.
var ErrHeldBack = errors.New("outbox: held back behind an earlier message of its key")

type rejection struct{ err error }

func (e *rejection) Error() string { return e.err.Error() }
func (e *rejection) Unwrap() error { return e.err }

// Reject marks an error as final for its message: too large, malformed, topic
// refused. The message goes to the dead letters at once.
func Reject(err error) error { return &rejection{err} }

// IsRejected reports whether err was marked by Reject.
func IsRejected(err error) bool {
	var e *rejection
	return errors.As(err, &e)
}

type unavailability struct{ err error }

func (e *unavailability) Error() string { return e.err.Error() }
func (e *unavailability) Unwrap() error { return e.err }

// Unavailable marks an error as the broker's: it cannot be reached, refuses
// logins, is full or asks to slow down. The relay waits and tries again, and no
// message spends an attempt.
func Unavailable(err error) error { return &unavailability{err} }

// IsUnavailable reports whether err was marked by Unavailable.
func IsUnavailable(err error) bool {
	var e *unavailability
	return errors.As(err, &e)
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
