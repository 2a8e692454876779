package mysql

import "time"

// This file handles statements that change how new sessions begin: global settings, privileges,
// roles, a database's character set. With a direct connection, a client that connects next gets
// the new ones. A connection that was opened before keeps the old ones, so it must not serve
// that client. If only logins bring connections it has to: then old ones close when no client
// needs them.

// renewEvery is the least time between two renewals for statements that failed: a user without
// the privilege must not have everyone's connections replaced by trying.
const renewEvery = 10 * time.Second

// renew replaces every backend when it is next free, and queries again what weir knows about
// the server's sessions. It must be called on a loop.
func (s *Server) renew(on *loop) {
	s.askAgain()
	s.eachPool(on, (*pool).renew)
}

// askAgain makes each next login check with the server again.
func (s *Server) askAgain() {
	now := s.Monotonic()
	s.known.welcomes.forget(now)
	s.known.accounts.AskAgain(now)
}

// eachPool calls f for every pool: at once for those of the calling loop on, soon for those of
// others. A loop that has ended has no pools.
func (s *Server) eachPool(on *loop, f func(p *pool)) {
	for _, l := range s.Loops {
		visit := func() {
			for _, p := range l.PoolList {
				f(p)
			}
		}
		if l == on {
			visit()
		} else {
			l.Post(visit)
		}
	}
}

func (p *pool) renew() {
	if p.Retire(false) {
		p.facts.known = false
	}
}
