package postgres

import (
	"errors"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file is what the console's commands do to a pool and to a client.

// Pause implements core.Pool.
func (p *pool) Pause() {
	p.forgetGreetings()
	p.facts.known = false
	p.HoldBack()
}

// Reconnect implements core.Pool.
func (p *pool) Reconnect() {
	if !p.Replaceable() {
		p.l.srv.Log.Warn("connections are kept: weir has nothing to log in with as their user", "pool", p.key.String(), "connections", len(p.Backends))
	}
	p.Works()
	p.renewBackends()
}

// pausedError is what those hear who have waited too long for a pool that is paused.
func (p *pool) pausedError() *pgwire.Error {
	e := pgwire.NewError(pgwire.CodeCannotConnectNow,
		"weir: query_wait_timeout: database %q is paused, and was not resumed within %s", p.key.database, p.Limits.QueueTimeout)
	e.Hint = "RESUME on the admin console lets statements run again."
	return e
}

// Kill implements core.Client.
func (c *client) Kill() {
	if c.s.Closed {
		return
	}
	if !c.transport.part {
		c.s.Write(pgwire.AppendError(nil, pgwire.NewFatal(pgwire.CodeAdminShutdown, "terminating connection due to administrator command")))
	}
	c.s.Flush()
	c.s.Close(errors.New("ended from the console"))
}
