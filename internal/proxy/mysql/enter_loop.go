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
func (a *loginAttempt) sit(sits func()) error {
	s := a.server()
	database, user := a.key.database, a.key.user
	if err := s.SessionCounts.Enter(s.Options(), database, user); err != nil {
		return mywire.NewError(mywire.ErrTooManyConnections, "weir: %v", err)
	}
	unread := netloop.Unread(a.wire.Conn)
	fd, err := netloop.Detach(s.DialCtx, a.wire.Conn, &s.Background)
	if err != nil {
		s.SessionCounts.Leave(database, user)
		return err
	}
	sits()
	l := a.c.l
	l.Given() // OnClosed takes it back
	if !l.Post(func() { l.admit(a, fd, unread) }) {
		_ = unix.Close(fd)
		l.Taken()
		s.Left(a.c.id)
		s.SessionCounts.Leave(database, user)
		if a.donated != nil {
			a.donated.close()
		}
	}
	return nil
}

// admit adds a logged-in client to the loop. unread are bytes that were already read from its
// socket.
func (l *loop) admit(a *loginAttempt, fd int, unread []byte) {
	c := a.c
	l.prepare(a)
	s, err := l.Watch(fd, c)
	if err != nil {
		l.srv.Log.Error("cannot watch client socket", "error", err)
		_ = unix.Close(fd)
		l.srv.Left(c.id)
		l.srv.SessionCounts.Leave(a.key.database, a.key.user)
		l.Taken()
		if a.donated != nil {
			a.donated.close()
		}
		return
	}
	c.s = s
	l.seat(a)
	s.Return(unread, nil)
	s.Consume()
}

// prepare gives a client its pool and the initial state of a session.
func (l *loop) prepare(a *loginAttempt) {
	c := a.c
	c.p = l.pool(a.key)
	c.since, c.idleSince, c.login.salt = l.Now, l.Now, a.wire.Salt
	c.set = l.Settings.Empty()
	c.settings.start = c.set
	c.status = a.ok.Status &^ (mywire.StatusSessionState | mywire.StatusMoreResults)
}

// seat completes admit for a client whose socket is the loop's.
func (l *loop) seat(a *loginAttempt) {
	c := a.c
	l.Clients[c.id] = c
	if a.refused {
		c.restoreSession(a.former) // it has got the error
	} else {
		l.welcome(a)
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
func (l *loop) welcome(a *loginAttempt) {
	c := a.c
	ok := a.ok
	if a.again {
		ok.Info, ok.State = nil, nil // servers send these only after a login
	}
	c.s.Write(a.wire.AppendWelcome(nil, &ok)) // from now on others may KILL it
	l.srv.LoginTimes.Add(a.key.database, l.Now-a.began)
	if a.donated != nil {
		base := c.p.facts.base["autocommit"]
		if base != "" && c.p.facts.mariadb && isOff(base) == autocommits(a.donated.status) { // MySQL does not report it
			// The client got the current default reported. A client that takes its writes for
			// committed must not run where they are not.
			l.srv.renew(l)
			c.set = c.p.settings.With(c.set, autocommitOf(a.donated.status)) // older connections may stay
			c.settings.start = c.set
		}
		c.p.ConnManager().TakeIn(a.donated)
	}
}
