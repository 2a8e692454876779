package mysql

import (
	"golang.org/x/sys/unix"

	"github.com/weirdb/weir/internal/proxy/netloop"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// This file moves a client that has logged in to its place on a loop.

// sit posts the client to its loop, after everything that can fail; it calls sits just before.
// An error that is an *mywire.Error is still to be sent to the client.
func (v *loginAttempt) sit(sits func()) error {
	s := v.server()
	database, user := v.key.database, v.key.user
	if err := s.SessionCounts.Enter(s.Options(), database, user); err != nil {
		return mywire.NewError(mywire.ErrTooManyConnections, "weir: %v", err)
	}
	unread := netloop.Unread(v.wire.Conn)
	fd, err := netloop.Detach(s.DialCtx, v.wire.Conn, &s.Background)
	if err != nil {
		s.SessionCounts.Leave(database, user)
		return err
	}
	sits()
	l := v.c.l
	l.Given() // OnClosed takes it back
	if !l.Post(func() { l.admit(v, fd, unread) }) {
		_ = unix.Close(fd)
		l.Taken()
		s.Left(v.c.id)
		s.SessionCounts.Leave(database, user)
		if v.donated != nil {
			v.donated.close()
		}
	}
	return nil
}

// admit adds a logged-in client to the loop. unread are bytes that were already read from its
// socket.
func (l *loop) admit(v *loginAttempt, fd int, unread []byte) {
	c := v.c
	l.prepare(v)
	s, err := l.Watch(fd, c)
	if err != nil {
		l.srv.Log.Error("cannot watch client socket", "error", err)
		_ = unix.Close(fd)
		l.srv.Left(c.id)
		l.srv.SessionCounts.Leave(v.key.database, v.key.user)
		l.Taken()
		if v.donated != nil {
			v.donated.close()
		}
		return
	}
	c.s = s
	l.seat(v)
	s.Return(unread, nil)
	s.Consume()
}

// prepare gives a client its pool and the initial state of a session.
func (l *loop) prepare(v *loginAttempt) {
	c := v.c
	c.p = l.pool(v.key)
	c.since, c.idleSince, c.login.salt = l.Now, l.Now, v.wire.Salt
	c.set = l.Settings.Empty()
	c.settings.start = c.set
	c.status = v.ok.Status &^ (mywire.StatusSessionState | mywire.StatusMoreResults)
}

// seat completes admit for a client whose socket is the loop's.
func (l *loop) seat(v *loginAttempt) {
	c := v.c
	l.Clients[c.id] = c
	if v.refused {
		c.restoreSession(v.former) // it has got the error
	} else {
		l.welcome(v)
	}
	if l.cfg.Mode == session.ModeSession {
		c.pins.add(pinMode)
	}
	c.settings.readMode()
	if l.Draining() {
		c.fatal(errShutdown())
	}
}

// welcome tells a client that its login is complete.
func (l *loop) welcome(v *loginAttempt) {
	c := v.c
	ok := v.ok
	if v.again {
		ok.Info, ok.State = nil, nil // servers send these only after a login
	}
	c.s.Write(v.wire.AppendWelcome(nil, &ok)) // from now on others may KILL it
	l.srv.LoginTimes.Add(v.key.database, l.Now-v.began)
	if v.donated != nil {
		base := c.p.facts.base["autocommit"]
		if base != "" && c.p.facts.mariadb && isOff(base) == autocommits(v.donated.status) { // MySQL does not report it
			// The client got the current default reported. A client that takes its writes for
			// committed must not run where they are not.
			l.srv.renew(l)
			c.set = c.p.settings.With(c.set, autocommitOf(v.donated.status)) // older connections may stay
			c.settings.start = c.set
		}
		c.p.ConnManager().TakeIn(v.donated)
	}
}
