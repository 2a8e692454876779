package postgres

import (
	"cmp"
	"context"
	"maps"
	"net"
	"slices"
	"strconv"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file is who may open the admin console, and what it shows of this side alone.

// authenticateAdmin lets in the DSN's user and those listed, by a secret that
// weir holds, else as LDAP or the server decides; without a password only who may have
// what weir has: see core.MayBorrow.
func (s *Server) authenticateAdmin(ctx context.Context, conn net.Conn, start *pgwire.Startup) error {
	allowed := start.User == s.cfg().Postgres.User || slices.Contains(s.cfg().AdminUsers, start.User)
	secret, known := s.creds.Secret(start.User)
	switch {
	case allowed && !known && core.MayBorrow(conn, s.cfg().TrustLoopback):
		_, err := pgwire.Authenticate(ctx, conn, start.User, pgwire.AuthTrust, pgwire.Secret{})
		return err
	case allowed && !known && s.cfg().Auth == AuthLDAP:
		_, ok, err := s.askLDAP(ctx, conn, start.User)
		if err == nil {
			_, err = conn.Write(ok)
		}
		return err
	case allowed && !known && s.cfg().relays():
		login := *start
		login.Database = s.cfg().Postgres.Database
		be, err := s.relay(ctx, conn, &login, nil)
		if be != nil {
			be.close()
		}
		return err
	case !allowed:
		secret = pgwire.Secret{} // fails as a wrong password does
	}
	_, err := pgwire.Authenticate(ctx, conn, start.User, pgwire.AuthMD5, secret)
	return err
}

// Upstream implements core.Side.
func (s *Server) Upstream() string { return s.cfg().Postgres.Address }

// Database implements core.Side.
func (s *Server) Database() string { return s.cfg().Postgres.Database }

// LetGo implements core.Side.
func (s *Server) LetGo() {
	s.lookups.idle.LetGo()
	for _, l := range s.Loops {
		l.Post(l.asker.close)
	}
}

// Options implements core.Side.
func (s *Server) Options() *session.Options { return &s.cfg().Options }

// Settings implements core.Side.
func (s *Server) Settings() []core.Setting {
	c := s.cfg()
	return []core.Setting{
		{Key: "postgres", Value: c.Postgres.Address, Fixed: true},
		{Key: "auth", Value: c.Auth, Default: AuthAuto},
		{Key: "auth_query", Value: c.AuthQuery, Default: ""},
		{Key: "auth_user", Value: c.authUser(), Default: c.Postgres.User},
		{Key: "auth_dbname", Value: cmp.Or(c.AuthDatabase, c.Postgres.Database), Default: c.Postgres.Database},
		{Key: "shared_listen", Value: !c.NoSharedListen, Default: true},
		{Key: "flush_prefix", Value: c.FlushPrefix, Default: "weir"},
	}
}

// Shows implements core.Side.
func (s *Server) Shows() []string { return []string{"CATALOGUES", "LISTENERS", "PEERS"} }

// Show implements core.Side.
func (s *Server) Show(ctx context.Context, what string) (t sight.Table, ok bool) {
	switch what {
	case "CATALOGUES":
		return s.showCatalogues(ctx), true
	case "LISTENERS":
		return showListeners(ctx, s), true
	case "PEERS":
		return core.PeersTable(s.cfg().Peers), true
	}
	return t, false
}

// showCatalogues tells what is known of each database's catalogue. Of several loops
// it is what the one knows that knows least.
func (s *Server) showCatalogues(ctx context.Context) sight.Table {
	t := sight.Table{Cols: []string{"database", "catalogue", "names", "reads", "failures", "read_ms", "look_ms", "error"}}
	merged := make(map[string]dbCatalogue)
	for _, l := range s.Loops {
		if l.Call(ctx, func() {
			for db, f := range l.proofs {
				m, seen := merged[db]
				reads, failures := m.reads+f.reads, m.failures+f.failures
				if !seen || f.state() < m.state() {
					m = dbCatalogue{index: f.index, ready: f.ready, err: f.err, took: f.took, cost: f.cost}
				}
				m.reads, m.failures = reads, failures
				merged[db] = m
			}
		}) != nil {
			break
		}
	}
	for _, db := range slices.Sorted(maps.Keys(merged)) {
		m := merged[db]
		names, why := 0, ""
		if m.index != nil {
			names = m.index.Len()
		}
		if m.err != nil {
			why = m.err.Error()
		}
		t.Add(db, m.state(), names, m.reads, m.failures, m.took, m.cost, why)
	}
	return t
}

// Name implements core.Pool.
func (p *pool) Name() (database, user string) { return p.key.database, p.key.user }

// Servers implements core.Pool.
func (p *pool) Servers() []core.ServerInfo {
	list := make([]core.ServerInfo, 0, len(p.Backends))
	for _, b := range p.Backends {
		i := b.Info(b.pid)
		i.Number, i.Prepared, i.Settings, i.App = b.number, len(b.prepared), b.set.Len(), b.app
		if b.owner != nil {
			i.Client = b.owner.id
		}
		list = append(list, i)
	}
	for _, h := range p.listeners.hubs {
		list = append(list, h.info())
	}
	return list
}

// Info implements core.Client.
func (c *client) Info() core.ClientInfo {
	i := core.ClientInfo{
		ID: c.id, Database: c.p.key.database, User: c.p.key.user, Addr: c.addr, App: c.app, State: c.stateName(), Pins: c.pins.held.String(),
		Prepared: len(c.stmts.byName), Since: c.since, LastUsed: c.idleSince,
		Statements: c.stats.units, Grouped: c.stats.grouped, Errors: c.stats.errors, Received: c.s.Taken, Sent: c.s.Written, Active: c.busy(), Pinned: c.pins.held != 0,
	}
	if e := c.login.entry; e != nil {
		i.Login = e.Login
	}
	if c.state == stateWaiting {
		i.Waiting = c.queuedAt
	}
	if c.link != nil {
		i.Link = c.link.pid
	}
	return i
}

// busy reports whether a statement of the client is under way or waits.
func (c *client) busy() bool {
	return c.inflight > 0 || c.state == stateWaiting || c.link != nil && c.link.Depth() > 0
}

// stateName names what the client is doing.
func (c *client) stateName() string {
	switch {
	case !c.login.greeted:
		return "login"
	case c.state == stateWaiting:
		return "waiting"
	case c.tx == pgwire.StatusFailed:
		return "in failed transaction"
	case c.tx == pgwire.StatusInTx:
		return "in transaction"
	case c.inflight > 0, c.link != nil && c.link.Depth() > 0:
		return "active"
	case c.pins.held != 0:
		return "pinned"
	case c.listens.viaHub():
		return "listening"
	}
	return "idle"
}

// status answers SHOW WEIR STATUS on an ordinary connection.
func (c *client) status() []byte {
	pid, mode := "", "none"
	if b := c.served; b != nil {
		pid, mode = strconv.FormatUint(uint64(b.pid), 10), b.Mode.String()
	}
	t := sight.Table{Cols: []string{"backend_pid", "backend_mode", "pool", "pins", "statements", "grouped", "errors", "servers", "free", "waiting"}}
	t.Add(pid, mode, c.p.key, c.pins.held, c.stats.units, c.stats.grouped, c.stats.errors, len(c.p.Backends), len(c.p.Free), len(c.p.Excl)+len(c.p.Reads))
	return pgwire.AppendReadyForQuery(appendTable(nil, &t), c.tx)
}
