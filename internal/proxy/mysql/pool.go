package mysql

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/netloop"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/proxy/sqlscan/myscan"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// classCaps are the capabilities of a client that its backends must share,
// because they change what the server does or how it words its answers.
const classCaps = mywire.CapDeprecateEOF | mywire.CapFoundRows | mywire.CapMultiStatements | mywire.CapMultiResults |
	mywire.CapPSMultiResults | mywire.CapIgnoreSpace | mywire.CapInteractive | mywire.CapLocalFiles | mywire.CapNoSchema |
	mywire.CapODBC | mywire.CapExpiredPasswords | mywire.CapExtendedMetadata | mywire.CapBulkOperations | mywire.CapBulkUnitResults

// poolKey names a pool: backends are never shared across users, nor among
// clients to whom the server would speak differently. The database is that of
// the login; another one that a client chooses later is a setting.
type poolKey struct {
	user, database string
	caps           mywire.Caps
	charset        byte // collation number of the login
}

func (k poolKey) String() string { return k.user + "@" + k.database }

// A pool holds a loop's backends for one key, and everything that waits for one
// of them.
type pool struct {
	l   *loop
	key poolKey

	backends []*backend
	free     []*backend // most recently used last
	shared   []*backend // pipelining reads
	dialing  int
	epoch    uint64 // counts the times when all backends were to be renewed
	size     int

	excl  []waiter  // clients, lanes and single units, in order of arrival
	reads []*unit   // shared reads for which no pipeline has room
	apart apart     // statements that run alone, bounded
	late  int       // runs of lanes whose places were given to others
	hot   bool      // on the agenda
	soft  []*client // keep a backend for their diagnostics alone, perhaps

	settings *session.Table
	shapes   *sight.Shapes
	stmts    map[string]*stmt
	// stmtBytes is that of the texts interned since unused ones were last dropped.
	stmtBytes int
	keyBuf    []byte

	lanes  map[laneKey]*lane
	tables tableCache

	facts       poolFacts
	catalog     *catalog
	lockDefault lockWait // of a new session

	readTime time.Duration // what a shared read takes, on average
	moved    int           // reads moved from behind stalled ones lately; see moves
	movedAt  time.Duration

	keepSequences bool // some client reads LASTVAL

	dialErr error // of the last attempt
	dials   netloop.Backoff

	st poolStats
}

// poolFacts are what the first backend told of the server and of its sessions.
type poolFacts struct {
	known     bool
	mariadb   bool
	version   uint32            // as MYSQL_VERSION_ID has it
	text      string            // as the greeting has it
	base      map[string]string // settings of a new session, of those that a login may change
	pipelines bool              // several commands may be under way on one connection
	silent    bool              // it does not tell of changes of sessions
	// tellsInResults: it tells of them, or at least that there are some, where it
	// answers with rows.
	tellsInResults bool
	confuses       bool            // it tells of variables under the names of others
	galera         bool            // the step from id to id changes as nodes come and go
	fixed          map[string]bool // session variables that change by themselves and that nobody can set
	told           []string        // variables of which sessions are told by default, in lower case; see stateFor
	tellsGTID      bool            // sessions are told the GTIDs of their transactions by default
	// initConnect is what the server runs for a new session of the account, and not
	// for one that is reset.
	initConnect string
	reset       map[string]string // settings of a session that is reset, where they are others than base
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
		catalog:  l.catalogFor(key.user),
	}
	l.Pools[key] = p
	l.PoolList = append(l.PoolList, p)
	return p
}

// shape finds what is known of statements like sql.
func (p *pool) shape(sql string, mode myscan.Mode, verb myscan.Verb) *sight.Shape {
	return p.shapes.Of(myscan.Fingerprint(sql, mode), verb.String(), func(limit int) string { return myscan.Normalize(sql, mode, limit) })
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

// take removes a free backend and returns nil if there is none. The best one is
// that on which the client's last statement ran, and nothing since; then one in
// the same settings, and among those one to which nobody is likely to return.
func (p *pool) take(set *session.Set, c *client) *backend {
	if c != nil && p.lastForShared() {
		return nil
	}
	best, rank := -1, -1
	for i, b := range p.free {
		r := 0
		if b.set == set {
			r += 2
		}
		if b.lastUser == nil || b.lastUser.s.Closed {
			r++
		}
		if c != nil && b.lastUser == c {
			r = 4
			if c.last.on == b {
				r = 5 // what its last statement left is there
			}
		}
		if r > rank {
			best, rank = i, r
		}
	}
	if best < 0 {
		return nil
	}
	b := p.free[best]
	p.free = slices.Delete(p.free, best, best+1)
	return b
}

// keepForShared is the size from which on a pool keeps one backend for what
// shares and for what ends by itself.
const keepForShared = 8

// lastForShared tells whether no further client may have a backend of its own.
// A client may hold it for as long as it likes, and may hold it until another
// has its answer. If all backends were held, that would be a deadlock.
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
	b.mode, b.owner, b.lane, b.sequencer = modeFree, nil, nil, nil
	b.s.Throttle(false) // its last client may still have much to read
	if b.status&mywire.StatusInTrans != 0 {
		// A text was not what weir took it for. Anyone who came next would be in
		// the transaction that it began.
		p.l.srv.Log.Error("backend left in a transaction; closed", "pool", p.key.String(), "connection", b.id)
		b.doomed = true
	}
	if b.doomed || b.retired {
		b.s.Close(io.EOF)
		return
	}
	if !b.polled {
		b.freeSince = p.l.Now
	}
	b.polled = false
	p.free = append(p.free, b)
	if len(p.excl) > 0 || len(p.reads) > 0 {
		p.wake()
	}
}

func without(list []*backend, b *backend) []*backend {
	if i := slices.Index(list, b); i >= 0 {
		return slices.Delete(list, i, i+1)
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
	b := &backend{
		p: p, id: conn.id, caps: conn.caps, status: conn.status,
		set: p.settings.Empty(), prepared: make(map[*stmt]*instance), born: p.l.Now,
	}
	s, err := p.l.Watch(conn.fd, b)
	if err != nil {
		conn.close()
		p.dialFailed(fmt.Errorf("watch backend socket: %w", err))
		return
	}
	b.s = s
	p.backends = append(p.backends, b)
	p.st.Opened++
	b.mode = modeOwn
	if p.facts.text != conn.version {
		p.facts = poolFacts{text: conn.version, mariadb: conn.mariadb, version: versionID(conn.version), pipelines: mayPipeline(conn.version, conn.mariadb)}
	}
	b.introduce()
}

// introduce prepares a new or reset session: the server is to tell of all
// changes. The first one also says what sessions are like.
func (b *backend) introduce() {
	p := b.p
	b.ask(trackSQL, b.tracked)
	b.ask("SELECT @@auto_increment_increment, @@max_allowed_packet", func(u *unit) {
		if !p.facts.mariadb {
			b.tellsInResults(u)
		}
		if rows := u.result(p.key.caps); len(rows) == 1 && len(rows[0]) == 2 {
			b.step, b.maxPacket = parseUint(rows[0][0]), int(min(parseUint(rows[0][1]), 1<<30))
			b.greeted = true
			p.dialErr = nil
			p.dials.Succeeded()
			return
		}
		b.doomed = true
	})
	b.ask(lockSQL, p.learnLocks)
	if !p.facts.known {
		if p.facts.mariadb {
			b.ask(fixedSQL, p.learnFixed)
			b.ask(resultCanary, b.tellsInResults)
			b.ask(confusionCanary, b.confuses)
			// That the settings are back is told with the next change that is told of,
			// and would be laid to a client's statement.
			b.ask(trackSQL, func(*unit) {})
		}
		b.ask(factsSQL(p.facts.mariadb), p.learn)
		b.ask(noWarnings, func(*unit) {}) // of information_schema, and what it made of the current database
		b.endLook()
	}
	if k := p.catalog; !k.known || k.stale && k.loading == 0 {
		k.load(b)
	}
}

// trackSQL has the server tell of every change of the session's state.
const trackSQL = "SET SESSION session_track_system_variables='*', session_track_schema=1, session_track_state_change=1"

// baseNames are the settings that a session may begin with other values than
// the global ones: DEFAULT would not bring them back.
var baseNames = []string{
	"character_set_client", "character_set_results", "character_set_connection", "collation_connection",
	"sql_mode", "time_zone", "autocommit", "wait_timeout",
}

func factsSQL(mariadb bool) string {
	sql := "SELECT 0, @@global.session_track_system_variables, @@global.session_track_gtids"
	if mariadb {
		sql = "SELECT @@wsrep_on, @@global.session_track_system_variables, 'OFF'"
	}
	// For who has one of these, it is not run.
	sql += ", IF(EXISTS (SELECT 1 FROM information_schema.USER_PRIVILEGES u WHERE u.GRANTEE = " + granteeSQL +
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
const factsBefore = 4

// resetNames are those of baseNames that MariaDB's COM_RESET_CONNECTION brings to the
// global values, whatever the login has made of them: a client that wants IGNORE_SPACE
// has it until then. MySQL leaves it.
var resetNames = []string{"sql_mode", "time_zone", "autocommit"}

// learn keeps what the server says of its sessions.
func (p *pool) learn(u *unit) {
	if u.err != nil && u.err.Code == mywire.ErrNetRead {
		return // the next backend is asked
	}
	rows := u.result(p.key.caps)
	p.facts.known = true
	p.wake()
	if len(rows) != 1 || len(rows[0]) != factsBefore+len(baseNames)+len(resetNames) {
		p.l.srv.Log.Warn("server facts not known; writes are not grouped", "pool", p.key.String(), "error", fmt.Sprint(u.err))
		p.facts.pipelines = false
		return
	}
	p.facts.galera = string(rows[0][0]) == "1"
	p.facts.learnTold(string(rows[0][1]), string(rows[0][2]))
	p.facts.base = make(map[string]string, len(baseNames))
	for i, n := range baseNames {
		p.facts.base[n] = string(rows[0][factsBefore+i])
	}
	p.facts.reset = make(map[string]string)
	for i, n := range resetNames {
		if value := string(rows[0][factsBefore+len(baseNames)+i]); p.facts.mariadb && value != p.facts.base[n] {
			p.facts.reset[n] = value
		}
	}
	p.facts.initConnect = string(rows[0][factsBefore-1])
	for _, c := range p.l.Clients {
		if c.p == p {
			c.readMode()
		}
	}
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

// versionID reads a version as MYSQL_VERSION_ID has it: 101119 for 10.11.19.
// MariaDB's greetings may have "5.5.5-" in front.
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

// mayPipeline tells whether a server takes commands before it has answered the
// ones before. Forks of MySQL before 8 are known that hang
// (mysql-net/MySqlConnector#486).
func mayPipeline(version string, mariadb bool) bool {
	if mariadb {
		return versionID(version) >= 100200
	}
	return versionID(version) >= 80000
}

// errNoSecret is why weir cannot open a backend by itself.
var errNoSecret = errors.New("weir has nothing to log in with as this user: each login of a client brings one connection, and there is none left (list the user's password to let weir open more)")

// dialFailed tells those who wait, at once if the server refuses this user or
// database, and otherwise when they have waited long enough: servers restart.
func (p *pool) dialFailed(err error) {
	p.st.DialErrors++
	p.dialErr = err
	p.dials.Failed(p.l.Now)
	if len(p.backends) > 0 {
		return
	}
	switch mywire.CodeOf(err) {
	case mywire.ErrAccessDenied, mywire.ErrDBAccessDenied, mywire.ErrUnknownDatabase:
		p.failWaiting(0, p.dialProblem())
	}
}

// dialProblem is the error for those who wait while no backend can be opened.
// What the server said is passed on as it said it.
func (p *pool) dialProblem() *mywire.Error {
	var e *mywire.Error
	if errors.As(p.dialErr, &e) {
		out := *e
		return &out
	}
	return mywire.NewError(mywire.ErrTooManyConnections, "weir cannot reach the server: %v (check that it runs and that weir's --mysql names it)", p.dialErr)
}

// failWaiting answers everything that has waited at least as long as min.
func (p *pool) failWaiting(minWait time.Duration, e *mywire.Error) {
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
			w.c.refuse(e)
		case w.ln != nil:
			w.ln.queued = false
			w.ln.failAll(e)
		case w.u != nil:
			p.freeSlot(w.u)
			w.u.c.lost(w.u, e)
		}
	}
	p.dropApart(func(u *unit) bool {
		if u.c == nil || u.c.s.Closed || u.dead {
			return true
		}
		if !u.read || p.l.Now-u.apartAt < minWait {
			return false // a write waits for a lock as long as its client would
		}
		p.st.Timeouts++
		u.c.lost(u, e)
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
		u.c.lost(u, e)
	}
}

// lose forgets a backend whose connection is gone.
func (p *pool) lose(b *backend, err error) {
	p.backends = without(p.backends, b)
	p.free = without(p.free, b)
	p.shared = without(p.shared, b)
	b.endGhosts()
	p.st.Closed++
	if !b.greeted && !b.doomed && !b.retired {
		p.dialFailed(fmt.Errorf("the server closed the connection right after the login: %w", err))
	}
	if b.depth() > 0 || b.owner != nil {
		p.l.srv.Log.Warn("backend connection lost", "pool", p.key.String(), "connection", b.id, "mode", b.mode.String(), "in_flight", b.depth(), "error", fmt.Sprint(err))
	}
}

// Tick enforces the pool's limits in time.
func (p *pool) Tick() {
	cfg := p.l.cfg
	if p.dialErr != nil && len(p.backends) == 0 && p.dialing == 0 {
		p.failWaiting(cfg.ConnectPatience, p.dialProblem())
	}
	if cfg.QueueTimeout > 0 && (len(p.excl) > 0 || len(p.reads) > 0 || p.apart.waiting() > 0) {
		p.failWaiting(cfg.QueueTimeout, mywire.NewError(mywire.ErrTooManyConnections,
			"weir: no backend of pool %s became free within %s: %s; %d statements wait; raise --pool-size, shorten transactions, or raise --queue-timeout",
			p.key, cfg.QueueTimeout, p.uses(), len(p.excl)+len(p.reads)+p.apart.waiting()))
	}
	for i := 0; i < len(p.free); i++ {
		b := p.free[i]
		idle := cfg.ServerIdleTimeout > 0 && p.l.Now-b.freeSince > cfg.ServerIdleTimeout
		old := cfg.ServerLifetime > 0 && p.l.Now-b.born > cfg.ServerLifetime
		if (idle || old) && p.replaceable() {
			b.goodbye() // leaves p.free
			i--
		}
	}
	if len(p.excl) > 0 || len(p.reads) > 0 || p.apart.waiting() > 0 {
		p.wake()
	}
	for k, ln := range p.lanes {
		ln.relieve()
		if ln.idleFor(p.l.Now) > laneKeep {
			delete(p.lanes, k)
		}
	}
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
		p.backends[len(p.backends)-1].goodbye()
	}
}

// count records an answered unit.
func (p *pool) count(u *unit, now time.Duration) {
	p.st.Units++
	if u.shape != nil {
		u.shape.Runs++
		if u.failed {
			u.shape.Errors++
		}
	}
	if u.failed {
		p.st.Errors++
	}
	p.st.Bytes += uint64(u.bytes)
	p.st.Latency.Record(int64(now - u.queuedAt))
}
