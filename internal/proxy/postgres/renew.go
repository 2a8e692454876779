package postgres

import (
	"context"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file is about statements that affect a whole database or role. When a direct client
// leaves, its connection ends, too; weir's backends remain. Without this file they would keep
// a database from being dropped, renamed or copied, continue under a role that was dropped,
// and start new sessions with outdated defaults.

// reaching prepares for a statement that changes the catalogue and is about to
// be sent. What it returns must be renewed when the server has executed the statement, and
// not before: anyone can ask for a change that the server refuses.
func (c *client) reaching(sql string) []*changeScope {
	var out []*changeScope
	for _, r := range reachOf(sql) {
		r.database, r.user = strings.Clone(r.database), strings.Clone(r.user)
		out = append(out, &r)
		switch {
		case r.current && c.cur == nil && c.tx != pgwire.StatusFailed:
			r.user = c.p.key.user
			c.link.ask("SELECT current_user", func(u *unit) {
				if u.err == nil && len(u.rows) == 1 {
					r.user = string(u.rows[0][0])
				}
			}).columns = 1
		case r.current:
			r.user = c.p.key.user
		case r.alone:
			c.vacate(&r)
		}
	}
	return out
}

// vacate closes the backends of a database that a statement needs for itself,
// if the server permits the client to do that. It must happen before the
// statement, because the server refuses the statement while they exist.
func (c *client) vacate(r *changeScope) {
	id, db := c.id, r.database
	done := func(u *unit) {
		if u.err == nil && len(u.rows) == 1 && string(u.rows[0][0]) == "t" {
			c.l.srv.vacate(db, id)
		}
	}
	switch {
	case c.tx != pgwire.StatusIdle: // the server refuses it in a transaction
	case c.cur == nil:
		c.link.ask(r.permission(), done).columns = 1
	default: // within a pipeline nothing can be asked here
		c.p.askIn(c.set, r.permission(), 1, done)
	}
}

// permission asks whether the session may execute a statement that needs the database alone.
func (r *changeScope) permission() string {
	owner := "pg_catalog.pg_has_role(d.datdba, 'USAGE')"
	sql := own("SELECT EXISTS (SELECT FROM pg_catalog.pg_database d WHERE d.datname = ") + quoteLiteral(r.database) + " AND "
	if !r.copies {
		return sql + owner + ")"
	}
	return sql + "(d.datistemplate OR " + owner + own(")) AND EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = current_user AND (r.rolcreatedb OR r.rolsuper))")
}

// carriedOut is called when a unit has been answered: what its statements affect
// is renewed when their transaction has been committed.
func (bk *responder) carriedOut(u *unit, before, now byte) {
	done := !u.failed || u.commits // of several statements some may have been committed before one failed
	if done {
		bk.reached = append(bk.reached, u.reached...)
	}
	if now != pgwire.StatusIdle {
		return
	}
	if before == pgwire.StatusIdle || (u.commits && done) {
		for _, r := range bk.reached {
			bk.c.l.srv.renew(*r)
		}
	}
	bk.reached = nil
}

// vacatePatience is how long weir waits for the clients of a database to leave
// it. The server itself waits 5 s for sessions to end before it refuses.
const vacatePatience = 4 * time.Second

// vacate closes the backends of a database, unless clients other than except
// are connected to it: then the server will refuse the statement, as it
// would directly.
func (s *Server) vacate(database string, except uint32) {
	s.Background.Go(func() {
		ctx, cancel := context.WithTimeout(s.DialCtx, vacatePatience)
		defer cancel()
		for {
			users := 0
			for _, l := range s.Loops {
				if l.Call(ctx, func() { users += l.clientsOf(database, except) }) != nil {
					return
				}
			}
			if users == 0 {
				s.renew(changeScope{database: database})
				return
			}
			select {
			case <-time.After(20 * time.Millisecond): // clients that have just left will be gone soon
			case <-ctx.Done():
				return
			}
		}
	})
}

func (l *loop) clientsOf(database string, except uint32) int {
	n := 0
	for id, c := range l.Clients {
		if id != except && c.p.key.database == database {
			n++
		}
	}
	return n
}

// renew replaces every backend that r affects when it is next free, and discards
// what weir has learned through them.
func (s *Server) renew(r changeScope) {
	for _, l := range s.Loops {
		l.Post(func() {
			for _, p := range l.PoolList {
				if (r.database == "" || r.database == p.key.database) && (r.user == "" || r.user == p.key.user) {
					p.renewBackends()
				}
			}
			s.Cache.Purge(r.database) // when the last loop has renewed its backends, nothing is read as before
		})
	}
}

func (p *pool) renewBackends() {
	p.forgetGreetings()
	p.l.srv.hubs.retire(p.key)
	if p.Retire(false) {
		p.facts.known = false
	}
}

// forgetGreetings discards what the pool has learned of sessions through its backends.
func (p *pool) forgetGreetings() {
	clear(p.greeting)
	p.forgetTexts()
}
