package mysql

import (
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/sqlscan/myscan"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// A catalog knows the names whose effects a statement's text does not show: views, stored
// functions and procedures, and tables whose triggers change the session. It is what the server
// shows to one account, so it also knows what that account cannot see: a hidden body counts as
// opaque, and so do triggers if the account lacks the privilege to see any. Most databases have
// no name with effects, and then a statement costs one comparison.
//
// Changes of the catalog through weir make it stale at once. Changes by others are found by
// polling the server's own counters, see catalogPoll. While a catalog is stale nothing is
// shared; statements that run meanwhile are judged after the next load, before another client
// gets their connection.
type catalog struct {
	l     *loop
	user  string
	trust []string // functions that are assumed not to change the session

	known    bool
	stale    bool
	loading  int           // loads in progress
	begun    uint64        // loads begun so far; each has its number from this
	needs    uint64        // number of the first load that began after it was last stale
	have     uint64        // number of the load that it is from
	epoch    uint64        // counts the successful loads
	seen     time.Duration // when the counters were last queried
	changed  time.Duration // when they last differed
	readAt   time.Duration // when it was last loaded
	polling  bool
	used     bool   // since the last poll
	failures int    // loads that failed in a row
	missed   int    // loads in a row that could not ask the DSN's user for triggers
	count    string // the counters

	reads    places          // views
	writes   places          // tables with triggers, and views over such
	inserts  places          // ... that an INSERT fires, if it updates no existing row
	defaults places          // tables with columns whose DEFAULT has effects
	routines places          // all that the account can see
	blind    map[string]bool // databases in which the account cannot see triggers
	unseen   map[string]bool // tables with triggers that weir knows and the account cannot see
	nothing  bool            // no name has effects

	waiting []*client    // clients whose statements are to be judged
	callers []*factsWait // writes that are looked at again when more is known
}

const (
	// catalogPoll is how often weir queries the server's counters of statements that change a
	// catalog.
	catalogPoll = time.Second
	// catalogOld is the age from which a catalog that could not be polled counts as stale. It
	// bounds how long weir may miss a change that it does not see.
	catalogOld = 3 * time.Second
	// catalogSettles is how long after a change every poll loads the catalog: the server counts
	// a statement when it begins, and it may wait for locks.
	catalogSettles = 30 * time.Second
	// maxFailures is how many loads may fail in a row before those who wait for one keep their
	// connections, and how many polls in a row load it because the DSN's user could not be asked.
	maxFailures = 3
	// catalogKeep is the age from which it is loaded again in any case.
	catalogKeep = time.Minute
)

// catalogFor returns the catalog of an account on this loop.
func (l *loop) catalogFor(user string) *catalog {
	k := l.catalogs[user]
	if k == nil {
		k = &catalog{l: l, user: user, trust: l.cfg.TrustFunctions}
		l.catalogs[user] = k
	}
	return k
}

// ready reports whether the catalog is up to date. While a stale one is loaded, its content is
// the old one.
func (k *catalog) ready() bool {
	return k.known && !k.stale && k.have >= k.needs && k.l.Now-k.seen < catalogOld
}

// view returns a copy of the catalog for reach on another thread: each load makes its maps
// anew. epoch identifies the load; it is 0 if the catalog is not ready.
func (k *catalog) view() (view *catalog, epoch uint64) {
	now := *k
	if k.ready() {
		epoch = k.epoch
	}
	return &now, epoch
}

// trusted reports whether the configuration declares everything hidden harmless.
func (k *catalog) trusted() bool { return slices.Contains(k.trust, "*") }

const (
	// allRows overrides the sql_select_limit of a session.
	allRows = " LIMIT 18446744073709551615"

	// Text that is cast to binary comes in UTF-8, whatever character set the session has for
	// results.
	viewsSQL    = "SELECT CAST(TABLE_NAME AS BINARY), CAST(VIEW_DEFINITION AS BINARY), CAST(TABLE_SCHEMA AS BINARY) FROM information_schema.VIEWS WHERE TABLE_SCHEMA NOT IN ('sys', 'information_schema', 'performance_schema')" + allRows
	routinesSQL = "SELECT CAST(ROUTINE_NAME AS BINARY), CASE WHEN ROUTINE_BODY = 'SQL' AND ROUTINE_TYPE IN ('FUNCTION', 'PROCEDURE') THEN CAST(ROUTINE_DEFINITION AS BINARY) END, CAST(SQL_MODE AS BINARY), CAST(ROUTINE_SCHEMA AS BINARY) FROM information_schema.ROUTINES WHERE ROUTINE_SCHEMA <> 'sys'" + allRows
	triggersSQL = "SELECT CAST(EVENT_OBJECT_TABLE AS BINARY), CAST(ACTION_STATEMENT AS BINARY), CAST(SQL_MODE AS BINARY), CAST(EVENT_OBJECT_SCHEMA AS BINARY), CAST(EVENT_MANIPULATION AS BINARY) FROM information_schema.TRIGGERS WHERE EVENT_OBJECT_SCHEMA NOT IN ('sys', 'information_schema', 'performance_schema', 'mysql')" + allRows // MariaDB opens all other tables

	// defaultsSQL lists the column defaults of MariaDB that assign variables. MySQL does not
	// allow those. It costs about as much as viewsSQL: both look at every table.
	defaultsSQL = "SELECT CAST(TABLE_NAME AS BINARY), CAST(COLUMN_DEFAULT AS BINARY), CAST(TABLE_SCHEMA AS BINARY) FROM information_schema.COLUMNS WHERE COLUMN_DEFAULT LIKE '%:=%' AND TABLE_SCHEMA NOT IN ('sys', 'information_schema', 'performance_schema', 'mysql')" + allRows

	// blindSQL lists the databases in which the account cannot see triggers, and returns a row
	// without a name if it sees all routines.
	blindSQL = "SELECT CAST(s.SCHEMA_NAME AS BINARY), CAST(CURRENT_USER() AS BINARY) FROM information_schema.SCHEMATA s WHERE s.SCHEMA_NAME NOT IN ('information_schema', 'performance_schema', 'sys', 'mysql')" +
		" AND NOT EXISTS (SELECT 1 FROM information_schema.USER_PRIVILEGES u WHERE u.GRANTEE = " + granteeSQL + " AND u.PRIVILEGE_TYPE = 'TRIGGER')" +
		" AND NOT EXISTS (SELECT 1 FROM information_schema.SCHEMA_PRIVILEGES p WHERE p.GRANTEE = " + granteeSQL + " AND p.PRIVILEGE_TYPE = 'TRIGGER' AND s.SCHEMA_NAME LIKE p.TABLE_SCHEMA)" +
		" UNION ALL SELECT NULL, NULL FROM information_schema.USER_PRIVILEGES u WHERE u.GRANTEE = " + granteeSQL + " AND u.PRIVILEGE_TYPE = 'SELECT'" + allRows

	granteeSQL = `CONCAT('''', LEFT(CURRENT_USER(), CHAR_LENGTH(CURRENT_USER()) - CHAR_LENGTH(SUBSTRING_INDEX(CURRENT_USER(), '@', -1)) - 1), '''@''', SUBSTRING_INDEX(CURRENT_USER(), '@', -1), '''')`

	// countersSQL counts the statements that change a catalog.
	countersSQL = "SHOW GLOBAL STATUS WHERE Variable_name LIKE 'Com_create_%' OR Variable_name LIKE 'Com_alter_%' OR Variable_name LIKE 'Com_drop_%' OR Variable_name LIKE 'Com_rename_%'" +
		" OR Variable_name LIKE 'Com_grant%' OR Variable_name LIKE 'Com_revoke%' OR Variable_name = 'Uptime_since_flush_status'"
)

// load loads the catalog on a backend on which no client waits for an earlier answer. All
// connections of the account return the same, so any will do.
func (k *catalog) load(b *backend) {
	k.loading++
	k.begun++
	if k.stale || !k.known {
		k.stale, k.needs = false, k.begun
	}
	r := &catalogReader{k: k, number: k.begun, mode: myscan.Mode{MariaDB: b.p.facts.mariadb, Version: b.p.facts.version}}
	read := func(sql string, columns int, row func(row [][]byte)) {
		b.ask(sql, func(u *unit) {
			rows := u.result(b.p.key.caps)
			if u.err != nil {
				r.err = u.err
			}
			for _, x := range rows {
				if len(x) >= columns {
					row(x)
				}
			}
		})
	}
	read(countersSQL, 2, r.counter)
	read(blindSQL, 2, r.blindness)
	if b.p.facts.revokesPartly() {
		read(grantsSQL, 1, func(row [][]byte) { r.revoked(string(row[0])) })
	}
	read(viewsSQL, 3, r.view)
	read(routinesSQL, 4, r.routine)
	read(triggersSQL, 5, r.trigger)
	if b.p.facts.mariadb {
		read(defaultsSQL, 3, r.assigns)
	}
	b.ask(noWarnings, func(u *unit) {
		if u.err != nil && r.err == nil {
			r.err = u.err
		}
		if r.asksDSN() {
			k.seeByDSN(r)
			return
		}
		k.loading--
		k.loaded(r)
	})
	b.endLook()
}

// endLook ends the transaction that a query of information_schema may have begun: MySQL stores
// it in transactional tables.
func (b *backend) endLook() {
	if b.status&mywire.StatusAutocommit == 0 {
		b.ask("ROLLBACK", func(*unit) {})
	}
}

// loaded applies what was loaded, and judges the statements that waited for it.
func (k *catalog) loaded(r *catalogReader) {
	if r.err != nil {
		k.stale = true
		if k.failures++; r.err.Code == mywire.ErrNetRead {
			k.failures = 0
		}
		if k.failures > maxFailures { // otherwise those who wait load it on their own connections
			for _, c := range k.waiting {
				c.texts.unjudged = nil
				c.pins.add(pinOpaque)
			}
			k.l.srv.Log.Warn("the server's catalog cannot be read; nothing is shared", "user", k.user, "error", r.err.Error())
		}
	} else if r.number > k.have { // otherwise a later load has ended before
		writes, inserts, routines := k.writes, k.inserts, k.routines
		r.finish()
		if k.known && (k.writes.lockMoreThan(writes) || k.inserts.lockMoreThan(inserts) || k.routines.lockMoreThan(routines)) {
			k.dropLocks()
		}
		if k.missed++; !r.missed {
			k.missed = 0
		}
		k.known, k.failures, k.have = true, 0, r.number
		k.epoch++
		k.seen, k.readAt, k.count = k.l.Now, k.l.Now, r.count.String()
		r.sayBlind()
	}
	k.tell(r.err == nil)
	waiting := k.waiting
	k.waiting = nil
	for _, c := range waiting {
		c.l.Post(func() {
			if c.link != nil && c.link.Depth() == 0 && !c.s.Closed {
				c.backendQuiet()
			}
		})
	}
	for _, p := range k.l.PoolList {
		if p.key.user == k.user {
			p.Wake()
		}
	}
}

// dropLocks replaces the account's connections when they are next free: some may hold locks
// that a view or a routine took for its caller before weir knew that it takes any.
func (k *catalog) dropLocks() {
	for _, p := range k.l.PoolList {
		if p.key.user == k.user {
			p.Retire(false)
		}
	}
}

// tick polls, on a free backend of the account if there is one.
func (k *catalog) tick() {
	if !k.known || !k.used || k.loading > 0 || k.polling || k.l.Now-k.seen < catalogPoll {
		return
	}
	for _, p := range k.l.PoolList {
		if p.key.user != k.user || len(p.Free) == 0 || !p.facts.known {
			continue
		}
		b := p.take(p.settings.Empty(), nil)
		if b == nil {
			continue
		}
		if b.set != p.settings.Empty() { // a lane's connections do not wait for locks
			p.release(b)
			continue
		}
		k.look(b)
		return
	}
}

// outdated reports whether the catalog must be loaded again, whatever the counters are.
func (k *catalog) outdated() bool {
	missing := k.missed > 0 && k.missed <= maxFailures
	return k.stale || !k.known || missing || k.l.Now-k.readAt > catalogKeep || k.changed > 0 && k.l.Now-k.changed < catalogSettles
}

// look brings the catalog up to date on a free backend: if it is not outdated, the counters are
// enough while they show no change.
func (k *catalog) look(b *backend) {
	b.Mode, b.polled = core.ModeOwn, true
	k.used = false
	b.saveID(nil)
	if k.outdated() {
		k.load(b)
		return
	}
	k.polling = true
	b.ask(countersSQL, func(u *unit) {
		k.polling = false
		if u.err != nil {
			k.tell(false)
			return
		}
		r := &catalogReader{k: k}
		for _, x := range u.result(b.p.key.caps) {
			r.counter(x)
		}
		k.seen = k.l.Now
		if r.count.String() != k.count {
			k.changed, k.stale = k.l.Now, true
		}
		k.tell(true)
	})
	b.ask(noWarnings, func(*unit) {}) // whose answer reports changes by the query, instead of a client's
	b.endLook()
}

// A catalogReader collects the server's answers.
type catalogReader struct {
	k        *catalog
	number   uint64 // among the loads of k
	mode     myscan.Mode
	err      *mywire.Error
	count    strings.Builder
	blind    map[string]bool // folded; names has them unchanged
	names    []string
	account  string          // as CURRENT_USER() has it
	unseen   map[string]bool // tables with triggers that only the DSN's user can see
	missed   bool            // that user could not be asked
	seesAll  bool
	views    []catalogObject
	routines []catalogObject
	triggers []catalogObject
	defaults []catalogObject
}

// A catalogObject is a view, a routine, or the trigger of a table.
type catalogObject struct {
	schema, name string
	body         myscan.Body
	inserts      bool // a trigger that INSERTs fire
}

// places are the effects of tables, views and routines, by their names and schemas. Databases
// of one layout, such as one for each customer, may have a trigger in some of them.
type places map[string]map[string]myscan.Effect

// raise adds effects to those of one object, and reports whether any is new.
func (ps places) raise(schema, name string, e myscan.Effect) bool {
	at := ps[name]
	if at == nil {
		at = make(map[string]myscan.Effect)
		ps[name] = at
	}
	was, known := at[schema]
	at[schema] = was | e
	return !known || was|e != was
}

// lockMoreThan reports whether any object takes a lock that did not before.
func (ps places) lockMoreThan(before places) bool {
	for name, at := range ps {
		for schema, e := range at {
			if e.Has(myscan.EffLock) && !before[name][schema].Has(myscan.EffLock) {
				return true
			}
		}
	}
	return false
}

// of returns the effects of all objects of a name that a text can mean, where db is the current
// database and names are all names of the text: it must name any other database. nil names
// stand for any.
func (ps places) of(name, db string, names *nameSet) myscan.Effect {
	at := ps[name]
	e, here := at[db]
	switch {
	case len(at) == 0 || here && len(at) == 1:
	case names == nil:
		for _, more := range at {
			e |= more
		}
	default:
		e |= names.among(at)
	}
	return e
}

// has reports whether of would return the effects of any known object.
func (ps places) has(name, db string, names *nameSet) bool {
	at := ps[name]
	if _, here := at[db]; here || names == nil {
		return len(at) > 0
	}
	for schema := range at {
		if names.has(schema) {
			return true
		}
	}
	return false
}

// A nameSet holds all names of a text, folded. It reads them at the first lookup.
type nameSet struct {
	each iter.Seq[string]
	set  map[string]struct{}
}

// read reads the names unless that is done.
func (n *nameSet) read() {
	if n.set == nil {
		n.set = make(map[string]struct{})
		for name := range n.each {
			n.set[name] = struct{}{}
		}
	}
}

// has reports whether the text has the name.
func (n *nameSet) has(name string) bool {
	n.read()
	_, named := n.set[name]
	return named
}

// among returns the effects in those schemas that the text names.
func (n *nameSet) among(schemas map[string]myscan.Effect) (e myscan.Effect) {
	n.read()
	if len(n.set) < len(schemas) {
		for name := range n.set {
			e |= schemas[name]
		}
		return e
	}
	for schema, more := range schemas {
		if _, named := n.set[schema]; named {
			e |= more
		}
	}
	return e
}

func (r *catalogReader) counter(row [][]byte) {
	if len(row) < 2 {
		return
	}
	switch string(row[0]) {
	case "Uptime_since_flush_status",
		"Com_create_temporary_table", "Com_drop_temporary_table", "Com_create_index", "Com_drop_index": // no part of a catalog
		return
	}
	fmt.Fprintf(&r.count, "%s=%s ", row[0], row[1])
}

// opaque is a body that the server does not show.
var opaque = myscan.Body{Effects: myscan.EffOpaque | myscan.EffUnknownFunc}

func (r *catalogReader) view(row [][]byte) {
	o := catalogObject{schema: foldName(string(row[2])), name: foldName(string(row[0])), body: opaque}
	if len(row[1]) > 0 {
		text := string(row[1])
		o.body = myscan.ReadBody(text, r.mode)
		if strings.Contains(text, `\`) {
			other := r.mode // the definition depends on its creator's sql_mode
			other.NoBackslashEscapes = true
			more := myscan.ReadBody(text, other)
			o.body.Effects |= more.Effects
			o.body.Calls, o.body.Names = append(o.body.Calls, more.Calls...), append(o.body.Names, more.Names...)
		}
	}
	r.views = append(r.views, o)
}

func (r *catalogReader) routine(row [][]byte) {
	o := catalogObject{schema: foldName(string(row[3])), name: foldName(string(row[0])), body: r.read(row[1], string(row[2]))}
	for _, t := range r.k.trust {
		if t = strings.ToLower(t); t == "*" || t == o.name || t == strings.ToLower(string(row[3]))+"."+o.name {
			o.body = myscan.Body{}
		}
	}
	r.routines = append(r.routines, o)
}

func (r *catalogReader) trigger(row [][]byte) {
	event := string(row[4]) // MariaDB 12 may list several
	r.triggers = append(r.triggers, catalogObject{
		schema: foldName(string(row[3])), name: foldName(string(row[0])), body: r.read(row[1], string(row[2])), inserts: event != "UPDATE" && event != "DELETE",
	})
}

func (r *catalogReader) assigns(row [][]byte) {
	r.defaults = append(r.defaults, catalogObject{schema: foldName(string(row[2])), name: foldName(string(row[0])), body: myscan.ReadBody("RETURN "+string(row[1]), r.mode)})
}

func (r *catalogReader) read(body []byte, sqlMode string) myscan.Body {
	if body == nil || hasWord(sqlMode, "ORACLE") {
		return opaque
	}
	mode := r.mode
	mode.AnsiQuotes, mode.NoBackslashEscapes = hasWord(sqlMode, "ANSI_QUOTES"), hasWord(sqlMode, "NO_BACKSLASH_ESCAPES")
	return myscan.ReadBody(string(body), mode)
}

// finish computes the effects of each name: its own and those of all objects that it reaches.
func (r *catalogReader) finish() {
	k := r.k
	k.reads, k.writes, k.inserts, k.defaults, k.routines = places{}, places{}, places{}, places{}, places{}
	k.blind, k.unseen = r.blind, r.unseen
	if k.trusted() {
		k.blind, k.nothing = nil, true
		return
	}
	for _, o := range r.routines {
		k.routines.raise(o.schema, o.name, o.body.Effects)
	}
	for _, o := range r.defaults {
		k.defaults.raise(o.schema, o.name, o.body.Effects)
		k.writes.raise(o.schema, o.name, o.body.Effects)
		k.inserts.raise(o.schema, o.name, o.body.Effects)
	}
	for changed := true; changed; {
		changed = false
		for _, o := range r.routines {
			changed = k.routines.raise(o.schema, o.name, r.reached(&o, true)) || changed
		}
		for _, o := range r.triggers {
			e := r.reached(&o, true)
			changed = k.writes.raise(o.schema, o.name, e) || changed
			if o.inserts {
				changed = k.inserts.raise(o.schema, o.name, e) || changed
			}
		}
		for _, o := range r.views {
			changed = k.reads.raise(o.schema, o.name, r.reached(&o, false)) || changed
			e := r.reached(&o, true)
			changed = k.writes.raise(o.schema, o.name, e) || changed
			changed = k.inserts.raise(o.schema, o.name, e) || changed
		}
	}
	k.nothing = len(k.reads) == 0 && len(k.writes) == 0 && len(k.blind) == 0
	for _, at := range k.routines {
		for _, e := range at {
			k.nothing = k.nothing && e == 0
		}
	}
}

// foldName folds a name as a catalog has it: to lower case; all names with letters outside
// ASCII become one, because clients write them in different character sets.
func foldName(name string) string {
	for i := range len(name) {
		if name[i] >= 0x80 || name[i] == '?' {
			return "?"
		}
	}
	return strings.ToLower(name)
}

// reached returns the effects of an object's body and of all objects that it reaches. Names
// without a schema in the body belong to the object's own.
func (r *catalogReader) reached(o *catalogObject, writing bool) myscan.Effect {
	k, e := r.k, o.body.Effects
	names := &nameSet{each: func(yield func(string) bool) {
		for _, name := range o.body.Names {
			if !yield(foldName(name)) {
				return
			}
		}
	}}
	for _, name := range o.body.Calls {
		name = foldName(name)
		e |= k.routines.of(name, o.schema, names)
		if builtIn := r.seesAll && myscan.IsBuiltIn(name, r.mode); !builtIn && !k.knows(name, o.schema, names) {
			e |= opaque.Effects
		}
	}
	for _, name := range o.body.Names {
		name = foldName(name)
		e |= k.reads.of(name, o.schema, names)
		if writing {
			e |= k.writes.of(name, o.schema, names)
		}
		if name == "sys" {
			e |= myscan.EffUnknownFunc
		}
	}
	return e
}

// knows reports whether the effects of a call are known: as those of a routine, which reach
// looks up, or because the name is trusted. Otherwise it may be a function of a library (CREATE
// FUNCTION ... SONAME, or a plugin's), such as those of MySQL's locking service, whose locks
// last as long as the connection.
func (k *catalog) knows(name, db string, names *nameSet) bool {
	return k.routines.has(name, db, names) || slices.ContainsFunc(k.trust, func(t string) bool { return strings.EqualFold(t, name) })
}

// reach returns the effects of a statement beyond those that its text shows. db is the database
// in which it runs. The result means nothing while the catalog is not ready.
func (k *catalog) reach(t *myscan.Text, info *myscan.Statement, db string) myscan.Effect {
	var e myscan.Effect
	switch info.Verb {
	case myscan.VerbBegin, myscan.VerbCommit, myscan.VerbRollback:
		if info.Count == 1 {
			return 0
		}
	}
	writing := info.Effects.Has(myscan.EffWrites | myscan.EffLoad | myscan.EffUnknown | myscan.EffMulti | myscan.EffUnknownFunc)
	calls := info.Effects.Has(myscan.EffUnknownFunc | myscan.EffMulti | myscan.EffUnknown)
	if db == "sys" {
		e |= opaque.Effects
	}
	if k.nothing && !calls {
		return e
	}
	db = foldName(db)
	names := &nameSet{each: func(yield func(string) bool) {
		t.Names(func(name string, _ bool) bool { return yield(foldName(name)) })
	}}
	if info.Count != 1 {
		names = nil // a USE may be among them
	}
	if writing && k.blind[strings.ToLower(db)] {
		e |= opaque.Effects
	}
	if info.Effects.Has(myscan.EffUnknownFunc) && !k.trusted() {
		for i, name := range t.Calls() {
			procedure := i == 0 && info.Verb == myscan.VerbCall // the catalog has every procedure that the account can call
			if !procedure && !k.knows(foldName(name), db, names) {
				e |= opaque.Effects
			}
		}
	}
	var fires, onInsert myscan.Effect
	onlyInserts := info.Verb == myscan.VerbInsert && info.Count == 1
	asksDefault := len(k.defaults) > 0 && strings.Contains(strings.ToLower(t.String()), "default") // DEFAULT(column) in a SELECT
	t.Names(func(name string, call bool) bool {
		name = foldName(name)
		if !k.nothing {
			e |= k.reads.of(name, db, names)
			if asksDefault {
				e |= k.defaults.of(name, db, names)
			}
			if writing {
				fires |= k.writes.of(name, db, names)
				onInsert |= k.inserts.of(name, db, names)
				onlyInserts = onlyInserts && name != "duplicate" // ON DUPLICATE KEY UPDATE
				if k.blind[name] {
					e |= opaque.Effects
				}
			}
			if call {
				e |= k.routines.of(name, db, names)
			}
		}
		if name == "sys" && calls && !k.trusted() {
			e |= myscan.EffUnknownFunc
			if info.Verb == myscan.VerbCall {
				e |= myscan.EffOpaque
			}
		}
		return true
	})
	if onlyInserts {
		fires = onInsert
	}
	e |= fires
	if e.Has(myscan.EffLock) {
		e |= myscan.EffLockUnseen
	}
	return e
}
