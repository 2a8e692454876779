package core

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirdb/weir/internal/proxy/session"
)

// This file is how pools share a number of server connections: those of one database
// (--max-db-connections) and of one user (--max-user-connections). Each connection
// takes a place there. While there are places they go to the first who asks. When there are
// none, the users of a database have equal shares, and so have the databases of a user:
//
//	places 4   a has 4, 1000 wait    b comes
//	           a 4 ─► 3 (the next that is free is closed)   b 0 ─► 1
//	           a 3 ─► 2                                     b 1 ─► 2
//
// So the wait of b is bounded by the statements that are under way, and not by those
// that wait. Where more users want a place than there are places, each keeps its
// place for the statements of one turn, and then it goes to the user that has been
// without for longest.

// turnStatements is how many statements a pool may run on the place that it has to give
// up: enough to be worth a login.
const turnStatements = 16

const (
	// lendAfter is how long a connection has been free that a pool closes for others
	// who have their share already.
	lendAfter = time.Second
	// lendAgain is how often pools are asked for such connections.
	lendAgain = 100 * time.Millisecond
)

// Places are those of one side. Safe for concurrent use.
type Places struct {
	mu               sync.Mutex
	databases, users map[string]*account // guarded by mu
	clock            uint64              // guarded by mu: counts what was given
	options          *session.Options    // guarded by mu: that Apply has put in force last

	held         int           // guarded by mu: by all pools
	allowed      int           // guarded by mu: up to which pools may grow by themselves
	crampedUntil time.Duration // guarded by mu: they may not until then

	leaving atomic.Int64 // pools that are to be dropped
}

// part is how much of the connections that a server has may be taken by pools that grow
// by themselves: the rest is for others.
func part(n int) int { return n * 3 / 4 }

// crampedFor is for how long pools do not grow when the server has had no connection left.
const crampedFor = time.Minute

// allow sets up to how many connections pools may grow: three quarters of the server's,
// divided among this weir and as many others.
func (p *Places) allow(server, others int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.allowed = part(server) / (1 + others)
}

// Cramp tells that the server has no connection left. For a while pools that have grown by
// themselves are as large as at first.
func (p *Places) Cramp(now time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.crampedUntil = now + crampedFor
}

// spare returns how many connections pools may still open by growing; it is negative
// when they must return to their first size.
func (s *Seat) spare(now time.Duration) int {
	p := s.places
	p.mu.Lock()
	defer p.mu.Unlock()
	if now < p.crampedUntil {
		return -1
	}
	return p.allowed - p.held
}

// An account is the places of one database, or of one user.
type account struct {
	max     int // 0: as many as anybody likes
	held    int
	called  int           // of held: are to be given up
	lentAt  time.Duration // when those who hold places were last asked to lend one
	members []*member     // of a database its users, of a user its databases
}

// A member shares an account with others.
type member struct {
	name  string
	seats []*Seat
}

// A Seat is a pool's part in two accounts.
type Seat struct {
	places   *Places
	accounts [2]*account // of its database and of its user
	members  [2]*member
	// wake has the pool look at its queue; giveUp has it close a connection: the next
	// that is free, or the one that is when it has had its turn. Both return at once.
	wake   func()
	giveUp func(afterTurn bool)
	// lend has it close a connection that nobody has used for a while.
	lend func()

	held   int
	wants  int    // more
	called int    // of held: are to be given up
	got    uint64 // when it was last given one, by the clock
	keeps  bool   // it could not give one up when it was last asked
	idle   bool   // nobody has used it lately
	leaves bool   // it is to be dropped
}

// Seat enters a pool. o are the options in force on its loop, which may not have heard of
// those of Apply yet.
func (p *Places) Seat(o *session.Options, database, user string, wake func(), giveUp func(afterTurn bool), lend func()) *Seat {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.options != nil {
		o = p.options
	}
	if p.databases == nil {
		p.databases, p.users = make(map[string]*account), make(map[string]*account)
	}
	db, us := p.databases[database], p.users[user]
	if db == nil {
		db = &account{max: o.LimitsOfDatabase(database).MaxDBConnections}
		p.databases[database] = db
	}
	if us == nil {
		us = &account{max: o.LimitsOfUser(user).MaxUserConnections}
		p.users[user] = us
	}
	s := &Seat{places: p, wake: wake, giveUp: giveUp, lend: lend, accounts: [2]*account{db, us}}
	s.members = [2]*member{db.member(user), us.member(database)}
	for _, m := range s.members {
		m.seats = append(m.seats, s)
	}
	return s
}

// Apply puts other limits in force. Places that are too many are called in.
func (p *Places) Apply(o *session.Options) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.options = o
	for name, a := range p.databases {
		a.max = o.LimitsOfDatabase(name).MaxDBConnections
	}
	for name, a := range p.users {
		a.max = o.LimitsOfUser(name).MaxUserConnections
	}
	for _, list := range []map[string]*account{p.databases, p.users} {
		for _, a := range list {
			a.shrink()
			p.offer(a)
		}
	}
}

// Ask takes a place for a pool that could use so many. If it is not to have one it
// wants them from now on, and is woken when there is one for it.
func (s *Seat) Ask(wants int, now time.Duration) bool {
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
	for i, a := range s.accounts {
		if a.full() {
			s.call(a, i, now)
		}
	}
	return false
}

// Keep takes a place for a connection that is there already: if there is one that
// nobody wants, or in any case if it must be kept.
func (s *Seat) Keep(must bool) bool {
	if s == nil {
		return true
	}
	s.places.mu.Lock()
	defer s.places.mu.Unlock()
	if !must && !s.allowed() {
		return false
	}
	s.take()
	for _, a := range s.accounts {
		a.shrink()
	}
	return true
}

// Withdraw ends what Ask has begun.
func (s *Seat) Withdraw() {
	if s == nil {
		return
	}
	s.places.mu.Lock()
	defer s.places.mu.Unlock()
	s.withdraw()
}

func (s *Seat) withdraw() {
	if s.wants > 0 {
		s.wants = 0
		for _, a := range s.accounts {
			s.places.offer(a)
		}
	}
}

// Back returns a place that Ask has given, and withdraws.
func (s *Seat) Back() {
	if s == nil {
		return
	}
	s.places.mu.Lock()
	defer s.places.mu.Unlock()
	s.wants = 0
	s.set(s.held - 1)
}

// Holds says how many connections the pool has now, those that are being opened
// included.
func (s *Seat) Holds(n int) {
	if s == nil {
		return
	}
	s.places.mu.Lock()
	defer s.places.mu.Unlock()
	s.set(n)
}

// Idle notes whether the pool has been used lately. It reports whether the pool is to be
// dropped: when no pool of its user and database, on any loop, has been used. Such pools go
// together, for what they have counted is shown as one, and the sum would fall.
func (s *Seat) Idle(idle bool) (leaves bool) {
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
	for _, other := range s.members[0].seats {
		if !other.idle {
			s.stay()
			return false
		}
	}
	for _, other := range s.members[0].seats {
		if !other.leaves {
			other.leaves = true
			p.leaving.Add(1)
		}
	}
	return true
}

// stay has the pool not be dropped, or is for one that was.
func (s *Seat) stay() {
	if s.leaves {
		s.leaves = false
		s.places.leaving.Add(-1)
	}
}

// Leaving reports whether there are pools that are to be dropped and are there still.
func (p *Places) Leaving() bool { return p.leaving.Load() > 0 }

// Leave ends the pool's part in its accounts: the pool has no connections, and wants none.
func (s *Seat) Leave() {
	if s == nil {
		return
	}
	p := s.places
	p.mu.Lock()
	defer p.mu.Unlock()
	s.withdraw()
	s.set(0)
	s.stay()
	for i, a := range s.accounts {
		m := s.members[i]
		if m.seats = without(m.seats, s); len(m.seats) == 0 {
			a.members = without(a.members, m)
		}
	}
	if len(s.accounts[0].members) == 0 {
		delete(p.databases, s.members[1].name)
	}
	if len(s.accounts[1].members) == 0 {
		delete(p.users, s.members[0].name)
	}
}

// Keeps says that the pool cannot give up what it was asked to.
func (s *Seat) Keeps() {
	s.places.mu.Lock()
	defer s.places.mu.Unlock()
	s.keeps = true
	if s.called > 0 {
		s.expect(s.called - 1)
		s.wakeFirst()
	}
}

// wakeFirst has those who wait for a place of the pool's accounts ask anew.
func (s *Seat) wakeFirst() {
	for i, a := range s.accounts {
		if first := a.first(i); first != nil {
			first.wake()
		}
	}
}

func (s *Seat) take() {
	s.places.clock++
	s.got = s.places.clock
	s.wants = max(0, s.wants-1)
	s.set(s.held + 1)
	s.wakeFirst() // who may have hoped for this one, and is to ask for another
}

// expect says how many places s is to give up.
func (s *Seat) expect(n int) {
	for _, a := range s.accounts {
		a.called += n - s.called
	}
	s.called = n
}

func (s *Seat) set(n int) {
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
	for _, a := range s.accounts {
		a.held -= less
	}
	if less > 0 {
		for _, a := range s.accounts {
			s.places.offer(a)
		}
	}
}

func (a *account) full() bool { return a.max > 0 && a.held >= a.max }

func (a *account) member(name string) *member {
	for _, m := range a.members {
		if m.name == name {
			return m
		}
	}
	m := &member{name: name}
	a.members = append(a.members, m)
	return m
}

// held is what a member holds, without what it is to give up.
func (m *member) held() (n int) {
	for _, s := range m.seats {
		n += s.held - s.called
	}
	return n
}

// allowed reports whether the pool may have a place now: there is one in both of its
// accounts, and nobody who wants one goes before.
func (s *Seat) allowed() bool {
	for i, a := range s.accounts {
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

// before reports whether x has a place before y: its member holds fewer, or it holds
// fewer itself, or it was given none for longer. i is which of their accounts it is.
func before(x, y *Seat, i int) bool {
	if x.members[i] != y.members[i] {
		if n, m := x.members[i].held(), y.members[i].held(); n != m {
			return n < m
		}
	} else if x.held != y.held {
		return x.held < y.held
	}
	return x.got < y.got
}

// first is who is to have the next place of those that could take it, nil if nobody
// wants one. i is which of their accounts it is.
func (a *account) first(i int) (first *Seat) {
	for _, m := range a.members {
		for _, s := range m.seats {
			if s.wants > 0 && !s.accounts[1-i].full() && (first == nil || before(s, first, i)) {
				first = s
			}
		}
	}
	return first
}

// index is which of the two accounts of a pool this is.
func (a *account) index(s *Seat) int {
	if s.accounts[1] == a {
		return 1
	}
	return 0
}

// offer wakes the one who may have a place of an account that has one.
func (p *Places) offer(a *account) {
	if a.full() {
		return
	}
	if s := a.first(a.index(a.members[0].seats[0])); s != nil {
		s.wake()
	}
}

// call has somebody give up a place for s, unless one is on its way to it, or s has its
// share.
func (s *Seat) call(a *account, i int, now time.Duration) {
	coming := a.called
	for _, m := range a.members {
		for _, other := range m.seats {
			if other != s && other.wants > 0 && !other.accounts[1-i].full() && before(other, s, i) {
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
		for _, other := range m.seats {
			if other != s && other.held > other.called {
				other.lend()
			}
		}
	}
}

// victim is who is to give up a place for s, and whether after its turn only; nil if s
// has its share.
func (a *account) victim(s *Seat, i int) (victim *Seat, afterTurn bool) {
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

// shrink has those who hold the most give up what is too much.
func (a *account) shrink() {
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

// richest is the member, other than one, that holds the most and has had that for
// longest.
func (a *account) richest(but *member) (most *member) {
	for _, m := range a.members {
		if m != but && m.richest(nil) != nil && (most == nil || m.held() > most.held() || m.held() == most.held() && m.got() < most.got()) {
			most = m
		}
	}
	return most
}

func (m *member) got() (last uint64) {
	for _, s := range m.seats {
		last = max(last, s.got)
	}
	return last
}

// richest is the pool of the member, other than one, that holds the most and can give
// some up; nil if there is none.
func (m *member) richest(but *Seat) (most *Seat) {
	if m == nil {
		return nil
	}
	for _, s := range m.seats {
		if n := s.held - s.called; s != but && n > 0 && !s.keeps && (most == nil || n > most.held-most.called || n == most.held-most.called && s.got < most.got) {
			most = s
		}
	}
	return most
}
