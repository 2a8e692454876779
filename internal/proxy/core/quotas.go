package core

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirdb/weir/internal/proxy/session"
)

// This file lets pools share a limited number of server connections: those of one database
// (--max-db-connections) and of one user (--max-user-connections). Each connection takes a
// place in both. While there are free places, the first pool that asks gets one. When there
// are none, the users of a database get equal shares, and so do the databases of a user:
//
//	places 4   a has 4, 1000 wait    b comes
//	           a 4 ─► 3 (the next that is free is closed)   b 0 ─► 1
//	           a 3 ─► 2                                     b 1 ─► 2
//
// So how long b waits depends on the statements that run, and not on those that wait. If more
// users want a place than there are places, each keeps its place for the statements of one
// turn, and then it goes to the user that has been without one for longest.

// turnStatements is how many statements a pool may run on a place that it must give up:
// enough to be worth a login.
const turnStatements = 16

const (
	// lendAfter is how long a connection must have been free before a pool closes it for users
	// who already have their share.
	lendAfter = time.Second
	// lendAgain is how often pools are asked for such connections.
	lendAgain = 100 * time.Millisecond
)

// ConnQuotas are the quotas of one side. Safe for concurrent use.
type ConnQuotas struct {
	mu               sync.Mutex
	databases, users map[string]*quota // guarded by mu
	clock            uint64            // guarded by mu: counts places given
	options          *session.Options  // guarded by mu: those of the last Apply

	held         int           // guarded by mu: by all pools
	allowed      int           // guarded by mu: the number up to which pools may grow by themselves
	crampedUntil time.Duration // guarded by mu: until then pools may not grow

	leaving atomic.Int64 // pools that are about to be dropped
}

// part is the share of the server's connections that pools which size themselves may use;
// the rest is for others.
func part(n int) int { return n * 3 / 4 }

// crampedFor is how long pools do not grow after the server had no connection left.
const crampedFor = time.Minute

// allow sets how many connections pools may have by growing: three quarters of the server's,
// divided by the number of weirs.
func (p *ConnQuotas) allow(server, others int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.allowed = part(server) / (1 + others)
}

// Cramp is called when the server has no connection left. For a while, pools that have grown
// return to their initial size.
func (p *ConnQuotas) Cramp(now time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.crampedUntil = now + crampedFor
}

// spare returns how many connections pools may still open by growing; a negative number
// means that they must return to their initial size.
func (s *PoolQuota) spare(now time.Duration) int {
	p := s.places
	p.mu.Lock()
	defer p.mu.Unlock()
	if now < p.crampedUntil {
		return -1
	}
	return p.allowed - p.held
}

// A quota is the places of one database, or of one user.
type quota struct {
	max     int // 0: no limit
	held    int
	called  int            // those of held that must be given up
	lentAt  time.Duration  // when members were last asked to lend a place
	members []*quotaMember // the users of a database, or the databases of a user
}

// A quotaMember is a user of a database, or a database of a user, which shares a quota with the
// others.
type quotaMember struct {
	name  string
	pools []*PoolQuota
}

// A PoolQuota is the share of a pool in the quotas of its database and its user.
type PoolQuota struct {
	places  *ConnQuotas
	quotas  [2]*quota // of its database and of its user
	members [2]*quotaMember
	// wake makes the pool look at its queue; giveUp makes it close a connection: the next
	// that becomes free, or the one that is free when its turn is over. Both return at once.
	wake   func()
	giveUp func(afterTurn bool)
	// lend makes it close a connection that has been unused for a while.
	lend func()

	held   int
	wants  int    // how many more it wants
	called int    // those of held that must be given up
	got    uint64 // when it last got one, by the clock
	keeps  bool   // it could not give one up when it was last asked
	idle   bool   // it has been unused lately
	leaves bool   // it must be dropped
}

// Register registers a pool. o are the options of its loop, which may be older than those of the
// last Apply.
func (p *ConnQuotas) Register(o *session.Options, database, user string, wake func(), giveUp func(afterTurn bool), lend func()) *PoolQuota {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.options != nil {
		o = p.options
	}
	if p.databases == nil {
		p.databases, p.users = make(map[string]*quota), make(map[string]*quota)
	}
	db, us := p.databases[database], p.users[user]
	if db == nil {
		db = &quota{max: o.LimitsOfDatabase(database).MaxDBConnections}
		p.databases[database] = db
	}
	if us == nil {
		us = &quota{max: o.LimitsOfUser(user).MaxUserConnections}
		p.users[user] = us
	}
	s := &PoolQuota{places: p, wake: wake, giveUp: giveUp, lend: lend, quotas: [2]*quota{db, us}}
	s.members = [2]*quotaMember{db.member(user), us.member(database)}
	for _, m := range s.members {
		m.pools = append(m.pools, s)
	}
	return s
}

// Apply applies new limits. Places beyond them are taken back.
func (p *ConnQuotas) Apply(o *session.Options) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.options = o
	for name, a := range p.databases {
		a.max = o.LimitsOfDatabase(name).MaxDBConnections
	}
	for name, a := range p.users {
		a.max = o.LimitsOfUser(name).MaxUserConnections
	}
	for _, list := range []map[string]*quota{p.databases, p.users} {
		for _, a := range list {
			a.shrink()
			p.offer(a)
		}
	}
}

// Ask takes a place for a pool that could use wants of them. If there is none for it, the
// pool is woken when there is.
func (s *PoolQuota) Ask(wants int, now time.Duration) bool {
	if s == nil {
		return true
	}
	s.places.mu.Lock()
	defer s.places.mu.Unlock()
	if s.allowed() {
		s.take()
		return true
	}
	s.wants = wants
	for i, a := range s.quotas {
		if a.full() {
			s.call(a, i, now)
		}
	}
	return false
}

// Keep takes a place for a connection that already exists: if there is one that no other
// pool waits for, or in any case if must is set.
func (s *PoolQuota) Keep(must bool) bool {
	if s == nil {
		return true
	}
	s.places.mu.Lock()
	defer s.places.mu.Unlock()
	if !must && !s.allowed() {
		return false
	}
	s.take()
	for _, a := range s.quotas {
		a.shrink()
	}
	return true
}

// Withdraw undoes Ask.
func (s *PoolQuota) Withdraw() {
	if s == nil {
		return
	}
	s.places.mu.Lock()
	defer s.places.mu.Unlock()
	s.withdraw()
}

func (s *PoolQuota) withdraw() {
	if s.wants > 0 {
		s.wants = 0
		for _, a := range s.quotas {
			s.places.offer(a)
		}
	}
}

// Back returns a place that Ask has taken, and withdraws.
func (s *PoolQuota) Back() {
	if s == nil {
		return
	}
	s.places.mu.Lock()
	defer s.places.mu.Unlock()
	s.wants = 0
	s.set(s.held - 1)
}

// Holds sets how many connections the pool has now, including those that are being opened.
func (s *PoolQuota) Holds(n int) {
	if s == nil {
		return
	}
	s.places.mu.Lock()
	defer s.places.mu.Unlock()
	s.set(n)
}

// Idle notes whether the pool is unused. It reports whether the pool must be dropped: when no
// pool of its user and database, on any loop, has been used. Those pools are dropped
// together, since their counters are shown as one sum, which must not fall.
func (s *PoolQuota) Idle(idle bool) (leaves bool) {
	if s == nil {
		return idle
	}
	p := s.places
	p.mu.Lock()
	defer p.mu.Unlock()
	s.idle = idle
	if !idle {
		s.stay()
		return false
	}
	for _, other := range s.members[0].pools {
		if !other.idle {
			s.stay()
			return false
		}
	}
	for _, other := range s.members[0].pools {
		if !other.leaves {
			other.leaves = true
			p.leaving.Add(1)
		}
	}
	return true
}

// stay cancels the dropping of the pool, or finishes it.
func (s *PoolQuota) stay() {
	if s.leaves {
		s.leaves = false
		s.places.leaving.Add(-1)
	}
}

// Leaving reports whether there are pools that are about to be dropped.
func (p *ConnQuotas) Leaving() bool { return p.leaving.Load() > 0 }

// Leave removes the pool from its quotas: it has no connections, and wants none.
func (s *PoolQuota) Leave() {
	if s == nil {
		return
	}
	p := s.places
	p.mu.Lock()
	defer p.mu.Unlock()
	s.withdraw()
	s.set(0)
	s.stay()
	for i, a := range s.quotas {
		m := s.members[i]
		if m.pools = without(m.pools, s); len(m.pools) == 0 {
			a.members = without(a.members, m)
		}
	}
	if len(s.quotas[0].members) == 0 {
		delete(p.databases, s.members[1].name)
	}
	if len(s.quotas[1].members) == 0 {
		delete(p.users, s.members[0].name)
	}
}

// Keeps says that the pool cannot give up what it was asked to.
func (s *PoolQuota) Keeps() {
	s.places.mu.Lock()
	defer s.places.mu.Unlock()
	s.keeps = true
	if s.called > 0 {
		s.expect(s.called - 1)
		s.wakeFirst()
	}
}

// wakeFirst wakes the pools in the same quotas that are the next to get a place, so that they ask
// again.
func (s *PoolQuota) wakeFirst() {
	for i, a := range s.quotas {
		if first := a.first(i); first != nil {
			first.wake()
		}
	}
}

func (s *PoolQuota) take() {
	s.places.clock++
	s.got = s.places.clock
	s.wants = max(0, s.wants-1)
	s.set(s.held + 1)
	s.wakeFirst() // which may have waited for this one, and must ask for another
}

// expect sets how many places s must give up.
func (s *PoolQuota) expect(n int) {
	for _, a := range s.quotas {
		a.called += n - s.called
	}
	s.called = n
}

func (s *PoolQuota) set(n int) {
	less := s.held - n
	if s.keeps {
		s.keeps = false
		s.wakeFirst()
	}
	if less == 0 {
		return
	}
	s.held = n
	s.places.held -= less
	s.expect(max(0, min(s.called-max(0, less), n)))
	for _, a := range s.quotas {
		a.held -= less
	}
	if less > 0 {
		for _, a := range s.quotas {
			s.places.offer(a)
		}
	}
}

func (a *quota) full() bool { return a.max > 0 && a.held >= a.max }

func (a *quota) member(name string) *quotaMember {
	for _, m := range a.members {
		if m.name == name {
			return m
		}
	}
	m := &quotaMember{name: name}
	a.members = append(a.members, m)
	return m
}

// held is the number of places that a member holds, without those that it must give up.
func (m *quotaMember) held() (n int) {
	for _, s := range m.pools {
		n += s.held - s.called
	}
	return n
}

// allowed reports whether the pool may take a place now: both quotas have one, and no
// other waiting pool has precedence.
func (s *PoolQuota) allowed() bool {
	for i, a := range s.quotas {
		if a.max == 0 {
			continue
		}
		if a.full() {
			return false
		}
		if first := a.first(i); first != nil && first != s && before(first, s, i) {
			return false
		}
	}
	return true
}

// before reports whether x gets a place before y: its member holds fewer, or it holds
// fewer itself, or it has waited longer since its last one. i is the index of the quota.
func before(x, y *PoolQuota, i int) bool {
	if x.members[i] != y.members[i] {
		if n, m := x.members[i].held(), y.members[i].held(); n != m {
			return n < m
		}
	} else if x.held != y.held {
		return x.held < y.held
	}
	return x.got < y.got
}

// first is the pool that gets the next place, among those that could take it; nil if none
// wants one. i is the index of the quota.
func (a *quota) first(i int) (first *PoolQuota) {
	for _, m := range a.members {
		for _, s := range m.pools {
			if s.wants > 0 && !s.quotas[1-i].full() && (first == nil || before(s, first, i)) {
				first = s
			}
		}
	}
	return first
}

// index is the quota's index in the pool's quotas.
func (a *quota) index(s *PoolQuota) int {
	if s.quotas[1] == a {
		return 1
	}
	return 0
}

// offer wakes the pool that may have a place of a quota, if there is a free one.
func (p *ConnQuotas) offer(a *quota) {
	if a.full() {
		return
	}
	if s := a.first(a.index(a.members[0].pools[0])); s != nil {
		s.wake()
	}
}

// call makes another pool give up a place for s, unless one is on its way to s, or s has its
// share.
func (s *PoolQuota) call(a *quota, i int, now time.Duration) {
	coming := a.called
	for _, m := range a.members {
		for _, other := range m.pools {
			if other != s && other.wants > 0 && !other.quotas[1-i].full() && before(other, s, i) {
				coming--
			}
		}
	}
	if coming > 0 {
		return
	}
	if victim, afterTurn := a.victim(s, i); victim != nil {
		victim.expect(victim.called + 1)
		victim.giveUp(afterTurn)
		return
	}
	if now-a.lentAt < lendAgain {
		return
	}
	a.lentAt = now
	for _, m := range a.members {
		for _, other := range m.pools {
			if other != s && other.held > other.called {
				other.lend()
			}
		}
	}
}

// victim is the pool that must give up a place for s, and whether only after its turn; nil
// if s has its share.
func (a *quota) victim(s *PoolQuota, i int) (victim *PoolQuota, afterTurn bool) {
	own := s.members[i]
	others := a.richest(own)
	if others != nil && others.held() >= own.held()+2 {
		return others.richest(nil), false
	}
	sibling := own.richest(s)
	switch {
	case sibling != nil && sibling.held-sibling.called >= s.held+2:
		return sibling, false
	case s.held > 0:
		return nil, false
	case own.held() == 0 && others != nil: // more want one than there are
		return others.richest(nil), true
	}
	return sibling, true
}

// shrink makes the pools that hold the most give up what exceeds the limit.
func (a *quota) shrink() {
	if a.max == 0 {
		return
	}
	for a.held-a.called > a.max {
		s := a.richest(nil).richest(nil)
		if s == nil {
			return
		}
		s.expect(s.called + 1)
		s.giveUp(false)
	}
}

// richest is the member, other than but, that holds the most, and of several the one that
// has held that for longest.
func (a *quota) richest(but *quotaMember) (most *quotaMember) {
	for _, m := range a.members {
		if m != but && m.richest(nil) != nil && (most == nil || m.held() > most.held() || m.held() == most.held() && m.got() < most.got()) {
			most = m
		}
	}
	return most
}

func (m *quotaMember) got() (last uint64) {
	for _, s := range m.pools {
		last = max(last, s.got)
	}
	return last
}

// richest is the pool of the member, other than but, that holds the most and can give
// some up; nil if there is none.
func (m *quotaMember) richest(but *PoolQuota) (most *PoolQuota) {
	if m == nil {
		return nil
	}
	for _, s := range m.pools {
		if n := s.held - s.called; s != but && n > 0 && !s.keeps && (most == nil || n > most.held-most.called || n == most.held-most.called && s.got < most.got) {
			most = s
		}
	}
	return most
}
