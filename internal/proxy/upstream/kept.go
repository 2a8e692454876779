package upstream

import (
	"slices"
	"sync"
)

// Kept holds a connection to each endpoint for the next question, while it is not in
// use. Safe for concurrent use, for different endpoints.
type Kept[C any] struct {
	close func(C)

	mu    sync.Mutex
	conns map[Endpoint]C // guarded by mu; nil when closed
	only  []Endpoint     // guarded by mu: of others none is kept; nil for all
}

// NewKept returns one that holds nothing; close ends a connection.
func NewKept[C any](close func(C)) *Kept[C] {
	return &Kept[C]{close: close, conns: make(map[Endpoint]C)}
}

// Take removes the connection to an endpoint. ok is false if there is none.
func (k *Kept[C]) Take(e Endpoint) (c C, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	c, ok = k.conns[e]
	delete(k.conns, e)
	return c, ok
}

// Only ends the connections to endpoints that are not in the list, and keeps none to such
// any more.
func (k *Kept[C]) Only(list []Endpoint) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.only = list
	for e, c := range k.conns {
		if !slices.Contains(list, e) {
			delete(k.conns, e)
			k.close(c)
		}
	}
}

// Put keeps a connection, or ends it where that endpoint is not wanted any more or Close
// has been called.
func (k *Kept[C]) Put(e Endpoint, c C) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.conns == nil || k.only != nil && !slices.Contains(k.only, e) {
		k.close(c)
		return
	}
	if other, ok := k.conns[e]; ok { // of a question that was not waited for
		k.close(other)
	}
	k.conns[e] = c
}

// Close ends all connections; none is kept any more.
func (k *Kept[C]) Close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range k.conns {
		k.close(c)
	}
	k.conns = nil
}
