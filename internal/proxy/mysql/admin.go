package mysql

import (
	"context"
	"slices"
	"strconv"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// This file decides who may log in to the admin console and kill sessions of others, and shows
// on the console what only this side has.

// isAdmin reports whether a user may log in to the console and kill sessions of others.
func (s *Server) isAdmin(user string) bool {
	return user != "" && user == s.cfg().MySQL.User || slices.Contains(s.cfg().AdminUsers, user)
}

// authenticateAdmin authenticates the DSN's user and the admin users, by a secret that weir
// holds, otherwise by LDAP or the server. Without a password it lets in only clients that may
// borrow weir's own access: see core.MayBorrow.
func (a *loginAttempt) authenticateAdmin(ctx context.Context) error {
	s := a.server()
	secret, known := s.creds.Secret(a.key.user)
	allowed := s.isAdmin(a.key.user)
	switch {
	case s.cfg().isPeer(a.key.user):
		var err error
		if secret, err = mywire.ParseSecret(s.cfg().PeerSecret); err != nil {
			return err
		}
	case allowed && !known && a.c.login.borrows:
		return a.wire.Trust(ctx)
	case allowed && !known && s.cfg().Auth == AuthLDAP:
		_, err := a.askLDAP(ctx, s.cfg().LDAP)
		return err
	case allowed && !known && s.cfg().relays():
		a.key.database = s.cfg().MySQL.Database
		a.wire.Response.Database = a.key.database
		return a.relay(ctx, nil)
	case !allowed:
		secret = mywire.Secret{} // fails as a wrong password does
	}
	_, err := a.wire.Authenticate(ctx, secret)
	return err
}

// Upstream implements core.Side.
func (s *Server) Upstream() string { return s.cfg().MySQL.Address }

// Database implements core.Side.
func (s *Server) Database() string { return s.cfg().MySQL.Database }

// LetGo implements core.Side.
func (s *Server) LetGo() {
	s.asker.close()
	s.lookups.idle.LetGo()
}

// Options implements core.Side.
func (s *Server) Options() *session.Options { return &s.cfg().Options }

// Settings implements core.Side.
func (s *Server) Settings() []core.Setting {
	c := s.cfg()
	return []core.Setting{
		{Key: "mysql", Value: c.MySQL.Address, Fixed: true},
		{Key: "auth", Value: c.Auth, Default: AuthAuto},
		{Key: "local_infile", Value: c.LocalInfile, Default: false},
	}
}

// Shows implements core.Side.
func (s *Server) Shows() []string { return []string{"PEERS"} }

// Show implements core.Side.
func (s *Server) Show(_ context.Context, what string) (t sight.Table, ok bool) {
	if what != "PEERS" {
		return t, false
	}
	return core.PeersTable(s.cfg().Peers), true
}

// Name implements core.Pool.
func (p *pool) Name() (database, user string) { return p.key.database, p.key.user }

// Servers implements core.Pool.
func (p *pool) Servers() []core.ServerInfo {
	list := make([]core.ServerInfo, 0, len(p.Backends))
	for _, b := range p.Backends {
		i := b.Info(b.id)
		i.Prepared, i.Settings = len(b.prepared), b.set.Len()
		if b.owner != nil {
			i.Client = b.owner.id
		}
		list = append(list, i)
	}
	return list
}

// Info implements core.Client.
func (c *client) Info() core.ClientInfo {
	i := core.ClientInfo{
		ID: c.id, Database: c.p.key.database, User: c.p.key.user, Addr: c.addr, State: c.stateName(), Pins: c.pins.held.String(),
		Prepared: len(c.stmts.byID), Since: c.since, LastUsed: c.idleSince,
		Statements: c.stats.units, Grouped: c.stats.grouped, Errors: c.stats.errors, Received: c.s.Taken, Sent: c.s.Written, Active: c.busy(), Pinned: c.pins.held != 0,
	}
	if c.state == stateWaiting {
		i.Waiting = c.queuedAt
	}
	if c.link != nil {
		i.Link = c.link.id
	}
	return i
}

// busy reports whether a command of the client is in flight or waits.
func (c *client) busy() bool { return c.inflight > 0 || c.state == stateWaiting || c.cur != nil }

// stateName names what the client is doing.
func (c *client) stateName() string {
	switch {
	case c.state == stateWaiting:
		return "waiting"
	case c.inTx():
		return "in transaction"
	case c.busy():
		return "active"
	case c.pins.held != 0:
		return "pinned"
	}
	return "idle"
}

// weirStatus answers SHOW WEIR STATUS on an ordinary connection.
func (c *client) weirStatus() sight.Table {
	id, mode := "", "none"
	if b := c.served; b != nil {
		id, mode = strconv.FormatUint(uint64(b.id), 10), b.Mode.String()
	}
	t := sight.Table{Cols: []string{"backend_id", "backend_mode", "pool", "pins", "statements", "grouped", "errors", "servers", "free", "waiting"}}
	t.Add(id, mode, c.p.key, c.pins.held, c.stats.units, c.stats.grouped, c.stats.errors, len(c.p.Backends), len(c.p.Free), len(c.p.Excl)+len(c.p.Reads))
	return t
}
