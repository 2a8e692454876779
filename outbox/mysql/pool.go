package mysql

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/weirdb/weir/internal/outbox/pooled"
)

// pool lends sessions on the server that the address leads to, and looks where that is.
type pool struct {
	sessions
	db    *sql.DB
	owned bool // db was opened here
	// patience is leasePatience, longer in tests, so that a slow machine does not
	// look like a dead server.
	patience       time.Duration
	leaderPatience time.Duration // the constant, except in tests

	pooled pooled.Check

	borrowing sync.Mutex    // held while idle connections are borrowed: see fresh
	looking   chan struct{} // has a value while a lock looks where the address leads
	looked    sight         // guarded by looking

	mu         sync.Mutex
	idle       []*session
	generation int    // of sessions: see expire
	place      string // of sessions: see newSession
	closed     bool
}

func newPool(db *sql.DB) *pool {
	p := &pool{db: db, patience: leasePatience, leaderPatience: leaderPatience, looking: make(chan struct{}, 1)}
	p.sessions = p.session
	return p
}

// maxIdle is the most idle sessions that a store keeps.
const maxIdle = 8

// errClosed is the error of a closed store.
var errClosed = errors.New("the store is closed")

// session borrows a session; the caller releases it.
func (p *pool) session(ctx context.Context) (*session, error) {
	for hangs := false; ; {
		p.mu.Lock()
		closed, n := p.closed, len(p.idle)
		var c *session
		if n > 0 {
			c, p.idle = p.idle[n-1], p.idle[:n-1]
		}
		era, place := p.generation, p.place
		p.mu.Unlock()
		switch {
		case closed:
			return nil, errClosed
		case c == nil:
			return p.newSession(ctx, era)
		case hangs, c.generation != era, c.place != place:
			c.discard()
			continue
		case time.Since(c.used) < time.Second:
			return c, nil
		}
		// The server may have restarted, or hang.
		asking, cancel := context.WithTimeout(ctx, p.patience)
		err := c.PingContext(asking)
		hangs = asking.Err() != nil // and the others will not answer either
		cancel()
		if err == nil {
			return c, nil
		}
		c.discard()
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
}

// expire ends all idle sessions, and others when they are released, because a session
// keeps the server's settings of the time when it began.
func (p *pool) expire() {
	p.mu.Lock()
	p.generation++
	p.mu.Unlock()
}

// placeText is an expression that identifies a server and its version.
const placeText = "CONCAT_WS(' ', @@hostname, @@port, @@server_id, @@datadir, VERSION())"

// newSession returns a session on the server that the address leads to. The application's pool
// may have connections to the one that it led to before, which may hang.
func (p *pool) newSession(ctx context.Context, era int) (*session, error) {
	patience := p.patience
	if p.owned {
		patience = max(patience, connectPatience)
	}
	c, err := p.connect(ctx, era, patience)
	switch {
	case err != nil && (p.owned || ctx.Err() != nil):
		return nil, err
	case err != nil:
		return p.renew(ctx, nil)
	}
	if !p.owned {
		c.began = time.Time{} // it may be older than the application's last use of it
	}
	p.mu.Lock()
	p.place = cmp.Or(p.place, c.place)
	moved := c.place != p.place
	p.mu.Unlock()
	if moved {
		return p.renew(ctx, c)
	}
	return c, nil
}

// renew discards a session for a fresh one. Later sessions are on its server.
func (p *pool) renew(ctx context.Context, old *session) (*session, error) {
	if old != nil {
		old.discard()
	}
	c, err := p.fresh(ctx)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	p.place = c.place
	p.mu.Unlock()
	return c, nil
}

// fresh returns a session of a new connection, which is on the server that the address leads to
// now: it borrows all idle connections of the pool, so that the pool opens one. If the pool may not
// open any more, it closes one of them. The session may be of an old connection all the same, if
// the application releases one meanwhile, or if opening one waits for longer than they are
// borrowed; the next look finds out.
func (p *pool) fresh(ctx context.Context) (*session, error) {
	p.mu.Lock()
	era := p.generation
	p.mu.Unlock()
	patience := max(p.patience, connectPatience)
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	// One at a time: two that each hold a half of the connections would wait for each other.
	p.borrowing.Lock()
	idle := borrowIdle(ctx, p.db, p.patience/borrowShare)
	giveBack := sync.OnceFunc(func() {
		for _, conn := range idle {
			_ = conn.Close() // it goes back to the pool
		}
		p.borrowing.Unlock()
	})
	defer giveBack()
	defer time.AfterFunc(p.patience/borrowShare, giveBack).Stop() // the new one may hang
	return p.connect(ctx, era, patience)
}

// borrowShare is which part of its patience a store takes to borrow idle connections, and again
// to open another one meanwhile, 0.1 s each: the application may have to wait for them.
const borrowShare = 30

// borrowIdle borrows the idle connections of a pool, and closes one of them if the pool is full.
func borrowIdle(ctx context.Context, db *sql.DB, patience time.Duration) (idle []*sql.Conn) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	stats := db.Stats()
	full := stats.MaxOpenConnections > 0 && stats.OpenConnections >= stats.MaxOpenConnections
	for range stats.Idle {
		conn, err := db.Conn(ctx)
		if err != nil {
			break // the application has taken the others
		}
		if full {
			(&session{Conn: conn}).discard()
			full = false
			continue
		}
		idle = append(idle, conn)
	}
	return idle
}

// connectPatience is how long a server may take to accept a session. The address of one that
// hangs may lead to another by now.
const connectPatience = 10 * time.Second

func (p *pool) connect(ctx context.Context, era int, patience time.Duration) (*session, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := p.db.Conn(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	c := &session{Conn: conn, pool: p, began: time.Now(), generation: era}
	for _, text := range settings {
		if err := c.exec(ctx, text); err != nil {
			c.discard()
			return nil, fmt.Errorf("prepare the session: %w", err)
		}
	}
	err = conn.QueryRowContext(ctx, "SELECT CONNECTION_ID(), "+placeText).Scan(&c.id, &c.place)
	if err == nil {
		err = c.logRows(ctx)
	}
	if err != nil {
		c.discard()
		return nil, fmt.Errorf("look at the server: %w", err)
	}
	return c, nil
}

// release returns the session to the idle ones, or discards it if err may have broken it.
func (c *session) release(err error) {
	if c.gone {
		return
	}
	if err != nil && !isServerError(err) {
		c.discard()
		return
	}
	c.used = time.Now()
	p := c.pool
	p.mu.Lock()
	keep := !p.closed && len(p.idle) < maxIdle
	if keep {
		p.idle = append(p.idle, c)
	}
	p.mu.Unlock()
	if !keep {
		c.discard()
	}
}

// sight is what a look where the address leads has found.
type sight struct {
	at      time.Time
	place   string
	primary bool // the server accepts writes; false if the look failed
}

// look looks where the address leads. Leases of one store look at about the same time, and share a
// look: it borrows the pool's idle connections.
func (p *pool) look(ctx context.Context) sight {
	select {
	case p.looking <- struct{}{}:
		defer func() { <-p.looking }()
	case <-ctx.Done():
		return sight{}
	}
	// Less than leaderPatience: a lease must not believe what was seen before it began.
	if time.Since(p.looked.at) < p.leaderPatience/4 {
		return p.looked
	}
	found := sight{at: time.Now()}
	c, err := p.fresh(ctx)
	if err == nil {
		var readOnly string
		asking, cancel := context.WithTimeout(ctx, p.patience)
		err = c.QueryRowContext(asking, "SELECT @@global.read_only").Scan(&readOnly)
		cancel()
		found.place, found.primary = c.place, err == nil && !isOn(readOnly)
		c.discard()
	}
	if ctx.Err() == nil { // else it is this lease that has ended
		p.looked = found
	}
	return found
}

// stay looks from time to time where the address leads, and calls lose if that is another server
// than the one of a lock, and accepts writes. There may be messages there and no leader: this relay
// may be the only one.
func (p *pool) stay(ctx context.Context, place string, lost <-chan struct{}, lose func()) {
	tick := time.NewTicker(p.leaderPatience)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-lost:
			return
		case <-tick.C:
		}
		// The lock does not depend on a look that fails.
		if to := p.look(ctx); to.primary && to.place != place {
			lose()
		}
	}
}

// close closes the sessions that are idle, and db if it was opened here.
func (p *pool) close() error {
	p.mu.Lock()
	idle := p.idle
	p.idle, p.closed = nil, true
	p.mu.Unlock()
	for _, c := range idle {
		c.discard()
	}
	if p.owned {
		return p.db.Close()
	}
	return nil
}
