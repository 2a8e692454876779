package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file closes idle connections of weir's own when the server has none left. The pools of
// other users and databases may hold many that are not needed
// now, while one that has none waits.

const (
	// roomWait is the first wait before weir asks the server again, which doubles with
	// each attempt: the server needs a moment to notice that a connection was closed.
	roomWait = 5 * time.Millisecond
	// maxRoomWait is the last one. The server's answer after that is final.
	maxRoomWait = 640 * time.Millisecond
	// roomIdle is how long a connection must have been free before it is closed for a pool that has
	// others.
	roomIdle = time.Second
)

// withRoom calls dial, which opens a connection for a user and a database, again as long as
// the server refuses it for lack of connections and there was an idle one to close.
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
// whose: those of a user or of a database, or, if both are empty, any.
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

// makeRoom closes a free backend for a pool, and reports
// whether there was one. whose says of which there are too many. For a pool that has backends,
// recently used ones are not closed.
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
// whose names one, and with spare only after roomIdle. It reports whether there
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
