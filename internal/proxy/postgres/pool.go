package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/netloop"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/proxy/sqlscan"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// poolKey names a pool: backends are never shared across databases or users.
type poolKey struct{ database, user string }

func (k poolKey) String() string { return k.user + "@" + k.database }

// A pool holds a loop's backends for one user and database, and everything
// that waits for one of them.
type pool struct {
	l   *loop
	key poolKey

	backends []*backend
	free     []*backend // most recently used last
	shared   []*backend // pipelining reads
	dialing  int
	epoch    uint64 // counts the times when all backends were to be renewed
	size     int

	excl     []waiter      // clients, lanes and single units, in order of arrival
	reads    []*unit       // shared reads for which no pipeline has room
	late     int           // runs of lanes whose places were given to others
	apart    apart         // statements that run alone, bounded
	readTime time.Duration // what a shared read takes, on average
	moved    int           // reads moved behind stalled ones lately; see moves
	movedAt  time.Duration
	hot      bool // on the agenda

	settings  *session.Table
	shapes    *sight.Shapes
	stmts     map[string]*stmt
	stmtSeq   uint64
	stmtBytes int // of the keys of stmts
	keyBuf    []byte

	lanes    map[laneKey]*lane
	tables   tableCache
	greeting map[*session.Set][]pgwire.Param // ParameterStatus by settings
	base     map[string]string               // ... that the last new connection was told
	// baseBefore is what base was before its last change.
	baseBefore map[string]string
	renewed    time.Duration // when base last had connections replaced

	// Facts learned from the first backend.
	known         bool
	factsAt       time.Duration
	version       string        // server_version
	syncDefault   string        // synchronous_commit by default
	lockDefault   time.Duration // lock_timeout by default; 0 for none
	canFlush      bool          // may call pg_logical_emit_message
	guard, marker *stmt

	proof   *proof        // of the database
	auditAt time.Duration // when a free backend is asked next

	keepSequences bool // some client reads currval or lastval across transactions

	dialErr error // of the last attempt
	dials   netloop.Backoff

	st poolStats
}

type poolStats struct {
	core.PoolStats
	pins [len(pinNames)]uint64
}

func (l *loop) pool(key poolKey) *pool {
	if p := l.Pools[key]; p != nil {
		return p
	}
	cfg := l.cfg
	p := &pool{
		l: l, key: key,
		size:     max(1, (cfg.PoolSize+len(l.srv.Loops)-1)/len(l.srv.Loops)),
		settings: l.Settings,
		shapes:   l.Shapes,
		stmts:    make(map[string]*stmt),
		lanes:    make(map[laneKey]*lane),
		greeting: make(map[*session.Set][]pgwire.Param),
		proof:    l.proof(key.database),
	}
	p.guard = p.ownStmt(guardSQL)
	p.marker = p.ownStmt(markerSQL)
	l.Pools[key] = p
	l.PoolList = append(l.PoolList, p)
	return p
}

// shape finds what is known of statements like sql.
func (p *pool) shape(t *sqlscan.Text, verb sqlscan.Verb) *sight.Shape {
	return p.shapes.Of(t.Fingerprint(), verb.String(), func(limit int) string { return sqlscan.Normalize(t.String(), limit) })
}

// ownStmt is a statement of weir's own.
func (p *pool) ownStmt(sql string) *stmt {
	p.stmtSeq++
	return &stmt{srvName: fmt.Sprintf("%sown_%d", srvPrefix, p.stmtSeq), tail: append(append([]byte(sql), 0), 0, 0), sql: sql, shape: &sight.Shape{}}
}

// internFor is intern for a client. Those who share the statement have its
// settings in common, and so read its literals alike.
func (p *pool) internFor(c *client, tail []byte) *stmt {
	st := p.intern(c.set, c.lexical(), tail)
	st.reads(c.lexical())
	p.current(st)
	return st
}

// wake has the pool's queues looked at, later in this turn.
func (p *pool) wake() {
	if !p.hot {
		p.hot = true
		p.l.Agenda.Pool(p)
	}
}

// Look looks at the queues.
func (p *pool) Look() {
	p.hot = false
	p.dispatch()
}

// take removes a free backend, best one in the same settings, and returns nil
// if there is none. For a client that reads its sequences' values it is the one
// where it last wrote, if that is free.
func (p *pool) take(set *session.Set, c *client) *backend {
	if c != nil && p.lastForShared() {
		return nil
	}
	best, bestFit := -1, 0
	made := false // looked at when needed
	for i := len(p.free) - 1; i >= 0; i-- {
		b := p.free[i]
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
				fit = 2 // those without settings of their own making are kept for those who have none
			}
		}
		if c != nil && c.wantOwn && b.lastWriter == c {
			fit = 4
		}
		if fit > bestFit {
			best, bestFit = i, fit
			if fit >= 3 && (c == nil || !c.wantOwn || fit == 4) {
				break
			}
		}
	}
	if best < 0 {
		p.exchange()
		return nil
	}
	return p.pick(best)
}

// pick removes a free backend.
func (p *pool) pick(i int) *backend {
	b := p.free[i]
	p.free = append(p.free[:i], p.free[i+1:]...)
	return b
}

// exchange makes room for a new backend where all that are free hold settings
// that others made up.
func (p *pool) exchange() {
	if len(p.free) > 0 && len(p.backends)+p.dialing >= p.size && p.l.srv.mayDial(p.key) {
		p.closeFree(p.free[0])
	}
}

// keepForShared is the size from which on a pool keeps one backend for what
// shares and for what ends by itself.
const keepForShared = 8

// lastForShared tells whether no further client may have a backend of its own.
// A client may hold it for as long as it likes, and may hold it until another
// has its answer: pgbench prepares a statement for one session while those that
// are in transactions wait in the same thread. If all backends were held, that
// would be a deadlock.
func (p *pool) lastForShared() bool {
	return p.size >= keepForShared && p.l.cfg.ReadLanes > 0 &&
		len(p.backends)-len(p.free)-len(p.shared) >= p.size-1
}

// release takes a backend back.
func (p *pool) release(b *backend) {
	if b.s.Closed {
		return
	}
	if b.mode == modeShared {
		p.shared = without(p.shared, b)
	}
	b.mode, b.owner, b.lane = modeFree, nil, nil
	if b.status != pgwire.StatusIdle {
		// A text was not what weir took it for. Anyone who came next would be in
		// the transaction that it began.
		p.l.srv.Log.Error("backend left in a transaction; closed", "pool", p.key.String(), "pid", b.pid)
		b.doomed = true
	}
	if b.doomed || b.retired {
		b.s.Close(io.EOF)
		return
	}
	b.freeSince = p.l.Now
	p.free = append(p.free, b)
	if len(p.excl) > 0 || len(p.reads) > 0 {
		p.wake()
	}
}

func without(list []*backend, b *backend) []*backend {
	for i, x := range list {
		if x == b {
			return append(list[:i], list[i+1:]...)
		}
	}
	return list
}

// grow opens backends for what waits, up to the pool's size.
func (p *pool) grow() {
	want := len(p.excl)
	if len(p.reads) > 0 && len(p.shared) < p.l.cfg.ReadLanes {
		want++
	}
	if want == 0 || p.l.Draining() {
		return
	}
	if !p.l.srv.mayDial(p.key) {
		if p.dialErr == nil {
			p.dialErr = errNoSecret
		}
		return
	}
	for p.dialing < want && len(p.backends)+p.dialing < p.size && p.dials.Start(p.l.Now, p.size) {
		p.dial()
	}
}

// dial opens one backend in the background.
func (p *pool) dial() {
	p.dialing++
	srv, epoch := p.l.srv, p.epoch
	srv.Background.Go(func() {
		ctx, cancel := context.WithTimeout(srv.DialCtx, srv.cfg().ConnectTimeout)
		defer cancel()
		conn, err := srv.dialBackend(ctx, p.key)
		posted := p.l.Post(func() {
			p.dialing--
			if err != nil {
				p.dialFailed(err)
				return
			}
			if p.epoch != epoch {
				conn.close() // out of date already
				p.wake()
				return
			}
			p.adopt(conn)
		})
		if !posted && err == nil {
			conn.close()
		}
	})
}

// adopt takes a logged-in connection into the pool.
func (p *pool) adopt(conn *backendConn) {
	p.fresh(conn.params)
	b := &backend{
		p: p, pid: conn.pid, secret: conn.secret, params: conn.params,
		status: pgwire.StatusIdle, set: p.settings.Empty(), prepared: make(map[*stmt]uint64),
		born: p.l.Now, app: conn.params["application_name"], startApp: conn.params["application_name"],
	}
	s, err := p.l.Watch(conn.fd, b)
	if err != nil {
		conn.close()
		p.dialFailed(fmt.Errorf("watch backend socket: %w", err))
		return
	}
	b.s = s
	b.lex = lexical{b.params[encodingName], b.params[conformingName]}
	b.bytewise = bytewise[b.lex.encoding]
	p.backends = append(p.backends, b)
	p.st.Opened++
	b.mode = modeOwn
	if v := b.params["server_version"]; v != p.version {
		p.version, p.known = v, false
		clear(p.greeting)
	}
	if p.known && !p.proof.ready {
		p.proof.begin(b)
		return
	}
	if p.known {
		p.release(b)
		p.wake()
		return
	}
	b.ask(factsSQL, func(u *unit) {
		p.learn(u)
		if !p.proof.ready && !b.s.Closed {
			p.proof.begin(b)
		}
	})
}

// factsSQL asks for the facts. The function that flushes the log is looked for
// by its first three arguments, which are all that weir gives: PostgreSQL 17 added
// a fourth, with a default.
const factsSQL = `SELECT (SELECT setting FROM pg_catalog.pg_settings WHERE name = 'lock_timeout'),
 pg_catalog.current_setting('synchronous_commit'),
 NOT pg_catalog.pg_is_in_recovery() AND EXISTS (SELECT FROM pg_catalog.pg_proc p
  WHERE p.pronamespace = 'pg_catalog'::pg_catalog.regnamespace AND p.proname = 'pg_logical_emit_message'
  AND p.pronargs - p.pronargdefaults <= 3 AND p.pronargs >= 3
  AND p.proargtypes[0] = 'pg_catalog.bool'::pg_catalog.regtype AND p.proargtypes[1] = 'pg_catalog.text'::pg_catalog.regtype
  AND p.proargtypes[2] = 'pg_catalog.text'::pg_catalog.regtype
  AND pg_catalog.has_function_privilege(p.oid, 'EXECUTE'))`

// factsKeep is how old the facts may be while there are lanes: a reload of the
// server's configuration may have changed what a commit promises by default.
const factsKeep = 5 * time.Second

const markerSQL = `SELECT pg_catalog.set_config('synchronous_commit', $1, true), pg_catalog.pg_logical_emit_message(true, $2, '')`

// learn keeps what the server says of itself. Without an answer the lane that
// needs these facts stays off.
func (p *pool) learn(u *unit) {
	if u.err != nil && u.err.Code == pgwire.CodeConnectionFailure {
		return // the next backend is asked
	}
	p.known = true
	if u.err != nil || len(u.rows) != 1 || len(u.rows[0]) != 3 {
		p.l.srv.Log.Warn("server facts not known; the solo-commit lane is off", "pool", p.key.String(), "error", fmt.Sprint(u.err))
		return
	}
	p.factsAt = p.l.Now
	p.lockDefault, _ = readTimeout(string(u.rows[0][0]))
	p.syncDefault = string(u.rows[0][1])
	p.canFlush = string(u.rows[0][2]) == "t"
}

// errNoSecret is why weir cannot open a backend by itself.
var errNoSecret = errors.New("weir has nothing to log in with as this user: each login of a client brings one connection, and there is none left (list the user's password, or SCRAM secret, to let weir open more)")

// dialFailed tells those who wait, at once if the server refuses this user or
// database, and otherwise when they have waited long enough: servers restart.
func (p *pool) dialFailed(err error) {
	p.st.DialErrors++
	p.dialErr = err
	p.dials.Failed(p.l.Now)
	if len(p.backends) > 0 {
		return
	}
	switch pgwire.CodeOf(err) {
	case pgwire.CodeInvalidPassword, pgwire.CodeInvalidAuthorization, pgwire.CodeInvalidDatabase:
		p.failWaiting(0, p.dialProblem())
	}
}

// dialProblem is the error for those who wait while no backend can be opened.
// What the server said is passed on as it said it.
func (p *pool) dialProblem() *pgwire.Error {
	var e *pgwire.Error
	if errors.As(p.dialErr, &e) {
		out := *e
		return &out
	}
	out := pgwire.NewError(pgwire.CodeConnectionUnable, "weir cannot reach the server: %v", p.dialErr)
	out.Hint = "Check that the server runs and that weir's --postgres names it."
	return out
}

// failWaiting answers everything that has waited at least as long as min.
func (p *pool) failWaiting(minWait time.Duration, e *pgwire.Error) {
	old := p.excl
	p.excl = nil
	for _, w := range old {
		if w.gone() {
			if w.u != nil {
				p.freeSlot(w.u)
			}
			continue
		}
		if p.l.Now-w.since < minWait || w.ask != nil {
			p.excl = append(p.excl, w)
			continue
		}
		p.st.Timeouts++
		switch {
		case w.c != nil:
			w.c.waiting = false
			if !w.c.greeted {
				f := *e
				f.Severity, f.SeverityRaw = "FATAL", "FATAL"
				w.c.fatal(&f)
			} else {
				w.c.refuse(plain(e))
			}
		case w.ln != nil:
			w.ln.queued = false
			w.ln.failAll(plain(e))
		case w.u != nil:
			p.freeSlot(w.u)
			w.u.c.lost(w.u, plain(e))
		}
	}
	p.dropApart(func(u *unit) bool {
		if u.c == nil || u.c.s.Closed || u.dead {
			return true
		}
		if p.l.Now-u.apartAt < minWait {
			return false
		}
		p.st.Timeouts++
		u.c.lost(u, plain(e))
		return true
	})
	reads := p.reads
	p.reads = nil
	for _, u := range reads {
		if u.c == nil || u.c.s.Closed || u.dead {
			continue
		}
		if p.l.Now-u.queuedAt < minWait {
			p.reads = append(p.reads, u)
			continue
		}
		p.st.Timeouts++
		u.c.lost(u, plain(e))
	}
}

// plain is the error as one that leaves the session alive.
func plain(e *pgwire.Error) *pgwire.Error {
	out := *e
	out.Severity, out.SeverityRaw = "ERROR", "ERROR"
	return &out
}

// lose forgets a backend whose connection is gone.
func (p *pool) lose(b *backend, err error) {
	p.backends = without(p.backends, b)
	p.free = without(p.free, b)
	p.shared = without(p.shared, b)
	if b.ghosts {
		b.ghosts = false
		p.apart.ghosts--
	}
	p.st.Closed++
	if !b.served && !b.doomed && !b.retired {
		p.dialFailed(fmt.Errorf("the server closed the connection right after the login: %w", err))
	}
	if b.depth() > 0 || b.owner != nil {
		p.l.srv.Log.Warn("backend connection lost", "pool", p.key.String(), "pid", b.pid, "mode", b.mode.String(), "in_flight", b.depth(), "error", fmt.Sprint(err))
	}
}

// Tick enforces the pool's limits in time.
func (p *pool) Tick() {
	cfg := p.l.cfg
	if p.dialErr != nil && len(p.backends) == 0 && p.dialing == 0 {
		p.failWaiting(cfg.ConnectPatience, p.dialProblem())
	}
	if cfg.QueueTimeout > 0 && (len(p.excl) > 0 || len(p.reads) > 0 || p.apart.waiting() > 0) {
		e := pgwire.NewError(pgwire.CodeTooManyConnections,
			"weir: no backend of pool %s became free within %s", p.key, cfg.QueueTimeout)
		e.Detail = fmt.Sprintf("%d of %d backends are in use, %d statements wait.", len(p.backends)-len(p.free), p.size, len(p.excl)+len(p.reads)+p.apart.waiting())
		e.Hint = "Raise --pool-size, shorten transactions, or raise --queue-timeout."
		p.failWaiting(cfg.QueueTimeout, e)
	}
	for i := 0; i < len(p.free); i++ {
		b := p.free[i]
		idle := cfg.ServerIdleTimeout > 0 && p.l.Now-b.freeSince > cfg.ServerIdleTimeout
		old := cfg.ServerLifetime > 0 && p.l.Now-b.born > cfg.ServerLifetime
		if (idle || old) && p.replaceable() {
			p.closeFree(b)
			i--
		}
	}
	if len(p.excl) > 0 || len(p.reads) > 0 || p.apart.waiting() > 0 {
		p.wake()
	}
	p.proof.tick(p)
	p.audit()
	if p.known && len(p.lanes) > 0 && p.l.Now-p.factsAt > factsKeep {
		p.factsAt = p.l.Now
		p.askIn(p.settings.Empty(), factsSQL, p.learn)
	}
	for k, ln := range p.lanes {
		ln.relieve()
		if ln.idleFor(p.l.Now) > laneKeep {
			delete(p.lanes, k)
		}
	}
}

// closeFree closes a free backend, which leaves p.free.
func (p *pool) closeFree(b *backend) {
	b.s.Write(pgwire.AppendTerminate(nil))
	b.s.Flush()
	b.s.Close(io.EOF)
}

// replaceable tells whether a backend may be closed for its age: not where only
// the next login could bring another and there are clients who would wait for it.
func (p *pool) replaceable() bool {
	if p.l.srv.mayDial(p.key) {
		return true
	}
	for _, c := range p.l.Clients {
		if c.p == p {
			return false
		}
	}
	return true
}

// CloseAll ends every backend.
func (p *pool) CloseAll() {
	for len(p.backends) > 0 {
		b := p.backends[len(p.backends)-1]
		if !b.s.Closed {
			b.s.Write(pgwire.AppendTerminate(nil))
			b.s.Flush()
		}
		b.s.Close(io.EOF)
	}
}

// count records an answered unit.
func (p *pool) count(u *unit, now time.Duration) {
	p.st.Units++
	if u.shape != nil {
		u.shape.Runs++
	}
	if u.failed {
		p.st.Errors++
	}
	p.st.Bytes += uint64(u.bytes)
	p.st.Latency.Record(int64(now - u.queuedAt))
}
