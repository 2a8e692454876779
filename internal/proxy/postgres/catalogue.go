package postgres

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weirdb/weir/internal/proxy/postgres/catalogue"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file keeps what is known of a database's names up to date.

// A dbCatalogue is what a loop knows of one database: the index by which statements are
// judged, and how fresh it is.
type dbCatalogue struct {
	l        *loop
	database string
	index    *catalogue.Index        // nil: unknown, and the worst is assumed
	last     *catalogue.Index        // the last one known
	made     map[string]madeRelation // relations that clients have created since
	epoch    uint64                  // number of indexes so far

	ready   bool          // it was read, or could not be, or takes long
	reading bool          // the catalogue is being read
	on      *backend      // ... on this backend
	began   time.Duration // since when
	looking bool          // a look is in flight, or waits for a backend
	again   bool          // what is being read may be out of date already
	// stale: a client has created functions. Statements wait until these are known.
	stale   bool
	staleAt time.Duration // since when no backend has been reading them; 0 if one is
	// since is when the catalogue was last known to be unchanged: when the last look that found
	// no change was sent.
	since time.Duration
	// grewAt is when something was last known to have been created: statements that were judged
	// earlier and have not run yet may do more than weir assumed.
	grewAt  time.Duration
	lookAt  time.Duration // when to look again
	cost    time.Duration // duration of the last look
	used    bool          // statements were judged since the last look
	said    bool          // the log says that the facts cannot be read
	adopted []*backend    // wait for the first index
	err     error         // why the catalogue could not be read the last time
	took    time.Duration // duration of the last reading

	reads, looks, failures uint64
}

// A catalogueState says how much is known of a database.
type catalogueState int

const (
	unreadable catalogueState = iota // nothing: each client keeps a backend of its own
	unread                           // nothing yet
	known
)

func (s catalogueState) String() string {
	return [...]string{"cannot be read", "being read", "known"}[s]
}

func (f *dbCatalogue) state() catalogueState {
	switch {
	case f.index != nil:
		return known
	case f.err != nil:
		return unreadable
	}
	return unread
}

// lookEvery bounds how long a change of the catalogue that weir does not see may go
// unnoticed while the database is in use. A look costs the server a millisecond; if it costs
// more, weir looks less often, so that it uses no more than a fiftieth of one processor.
const lookEvery = 500 * time.Millisecond

// proof returns the loop's knowledge of a database.
func (l *loop) proof(database string) *dbCatalogue {
	f := l.proofs[database]
	if f == nil {
		f = &dbCatalogue{l: l, database: database}
		l.proofs[database] = f
	}
	return f
}

// begin reads the index for the first time, on a backend that is not yet in use.
func (f *dbCatalogue) begin(b *backend) {
	f.adopted = append(f.adopted, b)
	b.Held = true
	if !f.reading {
		f.read(b)
	}
}

// read reads the catalogue on b, to which nothing else is sent meanwhile. The result is
// processed on a goroutine of its own. What another loop has read meanwhile is not read again.
func (f *dbCatalogue) read(b *backend) {
	f.reading = true
	f.reads++
	sent := f.l.Now
	f.on, f.began = b, sent
	known, key := f.l.srv.known, catalogue.Database{Server: catalogue.Server{Address: b.Endpoint.Address, Version: b.params["server_version"]}, Name: f.database}
	r := known.Reader(key, f.l.cfg.TrustFunctions)
	done := make(chan struct{}, 1)
	finish := func(x *catalogue.Index) {
		f.install(x, sent)
		if f.again {
			f.again = false
			f.believe(nil)
			f.read(b)
			return
		}
		f.settled()
		f.confirm(b)
	}
	var step func(sql string)
	step = func(sql string) {
		if b.s.Closed {
			f.failed(b, errors.New("the connection was lost"))
			return
		}
		if sql == "" {
			x, err := r.Index()
			if err != nil {
				f.failed(b, err)
				return
			}
			known.Learn(key, r, x)
			finish(x)
			return
		}
		b.Held = true
		columns := r.Columns()
		b.ask(sql, func(u *unit) {
			if u.err != nil {
				f.failed(b, u.err)
				return
			}
			rows := u.rows
			f.l.srv.Background.Go(func() {
				done <- struct{}{}
				r.Feed(rows)
				next := r.Next()
				<-done
				f.l.Post(func() { step(next) })
			})
		}).columns = columns
	}
	other := known.Index(key)
	if other == nil || f.last != nil && f.last.Stamp() == other.Stamp() {
		step(r.Next())
		return
	}
	b.Held = true
	b.ask(catalogue.StampSQL, func(u *unit) {
		if u.err == nil && len(u.rows) == 1 && string(u.rows[0][0]) == other.Stamp() {
			finish(other)
			return
		}
		step(r.Next())
	}).columns = 1
}

// free releases b for its own work.
func (f *dbCatalogue) free(b *backend) {
	if b.s.Closed {
		return
	}
	b.Held = false
	b.settle()
}

// install makes a new index current. If it has more in it than the old one, backends that
// served several clients since the old one was last known to be right are not used any more:
// something may have been done on them unseen.
func (f *dbCatalogue) install(x *catalogue.Index, sent time.Duration) {
	old := f.last
	f.known(sent)
	x = x.With(f.relations())
	f.index, f.last, f.err, f.took = x, x, nil, f.l.Now-sent
	f.epoch++
	f.reading = false
	if old != nil && !x.Within(old) {
		f.retire(f.since)
		f.grewAt = f.l.Now
	}
	f.since, f.lookAt = sent, f.l.Now+lookEvery
}

// settled continues the statements that waited for the index.
func (f *dbCatalogue) settled() {
	first := !f.ready
	f.ready, f.stale, f.staleAt = true, false, 0
	if first {
		list := f.adopted
		f.adopted = nil
		for _, b := range list {
			if b != f.on || !f.reading {
				f.free(b)
			}
		}
	}
	for _, c := range f.l.Clients {
		if c.p.catalogue == f {
			c.resume()
		}
	}
}

// failed is called when the facts could not be read: nothing is known then, and
// every client keeps its backend.
func (f *dbCatalogue) failed(b *backend, err error) {
	f.failures++
	f.believe(nil)
	f.reading, f.again, f.on = false, false, nil
	f.index, f.err = nil, err
	f.epoch++
	f.lookAt = f.l.Now + 10*lookEvery
	var e *pgwire.Error
	if lost := errors.As(err, &e) && e.Code == pgwire.CodeConnectionFailure || b.s.Closed; lost {
		f.lookAt = f.l.Now
	} else if !f.said {
		f.said = true
		f.l.srv.Log.Error("what the functions of the database do cannot be read; each client keeps a backend of its own, and nothing is grouped",
			"database", f.database, "error", fmt.Sprint(err))
	}
	f.settled()
	f.free(b)
}

// retire closes the backends of the database that were used after since, when they become
// free.
func (f *dbCatalogue) retire(since time.Duration) {
	for _, p := range f.l.PoolList {
		if p.catalogue != f || !p.Replaceable() {
			continue
		}
		for _, b := range p.Backends {
			if b.Answered >= since {
				b.Retired = true
			}
		}
		for _, b := range slices.Clone(p.Free) {
			if b.Retired {
				b.Goodbye()
			}
		}
	}
}

// tick checks whether the catalogue has changed, on a backend of p, while it is in
// use.
func (f *dbCatalogue) tick(p *pool) {
	switch {
	case f.stale && !f.reading:
		f.unstick()
	case f.reading && (f.stale || !f.ready) && f.l.Now-f.began > readPatience:
		f.goOn()
	case f.index == nil && f.ready && f.looking && !f.reading:
		if b := p.ofUnread(); b != nil {
			f.read(b)
			return
		}
	}
	if !f.ready || f.reading || f.looking || !f.used || f.l.Now < f.lookAt || len(p.Backends) == 0 {
		return
	}
	f.used = false
	if f.index == nil {
		f.readSoon(p)
		return
	}
	f.look(p)
}

// readPatience is how long statements wait for a reading.
const readPatience = time.Second

// goOn ends the wait for a reading that takes long. Until it has ended each client keeps
// its backend; then what the clients have done meanwhile is judged by its result.
func (f *dbCatalogue) goOn() {
	f.index = nil
	f.epoch++
	f.settled()
}

// confirm judges what clients did while the catalogue was read by what was read, if the
// catalogue has not changed until now.
func (f *dbCatalogue) confirm(b *backend) {
	f.on = nil
	if b.s.Closed || !f.unread() {
		f.believe(nil) // it is unknown whether it has changed
		f.free(b)
		return
	}
	x := f.index
	b.ask(catalogue.StampSQL, func(u *unit) {
		if u.err != nil || len(u.rows) != 1 || string(u.rows[0][0]) != x.Stamp() {
			x = nil
		}
		f.believe(x)
		b.Held = false
	}).columns = 1
}

// unread reports whether a client has done something that was not judged.
func (f *dbCatalogue) unread() bool {
	for _, c := range f.l.Clients {
		if c.p.catalogue == f && c.pins.held&pinUnread != 0 {
			return true
		}
	}
	return false
}

// believe ends the pins of clients that did something while nothing was known, if x
// shows that it left nothing behind. If x is nil, the pins stay.
func (f *dbCatalogue) believe(x *catalogue.Index) {
	for _, c := range f.l.Clients {
		if c.p.catalogue == f && c.pins.held&pinUnread != 0 {
			c.texts.rejudge(x)
		}
	}
}

// staleLimit bounds how long statements wait for functions to become known if no backend
// reads them.
const staleLimit = 2 * time.Second

// unstick ends the wait for functions to become known if no backend reads them: the client
// that created them has left, or continues to send statements. Until they are known each
// client keeps its backend.
func (f *dbCatalogue) unstick() {
	switch {
	case f.staleAt == 0:
		f.staleAt = f.l.Now
	case f.l.Now-f.staleAt > staleLimit:
		f.index = nil
		f.epoch++
		f.lookAt, f.used = 0, true
		f.settled()
	}
}

// readSoon reads the catalogue on the next backend that becomes free.
func (f *dbCatalogue) readSoon(p *pool) {
	f.looking = true
	p.Enqueue(waiter{Any: true, Ask: func(b *backend) {
		f.looking = false
		if f.reading {
			p.release(b)
			return
		}
		f.read(b)
	}})
}

// outgrew reports whether a unit was judged before something was created that its
// statements may reach. Then it runs alone, and nothing runs behind it.
func (f *dbCatalogue) outgrew(u *unit) bool { return u.queuedAt <= f.grewAt && f.grewAt > 0 }

// ofUnread returns an idle backend whose client keeps it only because nothing is
// known. If all backends are kept for that reason, none would become free to read on.
func (p *pool) ofUnread() *backend {
	if len(p.Free) > 0 || !p.ConnManager().Full() || p.Dialing > 0 {
		return nil
	}
	for _, b := range p.Backends {
		c := b.owner
		if c != nil && c.link == b && c.pins.held&^pinMode == pinUnread && c.cur == nil && c.transport.pass == 0 && c.state != stateCopying &&
			b.status == pgwire.StatusIdle && b.Depth() == 0 && b.Cancels == 0 && !b.Held && !b.Doomed && !b.s.Closed {
			return b
		}
	}
	return nil
}

// look asks for the stamp of the catalogue, and reads the catalogue if the stamp has changed.
func (f *dbCatalogue) look(p *pool) {
	f.looking = true
	f.looks++
	p.Enqueue(waiter{Any: true, Ask: func(b *backend) {
		sent := f.l.Now
		b.ask(catalogue.StampSQL, func(u *unit) {
			f.looking = false
			if f.reading {
				return
			}
			f.cost = f.l.Now - sent
			f.lookAt = f.l.Now + max(lookEvery, 50*f.cost)
			switch {
			case u.err != nil || len(u.rows) != 1 || f.index == nil:
				f.lookAt = f.l.Now
			case string(u.rows[0][0]) == f.index.Stamp():
				f.since = sent
			default:
				f.read(b)
			}
		}).columns = 1
	}})
}

// changed is called when a client has created functions through b, which it owns and which
// is idle: what they do is read before any further statement is judged. If the client only
// ran what may have created some, weir checks for them first. It reports whether b is used for
// that; otherwise another backend is.
func (f *dbCatalogue) changed(b *backend, surely bool) bool {
	f.stale = true
	switch {
	case f.reading:
		f.again = true // it may have begun before the change
		return false
	case surely || f.index == nil:
		f.read(b)
		return true
	}
	f.looks++
	b.Held = true
	sent := f.l.Now
	b.ask(catalogue.StampSQL, func(u *unit) {
		switch {
		case f.reading: // for another client, since this one's change
			b.Held = false
		case u.err != nil || len(u.rows) != 1 || f.index == nil || string(u.rows[0][0]) != f.index.Stamp():
			if b.s.Closed {
				return // see unstick
			}
			f.read(b)
		default:
			f.since = sent
			b.Held = false
			f.settled()
		}
	}).columns = 1
	return true
}

// outdated is called when a client has created functions, or may have: statements wait
// until these are known; on the other loops only if surely is set.
func (f *dbCatalogue) outdated(surely bool) {
	f.stale, f.grewAt = true, f.l.Now
	f.onOtherLoops(func(g *dbCatalogue) {
		for _, p := range g.l.PoolList {
			if !surely || p.catalogue != g || !g.ready || len(p.Backends) == 0 {
				continue
			}
			g.stale, g.grewAt = true, g.l.Now
			switch {
			case g.reading:
				g.again = true
			case !g.looking:
				g.readSoon(p)
			}
			return
		}
		g.used, g.lookAt = true, 0
	})
}

// moved is called when connections go to another host, which may lack objects of the former
// one: the first backend there reads the catalogue, and statements wait for that.
func (f *dbCatalogue) moved() {
	f.ready = false
	f.outdated(false)
}

// forgets is called when a client leaves with its backend: the next client checks what it
// created.
func (f *dbCatalogue) forgets(c *client) {
	if c.texts.bodies || c.texts.madeBodies {
		f.used, f.lookAt = true, 0
	}
	if c.texts.makes {
		f.ended(c, f.l.Now+unsettledFor)
	}
}
