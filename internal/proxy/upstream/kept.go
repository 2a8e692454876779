package upstream

import "sync"

// Kept holds a connection to each endpoint for the next question, when nobody asks on
// it. Safe for concurrent use, for different endpoints.
type Kept[C any] struct {
	close func(C)

	mu    sync.Mutex
	conns map[Endpoint]C // guarded by mu; nil when closed
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

// Put keeps a connection, or ends it where Close has been called.
func (k *Kept[C]) Put(e Endpoint, c C) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.conns == nil {
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
