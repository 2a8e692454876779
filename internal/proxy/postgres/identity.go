package postgres

import (
	"slices"
	"sync"
	"time"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file makes sure that the connections of a pool are of the role that its clients have
// logged in as. Pools are found by names. But a role can be renamed, and another one get its
// name, or be dropped and created again; existing connections keep the role
// with which they were opened, and its settings at that time.

// An identity is the identity of the role that the clients of a pool have logged in as, and the
// settings with which its sessions begin, as last seen at a login.
type identity struct {
	server, id, begins string
	heard              time.Time
}

// compare compares the role status of a client that logs in with that of earlier ones. If it is
// another role, the existing connections are closed, and so are the sessions of clients
// that logged in as the former role. The error is for a client that was checked before the name
// passed to another role.
func (have *identity) compare(p *pool, c *client, st *roleStatus) *pgwire.Error {
	if st == nil || st.mark == "" {
		return nil
	}
	before := *have
	another, anew := before.id != st.id, before.begins != st.begins
	switch {
	case before.server == st.server && !another && !anew:
		return nil
	case before.server != st.server:
		// No connection outlives a server, and on another one the numbers are others.
		another, anew = false, before.server == ""
	case another && before.heard.After(st.asked):
		return errAnotherRole(p.key.user) // or the other way round; that is unknown
	case before.heard.After(st.asked):
		return nil // what was heard since is valid
	}
	*have = identity{st.server, st.id, st.begins, st.heard}
	p.l.srv.lookups.recent.forget() // what was heard before is about another role
	if p.l.srv.identities.learn(p.key.login(), st) || before.server != "" {
		p.l.srv.Cache.Purge(p.key.database) // its keys have the role's name
	}
	pools, connections := slices.AppendSeq([]*pool{p}, p.siblings()), 0
	for _, p := range pools {
		connections += p.Connections()
	}
	switch {
	case !another && !anew, before.server == "" && connections == 0: // the first login
		return nil
	}
	for _, p := range pools {
		p.forgetGreetings()
		p.l.srv.hubs.retire(p.key)
		if p.Retire(another) || another {
			p.facts.known = false
		}
	}
	for _, other := range p.l.Clients {
		if another && other.p.key.login() == p.key.login() && other != c {
			other.fatal(errAnotherRole(p.key.user))
		}
	}
	return nil
}

// errAnotherRole is the error for a session whose role has lost its name to another one.
func errAnotherRole(user string) *pgwire.Error {
	e := pgwire.NewFatal(pgwire.CodeAdminShutdown, "weir: role %q is another one than when this session began", user)
	e.Detail = "It was renamed, or dropped and made again. weir finds connections by the role's name."
	e.Hint = "Log in again."
	return e
}

// identities are those of the roles whose answers may be in the cache, of the pools of all
// loops. Safe for concurrent use.
type identities struct {
	mu sync.Mutex
	of map[poolKey][2]string // guarded by mu: id and begins
}

// maxIdentities bounds what is remembered of users and databases.
const maxIdentities = 10000

// learn records what a login has shown, and reports whether it differs from what an earlier one
// has shown.
func (ids *identities) learn(key poolKey, st *roleStatus) (changed bool) {
	ids.mu.Lock()
	defer ids.mu.Unlock()
	now := [2]string{st.id, st.begins}
	before, known := ids.of[key]
	if known && before == now {
		return false
	}
	full := !known && len(ids.of) >= maxIdentities
	if ids.of == nil || full {
		ids.of = make(map[poolKey][2]string)
	}
	ids.of[key] = now
	return known || full
}
