package mysql

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/weirdb/weir/internal/wire/mywire"
)

// When the server refuses a connection because there are too many, weir closes idle ones of its
// own. Its pools, one for each class of clients, may hold many connections that they do not
// need now, while the server refuses one that another of weir's clients needs.

const (
	// roomWait is the pause before the first retry, which doubles with each attempt: the server
	// takes a moment to notice that a connection was closed, and logins in progress need theirs
	// no longer than that.
	roomWait = 5 * time.Millisecond
	// maxRoomWait is the last pause. After that the server's error stands.
	maxRoomWait = 640 * time.Millisecond
)

// withRoom calls dial, and calls it again while the server refuses it because of too many
// connections.
func (d *dialer) withRoom(ctx context.Context, user string, dial func() error) error {
	s := d.srv
	if err := s.shut.check(s.Monotonic()); err != nil {
		return err
	}
	for wait := roomWait; ; wait *= 2 {
		err := s.shut.note(dial(), s.Monotonic(), s.Log)
		switch full, anyones := lacksRoom(err); {
		case !full || wait > maxRoomWait:
			return err
		case anyones:
			user = ""
			s.Quotas.Cramp(s.Monotonic())
		}
		s.makeRoom(ctx, user)
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait):
		}
	}
}

// lacksRoom reports whether the server refuses a connection because there are too many: of all
// users (anyones), or of this user. Other limits of an account have the same error number, such
// as that of logins per hour.
func lacksRoom(err error) (full, anyones bool) {
	var e *mywire.Error
	if !errors.As(err, &e) {
		return false, false
	}
	switch e.Code {
	case mywire.ErrTooManyConnections:
		return true, true
	case mywire.ErrUserLimit:
		return true, false
	case mywire.ErrResourceLimit:
		return strings.Contains(e.Message, "'max_user_connections'"), false
	}
	return false, false
}

// makeRoom closes an unneeded backend of the given user or, if that is empty, of any user. It
// does nothing if there is none.
func (d *dialer) makeRoom(ctx context.Context, user string) {
	for _, l := range d.srv.Loops {
		closed := false
		if err := l.Call(ctx, func() { closed = l.closeIdlest(user) }); err == nil && closed {
			return
		}
	}
}

// closeIdlest closes the backend that has been free for longest, and reports whether there was
// one.
func (l *loop) closeIdlest(user string) bool {
	var idlest *backend
	for _, p := range l.PoolList {
		if user != "" && p.key.user != user {
			continue
		}
		if b, since, ok := p.ConnManager().Idlest(); ok && (idlest == nil || since < idlest.FreeSince) {
			idlest = b
		}
	}
	if idlest == nil {
		return false
	}
	l.srv.Log.Debug("idle backend closed: the server has no connection left", "pool", idlest.p.key.String(), "connection", idlest.id)
	idlest.Goodbye()
	return true
}

// A blockedHost remembers that the server has blocked weir's host, as it does after
// max_connect_errors connections that ended in the middle of their handshake. The server
// refuses each further attempt, and logs it.
type blockedHost struct {
	mu    sync.Mutex
	until time.Duration // guarded by mu: no attempt before this
	wait  time.Duration // guarded by mu
	err   error         // guarded by mu
}

const (
	shutWait    = time.Second
	maxShutWait = 15 * time.Second
)

func (d *blockedHost) check(now time.Duration) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if now < d.until {
		return d.err
	}
	return nil
}

// note records the outcome of an attempt, and returns it as an error that says what to do.
func (d *blockedHost) note(err error, now time.Duration, log *slog.Logger) error {
	blocked := mywire.CodeOf(err) == mywire.ErrHostBlocked
	if err != nil && !blocked {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !blocked {
		d.until, d.wait = 0, 0
		return nil
	}
	var said *mywire.Error
	errors.As(err, &said)
	d.wait = min(max(2*d.wait, shutWait), maxShutWait)
	d.until = now + d.wait
	d.err = mywire.NewError(mywire.ErrHostBlocked,
		"weir: the server has blocked weir's host: run FLUSH HOSTS there (mariadb-admin flush-hosts), and see its max_connect_errors; it says: %s", said.Message)
	log.Error("the server has blocked weir's host", "error", said, "tried_again_in", d.wait)
	return d.err
}
