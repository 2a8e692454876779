package mysql

import (
	"regexp"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/proxy/sqlscan/myscan"
)

// This file is about statements that change what a new session is like: global
// settings, privileges, roles, a database's character set. Directly, anyone who
// connects next has the new ones. A connection that was opened before keeps the
// old ones, so it must not serve that client. Where only logins bring connections
// it has to: there old ones go when no client needs them.

// newSessions finds the statements about accounts and databases among those that
// define things. It errs towards more: the worst that a wrong answer does is to
// replace idle connections.
var newSessions = regexp.MustCompile(strings.ReplaceAll(
	`(?is)\b(grant|revoke|(create|alter|drop|rename|default) (or replace )?(user|role)|flush\b[^;]*\bprivileges|alter (database|schema))\b`,
	" ", `(?:\s|/\*M?!\d*|/\*.*?\*/|(?:--|#)[^\n]*\n)+`)) // a comment that the server runs is only begun

// renewEvery is the least time between two renewals for statements that failed: who
// may not do such things must not have everybody's connections opened anew by
// trying.
const renewEvery = 10 * time.Second

// maxReachText is how much of such a text is looked at; they are short.
const maxReachText = 4 << 10

// changesSessions reports whether a statement may change what new sessions are
// like.
func changesSessions(sql string, eff myscan.Effect) bool {
	if eff.Has(myscan.EffSetGlobal) {
		return true
	}
	return eff.Has(myscan.EffDDL|myscan.EffAdmin) && newSessions.MatchString(sql[:min(len(sql), maxReachText)])
}

// renew has every backend replaced when it is next free, and what weir knows of
// the server's sessions learned anew. It is called on a loop.
func (s *Server) renew(on *loop) {
	s.askAgain()
	s.eachPool(on, (*pool).renew)
}

// askAgain has the server be asked about everyone at the next login.
func (s *Server) askAgain() {
	now := s.Monotonic()
	s.known.welcomes.forget(now)
	s.known.accounts.askAgain(now)
}

// eachPool calls f for every pool: at once for those of the loop that it is called
// on, soon for those of others. A loop that has ended has no pools.
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
