package mysql

import "github.com/weirdb/weir/internal/wire/mywire"

// This file implements the console's commands on a pool and on a client.

// Pause implements core.Pool.
func (p *pool) Pause() {
	p.l.srv.askAgain()
	p.facts.known = false
	p.HoldBack()
}

// Reconnect implements core.Pool.
func (p *pool) Reconnect() {
	if !p.Replaceable() {
		p.l.srv.Log.Warn("connections are kept: weir has nothing to log in with as their user", "pool", p.key.String(), "connections", len(p.Backends))
	}
	p.l.srv.askAgain()
	p.renew()
}

// pausedError is the error for clients that have waited too long for a paused pool.
func (p *pool) pausedError() *mywire.Error {
	return mywire.NewError(mywire.ErrTooManyConnections,
		"weir: query_wait_timeout: database '%s' is paused, and was not resumed within %s (RESUME on the admin console lets statements run again)", p.key.database, p.Limits.QueueTimeout)
}

// Kill implements core.Client.
func (c *client) Kill() { c.disconnect(func(*mywire.Error) {}) }
