package postgres

import (
	"strings"
	"sync"
	"time"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file lets one answer of the server serve several logins. A client that connects
// for each transaction would otherwise cause as many questions. Logins then notice changes by an
// administrator at most --login-check-interval later, like a
// session that began that much earlier; changes made through weir, at once.
//
// Only positive answers serve others, and never to check a password: a
// new role and a new password are valid from the next login on.

// A loginCache keeps the last answers about roles that log in. Safe for concurrent use.
type loginCache struct {
	mu     sync.Mutex
	seen   map[poolKey]*roleStatus // guarded by mu
	forgot time.Time               // guarded by mu: earlier answers do not count
}

// maxRecents bounds what is remembered.
const maxRecents = 4096

// get returns an answer that is less than keep old, or nil.
func (r *loginCache) get(key poolKey, keep time.Duration) *roleStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	st := r.seen[key]
	if st == nil || time.Since(st.asked) >= keep {
		return nil
	}
	return st
}

// put keeps a positive answer, without the stored password. So a client that names other users,
// or none that exists, fills nothing here.
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

// forget discards all answers.
func (r *loginCache) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.seen)
	r.forgot = time.Now()
}

// recall returns a role status for which the server does not have to be asked, or nil.
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
