package postgres

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/weirdb/weir/internal/proxy/upstream"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file is about logins while the server accepts none, because it starts, stops
// or is restarted. They wait, as statements do, for at most ConnectPatience. A few of
// them try on behalf of all, so that a recovering server is not flooded; and the log
// has one line when the server went away and one when it is back, not one for each login.

const (
	// awayTries is how many logins at a time try to reach the server.
	awayTries = 4
	// awayPause is the pause of each between two attempts.
	awayPause = 100 * time.Millisecond
)

// An availability tracks whether the server accepts logins. Safe for concurrent use.
type availability struct {
	slots chan struct{} // one for each attempt

	mu    sync.Mutex
	back  chan struct{} // guarded by mu: closed when it accepts logins again; nil while it does
	since time.Time     // guarded by mu
	err   error         // guarded by mu: of the last attempt
}

func (a *availability) init() { a.slots = make(chan struct{}, awayTries) }

// isAway reports whether an error means that the server accepts no logins at present,
// regardless of the role.
func isAway(err error) bool {
	return pgwire.Unavailable(err) || isAny(err, upstream.ErrNoHost, syscall.ECONNREFUSED, syscall.ENOENT)
}

// hasLeft reports whether a connection to the server has failed for a reason that has nothing to
// do with the request: a stopping server resets connections that it has not accepted.
func hasLeft(err error) bool {
	if pgwire.CodeOf(err) == pgwire.CodeTooManyConnections {
		return false // it is there
	}
	return isAway(err) || errors.Is(err, pgwire.ErrNoAnswer) ||
		pgwire.CodeOf(err) == "" && isAny(err, syscall.ECONNRESET, syscall.EPIPE, io.EOF, io.ErrUnexpectedEOF)
}

func isAny(err error, of ...error) bool {
	return slices.ContainsFunc(of, func(e error) bool { return errors.Is(err, e) })
}

// waiting returns a channel that is closed when the server accepts logins again, nil if it
// does, and why it does not.
func (a *availability) waiting() (back <-chan struct{}, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.back, a.err
}

// left records that an attempt could not reach the server.
func (a *availability) left(err error, log *slog.Logger) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err = err
	if a.back == nil {
		a.back, a.since = make(chan struct{}), time.Now()
		log.Warn("the server takes no logins; they wait", "error", err)
	}
}

// returned records that an attempt has reached it.
func (a *availability) returned(log *slog.Logger) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.back != nil {
		close(a.back)
		a.back, a.err = nil, nil
		log.Info("the server takes logins again", "after", time.Since(a.since).Round(time.Millisecond))
	}
}

// patiently calls try, again while away returns true for its error, and
// returns the error of the last attempt.
func (s *Server) patiently(ctx context.Context, away func(error) bool, try func() error) error {
	a := &s.away
	if back, _ := a.waiting(); back == nil {
		err := try()
		if !away(err) {
			return err
		}
		a.left(err, s.Log)
	}
	patience, cancel := context.WithTimeout(ctx, s.Patience())
	defer cancel()
	for {
		back, err := a.waiting()
		if back == nil {
			if err = try(); !away(err) || patience.Err() != nil {
				return err
			}
			a.left(err, s.Log)
			continue
		}
		select {
		case <-patience.Done():
			return err
		case <-back:
		case a.slots <- struct{}{}:
			err := try()
			if away(err) {
				a.left(err, s.Log)
				select {
				case <-time.After(awayPause):
				case <-patience.Done():
				}
			} else {
				a.returned(s.Log)
			}
			<-a.slots
			if !away(err) || patience.Err() != nil {
				return err
			}
		}
	}
}
