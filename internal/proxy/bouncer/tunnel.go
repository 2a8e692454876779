package bouncer

import (
	"context"
	"io"
	"net"
	"time"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file handles replication connections. They are not shared: each has a server
// connection of its own, which ends with it, and bytes are forwarded unread.

// tunnel connects a replication client to the server, within the pool's limits.
func (l *login) tunnel(ctx context.Context, user string) error {
	most := given(l.db.PoolSize, l.st.Number("default_pool_size"))
	l.d.mu.Lock()
	room := l.d.tunnels[l.database]
	if room == nil || cap(room) != most {
		room = make(chan struct{}, max(1, most))
		l.d.tunnels[l.database] = room
	}
	l.d.mu.Unlock()
	wait, cancel := context.WithTimeout(ctx, l.st.options().QueueTimeout)
	defer cancel()
	select {
	case room <- struct{}{}:
		defer func() { <-room }()
	case <-wait.Done():
		return l.fatal(refusal("query_wait_timeout"))
	}
	l.d.b.srv.Way.MakeRoom(ctx, l.database, user, most-len(room))
	route := l.d.Route(l.database, user)
	var err error = refusal("no such database: %s", l.database)
	var be *pgwire.Backend
	for i := range route.Hosts {
		h := route.Hosts[(route.From+i)%len(route.Hosts)]
		h.User = user
		if h.Password == "" && h.Keys == nil {
			h.Password, h.Keys = l.d.b.srv.Way.KeysOf(user)
		}
		h.Params = append([]pgwire.Param{{Name: "replication", Value: l.replication}}, h.Params...)
		if l.startup.options != "" {
			h.Params = append(h.Params, pgwire.Param{Name: "options", Value: l.startup.options})
		}
		if l.startup.app != "" {
			h.Params = append(h.Params, pgwire.Param{Name: "application_name", Value: l.startup.app})
		}
		for _, s := range l.startup.settings {
			h.Params = append(h.Params, pgwire.Param{Name: s.Name, Value: s.Value})
		}
		if be, err = pgwire.Connect(ctx, h); err == nil {
			break
		}
	}
	if err != nil {
		l.d.b.log.Info("server login failed", "database", l.database, "user", user, "address", "", "error", err)
		return l.fatal(refusal("login failed"))
	}
	defer be.Conn.Close()
	if err := be.Conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	if err := l.v.Conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	var out []byte
	for _, p := range be.Params {
		out = pgwire.AppendParameterStatus(out, p.Name, p.Value)
	}
	out = pgwire.AppendBackendKeyData(out, be.PID, be.Secret)
	if _, err := l.v.Conn.Write(pgwire.AppendReadyForQuery(out, pgwire.StatusIdle)); err != nil {
		return nil // the client has gone
	}
	l.d.b.seen(l.database)
	stop := context.AfterFunc(ctx, func() { _ = be.Conn.Close() })
	defer stop()
	splice(l.v.Conn, be.Conn)
	return nil
}

func (l *login) fatal(e *pgwire.Error) error {
	l.failed(e.Message)
	_, _ = l.v.Conn.Write(pgwire.AppendError(nil, e)) // the client may be gone; e is what matters
	return e
}

// splice copies both ways until either side ends.
func splice(a, b net.Conn) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(a, b) // it does not matter which side has ended it
		_ = a.Close()
	}()
	_, _ = io.Copy(b, a)
	_ = b.Close()
	<-done
}
