package upstream

import (
	"slices"
	"sync"
)

// Kept holds a connection to each endpoint between two probes. Safe for concurrent
// use, for different endpoints.
type Kept[C any] struct {
	close func(C)

	mu    sync.Mutex
	conns map[Endpoint]C // guarded by mu; nil when closed
	only  []Endpoint     // guarded by mu: connections to others are not kept; nil: all are
}

// NewKept returns an empty Kept; close closes a connection.
func NewKept[C any](close func(C)) *Kept[C] {
	return &Kept[C]{close: close, conns: make(map[Endpoint]C)}
}

// Take removes and returns the connection to an endpoint. ok is false if there is none.
func (k *Kept[C]) Take(e Endpoint) (c C, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	c, ok = k.conns[e]
	delete(k.conns, e)
	return c, ok
}

// Only closes the connections to endpoints that are not in the list, and keeps none to
// those any more.
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

// Put keeps a connection, or closes it if its endpoint is not wanted any more or Close
// has been called.
func (k *Kept[C]) Put(e Endpoint, c C) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.conns == nil || k.only != nil && !slices.Contains(k.only, e) {
		k.close(c)
		return
	}
	if other, ok := k.conns[e]; ok { // of a probe whose answer was not waited for
		k.close(other)
	}
	k.conns[e] = c
}

// Close closes all connections, and later ones at once.
func (k *Kept[C]) Close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range k.conns {
		k.close(c)
	}
	k.conns = nil
}
