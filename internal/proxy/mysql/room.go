package mysql

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/mywire"
)

// This file is what weir does when the server has no connection left: it gives
// back idle ones of its own. A pool for each class of clients may hold many that
// nobody needs now, while somebody else of weir's own clients is refused.

const (
	// roomWait is the first wait before the server is asked again, which doubles
	// with each attempt: it takes a moment to notice that a connection was closed,
	// and a login under way needs its own no longer than that.
	roomWait = 5 * time.Millisecond
	// maxRoomWait is the last one. What the server says then stands.
	maxRoomWait = 640 * time.Millisecond
)

// withRoom calls dial, and again while the server refuses it for want of
// connections.
func (s *Server) withRoom(ctx context.Context, user string, dial func() error) error {
	for wait := roomWait; ; wait *= 2 {
		err := dial()
		switch full, anyones := lacksRoom(err); {
		case !full || wait > maxRoomWait:
			return err
		case anyones:
			user = ""
		}
		s.makeRoom(ctx, user)
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait):
		}
	}
}

// lacksRoom tells whether the server refuses a connection because there are too
// many; of any users, or of this one. Other limits of an account have the same
// number, such as that of logins per hour.
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

// makeRoom closes a backend that nobody needs at the moment, of the given user
// or, if that is empty, of any. Where there is none, nothing can be done.
func (s *Server) makeRoom(ctx context.Context, user string) {
	for _, l := range s.loops {
		closed := false
		if err := l.Call(ctx, func() { closed = l.closeIdlest(user) }); err == nil && closed {
			return
		}
	}
}

// closeIdlest closes the backend that has been free for longest, and reports
// whether there was one.
func (l *loop) closeIdlest(user string) bool {
	var idlest *backend
	for _, p := range l.poolList {
		if user != "" && p.key.user != user || !p.replaceable() {
			continue
		}
		for _, b := range p.free {
			if idlest == nil || b.freeSince < idlest.freeSince {
				idlest = b
			}
		}
	}
	if idlest == nil {
		return false
	}
	l.srv.log.Debug("idle backend closed: the server has no connection left", "pool", idlest.p.key.String(), "connection", idlest.id)
	idlest.goodbye()
	return true
}
