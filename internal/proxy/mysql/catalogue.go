package mysql

import (
	"time"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/mysql/catalogue"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// An accountCatalogue keeps up to date what weir knows of a server's names: for one account, on
// one loop.
//
// Changes of the catalogue through weir make it stale at once. Changes by others are found by
// polling the server's own counters, see cataloguePoll. While a catalogue is stale nothing is
// shared; statements that run meanwhile are judged after the next load, before another client
// gets their connection.
type accountCatalogue struct {
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
	count    string // the counters, see catalogue.Counters

	index *catalogue.Index // nil before the first load

	waiting []*client  // clients whose statements are to be judged
	writes  factsQueue // that wait until it is up to date
}

const (
	// cataloguePoll is how often weir queries the server's counters of statements that change a
	// catalogue.
	cataloguePoll = time.Second
	// catalogueOld is the age from which a catalogue that could not be polled counts as stale. It
	// bounds how long weir may miss a change that it does not see.
	catalogueOld = 3 * time.Second
	// catalogueSettles is how long after a change every poll loads the catalogue: the server counts
	// a statement when it begins, and it may wait for locks.
	catalogueSettles = 30 * time.Second
	// maxFailures is how many loads may fail in a row before those who wait for one keep their
	// connections, and how many polls in a row load it because the DSN's user could not be asked.
	maxFailures = 3
	// catalogueKeep is the age from which it is loaded again in any case.
	catalogueKeep = time.Minute
)

// catalogueFor returns the catalogue of an account on this loop.
func (l *loop) catalogueFor(user string) *accountCatalogue {
	k := l.catalogues[user]
	if k == nil {
		k = &accountCatalogue{l: l, user: user, trust: l.cfg.TrustFunctions}
		l.catalogues[user] = k
	}
	return k
}

// ready reports whether the catalogue is up to date. While a stale one is loaded, its content is
// the old one.
func (k *accountCatalogue) ready() bool {
	return k.known && !k.stale && k.have >= k.needs && k.l.Now-k.seen < catalogueOld
}

// view returns the index for use on another thread. epoch identifies the load; it is 0 if the
// catalogue is not ready.
func (k *accountCatalogue) view() (view *catalogue.Index, epoch uint64) {
	if k.ready() {
		epoch = k.epoch
	}
	return k.index, epoch
}

// load loads the catalogue on a backend on which no client waits for an earlier answer. All
// connections of the account return the same, so any will do.
func (k *accountCatalogue) load(b *backend) {
	k.loading++
	k.begun++
	if k.stale || !k.known {
		k.stale, k.needs = false, k.begun
	}
	r := &catalogueLoad{Reader: catalogue.NewReader(b.p.facts.server(), k.trust), number: k.begun, began: k.l.Now}
	for _, step := range r.Steps() {
		b.ask(step.SQL, func(u *unit) {
			if u.err != nil {
				r.err = u.err
			}
			step.Take(u.result(b.p.key.caps))
		})
	}
	b.ask(noWarnings, func(u *unit) {
		if u.err != nil && r.err == nil {
			r.err = u.err
		}
		if k.asksDSN(r) {
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
func (k *accountCatalogue) loaded(r *catalogueLoad) {
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
			k.l.srv.Log.Warn("the server's catalogue cannot be read; nothing is shared", "user", k.user, "error", r.err.Error())
		}
	} else if r.number > k.have { // otherwise a later load has ended before
		before := k.index
		k.index = r.Index()
		if k.known && k.index.LocksMore(before) {
			k.dropLocks()
		}
		if k.missed++; !r.missed {
			k.missed = 0
		}
		k.known, k.failures, k.have = true, 0, r.number
		k.epoch++
		k.seen, k.readAt, k.count = k.l.Now, k.l.Now, r.Counters()
		k.sayBlind(r)
	}
	k.writes.tell(k.l, r.began, r.err == nil)
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
func (k *accountCatalogue) dropLocks() {
	for _, p := range k.l.PoolList {
		if p.key.user == k.user {
			p.Retire(false)
		}
	}
}

// tick polls, on a free backend of the account if there is one.
func (k *accountCatalogue) tick() {
	if !k.known || !k.used || k.loading > 0 || k.polling || k.l.Now-k.seen < cataloguePoll {
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

// outdated reports whether the catalogue must be loaded again, whatever the counters are.
func (k *accountCatalogue) outdated() bool {
	missing := k.missed > 0 && k.missed <= maxFailures
	return k.stale || !k.known || missing || k.l.Now-k.readAt > catalogueKeep || k.changed > 0 && k.l.Now-k.changed < catalogueSettles
}

// look brings the catalogue up to date on a free backend: if it is not outdated, the counters are
// enough while they show no change.
func (k *accountCatalogue) look(b *backend) {
	b.Mode, b.polled = core.ModeOwn, true
	k.used = false
	b.saveID(nil)
	if k.outdated() {
		k.load(b)
		return
	}
	k.polling = true
	asked := k.l.Now
	b.ask(catalogue.CountersSQL, func(u *unit) {
		k.polling = false
		if u.err != nil {
			k.writes.tell(k.l, asked, false)
			return
		}
		k.seen = k.l.Now
		if catalogue.Counters(u.result(b.p.key.caps)) != k.count {
			k.changed, k.stale = k.l.Now, true
			if len(k.writes.waiting) > 0 {
				k.load(b)
				return
			}
		}
		k.writes.tell(k.l, asked, true)
	})
	b.ask(noWarnings, func(*unit) {}) // whose answer reports changes by the query, instead of a client's
	b.endLook()
}

// A catalogueLoad is one load in progress.
type catalogueLoad struct {
	*catalogue.Reader
	number uint64 // among the loads of the catalogue
	began  time.Duration
	err    *mywire.Error // of one of its queries
	missed bool          // the DSN's user could not be asked
}
