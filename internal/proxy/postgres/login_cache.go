package postgres

import (
	"strings"
	"sync"
	"time"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file lets one answer of the server serve the logins of a moment. A client that connects
// for each transaction would otherwise have the server asked as often. What an
// administrator changes is then seen by logins at most --login-check-interval later, as
// by a session that began that much earlier; what is changed over weir, at once.
//
// Only a good answer serves others, and only where a password is not checked by it: a
// new role and a new password hold from the next login on.

// A loginCache keeps the last answers about roles that log in. Safe for concurrent use.
type loginCache struct {
	mu     sync.Mutex
	seen   map[poolKey]*roleStatus // guarded by mu
	forgot time.Time               // guarded by mu: what was asked before counts no more
}

// maxRecents bounds what is remembered.
const maxRecents = 4096

// get returns what the server was asked less than keep ago, nil if there is nothing.
func (r *loginCache) get(key poolKey, keep time.Duration) *roleStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	st := r.seen[key]
	if st == nil || time.Since(st.asked) >= keep {
		return nil
	}
	return st
}

// put keeps an answer, if it is a good one, without what is stored of the password. So
// who asks in the name of others, or of nobody, keeps nothing here.
func (r *loginCache) put(key poolKey, st *roleStatus) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !st.asked.After(r.forgot) {
		return
	}
	if st.mark == "" || st.refusal(key, true) != nil {
		delete(r.seen, key)
		return
	}
	have, ok := r.seen[key]
	switch {
	case ok && have.asked.After(st.asked):
		return
	case !ok && len(r.seen) >= maxRecents:
		r.seen = nil
	}
	if r.seen == nil {
		r.seen = make(map[poolKey]*roleStatus)
	}
	if !ok {
		key = poolKey{database: strings.Clone(key.database), user: strings.Clone(key.user)}
	}
	kept := *st
	kept.secret = pgwire.Secret{}
	r.seen[key] = &kept
}

// forget has everyone be asked about again.
func (r *loginCache) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.seen)
	r.forgot = time.Now()
}

// recall returns a standing that the client need not be asked about for, nil if it has to
// be.
func (a *loginAttempt) recall() *roleStatus {
	s, cfg := a.s, a.s.cfg()
	st := s.lookups.recent.get(a.key, cfg.LoginCheckInterval)
	if st == nil {
		return nil
	}
	now := time.Now()
	if !s.verdicts.granted(a.key, st, now) {
		return nil
	}
	switch {
	case a.held, !cfg.checksSecrets():
	case cfg.Auth == AuthAuto && cfg.AuthQuery == "" && s.verdicts.methodOf(a.key, st, now) == pgwire.AuthTrust:
	default:
		return nil
	}
	a.recalled = true
	return st
}
