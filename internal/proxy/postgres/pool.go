package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/weirdb/weir/internal/proxy/cache"
	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// A poolKey identifies a pool: backends are never shared across databases, users, or roles
// of startup messages, to which the server returns on RESET ROLE. A login has no role in it.
type poolKey struct{ database, user, role string }

func (k poolKey) String() string {
	name := k.user + "@" + k.database
	if k.role != "" {
		name += " as " + k.role
	}
	return name
}

// login is the key without the role.
func (k poolKey) login() poolKey { return poolKey{database: k.database, user: k.user} }

// A pool holds a loop's backends for one user and database, and the statements that
// wait for one of them.
type pool struct {
	core.Base[*backend, *client, *unit, *lane, *backendConn]
	l   *loop
	key poolKey

	sharing sharing
	alone   alone
	probe   lockProbe

	settings     *session.Table
	freeSettings freeSettings
	stmts        poolStmts

	answers   *cache.Database // the cache of the database
	refreshes refreshes

	lanes    lanes
	tables   tableCache
	serials  serials
	rowTexts rowTexts
	greetings

	identity *identity // shared by all pools of its login

	facts  facts
	guards guards
	marker *stmt

	listeners poolListeners

	catalogue *dbCatalogue // of the database
	audits    audits

	keepSequences bool // some client reads currval or lastval across transactions

	pinned [len(pinNames)]uint64 // clients, by cause
}

type waiter = core.Waiter[*backend, *client, *unit, *lane]

func (l *loop) pool(key poolKey) *pool {
	if p := l.Pools[key]; p != nil {
		l.Use(key)
		return p
	}
	p := &pool{
		l: l, key: key,
		settings: l.Settings, freeSettings: make(freeSettings),
		catalogue: l.proof(key.database),
	}
	p.greetings = greetings{p: p, greeting: make(map[*session.Set][]pgwire.Param)}
	p.answers, p.refreshes.p = l.srv.Cache.Of(key.database), p
	p.sharing.p, p.alone.p, p.probe.p, p.audits.p, p.lanes = p, p, p, p, lanes{p: p, all: make(core.Lanes[laneKey, *lane])}
	p.audits.at = l.Now + auditEvery
	p.Init(p, &l.srv.Quotas, &l.Loop.Loop, &l.Agenda, &l.srv.Background, l.srv.DialCtx)
	p.stmts = poolStmts{proof: p.catalogue, shapes: l.Shapes, text: &l.text, scans: &l.scans, byKey: make(map[string]*stmt)}
	p.Frugal = l.cfg.Authenticator != nil
	p.guards.init(p)
	p.identity = new(identity)
	for other := range p.siblings() {
		p.identity = other.identity
	}
	if key.role != "" {
		p.ConnManager().KeepNone() // any client can name any role
	}
	p.serials.init(p)
	p.marker = p.stmts.internal(markerSQL)
	l.Add(key, p, l.srv.GateOf(key.database))
	return p
}

// dropped forgets what is known of databases that have no pool any more.
func (l *loop) dropped(gone []*pool) {
	for _, p := range gone {
		p.ConnManager().End()
	}
	used := make(map[string]bool)
	for key := range l.Pools {
		used[key.database] = true
	}
	maps.DeleteFunc(l.proofs, func(database string, f *dbCatalogue) bool { return !used[database] && !f.reading })
}

// siblings are the other pools of the same login.
func (p *pool) siblings() iter.Seq[*pool] {
	return func(yield func(*pool) bool) {
		for key, other := range p.l.Pools {
			if other != p && key.login() == p.key.login() && !yield(other) {
				return
			}
		}
	}
}

// Look looks at the queues.
func (p *pool) Look() {
	p.Awake()
	p.dispatch()
}

// Options are the current options.
func (p *pool) Options() *session.Options { return &p.l.cfg.Options }

// MayDial reports whether weir can log in as the pool's user by itself.
func (p *pool) MayDial() bool { return p.l.srv.mayDial(p.key) }

// Dial opens a connection and logs in.
func (p *pool) Dial(ctx context.Context) (*backendConn, error) {
	return p.l.srv.dialBackend(ctx, p.key)
}

// Discard closes a connection that cannot be used.
func (p *pool) Discard(conn *backendConn) { conn.close() }

// take removes a free backend, preferably one in the same settings, and returns nil
// if there is none. For a client that reads its sequences' values it prefers the one
// where the client last wrote.
func (p *pool) take(set *session.Set, c *client) *backend {
	if p.ConnManager().Spent(c != nil) && len(p.Free) > 0 || c != nil && shares(c) && p.lastForShared() {
		return nil
	}
	best, bestFit := -1, 0
	made := false // checked when needed
	for i := len(p.Free) - 1; i >= 0; i-- {
		b := p.Free[i]
		fit := 1
		switch {
		case b.set == set:
			fit = 3
		case !b.serves(set):
			continue
		default:
			if !made {
				made = madeUp(set)
			}
			if made == madeUp(b.set) {
				fit = 2 // backends without custom settings are kept for clients that have none
			}
		}
		if c != nil && c.router.wantOwn && b.lastWriter == c {
			fit = 4
		}
		if fit > bestFit {
			best, bestFit = i, fit
			if fit >= 3 && (c == nil || !c.router.wantOwn || fit == 4) {
				break
			}
		}
	}
	if best < 0 {
		p.exchange()
		return nil
	}
	return p.Pick(best)
}

// shares reports whether a client's statements may be pipelined with those of others. They
// may not where each session keeps a backend, since then every backend may have a client.
func shares(c *client) bool {
	return c.mode() != session.ModeSession && !c.p.facts.silent
}

// exchange makes room for a new backend if all free ones have custom settings of
// others.
func (p *pool) exchange() {
	if len(p.Free) > 0 && p.ConnManager().Full() && p.MayDial() {
		p.Free[0].Goodbye() // which removes it from p.Free
	}
}

// lastForShared reports whether no further client may get a backend of its own.
func (p *pool) lastForShared() bool { return p.LastForShared(p.ReadLanes) }

// release takes a backend back.
func (p *pool) release(b *backend) {
	if b.s.Closed {
		return
	}
	b.owner, b.lane = nil, nil
	b.parseAgain(true)
	if b.status != pgwire.StatusIdle {
		// A text was not what weir took it for. The next client would be in the
		// transaction that it began.
		p.l.srv.Log.Error("backend left in a transaction; closed", "pool", p.key.String(), "pid", b.pid)
		b.Doomed = true
	}
	if !p.Release(b, &b.Conn) {
		b.s.Close(io.EOF)
	}
}

// Adopt takes a logged-in connection into the pool.
func (p *pool) Adopt(conn *backendConn) {
	if conn.via == nil && !p.l.srv.Monitor.Goes(conn.endpoint) { // of a login that was in progress when they moved
		conn.close()
		p.Wake()
		return
	}
	p.fresh(conn.params)
	b := &backend{
		p: p, pid: conn.pid, secret: conn.secret, params: conn.params,
		status: pgwire.StatusIdle,
	}
	b.backendStmts = backendStmts{b: b, prepared: make(map[*stmt]preparedStmt)}
	app := conn.params["application_name"]
	b.backendSession = backendSession{b: b, set: p.settings.Empty(), app: app, startApp: app}
	if d := p.l.cfg.Authenticator; d != nil {
		b.number = d.NewID()
	}
	s, err := p.l.Watch(conn.fd, b)
	if err != nil {
		conn.close()
		p.DialFailed(fmt.Errorf("watch backend socket: %w", err))
		return
	}
	b.s, b.Endpoint, b.via = s, conn.endpoint, conn.via
	b.lex = lexical{b.params[encodingName], b.params[conformingName]}
	b.bytewise = bytewise[b.lex.encoding]
	p.Adopted(b)
	if p.l.cfg.Authenticator != nil && len(p.Backends) > p.Size {
		p.l.srv.Log.Info("taking connection from reserve_pool", "database", p.key.database, "user", p.key.user)
	}
	if v := b.params["server_version"]; v != p.facts.version {
		p.facts.version, p.facts.known, p.facts.silent = v, false, false
	}
	p.facts.superuser = p.key.role == "" && b.params["is_superuser"] == "on"
	if p.facts.known && !p.catalogue.ready {
		p.catalogue.begin(b)
		return
	}
	if p.facts.known {
		p.release(b)
		p.Wake()
		return
	}
	sendCanary(b)
	b.ask(p.facts.sql(), func(u *unit) {
		p.learn(u)
		if !p.catalogue.ready && !b.s.Closed {
			p.catalogue.begin(b)
		}
	}).columns = factsColumns
}

// learn records what a backend says about the server.
func (p *pool) learn(u *unit) {
	if u.err != nil && u.err.Code == pgwire.CodeConnectionFailure {
		return // the next backend is asked
	}
	if !p.facts.learn(u, p.l.Now) {
		p.l.srv.Log.Warn("server facts not known; the solo-commit lane is off", "pool", p.key.String(), "error", fmt.Sprint(u.err))
		return
	}
	p.ConnManager().Allowed(p.facts.connections, p.facts.ownConnections, p.l.cfg.Peers.Others(p.l.cfg.PeerID))
}

// errNoSecret is why weir cannot open a backend by itself.
var errNoSecret = errors.New("weir has nothing to log in with as this user, and no login has left a connection")

// DialFailed answers those who wait: at once if the server refuses this user or
// database, otherwise when they have waited long enough, since servers restart.
func (p *pool) DialFailed(err error) {
	if pgwire.CodeOf(err) == pgwire.CodeTooManyConnections && p.facts.ownConnections == 0 { // else it may be that limit
		p.ConnManager().Refused()
	}
	if none := p.NotDialed(err); !none && p.l.cfg.Authenticator == nil {
		return // existing backends may serve them
	}
	switch pgwire.CodeOf(err) {
	case pgwire.CodeInvalidPassword, pgwire.CodeInvalidAuthorization, pgwire.CodeInvalidDatabase, pgwire.CodeConnectionRejected:
		p.failWaiting(0, p.dialProblem())
	case pgwire.CodeInsufficientPrivilege, pgwire.CodeInvalidParameterValue:
		if p.key.role != "" {
			p.failWaiting(0, p.dialProblem())
		}
	}
}

// Awaits implements core.Dialect. If an Authenticator chooses where connections go, there is no single
// server to ask.
func (p *pool) Awaits(err error) {
	if s := p.l.srv; p.l.cfg.Authenticator == nil && (pgwire.CodeOf(err) == "" || pgwire.Unavailable(err)) {
		s.AwaitRecovery(s.askHealth)
	}
}

// dialProblem is the error for those who wait while no backend can be opened.
// The server's message is passed on unchanged.
func (p *pool) dialProblem() *pgwire.Error {
	var e *pgwire.Error
	if errors.As(p.DialErr, &e) {
		out := *e
		return &out
	}
	if errors.Is(p.DialErr, errNoSecret) {
		out := pgwire.NewError(pgwire.CodeConnectionUnable, "weir has no connection to the server left for user %q, and nothing to log in with", p.key.user)
		out.Detail = "Each login of a client brings one connection."
		out.Hint = "Log in again. List the user's password, or SCRAM secret, to let weir open connections by itself."
		return out
	}
	out := pgwire.NewError(pgwire.CodeConnectionUnable, "weir cannot reach the server: %v", p.DialErr)
	out.Hint = "Check that the server runs and that weir's --postgres names it."
	return out
}

// failWaiting refuses everything that has waited at least minWait. If only a login could
// bring a backend, the sessions end: otherwise drivers would keep them, and not log in
// again.
func (p *pool) failWaiting(minWait time.Duration, e *pgwire.Error) {
	told := plain(e)
	if len(p.Backends) == 0 && p.DialErr != nil && !p.MayDial() {
		told = ending(e)
	}
	lose := func(u *unit) { u.c.lost(u, told) }
	for _, ln := range p.lanes.all {
		ln.expire(minWait, told)
	}
	p.Expire(minWait, func(w waiter) {
		switch {
		case w.Client != nil:
			w.Client.state.leave(stateWaiting)
			switch {
			case !w.Client.login.greeted:
				w.Client.fatal(ending(e))
			case told.Fatal():
				w.Client.fatal(told)
			default:
				w.Client.refuse(told)
			}
		case w.Lane != nil:
			p.Stats.Timeouts-- // each of its members counts by itself
			if w.Lane.Q.Len() > 0 {
				p.Excl = append(p.Excl, w)
			} else {
				w.Lane.Queued = false
			}
		case w.Unit != nil:
			p.FreeSlot(&w.Unit.Turn)
			lose(w.Unit)
		}
	}, lose)
}

// Expires implements core.Dialect: every unit is subject to the queue timeout.
func (p *pool) Expires(*unit) bool { return true }

// plain is the error without FATAL, so that the session goes on.
func plain(e *pgwire.Error) *pgwire.Error {
	out := *e
	out.Severity, out.SeverityRaw = "ERROR", "ERROR"
	return &out
}

// ending is the error as FATAL.
func ending(e *pgwire.Error) *pgwire.Error {
	out := *e
	out.Severity, out.SeverityRaw = "FATAL", "FATAL"
	return &out
}

// lose removes a backend whose connection has ended.
func (p *pool) lose(b *backend, err error) {
	p.Lose(b)
	p.l.srv.Log.Debug("server connection closed", "database", p.key.database, "user", p.key.user, "address", b.Endpoint.Address,
		"because", closedBecause(b, err), "age", p.l.Now-b.Born)
	if !b.served && !b.Doomed && !b.Retired {
		p.DialFailed(fmt.Errorf("the server closed the connection right after the login: %w", err))
	}
	if b.Depth() > 0 || b.owner != nil {
		p.l.srv.Log.Warn("backend connection lost", "pool", p.key.String(), "pid", b.pid, "mode", b.Mode.String(), "in_flight", b.Depth(), "error", fmt.Sprint(err))
	}
}

// Tick enforces the pool's timeouts.
func (p *pool) Tick() {
	limit := p.Limits.QueueTimeout
	if after := p.l.cfg.WaitNotice; after > 0 {
		notify(p, after)
	}
	if p.Unreachable() {
		p.failWaiting(p.l.srv.Patience(), p.dialProblem())
	}
	if limit > 0 && p.Waiting() > 0 {
		e := pgwire.NewError(pgwire.CodeTooManyConnections,
			"weir: no backend of pool %s became free within %s", p.key, limit)
		e.Detail = fmt.Sprintf("%d of %d backends are in use, %d statements wait.", len(p.Backends)-len(p.Free), p.Size, p.Waiting())
		e.Hint = "Raise --pool-size, shorten transactions, or raise --queue-timeout."
		switch {
		case p.Paused:
			e = p.pausedError()
		case p.DialErr != nil && len(p.Backends) == 0: // one may be being opened just now
			e = p.dialProblem()
		}
		p.failWaiting(limit, p.l.worded("query_wait_timeout", e))
	}
	p.ConnManager().Overdue(endOverdue)
	p.Reap()
	if p.Waiting() > 0 {
		p.Wake()
	}
	if !p.Paused {
		p.catalogue.tick(p)
		p.audits.next()
	}
	if p.facts.known && len(p.lanes.all) > 0 && p.l.Now-p.facts.at > factsKeep {
		p.facts.at = p.l.Now
		p.askIn(p.settings.Empty(), p.facts.sql(), factsColumns, p.learn)
	}
	p.lanes.all.Tick(p.l.Now, p.Slots())
	checkStandbys(p)
	for _, h := range slices.Clone(p.listeners.hubs) {
		h.Tick()
	}
}

// Replaceable reports whether a backend may be closed for its age: not if only the next
// login could bring another one while clients would have to wait for it.
func (p *pool) Replaceable() bool {
	if p.MayDial() {
		return true
	}
	for _, c := range p.l.Clients {
		if c.p == p {
			return false
		}
	}
	return true
}

// counted counts an event of a prepared statement, unless those are switched off in the
// PgBouncer mode, in which weir only stops counting them.
func counted(p *pool, n *uint64) {
	if p.l.cfg.Authenticator == nil || p.l.cfg.MaxPrepared > 0 {
		*n++
	}
}

// notify sends clients that have waited for some time a notice that they wait, once.
func notify(p *pool, after time.Duration) {
	tell := func(c *client, since time.Duration) {
		if c == nil || c.s.Closed || !c.login.greeted || c.transport.part || p.l.Now-since < after || c.login.notified == since {
			return
		}
		c.login.notified = since
		c.s.Write(pgwire.AppendNotice(nil, &pgwire.Error{
			Severity: "NOTICE", SeverityRaw: "NOTICE", Code: "00000",
			Message: "No server connection available in postgres backend, client being queued",
		}))
	}
	for i := range p.Excl {
		if w := &p.Excl[i]; w.Client != nil && !p.Left(w) {
			tell(w.Client, w.Since)
		}
	}
	for _, list := range [][]*unit{p.Reads, p.Apart.Fresh, p.Apart.Patient} {
		for _, u := range list {
			if !u.Left() {
				tell(u.c, u.Queued())
			}
		}
	}
}

// count records an answered unit.
func (p *pool) count(u *unit, path sight.Path) {
	p.Stats.Bytes += uint64(u.bytes)
	r := sight.Run{
		Took: p.l.Now - u.queuedAt + u.early, Server: u.took, Rows: u.tuples, Path: path,
		Pinned: u.c.pins.held != 0, Failed: u.failed,
	}
	p.Stats.Count(u.shape, &r)
	if path != sight.Cached {
		p.ConnManager().Answered()
	}
	if slow := p.l.cfg.SlowLog; u.trace != nil || slow > 0 && r.Took >= slow {
		u.report(&r)
	}
}

// forgetTexts makes every later Parse a new statement, because a change of the
// schema may have changed what the texts mean.
func (p *pool) forgetTexts() {
	clear(p.stmts.byKey)
	p.stmts.bytes = 0
	for _, ln := range p.lanes.all {
		ln.forget()
	}
	p.tables.forget()
	p.serials.forget()
}
