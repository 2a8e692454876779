package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file is what weir does when the server has no connection left: it gives back idle
// ones of its own. The pools of other users and databases may hold many that nobody needs
// now, while one that has none waits.

const (
	// roomWait is the first wait before the server is asked again, which doubles with
	// each attempt: it takes a moment to notice that a connection was closed.
	roomWait = 5 * time.Millisecond
	// maxRoomWait is the last one. What the server says then stands.
	maxRoomWait = 640 * time.Millisecond
	// roomIdle is how long a connection has been free that is closed for a pool that has
	// others.
	roomIdle = time.Second
)

// withRoom calls dial, which opens a connection for a user and a database, and again while
// the server refuses it for want of connections and there was an idle one to close.
func (h *hosts) withRoom(ctx context.Context, key poolKey, dial func() error) error {
	for wait := roomWait; ; wait *= 2 {
		err := dial()
		whose, full := lacksRoom(err, key)
		if !full {
			return err
		}
		if whose == (poolKey{}) {
			h.srv.Quotas.Cramp(h.srv.Monotonic())
		}
		if wait > maxRoomWait || !h.makeRoom(ctx, key, whose) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait):
		}
	}
}

// lacksRoom reports whether the server refuses a connection because there are too many, and
// whose: those of a user or of a database, or, if both are empty, of anybody.
func lacksRoom(err error, key poolKey) (whose poolKey, full bool) {
	var e *pgwire.Error
	if !errors.As(err, &e) || e.Code != pgwire.CodeTooManyConnections {
		return whose, false
	}
	switch e.Routine { // the message may be in any language
	case "InitializeSessionUserId":
		whose.user = key.user
	case "CheckMyDatabase":
		whose.database = key.database
	}
	return whose, true
}

// makeRoom closes a backend that nobody needs at the moment, for a pool, and reports
// whether there was one. whose says which are too many. A pool that has backends takes no
// other's that was used lately.
func (h *hosts) makeRoom(ctx context.Context, key, whose poolKey) bool {
	has := false
	for _, l := range h.srv.Loops {
		if l.Call(ctx, func() {
			p := l.Pools[key]
			has = has || p != nil && len(p.Backends) > 0
		}) != nil {
			return false
		}
	}
	for _, l := range h.srv.Loops {
		closed := false
		if err := l.Call(ctx, func() { closed = l.closeIdlest(whose, has) }); err == nil && closed {
			return true
		}
	}
	return false
}

// closeIdlest closes the backend that has been free for longest, of a user or database if
// whose names one, and only after roomIdle if it is to be spare. It reports whether there
// was one.
func (l *loop) closeIdlest(whose poolKey, spare bool) bool {
	var idlest *backend
	for _, p := range l.PoolList {
		if whose.user != "" && p.key.user != whose.user || whose.database != "" && p.key.database != whose.database {
			continue
		}
		b, since, ok := p.ConnManager().Idlest()
		if ok && (!spare || l.Now-since >= roomIdle) && (idlest == nil || since < idlest.FreeSince) {
			idlest = b
		}
	}
	if idlest == nil {
		return false
	}
	l.srv.Log.Debug("idle backend closed: the server has no connection left", "pool", idlest.p.key.String(), "pid", idlest.pid)
	idlest.Goodbye()
	return true
}
