package mysql

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/weirdb/weir/internal/proxy/cache"
	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/mysql/catalogue"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/proxy/sqlscan/myscan"
	"github.com/weirdb/weir/internal/proxy/upstream"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// classCaps are the capabilities that clients must have in common to share backends, because
// they change what the server does or how it encodes its answers.
const classCaps = mywire.CapDeprecateEOF | mywire.CapFoundRows | mywire.CapMultiStatements | mywire.CapMultiResults |
	mywire.CapPSMultiResults | mywire.CapIgnoreSpace | mywire.CapInteractive | mywire.CapLocalFiles | mywire.CapNoSchema |
	mywire.CapODBC | mywire.CapExpiredPasswords | mywire.CapExtendedMetadata | mywire.CapBulkOperations | mywire.CapBulkUnitResults

// A poolKey identifies a pool: backends are never shared across users, or across clients to
// which the server would answer differently. The database is that of the login; another one
// that a client chooses later is a setting.
type poolKey struct {
	user, database string
	caps           mywire.Caps
	charset        byte // collation number of the login
}

func (k poolKey) String() string { return k.user + "@" + k.database }

// A pool holds a loop's backends for one key, and the statements that wait for one of them.
type pool struct {
	core.Base[*backend, *client, *unit, *lane, *backendConn]
	l   *loop
	key poolKey

	soft    softDiagnostics
	sharing sharing
	alone   alone
	probe   lockProbe

	settings *session.Table
	stmts    poolStmts

	lanes  lanes
	tables tableCache

	facts      poolFacts
	catalogue  *accountCatalogue
	refreshing bool // the catalogue will be brought up to date on one of its backends

	answers   *cache.Database // the cache of the database
	refreshes refreshes

	keepSequences bool // some client reads LASTVAL

	pinned [len(pinNames)]uint64 // clients, by cause
}

type waiter = core.Waiter[*backend, *client, *unit, *lane]

// poolFacts are what weir has learned about the server and its sessions, from the first
// backend.
type poolFacts struct {
	known     bool
	mariadb   bool
	version   uint32            // as in MYSQL_VERSION_ID
	text      string            // as in the greeting
	base      map[string]string // settings of a new session, of those that a login can change
	pipelines bool              // several commands may be in flight on one connection
	silent    bool              // it does not report changes of session state
	askAgain  time.Duration     // when to run factsSQL again, which it has refused; 0 if it has not
	pause     time.Duration     // ... after so long
	askNext   bool              // ... on the next new connection
	// reportsInResults: it reports changes, or at least that there are some, also in answers
	// with rows.
	reportsInResults bool
	confuses         bool            // it reports variables under the names of others
	galera           bool            // Galera: the step from id to id changes as nodes come and go
	fixed            map[string]bool // session variables that change by themselves and cannot be set
	renamed          map[string]bool // the new names of variables that have two
	trackList        string          // variables whose changes sessions get reported by default
	reported         []string        // the names in trackList, in lower case; see stateFor
	reportsGTID      bool            // sessions get the GTIDs of their transactions reported by default
	// initConnect is the statement that the server runs for a new session of the account, but
	// not after a reset.
	initConnect string
	reset       map[string]string // settings of a session after a reset, where they differ from base
	charsets    map[string]string // the server's own values of charsetNames
}

// server returns what the reading of a text depends on of the server itself.
func (f *poolFacts) server() myscan.Mode { return myscan.Mode{MariaDB: f.mariadb, Version: f.version} }

// groupsSessions reports whether the server has resource groups.
func (f *poolFacts) groupsSessions() bool { return !f.mariadb && f.version >= 80003 }

func (l *loop) pool(key poolKey) *pool {
	if p := l.Pools[key]; p != nil {
		l.Use(key)
		return p
	}
	p := &pool{
		l: l, key: key,
		settings:  l.Settings,
		stmts:     poolStmts{l: l, byKey: make(map[string]*stmt)},
		catalogue: l.catalogueFor(key.user),
	}
	p.answers, p.refreshes.p = l.srv.Cache.Of(key.database), p
	p.soft.p, p.sharing.p, p.alone.p, p.probe.p, p.lanes = p, p, p, p, lanes{p: p, all: make(core.Lanes[laneKey, *lane])}
	p.Init(p, &l.srv.Quotas, &l.Loop.Loop, &l.Agenda, &l.srv.Background, l.srv.DialCtx)
	l.Add(key, p, l.srv.GateOf(key.database))
	return p
}

// dropped ends the removed pools, and removes the catalogues of users that have no pool any more.
func (l *loop) dropped(gone []*pool) {
	for _, p := range gone {
		p.ConnManager().End()
	}
	used := make(map[string]bool)
	for key := range l.Pools {
		used[key.user] = true
	}
	maps.DeleteFunc(l.catalogues, func(user string, k *accountCatalogue) bool { return !used[user] && k.loading == 0 })
}

// Look dispatches what waits in the queues.
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

// take removes a free backend, and returns nil if there is none. It prefers the backend on
// which the client's last statement ran, with nothing since; then one in the same settings, and
// among those one to which its last client is unlikely to return.
func (p *pool) take(set *session.Set, c *client) *backend {
	if p.ConnManager().Spent(c != nil) || c != nil && p.lastForShared() {
		return nil
	}
	best, rank := -1, -1
	for i, b := range p.Free {
		r := 0
		if b.set == set {
			r += 2
		}
		if b.lastUser == nil || b.lastUser.s.Closed {
			r++
		}
		if c != nil && b.lastUser == c {
			r = 4
			if c.diag.last.on == b {
				r = 5 // it has the diagnostics of the client's last statement
			}
		}
		if r > rank {
			best, rank = i, r
		}
	}
	if best < 0 {
		return nil
	}
	return p.Pick(best)
}

// takeAt removes a free backend of one server, and returns nil if there is none.
func (p *pool) takeAt(e upstream.Endpoint) *backend {
	i := slices.IndexFunc(p.Free, func(b *backend) bool { return b.Endpoint == e })
	if i < 0 {
		return nil
	}
	return p.Pick(i)
}

// lastForShared reports whether no further client may get a backend of its own. Where each
// session keeps a backend, nothing is shared, and every backend may have a client.
func (p *pool) lastForShared() bool {
	return p.l.cfg.Mode != session.ModeSession && !p.facts.silent && p.LastForShared(p.ReadLanes)
}

// release takes a backend back.
func (p *pool) release(b *backend) {
	if b.s.Closed {
		return
	}
	b.owner, b.lane, b.sequencer = nil, nil, nil
	b.s.Throttle(false) // its last client may still have much output to read
	b.Doomed = b.Doomed || b.shows
	if b.status&mywire.StatusInTrans != 0 {
		// A text was not what weir took it for. The next client would be in the transaction
		// that it began.
		p.l.srv.Log.Error("backend left in a transaction; closed", "pool", p.key.String(), "connection", b.id)
		b.Doomed = true
	}
	since := b.FreeSince
	if !p.Release(b, &b.Conn) {
		if !b.saveIDAndClose() {
			b.s.Close(io.EOF)
		}
		return
	}
	if b.polled {
		b.FreeSince = since
	}
	b.polled = false
}

// Adopt takes a logged-in connection into the pool.
func (p *pool) Adopt(conn *backendConn) {
	if !p.l.srv.Monitor.Goes(conn.endpoint) { // of a login that was in progress when they moved
		conn.close()
		p.Wake()
		return
	}
	b := &backend{
		p: p, id: conn.id, port: conn.port, caps: conn.caps, status: conn.status,
	}
	b.backendSession = backendSession{b: b, set: p.settings.Empty(), began: conn.status}
	b.backendStmts = backendStmts{b: b, prepared: make(map[*stmt]*instance)}
	b.leftDiagnostics.b = b
	s, err := p.l.Watch(conn.fd, b)
	if err != nil {
		conn.close()
		p.DialFailed(fmt.Errorf("watch backend socket: %w", err))
		return
	}
	b.s, b.Endpoint = s, conn.endpoint
	p.Adopted(b)
	if p.facts.text != conn.version {
		p.facts = poolFacts{text: conn.version, mariadb: conn.mariadb, version: versionID(conn.version), pipelines: mayPipeline(conn.version, conn.mariadb)}
	}
	b.adjustAutocommit()
	b.introduce()
}

// trackSQL makes the server report every change of the session's state.
const trackSQL = "SET SESSION session_track_system_variables='*', session_track_schema=1, session_track_state_change=1"

// baseNames are the settings that may have other values than the global ones when a session
// begins: DEFAULT would not restore them.
var baseNames = []string{
	"character_set_client", "character_set_results", "character_set_connection", "collation_connection",
	"sql_mode", "time_zone", "autocommit", "wait_timeout",
}

func factsSQL(mariadb bool) string {
	sql := "SELECT 0, @@global.session_track_system_variables, @@global.session_track_gtids"
	if mariadb {
		sql = "SELECT @@wsrep_on, @@global.session_track_system_variables, 'OFF'"
	}
	sql += ", @@global.max_connections, @@max_user_connections" // of the session: the account's own limit
	// The server does not run it for accounts that have one of these.
	sql += ", IF(EXISTS (SELECT 1 FROM information_schema.USER_PRIVILEGES u WHERE u.GRANTEE = " + catalogue.GranteeSQL +
		" AND u.PRIVILEGE_TYPE IN ('SUPER', 'CONNECTION ADMIN', 'CONNECTION_ADMIN')), '', CAST(@@global.init_connect AS BINARY))"
	for _, n := range baseNames {
		sql += ", @@" + n
	}
	for _, n := range resetNames {
		sql += ", @@global." + n
	}
	return sql
}

// factsBefore is the number of columns before those of baseNames.
const factsBefore = 6

// resetNames are those of baseNames that COM_RESET_CONNECTION sets to the global values,
// whatever the login has set. In MariaDB it is the first ones, so that a client that requests
// IGNORE_SPACE has it only until a reset; in MySQL it is the character sets, so that a client
// has that of its login only until then.
var resetNames = []string{
	"sql_mode", "time_zone", "autocommit",
	"character_set_client", "character_set_results", "character_set_connection", "collation_connection",
}

// learn records the server's answer to factsSQL.
func (p *pool) learn(u *unit) {
	if u.err != nil && u.err.Code == mywire.ErrNetRead {
		p.facts.askNext = p.facts.known // the next backend runs the query
		return
	}
	rows := u.result(p.key.caps)
	p.facts.known = true
	p.Wake()
	if len(rows) != 1 || len(rows[0]) != factsBefore+len(baseNames)+len(resetNames) {
		if p.facts.askAgain == 0 {
			p.l.srv.Log.Warn("server facts not known; writes are not grouped until they are", "pool", p.key.String(), "error", fmt.Sprint(u.err))
			p.facts.pause = factsPause
			p.facts.askAgain = p.l.Now + factsPause
		}
		p.facts.pipelines = false
		return
	}
	p.facts.pipelines, p.facts.askAgain, p.facts.askNext = mayPipeline(p.facts.text, p.facts.mariadb), 0, false
	p.facts.galera = string(rows[0][0]) == "1"
	p.facts.learnReported(string(rows[0][1]), string(rows[0][2]))
	p.ConnManager().Allowed(int(parseUint(rows[0][3])), int(parseUint(rows[0][4])), p.l.cfg.Peers.Others(p.l.cfg.PeerID))
	before := p.facts.base["autocommit"]
	p.facts.base = make(map[string]string, len(baseNames))
	for i, n := range baseNames {
		p.facts.base[n] = string(rows[0][factsBefore+i])
	}
	for _, b := range p.Backends {
		b.adjustAutocommit()
	}
	p.facts.reset, p.facts.charsets = make(map[string]string), make(map[string]string)
	for i, n := range resetNames {
		if isCharset(n) {
			p.facts.charsets[n] = string(rows[0][factsBefore+len(baseNames)+i])
		}
		if value := string(rows[0][factsBefore+len(baseNames)+i]); p.facts.mariadb != isCharset(n) && value != p.facts.base[n] {
			p.facts.reset[n] = value
		}
	}
	p.facts.initConnect = string(rows[0][factsBefore-1])
	flipped := before != "" && isOff(before) != isOff(p.facts.base["autocommit"])
	for _, c := range p.l.Clients {
		if c.p != p {
			continue
		}
		if _, own := c.set.Get("autocommit"); flipped && !own {
			// It takes its writes for committed, or not, by the value that it got reported.
			c.set = p.settings.With(c.set, session.Setting{Name: "autocommit", Value: before, Literal: true})
		}
		c.settings.readMode()
	}
}

const (
	// factsPause is the time after which weir asks again for facts that the server refused. It
	// doubles with each attempt, up to maxFactsPause.
	factsPause    = 10 * time.Second
	maxFactsPause = 10 * time.Minute
)

// learnAgain has the next new connection ask for facts that the server has refused, if it is
// time to. Where weir opens connections, it replaces a free one.
func (p *pool) learnAgain() {
	f := &p.facts
	if f.askAgain == 0 || p.l.Now < f.askAgain {
		return
	}
	if p.Dialing == 0 && p.MayDial() {
		b := p.take(p.settings.Empty(), nil)
		if b == nil {
			return
		}
		b.Goodbye()
		p.ConnManager().Begin()
	}
	f.askNext, f.pause = true, min(2*f.pause, maxFactsPause)
	f.askAgain = p.l.Now + f.pause
}

func parseUint(p []byte) uint64 {
	var n uint64
	for _, d := range p {
		if d < '0' || d > '9' {
			return 0
		}
		n = 10*n + uint64(d-'0')
	}
	return n
}

// versionID returns a version as MYSQL_VERSION_ID has it: 101119 for 10.11.19. MariaDB's
// greetings may have "5.5.5-" in front.
func versionID(text string) uint32 {
	if len(text) > 6 && text[:6] == "5.5.5-" {
		text = text[6:]
	}
	var parts [3]uint32
	for i, at := 0, 0; i < len(parts) && at < len(text); i++ {
		for at < len(text) && text[at] >= '0' && text[at] <= '9' && parts[i] < 1000 {
			parts[i] = 10*parts[i] + uint32(text[at]-'0')
			at++
		}
		if at < len(text) && text[at] != '.' {
			break
		}
		at++
	}
	return parts[0]*10000 + parts[1]*100 + parts[2]
}

// mayPipeline reports whether a server accepts commands before it has answered the ones before.
// Some forks of MySQL before 8 hang (mysql-net/MySqlConnector#486).
func mayPipeline(version string, mariadb bool) bool {
	if mariadb {
		return versionID(version) >= 100200
	}
	return versionID(version) >= 80000
}

// errNoSecret is why weir cannot open a backend by itself.
var errNoSecret = errors.New("weir has nothing to log in with as this user: each login of a client brings one connection, and there is none left (list the user's password to let weir open more)")

// DialFailed answers those who wait: at once if the server refuses this user or database,
// otherwise when they have waited long enough, since servers restart.
func (p *pool) DialFailed(err error) {
	if _, anyones := lacksRoom(err); anyones {
		p.ConnManager().Refused()
	}
	if !p.NotDialed(err) {
		return
	}
	switch mywire.CodeOf(err) {
	case mywire.ErrAccessDenied, mywire.ErrDBAccessDenied, mywire.ErrUnknownDatabase:
		p.failWaiting(0, p.dialProblem())
	}
}

// Awaits implements core.Dialect.
func (p *pool) Awaits(err error) {
	if code := mywire.CodeOf(err); code != 0 && code != mywire.ErrServerShutdown {
		return // it answers
	}
	s := p.l.srv
	s.AwaitRecovery(func(ctx context.Context) error {
		_, err := s.asker.ask(ctx, s)
		return err
	})
}

// dialProblem returns the error for those who wait while no backend can be opened. It passes
// the server's message on unchanged.
func (p *pool) dialProblem() *mywire.Error {
	var e *mywire.Error
	if errors.As(p.DialErr, &e) {
		out := *e
		return &out
	}
	return mywire.NewError(mywire.ErrTooManyConnections, "weir cannot reach the server: %v (check that it runs and that weir's --mysql names it)", p.DialErr)
}

// failWaiting refuses everything that has waited at least minWait. If only a login could bring
// a backend, the sessions end: drivers keep connections that answer a ping, and would not log
// in again.
func (p *pool) failWaiting(minWait time.Duration, e *mywire.Error) {
	ends := p.Unreachable() && errors.Is(p.DialErr, errNoSecret)
	lose := func(u *unit) {
		c := u.c
		if c.lost(u, e); ends && !c.s.Closed {
			c.s.CloseAfterFlush()
		}
	}
	for _, ln := range p.lanes.all {
		ln.expire(minWait, func(u *unit) {
			p.Stats.Timeouts++
			lose(u)
		})
	}
	p.Expire(minWait, func(w waiter) {
		switch {
		case w.Client != nil && ends:
			w.Client.fatal(e)
			w.Client.state.leave(stateWaiting)
		case w.Client != nil:
			w.Client.state.leave(stateWaiting)
			w.Client.refuse(e)
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

// Expires implements core.Dialect: a read's wait for a slot ends with the queue timeout; a
// write waits for a lock as long as its client would.
func (p *pool) Expires(u *unit) bool { return u.read }

// lose removes a backend whose connection has ended.
func (p *pool) lose(b *backend, err error) {
	p.Lose(b)
	if !b.greeted && !b.Doomed && !b.Retired {
		p.DialFailed(fmt.Errorf("the server closed the connection right after the login: %w", err))
	}
	if b.Depth() > 0 || b.owner != nil {
		p.l.srv.Log.Warn("backend connection lost", "pool", p.key.String(), "connection", b.id, "mode", b.Mode.String(), "in_flight", b.Depth(), "error", fmt.Sprint(err))
	}
}

// Tick enforces the pool's timeouts.
func (p *pool) Tick() {
	limit := p.Limits.QueueTimeout
	if p.Unreachable() {
		p.failWaiting(p.l.srv.Patience(), p.dialProblem())
	}
	if limit > 0 && p.Waiting() > 0 {
		e := mywire.NewError(mywire.ErrTooManyConnections,
			"weir: no backend of pool %s became free within %s: %s; %d statements wait; raise --pool-size, shorten transactions, or raise --queue-timeout",
			p.key, limit, p.uses(), p.Waiting())
		switch {
		case p.Paused:
			e = p.pausedError()
		case p.DialErr != nil && len(p.Backends) == 0: // one may be being opened just now
			e = p.dialProblem()
		}
		p.failWaiting(limit, e)
	}
	p.ConnManager().Overdue(endOverdue)
	p.learnAgain()
	p.Reap()
	if p.Waiting() > 0 {
		p.Wake()
	}
	p.lanes.all.Tick(p.l.Now, p.Slots())
}

// Replaceable reports whether a backend may be closed for its age: not if only the next login
// could bring another one while clients would have to wait for it.
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

// count records an answered unit.
func (p *pool) count(u *unit, path sight.Path) {
	p.Stats.Bytes += uint64(u.bytes)
	r := sight.Run{
		Took: p.l.Now - u.queuedAt + u.early, Server: u.took, Rows: u.rows, Path: path,
		Pinned: u.c.pins.held != 0, Failed: u.failed,
	}
	if !u.failed && u.hasStatus() {
		r.Rows += u.ok.AffectedRows // 0 if it has rows
	}
	if u.failed && u.shape != nil {
		u.shape.Errors++
	}
	p.Stats.Count(u.shape, &r)
	if path != sight.Cached {
		p.ConnManager().Answered()
	}
	if slow := p.l.cfg.SlowLog; u.trace != nil || slow > 0 && r.Took >= slow {
		u.report(&r)
	}
}
