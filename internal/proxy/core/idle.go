package core

import (
	"sync"
	"time"

	"github.com/weirdb/weir/internal/proxy/upstream"
)

const (
	// LookupKeep is how long an idle connection for lookups is kept, and LookupLife how long
	// such a connection is used at all.
	LookupKeep = 10 * time.Minute
	LookupLife = time.Hour
)

// Lookups are idle connections on which weir looks up users who log in. Safe for
// concurrent use.
type Lookups[C any] struct {
	end func(c C)

	mu     sync.Mutex
	idle   []idleLookup[C] // guarded by mu: the last one used last
	closed bool            // guarded by mu
}

type idleLookup[C any] struct {
	conn        C
	to          upstream.Endpoint
	born, since time.Time
}

// NewLookups returns an empty Lookups; end closes a connection.
func NewLookups[C any](end func(c C)) *Lookups[C] { return &Lookups[C]{end: end} }

// Take returns an idle connection to an endpoint for which goes returns true, or the zero
// value. It closes those that are too old or go elsewhere.
func (l *Lookups[C]) Take(goes func(upstream.Endpoint) bool) (none C) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.idle) > 0 {
		lk := l.idle[len(l.idle)-1]
		l.idle = l.idle[:len(l.idle)-1]
		if time.Since(lk.since) < LookupKeep && time.Since(lk.born) < LookupLife && goes(lk.to) {
			return lk.conn
		}
		l.end(lk.conn)
	}
	return none
}

// Keep stores a connection to an endpoint, opened at born, for the next lookup.
func (l *Lookups[C]) Keep(c C, to upstream.Endpoint, born time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		l.end(c)
		return
	}
	l.idle = append(l.idle, idleLookup[C]{c, to, born, time.Now()})
}

// LetGo closes the idle connections.
func (l *Lookups[C]) LetGo() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, lk := range l.idle {
		l.end(lk.conn)
	}
	l.idle = nil
}

// Close closes them, and later ones at once.
func (l *Lookups[C]) Close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.LetGo()
}
